"""Figs. 2a and 2b beside theory and plain NumPy networks.

Intervals of 95 % are widened to `CERTAIN`, where all comparisons of a test together fail with
probability at most 1e-6 if the theory holds.
"""

import math

import numpy as np
import pytest
from experiment_checks import CERTAIN, errors, gaps, networks, reach, require_mean, slope_error
from scipy import special

from bnmc.experiments.pictures import curve


class TestFig2a:
    FIGURE = "orthogonalizes-2a"

    def test_the_gap_is_that_of_plain_networks(self, data):
        start = np.diag([1.0, 1e-6, 1e-6, 1e-6])
        plain = np.log(gaps(networks(start, 32, 30, 300, seed=12)))
        logs = np.log(curve(data, "gap")[0])
        for layer in (4, 8, 12, 29):
            require_mean((logs[layer], 200), plain[:, layer])

    def test_it_settles_on_the_plateau_to_order_1_over_d(self, data):
        band = np.log(curve(data, "gap")[:, -1])
        error, allowed = errors(band, 200)
        widths = np.array([32, 512])
        # √(E V²) of the closed form, times the geometric mean of a χ variable of 9 dimensions.
        squared = 3 * 6**2 / (4 * 4 * 5 * widths)
        chi = np.exp(special.digamma(4.5) / 2) / math.sqrt(4.5)
        np.testing.assert_allclose(data.plateau, np.sqrt(squared) * chi, rtol=1e-12)
        away = np.abs(band[:, 0] - np.log(data.plateau.values))
        assert np.all(away <= allowed * error + 4 / widths)

    def test_each_layer_has_the_exact_mean_given_the_one_before(self, data):
        band = curve(data, "one_step_excess")
        error, allowed = errors(band, 200)
        assert np.all(np.abs(band[:, 0]) <= allowed * error)
        assert np.all(error < 0.002)

    def test_at_infinite_width_it_contracts_by_two_thirds_a_layer(self, data):
        wide = data.gap_at_infinite_width.values
        ratios = wide[1:] / wide[:-1]
        # The next term is of the order of the gap itself, with a coefficient that depends on the
        # direction; shares are known to 1e-13, and the gap is above 1e-7 here.
        assert np.all(np.abs(ratios[12:35] - 2 / 3) <= 2 * wide[12:35] + 1e-5)

    def test_wide_networks_leave_collinearity_sooner(self, figure):
        narrow, wide = (row[1] for row in figure.table.rows)
        assert narrow.value - wide.value > math.hypot(reach(narrow), reach(wide))


class TestFig2b:
    FIGURE = "orthogonalizes-2b"

    def test_the_gap_has_its_closed_form_at_large_width(self, figure):
        for width, band, _, theory in figure.table.rows:
            chi = math.exp(special.gammaln(5) - special.gammaln(4.5)) / math.sqrt(4.5)
            closed = chi * math.sqrt(3 * 6**2 / (4 * 4 * 5 * width))
            assert theory == pytest.approx(closed, rel=1e-12)
            assert abs(band.value - closed) <= reach(band) + closed * 4 / width

    def test_the_slope_is_a_half_and_the_printed_average_flattens_it(self, data):
        slope, stderr = (float(data.slope), slope_error(data, "slope"))
        allowed = special.stdtrit(31, 1 - CERTAIN / 2)  # errors are those of 32 networks
        # A relative excess of at most 4/d bends the slope between widths 16 and 4096 by this.
        assert abs(slope + 0.5) <= allowed * stderr + math.log1p(4 / 16) / math.log(256)
        flat = float(data.slope_of_all_layers)
        flat_error = slope_error(data, "slope_of_all_layers")
        assert flat - slope > allowed * math.hypot(stderr, flat_error)
