"""Instructions in compiled code do what their Python bodies say."""

from __future__ import annotations

import numpy as np
import pytest
from numba import njit

from bnmc._kernels.cpu import vectors
from bnmc._kernels.scalar.elementary import larger, polynomial, same_bits, smaller
from bnmc._kernels.scalar.normal import joined, root32, root64
from bnmc._kernels.scalar.philox import product


def choices(a, b):
    return smaller(a, b), larger(a, b)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (2, 3),
        (3, -2),
        (1.5, -2.5),
        (np.float32(1.5), np.float32(2.5)),
        (np.nan, 1.0),
        (1.0, np.nan),
    ],
)
def test_the_smaller_and_the_larger_number_are_those_of_python(a, b):
    np.testing.assert_array_equal(njit(choices)(a, b), choices(a, b))


def test_words_and_roots():
    def program(word, x, y):
        return (
            product(word, word),
            joined(word, word),
            same_bits(x, np.uint32),
            root32(x),
            root64(y),
        )

    arguments = np.uint32(0xFFFFFFFE), np.float32(2.5), 2.5
    assert njit(program)(*arguments) == program(*arguments)


def test_a_polynomial_of_either_precision():
    for function, number in zip(polynomial, (np.float32, np.float64), strict=True):
        values = tuple(number(value) for value in (3, -2, 5))
        compiled = njit(lambda x, function=function, values=values: function(values, x))
        assert compiled(number(2)) == function(values, number(2)) == 13.0


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_columns_are_loaded_and_stored_together(dtype):
    def program(array, matrix, out):
        strips = vectors.load_strips(array, 1, 70)
        vectors.store_strips(out, 2, 70, vectors.subtract_all(strips, strips))
        a, b, c, d = vectors.load_column(matrix, 1, 2)
        first, second = vectors.load_two_parts(array, 3, 70)
        vectors.store(out, 300, first + second)
        return a, b, c, d

    array = np.random.default_rng(0).integers(1, 9, 400).astype(dtype)
    matrix = np.arange(30.0, dtype=dtype).reshape(6, 5)[:, ::-1]
    results = np.full((2, 400), 7, dtype)
    assert program(array, matrix, results[0]) == njit(program)(array, matrix, results[1])
    np.testing.assert_array_equal(results[0], results[1])
    assert np.count_nonzero(results[0] == 0) > 0
