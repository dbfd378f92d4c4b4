"""Fig. 4 on digits, with fixed seeds."""

import numpy as np
import pytest
from experiment_checks import documented, require_sound

torch = pytest.importorskip("torch")

from bnmc.experiments.data import curve  # noqa: E402
from bnmc.experiments.orthogonalizes import orthogonal_perceptrons  # noqa: E402


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

    def test_the_sizes_are_those_of_the_docstring(self):
        text = documented(orthogonal_perceptrons.fig_4)
        sizes = orthogonal_perceptrons.DEFAULT
        slow, fast = (f"{rate:g}".lstrip("0") for rate in sizes.rates)
        assert (
            f"The default has {sizes.images} digits, width {sizes.width}, batch size "
            f"{sizes.batch}, {sizes.epochs} epochs, {sizes.networks} networks, and the better one "
            f"of the learning rates {slow} and {fast}."
        ) in text
        sizes = orthogonal_perceptrons.FULL
        # The readout is one more layer.
        assert (
            f"width {sizes.width}, batch size {sizes.batch}, {sizes.depths[0] + 1} to "
            f"{sizes.depths[-1] + 1} layers with the readout, {sizes.epochs} epochs, learning rate "
            f"{sizes.rates[0]:g}".replace(" 0.", " .")
            + f" and {sizes.networks} networks"
        ) in text
