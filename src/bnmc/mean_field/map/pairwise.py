"""The mean-field map for any activation: a two-dimensional integral for each pair of samples.

In the notation of `bnmc.mean_field.map.laplace`, n is the batch size, S the covariance of a row,
ε the damping, z > 0 and D(z) dz the variable of the integral and its weight.  Let
N = (I + 2zS)⁻¹ and c_i = S^½ N^½ e_i with e_i the i-th unit vector, so that C(z)_ij = c_i · c_j.
Let the rows of Q be an orthonormal basis of the plane of c_i and c_j, M = Q N Qᵀ and
P = Q N² Qᵀ.  With e the unit vector of angle θ and v = Qᵀ e,

    E f(φ_i, φ_j) = ∫ D(z) dz ∫ (dθ/2π) W f(√(2zn) c_i·v, √(2zn) c_j·v),
    W = a (tr NS − tr QNSQᵀ + ε) + (2a²/z) (eᵀPe − |Me|²),    a = 1 / (eᵀMe).

Proof.  If f is homogeneous of degree 2k, `laplace` gives its expectation from two normal variables
of covariance C(z): an integral over their angle and over their squared radius, which has an
exponential law.  The radius yields a factor k/z, which stands for a derivative of f with respect to
z; integration by parts moves the derivative to the weight.  Both sides are linear in f, so the
equation holds for sums of functions of all degrees, that is for every f.  W is non-negative, as it
is the density of (φ_i, φ_j) in these coordinates.  The boundary term of the integration is 0 unless
ε = 0 and the rank of S is at most 2; these cases are in `bnmc.mean_field.map.one_parameter`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from bnmc.chain.activations import Activation
from bnmc.mean_field.float64 import FloatArray
from bnmc.mean_field.map.lattice import IntArray, Lattice, lattice_of
from bnmc.mean_field.map.one_parameter import has_one_parameter, one_parameter_nodes
from bnmc.mean_field.map.planes import NEARLY_PARALLEL, planes_of, weights_and_points
from bnmc.mean_field.map.rows import Rows

__all__ = ["pairwise_maps"]

# Two unit vectors count as parallel (or opposite) if they differ by less at all nodes.  The result
# depends on their difference quadratically.
_PARALLEL = 1e-7

# Entries of an array for one block of pairs; about ten such arrays exist at a time.
_BLOCK = 1 << 19


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
    planar = [k for k, one in enumerate(rows) if not has_one_parameter(one)]
    most = 0
    if planar:
        lattice = lattice_of([rows[k] for k in planar], angles, shifts[planar])
        result[planar] = _lattice_means(lattice, activation)
        most = lattice.largest
    for k in set(range(len(rows))) - set(planar):
        points, weight = one_parameter_nodes(rows[k], angles**2, shifts[k, 1])
        values = activation(points)
        result[k] = (values * weight) @ values.T
        most = max(most, weight.size)
    return result, most


def _lattice_means(lattice: Lattice, activation: Activation) -> FloatArray:
    """Return F(G) for each lattice, shape (lattices, batch, batch)."""
    n = lattice.lengths.shape[1]
    parallel, partner = _parallel(lattice.units)
    result = np.empty((lattice.first.size, n, n))
    for i, j in _blocks(n, max(1, _BLOCK // lattice.angles.cos.size)):
        sign = parallel[i, j]
        planes = planes_of(lattice, i, np.where(sign == 0.0, j, partner[i]))
        weight, first, second = weights_and_points(lattice, planes)
        second = np.where(sign[:, None] == 0.0, second, sign[:, None] * first)
        weight *= activation(first * lattice.lengths[:, i, None])
        weight *= activation(second * lattice.lengths[:, j, None])
        values = np.add.reduceat(weight.sum(axis=2), lattice.first, axis=0)
        result[:, i, j] = result[:, j, i] = values
    return result


def _parallel(units: FloatArray) -> tuple[FloatArray, IntArray]:
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
    i, j = np.nonzero(np.triu(correlation > NEARLY_PARALLEL, 1))
    for sign in (1.0, -1.0):
        apart = np.zeros(i.size)
        for unit in units if i.size else ():
            apart = np.maximum(apart, np.linalg.norm(unit[i] - sign * unit[j], axis=1))
        parallel[i, j] += sign * (apart < _PARALLEL)
    return parallel, np.asarray(correlation.argmin(axis=1))


def _blocks(n: int, size: int) -> Iterator[tuple[IntArray, IntArray]]:
    """Yield the pairs i <= j in blocks of consecutive i, of about `size` pairs each."""
    first = 0
    while first < n:
        last = min(n, first + max(1, size // (n - first)))
        i, j = np.triu_indices(last - first, m=n - first)
        yield i + first, j + first
        first = last
