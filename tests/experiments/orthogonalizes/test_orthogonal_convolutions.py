"""Fig. 7 on digits, with fixed seeds."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from bnmc.experiments.orthogonalizes.orthogonal_convolutions import _network  # noqa: E402
from bnmc.experiments.pictures import curve  # noqa: E402
from bnmc.experiments.training.images import images  # noqa: E402


class TestFig7:
    @pytest.fixture
    def figure(self, small):
        return small("orthogonalizes-7")

    def test_samples_are_more_orthogonal_with_batch_norm_only(self, figure):
        gap = curve(figure.data, "orthogonality_gap")[:, -1, 0]
        assert gap[2, 0] < min(gap[0, 0], gap[1, 0])
        assert np.isfinite(curve(figure.data, "loss")[2]).all()

    def test_findings(self, figure):
        assert "further convolutions" in figure.findings[1]

    def test_further_convolutions_follow_the_last_stage(self):
        model = _network(images(None, 32, 32), ((4,), (6, 5)), 3)
        outs = [part.out_channels for part in model if isinstance(part, torch.nn.Conv2d)]
        assert outs == [4, 6, 5, 5, 5, 5]
