"""Linear algebra of positive semidefinite matrices: rounding, singularity, square root."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnmc.errors import SingularGramError

#: Distance from 1 to the next float64 number.
EPS = float(np.finfo(np.float64).eps)

#: Rounding units by which two quantities may differ, relative to the largest, although they are
#: equal in exact arithmetic: the entries (i, j) and (j, i) of a symmetric matrix, say. Sums of
#: thousands of products differ by that much if their terms are added in another order.
SLACK = 1024


def rounding_unit(array: NDArray[np.floating[Any]]) -> float:
    """Return the distance from 1 to the next number of the array's dtype."""
    return float(np.finfo(array.dtype).eps)


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


def semidefinite_root(matrices: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the symmetric R with ``R R = S`` for positive semidefinite matrices S.

    Parameters
    ----------
    matrices : (..., n, n) ndarray of float64
        S. Negative eigenvalues count as zero.

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
    values, vectors = np.linalg.eigh(matrices)
    scaled = vectors * np.sqrt(np.maximum(values, 0.0))[..., None, :]
    return scaled @ np.matrix_transpose(vectors)
