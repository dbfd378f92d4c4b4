"""Which activations are positively homogeneous: σ(c x) = c σ(x) for c > 0.

Named activations are known.  For a function of the user, one call with x > 0 and one with x < 0
decide, both with a number whose value is left open: c x with a known factor c.  Such a number
supports the operations that commute with a change of scale, and no others.  So if both calls
return, the function is homogeneous, and rounding commutes with powers of two.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import lru_cache
from numbers import Real
from typing import Any

import numpy as np

from bnmc.chain.activations import Activation
from bnmc.chain.chain import Chain

_NAMED = frozenset({"abs", "leaky_relu", "linear", "relu"})

#: Relative difference of two factors below which rounding may decide a comparison.
_TIE = 1e-9


def splits_scale(chain: Chain) -> bool:
    """Return whether the scale of each sample of a chain can be split off.

    That is, if a sample is multiplied by c > 0, then so is its representation in every layer.
    """
    without_norm = chain.normalization.is_identity and chain.covariance.is_identity
    return without_norm and is_homogeneous(chain.activation)


@lru_cache(maxsize=256)
def is_homogeneous(activation: Activation) -> bool:
    """Return whether σ is named and homogeneous, or a function that proves to be homogeneous.

    A homogeneous function that calls anything beyond Python's arithmetic, comparisons, `abs`,
    `max`, `min` and their NumPy forms does not count, because the called code is unknown.

    Examples
    --------
    >>> from bnmc import Activation
    >>> from bnmc.chain.homogeneity import is_homogeneous
    >>> is_homogeneous(Activation(lambda x: max(x, 0.2 * x)))
    True
    >>> is_homogeneous(Activation(lambda x: min(max(x, 0.2 * x), 6.0)))
    False
    """
    if activation.builtin:
        return activation.name in _NAMED
    function = activation.scalar("float64")
    function = getattr(function, "py_func", function)
    try:
        values = [function(_Multiple(factor)) for factor in (1.0, -1.0)]
        at_zero = function(0.0)
    except Exception:  # the user's function gets an argument that it does not expect
        return False
    return bool(at_zero == 0.0) and all(
        isinstance(value, _Multiple) or (isinstance(value, Real) and value == 0) for value in values
    )


class _Undecided(Exception):
    """The result of an operation depends on more than the factor."""


def _comparison(compare: Callable[[Any, Any], bool]) -> Any:
    """Return the method of `_Multiple` that compares factors."""

    def method(number: _Multiple, other: object) -> bool:
        left, right = number.factor, _factor(other)
        if abs(left - right) <= _TIE * (abs(left) + abs(right)):
            raise _Undecided
        return compare(left, right)

    return method


class _Multiple:
    """c x with x > 0 of any size."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __neg__(self) -> _Multiple:
        return _Multiple(-self.factor)

    def __pos__(self) -> _Multiple:
        return self

    def __abs__(self) -> _Multiple:
        return _Multiple(abs(self.factor))

    def __bool__(self) -> bool:
        return self != 0.0

    def __add__(self, other: object) -> _Multiple:
        return _Multiple(self.factor + _factor(other))

    def __sub__(self, other: object) -> _Multiple:
        return _Multiple(self.factor - _factor(other))

    def __rsub__(self, other: object) -> _Multiple:
        return _Multiple(_factor(other) - self.factor)

    def __mul__(self, other: object) -> _Multiple:
        return _Multiple(self.factor * _number(other))

    def __truediv__(self, other: object) -> _Multiple:
        return _Multiple(self.factor / _number(other))

    __radd__, __rmul__ = __add__, __mul__

    __lt__, __le__, __gt__, __ge__, __eq__, __ne__ = map(
        _comparison, (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne)
    )
    __hash__ = None  # type: ignore[assignment]

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        if method != "__call__" or options or ufunc not in _UFUNCS:
            raise _Undecided
        # A scalar of NumPy would call this method again.
        plain = (number if isinstance(number, _Multiple) else _number(number) for number in inputs)
        return _UFUNCS[ufunc](*plain)

    def __array_function__(
        self, function: Any, types: Any, inputs: tuple[Any, ...], options: dict[str, Any]
    ) -> Any:
        if function is not np.where or options or len(inputs) != 3:
            raise _Undecided
        condition, first, second = inputs
        return first if condition else second


def _factor(value: object) -> float:
    """Return c of c x, and 0 of the number 0; other numbers have another size."""
    if isinstance(value, _Multiple):
        return value.factor
    if _number(value) != 0.0:
        raise _Undecided
    return 0.0


def _number(value: object) -> float:
    """Return a finite number that does not depend on x."""
    if not isinstance(value, (Real, np.bool_)) or not np.isfinite(number := float(value)):
        raise _Undecided
    return number


def _sign(value: Any) -> float:
    return 1.0 if value > 0.0 else -1.0


_UFUNCS: dict[np.ufunc, Callable[..., Any]] = {
    np.add: operator.add,
    np.subtract: operator.sub,
    np.multiply: operator.mul,
    np.divide: operator.truediv,
    np.negative: operator.neg,
    np.positive: operator.pos,
    np.absolute: abs,
    np.fabs: abs,
    np.sign: _sign,
    np.maximum: max,
    np.minimum: min,
    np.fmax: max,
    np.fmin: min,
    np.less: operator.lt,
    np.less_equal: operator.le,
    np.greater: operator.gt,
    np.greater_equal: operator.ge,
}
