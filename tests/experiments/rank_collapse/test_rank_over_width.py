"""Fig. 3a beside theory and plain NumPy networks.

Intervals of 95 % are widened to `CERTAIN`, where all comparisons of a test together fail with
probability at most 1e-6 if the theory holds.
"""

import math

import numpy as np
import pytest
from experiment_checks import CERTAIN, rank_bound, reach
from scipy import special


@pytest.fixture
def fig_3a(small):
    return small("rank-collapse-3a")


class TestFig3a:
    def test_r_and_the_soft_rank_are_those_of_plain_networks(self, fig_3a, plain):
        soft = (np.linalg.eigvalsh(plain) >= 0.5).sum(axis=-1)
        for column, values in ((2, rank_bound(plain)), (3, soft)):
            expected = values.mean(axis=1)
            found = fig_3a.table.rows[0][column]
            error = math.hypot(found.stderr, expected.std(ddof=1) / 20)
            allowed = special.stdtrit(found.n - 1, 1 - CERTAIN / 2)
            assert abs(found.value - expected.mean()) <= allowed * error

    def test_r_grows_about_like_the_root_of_the_width(self, fig_3a):
        # Local slopes of .563 and .551 were measured apart, from widths 8, 16 and 32, by another
        # program (r = 2.24, 3.31, 4.85, to a percent).
        slope = float(fig_3a.data.rank_bound_slope[0])
        stderr = (float(fig_3a.data.rank_bound_slope_high[0]) - slope) / special.ndtri(0.975)
        reference = math.log(4.85 / 2.24) / math.log(4)
        allowed = special.stdtrit(31, 1 - CERTAIN / 2) * stderr
        assert abs(slope - reference) <= allowed + 2 * 0.01 / math.log(4)
        for row, known in zip(fig_3a.table.rows[:3], (2.24, 3.31, 4.85), strict=True):
            assert abs(row[2].value - known) <= reach(row[2]) + 0.01 * known

    def test_points_are_beside_their_width_only_where_others_are(self, fig_3a):
        left = fig_3a.plot().axes[0]
        first, second = (found.lines[0].get_xdata() for found in left.containers)
        np.testing.assert_allclose(first, [8 / 1.04, 16 / 1.04, 32])
        np.testing.assert_allclose(second, [8, 16])

    def test_r_lies_above_the_bound_and_below_its_neighbours(self, fig_3a):
        for _, _, r, _, lower in fig_3a.table.rows:
            assert r.value - reach(r) > lower
        np.testing.assert_allclose(
            fig_3a.data.theorem_14.values[0], [row[-1] for row in fig_3a.table.rows[:3]], rtol=1e-12
        )
