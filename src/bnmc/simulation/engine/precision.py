"""Exact changes of scale, and pivots that tell whether float32 resolves a Gram matrix."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from bnmc._kernels.cpu import factor, memory
from bnmc._kernels.scalar import codes
from bnmc._kernels.scalar.scaling import shift_of

#: Matrices with an exponent (base 2) of at most 900 are recorded unscaled.
_MOST_EXPONENT = 900
#: Beyond all differences of exponents of float64.
_FARTHEST = 5000


def lifted(spec: codes.LayerSpec) -> tuple[codes.LayerSpec, int]:
    """Return a law without normalization divided by a power of 2, and the exponent of that power.

    The exponent is 0 unless the factors of a layer are far from 1.
    """
    lift = shift_of(max(abs(spec.skip), abs(spec.gain)))
    return spec._replace(skip=math.ldexp(spec.skip, -lift), gain=math.ldexp(spec.gain, -lift)), lift


def exponents_of(grams: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the exponent of the largest diagonal entry of each matrix (..., n, n); 0 for 0."""
    largest = np.diagonal(grams, axis1=-2, axis2=-1).max(axis=-1)
    return np.where(largest > 0.0, np.frexp(largest)[1], 0).astype(np.int64)


def in_range(
    grams: NDArray[np.float64], log_scale: NDArray[np.float64], units: NDArray[np.int64]
) -> None:
    """Give recorded matrices the unit 1 as far as float64 allows, in place.

    Parameters
    ----------
    grams : (chains, layers, n, n) ndarray of float64
        Receive the matrices themselves if float64 can hold their largest entry, else matrices with
        entries of at most 1.
    log_scale : (chains, layers) ndarray of float64
        Receives the logarithm of the factor that is missing.
    units : (chains, layers, n) ndarray of int64
        Entry (i, j) of a matrix is in units of 2**(units[i] + units[j]).

    Notes
    -----
    The result depends on the matrices themselves alone, not on their units.  A sample that is
    smaller than the largest one by more than float64 allows becomes zero.
    """
    diagonal = np.diagonal(grams, axis1=-2, axis2=-1)
    sizes = np.where(diagonal > 0.0, np.frexp(diagonal)[1] + 2 * units, -(1 << 62)).max(axis=-1)
    far = (np.abs(sizes) > _MOST_EXPONENT) & (diagonal > 0.0).any(axis=-1)
    common = np.where(far, sizes, 0)
    by = units[..., :, None] + units[..., None, :] - common[..., None, None]
    np.ldexp(grams, np.clip(by, -_FARTHEST, _FARTHEST).astype(np.int32), out=grams)
    log_scale[...] = common * np.log(2.0)


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
    order = min(n - 1 if centred else n, rank)
    matrices = np.ascontiguousarray(rest.reshape(-1, n, n)[:, :order, :order])
    diagonals = np.einsum("kii->ki", matrices).clip(np.finfo(float).tiny)
    least = np.full(len(matrices), np.inf)
    panel, regular = np.zeros(memory.panel_shape(order)), np.zeros(order, np.bool_)
    factor.least_pivots(matrices, diagonals, np.arange(order), panel, regular, least)
    return least.reshape(rest.shape[:-2])
