"""Which activations are positively homogeneous: σ(c x) = c σ(x) for c > 0.

Named activations are known.  For a function of the user, one call with x > 0 and one with x < 0
decide, both with a number whose value is left open: c x with a known factor c.  Such a number
supports the operations that commute with a change of scale, and no others.  So if both calls
return, the function is homogeneous, and rounding commutes with powers of two.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from numbers import Real
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from bnmc.chain.activations import Activation
from bnmc.chain.layers import Layer
from bnmc.errors import ArgumentError

#: Slopes left and right of 0 of the named activations that are homogeneous.
_NAMED = {"abs": (-1.0, 1.0), "leaky_relu": (0.01, 1.0), "linear": (1.0, 1.0), "relu": (0.0, 1.0)}

#: Relative difference of two factors below which rounding may decide a comparison.
_TIE = 1e-9

#: The largest slope; float64 holds squares of this and of its inverse.
_STEEPEST = 2.0**500


def keeps_scale(layer: Layer) -> bool:
    """Return whether a layer multiplies a sample by c > 0 if the layer before does so."""
    without_norm = layer.rows.norm.is_identity and layer.linear.covariance().is_identity
    return without_norm and homogeneous_slopes(layer.rows.activation) is not None


@lru_cache(maxsize=256)
def homogeneous_slopes(activation: Activation) -> tuple[float, float] | None:
    """Return the slopes of σ left and right of 0 if σ is positively homogeneous, else None.

    A homogeneous function that calls anything beyond Python's arithmetic, comparisons, `abs`,
    `max`, `min` and their NumPy forms does not count, because the called code is unknown.

    Raises
    ------
    ArgumentError
        If the squares of the slopes leave float64.

    Examples
    --------
    >>> from bnmc import Activation
    >>> from bnmc.chain.homogeneity import homogeneous_slopes
    >>> homogeneous_slopes(Activation(lambda x: max(x, 0.2 * x)))
    (0.2, 1.0)
    >>> homogeneous_slopes(Activation(lambda x: min(max(x, 0.2 * x), 6.0))) is None
    True
    """
    if activation.builtin:
        return _NAMED.get(activation.name)
    function = activation.scalar("float64")
    function = getattr(function, "py_func", function)
    try:
        right, left = (_factor(function(_Multiple(factor))) for factor in (1.0, -1.0))
        at_zero = function(0.0)
    except Exception:  # the user's function gets an argument that it does not expect
        return None
    if at_zero != 0.0:
        return None
    for slope in (-left, right):
        if slope and not 1.0 / _STEEPEST <= abs(slope) <= _STEEPEST:
            allowed = "a homogeneous function whose slopes are 0 or in [2**-500, 2**500]"
            raise ArgumentError("activation", slope, allowed, "gain= scales the chain")
    return -left, right


class _Undecided(Exception):
    """The result of an operation depends on more than the factor."""


class _Multiple(NDArrayOperatorsMixin):
    """c x with x > 0 of any size.  All operators are ufuncs of NumPy."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __bool__(self) -> bool:
        return bool(self != 0.0)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        # An operator like += has the option `out`; a name gets the result.
        if options.get("out") == inputs[:1]:
            del options["out"]
        if method != "__call__" or options or ufunc not in _UFUNCS:
            raise _Undecided
        return _UFUNCS[ufunc](*inputs)

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


def _on_factors(ufunc: np.ufunc) -> Callable[..., _Multiple]:
    """Return what a ufunc that commutes with a change of scale does to multiples."""
    return lambda *values: _Multiple(float(ufunc(*map(_factor, values))))


def _comparison(ufunc: np.ufunc) -> Callable[[object, object], bool]:
    """Return what a comparison says of multiples."""

    def compare(first: object, second: object) -> bool:
        left, right = _factor(first), _factor(second)
        if abs(left - right) <= _TIE * (abs(left) + abs(right)):
            raise _Undecided
        return bool(ufunc(left, right))

    return compare


def _product(left: object, right: object) -> _Multiple:
    number, multiple = (left, right) if isinstance(right, _Multiple) else (right, left)
    return _Multiple(_factor(multiple) * _number(number))


_ON_FACTORS = (np.add, np.subtract, np.negative, np.positive, np.absolute, np.fabs)
_COMPARISONS = (np.less, np.less_equal, np.greater, np.greater_equal, np.equal, np.not_equal)
_UFUNCS: dict[np.ufunc, Callable[..., Any]] = {
    **{ufunc: _on_factors(ufunc) for ufunc in _ON_FACTORS},
    **{ufunc: _comparison(ufunc) for ufunc in _COMPARISONS},
    np.multiply: _product,
    np.divide: lambda left, right: _Multiple(_factor(left) / _number(right)),
    np.sign: lambda value: 1.0 if value > 0.0 else -1.0,
    np.maximum: max,
    np.minimum: min,
    np.fmax: max,
    np.fmin: min,
}
