"""The law of the rows of two batches, and one layer of a positively homogeneous activation.

**Rows.**  Let K be the covariance of the pre-activations of a batch of n samples.  Batch
normalization sees P h only, with P the projector orthogonal to (1, …, 1).  So rows are described in
the eigenvectors of P K P with positive eigenvalues, and in units in which the trace t of P K P
is 1.

**Integrals.**  The activation is σ(x) = αx + β|x|: linear, relu, leaky relu, abs.  Let u and v be
rows of two batches of n and n′ samples: jointly normal, each with a covariance of trace 1.
With r = |u| and r′ = |v| the normalized rows are √n u/r and √n′ v/r′.  For ν > 0

    r^(−2ν) = ∫₀^∞ z^(ν−1) exp(−z r²) dz / Γ(ν).

With one variable z for u and one, z′, for v, expectations over normalized rows become integrals
over expectations over normal rows, of covariance C = (S⁻¹ + 2 diag(z, z′))⁻¹ and with weight
D = det(I + 2 S diag(z, z′))^(−½), where S is the joint covariance of u and v.  In C, let A, B, A′
be the blocks of u with u, of u with v, and of v with v.

**Covariances.**  Products σ(u_i) σ(v_j) have the expectation α² B + β² E|u_i||v_j|, as (u, v) and
(−u, −v) are equally likely.  So

    E σ σᵀ = √(n n′)/π ∫∫ D (z z′)^(−½) (α² B_ij + β² E|u_i||v_j|) dz dz′.

**Tangents.**  Let M be the tangent kernel Θ between the batches, as the normalizations see it, t
and t′ the traces, and s_i the sign of u_i or v_i.  The derivative of √n u/r is √n (I − u uᵀ/r²)/r,
so the sum over the parameters of earlier layers is

    √(n n′/(t t′))/π ∫∫ D (z z′)^(−½) E (α² + β² s_i s_j)
        (M − 2z u uᵀM − 2z′ M v vᵀ + 4 z z′ u uᵀM v vᵀ)_ij dz dz′,

where 2z stands for r^(−3) instead of r^(−1).  By Stein's identity, with ρ the correlation of u_i
and v_j, L = E s_i s_j = (2/π) arcsin ρ, g = (2/π) √(1−ρ²) √(A_ii/A′_jj), g′ the same with the
inverse ratio, X = (I − 2zA) M (I − 2z′A′) and Y = B MᵀB, the expectation is

    α² (X + 4zz′ (Y + B tr MᵀB)) + β² (L ⊙ (X + 4zz′Y) + 4zz′ E|u_i||v_j| tr MᵀB
        + g_ij (4zz′ (BᵀM A′)_jj − 2z (MᵀB)_jj) + g′_ij (4zz′ (A M Bᵀ)_ii − 2z′ (M Bᵀ)_ii)).

For one batch u = v, so A = B = A′ and there is one variable: r^(−2), r^(−4) and r^(−6) have the
factors 1, z and z²/2.  So the tangents are n/t ∫ D E … dz with z instead of 2z and 2z′, z²/2
instead of 4zz′, and X + 4zz′Y = M − zAM − zMA + z²AMA.  Yang et al. (arXiv 1902.08129) have the
case in which all samples are equivalent.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnmc._kernels.scalar.codes import NORM_FIRST
from bnmc.chain.layers import RowMap
from bnmc.errors import ArgumentError, ZeroVarianceError
from bnmc.mean_field.duals.duals import scale_and_correlation, signs
from bnmc.mean_field.float64 import EPSILON, FloatArray
from bnmc.mean_field.map.rows import CUT, Rows, homogeneous_map, laplace_nodes, log_nodes, rows_of


@dataclass(frozen=True)
class BatchLaw(Rows):
    """The law of a row of one batch.

    The eigenvectors and eigenvalues are those of P K P / t.

    Attributes
    ----------
    trace : float
        t.
    covariance : ndarray
        K; in split coordinates if the normalization follows the activation (see `batch_points`).
    """

    trace: float
    covariance: FloatArray

    @property
    def size(self) -> int:
        """Number of samples n."""
        return len(self.vectors)


class Pair(NamedTuple):
    """The rows of two batches.

    Attributes
    ----------
    left, right : BatchLaw
    across : ndarray of shape (left.size, right.size)
        The covariances between the two batches; in split coordinates as those of `BatchLaw`.
    tangent : ndarray of the same shape, or None
        The tangent kernel between them, if it is needed.
    """

    left: BatchLaw
    right: BatchLaw
    across: FloatArray
    tangent: FloatArray | None


def batch_law(row_map: RowMap, covariance: FloatArray, layer: int, name: str) -> BatchLaw:
    """Return the law of a row of a batch; a covariance in split coordinates has a row more.

    The batch size and the norm of the row map matter.

    Raises
    ------
    ArgumentError, ZeroVarianceError
        If no row can be normalized, in layer 0 (`name` is the argument) or in a later one.
    """
    n = row_map.batch
    seen = covariance[:n, :n]
    # In split coordinates, deviations are seen before an activation as behind it.
    rows = rows_of(row_map._replace(order=NORM_FIRST), seen)
    if not rows.has_variance:
        if layer == 0:
            allowed = 'batches of samples that are not all equal, with norm="batch"'
            raise ArgumentError(name, f"{n} equal samples", allowed)
        raise ZeroVarianceError(None, layer, 0)
    trace = float(np.einsum("ik,ij,jk->", rows.vectors, seen, rows.vectors))
    return BatchLaw(**vars(rows), trace=trace, covariance=covariance)


def require_finite_tangents(law: BatchLaw, name: str) -> None:
    """Raise if the expectation of 1/variance of a row is infinite.

    With one dimension a normalized row is constant but for its sign, so its derivative is 0.
    """
    if law.rank == 2:
        raise ArgumentError(
            name, "a batch whose differences have 2 dimensions",
            "batches of at least 4 samples whose differences have at least 3 dimensions",
            "the tangent kernel is infinite, since the mean of 1/variance of rows is",
        )  # fmt: skip


def joint_factor(pair: Pair) -> FloatArray:
    """Return L with L Lᵀ the covariance of the rows of two batches, in their eigenvectors.

    Returns
    -------
    ndarray of shape (left.rank + right.rank, rank)
        The columns are orthogonal, those of the largest eigenvalue first.  Negative eigenvalues,
        which are errors of the covariances, count as 0.
    """
    block = _seen(pair)
    joint = np.block([[np.diag(pair.left.values), block], [block.T, np.diag(pair.right.values)]])
    values, vectors = np.linalg.eigh(joint)
    positive = values > len(joint) * EPSILON * values[-1]
    factor = vectors[:, positive] * np.sqrt(values[positive])
    return np.ascontiguousarray(factor[:, ::-1])


def seen_tangents(pair: Pair) -> FloatArray | None:
    """Return M, the tangents as the normalizations see them.

    None if no tangents are given, or if a row has less than three dimensions: with one its
    derivative is 0, and two are excluded by `require_finite_tangents`.
    """
    left, right, _, tangent = pair
    if tangent is None or min(left.rank, right.rank) < 3:
        return None
    return left.vectors @ left.vectors.T @ tangent @ (right.vectors @ right.vectors.T)


def _seen(pair: Pair) -> FloatArray:
    """Return the covariances between two batches in their eigenvectors and units."""
    block = pair.left.vectors.T @ pair.across @ pair.right.vectors
    return block / np.sqrt(pair.left.trace * pair.right.trace)


# Distance of nodes, for one variable and for two.  The integrand is analytic where
# |Im log z| < π/2, so the rule of every second node has an error of about exp(−π²/(2 · step)) for
# one variable, and exp(−π²/step) for two, of which every second node of a chessboard is taken.
_STEP, _PLANE_STEP = 0.15, 0.3

# The variable x of two batches starts here, where the root of z is 1e-19.
_FIRST = -4.4

# Entries of the arrays of one block of nodes, at most.
_BLOCK = 1 << 18


class Homogeneous:
    """Layers with batch normalization before an activation that is positively homogeneous.

    Parameters
    ----------
    left, right : float
        Slopes of σ left and right of 0.

    Attributes
    ----------
    error : float
        The largest relative error of a result so far: the difference of two rules of half the
        nodes, which exceeds that of the rule.
    """

    def __init__(self, left: float, right: float) -> None:
        self._slopes = left, right
        self.signed, self.unsigned = (0.5 * (right + left)) ** 2, (0.5 * (right - left)) ** 2
        self.error = 0.0

    def slope(self, x: FloatArray) -> FloatArray:
        """Return σ′ at each number."""
        left, right = self._slopes
        return np.where(x < 0.0, left, right)

    def own(self, law: BatchLaw, tangent: FloatArray | None) -> tuple[FloatArray, FloatArray]:
        """Return E σσᵀ of one batch, and the tangents of earlier layers (zeros for None)."""
        value, error = homogeneous_map(law, *self._slopes)
        self.error = max(self.error, error)
        if tangent is None or law.rank < 3:
            return value, np.zeros_like(value)
        nodes = laplace_nodes(law, _STEP, 0.0, growth=1.0)
        vectors = law.vectors
        seen = vectors.T @ tangent @ vectors
        M = vectors @ seen @ vectors.T
        spectra = law.values * law.shrinkage(nodes.z)
        halves = np.zeros((2, *value.shape))
        size = max(1, _BLOCK // value.size)
        for half in (0, 1):
            z, weights, c = (part[half::2] for part in (nodes.z, nodes.weight, spectra))
            for first in range(0, z.size, size):
                at = slice(first, first + size)
                C = (vectors * c[at, None]) @ vectors.T
                MC = vectors @ (seen * c[at, None]) @ vectors.T
                CMC = vectors @ (c[at, :, None] * seen * c[at, None]) @ vectors.T
                y = z[at, None, None]
                ends = 0.5 * y**2 * _diagonal(CMC) - y * _diagonal(MC)
                terms = _Terms(
                    M - y * (MC + MC.swapaxes(1, 2)) + y**2 * CMC,
                    C, 0.5 * y**2 * np.einsum("zii->z", MC)[:, None, None], ends, ends,
                )  # fmt: skip
                variances = _diagonal(C)[:, 0]
                expected = self._tangent(terms, _signs(C, variances, variances))
                halves[half] += np.einsum("z,zij->ij", weights[at], expected)
        return value, law.size / law.trace * self._sum(halves)

    def across(self, pair: Pair) -> tuple[FloatArray, FloatArray]:
        """Return E σσᵀ between two batches, and the tangents of earlier layers."""
        M, left, right = seen_tangents(pair), pair.left, pair.right
        values, tangents = np.zeros((2, 2, left.size, right.size))
        size = max(1, _BLOCK // max(left.size, right.size) ** 2)
        for column in _columns(pair, M is not None):
            for half in (0, 1):
                y, weights = column.y[column.colour == half], column.weight[column.colour == half]
                for first in range(0, y.size, size):
                    two, weight = y[first : first + size], weights[first : first + size]
                    A, A2, B = column.blocks(two)
                    signs = _signs(B, _diagonal(A)[:, 0], _diagonal(A2)[:, 0])
                    value = self.signed * B + self.unsigned * signs.absolute
                    values[half] += np.tensordot(weight, value, axes=1)
                    if M is not None:
                        terms = _between(M, column.z, two[:, None, None], A, A2, B)
                        tangents[half] += np.tensordot(weight, self._tangent(terms, signs), axes=1)
        scale = np.sqrt(left.size * right.size) / np.pi
        traces = np.sqrt(left.trace * right.trace)
        return scale * self._sum(values), scale / traces * self._sum(tangents)

    def _tangent(self, terms: _Terms, signs: _Signs) -> FloatArray:
        """Return the expectation in the integral of the tangents at each node."""
        expected = self.signed * (terms.X + terms.weight * terms.B)
        if self.unsigned > 0.0:
            expected = expected + self.unsigned * (
                signs.product * terms.X
                + terms.weight * signs.absolute
                + signs.left * terms.columns
                + signs.right * terms.rows.swapaxes(1, 2)
            )
        return np.asarray(expected)

    def _sum(self, halves: FloatArray) -> FloatArray:
        """Return the sum of two half rules, and note their difference."""
        total = halves[0] + halves[1]
        norm = float(np.linalg.norm(total))
        if norm > 0.0:
            self.error = max(self.error, float(np.linalg.norm(halves[0] - halves[1])) / norm)
        return total


class _Terms(NamedTuple):
    """The terms of the integral of tangents at some nodes, in the notation of the module.

    Attributes
    ----------
    X : ndarray of shape (nodes, n, n′)
        X + 4zz′ Y.
    B : ndarray of shape (nodes, n, n′)
    weight : ndarray of shape (nodes, 1, 1)
        4zz′ tr MᵀB.
    columns, rows : ndarray of shapes (nodes, 1, n′) and (nodes, 1, n)
        The factors of g and g′.
    """

    X: FloatArray
    B: FloatArray
    weight: FloatArray
    columns: FloatArray
    rows: FloatArray


def _between(
    M: FloatArray, z: float, y: FloatArray, A: FloatArray, A2: FloatArray, B: FloatArray
) -> _Terms:
    """Return the terms of two batches at nodes (z, y)."""
    transposed = B.swapaxes(1, 2)
    MB, BM, AM, four = M @ transposed, transposed @ M, A @ M, 4.0 * z * y
    reduced = M - 2.0 * z * AM
    return _Terms(
        reduced - 2.0 * y * reduced @ A2 + four * (B @ M.T @ B),
        B,
        four * np.einsum("zii->z", MB)[:, None, None],
        four * _diagonal(BM @ A2) - 2.0 * z * _diagonal(BM),
        four * _diagonal(AM @ transposed) - 2.0 * y * _diagonal(MB),
    )


class _Signs(NamedTuple):
    """Expectations of signs of normal variables, each of shape (nodes, n, n′).

    Attributes
    ----------
    product : ndarray
        E s_i s_j.
    absolute : ndarray
        E|u_i||v_j|.
    left, right : ndarray
        g and g′.
    """

    product: FloatArray
    absolute: FloatArray
    left: FloatArray
    right: FloatArray


def _signs(B: FloatArray, left: FloatArray, right: FloatArray) -> _Signs:
    """Return expectations from the covariances and both variances, (nodes, n) and (nodes, n′)."""
    # Rounding makes variances negative that are 0.
    p, q = np.maximum(left, 0.0)[:, :, None], np.maximum(right, 0.0)[:, None, :]
    scale, cosine = scale_and_correlation(p, q, B)
    absolute, product, at_zero = signs(cosine)
    at_zero = np.divide(at_zero, scale, out=np.zeros_like(scale), where=scale > 0.0)
    return _Signs(product, scale * absolute, at_zero * p, at_zero * q)


def _diagonal(blocks: FloatArray) -> FloatArray:
    """Return the diagonals of matrices, of shape (nodes, 1, n)."""
    return np.asarray(np.einsum("zii->zi", blocks)[:, None])


class _Column(NamedTuple):
    """The nodes of one z, and the law of the rows (u, v) tilted by exp(−z |u|²).

    That law has the covariances A₀ of u, P Qᵀ of u with v, and Q diag(μ) Qᵀ of v.

    Attributes
    ----------
    z : float
    y, weight, colour : ndarray of shape (nodes,)
        Nodes z′, the weights D (zz′)^(−½) dz dz′, and the colours on a chessboard.
    A, P, Q : ndarray of shapes (n, n), (n, rank) and (n′, rank)
    mu : ndarray of shape (rank,)
    """

    z: float
    y: FloatArray
    weight: FloatArray
    colour: NDArray[np.intp]
    A: FloatArray
    P: FloatArray
    Q: FloatArray
    mu: FloatArray

    def blocks(self, y: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return A, A′ and B at some nodes: the law is tilted by exp(−z′ |v|²), too."""
        shrunk = 1.0 / (1.0 + 2.0 * y[:, None] * self.mu)
        scaled = self.P * shrunk[:, None]
        A = self.A - 2.0 * y[:, None, None] * (scaled @ self.P.T)
        A2 = (self.Q * (self.mu * shrunk)[:, None]) @ self.Q.T
        return A, A2, scaled @ self.Q.T


