"""Fixed points of the mean-field map that distinguish two blocks of samples.

If the symmetric fixed point is unstable (see `bnmc.mean_field.stability`), some samples of the
batch grow at the expense of the others.  The Gram matrix then converges to a fixed point that
permutations within two blocks preserve, but not all permutations.  `block_symmetric` finds such
fixed points with two blocks of distinct samples, `partial_collapse` those at which all samples of
one block coincide.

Such fixed points also exist if the symmetric one is stable.  Branches of fixed points at which one
sample, or a few, have a larger norm cross the symmetric one at a transcritical bifurcation.  They
turn back before the crossing, so over a range of batch sizes there are stable fixed points of both
kinds.  Which one the chain converges to depends on the start and, at finite width, on fluctuations.
The following ones were found under norm "batch", with n the batch size:

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

For linear, tanh, sigmoid, sin, erf, elu, celu and selu, no such outlier exists at twelve batch
sizes from 4 to 4096.  For relu, a sample continues to grow if its squared norm exceeds a threshold:

====  =========
n     threshold
====  =========
64    0.81
128   0.60
500   0.52
====  =========

At the symmetric fixed point the squared norm is 0.5, so in wide networks with large batches
fluctuations drive samples over the threshold.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from bnmc._support.arguments import integer, real
from bnmc._support.machine import require_memory
from bnmc._support.text import Result
from bnmc.chain.activations import ActivationLike, as_activation
from bnmc.errors import ArgumentError
from bnmc.mean_field.blocks.block_map import BlockMap, find_roots, levels_of, newton
from bnmc.mean_field.fixed_point.expectations import quadrature_errors_as_arguments
from bnmc.mean_field.float64 import EPSILON, FloatArray, difference, within


@dataclass(frozen=True)
class BlockFixedPoint(Result):
    """A fixed point of the mean-field map that permutations within two blocks preserve.

    `block_symmetric` and `partial_collapse` return it.

    Attributes
    ----------
    activation : str
        Name of the activation.
    sizes : tuple of int
        Number of samples of the first and of the second block.
    collapsed : bool
        Whether all samples of the second block coincide.
    diagonal : tuple of float
        Diagonal entries of the Gram matrix, for a sample of the first and of the second block.
    inside : tuple of float
        Entries for two samples of the first block, and of the second block. For a block of one
        sample, the diagonal entry.
    between : float
        Entries for a sample of the first and a sample of the second block.
    eigenvalues : tuple of float or complex
        Eigenvalues of the Jacobian of the map, by decreasing modulus, without the eigenvalue 0 of
        the scale.
    multiplicities : tuple of int
        Their multiplicities; the sum is ``n(n−1)/2 − 1``, with n the batch size.
    modes : tuple of str
        The kinds of their eigenvectors. "ratios" changes the eigenvalues of the Gram matrix and
        preserves the blocks. "one of block 0" separates one sample of the first block from its
        others. "pairs of block 0" separates pairs of its samples (the irreducible representation
        (s−2, 2) of the permutations of s samples). "across" separates pairs of one sample of each
        block. "split of block 1" separates samples that coincide.
    error : float
        Estimated error of the least accurate of these numbers: relative to the largest entry for
        entries, relative for eigenvalues above 1, absolute for others. It is the difference to a
        coarser quadrature, plus a bound of the tail of the series, plus rounding.

    Notes
    -----
    The Gram matrices of a wide finite network fluctuate about a stable fixed point, with a variance
    of order 1/width. Samples that coincide do so exactly, at every width.

    Examples
    --------
    >>> from bnmc.mean_field import block_symmetric
    >>> outlier, saddle = block_symmetric("relu", 64)
    >>> outlier.sizes, outlier.batch, outlier.gram.shape, outlier.stable, saddle.stable
    ((1, 63), 64, (64, 64), True, False)
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
        """Largest modulus of the eigenvalues; ``inf`` if nearly coinciding samples part at once."""
        return abs(self.eigenvalues[0])

    @property
    def stable(self) -> bool:
        """Whether ``rate < 1``: then Gram matrices near the fixed point converge to it."""
        return self.rate < 1.0

    @property
    def gram(self) -> FloatArray:
        """The Gram matrix as a new array of shape (batch, batch), first block first.

        Raises `ResultTooLargeError` if it would not fit in memory.
        """
        require_memory("batch", 8 * self.batch**2)
        labels = np.repeat([0, 1], self.sizes)
        entries = np.array([[self.inside[0], self.between], [self.between, self.inside[1]]])
        gram: FloatArray = entries[labels[:, None], labels]
        np.fill_diagonal(gram, np.array(self.diagonal)[labels])
        return gram


