"""What keeps float64 and float32 honest: exact changes of scale, and estimates of the condition."""

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

#: Gram matrices with an exponent (base 2) up to this are what they are; others get a scale.
_MOST_EXPONENT = 900

#: The state is rescaled once its exponent is larger.
EXPONENT_OF_STATE = 16

#: By how much the exponent of a Gram matrix may change before it is looked at again: products of
#: rows are made in the rows' own dtype.
_LEEWAY = {"float64": 400.0, "float32": 40.0}


def is_homogeneous(chain: Chain) -> bool:
    """Whether a chain of a scaled start is the scaled chain, so that its scale may be split off.

    Without normalization the scale of a deep chain has no bound: it leaves the range of float64.
    """
    sigma = chain.activation
    return chain.normalization.is_identity and sigma.builtin and sigma.name in _HOMOGENEOUS


def layers_of_scale(chain: Chain, dtype: str) -> int:
    """Return after how many layers to look at the scale."""
    growth = 1.0 + 2.0 * abs(np.log2(abs(chain.skip) + abs(chain.gain)))
    return max(1, int(_LEEWAY[dtype] / growth))


def exponents_of(grams: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return, of each matrix (..., n, n), the exponent of its largest diagonal entry; 0 for 0."""
    largest = np.diagonal(grams, axis1=-2, axis2=-1).max(axis=-1)
    return np.where(largest > 0.0, np.frexp(largest)[1], 0).astype(np.int64)


def in_range(
    grams: NDArray[np.float64], log_scale: NDArray[np.float64], exponents: NDArray[np.int64]
) -> None:
    """Bring recorded matrices times 2**exponents into range, in place.

    Parameters
    ----------
    grams : (chains, layers, n, n) ndarray of float64
        Become the matrices themselves where float64 has room for them, else those of entries up
        to 1.
    log_scale : (chains, layers) ndarray of float64
        Receives the logarithm of what they are to be multiplied with.
    exponents : (chains,) ndarray of int64
        What they are in units of.

    Notes
    -----
    What is recorded depends on the product alone, not on how it came.
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
    """Divide the state of chains whose scale is far from 1 by a power of 2, in place.

    Parameters
    ----------
    grams : (chains, n, n) ndarray of float64
        Divided by an even power.
    rows : list of (chains, ...) ndarray
        Divided by its root.
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
        Whether what samples have in common does not matter: of P G P, whose last pivot is 0, the
        others are taken.
    rank : int
        The largest rank there can be: as many pivots are looked at.

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
        # A sample within rounding of the span of the others takes nothing from those after it.
        inverse = np.where(relative > 1e-15, 1.0 / np.where(pivot > 0.0, pivot, 1.0), 0.0)
        below = rest[..., column + 1 :, column]
        rest[..., column + 1 :, column + 1 :] -= (
            below[..., :, None] * below[..., None, :] * inverse[..., None, None]
        )
    nonnegative: NDArray[np.float64] = np.maximum(least, 0.0)
    return nonnegative
