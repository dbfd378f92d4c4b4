"""The gradient of an observable of Gram matrices."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from bnmc._support.arguments import finite_array
from bnmc.mean_field.float64 import FloatArray

__all__ = ["gradient_at"]

# Step of the central differences, relative to the mean of the diagonal.
_STEP = 1e-5


def gradient_at(
    observable: Callable[[FloatArray], float] | ArrayLike, gram: FloatArray
) -> FloatArray:
    """Return the gradient of an observable at a Gram matrix, a symmetric matrix.

    Parameters
    ----------
    observable : callable or (batch, batch) array_like
        Maps a Gram matrix to a number; or the gradient itself.
    gram : ndarray of shape (batch, batch)
        The Gram matrix.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If the gradient has another shape or is not finite.
    """
    n = len(gram)
    if not callable(observable):
        given = finite_array("observable", observable, shape=(n, n)).astype(np.float64)
        return np.asarray(0.5 * (given + given.T))
    step = _STEP * float(np.trace(gram)) / n
    gradient = np.empty((n, n))
    for i in range(n):
        for j in range(i + 1):
            change = np.zeros((n, n))
            change[i, j] = change[j, i] = step
            ends = [float(observable(gram + sign * change)) for sign in (1.0, -1.0)]
            slope = (ends[0] - ends[1]) / (2.0 * step)
            gradient[i, j] = gradient[j, i] = slope if i == j else 0.5 * slope
    checked = finite_array("gradient of observable", gradient, shape=(n, n))
    return checked.astype(np.float64, copy=False)
