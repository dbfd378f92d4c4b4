"""Where the time of a layer goes: its parts, each beside what the machine needs at its peaks.

The parts are the kernels of one chain on one core, called over and over on a block in the cache.
*At the peaks* counts what a part cannot do without: multiply-adds at the FMA peak, normals at the
rate of the normal kernel, square roots, divisions and stores at rates that are measured here, too.
What the roofline of `simulate` counts are the normals and the multiply-adds of the two products.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numba
import numpy as np
import pytest

import bnmc
from bench.roofline import Rates
from bench.turns import Candidate, Run
from bnmc._kernels.cpu import blocks, memory, rows, vectors
from bnmc._kernels.cpu.numbers import BLOCK, GROUP, fill_normals
from bnmc._kernels.scalar.codes import STREAM_ROWS, Draw
from bnmc.chain.compiled import spec_of

SHAPES = ((1000, 10, "float32"), (1000, 10, "float64"), (1000, 100, "float32"))


# --- the kernels, over and over


@numba.njit
def _normals(times, law, work, draw):
    for _ in range(times):
        fill_normals(work.block, 0, 0, law.columns - 1, 0, BLOCK, draw)


@numba.njit
def _product(times, law, work, source):
    for _ in range(times):
        blocks.multiply_triangular(work.factor, law.columns, source, work.block, BLOCK)


@numba.njit
def _variances(times, law, work):
    for _ in range(times):
        rows.measure_rows(work.block, BLOCK, law, False, work.scales)


@numba.njit
def _activations(times, law, work, sigma, scales):
    for _ in range(times):
        rows.activate_block(sigma, work.block, law.columns, law.batch, BLOCK, scales)


@numba.njit
def _gram(times, law, work):
    for _ in range(times):
        blocks.add_gram(work.block, law.columns, BLOCK, work.partial, work.sums)


@numba.njit
def _factor(times, law, work, gram):
    for _ in range(times):
        rows.factorise(gram, law, work)


@numba.njit
def _roots(times, values, out):
    """Write 1 / sqrt of `BLOCK` values."""
    strip = vectors.STRIP_BYTES // values.itemsize
    unit = vectors.fill_like(vectors.zero_strip(values), values.dtype.type(1.0))
    for _ in range(times):
        for row in range(0, BLOCK, strip):
            root = vectors.square_root(vectors.load_strip(values, row))
            vectors.store(out, row, unit / root)


@numba.njit
def _stores(times, out):
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
    needs: dict[str, float]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_parts(turns, shape):
    """Time the parts of a layer, the layer, and the peaks, in turns, on one core."""
    width, batch, dtype = turns.of(shape, shape, (70, 3, shape[2]))
    turns.group = f"A layer at ({width}, {batch}), relu, {dtype}, one core"
    parts, rates = parts_of(width, batch, dtype), Rates(dtype, 1)
    values, out = (memory.aligned_zeros((BLOCK,), dtype) for _ in range(2))
    values[:] = 2.0
    with ThreadPoolExecutor(1) as pool:
        candidates = [
            *(Candidate(part.name, part.make, 1 / part.times) for part in parts),
            Candidate("the layer", layers_of(width, batch, dtype)),
            *rates.candidates(pool),
            Candidate("roots", lambda times: lambda: _roots(times, values, out), BLOCK),
            Candidate("stores", lambda times: lambda: _stores(times, out), BLOCK),
        ]
        rounds, seconds = turns.of((9, 0.1), (3, 0.02))
        timings = turns(candidates, rounds=rounds, seconds=seconds)
    whole = timings["the layer"].median
    peaks = {"normals": timings[rates.normals].median, "flops": timings[rates.flops].median}
    peaks |= {name: timings[name].median for name in ("roots", "stores")}
    total = 0.0
    for part in parts:
        # The longest of the times of what the part needs, as these things can overlap.
        least = max(peaks[name] * count for name, count in part.needs.items())
        total += least
        share = timings[part.name].median / whole
        turns.add(part.name, {"of the layer": share, "at the peaks, us": 1e6 * least})
    between = whole - sum(timings[part.name].median for part in parts)
    turns.add("the layer", {
        "of the layer": 1.0, "at the peaks, us": 1e6 * total, "between the parts, us": 1e6 * between
    })  # fmt: skip


def layers_of(width, batch, dtype):
    """For `Candidate.make`: layers of one chain on one thread."""
    chain = bnmc.Chain(width, batch, "relu")
    return lambda layers: (
        lambda: bnmc.simulate(
            chain, layers, rng=0, sampler="conditional", dtype=dtype, every=layers, threads=1
        )
    )


def parts_of(width, batch, dtype):
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
             {"normals": width * (batch - 1)}),
        Part("rows from normals", lambda n: lambda: _product(n, law, work, source), calls,
             {"flops": triangle}),
        Part("their variances", lambda n: lambda: _variances(n, law, work), calls,
             {"flops": 2 * batch * made, "roots": made}),
        Part("activations", lambda n: lambda: _activations(n, law, work, sigma, ones), calls,
             {"stores": batch * made}),
        Part("Gram matrix", lambda n: lambda: _gram(n, law, work), calls, {"flops": triangle}),
        Part("factor", lambda n: lambda: _factor(n, law, work, gram), 1.0,
             {"flops": batch**3 / 3}),
    ]  # fmt: skip
