"""Thresholds of the causes that are named; `test_same_law.py` has the causes themselves."""

from unittest import mock

import numpy as np
import pytest

import bnmc
from bnmc.testing.explanation import _ERRORS, _mean, _norms_of_rows


@pytest.mark.parametrize(("share", "is_named"), [(0.9, False), (1.1, True)])
def test_a_mean_is_named_beyond_eight_errors_of_its_square(share, is_named):
    """The mean square of sums of 50 rows has the standard error √(2/50), for normal entries."""
    ratio = 1.0 + share * _ERRORS * np.sqrt(2 / 50)
    total = np.full((50, 3), np.sqrt(ratio * 7.0 * 1.5))
    state = mock.Mock(
        shift=np.zeros((50, 3)), total=total, calls=7, numbers=7 * 150, variance=1.5, unit=1.5
    )
    chain = bnmc.Chain(50, 4, "relu")
    causes = list(_mean(chain, [state], {"mean 0"}, spread_is_right=False))
    text = "the mean of h' given h is not skip N(h): a bias, or a residual part?"
    assert causes == [text] * is_named
    assert len(list(_mean(chain, [state], {"mean 0"}, spread_is_right=True))) == 1
    assert not list(_mean(chain, [state], {"rows independent"}, spread_is_right=True))


@pytest.mark.parametrize("side", [-1.0, 1.0])
@pytest.mark.parametrize(("share", "is_named"), [(0.95, True), (1.05, False)])
def test_normalized_rows_are_named_within_five_errors_of_their_kurtosis(side, share, is_named):
    """An entry of a row uniform on the sphere of width d has the excess kurtosis −6/(d + 2).

    Squares 1 + 2v of a third of the weights and 1 − v of the others have the mean 1, so the excess
    kurtosis is 2v² − 2.
    """
    width, rank, third = 10, 3, 2000
    kurtosis = -6.0 / (width + 2) + side * share * 5.0 * np.sqrt(24.0 / (3 * third))
    v = np.sqrt(kurtosis / 2.0 + 1.0)
    weights = np.sqrt(np.repeat([1.0 + 2.0 * v, 1.0 - v, 1.0 - v], third))
    # Rows of norm 1 have the mean fourth power d/(d + 2), in units of that of normal rows.
    norms = np.full(4 * width, np.sqrt(rank * (rank + 2) * width / (width + 2)))
    state = mock.Mock(
        total=np.zeros((width, rank)), unit=1.0, rank=rank, readings=weights, norms=norms,
        energies=np.sqrt(2 * width * rank) * np.array([0.0, 2.0]),
    )  # fmt: skip
    assert bool(list(_norms_of_rows([state], {"rows: spread of norms"}))) == is_named
    state.readings = np.empty(0)
    assert list(_norms_of_rows([state], {"rows: spread of norms"}))
