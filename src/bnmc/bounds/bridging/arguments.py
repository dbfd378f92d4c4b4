"""Arguments that the statements of the bridging paper share, and the formulas of ε and R."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike

from bnmc import gram
from bnmc._support.arguments import Float64Array, broadcast, finite_array, real_numbers
from bnmc._support.linalg import EPS, rounding_unit
from bnmc.bounds.bridging.activation_distortion import Distortion
from bnmc.errors import ArgumentError, ArgumentTypeError, SingularGramError

__all__ = [
    "SMALLEST",
    "FixedPointLike",
    "Result",
    "bulk_level",
    "checked",
    "epsilon_arguments",
    "from_star",
    "largest_square",
    "squared_epsilon",
]

Result = np.float64 | Float64Array

#: Inclusive limits of positive arguments. Within them, no formula overflows float64.
SMALLEST, LARGEST = 1e-30, 1e30

#: Inclusive ranges of the arguments that are not simply in [SMALLEST, LARGEST].
_RANGES: dict[str, tuple[float, float]] = {
    "depth": (0, LARGEST),
    "width": (1, LARGEST),
    "batch": (1, LARGEST),
    "rows": (1, LARGEST),
    "t": (0, LARGEST),
    "alpha": (SMALLEST, 1),
    "condition": (1, LARGEST),
    "total_variation": (0, 1),
}


@runtime_checkable
class FixedPointLike(Protocol):
    """The attributes of a `bnmc.mean_field.FixedPoint` that define ``G* = b ((1−c) I + c 11ᵀ)``."""

    batch: int
    b: float
    c: float
    error: float


def checked(**given: ArrayLike) -> list[Float64Array]:
    """Return the arguments as float64 arrays of one shape.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If an argument is not an array of real numbers in its range, or they do not broadcast.
    """
    arrays = {name: real_numbers(name, value) for name, value in given.items()}
    for name, array in arrays.items():
        low, high = _RANGES.get(name, (SMALLEST, LARGEST))
        wrong = (array < low) | (array > high)
        if wrong.any():
            raise ArgumentError(
                name, float(array[wrong][0]), f"real numbers >= {low:g} and <= {high:g}"
            )
    return list(broadcast(**arrays))


def epsilon_arguments(
    width: ArrayLike,
    batch: ArrayLike,
    inverse_norm: ArrayLike | None,
    star: FixedPointLike | ArrayLike | None,
    distortion: ArrayLike | Distortion,
    **others: ArrayLike,
) -> list[Float64Array]:
    """Return d, n, ``‖G*⁻¹‖`` and γ, the arguments of ε, and then the others, all checked."""
    inverse = from_star("inverse_norm", inverse_norm, star, batch, lambda low, _: 1 / low)
    gamma = distortion.upper if isinstance(distortion, Distortion) else distortion
    return checked(width=width, batch=batch, inverse_norm=inverse, distortion=gamma, **others)


def from_star(
    name: str,
    given: ArrayLike | None,
    star: FixedPointLike | ArrayLike | None,
    batch: ArrayLike,
    function: Callable[[float, float], float],
) -> ArrayLike:
    """Return the argument `name` if it is given, else a function of the eigenvalues of `star`.

    Parameters
    ----------
    name : str
        Name of the argument, for the message.
    given : array_like, optional
        The argument. It excludes `star`.
    star : FixedPointLike or (n, n) array_like, optional
        G*.
    batch : array_like
        n, which must be the size of G*.
    function : callable
        Maps the smallest and the largest eigenvalue of G* to the argument.

    Raises
    ------
    ArgumentTypeError
        If both `given` and `star` are there, or neither.
    ArgumentError
        If `star` has another size than `batch`.
    SingularGramError
        If `star` is singular to rounding.
    """
    if given is not None and star is None:
        return given
    if given is not None or star is None:
        raise ArgumentTypeError(name, given, "a real number or an array, or star in its place")
    n, low, high = _extreme_eigenvalues(star)
    if (finite_array("batch", batch, shape=(...,)) != n).any():
        raise ArgumentError("batch", batch, f"{n}, that of star")
    return function(low, high)


def bulk_level(star: FixedPointLike | ArrayLike) -> tuple[int, float]:
    """Return n and ``b (1 − c)``, the mean diagonal entry less the mean of the other entries."""
    n, _, _ = _extreme_eigenvalues(star)
    if isinstance(star, FixedPointLike):
        return n, star.b * (1 - star.c)
    matrix = np.asarray(star, np.float64)
    if n < 2:
        raise ArgumentError("star", matrix.shape, "a matrix of at least 2 rows")
    diagonal = float(np.trace(matrix))
    return n, diagonal / n - (float(matrix.sum()) - diagonal) / (n * (n - 1))


def squared_epsilon(
    d: Float64Array, n: Float64Array, inverse: Float64Array, gamma: Float64Array
) -> Float64Array:
    """Return ``ε² = n² γ² ‖G*⁻¹‖ / d``."""
    return n**2 * gamma**2 * inverse / d


def largest_square(n: Float64Array, inverse: Float64Array, gamma: Float64Array) -> Float64Array:
    """Return ``R = n γ² ‖C⁻¹‖``, the upper bound of ``‖C^{−½}σ‖²``.

    R is at least n, the mean of ``‖C^{−½}σ‖²``. The maximum removes rounding errors below n.
    """
    return np.maximum(n * gamma**2 * inverse, n)


def _extreme_eigenvalues(star: FixedPointLike | ArrayLike) -> tuple[int, float, float]:
    """Return the size, the smallest and the largest eigenvalue of a regular G*."""
    if isinstance(star, FixedPointLike):
        n = star.batch
        low, high = sorted((star.b * (1 - star.c), star.b * (1 + (n - 1) * star.c)))
        rounding = max(star.error, EPS)
    else:
        array = finite_array("star", star, shape=("n", "n"))
        n, rounding = len(array), rounding_unit(array)
        low, high = gram.eigenvalues(gram.validate_gram(array, "star"))[[0, -1]].tolist()
    if low <= n * rounding * high:
        raise SingularGramError("star", (), low / high if high else 0.0)
    return n, low, high
