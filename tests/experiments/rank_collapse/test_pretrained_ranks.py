"""Fig. 4 on digits, with fixed seeds."""

import numpy as np
import pytest
from experiment_checks import documented, require_sound

torch = pytest.importorskip("torch")

from bnmc.experiments.data import curve  # noqa: E402
from bnmc.experiments.rank_collapse import pretrained_ranks  # noqa: E402
from bnmc.experiments.rank_collapse.pretrained_ranks import _network  # noqa: E402
from bnmc.experiments.training.networks import seeded  # noqa: E402


class TestFig4:
    def test_pre_trained_ranks_are_above_plain_ones(self, fig_4):
        bound = curve(fig_4.data, "rank_bound")[:, :, 0]
        assert np.all(bound[1, :, 1] > bound[0, :, 2])
        assert bound[0, 1, 0] < 2

    def test_findings_and_picture(self, fig_4):
        require_sound(fig_4, "rank-collapse-4")
        assert "with pre-training" in fig_4.findings[0]

    def test_weights_have_the_variance_of_the_paper(self):
        with seeded(0):
            weight = _network(300, 100, 1)[1].weight.detach().numpy()
        # 30 000 normal weights: the relative deviation of the variance is below 5 √(2/30 000).
        assert abs(np.square(weight).mean() / (2 / 400) - 1) < 5 * np.sqrt(2 / weight.size)

    def test_the_sizes_are_those_of_the_docstring(self):
        text = documented(pretrained_ranks.fig_4)
        one, full = pretrained_ranks.DEFAULT, pretrained_ranks.FULL
        short = {rate: f"{rate:g}".lstrip("0") for sizes in (one, full)
                 for rate in (*sizes.rates, sizes.pretraining_rate)}  # fmt: skip
        assert (
            f"The default has {one.images} digits, width {one.width}, batch size {one.batch}, "
            f"{one.batches} batches of {one.steps} steps with learning rate "
            f"{short[one.pretraining_rate]}, and {one.epochs} epochs with the better one of the "
            f"learning rates {short[one.rates[0]]} and {short[one.rates[1]]}."
        ) in text
        assert (
            f"grey values from 0 to {full.scale:g}, width {full.width}, batch size {full.batch}, "
            f"{full.batches} batches of {full.steps} steps of pre-training with learning rate "
            f"{short[full.pretraining_rate]}, and then {full.epochs} epochs; `full` has these "
            f"sizes, and the better one of the learning rates {short[full.rates[0]]} and "
            f"{short[full.rates[1]]}."
        ) in text
