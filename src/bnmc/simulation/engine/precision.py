"""Exact changes of scale, and pivots that tell whether float32 resolves a Gram matrix."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnmc.chain.chain import Chain

__all__ = [
    "EXPONENT_OF_STATE",
    "exponents_of",
    "in_range",
    "is_homogeneous",
    "layers_of_scale",
    "least_pivots",
    "rescale",
]


#: σ(a x) = a σ(x) for a > 0.
_HOMOGENEOUS = frozenset({"abs", "leaky_relu", "linear", "relu"})

#: Matrices with an exponent (base 2) of at most 900 are recorded unscaled.
_MOST_EXPONENT = 900

#: The state is rescaled if its exponent is larger.
EXPONENT_OF_STATE = 16

#: Change of the exponent of a Gram matrix that the dtype of the rows allows between two rescalings:
#: products of rows are made in that dtype.
_LEEWAY = {"float64": 400.0, "float32": 40.0}


def is_homogeneous(chain: Chain) -> bool:
    """Return whether scaling the start scales the chain, so that its scale can be split off.

    Without normalization the scale of a deep chain leaves the range of float64.
    """
    sigma = chain.activation
    return chain.normalization.is_identity and sigma.builtin and sigma.name in _HOMOGENEOUS


def layers_of_scale(chain: Chain, dtype: str) -> int:
    """Return the number of layers between two rescalings."""
    growth = 1.0 + 2.0 * abs(np.log2(abs(chain.skip) + abs(chain.gain)))
    return max(1, int(_LEEWAY[dtype] / growth))


def exponents_of(grams: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the exponent of the largest diagonal entry of each matrix (..., n, n); 0 for 0."""
    largest = np.diagonal(grams, axis1=-2, axis2=-1).max(axis=-1)
    return np.where(largest > 0.0, np.frexp(largest)[1], 0).astype(np.int64)


def in_range(
    grams: NDArray[np.float64], log_scale: NDArray[np.float64], exponents: NDArray[np.int64]
) -> None:
    """Multiply recorded matrices by 2**exponents as far as float64 allows, in place.

    Parameters
    ----------
    grams : (chains, layers, n, n) ndarray of float64
        Receive the matrices themselves if float64 can hold them, else matrices with entries of at
        most 1.
    log_scale : (chains, layers) ndarray of float64
        Receives the logarithm of the factor that is missing.
    exponents : (chains,) ndarray of int64
        The matrices are in units of 2**exponents.

    Notes
    -----
    The result depends on the product alone, not on its two factors.
    """
    own = exponents_of(grams)
    total = own + exponents[:, None]
    far = np.abs(total) > _MOST_EXPONENT
    by = np.where(far, -own, exponents[:, None]).astype(np.int32)
    np.ldexp(grams, by[:, :, None, None], out=grams)
    log_scale[...] = np.where(far, total * np.log(2.0), 0.0)


def rescale(
    grams: NDArray[np.float64], rows: list[NDArray[Any]], exponents: NDArray[np.int64]
) -> None:
    """Divide the states with a scale far from 1 by a power of 2, in place.

    Parameters
    ----------
    grams : (chains, n, n) ndarray of float64
        Divided by an even power.
    rows : list of (chains, ...) ndarray
        Divided by the root of that power.
    exponents : (chains,) ndarray of int64
        Grow by the power.
    """
    own = exponents_of(grams)
    for chain in np.flatnonzero(np.abs(own) > EXPONENT_OF_STATE):
        half = int(own[chain]) // 2
        grams[chain] = np.ldexp(grams[chain], -2 * half)
        for values in rows:
            np.ldexp(values[chain], -half, out=values[chain])
        exponents[chain] += 2 * half


def least_pivots(grams: NDArray[np.float64], centred: bool, rank: int) -> NDArray[np.float64]:
    """Return the least pivot of each Gram matrix, relative to its diagonal.

    Parameters
    ----------
    grams : (..., n, n) ndarray of float64
    centred : bool
        Whether to take the pivots of P G P, P the projector orthogonal to 1, without its last
        pivot, which is 0.
    rank : int
        Largest possible rank; the function takes as many pivots.

    Returns
    -------
    (...) ndarray of float64
        The squared relative distance of the nearest sample from the span of those before it.
    """
    rest = np.ldexp(grams, -exponents_of(grams)[..., None, None].astype(np.int32))
    n = rest.shape[-1]
    if centred:
        rest -= rest.mean(axis=-1, keepdims=True)
        rest -= rest.mean(axis=-2, keepdims=True)
    diagonal = np.maximum(np.diagonal(rest, axis1=-2, axis2=-1).copy(), np.finfo(float).tiny)
    least = np.full(rest.shape[:-2], np.inf)
    for column in range(min(n - 1 if centred else n, rank)):
        pivot = rest[..., column, column]
        relative = pivot / diagonal[..., column]
        least = np.minimum(least, relative)
        # A sample that is in the span of the others to rounding leaves later samples as they are.
        inverse = np.where(relative > 1e-15, 1.0 / np.where(pivot > 0.0, pivot, 1.0), 0.0)
        below = rest[..., column + 1 :, column]
        rest[..., column + 1 :, column + 1 :] -= (
            below[..., :, None] * below[..., None, :] * inverse[..., None, None]
        )
    nonnegative: NDArray[np.float64] = np.maximum(least, 0.0)
    return nonnegative
