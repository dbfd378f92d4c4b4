"""The handwritten digits."""

from __future__ import annotations

import numpy as np
import pytest

from bnmc.errors import ArgumentError
from bnmc.experiments import digits


class TestDigits:
    def test_as_in_scikit_learn(self) -> None:
        from sklearn.datasets import load_digits

        bundled = load_digits()
        x = digits.digits(1740)
        for digit in range(10):
            images = bundled.data[bundled.target == digit]
            np.testing.assert_array_equal(16 * x[:, digit::10].T, images[:174])

    def test_fewer_are_the_first_of_more(self) -> None:
        np.testing.assert_array_equal(digits.digits(7), digits.digits(30)[:, :7])

    @pytest.mark.parametrize("count", [0, -1, 1741])
    def test_out_of_range(self, count: int) -> None:
        with pytest.raises(ArgumentError, match="^batch"):
            digits.digits(count)
