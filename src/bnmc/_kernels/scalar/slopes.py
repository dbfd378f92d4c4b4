"""The derivatives of the activations that have names, as scalar functions of either precision.

At a kink the derivative is that of PyTorch: 0 for relu and abs, the left one for leaky_relu.  Small
derivatives far from zero keep their relative precision, because they are products of small factors
and not differences of large ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from bnmc._kernels.scalar.activations import (
    LEAKY_SLOPE,
    SELU_FLOOR,
    SELU_SCALE,
    sigmoid32,
    sigmoid64,
)
from bnmc._kernels.scalar.elementary import (
    exp32,
    exp64,
    normal_tail_pair32,
    normal_tail_pair64,
    sin32,
    sin64,
)

f32, f64 = np.float32, np.float64

TWO_OVER_ROOT_PI = 1.1283791670955126
ONE_OVER_ROOT_2PI = 0.3989422804014327


def slope_of_linear32(x):
    """Return 1."""
    return f32(f32(1.0) if x == x else x)


def slope_of_linear64(x):
    """Return 1."""
    return f64(f64(1.0) if x == x else x)


def slope_of_relu32(x):
    """Return 1 where positive, 0 elsewhere."""
    return f32(f32(1.0) if x > f32(0.0) else f32(0.0))


def slope_of_relu64(x):
    """Return 1 where positive, 0 elsewhere."""
    return f64(f64(1.0) if x > f64(0.0) else f64(0.0))


def slope_of_leaky_relu32(x):
    """Return 1 where positive, 1 / 100 elsewhere."""
    return f32(f32(1.0) if x > f32(0.0) else f32(LEAKY_SLOPE))


def slope_of_leaky_relu64(x):
    """Return 1 where positive, 1 / 100 elsewhere."""
    return f64(f64(1.0) if x > f64(0.0) else f64(LEAKY_SLOPE))


def slope_of_abs32(x):
    """Return the sign of x."""
    positive = f32(f32(1.0) if x > f32(0.0) else f32(0.0))
    return f32(positive - f32(f32(1.0) if x < f32(0.0) else f32(0.0)))


def slope_of_abs64(x):
    """Return the sign of x."""
    positive = f64(f64(1.0) if x > f64(0.0) else f64(0.0))
    return f64(positive - f64(f64(1.0) if x < f64(0.0) else f64(0.0)))


def slope_of_tanh32(x):
    """Return 1 - tanh(x)^2."""
    y = f32(x + x)
    return f32(f32(f32(4.0) * sigmoid32(y)) * sigmoid32(f32(-y)))


def slope_of_tanh64(x):
    """Return 1 - tanh(x)^2."""
    y = f64(x + x)
    return f64(f64(f64(4.0) * sigmoid64(y)) * sigmoid64(f64(-y)))


def slope_of_sigmoid32(x):
    """Return exp(-x) / (1 + exp(-x))^2."""
    return f32(sigmoid32(x) * sigmoid32(f32(-x)))


def slope_of_sigmoid64(x):
    """Return exp(-x) / (1 + exp(-x))^2."""
    return f64(sigmoid64(x) * sigmoid64(f64(-x)))


def slope_of_sin32(x):
    """Return cos(x), as 1 - 2 sin(x / 2)^2."""
    s = sin32(f32(f32(0.5) * x))
    return f32(f32(1.0) - f32(f32(s + s) * s))


def slope_of_sin64(x):
    """Return cos(x), as 1 - 2 sin(x / 2)^2."""
    s = sin64(f64(f64(0.5) * x))
    return f64(f64(1.0) - f64(f64(s + s) * s))


def slope_of_erf32(x):
    """Return 2 / sqrt(pi) exp(-x^2)."""
    return f32(f32(TWO_OVER_ROOT_PI) * exp32(f32(f32(-x) * x)))


def slope_of_erf64(x):
    """Return 2 / sqrt(pi) exp(-x^2)."""
    return f64(f64(TWO_OVER_ROOT_PI) * exp64(f64(f64(-x) * x)))


def slope_of_elu32(x):
    """Return 1 where positive, exp(x) elsewhere."""
    return f32(f32(1.0) if x > f32(0.0) else exp32(x))


def slope_of_elu64(x):
    """Return 1 where positive, exp(x) elsewhere."""
    return f64(f64(1.0) if x > f64(0.0) else exp64(x))


def slope_of_selu32(x):
    """Return scale where positive, scale * alpha * exp(x) elsewhere."""
    below = exp32(x)
    return f32(f32(SELU_SCALE) if x > f32(0.0) else f32(f32(SELU_FLOOR) * below))


def slope_of_selu64(x):
    """Return scale where positive, scale * alpha * exp(x) elsewhere."""
    below = exp64(x)
    return f64(f64(SELU_SCALE) if x > f64(0.0) else f64(f64(SELU_FLOOR) * below))


def slope_of_gelu32(x):
    """Return P(N <= x) + x phi(x), with N standard normal of density phi."""
    y = f32(abs(x))
    y = f32(f32(14.4) if y > f32(14.4) else y)
    value, power = normal_tail_pair32(y)
    tail = f32(value * power)
    density = f32(f32(ONE_OVER_ROOT_2PI) * exp32(f32(f32(f32(-0.5) * y) * y)))
    below = f32(tail - f32(y * density))
    return f32(below if x < f32(0.0) else f32(f32(1.0) - below))


def slope_of_gelu64(x):
    """Return P(N <= x) + x phi(x), with N standard normal of density phi."""
    y = f64(abs(x))
    y = f64(f64(38.6) if y > f64(38.6) else y)
    value, power = normal_tail_pair64(y)
    tail = f64(value * power)
    density = f64(f64(ONE_OVER_ROOT_2PI) * exp64(f64(f64(f64(-0.5) * y) * y)))
    below = f64(tail - f64(y * density))
    return f64(below if x < f64(0.0) else f64(f64(1.0) - below))


def slope_of_silu32(x):
    """Return s (1 + x (1 - s)), s = 1 / (1 + exp(-x))."""
    y = f32(f32(110.0) if x > f32(110.0) else x)
    y = f32(f32(-110.0) if y < f32(-110.0) else y)
    return f32(sigmoid32(y) * f32(f32(1.0) + f32(y * sigmoid32(f32(-y)))))


def slope_of_silu64(x):
    """Return s (1 + x (1 - s)), s = 1 / (1 + exp(-x))."""
    y = f64(f64(760.0) if x > f64(760.0) else x)
    y = f64(f64(-760.0) if y < f64(-760.0) else y)
    return f64(sigmoid64(y) * f64(f64(1.0) + f64(y * sigmoid64(f64(-y)))))


class Slope(NamedTuple):
    """The derivative of one activation, for each precision."""

    function32: Callable[[Any], Any]
    function64: Callable[[Any], Any]


#: The derivatives, by the name of the activation.
SLOPES: dict[str, Slope] = {
    "linear": Slope(slope_of_linear32, slope_of_linear64),
    "relu": Slope(slope_of_relu32, slope_of_relu64),
    "leaky_relu": Slope(slope_of_leaky_relu32, slope_of_leaky_relu64),
    "abs": Slope(slope_of_abs32, slope_of_abs64),
    "tanh": Slope(slope_of_tanh32, slope_of_tanh64),
    "sigmoid": Slope(slope_of_sigmoid32, slope_of_sigmoid64),
    "sin": Slope(slope_of_sin32, slope_of_sin64),
    "erf": Slope(slope_of_erf32, slope_of_erf64),
    "elu": Slope(slope_of_elu32, slope_of_elu64),
    "celu": Slope(slope_of_elu32, slope_of_elu64),
    "selu": Slope(slope_of_selu32, slope_of_selu64),
    "gelu": Slope(slope_of_gelu32, slope_of_gelu64),
    "silu": Slope(slope_of_silu32, slope_of_silu64),
}
