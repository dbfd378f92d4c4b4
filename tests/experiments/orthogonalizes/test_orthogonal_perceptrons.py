"""Fig. 4 on digits, with fixed seeds."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from bnmc.experiments.pictures import curve  # noqa: E402


class TestFig4:
    @pytest.fixture
    def figure(self, small):
        return small("orthogonalizes-4")

    def test_the_orthogonal_start_and_batch_norm_have_small_gaps(self, figure):
        gap = curve(figure.data, "orthogonality_gap")[:, :, 0]
        assert np.all(gap[1:, 1, 2] < gap[0, 1, 1])

    def test_the_orthogonal_start_is_the_authors(self, figure):
        """Outputs near 0, so the loss is log 10; and gradients that grow with depth."""
        loss = curve(figure.data, "loss")[1, :, 0, 0]
        np.testing.assert_allclose(loss, np.log(10), rtol=0.01)
        gradient = curve(figure.data, "gradient_norm")[1, :, 0, 0]
        assert gradient[1] > gradient[0]

    def test_findings(self, figure):
        assert any("beside that with batch norm" in sentence for sentence in figure.findings)
        assert set(np.unique(figure.data.rate)) <= {0.01, 0.1}
