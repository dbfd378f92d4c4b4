"""The derivatives of the activations that have names, as scalar functions of either precision.

At a kink the derivative is that of PyTorch: 0 for relu and abs, the left one for leaky_relu.  Small
derivatives far from zero keep their relative precision, because they are products of small factors
and not differences of large ones.
"""

from __future__ import annotations

from bnmc._kernels.scalar.activations import (
    LEAKY_SLOPE,
    SELU_FLOOR,
    SELU_SCALE,
    TAIL_HIGH,
    sigmoid,
)
from bnmc._kernels.scalar.elementary import LOGISTIC_HIGH, exp, normal_tail_pair, sin
from bnmc._kernels.scalar.precisions import Both, both, f

_TWO_OVER_ROOT_PI = 1.1283791670955126
_ONE_OVER_ROOT_2PI = 0.3989422804014327


@both
def _slope_of_linear(x):
    """Return 1."""
    return f(f(1.0) if x == x else x)


@both
def _slope_of_relu(x):
    """Return 1 where positive, 0 elsewhere."""
    return f(f(1.0) if x > f(0.0) else f(0.0))


@both
def _slope_of_leaky_relu(x):
    """Return 1 where positive, 1 / 100 elsewhere."""
    return f(f(1.0) if x > f(0.0) else f(LEAKY_SLOPE))


@both
def _slope_of_abs(x):
    """Return the sign of x."""
    positive = f(f(1.0) if x > f(0.0) else f(0.0))
    return f(positive - f(f(1.0) if x < f(0.0) else f(0.0)))


@both
def _slope_of_tanh(x):
    """Return 1 - tanh(x)^2."""
    y = f(x + x)
    return f(f(f(4.0) * sigmoid(y)) * sigmoid(f(-y)))


@both
def _slope_of_sigmoid(x):
    """Return exp(-x) / (1 + exp(-x))^2."""
    return f(sigmoid(x) * sigmoid(f(-x)))


@both
def _slope_of_sin(x):
    """Return cos(x), as 1 - 2 sin(x / 2)^2."""
    s = sin(f(f(0.5) * x))
    return f(f(1.0) - f(f(s + s) * s))


@both
def _slope_of_erf(x):
    """Return 2 / sqrt(pi) exp(-x^2)."""
    return f(f(_TWO_OVER_ROOT_PI) * exp(f(f(-x) * x)))


@both
def _slope_of_elu(x):
    """Return 1 where positive, exp(x) elsewhere."""
    return f(f(1.0) if x > f(0.0) else exp(x))


@both
def _slope_of_selu(x):
    """Return scale where positive, scale * alpha * exp(x) elsewhere."""
    below = exp(x)
    return f(f(SELU_SCALE) if x > f(0.0) else f(f(SELU_FLOOR) * below))


@both
def _slope_of_gelu(x):
    """Return P(N <= x) + x phi(x), with N standard normal of density phi."""
    y = f(abs(x))
    y = f(TAIL_HIGH if y > TAIL_HIGH else y)
    value, power = normal_tail_pair(y)
    tail = f(value * power)
    density = f(f(_ONE_OVER_ROOT_2PI) * exp(f(f(f(-0.5) * y) * y)))
    below = f(tail - f(y * density))
    return f(below if x < f(0.0) else f(f(1.0) - below))


@both
def _slope_of_silu(x):
    """Return s (1 + x (1 - s)), s = 1 / (1 + exp(-x))."""
    y = f(LOGISTIC_HIGH if x > LOGISTIC_HIGH else x)
    y = f(f(-LOGISTIC_HIGH) if y < f(-LOGISTIC_HIGH) else y)
    return f(sigmoid(y) * f(f(1.0) + f(y * sigmoid(f(-y)))))


#: The derivatives, by the name of the activation.
SLOPES: dict[str, Both] = {
    "linear": _slope_of_linear,
    "relu": _slope_of_relu,
    "leaky_relu": _slope_of_leaky_relu,
    "abs": _slope_of_abs,
    "tanh": _slope_of_tanh,
    "sigmoid": _slope_of_sigmoid,
    "sin": _slope_of_sin,
    "erf": _slope_of_erf,
    "elu": _slope_of_elu,
    "celu": _slope_of_elu,
    "selu": _slope_of_selu,
    "gelu": _slope_of_gelu,
    "silu": _slope_of_silu,
}
