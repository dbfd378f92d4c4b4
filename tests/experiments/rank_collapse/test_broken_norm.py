"""Fig. 5 on digits, with fixed seeds; Figs. 1 and 4 train such networks each time."""

import numpy as np
import pytest
from experiment_checks import require_sound

torch = pytest.importorskip("torch")

from bnmc.experiments.data import curve  # noqa: E402
from bnmc.experiments.rank_collapse.broken_norm import VGG19, broken  # noqa: E402


class TestFig5:
    @pytest.mark.slow
    def test_positive_weights_lower_rank_bound_and_accuracy(self, fig_5):
        bound, accuracy = curve(fig_5.data, "rank_bound")[:, 0], curve(fig_5.data, "accuracy")
        for usual, positive in ((0, 2), (3, 5)):
            assert bound[positive, 2] < bound[usual, 1]
            assert accuracy[positive, -1, 2] < accuracy[usual, -1, 1]

    @pytest.mark.slow
    def test_findings_and_picture(self, fig_5):
        require_sound(fig_5, "rank-collapse-5")
        assert fig_5.findings[0].startswith("Perceptron: positive weights change the rank")
        assert fig_5.findings[2].startswith("Convolutions: ")

    def test_a_broken_network_has_positive_weights(self):
        model = torch.nn.Linear(20, 20)
        broken("uniform")(model, None, np.random.default_rng(0))
        assert bool((model.weight >= 0).all())


def test_vgg19_has_19_layers_with_weights():
    """Three of them are fully connected (Simonyan and Zisserman, 2015)."""
    assert sum(map(len, VGG19)) + 3 == 19
    assert all(len(set(stage)) == 1 for stage in VGG19)
