"""Figs. 4, 5, 6 and 10 on digits, with fixed seeds."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from bnmc.experiments.pictures import curve  # noqa: E402
from bnmc.experiments.rank_collapse import trained_networks  # noqa: E402
from bnmc.experiments.training.networks import convolutional, mlp, seeded  # noqa: E402
from bnmc.torch.losses import gradient_cosines  # noqa: E402


class TestFig4:
    FIGURE = "rank-collapse-4"

    def test_pre_trained_ranks_are_above_plain_ones(self, data):
        bound = curve(data, "rank_bound")[:, :, 0]
        assert np.all(bound[1, :, 1] > bound[0, :, 2])
        assert bound[0, 1, 0] < 2

    def test_weights_have_the_variance_of_the_paper(self):
        with seeded(0):
            weight = trained_networks._network(300, 100, 1)[1].weight.detach().numpy()
        # 30 000 normal weights: the relative deviation of the variance is below 5 √(2/30 000).
        assert abs(np.square(weight).mean() / (2 / 400) - 1) < 5 * np.sqrt(2 / weight.size)


class TestFig5:
    FIGURE = "rank-collapse-5"

    @pytest.mark.slow
    def test_positive_weights_lower_rank_bound_and_accuracy(self, data):
        bound, accuracy = curve(data, "rank_bound")[:, 0], curve(data, "accuracy")
        for usual, positive in ((0, 2), (3, 5), (6, 8)):
            assert bound[positive, 2] < bound[usual, 1]
            assert accuracy[positive, -1, 2] < accuracy[usual, -1, 1]


class TestFig6:
    FIGURE = "rank-collapse-6"

    def test_pre_training_and_batch_norm_raise_the_rank(self, data):
        bound = curve(data, "rank_bound")[:, 0, 0]
        plain, few, many, normed, asymmetric = bound
        assert plain == pytest.approx(1, abs=1e-2)
        assert many > max(plain, few)
        assert normed > 2 * asymmetric

    def test_every_fourth_hidden_layer_is_pre_trained(self, monkeypatch):
        seen = {}
        monkeypatch.setattr(
            trained_networks, "maximize_rank_", lambda model, batch, **given: seen.update(given)
        )
        prepare = trained_networks._pretrained(trained_networks._RankSizes(), 7)
        prepare(mlp(64, 8, 12), torch.zeros(40, 64), np.random.default_rng(0))
        # Flatten is module 0, and each hidden layer is a linear one and a ReLU.
        assert seen["layers"] == [str(1 + 2 * layer) for layer in (3, 7, 11)]
        assert (seen["steps"], seen["learning_rate"]) == (7, 1.0)


class TestFig10:
    FIGURE = "rank-collapse-10"

    def test_gradients_are_parallel_without_batch_norm_only(self, data):
        cosine = curve(data, "mean_correlation")[:, 0]
        assert cosine[0, 2] < cosine[1, 1]
        np.testing.assert_allclose(cosine[1:, 0], 1, atol=1e-3)

    def test_random_images_give_the_same_path(self, data):
        loss = curve(data, "loss")[..., 0]
        np.testing.assert_allclose(loss[3], loss[1], rtol=0.02)
        assert curve(data, "accuracy")[0, -1, 0] > 0.3
        assert curve(data, "accuracy")[1, -1, 0] < 0.2

    def test_findings_of_a_training_that_diverges_name_no_nan(self):
        with np.errstate(all="ignore"):
            figure = trained_networks.fig_10(
                stages=((2,),), batch=8, images=16, epochs=2, rate=1e300, chains=2
            )
        assert np.isnan(curve(figure.data, "loss")[1, 1:]).all()
        assert "nan" not in " ".join(figure.findings)
        assert figure.findings[-1].endswith(" at the records before one diverges.")

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


def test_a_broken_network_has_positive_weights():
    model = torch.nn.Linear(20, 20)
    trained_networks._broken("uniform")(model, None, np.random.default_rng(0))
    assert bool((model.weight >= 0).all())
