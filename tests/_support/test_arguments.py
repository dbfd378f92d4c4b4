"""The checks of arguments."""

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from bnmc._support.arguments import (
    broadcast,
    choice,
    finite_array,
    instance,
    integer,
    integers,
    real,
    real_numbers,
    result_array,
)
from bnmc._support.machine import require_memory
from bnmc.errors import (
    ArgumentError,
    ArgumentTypeError,
    ResultTooLargeError,
    UnknownNameError,
)


@pytest.mark.parametrize("value", [3, np.int8(3), np.uint64(3), np.array(3)])
def test_integer_accepts_every_kind_of_integer(value):
    result = integer("width", value, low=3, high=3)
    assert result == 3
    assert type(result) is int


@pytest.mark.parametrize(
    "value",
    [True, np.True_, 3.0, np.float64(3), "3", None, [3], np.array([3]), np.array(True), 3j],
)
def test_integer_refuses_everything_else(value):
    with pytest.raises(ArgumentTypeError, match="^width: got .*, allowed: an integer >= 1$"):
        integer("width", value, low=1)


@pytest.mark.parametrize(
    ("value", "bounds", "allowed"),
    [
        (0, {"low": 1}, "an integer >= 1"),
        (10, {"high": 9}, "an integer <= 9"),
        (-1, {"low": 0, "high": 9}, "an integer >= 0 and <= 9"),
    ],
)
def test_integer_bounds(value, bounds, allowed):
    with pytest.raises(ArgumentError) as caught:
        integer("depth", value, **bounds)
    assert str(caught.value) == f"depth: got {value}, allowed: {allowed}"


def test_integer_is_not_limited_to_64_bits():
    assert integer("seed", 1 << 100) == 1 << 100


@pytest.mark.parametrize(
    "value", [0.5, np.float32(0.5), Fraction(1, 2), np.array(0.5), np.longdouble(0.5)]
)
def test_real_accepts_every_kind_of_real_number(value):
    result = real("gain", value, low=0.5, high=0.5)
    assert result == 0.5
    assert type(result) is float


@pytest.mark.parametrize(
    "value",
    [
        True,
        np.True_,
        "0.5",
        None,
        1j,
        np.complex128(1),
        np.array(1j),
        [1.0],
        np.ones(1),
        np.str_("1"),
    ],
)
def test_real_refuses_everything_else(value):
    with pytest.raises(ArgumentTypeError, match="^gain: got .*, allowed: a finite real number$"):
        real("gain", value)


def test_real_refuses_decimals():
    # decimal.Decimal does not mix with floats, and is not a numbers.Real for that reason.
    with pytest.raises(ArgumentTypeError):
        real("gain", Decimal("0.5"))


@pytest.mark.parametrize("value", [math.nan, np.float32("nan"), math.inf, -math.inf, 10**400])
def test_real_refuses_what_is_not_finite(value):
    with pytest.raises(ArgumentError, match="allowed: a finite real number$"):
        real("gain", value)


def test_real_may_allow_infinities_but_never_nan():
    assert real("gain", math.inf, finite=False) == math.inf
    with pytest.raises(ArgumentError, match="got nan, allowed: a real number or infinity"):
        real("gain", math.nan, finite=False)


@pytest.mark.parametrize(
    ("bounds", "inside", "outside"),
    [
        ({"low": 0}, 0.0, -5e-324),
        ({"above": 0}, 5e-324, 0.0),
        ({"high": 1}, 1.0, np.nextafter(1, 2)),
        ({"below": 1}, np.nextafter(1, 0), 1.0),
    ],
)
def test_real_bounds(bounds, inside, outside):
    assert real("level", inside, **bounds) == inside
    with pytest.raises(ArgumentError):
        real("level", outside, **bounds)


def test_real_names_all_its_bounds():
    with pytest.raises(ArgumentError) as caught:
        real("rate", 1, low=0, below=1)
    assert str(caught.value) == "rate: got 1.0, allowed: a finite real number >= 0 and < 1"


