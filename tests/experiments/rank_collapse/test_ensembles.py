"""Averages that Figs. 3a, 8 and 9 share."""

import numpy as np


class TestEnsembles:
    def test_figures_of_one_seed_share_their_networks(self, fig_3a, fig_8, fig_9):
        np.testing.assert_array_equal(fig_8.data.alpha, fig_9.data.alpha)
        assert fig_3a.data.attrs["layers"] == fig_9.data.attrs["layers"]
