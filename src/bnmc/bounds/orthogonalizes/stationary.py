"""Stationary means of the linear chain with batch normalization, to leading order in 1/d."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from bnmc._support.arguments import Float64Array, broadcast, integers

__all__ = ["stationary_squared_distance", "stationary_squared_gap"]


def stationary_squared_gap(width: ArrayLike, batch: ArrayLike) -> Float64Array:
    """Stationary mean ``(n−1)(n+2)²/(4n(n+1)d)`` of the squared orthogonality gap.

    The formula is of leading order in 1/d: each layer adds a variance of (1 − 1/n)/d, and contracts
    the deviation of the layers before by n/(n+2). The true mean is larger, by 2.6 % at n = 12 and
    d = 300.

    Parameters
    ----------
    width, batch : array_like of int
        d and n >= 1.

    Returns
    -------
    ndarray of float64
        Of the shape to which the arguments broadcast.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If an argument lies outside its range, or the arguments do not broadcast.

    Examples
    --------
    >>> from bnmc.bounds.orthogonalizes import stationary_squared_gap
    >>> print(stationary_squared_gap(width=1000, batch=10).round(6))
    0.002945
    """
    d, n = _width_and_batch(width, batch, smallest_batch=1)
    return _squared_gap(d, n)


def stationary_squared_distance(width: ArrayLike, batch: ArrayLike) -> Float64Array:
    """Mean ``E‖G − G*‖_F² = n²(m−1)(m+2)²/(4m(m+1)d)``, m = n−1, of the *centred* linear chain.

    That chain is ``bnmc.Chain.bn_mlp(width, batch, "linear")``, with ``G* = (n I − 11ᵀ)/(n−1)``.
    Its rows lie in the m dimensions orthogonal to 1. So the mean is n² times
    `stationary_squared_gap` of a batch of m, also to leading order in 1/d.

    Parameters
    ----------
    width : array_like of int
        d >= 1.
    batch : array_like of int
        n >= 2.

    Returns
    -------
    ndarray of float64
        Of the shape to which the arguments broadcast.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If an argument lies outside its range, or the arguments do not broadcast.

    Examples
    --------
    >>> from bnmc.bounds.orthogonalizes import stationary_squared_distance
    >>> print(stationary_squared_distance(width=1000, batch=10).round(6))
    0.268889
    """
    d, n = _width_and_batch(width, batch, smallest_batch=2)
    return np.square(n) * _squared_gap(d, n - 1)


def _width_and_batch(
    width: ArrayLike, batch: ArrayLike, *, smallest_batch: int
) -> tuple[Float64Array, ...]:
    return broadcast(
        width=integers("width", width, accept_floats=True),
        batch=integers("batch", batch, low=smallest_batch, accept_floats=True),
    )


def _squared_gap(width: Float64Array, m: Float64Array) -> Float64Array:
    gap: Float64Array = (m - 1) / (4 * m) * np.square(m + 2) / (m + 1) / width
    return gap