def test_choice():
    assert choice("norm", "none", iter(["batch", "none"])) == "none"
    with pytest.raises(UnknownNameError, match=r"did you mean 'batch'\?"):
        choice("norm", "Bach", ["batch", "none"])
    with pytest.raises(ArgumentTypeError, match="^norm: got None, allowed: batch, none$"):
        choice("norm", None, ["batch", "none"])


@pytest.mark.parametrize(
    ("dtype", "canonical"),
    [
        ("float32", "float32"),
        ("float64", "float64"),
        ("float16", "float64"),
        ("longdouble", "float64"),
        ("int8", "float64"),
        ("uint64", "float64"),
        (">f4", "float64"),
        (">f8", "float64"),
    ],
)
def test_finite_array_canonical_dtype(dtype, canonical):
    result = finite_array("x", np.arange(6).reshape(2, 3).astype(dtype), shape=("width", "batch"))
    assert result.dtype == np.dtype(canonical)
    assert result.dtype.isnative
    np.testing.assert_array_equal(result, [[0, 1, 2], [3, 4, 5]])


def test_finite_array_does_not_copy_or_change_what_is_canonical():
    x = np.ones((4, 6))[::2, ::3]
    x.flags.writeable = False
    result = finite_array("x", x, shape=("width", "batch"))
    assert result is x


def test_finite_array_takes_nested_sequences():
    assert finite_array("x", [[1, 2.5]], shape=(1, "batch")).tolist() == [[1.0, 2.5]]


@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        ((3,), ("n",)),
        ((3, 3), ("n", "n")),
        ((3, 4), (3, "n")),
        ((3, 4), (..., "width", "batch")),
        ((0, 5, 3, 4), (..., "width", "batch")),
        ((2, 5, 4), ("chains", 5, 4)),
        ((7, 3, 3), (..., "n", "n")),
        ((), ()),
        ((2,), (...,)),
    ],
)
def test_finite_array_shapes_that_fit(actual, expected):
    assert finite_array("x", np.zeros(actual), shape=expected).shape == actual


@pytest.mark.parametrize(
    ("actual", "expected", "written"),
    [
        ((), ("n",), "(n,)"),
        ((3, 4), ("n", "n"), "(n, n)"),
        ((3, 4), (4, "n"), "(4, n)"),
        ((4,), (..., "width", "batch"), "(..., width, batch)"),
        ((2, 3, 4), ("width", "batch"), "(width, batch)"),
        ((2, 3, 4), (..., "n", "n"), "(..., n, n)"),
    ],
)
def test_finite_array_shapes_that_do_not_fit(actual, expected, written):
    with pytest.raises(ArgumentError) as caught:
        finite_array("x", np.zeros(actual), shape=expected)
    assert str(caught.value) == f"x: got {actual}, allowed: an array of shape {written}"
    assert caught.value.argument == "x"


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (2, 0, 3)])
def test_finite_array_refuses_empty_named_axes(shape):
    with pytest.raises(ArgumentError, match="no axis may be empty"):
        finite_array("x", np.zeros(shape), shape=(..., "width", "batch"))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_finite_array_says_where_it_is_not_finite(bad, dtype):
    x = np.zeros((2, 3, 4), dtype)
    x[1, 0, 2] = bad
    x[1, 2, 0] = np.nan
    with pytest.raises(ArgumentError) as caught:
        finite_array("initial", x, shape=(..., "width", "batch"))
    assert str(caught.value) == (
        f"initial: got {bad}, allowed: finite real numbers (first at index (1, 0, 2))"
    )


@pytest.mark.skipif(
    np.finfo(np.longdouble).max == np.finfo(np.float64).max, reason="long double is float64 here"
)
def test_finite_array_refuses_what_exceeds_float64():
    with pytest.raises(ArgumentError, match="got inf"):
        finite_array("x", np.array([np.longdouble("1e4000")]), shape=("n",))


@pytest.mark.parametrize(
    "value",
    [None, "abc", [[1, 2], [3]], [True, False], [1j], [None], np.array([1], "O"), ["1"], {1.0}],
)
def test_finite_array_refuses_what_is_not_real_numbers(value):
    with pytest.raises(ArgumentTypeError, match="^x: got .*, allowed: an array of real numbers"):
        finite_array("x", value, shape=(...,))


