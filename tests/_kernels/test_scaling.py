"""Units of samples: when they change, and that nothing else changes with them."""

import math

import numpy as np
import pytest

from bnmc._kernels.cpu.scaling import rescale
from bnmc._kernels.scalar.scaling import LEEWAY, shift_of, shift_of_square


@pytest.mark.parametrize("exponent", [-1074, -1022, -300, -9, -8, -1, 0, 7, 8, 9, 500, 1023])
def test_a_unit_changes_if_a_size_is_far_from_one(exponent):
    size = math.ldexp(1.0, exponent)
    shift = shift_of(size)
    # frexp counts from 1/2.
    assert shift == (exponent + 1 if abs(exponent + 1) > LEEWAY else 0)
    assert abs(shift_of_square(size)) in (0, abs((exponent + 1) // 2))
    assert (shift_of_square(size) == 0) == (abs((exponent + 1) // 2) <= LEEWAY)


def test_zero_has_no_size():
    assert shift_of(0.0) == shift_of_square(0.0) == shift_of(math.nan) == 0


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("skipped", [False, True])
def test_new_units_change_no_bit(dtype, skipped):
    generator = np.random.default_rng(0)
    powers = np.array([-30, 0, 25, 3])
    a = np.ldexp(generator.normal(size=(4, 512)), powers[:, None]).astype(dtype)
    a[3] = 0.0  # lives on in x alone
    x = np.ldexp(generator.normal(size=(4, 512)), powers[:, None] + [[0], [0], [0], [40]])
    x = x.astype(dtype) if skipped else np.zeros((0, 0), dtype)
    gram = a.astype(np.float64) @ a.astype(np.float64).T / 512
    before = gram.copy(), x.copy(), a.copy()
    exponents = np.array([5, 6, 7, 8])
    assert rescale(gram, x, a, exponents, 2, 512)
    shifts = exponents - np.array([5, 6, 7, 8]) - 2
    assert shifts[1] == 0
    assert (np.abs(shifts[[0, 2]] - powers[[0, 2]]) <= 1).all()
    assert (shifts[3] > 40) == skipped
    np.testing.assert_array_equal(np.ldexp(gram, shifts[:, None] + shifts), before[0])
    np.testing.assert_array_equal(np.ldexp(a, shifts[:, None].astype(np.int32)), before[2])
    if skipped:
        np.testing.assert_array_equal(np.ldexp(x, shifts[:, None].astype(np.int32)), before[1])
        x[2, 100] = -np.inf
        assert not rescale(gram, x, a, exponents, 0, 512)
