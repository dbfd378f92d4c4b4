"""`roofline`: the time of a layer, compared with its time at the peak rates of one core."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bnmc._kernels.cpu import memory
from bnmc._kernels.cpu.peaks import NORMALS, PLACES, fill_blocks, fma_kernel, vector_registers
from bnmc._support.arguments import choice, integer
from bnmc._support.text import Result
from bnmc.errors import ArgumentTypeError

#: Duration of one measurement of a rate, in seconds.
_RATE_SECONDS = 0.005


@dataclass(frozen=True)
class Roofline(Result):
    """The time of a layer, and its time at the peak rates of one core.

    Attributes
    ----------
    seconds : float
        Time per layer: the median over rounds.
    ideal : float
        Median over rounds of the least time per layer, in seconds: its normals at the rate of the
        library's normals, and its operations at the rate of multiply-adds.
    ratio : float
        Median over rounds of ideal over measured time; 1 is the roofline.

    Examples
    --------
    >>> from bnmc.testing import Roofline
    >>> time = Roofline(seconds=2e-3, ideal=1e-3, ratio=0.5)
    >>> time.ideal / time.seconds
    0.5
    """

    seconds: float
    ideal: float
    ratio: float


def roofline(
    run: Callable[[], object],
    *,
    width: int,
    batch: int,
    layers: int = 1,
    sampler: str = "conditional",
    dtype: str = "float64",
    rounds: int = 5,
) -> Roofline:
    """Time a function on one core, alternating with the peak rates of that core.

    Parameters
    ----------
    run : callable
        A function without arguments that computes `layers` layers.  One call precedes the timing.
    width, batch : int
        Width and batch of the layers, >= 1.
    layers : int, default 1
        Number of layers per call, >= 1.
    sampler : {"conditional", "weights"}
        Algorithm of a layer, which determines its normals and operations.
    dtype : {"float64", "float32"}
        Precision of the peak rates.
    rounds : int, default 5
        Number of measurements, >= 1.

    Returns
    -------
    Roofline

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For an argument that is not allowed.

    Examples
    --------
    >>> from bnmc.testing import roofline
    >>> import numpy as np
    >>> a = np.ones((100, 10))
    >>> time = roofline(lambda: a.T @ a, width=100, batch=10, rounds=1)
    >>> time.ratio > 0.0
    True
    """
    if not callable(run):
        raise ArgumentTypeError("run", run, "a function without arguments")
    width, batch = integer("width", width, low=1), integer("batch", batch, low=1)
    layers, rounds = integer("layers", layers, low=1), integer("rounds", rounds, low=1)
    sampler = choice("sampler", sampler, ("conditional", "weights"))
    dtype = choice("dtype", dtype, ("float64", "float32"))
    normal, operation = peak_normals(dtype), peak_operations(dtype)
    run()
    draws, steps = normal.enough(), operation.enough()
    seconds, ideal = [], []
    for _ in range(rounds):
        rates = normal.seconds(draws), operation.seconds(steps)
        ideal.append(layer_seconds(width, batch, sampler, *rates))
        seconds.append(_clock(run) / layers)
    ratio = statistics.median(a / b for a, b in zip(ideal, seconds, strict=True))
    return Roofline(statistics.median(seconds), statistics.median(ideal), ratio)


class Peak(NamedTuple):
    """Work at a peak rate: `run(times)` does `units` units of work so many times."""

    run: Callable[[int], object]
    units: float

    def seconds(self, times: int) -> float:
        """Return the time of a unit."""
        return _clock(lambda: self.run(times)) / (times * self.units)

    def enough(self) -> int:
        """Return the number of repetitions for one measurement."""
        self.seconds(1)  # compiles
        return max(1, round(_RATE_SECONDS / (self.seconds(8) * self.units)))


def peak_normals(dtype: str, seed: int = 0) -> Peak:
    """Return normals from the kernel of the samplers, in a block that stays in the first cache."""
    block = memory.aligned_zeros((PLACES,), dtype)
    return Peak(lambda times: fill_blocks(block, times, np.uint32(seed)), NORMALS)


def peak_operations(dtype: str) -> Peak:
    """Return floating-point operations of multiply-adds on registers."""
    bits, accumulators = vector_registers()
    fused = fma_kernel(dtype, bits, accumulators)
    lanes = bits // (8 * np.dtype(dtype).itemsize)
    return Peak(lambda times: fused(times, 0.5, 0.25), 2.0 * accumulators * lanes)


def layer_seconds(width: int, batch: int, sampler: str, normal: float, operation: float) -> float:
    """Return the time of one layer of one chain, for given times of a normal and an operation."""
    normals, flops = layer_normals(width, batch, sampler), layer_flops(width, batch, sampler)
    return normals * normal + flops * operation


def layer_normals(width: int, batch: int, sampler: str) -> int:
    """Return the number of normals of one layer of one chain: d n for Z R, d² for W.

    Under centred normalization the library draws only d (n - 1) normals, because R has one column
    less.  With n - 1 in place of n the roofline would be 6 to 8 % lower at n = 10, and 1 % lower at
    n = 100.
    """
    return width * width if sampler == "weights" else width * batch


def layer_flops(width: int, batch: int, sampler: str) -> int:
    """Return the floating-point operations of one layer of one chain; a multiply-add counts as two.

    Sampler "conditional": Z R with triangular R (d n²), and half of the symmetric aᵀa (d n²).
    Sampler "weights": W a (2 d² n), and half of the symmetric aᵀa (d n²).
    """
    if sampler == "weights":
        return 2 * width * width * batch + width * batch * batch
    return 2 * width * batch * batch


def _clock(run: Callable[[], object]) -> float:
    """Return the time of a call in seconds, at least 1 ns."""
    start = time.perf_counter()
    run()
    return max(time.perf_counter() - start, 1e-9)