def _columns(pair: Pair, tangent: bool) -> Iterator[_Column]:
    """Yield the trapezoidal rule in the variables x and x′ of `log_nodes`, and the laws."""
    left, right, block = pair.left, pair.right, _seen(pair)
    (log_z, slope_z), (log_y, slope_y) = (_line(law, tangent) for law in (left, right))
    step_z, step_y = slope_z * _PLANE_STEP, slope_y * _PLANE_STEP
    z, y = np.exp(log_z), np.exp(log_y)
    shrunk = left.shrinkage(z)
    # The covariance of v given z is that of v given u, which is 0 if u determines v, plus a part
    # that shrinks with z.  A difference of both with rounding errors would not shrink.
    seen = block.T / np.sqrt(left.values)
    free, basis = np.linalg.eigh(np.diag(right.values) - seen @ seen.T)
    # Entries of the block have errors of EPSILON.
    rounding = EPSILON * (left.size + right.size)
    rounding *= 1.0 + float((np.linalg.norm(seen, axis=0) / np.sqrt(left.values)).sum())
    given = (basis * np.where(free > rounding, free, 0.0)) @ basis.T
    mu, vectors = np.linalg.eigh(given + (seen * shrunk[:, None]) @ seen.T)
    mu = np.maximum(mu, 0.0)
    log_weight = 0.5 * np.log(shrunk).sum(axis=1)[:, None] + 0.5 * (log_z[:, None] + log_y)
    log_weight -= 0.5 * np.log1p(2.0 * y[:, None] * mu[:, None]).sum(axis=2)
    # The entries of B are at most 1 and at most 1/(2 √(zz′)).
    decay = 0.0 if tangent else 0.5 * (np.log1p(2.0 * z)[:, None] + np.log1p(2.0 * y))
    largest = log_weight - decay
    used = largest > largest.max() + np.log(CUT)
    for k in np.nonzero(used.any(axis=1))[0]:
        at = np.nonzero(used[k])[0]
        yield _Column(
            float(z[k]),
            y[at],
            np.exp(log_weight[k, at]) * step_z[k] * step_y[at],
            (at + k) % 2,
            (left.vectors * (left.values * shrunk[k])) @ left.vectors.T,
            left.vectors @ (shrunk[k, :, None] * block @ vectors[k]),
            right.vectors @ vectors[k],
            mu[k],
        )


def _line(law: BatchLaw, tangent: bool) -> tuple[FloatArray, FloatArray]:
    """Return log z and its derivative at the nodes at which the integrand can matter."""
    _, log_z, slope = log_nodes(_FIRST, _PLANE_STEP)
    # The weight D of two batches is at most that of either one.
    size = 0.5 * np.log(law.shrinkage(np.exp(log_z))).sum(axis=1)
    if tangent:
        size += np.maximum(log_z, 0.0)
    used = size > np.log(CUT)
    return log_z[used], slope[used]
