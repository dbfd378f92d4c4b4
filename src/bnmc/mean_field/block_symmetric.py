"""Fixed points of the mean-field map that tell two blocks of samples apart.

Where the symmetric fixed point is unstable (see `bnmc.mean_field.stability`), some samples of the
batch grow at the expense of the others, and the Gram matrix settles where permutations within two
blocks, but not all permutations, leave it alone. `block_symmetric` finds such fixed points with two
blocks of distinct samples, `partial_collapse` those where all samples of one block coincide.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from bnmc._validate import integer, real
from bnmc.activations import Activation, as_activation
from bnmc.errors import ArgumentError, PartialEstimateError
from bnmc.mean_field._block_map import BlockMap
from bnmc.mean_field._quadrature import FloatArray, UnresolvedError

__all__ = ["BlockFixedPoint", "block_symmetric", "partial_collapse"]

# Nodes a panel of the quadrature: of the result, of another to compare it with, of the search.
_ORDERS = (16, 11, 8)
# Logarithms of level over contrast: the last is looked for on a grid without 0, where the symmetric
# fixed point is, and another one within bounds.
_GRID = np.arange(-15.25, 4.0, 0.5)
_BOUNDS = (-15.0, 15.0)
# Roots solve the equations for them to this, and two this close are one.
_SOLVED, _SAME = 1e-12, 1e-6
_MOST_STEPS, _LONGEST_STEP = 20, 1.0
# Farther from where the search saw it, a root is another one; nearer to the symmetric fixed point,
# it counts as that one, since an error of the quadrature may have moved it.
_FAR, _SYMMETRIC = 2.0, 1e-4
_TINY = float(np.finfo(np.float64).tiny)
_ROUNDING = 64.0 * float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class BlockFixedPoint:
    """A fixed point of the mean-field map that permutations within two blocks leave alone.

    Attributes
    ----------
    activation : str
        Name of the activation.
    sizes : tuple of int
        Samples of the first and of the second block.
    collapsed : bool
        Whether all samples of the second block coincide.
    diagonal : tuple of float
        Diagonal entries of the Gram matrix, for a sample of either block.
    inside : tuple of float
        Entries for two samples of one block; the diagonal again for a block of one.
    between : float
        Entries for a sample of the first and a sample of the second block.
    eigenvalues : tuple of float or complex
        Eigenvalues of the Jacobian of the map, without the eigenvalue 0 of the scale, the largest
        modulus first.
    multiplicities : tuple of int
        Their multiplicities, ``n(n−1)/2 − 1`` together.
    modes : tuple of str
        What their eigenvectors do: "ratios" changes the levels and keeps the blocks; "one of block
        0" tells one of its samples from the others, "pairs of block 0" none but pairs of them (the
        irreducible part (s−2, 2) of its permutations); "across" pairs of one sample of each; "split
        of block 1" parts samples that coincide.
    error : float
        Estimated error of the worst of these numbers, relative to the largest entry, and for
        eigenvalues above 1 to them: the difference to a coarser quadrature, the tail of the series,
        and rounding.

    Notes
    -----
    A finite network of large width fluctuates about a stable fixed point, with a variance of
    order 1/width.
    """

    activation: str
    sizes: tuple[int, int]
    collapsed: bool
    diagonal: tuple[float, float]
    inside: tuple[float, float]
    between: float
    eigenvalues: tuple[complex, ...]
    multiplicities: tuple[int, ...]
    modes: tuple[str, ...]
    error: float

    @property
    def batch(self) -> int:
        """Batch size n."""
        return sum(self.sizes)

    @property
    def rate(self) -> float:
        """Largest modulus of the eigenvalues; ``inf`` where coinciding samples part at once."""
        return abs(self.eigenvalues[0])

    @property
    def stable(self) -> bool:
        """Whether ``rate < 1``: a Gram matrix that is close comes closer."""
        return self.rate < 1.0

    @property
    def gram(self) -> FloatArray:
        """The Gram matrix, (batch, batch), first block first; built anew each time."""
        labels = np.repeat([0, 1], self.sizes)
        entries = np.array([[self.inside[0], self.between], [self.between, self.inside[1]]])
        gram: FloatArray = entries[labels[:, None], labels]
        np.fill_diagonal(gram, np.array(self.diagonal)[labels])
        return gram


def block_symmetric(
    activation: str | Activation | Callable[[Any], Any],
    batch: int,
    *,
    minority: int = 1,
    rtol: float = 1e-4,
) -> tuple[BlockFixedPoint, ...]:
    """Fixed points with two blocks of samples, all distinct, under centred normalization.

    Parameters
    ----------
    activation : str, Activation or callable
        As `bnmc.Chain` takes it.
    batch : int
        n ≥ 3.
    minority : int, default 1
        Samples of the first block, 1 … n/2.
    rtol : float, default 1e-4
        Largest acceptable `BlockFixedPoint.error`, > 0. The true error is about 1e-12 for smooth
        activations, and 1e-6 at worst for blocks of three or four samples and activations with
        corners.

    Returns
    -------
    tuple of BlockFixedPoint
        The most stable first, without the symmetric one; empty where there is none. These are all
        whose contrast is 0.02 … 4e6 times the level of the second
        block, unless two lie so close that a grid steps over both.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        An argument is out of range, or the activation constant, not finite or too rough.
    PartialEstimateError
        An error exceeds `rtol`; ``partial`` is the tuple.

    See Also
    --------
    partial_collapse : Where the samples of the second block coincide.

    Notes
    -----
    On vectors orthogonal to 1 such a matrix has three eigenvalues: one on the vectors of either
    block that sum to zero, one on the contrast of the blocks. The normalization sees two ratios of
    them (one, if a block has one sample), and the equations for these are solved. The Jacobian

        DF(G)[Δ] = ½ E[σσᵀ (wᵀG⁺ΔG⁺w − tr G⁺Δ)],    w ~ N(0, G),

    decomposes by the irreducible representations of the two groups of permutations into matrices
    of at most 3 rows, of integrals over at most three angles.

    Examples
    --------
    For silu and a batch of 26, one sample can stand out, its squared norm four times that of the
    others, and the fixed point is stable; another one, next to the symmetric one, is not.

    >>> outlier, saddle = block_symmetric("silu", 26)
    >>> [round(value, 5) for value in (*outlier.diagonal, outlier.rate)], outlier.stable
    ([1.27845, 0.31965, 0.99912], True)
    >>> [round(value, 5) for value in (*saddle.diagonal, saddle.rate)], saddle.modes[0]
    ([0.34703, 0.35307, 1.00078], 'one of block 1')
    """
    activation = as_activation(activation)
    batch = integer("batch", batch, low=3)
    minority = integer("minority", minority, low=1, high=batch // 2)
    rtol = real("rtol", rtol, above=0.0)
    maps = _maps(activation, (minority, batch - minority))
    return _solved(maps, (1,) if minority == 1 else (0, 1), rtol, symmetric=True)


def partial_collapse(
    activation: str | Activation | Callable[[Any], Any],
    batch: int,
    *,
    distinct: int,
    rtol: float = 1e-4,
) -> tuple[BlockFixedPoint, ...]:
    """Fixed points where some samples are distinct and all others coincide, centred normalization.

    The Gram matrix has rank ``distinct`` on vectors orthogonal to 1.

    Parameters
    ----------
    activation : str, Activation or callable
        As `bnmc.Chain` takes it.
    batch : int
        n ≥ 3.
    distinct : int
        Samples of the first block, which differ, 1 … n − 2. The others coincide.
    rtol : float, default 1e-4
        As for `block_symmetric`.

    Returns
    -------
    tuple of BlockFixedPoint
        The most stable first: all whose contrast is 0.02 … 4e6 times the level of the distinct
        samples, unless two lie so close that a grid steps over both.

    Raises
    ------
    ArgumentError, ArgumentTypeError, PartialEstimateError
        As for `block_symmetric`.

    Notes
    -----
    Samples that coincide never part exactly, but those that nearly do may. To first order in
    their difference the covariance of the collapsed block grows by

        n E[σ′(φ)² / |w|²]

    each layer, φ the collapsed samples' value, w the Gaussian before its normalization; and
    their covariances with the other samples by the eigenvalues "one of block 1" and "across".
    For a rank of 1 or 2 the expectation is infinite: such a collapse is never stable.

    Examples
    --------
    What becomes of a batch of 32 under silu, whose symmetric fixed point is unstable:

    >>> (attractor,) = partial_collapse("silu", 32, distinct=10)
    >>> attractor.stable, round(attractor.rate, 4), attractor.modes[0]
    (True, 0.9427, 'split of block 1')
    >>> int(np.linalg.matrix_rank(attractor.gram))
    11
    """
    activation = as_activation(activation)
    batch = integer("batch", batch, low=3)
    distinct = integer("distinct", distinct, low=1, high=batch - 2)
    rtol = real("rtol", rtol, above=0.0)
    maps = _maps(activation, (distinct, batch - distinct))
    return _solved(maps, (0,) if distinct > 1 else (), rtol, symmetric=False)


def _maps(activation: Activation, sizes: tuple[int, int]) -> list[BlockMap]:
    """The map by quadratures of all orders."""
    try:
        maps = [BlockMap(activation, sizes, order) for order in _ORDERS]
    except UnresolvedError as error:
        allowed = "a function that quadrature resolves"
        raise ArgumentError("activation", activation.name, allowed, str(error)) from None
    if maps[0].is_constant:
        allowed = f"a function that is not constant on the sphere of a batch of {sum(sizes)}"
        raise ArgumentError("activation", activation.name, allowed)
    return maps


def _solved(
    maps: list[BlockMap], active: tuple[int, ...], rtol: float, *, symmetric: bool
) -> tuple[BlockFixedPoint, ...]:
    """The fixed points with these levels, or the error that says they are not known well enough.

    The symmetric one, where it is among them, is left out.
    """
    starts = _scan(maps[-1], active, symmetric=symmetric) if active else [np.empty(0)]
    roots = _refined(maps[1], active, starts, symmetric=symmetric)
    points = tuple(
        sorted((_point(maps, active, root) for root in roots), key=lambda point: point.rate)
    )
    worst = max((point.error for point in points), default=0.0)
    if not worst <= rtol:
        raise PartialEstimateError(
            f"fixed point known to {worst:.1e} only, rtol is {rtol:.1e}", points
        )
    return points


def _levels(active: tuple[int, ...], logarithms: FloatArray) -> FloatArray:
    levels = np.array([0.0, 0.0, 1.0])
    levels[list(active)] = np.exp(np.clip(logarithms, -100.0, 100.0))
    return levels


def _residual(
    block_map: BlockMap, active: tuple[int, ...], logarithms: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """What a layer adds to the logarithms of the levels over the contrast, and its Jacobian."""
    levels = _levels(active, logarithms)
    image = block_map.image(levels)
    rows = list(active)
    after = np.maximum(image.levels, _TINY)
    change = np.log(after[rows] / after[2]) - logarithms
    relative = image.jacobian[:, rows] * levels[rows] / after[:, None]
    return change, relative[rows] - relative[2] - np.eye(len(rows))


def _scan(block_map: BlockMap, active: tuple[int, ...], *, symmetric: bool) -> list[FloatArray]:
    """Roots, looked for by their last logarithm on a grid; another one solves its own equation.

    Where the symmetric fixed point is one, at 0, it is divided out.
    """
    from scipy.optimize import brentq

    at = np.zeros(len(active))

    def remainder(last: float) -> float:
        at[-1] = last
        for _ in range(_MOST_STEPS):
            change, jacobian = _residual(block_map, active, at)
            if len(active) == 1 or abs(change[0]) < _SOLVED:
                break
            # Its equation contracts, as a rule at a rate that leaves room; if not, a bounded step.
            step = np.clip(change[0] / max(-jacobian[0, 0], 0.1), -_LONGEST_STEP, _LONGEST_STEP)
            at[0] = np.clip(at[0] + step, *_BOUNDS)
        return float(change[-1]) / (last if symmetric else 1.0)

    # From 0 outwards, so that each point finds the next on the branch of the symmetric one.
    reached = []
    for grid in (_GRID[_GRID > 0.0], _GRID[_GRID < 0.0][::-1]):
        at[:] = 0.0
        reached += [(float(last), remainder(float(last)), at.copy()) for last in grid]
    reached.sort(key=lambda point: point[0])
    roots = []
    for (low, before, start), (high, after, _) in pairwise(reached):
        if (before > 0.0) != (after > 0.0):
            at[:] = start
            remainder(brentq(remainder, low, high, xtol=1e-10))
            roots.append(at.copy())
    return roots


def _refined(
    block_map: BlockMap, active: tuple[int, ...], starts: list[FloatArray], *, symmetric: bool
) -> list[FloatArray]:
    """Roots near the starts, each once, without the symmetric fixed point."""
    found: list[FloatArray] = []
    for start in _distinct(starts):
        root = _newton(block_map, active, start)
        if root is None or (symmetric and np.abs(root).max() < _SYMMETRIC):
            continue
        if len(active) == 2 and block_map.sizes[0] == block_map.sizes[1]:
            root = -np.sort(-root)  # blocks of one size have no order
        found.append(root)
    return _distinct(found)


def _distinct(roots: list[FloatArray]) -> list[FloatArray]:
    kept: list[FloatArray] = []
    for root in roots:
        if all(np.abs(root - other).max() > _SAME for other in kept):
            kept.append(root)
    return kept


def _newton(block_map: BlockMap, active: tuple[int, ...], start: FloatArray) -> FloatArray | None:
    """A root near a start, by Newton's method with steps of bounded length; None if it leaves."""
    if not active:  # all that is left to choose is the scale
        return start
    at = start
    for _ in range(_MOST_STEPS):
        change, jacobian = _residual(block_map, active, at)
        if np.abs(change).max() < _SOLVED:
            return at
        step = -np.linalg.lstsq(jacobian, change)[0]
        at = at + step * min(1.0, _LONGEST_STEP / float(np.abs(step).max()))
        if np.abs(at - start).max() > _FAR:
            return None
    return None


