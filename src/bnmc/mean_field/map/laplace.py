"""Gaussian rows, and the integral that takes their normalization away.

Let ``u ~ N(0, S)``, with ``tr S = 1``, be a row as the normalization sees it, and
``φ = √n u / √(‖u‖² + ε)`` what it makes of it.  Since ``s^(−k)`` is the integral of
``z^(k−1) exp(−zs) / Γ(k)`` over ``z > 0``, an expectation of φ becomes one of Gaussian rows of
covariance ``C(z) = S (I + 2zS)⁻¹``, weighted by

    D(z) = det(I + 2zS)^(−1/2) exp(−εz),

and integrated over z.  In the eigenvectors of S all of this is diagonal, so S may be singular.
Without normalization S leaves both D and C, and ``D(z) = exp(−z)``: an integral over z then stands
for one over half the squared radius of Gaussian variables.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bnmc.chain.chain import Chain

__all__ = ["EPSILON", "FloatArray", "Nodes", "Rows", "gaussian_rows", "laplace_nodes"]

FloatArray = NDArray[np.float64]
EPSILON = float(np.finfo(np.float64).eps)

# A damping as weak as this changes no expectation by more than rounding, whatever the rank of S.
_UNDAMPED = 1e-32

# What the nodes may leave out at either end, as a share of the whole.
_CUT = 1e-17

# Where log z bends down to it, in units below the typical log z, and in the variable of the nodes.
_BEND, _FIRST = 2.0, -3.7

# Beyond every node: the smallest eigenvalue is no less than ε times the largest, and the rank 3.
_LAST = 130.0


@dataclass(frozen=True)
class Rows:
    """The law of a row before normalization.

    Attributes
    ----------
    vectors : (batch, rank) ndarray
        Orthonormal eigenvectors of the covariance S, without those of the eigenvalue 0.
    values : (rank,) ndarray
        Their eigenvalues, > 0; under normalization they sum to 1.
    norm_values : (rank,) ndarray
        Those that the normalization sees: `values`, or zeros where there is none.
    damping : float
        The ε above, ``batch · eps`` in units of the trace; 1 without normalization.
    scale : float
        Squared length of a normalized row without eps; 1 without normalization.
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
        """Eigenvalues of ``(I + 2zS)⁻¹``, (nodes, rank)."""
        return np.asarray(1.0 / (1.0 + 2.0 * z[:, None] * self.norm_values))


def gaussian_rows(chain: Chain, gram: FloatArray, rounding: float = EPSILON) -> Rows:
    """Rows ``gain · w``, w ~ N(0, G), as the chain's normalization sees them.

    Eigenvalues that cannot be told from 0, ``λ <= n · rounding · ‖G‖_∞``, are left out.
    """
    n = chain.batch
    normalized = chain.norm != "none"
    scale = float(n if normalized else 1)
    none = np.zeros(0)
    zero = Rows(np.zeros((n, 0)), none, none, float(not normalized or chain.eps > 0), scale)
    largest = float(np.abs(gram).max())
    if largest == 0.0:
        return zero
    unit = gram / largest
    basis = _centred_basis(n) if chain.norm == "batch" else np.eye(n)
    values, vectors = np.linalg.eigh(basis.T @ unit @ basis)
    seen = values > n * rounding * np.abs(unit).sum(axis=0).max()
    if not seen.any():
        return zero
    values, vectors = values[seen], basis @ vectors[:, seen]
    if not normalized:
        values = values * largest * chain.gain * chain.gain
        return Rows(vectors, values, np.zeros_like(values), 1.0, scale)
    trace = float(values.sum())
    damping = n * chain.eps / largest / chain.gain / chain.gain / trace
    if not np.isfinite(damping):  # rows that are so small beside eps are 0
        return zero
    values = values / trace
    return Rows(vectors, values, values, damping if damping > _UNDAMPED else 0.0, scale)


def _centred_basis(n: int) -> FloatArray:
    """Orthonormal basis of the vectors orthogonal to 1 (Helmert's), (n, n − 1)."""
    k = np.arange(1.0, n)
    columns = np.triu(np.ones((n, n - 1))) - np.diag(k, -1)[:, : n - 1]
    return np.asarray(columns / np.sqrt(k * (k + 1.0)))


@dataclass(frozen=True)
class Nodes:
    """Nodes z of the integral.

    Attributes
    ----------
    index : (nodes,) ndarray of int64
        Consecutive.
    z : (nodes,) ndarray
    weight : (nodes,) ndarray
        Weights, ``D(z) dz``.
    """

    index: NDArray[np.int64]
    z: FloatArray
    weight: FloatArray


def laplace_nodes(rows: Rows, step: float, shift: float, growth: float) -> Nodes:
    """The trapezoidal rule in a variable x with ``log z = x − exp(−x)`` up to a constant.

    The integrands are analytic in ``log z`` in a strip about the real line, decay doubly
    exponentially in x to the left and exponentially to the right, so the rule converges like
    ``exp(−const / step)``.

    Parameters
    ----------
    rows : Rows
    step : float
        Distance of the nodes in x.
    shift : float
        In [0, 1): where the first node is, in steps.
    growth : float
        Integrands grow at most like ``(1 + 2 z λ_max)^growth``; nodes end where D has made up
        for that.
    """
    index = np.arange(np.floor(_FIRST / step), np.ceil(_LAST / step)).astype(np.int64)
    x = (index + shift) * step
    z = np.exp(x - np.exp(-x) - _BEND) / (rows.norm_values.sum() + rows.damping)
    log_weight = 0.5 * np.log(rows.shrinkage(z)).sum(axis=1) - rows.damping * z
    largest = float(rows.norm_values.max(initial=0.0))
    used = log_weight + growth * np.log1p(2.0 * z * largest) > np.log(_CUT)
    index, x, z, log_weight = index[used], x[used], z[used], log_weight[used]
    return Nodes(index, z, np.exp(log_weight) * step * z * (1.0 + np.exp(-x)))
