"""Fig. 6 on digits, with fixed seeds; Figs. 1 and 4 train such networks each time."""

import numpy as np
import pytest
from experiment_checks import documented, require_sound

torch = pytest.importorskip("torch")

from bnmc.experiments.data import curve  # noqa: E402
from bnmc.experiments.rank_collapse import rank_in_training  # noqa: E402
from bnmc.experiments.training.networks import mlp  # noqa: E402


class TestFig6:
    @pytest.mark.slow
    def test_pre_training_and_batch_norm_raise_the_rank(self, fig_6):
        bound = curve(fig_6.data, "rank_bound")[:, 0, 0]
        plain, few, many, normed, asymmetric = bound
        assert plain == pytest.approx(1, abs=1e-2)
        assert many > max(plain, few)
        assert normed > 2 * asymmetric

    @pytest.mark.slow
    def test_findings_and_picture(self, fig_6):
        require_sound(fig_6, "rank-collapse-6")
        assert fig_6.findings[0].count(";") == 4
        assert fig_6.findings[3].startswith("Pre-trained, 5 steps")

    def test_every_fourth_hidden_layer_is_pre_trained(self, monkeypatch):
        seen = {}
        monkeypatch.setattr(
            rank_in_training, "maximize_rank_", lambda model, batch, **given: seen.update(given)
        )
        sizes = rank_in_training.DEFAULT
        prepare = rank_in_training._pretrained(sizes, 7)
        prepare(mlp(64, 8, 12), torch.zeros(40, 64), np.random.default_rng(0))
        # Flatten is module 0, and each hidden layer is a linear one and a ReLU.
        assert seen["layers"] == [str(1 + 2 * layer) for layer in (3, 7, 11)]
        assert (seen["steps"], seen["learning_rate"]) == (7, 1.0)

    def test_the_sizes_are_those_of_the_docstring(self):
        text = documented(rank_in_training.fig_6)
        one, full = rank_in_training.DEFAULT, rank_in_training.FULL
        assert (
            f"width {full.width}, {full.depth} hidden layers and {full.epochs} epochs; `full` has "
            f"these sizes. The default has {one.images} digits, width {one.width}, {one.depth} "
            f"hidden layers, {one.epochs} epochs, and {one.steps[0]} and {one.steps[1]} steps of "
            f"pre-training with learning rate {one.pretraining_rate:g}"
        ) in text
        assert (
            f"The code pre-trains layers {full.every}, {2 * full.every}, … with {full.steps[0]} "
            f"and {full.steps[1]} steps"
        ) in text
