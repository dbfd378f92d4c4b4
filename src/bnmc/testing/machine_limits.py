"""What a layer would take at the peaks of this machine, which are measured at the same time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bnmc._kernels.cpu import memory
from bnmc._kernels.cpu.peaks import NORMALS, fill_blocks, fma_kernel, vector_registers
from bnmc._support.arguments import choice, integer
from bnmc.errors import ArgumentTypeError

__all__ = ["Roofline", "layer_flops", "layer_normals", "roofline"]

#: What a measurement of a rate takes, in seconds.
RATE_SECONDS = 0.005


@dataclass(frozen=True)
class Roofline:
    """A time, and what it would be at the peaks of one core.

    Attributes
    ----------
    seconds : float
        Of a layer: the median over rounds.
    ideal : float
        Its normals at the rate of the library's normals, and its operations at that of
        multiply-adds.
    ratio : float
        Median over rounds of ideal / seconds: 1 is the roofline.
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
    """Time a function on one core, in turns with the peaks of that core.

    Parameters
    ----------
    run : callable
        Goes through `layers` layers when it is called; called once before it is timed.
    width, batch : int
        Of the layers.
    layers : int, default 1
    sampler : {"conditional", "weights"}
        How layers are made, which says what they cost; see `layer_normals` and `layer_flops`.
    dtype : {"float64", "float32"}
    rounds : int, default 5

    Returns
    -------
    Roofline

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For an argument that is not allowed.

    Examples
    --------
    >>> import numpy as np
    >>> a = np.ones((100, 10))
    >>> found = roofline(lambda: a.T @ a, width=100, batch=10, rounds=1)
    >>> found.ratio > 0.0
    True
    """
    if not callable(run):
        raise ArgumentTypeError("run", run, "a function without arguments")
    width, batch = integer("width", width, low=1), integer("batch", batch, low=1)
    layers, rounds = integer("layers", layers, low=1), integer("rounds", rounds, low=1)
    sampler = choice("sampler", sampler, ("conditional", "weights"))
    dtype = choice("dtype", dtype, ("float64", "float32"))
    block = memory.aligned_zeros((NORMALS,), dtype)
    bits, accumulators = vector_registers()
    fused = fma_kernel(dtype, bits, accumulators)
    flops = 2.0 * accumulators * bits / (8 * np.dtype(dtype).itemsize)

    def a_normal(times: int) -> float:
        return _clock(lambda: fill_blocks(block, times, np.uint32(0))) / (times * NORMALS)

    def an_operation(times: int) -> float:
        return _clock(lambda: fused(times, 0.5, 0.25)) / (times * flops)

    run()
    blocks, steps = _enough(a_normal, NORMALS), _enough(an_operation, flops)
    seconds, ideal = [], []
    for _ in range(rounds):
        normals = layer_normals(width, batch, sampler) * a_normal(blocks)
        ideal.append(normals + layer_flops(width, batch, sampler) * an_operation(steps))
        seconds.append(_clock(run) / layers)
    ratio = statistics.median(a / b for a, b in zip(ideal, seconds, strict=True))
    return Roofline(statistics.median(seconds), statistics.median(ideal), ratio)


def layer_normals(width: int, batch: int, sampler: str) -> int:
    """Normals that one layer of one chain needs: d n for Z R, d^2 for W.

    Under centred normalization the library's own sampler draws d (n - 1), since R has a column
    less, and n - 1 in place of n would make the roofline 6 to 8 % lower at n = 10, 1 % at n = 100.
    """
    return width * width if sampler == "weights" else width * batch


def layer_flops(width: int, batch: int, sampler: str) -> int:
    """Floating-point operations of one layer of one chain, a multiply-add counted as two.

    Conditional: Z R with triangular R (d n^2) and half of the symmetric a' a (d n^2).
    Weights: W a (2 d^2 n) and half of the symmetric a' a (d n^2).
    """
    if sampler == "weights":
        return 2 * width * width * batch + width * batch * batch
    return 2 * width * batch * batch


def _enough(rate: Callable[[int], float], units: float) -> int:
    """Return how often to repeat what has so many units."""
    rate(1)  # compiles
    return max(1, round(RATE_SECONDS / (rate(8) * units)))


def _clock(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return max(time.perf_counter() - start, 1e-9)
