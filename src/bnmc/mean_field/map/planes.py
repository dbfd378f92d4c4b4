"""The law of a pair of samples in its plane: weights and points at the angles of a lattice.

Notation as in `bnmc.mean_field.map.pairwise`: the rows of Q are an orthonormal basis of the plane
of c_i and c_j, M = Q N Qᵀ and P = Q N² Qᵀ are 2 × 2 matrices, e is the unit vector of angle θ in
that basis, v = Qᵀ e, and W(θ) is the weight.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bnmc.mean_field.float64 import EPSILON, FloatArray
from bnmc.mean_field.map.lattice import Angles, IntArray, Lattice

__all__ = ["NEARLY_PARALLEL", "Planes", "planes_of", "weights_and_points"]

#: If the modulus of the correlation of two samples is larger, squares of their sum and difference
#: are computed from the sum and difference, not from the correlation, which would cancel.
NEARLY_PARALLEL = 1.0 - 1e-3


class _Symmetric(NamedTuple):
    """Symmetric 2 × 2 matrices, by their entries: arrays of one shape."""

    xx: FloatArray
    xy: FloatArray
    yy: FloatArray

    def along(self, angles: Angles) -> FloatArray:
        """Return eᵀ A e for the unit vectors e of the angles, along a new last axis."""
        mean, half = 0.5 * (self.xx + self.yy), 0.5 * (self.xx - self.yy)
        form = half[..., None] * angles.cos_double
        form += self.xy[..., None] * angles.sin_double
        form += mean[..., None]
        return form

    def root(self) -> tuple[_Symmetric, FloatArray]:
        """Return the positive root of positive definite matrices, and its determinant."""
        product = self.xx * self.yy
        det = np.sqrt(np.maximum(product - self.xy**2, EPSILON * product))
        norm = np.sqrt(self.xx + self.yy + 2.0 * det)
        return _Symmetric((self.xx + det) / norm, self.xy / norm, (self.yy + det) / norm), det


class Planes(NamedTuple):
    """Planes of pairs of unit vectors, in the orthonormal basis of their sum and difference.

    Attributes
    ----------
    plus, minus : ndarray of shape (nodes, pairs)
        The vectors are (plus, minus) and (plus, −minus) in that basis.
    M, P : _Symmetric
        The matrices M and P, arrays of shape (nodes, pairs).
    """

    plus: FloatArray
    minus: FloatArray
    M: _Symmetric
    P: _Symmetric


def planes_of(lattice: Lattice, i: IntArray, j: IntArray) -> Planes:
    """Return the planes of the pairs (i, j) of samples, at all nodes of the lattices.

    i must be nondecreasing without gaps.
    """
    units, shrinkage = lattice.units, lattice.shrinkage
    powers = np.stack([np.ones_like(shrinkage), shrinkage, shrinkage**2])
    block = units[:, i[0] : i[-1] + 1]
    inner = np.stack([(block * w[:, None]) @ units.swapaxes(1, 2) for w in powers])
    inner = inner[:, :, i - i[0], j]
    own = np.matmul(units**2, powers.transpose(1, 2, 0)).transpose(2, 0, 1)
    sums = own[..., i] + own[..., j] + 2.0 * inner
    differences = own[..., i] + own[..., j] - 2.0 * inner
    mixed = own[..., i] - own[..., j]

    # If the sum or the difference is small, its square has cancelled: compute it from its entries.
    # Neither is 0, because vectors that differ at one node differ at all nodes.
    node, pair = np.nonzero(np.abs(inner[0]) > NEARLY_PARALLEL)
    a, b = units[node, i[pair]], units[node, j[pair]]
    w = powers[:, node]
    sums[:, node, pair] = (w * (a + b) ** 2).sum(axis=-1)
    differences[:, node, pair] = (w * (a - b) ** 2).sum(axis=-1)
    mixed[:, node, pair] = (w * ((a + b) * (a - b))).sum(axis=-1)
    plus, minus = 0.5 * np.sqrt(sums[0]), 0.5 * np.sqrt(differences[0])
    forms = [
        _Symmetric(
            sums[k] / sums[0],
            mixed[k] / np.sqrt(sums[0] * differences[0]),
            differences[k] / differences[0],
        )
        for k in (1, 2)
    ]
    return Planes(plus, minus, *forms)


def weights_and_points(
    lattice: Lattice, planes: Planes
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return W dθ/dψ at the angles ψ, and the products of v with both vectors of each pair.

    Returns
    -------
    three ndarrays of shape (nodes, pairs, angles)

    Notes
    -----
    If M is far from a multiple of I, W has a peak in θ.  In the angle ψ with
    e ∝ M^(−½) (cos ψ, sin ψ) the weight has no peak, but the points are sparse where W is small.
    The compromise e ∝ R (cos ψ, sin ψ) with R = M^(−¼) has both effects to the square root only.
    With q = (cos ψ, sin ψ), a = |Rq|² / (qᵀ M^½ q).
    """
    M, P, z, angles = planes.M, planes.P, lattice.z, lattice.angles
    half, det = M.root()
    quarter, det_quarter = half.root()
    R = _Symmetric(*(r / det_quarter for r in (quarter.yy, -quarter.xy, quarter.xx)))
    excess = _Symmetric(
        P.xx - M.xx**2 - M.xy**2, P.xy - M.xy * (M.xx + M.yy), P.yy - M.xy**2 - M.yy**2
    )
    rest = lattice.trace[:, None] - (2.0 - M.xx - M.yy) / (2.0 * z[:, None])
    along = half.along(angles)
    weight = _between(R, excess).along(angles)
    weight *= (2.0 / z)[:, None, None]
    weight /= along
    weight += rest[..., None]
    weight /= along
    weight *= (lattice.weight[:, None] / det_quarter)[..., None]
    # M^(−½) is the adjugate of M^½ over its determinant.
    length = np.sqrt(((half.xx + half.yy)[..., None] - along) / det[..., None])
    x = (planes.plus * R.xx)[..., None] * angles.cos
    x += (planes.plus * R.xy)[..., None] * angles.sin
    y = (planes.minus * R.xy)[..., None] * angles.cos
    y += (planes.minus * R.yy)[..., None] * angles.sin
    x /= length
    y /= length
    return weight, x + y, x - y


def _between(R: _Symmetric, X: _Symmetric) -> _Symmetric:
    """Return R X R."""
    left = R.xx * X.xx + R.xy * X.xy, R.xx * X.xy + R.xy * X.yy
    right = R.xy * X.xx + R.yy * X.xy, R.xy * X.xy + R.yy * X.yy
    return _Symmetric(
        left[0] * R.xx + left[1] * R.xy,
        left[0] * R.xy + left[1] * R.yy,
        right[0] * R.xy + right[1] * R.yy,
    )
