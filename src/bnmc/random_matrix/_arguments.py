"""What the files of this folder share: checks of arguments, and a rule of quadrature."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnmc._validate import finite_array
from bnmc.errors import ArgumentError, ArgumentTypeError

__all__ = ["generator", "integers", "points", "unit_rule"]

Float64Array = NDArray[np.float64]


def points(name: str, value: ArrayLike) -> Float64Array:
    """Finite real numbers of any shape, as float64."""
    return finite_array(name, value, shape=(...,)).astype(np.float64, copy=False)


def integers(name: str, value: ArrayLike, *, low: int, high: int) -> Float64Array:
    """Integers in [low, high], as float64."""
    allowed = f"integers in {low} … {high}"
    try:
        array = np.asarray(value)
    except ValueError:  # a ragged sequence
        raise ArgumentTypeError(name, value, allowed) from None
    if array.dtype.kind not in "iu":
        raise ArgumentTypeError(name, value, allowed)
    outside = (array < low) | (array > high)
    if outside.any():
        raise ArgumentError(name, int(array[outside].flat[0]), allowed)
    return array.astype(np.float64)


def generator(rng: Any) -> np.random.Generator:
    """The generator that `rng` stands for (SPEC 7)."""
    try:
        return np.random.default_rng(rng)
    except (TypeError, ValueError):
        raise ArgumentTypeError(
            "rng", rng, "None, a seed >= 0, a SeedSequence, a BitGenerator or a Generator"
        ) from None


@cache
def unit_rule() -> tuple[tuple[float, float], ...]:
    """Nodes and weights of the Gauss–Legendre rule of order 20 on [0, 1]."""
    nodes, weights = np.polynomial.legendre.leggauss(20)
    return tuple(zip((0.5 * (nodes + 1.0)).tolist(), (0.5 * weights).tolist(), strict=True))
