"""Components of the Gram matrix that permutations of the batch do not mix.

Permutations of the n samples act on symmetric n × n matrices.  The centred, traceless matrices
split into two parts, here called sectors, that every permutation maps to themselves.  At a fixed
point that all permutations leave unchanged, the Jacobian of the mean-field map has one eigenvalue
on each sector.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bnmc.chain.convolution import Convolution
from bnmc.mean_field.fixed_point.results import FixedPoint
from bnmc.mixing.series import Float64Array


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


def slowest_component(point: FixedPoint, convolution: Convolution | None) -> Float64Array:
    """Return the matrix D of unit norm that decays at the rate of a fixed point of norm "batch".

    For a convolution D has one spatial frequency k: a contrast, times cos(2πk·r), is averaged over
    shifts by r of all images.

    Parameters
    ----------
    point : FixedPoint
        With at least one eigenvalue.
    convolution : Convolution or None
        That of the chain.
    """
    n = point.batch
    if convolution is None:
        return contrast(n, slowest_sector(point.eigenvalues))
    mode = max(point.modes, key=lambda one: one.rate)
    value = max(mode.eigenvalues, key=abs)
    which = int(np.argmin([abs(value - mode.factor * one) for one in point.eigenvalues]))
    shape = convolution.shape
    places = np.arange(n).reshape(-1, *shape)
    largest = np.zeros((n, n))
    for column in range(1 + which, n):
        seed = np.zeros((n, n))
        seed[0, column] = seed[column, 0] = 1.0
        D = np.zeros((n, n))
        for shift in np.ndindex(*shape):
            moved = np.roll(places, shift, axis=(1, 2)).ravel()
            turns = sum(
                k * r / size for k, r, size in zip(mode.frequency, shift, shape, strict=True)
            )
            D += np.cos(2.0 * np.pi * turns) * seed[np.ix_(moved, moved)]
        D = sector(D, which)
        if np.linalg.norm(D) > np.linalg.norm(largest):
            largest = D
    return largest / np.linalg.norm(largest)


def slowest_sector(eigenvalues: Sequence[complex]) -> int:
    """Return the sector whose eigenvalue has the largest modulus, that is, decays most slowly."""
    return int(np.argmax(np.abs(eigenvalues)))
