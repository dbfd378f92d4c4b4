"""The scalar functions of `_kernels.core` against oracles of higher precision."""

import functools
import pickle

import numpy as np
import pytest
from numba import njit

from bnmc._kernels.compiling import OPTIONS, inline_module
from bnmc._kernels.scalar import activations, elementary

inline_module(elementary)

LONG = np.longdouble
PI = LONG(np.pi) + LONG(1.2246467991473531772e-16)
POINTS = 100_000
# Of these the oracles are series of many terms.
FEWER_POINTS = {"erf": POINTS // 2, "gelu": POINTS // 2}

extended = pytest.mark.skipif(
    np.finfo(LONG).nmant < 63, reason="the oracles need a long double of 64 bits"
)


# --- oracles: float64 in, long double out


def erf(x):
    """2/√π exp(−x²) Σ 2ᵏ x²ᵏ⁺¹ / (2k+1)!!, a series of positive terms."""
    m = np.minimum(np.abs(x), 6.7).astype(LONG)
    term = 2 * m / np.sqrt(PI)
    total = term.copy()
    for k in range(1, 160):
        term = term * (2 * m * m / (2 * k + 1))
        total += term
    return np.copysign(total * np.exp(-m * m), x)


def normal_tail(y):
    """P(N > y) for y ≥ 0: the trapezoidal rule for erfc (Hunter and Regan 1972), 1 − erf near 0."""
    # exp(−y²/2) needs the square of y to more digits than a long double has.
    high = y.astype(np.float32).astype(np.float64)
    low = (y - high).astype(LONG) * (y.astype(LONG) + high)
    gaussian = np.exp(-(high * high).astype(LONG) / 2) * np.exp(-low / 2)
    z = np.maximum(y / np.sqrt(LONG(2)), LONG(0.3))
    h = LONG(0.35)
    total = 1 / (2 * z * z)
    for k in range(1, 25):
        node = (k * h) ** 2
        total += np.exp(-node) / (node + z * z)
    pole = np.where(z < PI / h, 2 / np.expm1(2 * PI * z / h), 0)
    erfc = 2 * h * z / PI * gaussian * total - pole
    return np.where(y < 0.5, 1 - erf_of_long(y / np.sqrt(LONG(2))), erfc) / 2


def erf_of_long(z):
    nearest = z.astype(np.float64)
    slope = 2 / np.sqrt(PI) * np.exp(-z * z)
    return erf(nearest) + slope * (z - nearest)


def logistic(x):
    e = np.exp(-np.abs(x.astype(LONG)))
    return np.where(x > 0, 1, e) / (1 + e)


def of_long(function):
    return lambda x: function(x.astype(LONG))


def piecewise(right, left):
    def oracle(x):
        x = x.astype(LONG)
        return np.where(x > 0, right * x, left * np.expm1(np.minimum(x, 0)))

    return oracle


def gelu(x):
    tail = normal_tail(np.abs(x))
    return x * np.where(x > 0, 1 - tail, tail)


SCALE, FLOOR = LONG(activations.SELU_SCALE), LONG(activations.SELU_FLOOR)

# Function, oracle, range in float32 and in float64, and the
# largest error in ulp that the documentation of the modules admits.
CASES = {
    "exp": (*elementary.exp, of_long(np.exp), 106, 750, 3.0),
    "expm1": (*elementary.expm1, of_long(np.expm1), 106, 750, 3.0),
    "log": (*elementary.log, of_long(np.log), 3e38, 1.7e308, 3.0),
    "tanh": (*elementary.tanh, of_long(np.tanh), 12, 25, 3.0),
    "sin": (*elementary.sin, of_long(np.sin), 1e4, 1e5, 3.0),
    "erf": (*elementary.erf, erf, 5, 7, 3.0),
    "sigmoid": (*activations.sigmoid, logistic, 110, 750, 3.5),
    "silu": (*activations.silu, lambda x: x * logistic(x), 110, 752, 3.5),
    "gelu": (*activations.gelu, gelu, 15, 39, 5.5),
    "elu": (*activations.elu, piecewise(LONG(1), LONG(1)), 110, 750, 3.5),
    "selu": (*activations.selu, piecewise(SCALE, FLOOR), 110, 750, 3.5),
}
PRECISIONS = [np.float32, np.float64]
EVERY = pytest.mark.parametrize("dtype", PRECISIONS)
SCALARS = {
    (entry.name, dtype): function
    for entry in activations.BUILTIN.values()
    for dtype, function in zip(PRECISIONS, (entry.function32, entry.function64), strict=True)
} | {
    (name, dtype): function
    for name in ("exp", "expm1")
    for dtype, function in zip(PRECISIONS, CASES[name][:2], strict=True)
}


def mapped(function, x):
    """The compiled function of every element."""
    out = np.empty_like(x)
    loop_of(function)(x, out)
    return out


@functools.cache
def loop_of(function):
    """The loop over elements, of which each function is compiled once."""
    scalar = njit(forceinline=True, **OPTIONS)(function)

    @njit(**OPTIONS)
    def loop(x, out):
        for i in range(x.size):
            out[i] = scalar(x[i])

    return loop


def ulps(got, want):
    """Distance in units of the last place of the nearest float, 0 where both overflow."""
    with np.errstate(over="ignore", under="ignore"):
        nearest = want.astype(got.dtype)
    overflow = np.isinf(nearest)
    unit = np.spacing(np.abs(np.where(overflow, 1, nearest)).astype(got.dtype))
    with np.errstate(invalid="ignore"):
        distance = np.abs(got.astype(LONG) - want) / unit
    return np.where(overflow & (got == nearest), 0, distance)


def sample(limit, dtype, points=POINTS):
    """Half uniform on [−limit, limit], half uniform in the logarithm down to subnormal numbers."""
    rng = np.random.default_rng(20)
    low = np.log2(np.finfo(dtype).smallest_subnormal)
    scattered = np.exp2(rng.uniform(low, np.log2(limit), points // 2))
    signs = rng.choice([-1.0, 1.0], points // 2)
    flat = limit * rng.uniform(-1.0, 1.0, points // 2)
    return np.concatenate([flat, signs * scattered]).astype(dtype)


@extended
@EVERY
@pytest.mark.parametrize("name", CASES)
def test_accuracy(name, dtype):
    single, double, oracle, limit32, limit64, bound = CASES[name]
    is_single = dtype is np.float32
    points = FEWER_POINTS.get(name, POINTS)
    x = sample(limit32 if is_single else limit64, dtype, points)
    if name == "log":
        x = np.maximum(np.abs(x), np.finfo(dtype).tiny)
    with np.errstate(under="ignore", over="ignore"):
        want = oracle(x.astype(np.float64))
    error = ulps(mapped(single if is_single else double, x), want)
    worst = np.argmax(error)
    assert error[worst] <= bound, x[worst]


@extended
@EVERY
def test_sine_next_to_the_multiples_of_pi(dtype):
    """Where the reduction of the argument cancels nearly all digits."""
    last = int((1e4 if dtype is np.float32 else 1e5) / np.pi)
    nearest = (np.arange(1, last) * PI).astype(dtype)
    x = np.concatenate([nearest, np.nextafter(nearest, dtype(0)), -nearest])
    assert ulps(mapped(SCALARS["sin", dtype], x), np.sin(x.astype(LONG))).max() <= 3


@extended
def test_oracles_against_arbitrary_precision():
    mpmath = pytest.importorskip("mpmath")
    x = np.concatenate([np.geomspace(1e-8, 6, 40), np.linspace(0.3, 0.9, 40)])
    y = np.concatenate([x, np.linspace(1, 38, 60)])
    with mpmath.workdps(40):
        for oracle, exact, points in (
            (erf, mpmath.erf, x),
            (normal_tail, lambda y: mpmath.erfc(y / mpmath.sqrt(2)) / 2, y),
        ):
            for point, got in zip(points, oracle(points), strict=True):
                want = exact(mpmath.mpf(point))
                # A long double is the sum of two floats, times a power of two.
                mantissa, exponent = np.frexp(got)
                head = float(mantissa)
                value = mpmath.mpf(head) + mpmath.mpf(float(mantissa - LONG(head)))
                value = mpmath.ldexp(value, int(exponent))
                assert abs(value / want - 1) < 2e-18, (oracle, point)


@EVERY
@pytest.mark.parametrize("name", [name for name, dtype in SCALARS if dtype is np.float32])
def test_nan_comes_from_nan_alone(name, dtype):
    bits = np.random.default_rng(21).integers(0, 256, POINTS * dtype().itemsize, np.uint8)
    x = bits.view(dtype)
    x = np.concatenate([x[np.isfinite(x)], [np.finfo(dtype).max, np.finfo(dtype).min]])
    y = mapped(SCALARS[name, dtype], x.astype(dtype))
    assert not np.isnan(y).any()
    if name in ("sin", "tanh", "erf"):
        assert np.abs(y).max() <= 1
    assert np.isnan(mapped(SCALARS[name, dtype], np.array([np.nan, -np.nan], dtype))).all()


LIMITS = {
    "exp": (0, np.inf),
    "expm1": (-1, np.inf),
    "linear": (-np.inf, np.inf),
    "relu": (0, np.inf),
    "leaky_relu": (-np.inf, np.inf),
    "abs": (np.inf, np.inf),
    "tanh": (-1, 1),
    "sigmoid": (0, 1),
    "sin": (np.nan, np.nan),
    "erf": (-1, 1),
    "elu": (-1, np.inf),
    "celu": (-1, np.inf),
    "selu": (-1.7580993408473766, np.inf),
    "gelu": (0, np.inf),
    "silu": (0, np.inf),
}


@EVERY
@pytest.mark.parametrize("name", LIMITS)
def test_limits(name, dtype):
    got = mapped(SCALARS[name, dtype], np.array([-np.inf, np.inf], dtype))
    np.testing.assert_array_equal(got, np.array(LIMITS[name], dtype))


@EVERY
def test_overflow_and_underflow_happen_where_they_should(dtype):
    top = np.log(np.finfo(dtype).max)
    bottom = np.log(np.finfo(dtype).smallest_subnormal.astype(LONG))
    x = np.array([top - 1e-3, top + 1e-3, bottom + 1e-3, bottom - 1], dtype)
    finite, infinite, smallest, nothing = mapped(SCALARS["exp", dtype], x)
    assert np.finfo(dtype).max / 2 < finite < np.inf == infinite
    assert smallest == np.finfo(dtype).smallest_subnormal
    assert nothing == 0


@EVERY
@pytest.mark.parametrize("name", ["sin", "tanh", "erf", "linear", "expm1", "elu"])
def test_tiny_arguments_and_signed_zero(name, dtype):
    """These are x + O(x²): exact, to the bit, where the square is out of sight."""
    x = np.array([0.0, -0.0, np.finfo(dtype).smallest_subnormal, -np.finfo(dtype).tiny], dtype)
    want = erf(x.astype(np.float64)).astype(dtype) if name == "erf" else x
    got = mapped(SCALARS[name, dtype], x)
    assert got.tobytes() == want.tobytes()


@EVERY
@pytest.mark.parametrize("name", ["sin", "tanh", "erf"])
def test_odd_to_the_bit(name, dtype):
    x = np.abs(sample(20.0, dtype)[:10_000])
    function = SCALARS[name, dtype]
    np.testing.assert_array_equal(mapped(function, -x), -mapped(function, x))


@EVERY
@pytest.mark.parametrize("name", LIMITS)
def test_plain_python_agrees_with_compiled(name, dtype):
    """The same source; the compiler may fuse a product and a sum, so a few ulp may differ."""
    x = np.array([*np.linspace(-9.3, 9.1, 41), 0.0, -1e-9, 1e-9, -30.0, 90.0, np.nan], dtype)
    function = SCALARS[name, dtype]
    with np.errstate(over="ignore", invalid="ignore"):
        plain = [function(value) for value in x]
    assert all(type(value) is dtype for value in plain)
    compiled = mapped(function, x)
    finite = np.isfinite(compiled)
    assert ulps(np.array(plain, dtype)[finite], compiled[finite].astype(LONG)).max() <= 6
    np.testing.assert_array_equal(np.array(plain, dtype)[~finite], compiled[~finite])


@EVERY
def test_plain_logarithm(dtype):
    function = elementary.log.single if dtype is np.float32 else elementary.log.double
    x = np.geomspace(1e-30, 1e30, 50).astype(dtype)
    got = np.array([function(value) for value in x])
    assert got.dtype == dtype
    assert ulps(got, np.log(x.astype(LONG))).max() <= 3


def test_functions_of_both_precisions_are_pickled_by_their_names():
    for function in (*elementary.tanh, *elementary.log, *activations.relu):
        assert pickle.loads(pickle.dumps(function)) is function