# Nodes per panel of the quadratures: for the result, for the coarser one to compare it with, and
# for the search.
_ORDERS = (16, 11, 8)

_ROUNDING = 64.0 * EPSILON


def block_symmetric(
    activation: ActivationLike, batch: int, *, minority: int = 1, rtol: float = 1e-4
) -> tuple[BlockFixedPoint, ...]:
    """Fixed points with two blocks of distinct samples, under norm "batch".

    Parameters
    ----------
    activation : str, Activation or callable
        As in `bnmc.Chain`.
    batch : int
        Batch size n ≥ 3.
    minority : int, default 1
        Samples of the first block, 1 … n/2.
    rtol : float, default 1e-4
        Largest acceptable `BlockFixedPoint.error`, > 0. The true error is about 1e-12 for smooth
        activations. It is at worst 1e-6, for blocks of three or four samples and activations with
        corners.

    Returns
    -------
    tuple of BlockFixedPoint
        By increasing rate, without the symmetric fixed point; empty if none was found. For a
        minority of 1 a grid finds all fixed points with a ratio β/α of 3e-3 … 5e8 (see Notes),
        unless two are between neighbouring points of the grid. For other minorities, Newton's
        method from eight starts finds them, and may miss some.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If an argument is out of range, or the activation is constant, not finite or too rough.
    PartialEstimateError
        If an estimated error exceeds `rtol`; ``partial`` is the tuple.

    See Also
    --------
    partial_collapse : Fixed points at which the samples of the second block coincide.

    Notes
    -----
    Orthogonal to (1, …, 1), such a Gram matrix has three eigenvalues: one for each block, ``α_0``
    and ``α_1``, on the vectors of the block that sum to zero, and ``β`` on the contrast of the
    blocks. The normalization is invariant to their scale, so the unknowns are two ratios (one, if a
    block has one sample). With G⁺ the pseudoinverse of G, the Jacobian of the map

        DF(G)[Δ] = ½ E[σσᵀ (wᵀG⁺ΔG⁺w − tr G⁺Δ)],    w ~ N(0, G),

    decomposes by the irreducible representations of the permutations of either block. Its blocks
    are matrices of at most 3 rows, whose entries are integrals over at most three angles.

    Examples
    --------
    For relu and a batch of 64 there are two attractors. At one of them, one sample stands out.

    >>> from bnmc.mean_field import block_symmetric
    >>> outlier, saddle = block_symmetric("relu", 64)
    >>> [round(value, 4) for value in (*outlier.diagonal, outlier.rate)], outlier.stable
    ([2.9557, 0.461, 0.9601], True)
    >>> saddle.stable, saddle.modes[0]
    (False, 'ratios')

    For silu and a batch of 26, one sample can have four times the squared norm of the others; that
    fixed point is stable. Another one, near the symmetric fixed point, is unstable.

    >>> outlier, saddle = block_symmetric("silu", 26)
    >>> [round(value, 5) for value in (*outlier.diagonal, outlier.rate)], outlier.stable
    ([1.27845, 0.31965, 0.99912], True)
    >>> [round(value, 5) for value in (*saddle.diagonal, saddle.rate)], saddle.modes[0]
    ([0.34703, 0.35307, 1.00078], 'one of block 1')
    """
    return _fixed_points(activation, batch, minority, rtol, collapsed=False)


