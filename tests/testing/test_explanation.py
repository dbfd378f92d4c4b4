"""Thresholds of the causes that are named; `test_same_law.py` has the causes themselves."""

from unittest import mock

import numpy as np
import pytest

import bnmc
from bnmc.testing.explanation import _ERRORS, _mean


@pytest.mark.parametrize(("share", "is_named"), [(0.9, False), (1.1, True)])
def test_a_mean_is_named_beyond_eight_errors_of_its_square(share, is_named):
    """The mean square of sums of 50 rows has the standard error √(2/50), for normal entries."""
    ratio = 1.0 + share * _ERRORS * np.sqrt(2 / 50)
    total = np.full((50, 3), np.sqrt(ratio * 7.0 * 1.5))
    state = mock.Mock(shift=np.zeros((50, 3)), total=total, calls=7, variance=1.5)
    chain = bnmc.Chain(50, 4, "relu")
    found = list(_mean(chain, [state], {"mean 0"}, spread_is_right=False))
    assert found == (["the mean of h' given h is not skip N(h): a bias, or a residual part?"]
                     if is_named else [])  # fmt: skip
    assert len(list(_mean(chain, [state], {"mean 0"}, spread_is_right=True))) == 1
    assert not list(_mean(chain, [state], {"rows independent"}, spread_is_right=True))
