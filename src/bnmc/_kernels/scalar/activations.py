"""The activations that have names, as scalar functions of either precision.

All take every float and have the right limit at infinity; NaN comes from NaN alone (and from the
sine of infinity).  Those that are not elementary functions are within 3.5 ulp of the true value,
gelu within 5.5, down to subnormal results.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from bnmc._kernels.scalar.elementary import (
    erf32,
    erf64,
    expm1_32,
    expm1_64,
    logistic_pair32,
    logistic_pair64,
    normal_tail_pair32,
    normal_tail_pair64,
    sin32,
    sin64,
    tanh32,
    tanh64,
)

f32, f64 = np.float32, np.float64


# Klambauer, Unterthiner, Mayr and Hochreiter, *Self-normalizing neural networks* (2017): with
# these, zero mean and unit variance are a fixed point.
SELU_SCALE = 1.0507009873554804934193349852946
SELU_ALPHA = 1.6732632423543772848170429916717
SELU_FLOOR = SELU_SCALE * SELU_ALPHA
LEAKY_SLOPE = 0.01


def linear(x):
    """Return x."""
    return x


def absolute(x):
    """Return |x|."""
    return abs(x)


def relu32(x):
    """Return max(x, 0)."""
    return f32(f32(0.0) if x < f32(0.0) else x)


def relu64(x):
    """Return max(x, 0)."""
    return f64(f64(0.0) if x < f64(0.0) else x)


def leaky_relu32(x):
    """Return x where positive, x / 100 elsewhere."""
    return f32(f32(f32(LEAKY_SLOPE) * x) if x < f32(0.0) else x)


def leaky_relu64(x):
    """Return x where positive, x / 100 elsewhere."""
    return f64(f64(f64(LEAKY_SLOPE) * x) if x < f64(0.0) else x)


def elu32(x):
    """Return x where positive, exp(x) - 1 elsewhere; CELU with alpha = 1 is the same function."""
    return f32(x if x > f32(0.0) else expm1_32(x))


def elu64(x):
    """Return x where positive, exp(x) - 1 elsewhere; CELU with alpha = 1 is the same function."""
    return f64(x if x > f64(0.0) else expm1_64(x))


def selu32(x):
    """Return scale * x where positive, scale * alpha * (exp(x) - 1) elsewhere."""
    return f32(f32(f32(SELU_SCALE) * x) if x > f32(0.0) else f32(f32(SELU_FLOOR) * expm1_32(x)))


def selu64(x):
    """Return scale * x where positive, scale * alpha * (exp(x) - 1) elsewhere."""
    return f64(f64(f64(SELU_SCALE) * x) if x > f64(0.0) else f64(f64(SELU_FLOOR) * expm1_64(x)))


def sigmoid32(x):
    """Return 1 / (1 + exp(-x))."""
    value, power = logistic_pair32(f32(f32(-110.0) if x < f32(-110.0) else x))
    return f32(value * power)


def sigmoid64(x):
    """Return 1 / (1 + exp(-x))."""
    value, power = logistic_pair64(f64(f64(-760.0) if x < f64(-760.0) else x))
    return f64(value * power)


def silu32(x):
    """Return x / (1 + exp(-x))."""
    clipped = f32(f32(-110.0) if x < f32(-110.0) else x)
    value, power = logistic_pair32(clipped)
    return f32(f32(clipped * value) * power)


def silu64(x):
    """Return x / (1 + exp(-x))."""
    clipped = f64(f64(-760.0) if x < f64(-760.0) else x)
    value, power = logistic_pair64(clipped)
    return f64(f64(clipped * value) * power)


def gelu32(x):
    """Return x P(N <= x), N standard normal."""
    y = f32(abs(x))
    y = f32(f32(14.4) if y > f32(14.4) else y)
    value, power = normal_tail_pair32(y)
    above = f32(x * f32(f32(1.0) - f32(value * power)))
    below = f32(f32(f32(-y) * value) * power)
    return f32(below if x < f32(0.0) else above)


def gelu64(x):
    """Return x P(N <= x), N standard normal."""
    y = f64(abs(x))
    y = f64(f64(38.6) if y > f64(38.6) else y)
    value, power = normal_tail_pair64(y)
    above = f64(x * f64(f64(1.0) - f64(value * power)))
    below = f64(f64(f64(-y) * value) * power)
    return f64(below if x < f64(0.0) else above)


class Builtin(NamedTuple):
    """One entry of `BUILTIN`."""

    name: str
    function32: Callable[[Any], Any]
    function64: Callable[[Any], Any]
    #: Where the function or a derivative jumps (of elu and celu it is the second), which is what
    #: quadrature needs to know.
    kinks: tuple[float, ...] = ()


#: The activations that have names, by name.
BUILTIN: dict[str, Builtin] = {
    entry.name: entry
    for entry in (
        Builtin("linear", linear, linear),
        Builtin("relu", relu32, relu64, (0.0,)),
        Builtin("leaky_relu", leaky_relu32, leaky_relu64, (0.0,)),
        Builtin("abs", absolute, absolute, (0.0,)),
        Builtin("tanh", tanh32, tanh64),
        Builtin("sigmoid", sigmoid32, sigmoid64),
        Builtin("sin", sin32, sin64),
        Builtin("erf", erf32, erf64),
        Builtin("elu", elu32, elu64, (0.0,)),
        Builtin("celu", elu32, elu64, (0.0,)),
        Builtin("selu", selu32, selu64, (0.0,)),
        Builtin("gelu", gelu32, gelu64),
        Builtin("silu", silu32, silu64),
    )
}