@pytest.mark.untraced
@given(
    hnp.arrays(
        hnp.integer_dtypes() | hnp.floating_dtypes(),
        hnp.array_shapes(min_dims=2, max_dims=4),
        elements=st.integers(0, 100),
    )
)
def test_finite_array_keeps_values_and_shape(x):
    result = finite_array("x", x, shape=(..., "width", "batch"))
    assert result.dtype in (np.float32, np.float64)
    np.testing.assert_array_equal(result, x)


def test_instance_returns_the_value_or_raises():
    values = [1]
    assert instance("runs", values, list, "a list") is values
    with pytest.raises(ArgumentTypeError, match=r"^runs: got \(1,\), allowed: a list$"):
        instance("runs", (1,), list, "a list")


def test_masked_elements_raise():
    masked = np.ma.masked_array([1.0, 2.0], [False, True])
    for value in (masked, [masked, masked], ([masked],), np.ma.masked_array(1.0, True)):
        with pytest.raises(ArgumentTypeError, match="^x: .*elements are masked: fill or drop them"):
            finite_array("x", value, shape=(...,))
    # A mask that hides nothing changes nothing.
    np.testing.assert_array_equal(finite_array("x", masked[:1], shape=("n",)), [1.0])
    with pytest.raises(ArgumentTypeError, match="^out: "):
        result_array("out", masked, (2,))


def test_a_result_has_a_place_for_each_element():
    base = np.zeros((4, 6))
    for good in (base, base.T, base[::2, 1::2], base[::-1], base[:, :1], np.zeros((3, 0))):
        assert result_array("out", good, good.shape) is good
    for shape, strides in (((3, 2), (0, 8)), ((3, 2), (8, 8)), ((2, 3), (16, 8)), ((2,), (4,))):
        bad = np.lib.stride_tricks.as_strided(base, shape, strides)
        with pytest.raises(ArgumentError, match="^out: got .strides .*one place in memory"):
            result_array("out", bad, shape)


# --- arrays


def test_integers_are_returned_as_float64():
    for value in (3, np.int8(3), [3], np.array([[3]], np.uint64)):
        assert integers("k", value).dtype == np.float64
        assert integers("k", value).shape == np.shape(value)
    assert integers("k", 2**53) == 2**53


@pytest.mark.parametrize(
    ("value", "options", "error", "message"),
    [
        (3.0, {}, ArgumentTypeError, "^k: got 3.0, allowed: integers in 1 … 2⁵³"),
        ([3, 0], {}, ArgumentError, "^k: got 0, allowed: integers in 1 … 2⁵³"),
        (2**53 + 1, {}, ArgumentError, "^k: got 9007199254740993"),
        (8, {"low": 0, "high": 7}, ArgumentError, "^k: got 8, allowed: integers in 0 … 7"),
        (2.5, {"accept_floats": True}, ArgumentError, "^k: got 2.5, allowed: integers in 1 … 2⁵³"),
        ("3", {"accept_floats": True}, ArgumentTypeError, "^k: "),
    ],
)
def test_wrong_integers(value, options, error, message):
    with pytest.raises(error, match=message):
        integers("k", value, **options)


def test_floats_with_integer_values():
    np.testing.assert_array_equal(integers("k", [1e6, 7.0], accept_floats=True), [1e6, 7])


def test_the_first_wrong_number_is_named():
    with pytest.raises(ArgumentError, match=r"^x: got -2\.0, allowed: real numbers >= 0"):
        real_numbers("x", [[1, -2], [-3, 4]], low=0)
    with pytest.raises(ArgumentError, match="^x: got nan"):
        real_numbers("x", np.nan)
    array = np.arange(3.0)
    assert real_numbers("x", array) is array


def test_broadcasting_names_all_arguments():
    a, b = broadcast(a=np.ones((2, 1)), b=np.ones(3))
    assert a.shape == b.shape == (2, 3)
    with pytest.raises(ArgumentError, match="allowed: shapes of a, b that broadcast"):
        broadcast(a=np.ones(2), b=np.ones(3))


def test_results_beyond_the_memory():
    require_memory("size", 8)
    with pytest.raises(ResultTooLargeError, match="size"):
        require_memory("size", 2**62)
