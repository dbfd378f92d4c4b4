"""The law of a row of the hidden representation, given the Gram matrix of the layer before.

A row of h = gain · W a + b has one entry per sample.  Given the Gram matrix G = aᵀa/width of the
layer before, it is normal with mean 0 and covariance gain² G + ``bias_variance`` 11ᵀ at infinite
width, with the average C(G) over taps in place of G for a convolution.

A norm over the features divides each sample by the root mean square of its features.  At infinite
width the mean over all of them, or over those of a group, is 0 and the mean square is the variance
of the sample.  So before the activation such a norm divides the covariance by constants.  After the
activation, the rows of any norm are those without norm (`bnmc.mean_field.pairwise_layer` and
`points`).

An integral over z removes the normalization from expectations.  Let u ~ N(0, S), with tr S = 1, be
a row as the normalization sees it, and φ = √n u / √(‖u‖² + ε) the normalized row, with n the batch
size and ε the damping.  For k > 0 and s > 0,

    s^(−k) = ∫₀^∞ z^(k−1) exp(−zs) dz / Γ(k).

With s = ‖u‖² + ε, an expectation over φ becomes an integral over z of expectations over normal
rows of covariance C(z) = S (I + 2zS)⁻¹, with the weight

    D(z) = det(I + 2zS)^(−1/2) exp(−εz).

In the eigenvectors of S both are diagonal, so S may be singular.

**Positively homogeneous activations** are σ(x) = αx + β|x|: linear, relu, leaky relu, abs.  A
normalized row φ and −φ are equally likely, so the mixed terms of σ(φ_i) σ(φ_j) have expectation 0,
and F(G) = α² E[φ φᵀ] + β² E[|φ| |φ|ᵀ].  For normal rows of covariance C the two expectations are C
and

    A(C)_ij = (2/π) √(C_ii C_jj) (√(1 − ρ²) + ρ arcsin ρ),    ρ = C_ij / √(C_ii C_jj)

(Cho and Saul, *Kernel methods for deep learning*, 2009, degree 1).  As σ(φ_i) σ(φ_j) is
n σ(u_i) σ(u_j) / (‖u‖² + ε), the integral over z with k = 1 is

    F(G) = n ∫ D(z) (α² C(z) + β² A(C(z))) dz.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bnmc._kernels.scalar.codes import ACTIVATION_FIRST
from bnmc._support.linalg import binary_scale
from bnmc._support.machine import require_memory
from bnmc.chain.layers import CovarianceMap, Layer, RowMap
from bnmc.chain.norms import Norm
from bnmc.mean_field.duals.duals import signs
from bnmc.mean_field.float64 import EPSILON, FloatArray

# A damping at most this large changes no expectation by more than rounding, whatever the rank.
_UNDAMPED = 1e-32
# Beside a larger damping the length of a row of rank 2 or more is no part of its normalization.
_MOST_DAMPING = 1e250


@dataclass(frozen=True)
class Rows:
    """The law of a row, as the normalization sees it.

    The row is normal with mean 0.  Its covariance S has unit trace if there is a normalization: a
    positive factor of the row then changes nothing but `damping`.  A centring normalization sees
    only the part of the row orthogonal to (1, …, 1), so S is the covariance of that part.

    Attributes
    ----------
    vectors : ndarray of shape (batch, rank)
        Orthonormal eigenvectors of S with positive eigenvalues.
    values : ndarray of shape (rank,)
        Their eigenvalues.
    norm_values : ndarray of shape (rank,)
        The eigenvalues as the normalization sees them: `values`, or zeros without normalization.
    damping : float
        ε = batch · eps / trace, with `trace` that of the covariance before scaling; 1 without
        normalization.
    scale : float
        Squared length of a normalized row if eps is 0, that is the batch size; 1 without
        normalization.
    """

    vectors: FloatArray
    values: FloatArray
    norm_values: FloatArray
    damping: float
    scale: float

    @property
    def rank(self) -> int:
        """Rank of S."""
        return self.values.size

    @property
    def has_variance(self) -> bool:
        """Whether the rows can be normalized."""
        return self.rank > 0 or self.damping > 0.0

    def shrinkage(self, z: FloatArray) -> FloatArray:
        """Return the eigenvalues of (I + 2zS)⁻¹ for several z, shape (nodes, rank)."""
        return np.asarray(1.0 / (1.0 + 2.0 * z[:, None] * self.norm_values))


def follows_activation(layer: Layer) -> bool:
    """Whether a norm acts on σ(h)."""
    return not layer.rows.norm.is_identity and layer.rows.order == ACTIVATION_FIRST


def gaussian_rows(layer: Layer, gram: FloatArray, rounding: float = EPSILON) -> Rows:
    """Return the law of a row, as the normalization of a layer sees it.

    The covariance of the row is gain² G, or gain² C(G) plus the variance of a bias; see
    `Layer.covariance`.

    Parameters
    ----------
    layer : Layer
    gram : ndarray of shape (batch, batch)
        The Gram matrix G of the layer before.
    rounding : float
        Relative rounding error of G.
    """
    return rows_of(layer.rows, *row_covariance(layer, layer.covariance, gram), rounding)


def row_covariance(layer: Layer, law: CovarianceMap, gram: FloatArray) -> tuple[FloatArray, float]:
    """Return a matrix and a number g: rows have the covariance g² · matrix.

    g is the gain, or 1 if the variance of the bias over gain² exceeds float64.
    """
    matrix, gain = law(gram), layer.linear.gain
    if np.isfinite(matrix).all():
        return matrix, gain
    return replace(law, variance=0.0)(gram) * gain * gain + layer.linear.bias_variance, 1.0


def rows_of(
    row_map: RowMap, matrix: FloatArray, gain: float = 1.0, rounding: float = EPSILON
) -> Rows:
    """Return the law of a row of covariance gain² · matrix, as the normalization sees it.

    Parameters
    ----------
    row_map : RowMap
        Its batch size, normalization, order and eps are used.
    matrix : ndarray of shape (batch, batch)
    gain : float
    rounding : float
        Relative rounding error of the matrix.  Eigenvalues λ ≤ batch · rounding · ‖matrix‖_∞ count
        as 0.
    """
    norm, n, eps = row_map.norm, row_map.batch, row_map.eps
    on_rows = norm.axis == "batch" and row_map.order != ACTIVATION_FIRST
    on_samples = norm.axis == "features" and row_map.order != ACTIVATION_FIRST
    none, scale = np.zeros(0), float(n if on_rows else 1)
    divides = on_rows or on_samples
    zero = Rows(np.zeros((n, 0)), none, none, float(not divides or eps > 0), scale)
    largest = float(np.abs(matrix).max())
    if largest == 0.0:
        return zero
    # Of entries at most 1.  The factors are applied one by one, as their product may be outside the
    # range of float64.
    matrix = matrix / largest
    if on_samples:
        variances = np.diagonal(matrix) + eps / largest / gain / gain
        if not (variances > 0.0).all():
            return replace(zero, damping=0.0)
        if np.isinf(variances).any():  # the rows are negligible beside eps
            return zero
        spread = np.sqrt(variances)
        matrix = matrix / (spread[:, None] * spread)
    basis = _seen_basis(norm, n) if on_rows else np.eye(n)
    values, vectors = np.linalg.eigh(basis.T @ matrix @ basis)
    seen = values > n * rounding * np.abs(matrix).sum(axis=0).max()
    if not seen.any():
        return zero
    values, vectors = values[seen], basis @ vectors[:, seen]
    if not on_rows:
        values = values if on_samples else values * largest * gain * gain
        return Rows(vectors, values, np.zeros_like(values), 1.0, scale)
    trace = float(values.sum())
    damping = n * eps / largest / gain / gain / trace
    if not np.isfinite(damping):  # the rows are negligible beside eps
        return zero
    values = values / trace
    if damping > _MOST_DAMPING and values.size > 1:
        return Rows(vectors, values / damping, np.zeros_like(values), 1.0, scale)
    return Rows(vectors, values, values, damping if damping > _UNDAMPED else 0.0, scale)


def _seen_basis(norm: Norm, batch: int) -> FloatArray:
    """Return an orthonormal basis, in columns, of the rows that the normalization sees."""
    if not norm.hides_common_part:
        return np.eye(batch)
    from scipy.linalg import helmert  # slow to import

    # The memory layout decides about the rounding of matrix products.
    return np.ascontiguousarray(helmert(batch).T)


# --- the integral over z

#: Nodes whose contribution, relative to the whole integral, is at most this are left out.
CUT = 1e-17

# x starts here, where log z is about −46.
_FIRST = -3.7

# An x beyond all nodes: the smallest eigenvalue is at least the rounding unit times the largest
# one, and if growth is 1, the rank is at least 3 or the damping positive.
_LAST = 130.0


@dataclass(frozen=True)
class _Nodes:
    """Nodes of the integral over z.

    Attributes
    ----------
    index : ndarray of int64, shape (nodes,)
        Consecutive integers: the number of each node in the trapezoidal rule.
    z : ndarray of shape (nodes,)
        The nodes.
    weight : ndarray of shape (nodes,)
        Their weights, D(z) dz.
    """

    index: NDArray[np.int64]
    z: FloatArray
    weight: FloatArray


def log_nodes(
    first: float, step: float, shift: float = 0.0
) -> tuple[NDArray[np.int64], FloatArray, FloatArray]:
    """Return the numbers of nodes x from `first` on, log z = x − exp(−x) − 2, and d log z/dx."""
    index = np.arange(np.floor(first / step), np.ceil(_LAST / step)).astype(np.int64)
    x = (index + shift) * step
    decay: FloatArray = np.exp(-x)
    return index, x - decay - 2.0, 1.0 + decay


def laplace_nodes(rows: Rows, step: float, shift: float, growth: float) -> _Nodes:
    """Return the trapezoidal rule in the variable x of `log_nodes`.

    The integrands are analytic in log z in a strip about the real line.  They decay doubly
    exponentially in x to the left and exponentially to the right.  So the error of the rule is of
    the order of exp(−const / step).

    Parameters
    ----------
    rows : Rows
        The law of the rows.
    step : float
        Distance of the nodes in x, > 0.
    shift : float
        Position of the first node, in steps, in [0, 1).
    growth : float
        The integrands grow at most like (1 + 2 z λ)^growth, with λ the largest eigenvalue of S.
        The nodes end where D(z) times that is negligible.
    """
    index, log_z, slope = log_nodes(_FIRST, step, shift)
    z = np.exp(log_z) / (rows.norm_values.sum() + rows.damping)
    log_weight = 0.5 * np.log(rows.shrinkage(z)).sum(axis=1) - rows.damping * z
    largest = float(rows.norm_values.max(initial=0.0))
    used = log_weight + growth * np.log1p(2.0 * z * largest) > np.log(CUT)
    z, log_weight = z[used], log_weight[used]
    return _Nodes(index[used], z, np.exp(log_weight) * step * z * slope[used])


# --- the map for positively homogeneous activations

# Distance of the nodes.  The integrand is analytic where |Im log z| < π/2, so the rule of every
# second node has an error of about exp(−π²/(2 · 0.15)) = 5e-15.  The error estimate is the error of
# that rule.
_STEP = 0.15

# Entries of the matrices of one block of nodes, at most, and how many such arrays exist at a time.
_BLOCK, _BLOCK_ARRAYS = 1 << 20, 7


def homogeneous_map(rows: Rows, left: float, right: float) -> tuple[FloatArray, float]:
    """Return F(G), shape (batch, batch), and its estimated relative error.

    Parameters
    ----------
    rows : Rows
        The law of the rows that G determines.
    left, right : float
        Slopes of σ left and right of 0.
    """
    signed, unsigned = (0.5 * (right + left)) ** 2, (0.5 * (right - left)) ** 2
    if rows.damping == 0.0 and rows.rank == 1:
        # φ takes two values, v and −v.
        outer = rows.scale * np.outer(rows.vectors, rows.vectors)
        return signed * outer + unsigned * np.abs(outer), EPSILON

    n = len(rows.vectors)
    nodes = laplace_nodes(rows, _STEP, 0.0, growth=0.0)
    weight = rows.scale * nodes.weight
    spectra = rows.values * rows.shrinkage(nodes.z)
    size = max(1, _BLOCK // n**2)
    matrices = _BLOCK_ARRAYS * min(size, nodes.z.size // 2 + 1) * (unsigned > 0.0)
    require_memory("G", 8 * n**2 * (matrices + 4), "take a smaller batch")
    halves = []
    for half in (slice(0, None, 2), slice(1, None, 2)):
        w, values = weight[half], spectra[half]
        total = signed * (rows.vectors * (w @ values)) @ rows.vectors.T
        if unsigned > 0.0:
            for first in range(0, w.size, size):
                block = slice(first, first + size)
                factors = rows.vectors * np.sqrt(values[block])[:, None, :]
                total += unsigned * np.tensordot(w[block], _absolute(factors), axes=1)
        halves.append(total)
    result = halves[0] + halves[1]
    unit = binary_scale(result)
    norm = float(np.linalg.norm(result / unit))
    difference = float(np.linalg.norm((halves[0] - halves[1]) / unit))
    return result, n * EPSILON + (difference / norm if norm > 0.0 else 0.0)


def _absolute(factor: FloatArray) -> FloatArray:
    """Return A(C) for C = factor factorᵀ, shape (..., n, n)."""
    covariance = factor @ np.swapaxes(factor, -1, -2)
    lengths = np.linalg.norm(factor, axis=-1)
    products = lengths[..., :, None] * lengths[..., None, :]
    cosine = np.clip(covariance / np.where(products > 0.0, products, 1.0), -1.0, 1.0)
    return products * signs(cosine)[0]
