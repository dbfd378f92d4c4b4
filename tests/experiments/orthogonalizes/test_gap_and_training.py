"""Fig. 3 on digits, with fixed seeds."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from bnmc.experiments.orthogonalizes.gap_and_training import _where_it_falls  # noqa: E402
from bnmc.experiments.pictures import curve  # noqa: E402


class TestFig3:
    @pytest.fixture
    def figure(self, small):
        return small("orthogonalizes-3")

    def test_deeper_networks_start_with_a_larger_gap_and_learn_more_slowly(self, figure):
        gap, loss = curve(figure.data, "orthogonality_gap"), curve(figure.data, "loss")
        assert gap[1, 0, 1] > gap[0, 0, 2]
        assert loss[1, -1, 0] > loss[0, -1, 0]
        assert np.all(gap[..., 0] <= np.sqrt(1 - 1 / 32))

    def test_findings(self, figure):
        assert "at most it is 0.984" in figure.findings[0]

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ([(-2.0, -3.0, -1.0), (1.0, -0.5, 2.0)], "2; undecided at 12"),
            ([(-2.0, -3.0, -1.0), (1.0, 0.5, 2.0)], "2; it rises at 12"),
            ([(1.0, -0.5, 2.0), (-1.0, -2.0, 0.5)], "none; undecided at 2, 12"),
            ([(1.0, -0.5, 2.0), (-1.0, -2.0, -0.5)], "12; undecided at 2"),
        ],
    )
    def test_a_change_counts_if_its_interval_excludes_0(self, changes, words):
        assert _where_it_falls((2, 12), np.array(changes)) == words
