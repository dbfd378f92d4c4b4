"""Where the time of a layer goes: its parts, each beside what the machine needs at its peaks.

The parts are the kernels of one chain on one core, called over and over on a block in the cache.
*At the peaks* counts what a part cannot do without: multiply-adds at the FMA peak, normals at the
rate of the normal kernel, square roots, divisions and stores at rates that are measured here, too.
What the roofline of `simulate` counts are the normals and the multiply-adds of the two products.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np

import bnmc
from bench.report import Cell, Report, Table
from bench.roofline import fma_candidate, library_normals
from bench.timing import Candidate, Run, Timings, interleave
from bnmc._kernels.cpu import blocks, memory, rows, vectors
from bnmc._kernels.cpu.numbers import BLOCK, GROUP, fill_normals
from bnmc._kernels.cpu.peaks import NORMALS
from bnmc._kernels.scalar.codes import STREAM_ROWS, Draw
from bnmc.chain.compiled import spec_of

SHAPES = ((1000, 10, "float32"), (1000, 10, "float64"), (1000, 100, "float32"))


# --- the kernels, over and over


@numba.njit
def _normals(times: int, law: Any, work: Any, draw: Any) -> None:
    for _ in range(times):
        fill_normals(work.block, 0, 0, law.columns - 1, 0, BLOCK, draw)


@numba.njit
def _product(times: int, law: Any, work: Any, source: Any) -> None:
    for _ in range(times):
        blocks.multiply_triangular(work.factor, law.columns, source, work.block, BLOCK)


@numba.njit
def _variances(times: int, law: Any, work: Any) -> None:
    for _ in range(times):
        rows.measure_rows(work.block, BLOCK, law, False, work.scales)


@numba.njit
def _activations(times: int, law: Any, work: Any, sigma: Any, scales: Any) -> None:
    for _ in range(times):
        rows.activate_block(sigma, work.block, law.columns, law.batch, BLOCK, scales)


@numba.njit
def _gram(times: int, law: Any, work: Any) -> None:
    for _ in range(times):
        blocks.add_gram(work.block, law.columns, BLOCK, work.partial, work.sums)


@numba.njit
def _factor(times: int, law: Any, work: Any, gram: Any) -> None:
    for _ in range(times):
        rows.factorise(gram, law, work)


@numba.njit
def _roots(times: int, values: Any, out: Any) -> None:
    """Write 1 / sqrt of `BLOCK` values."""
    strip = vectors.STRIP_BYTES // values.itemsize
    one = vectors.fill_like(vectors.zero_strip(values), values.dtype.type(1.0))
    for _ in range(times):
        for row in range(0, BLOCK, strip):
            root = vectors.square_root(vectors.load_strip(values, row))
            vectors.store(out, row, one / root)


@numba.njit
def _stores(times: int, out: Any) -> None:
    """Write `BLOCK` zeros; the order of the stores is kept, so that none is left out."""
    strip = vectors.STRIP_BYTES // out.itemsize
    zero = vectors.zero_strip(out)
    for _ in range(times):
        vectors.keep_order()
        for row in range(0, BLOCK, strip):
            vectors.store(out, row, zero)


# --- what is measured


@dataclass(frozen=True)
class Part:
    """A part of a layer: a call, how often a layer makes it, and what it needs for each layer."""

    name: str
    make: Callable[[int], Run]
    times: float
    normals: float = 0.0
    flops: float = 0.0
    roots: float = 0.0
    stores: float = 0.0

    def at_the_peaks(self, seconds: dict[str, float]) -> float:
        """Return the longest of the times of what the part needs, as these things can overlap."""
        needs = {"normal": self.normals, "flop": self.flops, "root": self.roots}
        needs["store"] = self.stores
        return max(number * seconds[name] for name, number in needs.items())


def benchmark(*, quick: bool) -> Report:
    """Time the parts of a layer, the layer, and the peaks, in turns, on one core."""
    report = Report("parts")
    for width, batch, dtype in SHAPES:
        parts = parts_of(width, batch, dtype)
        layer = layer_candidate(width, batch, dtype)
        with ThreadPoolExecutor(1) as pool:
            candidates = [layer, *peaks(dtype, pool)]
            candidates += [Candidate(part.name, part.make) for part in parts]
            rounds, seconds = (3, 0.02) if quick else (9, 0.1)
            timings = interleave(candidates, rounds=rounds, seconds=seconds)
        title = f"A layer at ({width}, {batch}), relu, {dtype}, one core"
        report.tables.append(table(title, parts, timings, timings[layer.name].median))
        report.samples[title] = {name: timing.seconds for name, timing in timings.items()}
    return report


def table(title: str, parts: list[Part], timings: dict[str, Timings], whole: float) -> Table:
    """The parts with their times, their shares, and their times at the peaks."""
    seconds = {name: timings[name].median for name in ("normal", "flop", "root", "store")}
    out: list[list[Cell]] = []
    for part in parts:
        took = part.times * timings[part.name].median
        out.append([part.name, 1e6 * took, took / whole, 1e6 * part.at_the_peaks(seconds)])
    sums = [sum(float(row[column] or 0.0) for row in out) for column in (1, 2, 3)]
    out.append(["between the parts", 1e6 * whole - sums[0], 1.0 - sums[1], None])
    out.append(["the layer", 1e6 * whole, 1.0, sums[2]])
    return Table(title, ["part", "us", "of the layer", "at the peaks, us"], out)


def layer_candidate(width: int, batch: int, dtype: str) -> Candidate:
    """One chain on one thread; the unit of work is a layer."""
    chain = bnmc.Chain(width, batch, "relu")

    def make(layers: int) -> Run:
        return lambda: bnmc.simulate(
            chain, layers, rng=0, sampler="conditional", dtype=dtype, every=layers, threads=1
        )

    return Candidate("layer", make)


def peaks(dtype: str, pool: ThreadPoolExecutor) -> list[Candidate]:
    """Seconds of a normal, of an operation of a multiply-add, of 1 / sqrt, and of a store."""
    values, out = (memory.aligned_zeros((BLOCK,), dtype) for _ in range(2))
    values[:] = 2.0
    normals = library_normals(dtype, 0)
    return [
        Candidate("normal", normals, NORMALS),
        fma_candidate(dtype, pool, 1).renamed("flop"),
        Candidate("root", lambda times: lambda: _roots(times, values, out), BLOCK),
        Candidate("store", lambda times: lambda: _stores(times, out), BLOCK),
    ]


def parts_of(width: int, batch: int, dtype: str) -> list[Part]:
    """The parts of a layer of a chain in the law where it ends up."""
    chain = bnmc.Chain(width, batch, "relu")
    gram = np.array(bnmc.simulate(chain, 20, rng=0).gram[0, -1])
    law = spec_of(chain)
    draw = Draw(1, np.uint32(STREAM_ROWS), np.uint32(1), np.uint32(2))
    work = memory.work(batch, 1, dtype)
    source = memory.aligned_zeros(work.block.shape, dtype)
    sigma = rows.activation(bnmc.kernels.activation("relu"), dtype)
    _factor(1, law, work, gram)
    _normals(1, law, work, draw)
    source[:] = work.block
    _product(1, law, work, source)
    _variances(1, law, work)
    ones = np.ones_like(work.scales)  # with others, values would grow or fall from call to call

    made = -(-width // GROUP) * GROUP  # rows, in whole groups
    calls = made / BLOCK
    triangle = batch * (batch + 1) * made
    return [
        Part("normals", lambda n: lambda: _normals(n, law, work, draw), calls,
             normals=width * (batch - 1)),
        Part("rows from normals", lambda n: lambda: _product(n, law, work, source), calls,
             flops=triangle),
        Part("their variances", lambda n: lambda: _variances(n, law, work), calls,
             flops=2 * batch * made, roots=made),
        Part("activations", lambda n: lambda: _activations(n, law, work, sigma, ones), calls,
             stores=batch * made),
        Part("Gram matrix", lambda n: lambda: _gram(n, law, work), calls, flops=triangle),
        Part("factor", lambda n: lambda: _factor(n, law, work, gram), 1.0,
             flops=batch**3 / 3),
    ]  # fmt: skip
