"""Fig. 6 on digits, with a fixed seed."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from bnmc.errors import ArgumentError  # noqa: E402
from bnmc.experiments.pictures import curve  # noqa: E402
from bnmc.experiments.rank_collapse import rank_in_training  # noqa: E402
from bnmc.experiments.training.networks import mlp  # noqa: E402


class TestFig6:
    @pytest.fixture
    def figure(self, small):
        return small("rank-collapse-6")

    def test_pre_training_and_batch_norm_raise_the_rank(self, figure):
        bound = curve(figure.data, "rank_bound")[:, 0, 0]
        plain, few, many, normed, asymmetric = bound
        assert plain == pytest.approx(1, abs=1e-2)
        assert many > max(plain, few)
        assert normed > 2 * asymmetric

    def test_findings(self, figure):
        assert figure.findings[0].count(";") == 4
        assert figure.findings[3].startswith("Pre-trained, 5 steps")

    def test_every_fourth_hidden_layer_is_pre_trained(self, monkeypatch):
        seen = {}
        monkeypatch.setattr(
            rank_in_training, "maximize_rank_", lambda model, batch, **given: seen.update(given)
        )
        prepare = rank_in_training._pretrained(rank_in_training.Sizes(), 7)
        prepare(mlp(64, 8, 12), torch.zeros(40, 64), np.random.default_rng(0))
        # Flatten is module 0, and each hidden layer is a linear one and a ReLU.
        assert seen["layers"] == [str(1 + 2 * layer) for layer in (3, 7, 11)]
        assert (seen["steps"], seen["learning_rate"]) == (7, 1.0)

    def test_some_layer_is_pre_trained(self):
        with pytest.raises(ArgumentError, match="every: got 4, allowed: at most depth, 3"):
            rank_in_training.fig_6(depth=3)
