"""The activations that have names, as scalar functions of either precision.

All take every float and have the right limit at infinity; NaN comes from NaN alone (and from the
sine of infinity).  Those that are not elementary functions are within 3.5 ulp of the true value,
gelu within 5.5, down to subnormal results.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from bnmc._kernels.scalar.elementary import (
    LOGISTIC_HIGH,
    erf,
    expm1,
    logistic_pair,
    normal_tail_pair,
    sin,
    tanh,
)
from bnmc._kernels.scalar.precisions import both, f, floats

# Klambauer, Unterthiner, Mayr and Hochreiter, *Self-normalizing neural networks* (2017): with
# these, zero mean and unit variance are a fixed point.
SELU_SCALE = 1.0507009873554804934193349852946
_SELU_ALPHA = 1.6732632423543772848170429916717
SELU_FLOOR = SELU_SCALE * _SELU_ALPHA
LEAKY_SLOPE = 0.01
#: The largest y of `normal_tail_pair`, beyond which P(N > y) is 0.
TAIL_HIGH = floats(14.4, 38.6)


def linear(x):
    """Return x."""
    return x


def absolute(x):
    """Return |x|."""
    return abs(x)


@both
def relu(x):
    """Return max(x, 0)."""
    return f(f(0.0) if x < f(0.0) else x)


@both
def leaky_relu(x):
    """Return x where positive, x / 100 elsewhere."""
    return f(f(f(LEAKY_SLOPE) * x) if x < f(0.0) else x)


@both
def elu(x):
    """Return x where positive, exp(x) - 1 elsewhere; CELU with alpha = 1 is the same function."""
    return f(x if x > f(0.0) else expm1(x))


@both
def selu(x):
    """Return scale * x where positive, scale * alpha * (exp(x) - 1) elsewhere."""
    return f(f(f(SELU_SCALE) * x) if x > f(0.0) else f(f(SELU_FLOOR) * expm1(x)))


@both
def sigmoid(x):
    """Return 1 / (1 + exp(-x))."""
    value, power = logistic_pair(f(f(-LOGISTIC_HIGH) if x < f(-LOGISTIC_HIGH) else x))
    return f(value * power)


@both
def silu(x):
    """Return x / (1 + exp(-x))."""
    clipped = f(f(-LOGISTIC_HIGH) if x < f(-LOGISTIC_HIGH) else x)
    value, power = logistic_pair(clipped)
    return f(f(clipped * value) * power)


@both
def gelu(x):
    """Return x P(N <= x), N standard normal."""
    y = f(abs(x))
    y = f(TAIL_HIGH if y > TAIL_HIGH else y)
    value, power = normal_tail_pair(y)
    above = f(x * f(f(1.0) - f(value * power)))
    below = f(f(f(-y) * value) * power)
    return f(below if x < f(0.0) else above)


class _Builtin(NamedTuple):
    """One entry of `BUILTIN`."""

    name: str
    function32: Callable[[Any], Any]
    function64: Callable[[Any], Any]
    #: Where the function or a derivative jumps (of elu and celu it is the second), which is what
    #: quadrature needs to know.
    kinks: tuple[float, ...] = ()


#: The activations that have names, by name.
BUILTIN: dict[str, _Builtin] = {
    entry.name: entry
    for entry in (
        _Builtin("linear", linear, linear),
        _Builtin("relu", *relu, (0.0,)),
        _Builtin("leaky_relu", *leaky_relu, (0.0,)),
        _Builtin("abs", absolute, absolute, (0.0,)),
        _Builtin("tanh", *tanh),
        _Builtin("sigmoid", *sigmoid),
        _Builtin("sin", *sin),
        _Builtin("erf", *erf),
        _Builtin("elu", *elu, (0.0,)),
        _Builtin("celu", *elu, (0.0,)),
        _Builtin("selu", *selu, (0.0,)),
        _Builtin("gelu", *gelu),
        _Builtin("silu", *silu),
    )
}
