"""Fig. 3b: the start, and the return of lost directions.

Intervals of 95 % are widened to `CERTAIN`, where all comparisons of a test together fail with
probability at most 1e-6 if the theory holds.
"""

import numpy as np
import pytest
from experiment_checks import errors

from bnmc.experiments.pictures import curve

FIGURE = "rank-collapse-3b"


def test_the_start_is_nearly_of_rank_one(data):
    eigenvalues = data.eigenvalue.values[0]
    assert eigenvalues[0] == pytest.approx(20, rel=1e-9)
    # Noise of 5e-7 of the rest has singular values up to 2 √20 times that, over √20.
    assert np.all(eigenvalues[1:] < (2 * 5e-7 * 1.5) ** 2 * 20)
    assert data.rank_bound.values[0] == pytest.approx(1, abs=1e-9)


def test_small_eigenvalues_rise_while_the_largest_falls(data):
    eigenvalues = data.eigenvalue.values
    assert eigenvalues[0, 1] < 1e-10 < 1 < eigenvalues[10, 1]
    assert eigenvalues[10, 0] < eigenvalues[0, 0]


def test_the_start_is_forgotten(data):
    last = np.log(curve(data, "eigenvalue")[-1])
    settled = np.log(curve(data, "settled"))
    (error, allowed), (other, _) = errors(last, 64), errors(settled, 64)
    assert np.all(np.abs(last[:, 0] - settled[:, 0]) <= allowed * np.hypot(error, other))
