"""The mean-field map for positively homogeneous activations: σ(cx) = c σ(x) for c > 0.

These are σ(x) = αx + β|x|: linear, relu, leaky relu, abs.  A normalized row φ and −φ are equally
likely, so the mixed terms of σ(φ_i) σ(φ_j) have expectation 0, and

    F(G) = α² E[φ φᵀ] + β² E[|φ| |φ|ᵀ].

For normal rows of covariance C the two expectations are C and

    A(C)_ij = (2/π) √(C_ii C_jj) (√(1 − ρ²) + ρ arcsin ρ),    ρ = C_ij / √(C_ii C_jj)

(Cho and Saul, *Kernel methods for deep learning*, 2009, degree 1).  With φ = √n u / √(‖u‖² + ε),
σ(φ_i) σ(φ_j) is n σ(u_i) σ(u_j) / (‖u‖² + ε), and in the notation of `bnmc.mean_field.map.rows`
with k = 1,

    F(G) = n ∫ D(z) (α² C(z) + β² A(C(z))) dz.
"""

from __future__ import annotations

import numpy as np

from bnmc.mean_field.duals.closed_forms import signs
from bnmc.mean_field.float64 import EPSILON, FloatArray
from bnmc.mean_field.map.rows import Rows, laplace_nodes

# Distance of the nodes.  The integrand is analytic where |Im log z| < π/2, so the rule of every
# second node has an error of about exp(−π²/(2 · 0.15)) = 5e-15.  The error estimate is the error of
# that rule.
_STEP = 0.15

# Entries of the matrices of one block of nodes, at most.
_BLOCK = 1 << 20


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
    norm = float(np.linalg.norm(result))
    difference = float(np.linalg.norm(halves[0] - halves[1]))
    return result, n * EPSILON + (difference / norm if norm > 0.0 else 0.0)


def _absolute(factor: FloatArray) -> FloatArray:
    """Return A(C) for C = factor factorᵀ, shape (..., n, n)."""
    covariance = factor @ np.swapaxes(factor, -1, -2)
    lengths = np.linalg.norm(factor, axis=-1)
    products = lengths[..., :, None] * lengths[..., None, :]
    cosine = np.clip(covariance / np.where(products > 0.0, products, 1.0), -1.0, 1.0)
    return products * signs(cosine)[0]
