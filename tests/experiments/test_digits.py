"""The handwritten digits."""

from __future__ import annotations

import numpy as np
import pytest

from bnmc.errors import ArgumentError
from bnmc.experiments import digits


class TestDigits:
    def test_distinct_and_every_class_in_turn(self) -> None:
        from sklearn.datasets import load_digits

        x = digits.digits(25)
        bundled = load_digits()
        labels = [
            int(bundled.target[(bundled.data == 16 * column).all(axis=1)][0]) for column in x.T
        ]
        assert labels == [*range(10), *range(10), *range(5)]
        assert len(np.unique(x, axis=1).T) == 25
        assert x.min() == 0
        assert x.max() == 1

    def test_fewer_are_the_first_of_more(self) -> None:
        np.testing.assert_array_equal(digits.digits(7), digits.digits(30)[:, :7])

    @pytest.mark.parametrize("count", [0, -1, 1741])
    def test_out_of_range(self, count: int) -> None:
        with pytest.raises(ArgumentError, match="^batch"):
            digits.digits(count)
