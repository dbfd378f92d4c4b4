"""Linear algebra of VAMP: whitened time-lagged covariances, their singular values and eigenvalues.

With x the features, ``C(h) = E x_l x_{l+h}ᵀ`` and C their covariance over the same pairs of layers,
σ are the singular values of ``C^{-1/2} C(h) C^{-1/2}`` (Wu and Noé, arXiv 1707.04659).
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from bnmc.mixing.series import Float64Array

#: Directions whose variance is at most this share of the largest variance are left out.
_NULL = 1e-10


def whitened(x: Float64Array) -> Float64Array:
    """Return uncorrelated features of variance 1, without the null directions.

    Parameters
    ----------
    x : (chains, layers, features) ndarray of float64
        Centred features.

    Returns
    -------
    (chains, layers, r) ndarray of float64
        r is the rank of the covariance.
    """
    variances, directions = np.linalg.eigh(np.einsum("clf,clg->fg", x, x) / (x.size / x.shape[2]))
    kept = variances > _NULL * variances[-1]
    return x @ (directions[:, kept] / np.sqrt(variances[kept]))


def lagged_sums(x: Float64Array, lag: int, starts: NDArray[np.intp]) -> Float64Array:
    """Return the sums of each stretch of pairs of layers, from which all matrices are made.

    Parameters
    ----------
    x : (chains, layers, r) ndarray of float64
    lag : int
        In recorded layers.
    starts : (pieces,) ndarray of int
        First layers of the stretches of a chain.

    Returns
    -------
    (chains · pieces, 2, r, r) ndarray of float64
        Sums of ``x_l x_{l+lag}ᵀ``, and of ``x_l x_lᵀ + x_{l+lag} x_{l+lag}ᵀ``.
    """
    chains, layers, rank = x.shape
    now, later = x[:, : layers - lag], x[:, lag:]
    sums = np.empty((chains, len(starts), 2, rank, rank))
    for piece, (start, stop) in enumerate(pairwise([*starts, layers - lag])):
        a, b = now[:, start:stop], later[:, start:stop]
        sums[:, piece, 0] = a.swapaxes(1, 2) @ b
        sums[:, piece, 1] = a.swapaxes(1, 2) @ a + b.swapaxes(1, 2) @ b
    return sums.reshape(-1, 2, rank, rank)


def all_and_all_but_one(sums: Float64Array) -> Float64Array:
    """Return the total over stretches, then the totals with each stretch left out."""
    total = sums.sum(axis=0)
    return np.concatenate([total[None], total - sums])


def _koopman(sums: Float64Array) -> tuple[Float64Array, Float64Array]:
    """Return ``L⁻¹ C(h) L⁻ᵀ`` and L, with ``L Lᵀ = C``.

    Raises
    ------
    numpy.linalg.LinAlgError
        If C is singular.
    """
    L = np.linalg.cholesky(sums[..., 1, :, :] / 2)
    half = np.linalg.solve(L, sums[..., 0, :, :])
    matrix: Float64Array = np.linalg.solve(L, half.swapaxes(-2, -1)).swapaxes(-2, -1)
    return matrix, L.astype(np.float64, copy=False)


def singular_values(sums: Float64Array) -> Float64Array:
    """Return the singular values σ of sums (..., 2, r, r), descending, (..., r)."""
    values = np.linalg.svd(_koopman(sums)[0], compute_uv=False)
    return values.astype(np.float64, copy=False)


def eigenvalues(sums: Float64Array) -> NDArray[np.complex128]:
    """Return the eigenvalues of sums (2, r, r), by descending modulus."""
    values = np.linalg.eigvals(_koopman(sums)[0]).astype(np.complex128)
    return values[np.argsort(-np.abs(values), kind="stable")]


def held_out_correlations(sums: Float64Array, learnt: int) -> Float64Array:
    """Return the leading correlation, with directions learnt from other stretches.

    Parameters
    ----------
    sums : (stretches, 2, r, r) ndarray of float64
    learnt : int
        Number of stretches from which the leading singular vectors are computed; 0 for r = 1.

    Returns
    -------
    (1 + stretches − learnt,) ndarray of float64
        Of all other stretches, then with each of them left out.
    """
    if learnt:
        matrix, L = _koopman(sums[:learnt].sum(axis=0))
        left, _, right = np.linalg.svd(matrix)
        u, v = np.linalg.solve(L.T, np.stack([left[:, 0], right[0]], axis=1)).T
    else:
        u = v = np.ones(1)
    held = sums[learnt:]
    parts = [u @ held[:, 0] @ v, u @ held[:, 1] @ u / 2, v @ held[:, 1] @ v / 2]
    products, before, after = (all_and_all_but_one(part) for part in parts)
    return products / np.sqrt(before * after)
