"""The derivatives of the named activations, against their formulas in long double."""

import numpy as np
import pytest
from scipy import special
from slow_cases import pairs

from bnmc._kernels.compiling import Sigma
from bnmc._kernels.cpu.elementwise import apply
from bnmc._kernels.scalar.activations import BUILTIN, SELU_FLOOR, SELU_SCALE
from bnmc._kernels.scalar.slopes import SLOPES
from bnmc.chain.activations import Activation, slope_of

LONG = np.longdouble


def density(x):
    return np.exp(-x * x / 2) / np.sqrt(2 * LONG(np.pi))


def logistic(x):
    return 1 / (1 + np.exp(-x))


FORMULAS = {
    "linear": np.ones_like,
    "relu": lambda x: np.where(x > 0, LONG(1), 0),
    "leaky_relu": lambda x: np.where(x > 0, LONG(1), LONG(0.01)),
    "abs": np.sign,
    "tanh": lambda x: 1 / np.cosh(x) ** 2,
    "sigmoid": lambda x: logistic(x) * logistic(-x),
    "sin": np.cos,
    "erf": lambda x: 2 / np.sqrt(LONG(np.pi)) * np.exp(-x * x),
    "elu": lambda x: np.where(x > 0, 1, np.exp(np.minimum(x, 0))),
    "celu": lambda x: np.where(x > 0, 1, np.exp(np.minimum(x, 0))),
    "selu": lambda x: np.where(
        x > 0, LONG(SELU_SCALE), LONG(SELU_FLOOR) * np.exp(np.minimum(x, 0))
    ),
    # ndtr has an error of some 1e-16.
    "gelu": lambda x: special.ndtr(x.astype(float)) + x * density(x),
    "silu": lambda x: logistic(x) * (1 + x * logistic(-x)),
}

GRID = np.concatenate([np.linspace(-8, 8, 4001), [-1e-20, 1e-20, 0.3, -0.3]])


def values(name, x, how):
    slope = SLOPES[name]
    if how == "python":
        function = slope.single if x.dtype == np.float32 else slope.double
        return np.array([function(number) for number in x])
    out = x.copy()
    apply(slope_of(Activation.named(name)), out)
    return out


@pytest.mark.parametrize(("name", "dtype"), pairs(SLOPES, ["float32", "float64"]))
def test_slopes_are_the_derivatives(name, dtype):
    x = GRID.astype(dtype)
    x = x[x != 0]
    expected = FORMULAS[name](x.astype(LONG))
    # The functions that they consist of are within 5.5 units, and exp(-x²) has the rounding error
    # of x² <= 64 besides.
    error = np.abs(values(name, x, "compiled").astype(LONG) - expected)
    allowed = (12 + 2 * np.minimum(x.astype(float) ** 2, 64)) * np.finfo(dtype).eps
    assert (error <= allowed * np.maximum(np.abs(expected), 0.02 if name == "erf" else 1)).all()


@pytest.mark.parametrize("name", SLOPES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_python_and_compiled_code_agree(name, dtype):
    x = np.concatenate([GRID[::50], [0.0, -0.0, 1e30, -1e30, np.inf, -np.inf]]).astype(dtype)
    if name == "sin":
        x = x[np.abs(x) < 1e3]
    with np.errstate(all="ignore"):
        python = values(name, x, "python")
    compiled = values(name, x, "compiled")
    assert python.dtype == x.dtype
    unit = np.finfo(dtype).eps
    np.testing.assert_allclose(compiled, python, rtol=64 * unit, atol=4 * unit)
    assert np.isfinite(compiled).all()


@pytest.mark.parametrize("name", ["tanh", "sigmoid", "elu", "selu"])
def test_small_slopes_keep_their_relative_precision(name):
    x = np.array([-20.0, -10.0])
    np.testing.assert_allclose(
        values(name, x, "compiled"), FORMULAS[name](x.astype(LONG)).astype(float), rtol=1e-14
    )


@pytest.mark.parametrize("how", ["python", "compiled"])
def test_the_slope_of_gelu_is_precise_in_its_tail(how):
    """Both terms have a factor exp(-x²/2), whose relative error is that of x²/2 in exp."""
    x = np.array([-30.0, -20.0, -10.0])
    expected = FORMULAS["gelu"](x.astype(LONG)).astype(float)
    error = np.abs(values("gelu", x, how) - expected)
    assert (error <= (4 * x**2) * np.finfo(float).eps * np.abs(expected)).all()


def test_kinks_have_the_derivative_of_pytorch():
    zero = np.zeros(1)
    at_zero = {name: float(values(name, zero, "compiled")[0]) for name in SLOPES}
    assert at_zero["relu"] == 0.0
    assert at_zero["abs"] == 0.0
    assert at_zero["leaky_relu"] == 0.01
    assert at_zero["elu"] == 1.0


def test_every_named_activation_has_a_derivative():
    assert set(SLOPES) == set(BUILTIN)


def test_nan_comes_from_nan():
    for name in set(SLOPES) - {"relu", "leaky_relu", "abs"}:
        assert np.isnan(values(name, np.full(1, np.nan), "compiled"))[0], name


def test_digests_of_derivatives_are_no_digests_of_functions():
    assert slope_of(Activation.named("relu")).digest == "slope of relu"
    assert isinstance(slope_of(Activation.named("relu")), Sigma)
    square = Activation(lambda x: x * x, derivative=lambda x: 2 * x)
    assert slope_of(square).digest == square.derivative.digest
