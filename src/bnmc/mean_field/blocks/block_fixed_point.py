"""Fixed points of the mean-field map that tell two blocks of samples apart.

Where the symmetric fixed point is unstable (see `bnmc.mean_field.stability`), some samples of the
batch grow at the expense of the others, and the Gram matrix settles where permutations within two
blocks, but not all permutations, leave it alone. `block_symmetric` finds such fixed points with two
blocks of distinct samples, `partial_collapse` those where all samples of one block coincide.

They also exist where the symmetric fixed point is stable. It is crossed by branches on which one
sample, or a few, stand out, at a transcritical bifurcation: those branches turn back before the
crossing, so that there are stable fixed points of both kinds over a range of batch sizes, and the
start (or a fluctuation, at finite width) decides. What was found, centred normalization:

==========  ========================================  =========================================
σ           one sample stands out, stable, for n      others collapse, stable: n, distinct ones
==========  ========================================  =========================================
relu        52 …
leaky_relu  54 …
abs         17 …
silu        24 … 26                                   25: 10, 11; 26: 9 … 13; 28: 8 … 16;
                                                      32: 7 … 15; 64: 6 … 17; 128: 6 … 23
gelu        30 … 39                                   32: 10 … 12; 36: 8 … 16; 39: 8 … 19;
                                                      64: 7 … 26
softplus    40 … 43
hard swish  18, 19                                    20: 9 … 11; 22: 7 … 10
mish        80 …
exp                                                   10: 3
==========  ========================================  =========================================

Of linear, tanh, sigmoid, sin, erf, elu, celu and selu there is no such outlier at twelve batch
sizes from 4 to 4096. For relu the squared norm beyond which a sample goes on growing is .81 at
n = 64, .60 at 128 and .52 at 500, against .5 of the symmetric point: wide networks of large
batches leave it by their fluctuations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from bnmc._support.arguments import integer, real
from bnmc.chain.activations import Activation, as_activation
from bnmc.errors import ArgumentError, PartialEstimateError
from bnmc.mean_field.blocks.block_map import BlockMap
from bnmc.mean_field.quadrature.sphere import FloatArray, UnresolvedError

__all__ = ["BlockFixedPoint", "block_symmetric", "partial_collapse"]

# Nodes a panel of the quadrature: of the result, of another to compare it with, of the search.
_ORDERS = (16, 11, 8)

# Logarithms of level over contrast: one is looked for on a grid without 0, where the symmetric
# fixed point is, two from some points.
_GRID = np.arange(-20.25, 6.0, 0.5)
_STARTS = (
    (-3.0, -5.0), (-0.4, -2.0), (-0.4, -4.0), (-1.5, -0.8), (-1.5, 0.4), (0.5, 0.5), (0.5, -0.8),
    (1.5, -2.0),
)  # fmt: skip


# Roots solve the equations for them to this, and two this close are one.
_SOLVED, _SAME = 1e-12, 1e-6
_MOST_STEPS, _LONGEST_STEP = 20, 2.0

# Nearer to the symmetric fixed point than this a root counts as that one, moved by an error of the
# quadrature; farther out than that it has left for a collapse.
_SYMMETRIC, _FAR = 1e-4, 20.0
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
    order 1/width. Samples that coincide do so exactly, at every width.
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
        The most stable first, without the symmetric one; empty where none was found. For a
        minority of 1 these are all whose contrast is 3e-3 … 5e8 times the level of the others,
        unless two lie so close that a grid steps over both. For others they are what Newton's
        method reaches from eight starts, and may not be all.

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
    ReLU has two attractors at a batch of 64: in one, a sample stands out.

    >>> outlier, saddle = block_symmetric("relu", 64)
    >>> [round(value, 4) for value in (*outlier.diagonal, outlier.rate)], outlier.stable
    ([2.9557, 0.461, 0.9601], True)
    >>> saddle.stable, saddle.modes[0]
    (False, 'ratios')

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
        The most stable first: all whose contrast is 3e-3 … 5e8 times the level of the distinct
        samples, unless two lie so close that a grid steps over both.

    Raises
    ------
    ArgumentError, ArgumentTypeError, PartialEstimateError
        As for `block_symmetric`.

    Notes
    -----
    Samples that coincide never part exactly, but those that nearly do may. To first order in
    their difference the covariance of the collapsed block grows by

        n E[σ′(φ)² / ‖w‖²]

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
    if len(active) == 2:
        starts = _starts(maps[-1])
    else:
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
    """Roots in one ratio; that of the symmetric fixed point is divided out where it is one."""
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
    """Roots in two ratios that Newton's method reaches from some starts."""
    reached = (_newton(block_map, (0, 1), np.array(start)) for start in _STARTS)
    return [root for root in reached if root is not None]


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
        if np.abs(at).max() > _FAR:
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
