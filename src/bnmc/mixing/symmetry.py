"""Components of the Gram matrix that permutations of the batch do not mix.

Permutations of the n samples act on symmetric n × n matrices.  The centred, traceless matrices
split into two parts, here called sectors, that every permutation maps to themselves.  At a fixed
point that all permutations leave unchanged, the Jacobian of the mean-field map has one eigenvalue
on each sector.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bnmc.mixing.series import Float64Array

__all__ = ["contrast", "sector", "slowest_sector"]


def sector(S: Float64Array, which: int) -> Float64Array:
    """Project symmetric matrices onto a sector.

    Parameters
    ----------
    S : (..., n, n) ndarray of float64
        Symmetric matrices, n >= 3.
    which : {0, 1}
        With the projector P orthogonal to the vector of ones, sector 0 holds the matrices
        ``P diag(d) P`` of trace 0.  Sector 1 is its orthogonal complement among the centred,
        traceless matrices; it needs n >= 4.

    Returns
    -------
    (..., n, n) ndarray of float64

    Notes
    -----
    The order is that of `bnmc.mean_field.FixedPoint.eigenvalues`.
    """
    n = S.shape[-1]
    P = np.eye(n) - 1.0 / n
    traceless = P @ S @ P
    traceless -= np.trace(traceless, axis1=-2, axis2=-1)[..., None, None] / (n - 1) * P
    # ⟨P diag(d) P, P diag(e) P⟩ = (1 − 2/n) ⟨d, e⟩ if d and e sum to zero.
    d = np.diagonal(traceless, axis1=-2, axis2=-1) / (1.0 - 2.0 / n)
    diagonal: Float64Array = P @ (d[..., None] * P)
    return traceless - diagonal if which else diagonal


def contrast(n: int, which: int) -> Float64Array:
    """Return a matrix D of unit norm in a sector.

    The observable ``⟨D, G⟩`` has stationary mean 0 and decays by one eigenvalue alone.
    """
    seed = np.zeros((n, n))
    seed[0, which] = seed[which, 0] = 1.0
    D = sector(seed, which)
    return D / np.linalg.norm(D)


def slowest_sector(eigenvalues: Sequence[complex]) -> int:
    """Return the sector whose eigenvalue has the largest modulus, that is, decays most slowly."""
    return int(np.argmax(np.abs(eigenvalues)))
