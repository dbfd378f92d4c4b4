"""Linear algebra of positive semidefinite matrices: rounding, singularity, square root."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnmc._support.arguments import real_numbers
from bnmc._support.machine import require_memory
from bnmc.errors import ArgumentError, SingularGramError

#: Distance from 1 to the next float64 number.
EPS = float(np.finfo(np.float64).eps)

#: Rounding units by which two quantities may differ, relative to the largest, although they are
#: equal in exact arithmetic: the entries (i, j) and (j, i) of a symmetric matrix, say. Sums of
#: thousands of products differ by that much if their terms are added in another order.
SLACK = 1024


#: Stacks that functions of two stacks of covariances take at their peak.
_STACKS = 7


def rounding_unit(array: NDArray[np.floating[Any]]) -> float:
    """Return the distance from 1 to the next number of the array's dtype."""
    return float(np.finfo(array.dtype).eps)


def binary_scale(values: NDArray[np.float64], axis: int | tuple[int, ...] | None = None) -> Any:
    """Return the power of 4 just below the largest absolute entry; 1 for zeros.

    Dividing by it changes no digit, and squares of the quotients neither overflow nor vanish. Its
    root is a power of 2.

    Parameters
    ----------
    values : ndarray of float64
        Finite numbers.
    axis : int or tuple of int, optional
        The largest entry along these axes. Default: of all entries.

    Returns
    -------
    float or ndarray of float64

    Examples
    --------
    >>> import numpy as np
    >>> from bnmc._support.linalg import binary_scale
    >>> print(binary_scale(np.array([3.0, -20.0])))
    16.0
    """
    largest = np.abs(values).max(axis=axis)
    exponents = np.frexp(np.where(largest > 0.0, largest, 1.0))[1] - 1
    return np.ldexp(1.0, exponents - exponents % 2)


def require_finite(name: str, given: NDArray[np.floating[Any]], *results: ArrayLike) -> None:
    """Raise `ArgumentError` for an argument, with its largest entry, if results overflow."""
    if not all(np.isfinite(result).all() for result in results):
        largest = float(np.abs(given).max())
        raise ArgumentError(name, largest, "entries for which the result does not overflow float64")


def is_singular(spectrum: NDArray[np.float64], rounding: float) -> NDArray[np.bool_]:
    """Tell which matrices are singular or indefinite to rounding, ``λ_min <= n ε λ_max``.

    Parameters
    ----------
    spectrum : (..., n) ndarray of float64
        Eigenvalues, ascending.
    rounding : float
        ε, the rounding unit of the matrices.

    Returns
    -------
    (...) ndarray of bool
    """
    return spectrum[..., 0] <= (spectrum.shape[-1] * rounding * np.abs(spectrum[..., -1]))


def require_regular(name: str, spectrum: NDArray[np.float64], rounding: float) -> None:
    """Raise `SingularGramError` for the first singular matrix of the argument `name`.

    `spectrum` and `rounding` are those of `is_singular`.
    """
    singular = is_singular(spectrum, rounding)
    if singular.any():
        index = tuple(int(i) for i in np.argwhere(singular)[0])
        smallest, largest = spectrum[index][[0, -1]]
        raise SingularGramError(name, index, float(smallest / largest) if largest else 0.0)


def broadcast_covariances(
    S1: NDArray[np.float64], S2: NDArray[np.float64], rows: ArrayLike = 1
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return two stacks of matrices, broadcast, and `rows` as `_checked_rows` returns them.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For the arguments `S2` and `rows`.
    ResultTooLargeError
        If the functions of two stacks would not fit in memory.
    """
    try:
        if S1.shape[-2:] != S2.shape[-2:]:
            raise ValueError
        first, second = np.broadcast_arrays(S1, S2)
    except ValueError:
        size, leading = S1.shape[-2:], S1.shape[:-2]
        allowed = f"matrices of shape {size} with leading axes that broadcast with {leading}"
        raise ArgumentError("S2", S2.shape, allowed) from None
    count = _checked_rows(rows, first.shape[:-2])
    # Eigenvectors, factors and products of the whole stacks.
    require_memory("S1, S2", _STACKS * 8 * first.size, "take smaller stacks")
    return first, second, count


def _checked_rows(rows: ArrayLike, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Return numbers of rows >= 1 as float64, or raise an error if they do not fit to a stack.

    Parameters
    ----------
    rows : array_like
        Real numbers >= 1.
    shape : tuple of int
        Shape of the stack of covariances, with which `rows` must broadcast.
    """
    count = real_numbers("rows", rows, low=1)
    try:
        np.broadcast_shapes(count.shape, shape)
    except ValueError:
        allowed = f"a shape that broadcasts with {shape}, that of the stacks"
        raise ArgumentError("rows", count.shape, allowed) from None
    return count


def semidefinite_root(matrices: NDArray[np.float64], rounding: float = 0.0) -> NDArray[np.float64]:
    """Return the symmetric R with ``R R = S`` for positive semidefinite matrices S.

    Parameters
    ----------
    matrices : (..., n, n) ndarray of float64
        S. Negative eigenvalues count as zero.
    rounding : float, default 0.0
        ε. Eigenvalues of at most n ε times the largest count as zero.

    Returns
    -------
    (..., n, n) ndarray of float64
        If the rows of Z are N(0, I), then those of ``Z R`` are N(0, S).  The signs of eigenvectors,
        which differ between processors, play no part, so ``Z R`` differs by rounding only.

    Examples
    --------
    >>> import numpy as np
    >>> from bnmc._support.linalg import semidefinite_root
    >>> root = semidefinite_root(np.array([[2.0, 1.0], [1.0, 2.0]]))
    >>> (root @ root).round(12)
    array([[2., 1.],
           [1., 2.]])
    """
    values, vectors = semidefinite_spectrum(matrices, rounding)
    return (vectors * np.sqrt(values)[..., None, :]) @ np.matrix_transpose(vectors)


def semidefinite_spectrum(
    matrices: NDArray[np.float64], rounding: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the ascending eigenvalues of S, 0 if they are zero to rounding, and eigenvectors.

    `matrices` and `rounding` are those of `semidefinite_root`.
    """
    values, vectors = np.linalg.eigh(matrices)
    zero = values.shape[-1] * rounding * np.maximum(values[..., -1:], 0.0)
    return np.where(values <= zero, 0.0, values), vectors
