"""The mean-field map for any activation: a two-dimensional integral for each pair of samples.

In the notation of `bnmc.mean_field.map.rows`, n is the batch size, S the covariance of a row,
ε the damping, z > 0 and D(z) dz the variable of the integral and its weight.  Let
N = (I + 2zS)⁻¹ and c_i = S^½ N^½ e_i with e_i the i-th unit vector, so that C(z)_ij = c_i · c_j.
Let the rows of Q be an orthonormal basis of the plane of c_i and c_j, M = Q N Qᵀ and
P = Q N² Qᵀ.  With e the unit vector of angle θ and v = Qᵀ e,

    E f(φ_i, φ_j) = ∫ D(z) dz ∫ (dθ/2π) W f(√(2zn) c_i·v, √(2zn) c_j·v),
    W = a (tr NS − tr QNSQᵀ + ε) + (2a²/z) (eᵀPe − |Me|²),    a = 1 / (eᵀMe).

Proof.  If f is homogeneous of degree 2k, the integral over z gives its expectation from two normal
variables of covariance C(z): an integral over their angle and over their squared radius, which has
an exponential law.  The radius yields a factor k/z, which stands for a derivative of f with respect
to z; integration by parts moves the derivative to the weight.  Both sides are linear in f, so the
equation holds for sums of functions of all degrees, that is for every f.  W is non-negative, as it
is the density of (φ_i, φ_j) in these coordinates.  The boundary term of the integration is 0 unless
ε = 0 and the rank of S is at most 2.  If the rank of S is 0 or 1, or 2 without damping, the
normalized row φ is a function of at most one parameter, and F(G) a sum or an integral over it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnmc._support.machine import require_memory
from bnmc.chain.activations import Activation
from bnmc.mean_field.float64 import EPSILON, FloatArray
from bnmc.mean_field.map.rows import Rows, laplace_nodes

# Distance of the nodes in z times the number of angles: the errors in both directions are then
# about equal.
_ASPECT = 5.0

# The angles of each node in z are turned against those of the node before by this fraction of their
# distance.  With the golden section the nodes are a lattice without short vectors.
_TURN = 0.5 * (3.0 - 5.0**0.5)

_IntArray = NDArray[np.intp]


# --- lattices of nodes (z, ψ)


class _Angles(NamedTuple):
    """Cosine and sine of the angles ψ and of 2ψ, each of shape (nodes, 1, angles)."""

    cos: FloatArray
    sin: FloatArray
    cos_double: FloatArray
    sin_double: FloatArray


class _Lattice(NamedTuple):
    """Lattices in z and ψ, one after the other along the axis of the nodes in z.

    Notation: S is the covariance of a row, N = (I + 2zS)⁻¹, c_i = S^½ N^½ e_i for sample i, and ε
    the damping; see the head of the module.

    Attributes
    ----------
    first : ndarray of intp, shape (lattices,)
        Index of the first node of each lattice.
    largest : int
        Nodes in z and ψ of the largest lattice.
    z : ndarray of shape (nodes,)
        The nodes in z.
    weight : ndarray of shape (nodes,)
        D(z) dz dψ/2π.
    trace : ndarray of shape (nodes,)
        tr NS + ε.
    shrinkage : ndarray of shape (nodes, rank)
        Eigenvalues of N, padded with ones to the largest rank.
    units : ndarray of shape (nodes, batch, rank)
        c_i / |c_i| in the eigenvectors of S.
    lengths : ndarray of shape (nodes, batch)
        √(2zn) |c_i|.
    angles : _Angles
        The angles ψ of each node in z.
    """

    first: _IntArray
    largest: int
    z: FloatArray
    weight: FloatArray
    trace: FloatArray
    shrinkage: FloatArray
    units: FloatArray
    lengths: FloatArray
    angles: _Angles


def _lattice_of(rows: Sequence[Rows], angles: int, shifts: FloatArray) -> _Lattice:
    """Return one lattice for each law of rows.

    Parameters
    ----------
    rows : sequence of Rows
        The laws.
    angles : int
        Angles ψ per node in z.
    shifts : ndarray of shape (len(rows), 2)
        Positions of the first node in z and of the first angle, in units of their distances, in
        [0, 1).
    """
    nodes = [
        laplace_nodes(law, _ASPECT / angles, float(shift), growth=1.0)
        for law, shift in zip(rows, shifts[:, 0], strict=True)
    ]
    sizes = [line.z.size for line in nodes]
    rank = max(r.rank for r in rows)
    n, of_pair = len(rows[0].vectors), sum(sizes) * angles
    # The lattice, and blocks of pairs of samples at its nodes.
    blocks = _BLOCK_ARRAYS * max(of_pair, min(_BLOCK, of_pair * n * (n + 1) // 2))
    size = 8 * (2 * sum(sizes) * n * rank + blocks)
    require_memory("G", size, "take a smaller batch, or fewer nodes with max_nodes=")
    shrinkage = np.ones((sum(sizes), rank))
    units = np.zeros((sum(sizes), n, rank))
    lengths = np.empty(units.shape[:2])
    traces, turns = [], []
    first = np.concatenate([[0], np.cumsum(sizes)])
    for k, (r, line) in enumerate(zip(rows, nodes, strict=True)):
        at = slice(first[k], first[k + 1])
        shrunk = r.shrinkage(line.z)
        vectors = r.vectors.copy()
        vectors[~vectors.any(axis=1), 0] = 1.0  # no variance: any direction
        roots = vectors * np.sqrt(r.values * shrunk)[:, None, :]
        norms = np.linalg.norm(roots, axis=-1)
        shrinkage[at, : r.rank] = shrunk
        units[at, :, : r.rank] = roots / norms[..., None]
        lengths[at] = np.sqrt(2.0 * r.scale * line.z)[:, None] * norms * r.vectors.any(axis=1)
        traces.append(shrunk @ r.norm_values + r.damping)
        turns.append(np.arange(angles) + shifts[k, 1] + _TURN * line.index[:, None])
    angle = (2.0 * np.pi / angles) * np.concatenate(turns)[:, None, :]
    cos, sin = np.cos(angle), np.sin(angle)
    return _Lattice(
        first[:-1],
        angles * max(sizes),
        np.concatenate([line.z for line in nodes]),
        np.concatenate([line.weight for line in nodes]) / angles,
        np.concatenate(traces),
        shrinkage,
        units,
        lengths,
        _Angles(cos, sin, (cos - sin) * (cos + sin), 2.0 * cos * sin),
    )


# --- the law of a pair of samples in its plane: weights and points at the angles of a lattice

# If the modulus of the correlation of two samples is larger, squares of their sum and difference
# are computed from the sum and difference, not from the correlation, which would cancel.
_NEARLY_PARALLEL = 1.0 - 1e-3


class _Symmetric(NamedTuple):
    """Symmetric 2 × 2 matrices, by their entries: arrays of one shape."""

    xx: FloatArray
    xy: FloatArray
    yy: FloatArray

    def along(self, angles: _Angles) -> FloatArray:
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


class _Planes(NamedTuple):
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


def _planes_of(lattice: _Lattice, i: _IntArray, j: _IntArray) -> _Planes:
    """Return the planes of the pairs (i, j) of samples, at all nodes of the lattices.

    i must be nondecreasing without gaps.
    """
    units, shrinkage = lattice.units, lattice.shrinkage
    powers = np.stack([np.ones_like(shrinkage), shrinkage, shrinkage**2])
    block = units[:, i[0] : i[-1] + 1]
    inner = np.stack([(block * w[:, None]) @ units.swapaxes(1, 2) for w in powers])
    inner = inner[:, :, i - i[0], j]
    squares = np.matmul(units**2, powers.transpose(1, 2, 0)).transpose(2, 0, 1)
    sums = squares[..., i] + squares[..., j] + 2.0 * inner
    differences = squares[..., i] + squares[..., j] - 2.0 * inner
    mixed = squares[..., i] - squares[..., j]

    # If the sum or the difference is small, its square has cancelled: compute it from its entries.
    # Neither is 0, because vectors that differ at one node differ at all nodes.
    node, pair = np.nonzero(np.abs(inner[0]) > _NEARLY_PARALLEL)
    a, b = units[node, i[pair]], units[node, j[pair]]
    w = powers[:, node]
    sums[:, node, pair] = (w * (a + b) ** 2).sum(axis=-1)
    differences[:, node, pair] = (w * (a - b) ** 2).sum(axis=-1)
    mixed[:, node, pair] = (w * ((a + b) * (a - b))).sum(axis=-1)
    plus, minus = 0.5 * np.sqrt(sums[0]), 0.5 * np.sqrt(differences[0])
    mixed = mixed[1:] / np.sqrt(sums[0] * differences[0])
    forms = map(_Symmetric, sums[1:] / sums[0], mixed, differences[1:] / differences[0])
    return _Planes(plus, minus, *forms)


def _weights_and_points(
    lattice: _Lattice, planes: _Planes
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


# --- rows that depend on one random parameter, or on none

# A standard normal variable is cut off at this; the weight beyond is about 1e-20.
_REACH = 9.5


def _one_parameter_nodes(rows: Rows, count: int, shift: float) -> tuple[FloatArray, FloatArray]:
    """Return nodes φ, shape (batch, nodes), and their weights, shape (nodes,).

    Parameters
    ----------
    rows : Rows
        The law of the rows, with at most one parameter.
    count : int
        Nodes; one or two if there is no parameter.
    shift : float
        Position of the first node, in [0, 1), in units of the distance of the nodes.
    """
    radius = np.sqrt(rows.scale)
    if rows.rank == 0:
        return np.zeros((len(rows.vectors), 1)), np.ones(1)
    if rows.rank == 1 and rows.damping == 0.0:
        return radius * np.concatenate([rows.vectors, -rows.vectors], axis=1), np.full(2, 0.5)
    position = (np.arange(count) + shift) / count
    return _on_a_line(rows, position) if rows.rank == 1 else _on_a_circle(rows, position)


def _on_a_line(rows: Rows, position: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the rule for rank 1: φ = √n v g/√(g² + ε).

    Here v is the eigenvector and g a standard normal variable.  With g = √ε sinh x, g/√(g² + ε) is
    tanh x.
    """
    scale = np.sqrt(rows.damping)
    end = np.arcsinh(_REACH / scale)
    x = end * (2.0 * position - 1.0)
    factor, g = np.sqrt(rows.scale) * np.tanh(x), scale * np.sinh(x)
    speed = scale * np.cosh(x)
    weight = np.exp(-0.5 * g * g) * speed * (2.0 * end / position.size / np.sqrt(2.0 * np.pi))
    return rows.vectors * factor, weight


