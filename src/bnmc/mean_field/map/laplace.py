"""The integral over z that removes the normalization from expectations of normalized rows.

Let u ~ N(0, S), with tr S = 1, be a row as the normalization sees it, and
φ = √n u / √(‖u‖² + ε) the normalized row, with n the batch size and ε the damping (see
`bnmc.mean_field.map.rows`).  For k > 0 and s > 0,

    s^(−k) = ∫₀^∞ z^(k−1) exp(−zs) dz / Γ(k).

With s = ‖u‖² + ε, an expectation over φ becomes an integral over z of expectations over normal
rows of covariance C(z) = S (I + 2zS)⁻¹, with the weight

    D(z) = det(I + 2zS)^(−1/2) exp(−εz).

In the eigenvectors of S both are diagonal, so S may be singular.  Without normalization,
C(z) = S and D(z) = exp(−z): z is then half the squared radius of two standard normal variables.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bnmc.mean_field.float64 import FloatArray
from bnmc.mean_field.map.rows import Rows

__all__ = ["Nodes", "laplace_nodes"]

# Nodes whose contribution, relative to the whole integral, is at most this are left out.
_CUT = 1e-17

# log z = x − exp(−x) − _BEND, up to a constant; x starts at _FIRST, where log z is about −46.
_BEND, _FIRST = 2.0, -3.7

# An x beyond all nodes: the smallest eigenvalue is at least the rounding unit times the largest
# one, and if growth is 1, the rank is at least 3 or the damping positive.
_LAST = 130.0


@dataclass(frozen=True)
class Nodes:
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


def laplace_nodes(rows: Rows, step: float, shift: float, growth: float) -> Nodes:
    """Return the trapezoidal rule in a variable x with log z = x − exp(−x) up to a constant.

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
    index = np.arange(np.floor(_FIRST / step), np.ceil(_LAST / step)).astype(np.int64)
    x = (index + shift) * step
    z = np.exp(x - np.exp(-x) - _BEND) / (rows.norm_values.sum() + rows.damping)
    log_weight = 0.5 * np.log(rows.shrinkage(z)).sum(axis=1) - rows.damping * z
    largest = float(rows.norm_values.max(initial=0.0))
    used = log_weight + growth * np.log1p(2.0 * z * largest) > np.log(_CUT)
    index, x, z, log_weight = index[used], x[used], z[used], log_weight[used]
    return Nodes(index, z, np.exp(log_weight) * step * z * (1.0 + np.exp(-x)))
