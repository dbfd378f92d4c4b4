"""Averages that Figs. 3a, 8 and 9 share."""

import math

import numpy as np
import pytest

from bnmc.errors import ArgumentError
from bnmc.experiments.rank_collapse import fig_8


def test_figures_of_one_seed_share_their_networks(small):
    fig_3a, fig_8, fig_9 = (small(f"rank-collapse-{number}") for number in ("3a", "8", "9"))
    np.testing.assert_array_equal(fig_8.data.alpha, fig_9.data.alpha)
    assert fig_3a.data.attrs["layers"] == fig_9.data.attrs["layers"]


@pytest.mark.parametrize("name", ["widths", "networks", "rtols", "depths"])
def test_each_gamma_has_its_sizes(name):
    sizes = {"widths": ((8, 16),), "networks": (2,), "rtols": (0.1,), "depths": (8,)}
    sizes[name] *= 2
    with pytest.raises(ArgumentError, match=f"^{name}: got .*, allowed: 1 of them, one for each"):
        fig_8(gammas=(math.inf,), **sizes)
