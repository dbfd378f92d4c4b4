"""Lattices of nodes (z, ψ) for the two-dimensional integral of `bnmc.mean_field.map.pairwise`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnmc.mean_field.float64 import FloatArray
from bnmc.mean_field.map.laplace import laplace_nodes
from bnmc.mean_field.map.rows import Rows

__all__ = ["Angles", "IntArray", "Lattice", "lattice_of"]

# Distance of the nodes in z times the number of angles: the errors in both directions are then
# about equal.
_ASPECT = 5.0

# The angles of each node in z are turned against those of the node before by this fraction of their
# distance.  With the golden section the nodes are a lattice without short vectors.
_TURN = 0.5 * (3.0 - 5.0**0.5)

IntArray = NDArray[np.intp]


class Angles(NamedTuple):
    """Cosine and sine of the angles ψ and of 2ψ, each of shape (nodes, 1, angles)."""

    cos: FloatArray
    sin: FloatArray
    cos_double: FloatArray
    sin_double: FloatArray


class Lattice(NamedTuple):
    """Lattices in z and ψ, one after the other along the axis of the nodes in z.

    Notation: S is the covariance of a row, N = (I + 2zS)⁻¹, c_i = S^½ N^½ e_i for sample i, and ε
    the damping; see `bnmc.mean_field.map.pairwise`.

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
    angles : Angles
        The angles ψ of each node in z.
    """

    first: IntArray
    largest: int
    z: FloatArray
    weight: FloatArray
    trace: FloatArray
    shrinkage: FloatArray
    units: FloatArray
    lengths: FloatArray
    angles: Angles


def lattice_of(rows: Sequence[Rows], angles: int, shifts: FloatArray) -> Lattice:
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
        laplace_nodes(one, _ASPECT / angles, float(shift), growth=1.0)
        for one, shift in zip(rows, shifts[:, 0], strict=True)
    ]
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
        vectors[~vectors.any(axis=1), 0] = 1.0  # no variance: any direction
        roots = vectors * np.sqrt(r.values * shrunk)[:, None, :]
        norms = np.linalg.norm(roots, axis=-1)
        shrinkage[at, : r.rank] = shrunk
        units[at, :, : r.rank] = roots / norms[..., None]
        lengths[at] = np.sqrt(2.0 * r.scale * one.z)[:, None] * norms * r.vectors.any(axis=1)
        traces.append(shrunk @ r.norm_values + r.damping)
        turns.append(np.arange(angles) + shifts[k, 1] + _TURN * one.index[:, None])
    angle = (2.0 * np.pi / angles) * np.concatenate(turns)[:, None, :]
    cos, sin = np.cos(angle), np.sin(angle)
    return Lattice(
        first[:-1],
        angles * max(sizes),
        np.concatenate([one.z for one in nodes]),
        np.concatenate([one.weight for one in nodes]) / angles,
        np.concatenate(traces),
        shrinkage,
        units,
        lengths,
        Angles(cos, sin, (cos - sin) * (cos + sin), 2.0 * cos * sin),
    )
