"""Fig. 10 on digits, with fixed seeds."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from bnmc.experiments.pictures import curve  # noqa: E402
from bnmc.experiments.training.networks import convolutional, seeded  # noqa: E402
from bnmc.torch.losses import gradient_cosines  # noqa: E402


class TestFig10:
    @pytest.fixture
    def figure(self, small):
        return small("rank-collapse-10")

    def test_gradients_are_parallel_without_batch_norm_only(self, figure):
        cosine = curve(figure.data, "mean_correlation")[:, 0]
        assert cosine[0, 2] < cosine[1, 1]
        np.testing.assert_allclose(cosine[1:, 0], 1, atol=1e-3)

    def test_random_images_give_the_same_path(self, figure):
        loss = curve(figure.data, "loss")[..., 0]
        np.testing.assert_allclose(loss[3], loss[1], rtol=0.02)
        assert curve(figure.data, "accuracy")[0, -1, 0] > 0.3
        assert curve(figure.data, "accuracy")[1, -1, 0] < 0.2

    def test_findings(self, figure):
        assert "100-fold" in figure.findings[1]

    def test_the_cosine_of_gradients_is_that_of_representations(self):
        """Proposition 19: for the weights of one neuron of the last layer."""
        with seeded(3):
            model = convolutional(1, 8, ((4, 4), (4,)), norm="batch")
        x = torch.rand(5, 1, 8, 8, dtype=torch.float64)
        hidden = model[:-1](x)
        row = model[-1].weight[2].detach().clone().requires_grad_()
        weight = torch.cat([model[-1].weight[:2], row[None], model[-1].weight[3:]])
        output = hidden @ weight.T + model[-1].bias
        losses = torch.nn.functional.cross_entropy(output, torch.arange(5), reduction="none")
        cosines = np.abs(gradient_cosines(losses, {"row": row})[0])
        h = hidden.detach().numpy()
        h = h / np.linalg.norm(h, axis=1, keepdims=True)
        np.testing.assert_allclose(cosines, np.abs(h @ h.T), rtol=1e-9)
