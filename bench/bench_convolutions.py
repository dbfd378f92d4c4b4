"""Layers of `Chain.conv` against PyTorch, which draws kernels and convolves.

Both make relu, batch normalization over samples and pixels, and a circular 3 x 3 convolution with
new weights in each layer, in float32, without gradients and on one core.  PyTorch is timed with the
Gram matrix of each layer, which `simulate` makes in any case, and without.  The clock counts the
time of the processor in this process.

With d channels, n columns (samples times pixels) and 9 taps, PyTorch draws 9 d^2 normals and makes
9 d^2 n multiplications.  So does the sampler "weights", which adds n^2 d / 2 for the Gram matrix.
The conditional sampler draws d (n - 1) normals and makes n^2 d multiplications, and n^3 / 6 in
float64.  The more channels there are to a column, the more it saves.
"""

from dataclasses import dataclass

import numpy as np
import pytest

import bnmc
from bench import peers
from bench.turns import LAYER, Candidate

#: Layers of the shortest call, so that its beginning takes a small part of its time.
LAYERS = 25


@dataclass(frozen=True)
class Shape:
    """Channels, height and width of the images, samples, and the wanted speed over PyTorch."""

    channels: int
    pixels: int
    samples: int
    wanted: float

    def __str__(self) -> str:
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


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_layers(turns, shape):
    pytest.importorskip("torch")
    shape = turns.of(shape, shape, Shape(64, 4, 1, shape.wanted))
    chosen = bnmc.simulate(shape.chain, 0, dtype="float32").sampler
    turns.group = f"{shape}, relu, float32; sampler 'auto' takes {chosen!r}"
    peers.verify(torch_layers(shape, 40), shape.chain.batch)
    candidates = [
        Candidate(f"bnmc {sampler}", our_layers(shape, sampler), LAYERS, LAYER)
        for sampler in ("conditional", "weights")
    ]
    for name, with_gram in (("PyTorch", False), ("PyTorch with Gram matrices", True)):
        make = lambda size, gram=with_gram: torch_layers(shape, LAYERS * size, gram)  # noqa: E731
        candidates.append(Candidate(name, make, LAYERS, LAYER))
    rounds, seconds = turns.of((5, 0.3), (3, 0.1))
    timings = turns(candidates, rounds=rounds, seconds=seconds, by_processor=True)
    for name, timing in timings.items():
        for other in ("PyTorch", "PyTorch with Gram matrices"):
            turns.add(name, {f"x {other}": timing.speed_over(timings[other])})
    speed = timings[f"bnmc {chosen}"].speed_over(timings["PyTorch"])
    turns.hold(f"bnmc {chosen}", "x PyTorch", speed, at_least=shape.wanted)


def our_layers(shape, sampler):
    """For `Candidate.make`: multiples of `LAYERS`."""

    def make(size):
        layers = LAYERS * size
        return lambda: bnmc.simulate(
            shape.chain, layers, rng=0, sampler=sampler, dtype="float32", every=layers, threads=1
        )

    return make


def torch_layers(shape, layers, with_gram=True):
    """Return a call that takes one network through layers, and returns its Gram matrices."""
    import torch

    torch.set_num_threads(1)
    d, n = shape.channels, shape.chain.batch
    size = (shape.samples, d, shape.pixels, shape.pixels)
    start = torch.from_numpy(np.random.default_rng(1).standard_normal(size, dtype=np.float32))
    convolution = torch.nn.Conv2d(d, d, 3, padding="same", padding_mode="circular", bias=False)
    norm = torch.nn.BatchNorm2d(d, affine=False, track_running_stats=False)

    def run():
        grams = []
        with torch.no_grad():
            h = start
            for _ in range(layers):
                a = torch.relu(norm(h))
                if with_gram:
                    rows = a.transpose(0, 1).reshape(d, n)
                    grams.append(rows.T @ rows / d)
                torch.nn.init.normal_(convolution.weight, std=(9 * d) ** -0.5)
                h = convolution(a)
        return torch.stack(grams) if with_gram else h

    return run
