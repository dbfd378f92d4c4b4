"""Fig. 4 on digits, with fixed seeds."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from bnmc.experiments.pictures import curve  # noqa: E402
from bnmc.experiments.rank_collapse.pretrained_ranks import _network  # noqa: E402
from bnmc.experiments.training.networks import seeded  # noqa: E402


class TestFig4:
    @pytest.fixture
    def figure(self, small):
        return small("rank-collapse-4")

    def test_pre_trained_ranks_are_above_plain_ones(self, figure):
        bound = curve(figure.data, "rank_bound")[:, :, 0]
        assert np.all(bound[1, :, 1] > bound[0, :, 2])
        assert bound[0, 1, 0] < 2

    def test_findings(self, figure):
        assert "with pre-training" in figure.findings[0]

    def test_weights_have_the_variance_of_the_paper(self):
        with seeded(0):
            weight = _network(300, 100, 1)[1].weight.detach().numpy()
        # 30 000 normal weights: the relative deviation of the variance is below 5 √(2/30 000).
        assert abs(np.square(weight).mean() / (2 / 400) - 1) < 5 * np.sqrt(2 / weight.size)
