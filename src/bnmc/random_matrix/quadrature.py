"""A Gauss–Legendre rule on [0, 1], and ``z − ln(1 + z)`` computed with it."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["log_excess", "unit_rule"]


@cache
def unit_rule() -> tuple[tuple[float, float], ...]:
    """Return the pairs (node, weight) of the Gauss–Legendre rule of order 20 on [0, 1]."""
    nodes, weights = np.polynomial.legendre.leggauss(20)
    return tuple(zip((0.5 * (nodes + 1.0)).tolist(), (0.5 * weights).tolist(), strict=True))


def log_excess(z: NDArray[Any]) -> NDArray[Any]:
    """Return ``z − ln(1 + z)`` for real or complex numbers, without cancellation.

    For |z| < ½ it is ``z² ∫₀¹ t / (1 + tz) dt``, by `unit_rule`.
    """
    is_small = np.abs(z) < 0.5
    small, large = np.where(is_small, z, 0.0), np.where(is_small, 1.0, z)
    integral = sum(weight * node / (1.0 + node * small) for node, weight in unit_rule())
    return np.where(is_small, small * small * integral, large - np.log(1.0 + large))