def _on_a_circle(rows: Rows, position: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the rule for rank 2 without damping: φ = √n v with v a unit vector.

    The angle of v has a density proportional to 1/(vᵀ S⁻¹ v), by the formula of `pairwise`
    with all weight at z = ∞, where M = S⁻¹ up to a factor.  The nodes are equally spaced in the
    angle ψ with v ∝ S^¼ (cos ψ, sin ψ), as in `bnmc.mean_field.map.pairwise`.
    """
    wave = np.stack([np.cos(2.0 * np.pi * position), np.sin(2.0 * np.pi * position)])
    root = rows.values[:, None] ** 0.25
    weight = 1.0 / (position.size * root.prod() * np.sum((wave / root) ** 2, axis=0))
    direction = root * wave
    direction /= np.linalg.norm(direction, axis=0)
    return np.sqrt(rows.scale) * (rows.vectors @ direction), weight


# --- the map

# Two unit vectors count as parallel (or opposite) if they differ by less at all nodes.  The result
# depends on their difference quadratically.
_PARALLEL = 1e-7

# Entries of an array for one block of pairs, and how many such arrays exist at a time.
_BLOCK, _BLOCK_ARRAYS = 1 << 19, 12


def pairwise_maps(
    rows: Sequence[Rows], activation: Activation, angles: int, shifts: FloatArray
) -> tuple[FloatArray, int]:
    """Return F(G) for several G, each from its own lattice of nodes.

    Parameters
    ----------
    rows : sequence of Rows
        The law of the rows that each G determines.
    activation : Activation
        The activation σ.
    angles : int
        Angles per node in z, odd: for an odd or even σ opposite points give the same value, so an
        odd number of angles counts twice.
    shifts : ndarray of shape (len(rows), 2)
        Positions of the first node of each lattice, in [0, 1).  If the shift is uniform, the
        expectation of the result is F(G), up to rounding.

    Returns
    -------
    ndarray of shape (len(rows), batch, batch)
        F(G) for each G.
    int
        Nodes of the largest lattice.
    """
    n = len(rows[0].vectors)
    result = np.empty((len(rows), n, n))
    # With less variance, the normalized row is a function of at most one parameter.
    planar = [k for k, law in enumerate(rows) if law.rank > (2 if law.damping == 0.0 else 1)]
    most = 0
    if planar:
        lattice = _lattice_of([rows[k] for k in planar], angles, shifts[planar])
        result[planar] = _lattice_means(lattice, activation)
        most = lattice.largest
    for k in set(range(len(rows))) - set(planar):
        points, weight = _one_parameter_nodes(rows[k], angles**2, shifts[k, 1])
        values = activation(points)
        result[k] = (values * weight) @ values.T
        most = max(most, weight.size)
    return result, most


def _lattice_means(lattice: _Lattice, activation: Activation) -> FloatArray:
    """Return F(G) for each lattice, shape (lattices, batch, batch)."""
    n = lattice.lengths.shape[1]
    parallel, partner = _parallel(lattice.units)
    result = np.empty((lattice.first.size, n, n))
    for i, j in _blocks(n, max(1, _BLOCK // lattice.angles.cos.size)):
        sign = parallel[i, j]
        planes = _planes_of(lattice, i, np.where(sign == 0.0, j, partner[i]))
        weight, first, second = _weights_and_points(lattice, planes)
        second = np.where(sign[:, None] == 0.0, second, sign[:, None] * first)
        weight *= activation(first * lattice.lengths[:, i, None])
        weight *= activation(second * lattice.lengths[:, j, None])
        values = np.add.reduceat(weight.sum(axis=2), lattice.first, axis=0)
        result[:, i, j] = result[:, j, i] = values
    return result


def _parallel(units: FloatArray) -> tuple[FloatArray, _IntArray]:
    """Return which samples are parallel, and for each sample the one that is least so.

    Returns
    -------
    parallel : ndarray of shape (batch, batch)
        1 for parallel samples i ≤ j (each one and itself too), −1 for opposite ones, else 0.
    partner : ndarray of shape (batch,)
        For each sample the one of least |correlation|.  Both span a plane that contains all samples
        parallel to the first.
    """
    correlation = np.abs(units[0] @ units[0].T)
    parallel = np.eye(len(correlation))
    i, j = np.nonzero(np.triu(correlation > _NEARLY_PARALLEL, 1))
    for sign in (1.0, -1.0):
        apart = np.zeros(i.size)
        for unit in units if i.size else ():
            apart = np.maximum(apart, np.linalg.norm(unit[i] - sign * unit[j], axis=1))
        parallel[i, j] += sign * (apart < _PARALLEL)
    return parallel, np.asarray(correlation.argmin(axis=1))


def _blocks(n: int, size: int) -> Iterator[tuple[_IntArray, _IntArray]]:
    """Yield the pairs i <= j in blocks of consecutive i, of about `size` pairs each."""
    first = 0
    while first < n:
        last = min(n, first + max(1, size // (n - first)))
        i, j = np.triu_indices(last - first, m=n - first)
        yield i + first, j + first
        first = last
