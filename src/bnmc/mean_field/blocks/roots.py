"""Roots of the equations for the fixed points of the mean-field map with two blocks of samples.

A Gram matrix with two blocks has the levels α_0, α_1 and β (see
`bnmc.mean_field.blocks.block_map`).  The map does not depend on their scale, so the unknowns are
the logarithms log(α_X/β) of the blocks X whose level is positive: the *active* blocks.  At a fixed
point the map does not change them.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from bnmc.mean_field.blocks.block_map import BlockMap
from bnmc.mean_field.float64 import TINY, FloatArray

__all__ = ["find_roots", "levels_of", "newton"]

# One unknown is sought on a grid.  The grid does not contain 0, the symmetric fixed point.
_GRID = np.arange(-20.25, 6.0, 0.5)

# Two unknowns are sought by Newton's method from these starts.
_STARTS = (
    (-3.0, -5.0), (-0.4, -2.0), (-0.4, -4.0), (-1.5, -0.8), (-1.5, 0.4), (0.5, 0.5), (0.5, -0.8),
    (1.5, -2.0),
)  # fmt: skip


# A root solves the equations to _SOLVED.  Two roots closer than _SAME are the same.
_SOLVED, _SAME = 1e-12, 1e-6

# Newton's method ends after _MOST_STEPS steps.  A step changes each unknown by at most
# _LONGEST_STEP.
_MOST_STEPS, _LONGEST_STEP = 20, 2.0

# A root closer than _SYMMETRIC to 0 is the symmetric fixed point, up to errors of the quadrature.
# Beyond _FAR, Newton's method converges to a collapse.
_SYMMETRIC, _FAR = 1e-4, 20.0


def find_roots(
    coarse: BlockMap, fine: BlockMap, active: tuple[int, ...], *, symmetric: bool
) -> list[FloatArray]:
    """Return the roots, each of shape (len(active),), sought by `coarse` and refined by `fine`.

    Parameters
    ----------
    coarse, fine : BlockMap
        The map by a coarse and by a fine quadrature.
    active : tuple of int
        The active blocks.
    symmetric : bool
        Whether the symmetric fixed point is among the roots; it is left out of the result.
    """
    if len(active) == 2:
        starts = _starts(coarse)
    else:
        starts = _scan(coarse, active, symmetric=symmetric) if active else [np.empty(0)]
    return _refined(fine, active, starts, symmetric=symmetric)


def newton(block_map: BlockMap, active: tuple[int, ...], start: FloatArray) -> FloatArray | None:
    """Return a root near a start, by Newton's method with steps of bounded length.

    None if the iterates leave the range or do not converge.
    """
    if not active:  # only the scale is free
        return start
    at = start
    for _ in range(_MOST_STEPS):
        change, jacobian = _residual(block_map, active, at)
        if np.abs(change).max() < _SOLVED:
            return at
        step = -np.linalg.lstsq(jacobian, change)[0]
        at = at + step * min(1.0, _LONGEST_STEP / float(np.abs(step).max()))
        if np.abs(at).max() > _FAR:
            return None
    return None


def levels_of(active: tuple[int, ...], logarithms: FloatArray) -> FloatArray:
    """Return the levels (α_0, α_1, β) with β = 1."""
    levels = np.array([0.0, 0.0, 1.0])
    levels[list(active)] = np.exp(np.clip(logarithms, -100.0, 100.0))
    return levels


def _residual(
    block_map: BlockMap, active: tuple[int, ...], logarithms: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return the change of the unknowns in one layer, and its Jacobian."""
    levels = levels_of(active, logarithms)
    image = block_map.image(levels)
    rows = list(active)
    after = np.maximum(image.levels, TINY)
    change = np.log(after[rows] / after[2]) - logarithms
    relative = image.jacobian[:, rows] * levels[rows] / after[:, None]
    return change, relative[rows] - relative[2] - np.eye(len(rows))


def _scan(block_map: BlockMap, active: tuple[int, ...], *, symmetric: bool) -> list[FloatArray]:
    """Return roots in one unknown; the root 0 of the symmetric fixed point is divided out."""
    from scipy.optimize import brentq

    def remainder(logarithm: float) -> float:
        change = float(_residual(block_map, active, np.array([logarithm]))[0][0])
        return change / logarithm if symmetric else change

    is_positive = [remainder(float(logarithm)) > 0.0 for logarithm in _GRID]
    brackets = zip(pairwise(_GRID), pairwise(is_positive), strict=True)
    return [
        np.array([brentq(remainder, low, high, xtol=1e-10)])
        for (low, high), (before, after) in brackets
        if before != after
    ]


def _starts(block_map: BlockMap) -> list[FloatArray]:
    """Return the roots in two unknowns that Newton's method reaches from the starts."""
    reached = (newton(block_map, (0, 1), np.array(start)) for start in _STARTS)
    return [root for root in reached if root is not None]


def _refined(
    block_map: BlockMap, active: tuple[int, ...], starts: list[FloatArray], *, symmetric: bool
) -> list[FloatArray]:
    """Return the roots near the starts, each once, without the symmetric fixed point."""
    found: list[FloatArray] = []
    for start in _distinct(starts):
        root = newton(block_map, active, start)
        if root is None or (symmetric and np.abs(root).max() < _SYMMETRIC):
            continue
        if len(active) == 2 and block_map.sizes[0] == block_map.sizes[1]:
            root = -np.sort(-root)  # blocks of equal size are interchangeable
        found.append(root)
    return _distinct(found)


def _distinct(roots: list[FloatArray]) -> list[FloatArray]:
    """Return the roots, each once."""
    kept: list[FloatArray] = []
    for root in roots:
        if all(np.abs(root - other).max() > _SAME for other in kept):
            kept.append(root)
    return kept
