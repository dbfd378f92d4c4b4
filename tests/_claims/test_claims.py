"""Claims about rows: what is left of rows that cancel to rounding says nothing."""

import math

import numpy as np
import pytest

from bnmc._claims import claims

#: The mean square of two rows up to which they are rounding errors.
NOTHING = 1e-10


def two_rows(total):
    """Return a sample of two rows of one entry whose squares have this sum in float64."""
    first = np.nextafter(math.sqrt(total), 0.0)
    if first * first >= total:
        first = np.nextafter(first, 0.0)
    second = math.sqrt(total - first * first)  # the difference is exact
    assert first * first + second * second == total
    return np.array([[[first], [second]]])


@pytest.mark.parametrize(
    ("total", "counts"),
    [(2 * NOTHING, False), (np.nextafter(2 * NOTHING, 1.0), True), (0.0, False), (1.0, True)],
)
def test_mean_squares_up_to_a_rounding_error_say_nothing(total, counts):
    """Of one row that is not 0, the moments are the largest that two rows can have."""
    rows = two_rows(total) if total else np.zeros((1, 2, 1))
    fourth, norms = claims._fourth_moments(rows), claims._norms(rows)
    expected = 3 * 2 / (2 + 2)
    assert fourth.observed[0, 0] == pytest.approx(2.0 if counts else expected, rel=1e-9)
    assert fourth.expected[0, 0] == expected
    assert norms.observed[0, 0] == pytest.approx(2.0 if counts else 0.0, abs=1e-9)
