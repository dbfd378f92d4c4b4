"""Fig. 7 on digits, with fixed seeds."""

import numpy as np
import pytest
from experiment_checks import require_sound

torch = pytest.importorskip("torch")

from bnmc.experiments.data import curve  # noqa: E402
from bnmc.experiments.orthogonalizes.orthogonal_convolutions import _network  # noqa: E402


class TestFig7:
    def test_samples_are_more_orthogonal_with_batch_norm_only(self, fig_7):
        gap = curve(fig_7.data, "orthogonality_gap")[:, -1, 0]
        assert gap[2, 0] < min(gap[0, 0], gap[1, 0])
        assert np.isfinite(curve(fig_7.data, "loss")[2]).all()

    def test_findings_and_picture(self, fig_7):
        require_sound(fig_7, "orthogonalizes-7")
        assert "further convolutions" in fig_7.findings[1]

    def test_further_convolutions_follow_the_last_stage(self):
        model = _network(((4,), (6, 5)), 1, 8, 3)
        outs = [one.out_channels for one in model if isinstance(one, torch.nn.Conv2d)]
        assert outs == [4, 6, 5, 5, 5, 5]