def partial_collapse(
    activation: ActivationLike, batch: int, *, distinct: int, rtol: float = 1e-4
) -> tuple[BlockFixedPoint, ...]:
    """Fixed points with distinct samples in one block and coinciding samples in the other.

    The norm is "batch". Orthogonal to (1, …, 1), the Gram matrix has the rank ``distinct``.

    Parameters
    ----------
    activation : str, Activation or callable
        As in `bnmc.Chain`.
    batch : int
        Batch size n ≥ 3.
    distinct : int
        Samples of the first block, which are distinct, 1 … n − 2. The others coincide.
    rtol : float, default 1e-4
        As in `block_symmetric`.

    Returns
    -------
    tuple of BlockFixedPoint
        By increasing rate: all fixed points with a ratio β/α_0 of 3e-3 … 5e8 (see the notes of
        `block_symmetric`), unless two are between neighbouring points of a grid.

    Raises
    ------
    ArgumentError, ArgumentTypeError, PartialEstimateError
        As in `block_symmetric`.

    Notes
    -----
    Coinciding samples never separate, but nearly coinciding samples may. To first order in their
    difference, the covariance of the collapsed block grows per layer by the factor

        n E[σ′(φ)² / ‖w‖²],

    with φ the common value of the collapsed samples after the normalization, and w the Gaussian row
    before it. For a rank of 1 or 2 the expectation is infinite, so such a collapse is never stable.
    The covariances of the collapsed samples with the other samples shrink by the eigenvalues "one
    of block 1" and "across".

    Examples
    --------
    For silu and a batch of 32 the symmetric fixed point is unstable; this one is stable:

    >>> import numpy as np
    >>> from bnmc.mean_field import partial_collapse
    >>> (attractor,) = partial_collapse("silu", 32, distinct=10)
    >>> attractor.stable, round(attractor.rate, 4), attractor.modes[0]
    (True, 0.9427, 'split of block 1')
    >>> int(np.linalg.matrix_rank(attractor.gram))
    11
    """
    return _fixed_points(activation, batch, distinct, rtol, collapsed=True)


def _fixed_points(
    activation: ActivationLike, batch: int, first: int, rtol: float, *, collapsed: bool
) -> tuple[BlockFixedPoint, ...]:
    """Return the fixed points with `first` samples in the first block, without the symmetric one.

    `collapsed` tells whether the samples of the second block coincide.
    """
    function = as_activation(activation)
    batch = integer("batch", batch, low=3)
    name, most = ("distinct", batch - 2) if collapsed else ("minority", batch // 2)
    first = integer(name, first, low=1, high=most)
    rtol = real("rtol", rtol, above=0.0)
    sizes = first, batch - first
    # Blocks of at least two distinct samples.
    active = tuple(block for block in ((0,) if collapsed else (0, 1)) if sizes[block] > 1)
    with quadrature_errors_as_arguments(function):
        maps = [BlockMap(function, sizes, order) for order in _ORDERS]
    if maps[0].is_constant:
        allowed = f"a function that is not constant on the sphere of a batch of {batch}"
        raise ArgumentError("activation", function.name, allowed)
    roots = find_roots(maps[2], maps[1], active, symmetric=not collapsed)
    points = sorted((_point(maps, active, root) for root in roots), key=lambda point: point.rate)
    worst = max((point.error for point in points), default=0.0)
    return within(tuple(points), worst, rtol, "fixed point")


def _point(maps: list[BlockMap], active: tuple[int, ...], near: FloatArray) -> BlockFixedPoint:
    """Return the fixed point near a root of the coarser quadrature, with an error estimate."""
    coarse = _described(maps[1], active, near)
    root = newton(maps[0], active, near)
    if root is None:
        return replace(coarse, error=np.inf)
    fine = _described(maps[0], active, root)
    scale = max(fine.diagonal)
    pairs = zip(_entries(fine), _entries(coarse), strict=True)
    entries = [abs(a - b) / scale for a, b in pairs]
    values = map(difference, fine.eigenvalues, coarse.eigenvalues)
    return replace(fine, error=fine.error + max(*entries, *values))


def _entries(point: BlockFixedPoint) -> tuple[float, ...]:
    return (*point.diagonal, *point.inside, point.between)


def _described(
    block_map: BlockMap, active: tuple[int, ...], logarithms: FloatArray
) -> BlockFixedPoint:
    """Return the fixed point at a root, with the part of its error that is known at once."""
    image = block_map.image(levels_of(active, logarithms))
    levels = np.zeros(3)
    levels[[*active, 2]] = image.levels[[*active, 2]]
    modes = sorted(
        block_map.modes(levels), key=lambda m: (-abs(m.value), m.value.real, m.value.imag)
    )
    # The eigenvalue "split" depends on E σ′², of which no panel next to a singular point knows.
    unknown = np.inf if levels[1] == 0.0 and block_map.is_singular else 0.0
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
        error=image.error + _ROUNDING + unknown,
    )
