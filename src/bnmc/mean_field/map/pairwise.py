"""The mean-field map of any activation, pair by pair of samples, in two dimensions.

In the notation of `laplace`, let ``N = (I + 2zS)⁻¹`` and ``c_i = S^½ N^½ e_i``, so
that ``C_ij = c_i · c_j``.  Let the rows of Q be an orthonormal basis of the plane of c_i and c_j,
``M = Q N Qᵀ`` and ``P = Q N² Qᵀ``.  With ``v = Qᵀ e``, e the unit vector of angle θ in the plane,

    E f(φ_i, φ_j) = ∫ D(z) dz ∫ (dθ/2π) W f(√(2zn) c_i·v, √(2zn) c_j·v),
    W = a (tr NS − tr QNSQᵀ + ε) + (2a²/z) (eᵀPe − |Me|²),    a = 1 / (eᵀMe).

For, where f is homogeneous of degree 2k, `laplace` gives the expectation of f over
two Gaussian variables of covariance C(z): over their angle, and over their squared radius, which
has an exponential law.  The latter yields a factor ``k/z``, which stands for a derivative of f with
respect to z; integration by parts takes it to the weight.  As both sides are linear in f, what
holds for all degrees holds for every f.  W is non-negative, for in these coordinates it is the
density of ``(φ_i, φ_j)``.  The boundary term is 0 unless ε is 0 and φ lies on a circle (rank 2),
where it is all there is, or is one of two points (rank 1).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnmc.chain.activations import Activation
from bnmc.mean_field.map.laplace import EPSILON, FloatArray, Nodes, Rows, laplace_nodes

__all__ = ["pairwise_maps"]

# Distance of the nodes in z times the number of angles: both directions then err about equally.
_ASPECT = 5.0

# Each node's angles are turned against those of the one before by this share of their distance,
# so that the nodes are a lattice without short vectors: the golden section.
_TURN = 0.5 * (3.0 - 5.0**0.5)

# Samples with a larger |correlation| are subtracted before they are multiplied.
_NEAR = 1.0 - 1e-3

# Unit vectors this close, or this nearly opposite, at all nodes count as parallel: what they differ
# by enters the result through its square.
_PARALLEL = 1e-7

# Beyond this many standard deviations a normal variable has lost its weight, 1e-20.
_REACH = 9.5

# Numbers of an array of one block of pairs: some ten such arrays exist at a time.
_BLOCK = 1 << 19

IntArray = NDArray[np.intp]


def pairwise_maps(
    rows: Sequence[Rows], activation: Activation, angles: int, shifts: FloatArray
) -> tuple[FloatArray, int]:
    """``F(G)`` for several G, each on a lattice of its own.

    Parameters
    ----------
    rows : sequence of Rows
        What each G makes of a batch.
    activation : Activation
    angles : int
        Angles at each node in z: odd, so that for a σ that is odd or even, to which opposite
        points are one, the angles count twice.
    shifts : (len(rows), 2) ndarray
        In [0, 1): where each lattice starts.  Its mean over all shifts is ``F(G)``, but for
        rounding.

    Returns
    -------
    ndarray of shape (len(rows), batch, batch)
        One a lattice.
    int
        The nodes of the largest lattice.
    """
    n = len(rows[0].vectors)
    result = np.empty((len(rows), n, n))
    planes = [k for k, r in enumerate(rows) if r.rank > 2 or (r.rank == 2 and r.damping > 0.0)]
    most = 0
    if planes:
        nodes = [
            laplace_nodes(rows[k], _ASPECT / angles, float(shifts[k, 0]), growth=1.0)
            for k in planes
        ]
        lattice = _lattice([rows[k] for k in planes], nodes, angles, shifts[planes, 1])
        result[planes] = _planes(lattice, activation)
        most = angles * max(one.z.size for one in nodes)
    for k in set(range(len(rows))) - set(planes):
        points, weight = _points(rows[k], angles**2, shifts[k, 1])
        values = activation(points)
        result[k] = (values * weight) @ values.T
        most = max(most, weight.size)
    return result, most


def _points(rows: Rows, count: int, shift: float) -> tuple[FloatArray, FloatArray]:
    """Points φ (batch, points) and their weights, where φ has a single parameter, or none."""
    radius = np.sqrt(rows.scale)
    if rows.rank == 0:
        return np.zeros((len(rows.vectors), 1)), np.ones(1)
    if rows.rank == 1 and rows.damping == 0.0:
        return radius * np.concatenate([rows.vectors, -rows.vectors], axis=1), np.full(2, 0.5)
    position = (np.arange(count) + shift) / count
    if rows.rank == 1:
        # φ is a function of one normal variable g, under normalization g/√(g² + ε): with
        # g = √ε sinh x that is tanh x.
        end = np.arcsinh(_REACH / np.sqrt(rows.damping)) if rows.norm_values.any() else _REACH
        x = end * (2.0 * position - 1.0)
        if rows.norm_values.any():
            factor, g = radius * np.tanh(x), np.sqrt(rows.damping) * np.sinh(x)
            speed = np.sqrt(rows.damping) * np.cosh(x)
        else:
            factor, g, speed = np.sqrt(rows.values) * x, x, np.ones_like(x)
        weight = np.exp(-0.5 * g * g) * speed * (2.0 * end / count / np.sqrt(2.0 * np.pi))
        return rows.vectors * factor, weight
    # φ lies on a circle; its angle has a density ∝ 1 / (vᵀ S⁻¹ v).  As in `_weights_and_points`,
    # with M = S⁻¹ and all of the weight at z = ∞.
    wave = np.stack([np.cos(2.0 * np.pi * position), np.sin(2.0 * np.pi * position)])
    root = rows.values[:, None] ** 0.25
    weight = 1.0 / (count * root.prod() * np.sum((wave / root) ** 2, axis=0))
    direction = root * wave
    direction /= np.linalg.norm(direction, axis=0)
    return radius * (rows.vectors @ direction), weight


class _Angles(NamedTuple):
    """Cosine and sine of angles and of their doubles, (nodes, 1, angles)."""

    cos: FloatArray
    sin: FloatArray
    cos_double: FloatArray
    sin_double: FloatArray


class _Lattice(NamedTuple):
    """Lattices in z and ψ, one after the other along the axis of nodes (in z).

    Attributes
    ----------
    first : (lattices,) ndarray of intp
        The first node of each.
    z, weight, trace : (nodes,) ndarray
        ``weight`` is ``D(z) dz dψ/2π``, ``trace`` is ``tr NS + ε``.
    shrinkage : (nodes, rank) ndarray
        Eigenvalues of N, and ones up to the largest rank.
    units : (nodes, batch, rank) ndarray
        ``c_i / |c_i|`` in the eigenvectors of S.
    lengths : (nodes, batch) ndarray
        ``√(2zn) |c_i|``.
    angles : _Angles
    """

    first: IntArray
    z: FloatArray
    weight: FloatArray
    trace: FloatArray
    shrinkage: FloatArray
    units: FloatArray
    lengths: FloatArray
    angles: _Angles


def _lattice(
    rows: Sequence[Rows], nodes: Sequence[Nodes], angles: int, shifts: FloatArray
) -> _Lattice:
    sizes = [one.z.size for one in nodes]
    rank = max(r.rank for r in rows)
    shrinkage = np.ones((sum(sizes), rank))
    units = np.zeros((sum(sizes), len(rows[0].vectors), rank))
    lengths = np.empty(units.shape[:2])
    traces, turns = [], []
    first = np.concatenate([[0], np.cumsum(sizes)])
    for k, (r, one) in enumerate(zip(rows, nodes, strict=True)):
        at = slice(first[k], first[k + 1])
        shrunk = r.shrinkage(one.z)
        vectors = r.vectors.copy()
        vectors[~vectors.any(axis=1), 0] = 1.0  # without variance, any direction will do
        roots = vectors * np.sqrt(r.values * shrunk)[:, None, :]
        norms = np.linalg.norm(roots, axis=-1)
        shrinkage[at, : r.rank] = shrunk
        units[at, :, : r.rank] = roots / norms[..., None]
        lengths[at] = np.sqrt(2.0 * r.scale * one.z)[:, None] * norms * r.vectors.any(axis=1)
        traces.append(shrunk @ r.norm_values + r.damping)
        turns.append(np.arange(angles) + shifts[k] + _TURN * one.index[:, None])
    angle = (2.0 * np.pi / angles) * np.concatenate(turns)[:, None, :]
    cos, sin = np.cos(angle), np.sin(angle)
    return _Lattice(
        first[:-1],
        np.concatenate([one.z for one in nodes]),
        np.concatenate([one.weight for one in nodes]) / angles,
        np.concatenate(traces),
        shrinkage,
        units,
        lengths,
        _Angles(cos, sin, (cos - sin) * (cos + sin), 2.0 * cos * sin),
    )


def _planes(lattice: _Lattice, activation: Activation) -> FloatArray:
    """``F(G)`` where the law of a pair has a density in its plane, one a lattice."""
    n = lattice.lengths.shape[1]
    parallel, partner = _parallel(lattice.units)
    result = np.empty((lattice.first.size, n, n))
    for i, j in _blocks(n, max(1, _BLOCK // lattice.angles.cos.size)):
        sign = parallel[i, j]
        bases = _bases(lattice, i, np.where(sign == 0.0, j, partner[i]))
        weight, first, second = _weights_and_points(lattice, bases)
        second = np.where(sign[:, None] == 0.0, second, sign[:, None] * first)
        weight *= activation(first * lattice.lengths[:, i, None])
        weight *= activation(second * lattice.lengths[:, j, None])
        values = np.add.reduceat(weight.sum(axis=2), lattice.first, axis=0)
        result[:, i, j] = result[:, j, i] = values
    return result


def _parallel(units: FloatArray) -> tuple[FloatArray, IntArray]:
    """Which samples are parallel (1) or opposite (−1), as each is to itself, and which least so.

    Together with the latter, its partner, a sample spans a plane in which those parallel to it
    lie as well.
    """
    correlation = np.abs(units[0] @ units[0].T)
    parallel = np.eye(len(correlation))
    i, j = np.nonzero(np.triu(correlation > _NEAR, 1))
    for sign in (1.0, -1.0):
        apart = np.zeros(i.size)
        for unit in units if i.size else ():
            apart = np.maximum(apart, np.linalg.norm(unit[i] - sign * unit[j], axis=1))
        parallel[i, j] += sign * (apart < _PARALLEL)
    return parallel, np.asarray(correlation.argmin(axis=1))


def _blocks(n: int, size: int) -> Iterator[tuple[IntArray, IntArray]]:
    """Pairs ``i <= j``, in blocks of consecutive i of about `size` pairs."""
    first = 0
    while first < n:
        last = min(n, first + max(1, size // (n - first)))
        i, j = np.triu_indices(last - first, m=n - first)
        yield i + first, j + first
        first = last


class _Symmetric(NamedTuple):
    """Symmetric 2 × 2 matrices."""

    xx: FloatArray
    xy: FloatArray
    yy: FloatArray

    def along(self, angles: _Angles) -> FloatArray:
        """``eᵀ A e`` for unit vectors e, along a new last axis of angles."""
        mean, half = 0.5 * (self.xx + self.yy), 0.5 * (self.xx - self.yy)
        form = half[..., None] * angles.cos_double
        form += self.xy[..., None] * angles.sin_double
        form += mean[..., None]
        return form

    def root(self) -> tuple[_Symmetric, FloatArray]:
        """The positive root of a positive definite matrix, and its determinant."""
        product = self.xx * self.yy
        det = np.sqrt(np.maximum(product - self.xy**2, EPSILON * product))
        norm = np.sqrt(self.xx + self.yy + 2.0 * det)
        return _Symmetric((self.xx + det) / norm, self.xy / norm, (self.yy + det) / norm), det


class _Bases(NamedTuple):
    """Planes of pairs of unit vectors, in the basis of their sum and difference.

    Arrays are (nodes, pairs): the vectors are ``plus · x ± minus · y``, and M and P the matrices
    of the module's docstring.
    """

    plus: FloatArray
    minus: FloatArray
    M: _Symmetric
    P: _Symmetric


def _bases(lattice: _Lattice, i: IntArray, j: IntArray) -> _Bases:
    units, shrinkage = lattice.units, lattice.shrinkage
    powers = np.stack([np.ones_like(shrinkage), shrinkage, shrinkage**2])
    block = units[:, i[0] : i[-1] + 1]
    inner = np.stack([(block * w[:, None]) @ units.swapaxes(1, 2) for w in powers])
    inner = inner[:, :, i - i[0], j]
    own = np.matmul(units**2, powers.transpose(1, 2, 0)).transpose(2, 0, 1)
    sums = own[..., i] + own[..., j] + 2.0 * inner
    differences = own[..., i] + own[..., j] - 2.0 * inner
    mixed = own[..., i] - own[..., j]

    # Where one of the two is small its square has cancelled.  None is 0: vectors that are not
    # parallel at every node differ at all nodes, by n ε of that at least.
    node, pair = np.nonzero(np.abs(inner[0]) > _NEAR)
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
    return _Bases(plus, minus, *forms)


def _weights_and_points(
    lattice: _Lattice, bases: _Bases
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """W dθ / dψ at angles ψ, and there the products of v with both vectors of each pair.

    (nodes, pairs, angles) each.  Where M is far from a multiple of I, W has a peak in θ; in the
    angle ψ with ``e ∝ M^(−1/2) (cos ψ, sin ψ)`` it would have none, but there the points hurry
    past where W is small.  Half way, with ``e ∝ R (cos ψ, sin ψ)``, ``R = M^(−1/4)``, both do so
    by the root of the rate only; and ``a = |Rε|² / (εᵀ M^½ ε)`` for ``ε = (cos ψ, sin ψ)``.
    """
    M, P, z, angles = bases.M, bases.P, lattice.z, lattice.angles
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
    # M^(−1/2) is the adjugate of M^½ over its determinant.
    length = np.sqrt(((half.xx + half.yy)[..., None] - along) / det[..., None])
    x = (bases.plus * R.xx)[..., None] * angles.cos
    x += (bases.plus * R.xy)[..., None] * angles.sin
    y = (bases.minus * R.xy)[..., None] * angles.cos
    y += (bases.minus * R.yy)[..., None] * angles.sin
    x /= length
    y /= length
    return weight, x + y, x - y


def _between(R: _Symmetric, X: _Symmetric) -> _Symmetric:
    """``R X R``."""
    left = R.xx * X.xx + R.xy * X.xy, R.xx * X.xy + R.xy * X.yy
    right = R.xy * X.xx + R.yy * X.xy, R.xy * X.xy + R.yy * X.yy
    return _Symmetric(
        left[0] * R.xx + left[1] * R.xy,
        left[0] * R.xy + left[1] * R.yy,
        right[0] * R.xy + right[1] * R.yy,
    )
