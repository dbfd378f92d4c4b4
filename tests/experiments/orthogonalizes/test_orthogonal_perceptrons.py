"""Fig. 4 on digits, with fixed seeds."""

import numpy as np
import pytest
from experiment_checks import require_sound

torch = pytest.importorskip("torch")

from bnmc.experiments.data import curve  # noqa: E402


class TestFig4:
    def test_the_orthogonal_start_and_batch_norm_have_small_gaps(self, fig_4):
        gap = curve(fig_4.data, "orthogonality_gap")[:, :, 0]
        assert np.all(gap[1:, 1, 2] < gap[0, 1, 1])

    def test_the_orthogonal_start_is_the_authors(self, fig_4):
        """Outputs near 0, so the loss is log 10; and gradients that grow with depth."""
        loss = curve(fig_4.data, "loss")[1, :, 0, 0]
        np.testing.assert_allclose(loss, np.log(10), rtol=0.01)
        gradient = curve(fig_4.data, "gradient_norm")[1, :, 0, 0]
        assert gradient[1] > gradient[0]

    def test_findings_and_picture(self, fig_4):
        require_sound(fig_4, "orthogonalizes-4")
        assert any("beside that with batch norm" in one for one in fig_4.findings)
        assert set(np.unique(fig_4.data.rate)) <= {0.01, 0.1}
