"""Fig. 3 on digits, with fixed seeds."""

import numpy as np
import pytest
from experiment_checks import require_sound

torch = pytest.importorskip("torch")

from bnmc.experiments.data import curve  # noqa: E402
from bnmc.experiments.orthogonalizes.gap_and_training import _findings, xavier  # noqa: E402
from bnmc.experiments.training.networks import seeded  # noqa: E402


class TestFig3:
    def test_deeper_networks_start_with_a_larger_gap_and_learn_more_slowly(self, fig_3):
        gap, loss = curve(fig_3.data, "orthogonality_gap"), curve(fig_3.data, "loss")
        assert gap[1, 0, 1] > gap[0, 0, 2]
        assert loss[1, -1, 0] > loss[0, -1, 0]
        assert np.all(gap[..., 0] <= np.sqrt(1 - 1 / 32))

    def test_findings_and_picture(self, fig_3):
        require_sound(fig_3, "orthogonalizes-3")
        assert "at most it is 0.984" in fig_3.findings[0]

    def test_a_change_counts_if_its_interval_excludes_0(self, fig_3):
        first, second = map(str, fig_3.data.depth.values)
        for interval, words in (
            ((-0.5, 2.0), f"undecided at {second}"), ((0.5, 2.0), f"it rises at {second}"),
        ):  # fmt: skip
            changes = np.array([(-2.0, -3.0, -1.0), (1.0, *interval)])
            assert f"hidden layers: {first}; {words}." in _findings(fig_3.data, changes)[2]
            swapped = np.array([(1.0, -0.5, 2.0), (-1.0, *np.flip(np.negative(interval)))])
            told = _findings(fig_3.data, swapped)[2]
            both = f"none; undecided at {first}, {second}."
            fell = f"{second}; undecided at {first}."
            assert told.endswith(both if interval[0] < 0.0 else fell)

    def test_the_start_keeps_the_mean_square(self):
        """Xavier's weights with gain √2 have E h² of a ReLU layer equal to that of its input."""
        with seeded(0):
            model = xavier(400, 400, 1)
        x = torch.randn(200, 400, dtype=torch.float64)
        ratio = float(model[:3](x).detach().square().mean() / x.square().mean())
        # 80 000 numbers max(z, 0)² with E = 1/2 · 2: the relative deviation of a mean over 200
        # independent samples is below √(5/200); half of it is 5 of the actual deviations.
        assert abs(ratio - 1) < 0.08
