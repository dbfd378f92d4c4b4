"""Fig. 2b beside theory and plain NumPy networks.

Intervals of 95 % are widened to `CERTAIN`, where all comparisons of a test together fail with
probability at most 1e-6 if the theory holds.
"""

import math

import numpy as np
import pytest
from experiment_checks import CERTAIN, drawn, gaps, networks, reach, slope_error
from scipy import special


class TestFig2b:
    @pytest.fixture
    def fig_2b(self, small):
        return small("orthogonalizes-2b")

    def test_the_gap_has_its_closed_form_at_large_width(self, fig_2b):
        for width, found, _, theory in fig_2b.table.rows:
            chi = math.exp(special.gammaln(5) - special.gammaln(4.5)) / math.sqrt(4.5)
            closed = chi * math.sqrt(3 * 6**2 / (4 * 4 * 5 * width))
            assert theory == pytest.approx(closed, rel=1e-12)
            assert abs(found.value - closed) <= reach(found) + closed * 4 / width

    def test_the_slope_is_a_half_and_the_printed_average_flattens_it(self, fig_2b):
        slope, stderr = (float(fig_2b.data.slope), slope_error(fig_2b.data, "slope"))
        allowed = special.stdtrit(31, 1 - CERTAIN / 2)  # errors are those of 32 networks
        # A relative excess of at most 4/d bends the slope between widths 16 and 4096 by this.
        assert abs(slope + 0.5) <= allowed * stderr + math.log1p(4 / 16) / math.log(256)
        flat = float(fig_2b.data.slope_of_all_layers)
        flat_error = slope_error(fig_2b.data, "slope_of_all_layers")
        assert flat - slope > allowed * math.hypot(stderr, flat_error)

    def test_narrow_networks_agree_with_plain_ones(self, fig_2b):
        shares = networks(np.diag([1.0, 1e-6, 1e-6, 1e-6]), 16, 120, 200, seed=13)
        plain = gaps(shares)[:, 60:].mean(axis=1)
        found = fig_2b.table.rows[0][1]
        error = plain.std(ddof=1) / math.sqrt(len(plain))
        assert abs(found.value - plain.mean()) <= reach(found) * (1 + error / found.stderr)

    def test_picture(self, fig_2b):
        ax = fig_2b.plot().axes[0]
        for values in [fig_2b.data.gap, fig_2b.data.gap_of_all_layers]:
            assert drawn(ax, values)
