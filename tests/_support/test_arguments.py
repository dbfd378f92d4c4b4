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


@pytest.mark.parametrize(
    ("check", "values", "bounds", "expected"),
    [
        (integer, [3, np.int8(3), np.uint64(3), np.array(3)], {"low": 3, "high": 3}, 3),
        (integer, [1 << 100], {}, 1 << 100),
        (
            real,
            [0.5, np.float32(0.5), Fraction(1, 2), np.array(0.5), np.longdouble(0.5)],
            {"low": 0.5, "high": 0.5},
            0.5,
        ),
        (real, [math.inf], {"finite": False}, math.inf),
        (real, [5e-324], {"above": 0}, 5e-324),
        (real, [np.nextafter(1, 0)], {"below": 1}, 1.0 - 2.0**-53),
    ],
)
def test_numbers_of_every_kind_are_accepted(check, values, bounds, expected):
    for value in values:
        result = check("n", value, **bounds)
        assert result == expected
        assert type(result) is type(expected)


@pytest.mark.parametrize(
    ("check", "values", "allowed"),
    [
        (integer, [True, np.True_, 3.0, np.float64(3), "3", None, [3], np.array([3]),
                   np.array(True), 3j], "an integer"),
        # decimal.Decimal does not mix with floats, and is not a numbers.Real for that reason.
        (real, [True, np.True_, "0.5", None, 1j, np.complex128(1), np.array(1j), [1.0], np.ones(1),
                np.str_("1"), Decimal("0.5")], "a finite real number"),
    ],
)  # fmt: skip
def test_what_is_no_number_is_refused(check, values, allowed):
    for value in values:
        with pytest.raises(ArgumentTypeError, match=f"^n: got .*, allowed: {allowed} >= 1$"):
            check("n", value, low=1)


@pytest.mark.parametrize(
    ("check", "value", "bounds", "message"),
    [
        (integer, 0, {"low": 1}, "n: got 0, allowed: an integer >= 1"),
        (integer, 10, {"high": 9}, "n: got 10, allowed: an integer <= 9"),
        (integer, -1, {"low": 0, "high": 9}, "n: got -1, allowed: an integer >= 0 and <= 9"),
        (real, 1, {"low": 0, "below": 1}, "n: got 1.0, allowed: a finite real number >= 0 and < 1"),
        (real, -5e-324, {"low": 0}, ", allowed: a finite real number >= 0"),
        (real, 0.0, {"above": 0}, "n: got 0.0, allowed: a finite real number > 0"),
        (real, np.nextafter(1, 2), {"high": 1}, ", allowed: a finite real number <= 1"),
        (real, math.nan, {"finite": False}, "n: got nan, allowed: a real number or infinity"),
        *(
            (real, value, {}, ", allowed: a finite real number")
            for value in (math.nan, np.float32("nan"), math.inf, -math.inf, 10**400)
        ),
    ],
)
def test_numbers_out_of_bounds_are_refused(check, value, bounds, message):
    with pytest.raises(ArgumentError) as caught:
        check("n", value, **bounds)
    assert str(caught.value).startswith("n: got ")
    assert str(caught.value).endswith(message)


def test_choice():
    assert choice("norm", "none", iter(["batch", "none"])) == "none"
    with pytest.raises(UnknownNameError, match=r"did you mean 'batch'\?"):
        choice("norm", "Bach", ["batch", "none"])
    with pytest.raises(ArgumentTypeError, match="^norm: got None, allowed: batch, none$"):
        choice("norm", None, ["batch", "none"])


@pytest.mark.parametrize(
    "dtype", ["float32", "float64", "float16", "longdouble", "int8", "uint64", ">f4", ">f8"]
)
def test_finite_array_canonical_dtype(dtype):
    result = finite_array("x", np.arange(6).reshape(2, 3).astype(dtype), shape=("width", "batch"))
    assert result.dtype == np.dtype("float32" if dtype == "float32" else "float64")
    assert result.dtype.isnative
    np.testing.assert_array_equal(result, [[0, 1, 2], [3, 4, 5]])


def test_finite_array_does_not_copy_or_change_what_is_canonical():
    x = np.ones((4, 6))[::2, ::3]
    x.flags.writeable = False
    assert finite_array("x", x, shape=("width", "batch")) is x
    assert finite_array("x", [[1, 2.5]], shape=(1, "batch")).tolist() == [[1.0, 2.5]]


@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        ((3,), ("n",)), ((3, 3), ("n", "n")), ((3, 4), (3, "n")), ((), ()), ((2,), (...,)),
        ((3, 4), (..., "width", "batch")), ((0, 5, 3, 4), (..., "width", "batch")),
        ((2, 5, 4), ("chains", 5, 4)), ((7, 3, 3), (..., "n", "n")),
    ],
)  # fmt: skip
def test_finite_array_shapes_that_fit(actual, expected):
    assert finite_array("x", np.zeros(actual), shape=expected).shape == actual


@pytest.mark.parametrize(
    ("actual", "expected", "allowed"),
    [
        ((), ("n",), "(n,)"),
        ((3, 4), ("n", "n"), "(n, n)"),
        ((3, 4), (4, "n"), "(4, n)"),
        ((4,), (..., "width", "batch"), "(..., width, batch)"),
        ((2, 3, 4), ("width", "batch"), "(width, batch)"),
        ((2, 3, 4), (..., "n", "n"), "(..., n, n)"),
        *(
            (shape, (..., "width", "batch"), "(..., width, batch) (no axis may be empty)")
            for shape in ((0, 3), (3, 0), (2, 0, 3))
        ),
    ],
)
def test_finite_array_shapes_that_do_not_fit(actual, expected, allowed):
    with pytest.raises(ArgumentError) as caught:
        finite_array("x", np.zeros(actual), shape=expected)
    assert str(caught.value) == f"x: got {actual}, allowed: an array of shape {allowed}"
    assert caught.value.argument == "x"


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