def _point(maps: list[BlockMap], active: tuple[int, ...], near: FloatArray) -> BlockFixedPoint:
    """The fixed point at a root by the second quadrature, with an estimate of its error."""
    coarse = _described(maps[1], active, near)
    root = _newton(maps[0], active, near)
    if root is None:
        return replace(coarse, error=np.inf)
    fine = _described(maps[0], active, root)
    scale = max(fine.diagonal)
    entries = [
        abs(a - b) / scale
        for a, b in zip(
            (*fine.diagonal, *fine.inside, fine.between),
            (*coarse.diagonal, *coarse.inside, coarse.between),
            strict=True,
        )
    ]
    values = [
        abs(a - b) / max(1.0, abs(a)) if a != b else 0.0
        for a, b in zip(fine.eigenvalues, coarse.eigenvalues, strict=True)
    ]
    return replace(fine, error=fine.error + max(entries + values))


def _described(
    block_map: BlockMap, active: tuple[int, ...], logarithms: FloatArray
) -> BlockFixedPoint:
    image = block_map.image(_levels(active, logarithms))
    levels = np.zeros(3)
    levels[[*active, 2]] = image.levels[[*active, 2]]
    modes = sorted(
        block_map.modes(levels), key=lambda m: (-abs(m.value), m.value.real, m.value.imag)
    )
    return BlockFixedPoint(
        activation=block_map.activation.name,
        sizes=block_map.sizes,
        collapsed=bool(levels[1] == 0.0),
        diagonal=image.diagonal,
        inside=image.inside,
        between=image.between,
        eigenvalues=tuple(m.value if m.value.imag else m.value.real for m in modes),
        multiplicities=tuple(mode.multiplicity for mode in modes),
        modes=tuple(mode.name for mode in modes),
        error=image.error + _ROUNDING,
    )
