"""Checks of arrays of numbers: values, types, shapes, and the memory of a result."""

import numpy as np
import pytest

from bnmc._support.array_arguments import broadcast, integers, real_numbers, require_memory
from bnmc.errors import ArgumentError, ArgumentTypeError, ResultTooLargeError


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
    with pytest.raises(ArgumentError, match=r"^x: got -2\.0, allowed: numbers >= 0"):
        real_numbers("x", [[1, -2], [-3, 4]], "numbers >= 0", lambda x: x >= 0)
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
