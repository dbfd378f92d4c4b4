"""The cost of a layer against width and against batch, up to a batch of 4096."""

from dataclasses import replace

import numpy as np
import pytest

from bench.bench_large_batches import layers_from_state
from bench.bench_simulate import Ours
from bench.roofline import DTYPES
from bench.turns import LAYER, THREADS, Candidate

WIDTHS = (500, 1000, 2000, 4000, 8000, 16000)
BATCHES = (5, 10, 20, 40, 80, 160)
LARGE = (320, 640, 1280, 2560, 4096)


def of_width(dtype, width):
    return Ours("conditional", dtype).candidate(width, 10)


def of_batch(dtype, batch):
    return Ours("conditional", dtype).candidate(1000, batch)


def of_both(dtype, batch):
    """A chain for each core, without layer 0, which takes about as long as a layer."""
    return Candidate("", layers_from_state(dtype, 2 * batch, batch, THREADS), THREADS, LAYER)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("variable", "power", "make", "sizes"),
    [
        ("width", 1, of_width, WIDTHS),
        ("batch", 2, of_batch, BATCHES),
        # The products take width batch^2, the factor batch^3 / 3.
        ("batch, width 2 batch", 3, of_both, LARGE),
    ],
    ids=["width", "batch", "both"],
)
def test_scaling(turns, dtype, variable, power, make, sizes):
    """The log-log slope of the cost of a layer should not exceed a power."""
    sizes = turns.of(sizes, sizes if power < 3 else LARGE[:2], (20, 30))
    turns.group = f"Conditional {dtype} against {variable}"
    # A layer of the largest batch takes seconds.
    rounds = 1 if power == 3 else turns.of(9, 3)
    against_size(turns, {size: make(dtype, size) for size in sizes}, power, rounds, 0.1)


def against_size(turns, candidates, power, rounds, seconds):
    """Time candidates by size; 0.05 of a power is what drift of 15 % between the ends can feign."""
    renamed = [replace(each, name=f"{size}") for size, each in candidates.items()]
    timings = turns(renamed, rounds=rounds, seconds=seconds)
    x = np.log(list(candidates))
    y = np.log([timing.median for timing in timings.values()])
    for size, slope in zip(list(candidates)[1:], np.diff(y) / np.diff(x), strict=True):
        turns.add(f"{size}", {"local slope": float(slope)})
    slope = float(np.polyfit(x, y, 1)[0])
    turns.hold(renamed[-1].name, "slope of the whole range", slope, at_most=power + 0.05)
