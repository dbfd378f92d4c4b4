"""Layers of `Chain.conv` against PyTorch, which draws kernels and convolves.

Both make relu, batch normalization over samples and pixels, and a circular 3 x 3 convolution with
new weights in each layer, in float32, without gradients and on one core.  PyTorch is timed with the
Gram matrix of each layer, which `simulate` makes in any case, and without.  The candidates take
turns, and the clock counts the time of the processor in this process.

With d channels, n columns (samples times pixels) and 9 taps, PyTorch draws 9 d^2 normals and makes
9 d^2 n multiplications.  So does the sampler "weights", which adds n^2 d / 2 for the Gram matrix.
The conditional sampler draws d (n - 1) normals and makes n^2 d multiplications, and n^3 / 6 in
float64.  The more channels there are to a column, the more it saves.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

import bnmc
from bench import peers
from bench.report import Cell, Floor, Report, Table
from bench.timing import Candidate, Run, Timings, interleave

#: Layers of the shortest call, so that its beginning takes a small part of its time.
LAYERS = 25
SAMPLERS = ("conditional", "weights")


@dataclass(frozen=True)
class Shape:
    """Channels, height and width of the images, samples, and the wanted speed over PyTorch."""

    channels: int
    pixels: int
    samples: int
    wanted: float

    @property
    def label(self) -> str:
        size = f"{self.pixels} x {self.pixels}"
        return f"{self.channels} channels, {size}, batch {self.samples}"

    @property
    def chain(self) -> bnmc.Chain:
        size = (self.pixels, self.pixels)
        return bnmc.Chain.conv(self.channels, self.samples, "relu", shape=size)


#: The first has 64 channels and n = 256 columns.  Either sampler makes about 10^7 multiplications
#: there.  At the peak of a core these alone take a fifth of the time of PyTorch, so five times its
#: speed is out of reach.  The sampler that `simulate` takes must be no slower.
SHAPES = (
    Shape(64, 8, 4, wanted=1.0),
    Shape(64, 8, 1, wanted=2.0),
    Shape(256, 8, 1, wanted=5.0),
    Shape(512, 4, 4, wanted=5.0),
)


def benchmark(*, quick: bool) -> Report:
    """Time all shapes; quick runs have the first two, and fewer rounds."""
    report = Report("conv")
    headers = ["candidate", "us a layer-chain", "x PyTorch", "x PyTorch with Gram matrices"]
    for shape in SHAPES[: 2 if quick else None]:
        peers.verify(partial(_of_torch(shape, 40, with_gram=True), keeps=True), shape.chain.batch)
        rounds, seconds = (3, 0.1) if quick else (5, 0.3)
        timings = interleave(
            candidates(shape), rounds=rounds, seconds=seconds, clock=time.process_time
        )
        rows = [_row(name, mine, timings) for name, mine in timings.items()]
        chosen = bnmc.simulate(shape.chain, 0, dtype="float32").sampler
        title = f"{shape.label}, relu, float32; sampler 'auto' takes {chosen!r}"
        report.tables.append(Table(title, headers, rows))
        report.samples[shape.label] = {name: one.seconds for name, one in timings.items()}
        speed = timings[f"bnmc {chosen}"].speed_over(timings["PyTorch"])
        report.floors.append(Floor(f"{shape.label} over PyTorch", speed, shape.wanted))
    return report


def candidates(shape: Shape) -> list[Candidate]:
    """Return both samplers and PyTorch, with and without Gram matrices."""
    ours = [Candidate(f"bnmc {name}", partial(_ours, shape, name), LAYERS) for name in SAMPLERS]
    theirs = [
        Candidate("PyTorch" + " with Gram matrices" * gram, partial(_torch, shape, gram), LAYERS)
        for gram in (False, True)
    ]
    return [*ours, *theirs]


def _row(name: str, mine: Timings, timings: dict[str, Timings]) -> list[Cell]:
    ratios = [mine.speed_over(timings[f"PyTorch{more}"]) for more in ("", " with Gram matrices")]
    return [name, 1e6 * mine.median, *ratios]


def _ours(shape: Shape, sampler: str, size: int) -> Run:
    layers = LAYERS * size

    def run() -> object:
        return bnmc.simulate(
            shape.chain, layers, rng=0, sampler=sampler, dtype="float32", every=layers, threads=1
        )

    return run


def _torch(shape: Shape, with_gram: bool, size: int) -> Run:
    return _of_torch(shape, LAYERS * size, with_gram=with_gram)


def _of_torch(shape: Shape, layers: int, *, with_gram: bool) -> Callable[..., Any]:
    """Return a call that takes one network through layers; it can return its Gram matrices."""
    import torch

    torch.set_num_threads(1)
    d, n = shape.channels, shape.chain.batch
    size = (shape.samples, d, shape.pixels, shape.pixels)
    start = torch.from_numpy(np.random.default_rng(1).standard_normal(size, dtype=np.float32))
    convolution = torch.nn.Conv2d(d, d, 3, padding="same", padding_mode="circular", bias=False)
    norm = torch.nn.BatchNorm2d(d, affine=False, track_running_stats=False)

    def run(*, keeps: bool = False) -> Any:
        kept = []
        with torch.no_grad():
            h = start
            for _ in range(layers):
                a = torch.relu(norm(h))
                if with_gram:
                    rows = a.transpose(0, 1).reshape(d, n)
                    gram = rows.T @ rows / d
                    if keeps:
                        kept.append(gram)
                torch.nn.init.normal_(convolution.weight, std=(9 * d) ** -0.5)
                h = convolution(a)
        return torch.stack(kept)[None] if keeps else h

    return run
