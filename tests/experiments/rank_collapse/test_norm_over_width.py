"""Fig. 9 beside plain NumPy networks, Lemma 13 and numbers of another program.

Intervals of 95 % are widened to `CERTAIN`, where all comparisons of a test together fail with
probability at most 1e-6 if the theory holds.
"""

import math

import numpy as np
import pytest
from experiment_checks import CERTAIN, reach
from scipy import special


@pytest.fixture
def fig_9(small):
    return small("rank-collapse-9")


class TestFig9:
    def test_the_norm_grows_a_little_slower_than_the_bound_of_lemma_13(self, fig_9):
        for (_, _, norm, scaled, bound), known in zip(
            fig_9.table.rows[:3], (1.30, 1.23, 1.175), strict=True
        ):
            assert norm.value == pytest.approx(scaled.value * norm_unit(norm, scaled), rel=1e-12)
            assert abs(scaled.value - known) <= reach(scaled) + 0.01 * known
            assert scaled.value + reach(scaled) < bound
        alpha = fig_9.data.alpha.values
        lemma = fig_9.data.width.values**1.5 / (2 * np.sqrt(1 - alpha))
        np.testing.assert_allclose(fig_9.data.lemma_13, lemma, rtol=1e-12)
        slope = float(fig_9.data.slope[0])
        stderr = (float(fig_9.data.slope_high[0]) - slope) / special.ndtri(0.975)
        reference = 1.5 + math.log(1.175 / 1.30) / math.log(4)
        allowed = special.stdtrit(31, 1 - CERTAIN / 2) * stderr
        assert abs(slope - reference) <= allowed + 2 * 0.01 / math.log(4)

    def test_the_norm_is_that_of_plain_networks(self, fig_9, plain):
        expected = np.square(plain).sum(axis=(-2, -1)).mean(axis=1)
        found = fig_9.table.rows[0][2]
        error = math.hypot(found.stderr, expected.std(ddof=1) / 20)
        allowed = special.stdtrit(found.n - 1, 1 - CERTAIN / 2)
        assert abs(found.value - expected.mean()) <= allowed * error


def norm_unit(norm, scaled):
    return round((norm.value / scaled.value) ** (2 / 3)) ** 1.5
