"""Activations as functions whose Gaussian expectations the correlation maps need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from bnmc.chain.activations import Activation, as_activation
from bnmc.mean_field.duals.duals import Dual, derivative_of, dual
from bnmc.mean_field.float64 import FloatArray
from bnmc.mean_field.map.homogeneous import slopes

__all__ = ["ActivationLike", "GaussianFunction", "gaussian_function", "slopes_at_zero"]

ActivationLike = str | Activation | Callable[[Any], Any]

_Function = Callable[[FloatArray], FloatArray]

# A number whose square is 0 beside the derivative of any usual function.
_NEAR_ZERO = 1e-30

#: Value, derivative and kinks of the names that `dual` takes and that are no named activations.
_FORMULAS: dict[str, tuple[_Function, _Function, tuple[float, ...]]] = {
    "relu^2": (lambda x: np.maximum(x, 0.0) ** 2, lambda x: 2.0 * np.maximum(x, 0.0), (0.0,)),
    "relu^3": (lambda x: np.maximum(x, 0.0) ** 3, lambda x: 3.0 * np.maximum(x, 0.0) ** 2, (0.0,)),
    "step": (lambda x: np.heaviside(x, 0.5), np.zeros_like, (0.0,)),
    "cos": (np.cos, lambda x: -np.sin(x), ()),
    "exp": (np.exp, np.exp, ()),
}


@dataclass(frozen=True, eq=False)
class GaussianFunction:
    """An activation σ with all that its Gaussian expectations need.

    Attributes
    ----------
    name : str
    value : callable
        Maps a float64 array elementwise.
    derivative : callable or None
        σ′; None if it is not known, so that it is computed from polynomials on panels.
    kinks : tuple of float
        The points where σ or σ′ is discontinuous.
    slopes : tuple of float or None
        Slopes left and right of 0 if σ is positively homogeneous, else None.
    dual : Dual
        The dual activation, with a closed form or without.
    expanded : Activation or None
        The function whose Hermite series is used if there is no closed form.
    """

    name: str
    value: _Function
    derivative: _Function | None
    kinks: tuple[float, ...]
    slopes: tuple[float, float] | None
    dual: Dual
    expanded: Activation | None


def gaussian_function(activation: ActivationLike) -> GaussianFunction:
    """Return the function of an argument `activation`.

    Raises
    ------
    UnknownNameError, ArgumentTypeError, ArgumentError
        As `bnmc.infinite_width.dual`.
    """
    if isinstance(activation, str) and activation in _FORMULAS:
        return _of_formula(activation)
    return _of_activation(as_activation(activation))


def slopes_at_zero(function: GaussianFunction) -> tuple[float, float] | None:
    """Return σ′ just left and right of 0, None if σ′ is not known."""
    if function.derivative is None:
        return None
    near = np.array([-_NEAR_ZERO, _NEAR_ZERO])
    left, right = np.asarray(function.derivative(near), dtype=np.float64)
    return float(left), float(right)


# The results are remembered, so that `rough_moments` remembers the moments of equal activations.
@lru_cache(maxsize=64)
def _of_formula(name: str) -> GaussianFunction:
    value, derivative, kinks = _FORMULAS[name]
    return GaussianFunction(name, value, derivative, kinks, None, dual(name), None)


@lru_cache(maxsize=64)
def _of_activation(function: Activation) -> GaussianFunction:
    found = dual(function)
    return GaussianFunction(
        name=function.name,
        value=function,
        derivative=derivative_of(function),
        kinks=function.kinks,
        slopes=slopes(function),
        dual=found,
        expanded=None if found.closed_form else function,
    )
