"""Figs. 3, 4 and 7 on digits, with fixed seeds, and orthogonal starts."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from bnmc.errors import ArgumentError  # noqa: E402
from bnmc.experiments.orthogonalizes import trained_networks  # noqa: E402
from bnmc.experiments.pictures import curve  # noqa: E402
from bnmc.experiments.training.images import images  # noqa: E402
from bnmc.experiments.training.networks import convolutional, seeded, xavier_  # noqa: E402


class TestFig3:
    FIGURE = "orthogonalizes-3"

    def test_deeper_networks_start_with_a_larger_gap_and_learn_more_slowly(self, data):
        gap, loss = curve(data, "orthogonality_gap"), curve(data, "loss")
        assert gap[1, 0, 1] > gap[0, 0, 2]
        assert loss[1, -1, 0] > loss[0, -1, 0]
        assert np.all(gap[..., 0] <= np.sqrt(1 - 1 / 32))

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ([(-2.0, -3.0, -1.0), (1.0, -0.5, 2.0)], "2; undecided at 12"),
            ([(-2.0, -3.0, -1.0), (1.0, 0.5, 2.0)], "2; it rises at 12"),
            ([(1.0, -0.5, 2.0), (-1.0, -2.0, 0.5)], "none; undecided at 2, 12"),
            ([(1.0, -0.5, 2.0), (-1.0, -2.0, -0.5)], "12; undecided at 2"),
        ],
    )
    def test_a_change_counts_if_its_interval_excludes_0(self, changes, words):
        assert trained_networks._where_it_falls((2, 12), np.array(changes)) == words


class TestFig4:
    FIGURE = "orthogonalizes-4"

    def test_the_orthogonal_start_and_batch_norm_have_small_gaps(self, data):
        gap = curve(data, "orthogonality_gap")[:, :, 0]
        assert np.all(gap[1:, 1, 2] < gap[0, 1, 1])

    def test_the_orthogonal_start_is_the_authors(self, data):
        """Outputs near 0, so the loss is log 10; and gradients that grow with depth."""
        loss = curve(data, "loss")[1, :, 0, 0]
        np.testing.assert_allclose(loss, np.log(10), rtol=0.01)
        gradient = curve(data, "gradient_norm")[1, :, 0, 0]
        assert gradient[1] > gradient[0]


class TestFig7:
    FIGURE = "orthogonalizes-7"

    def test_samples_are_more_orthogonal_with_batch_norm_only(self, data):
        gap = curve(data, "orthogonality_gap")[:, -1, 0]
        assert gap[2, 0] < min(gap[0, 0], gap[1, 0])
        assert np.isfinite(curve(data, "loss")[2]).all()

    def test_further_convolutions_follow_the_last_stage(self):
        model = trained_networks._network(images(None, 32, 32), ((4,), (6, 5)), 3)
        outs = [part.out_channels for part in model if isinstance(part, torch.nn.Conv2d)]
        assert outs == [4, 6, 5, 5, 5, 5]


@pytest.mark.parametrize("power", [-1.0, -0.5])
def test_hidden_outputs_have_norm_one(power):
    x = torch.rand(20, 1, 4, 4, dtype=torch.float64)
    with seeded(1):
        model = trained_networks._xavier(16, 24, 4)
        first = model[1].weight.detach().clone()
        trained_networks._orthogonal_start(12, power)(model, x, np.random.default_rng(0))
    assert torch.equal(model[1].weight, first)
    model.requires_grad_(False)
    h = x[:12].reshape(12, 16)
    for number, layer in enumerate(part for part in model if isinstance(part, torch.nn.Linear)):
        if number:
            h = h.relu()
        h = h @ layer.weight.T
        if number == 1:
            # The authors divide by the Frobenius norm of the layer's output.
            assert float(h.norm()) == pytest.approx(1.0, rel=1e-9)
        if number in (1, 2, 3) and power == -1.0:
            gram = h @ h.T
            gram = gram / gram.trace()
            assert float((gram - torch.eye(12, dtype=torch.float64) / 12).norm()) < 1e-9


def test_convolutions():
    x = torch.rand(6, 2, 8, 8, dtype=torch.float64)
    with seeded(2):
        model = xavier_(convolutional(2, 8, ((4,), (4, 4))))
        trained_networks._orthogonal_start(6, -0.5)(model, x, np.random.default_rng(0))
    model.requires_grad_(False)
    assert float(model[:4](x).norm()) == pytest.approx(1.0, rel=1e-6)


def test_the_start_keeps_the_mean_square():
    """Xavier's weights with gain √2 have E h² of a ReLU layer equal to that of its input."""
    with seeded(0):
        model = trained_networks._xavier(400, 400, 1)
    x = torch.randn(200, 400, dtype=torch.float64)
    ratio = float(model[:3](x).detach().square().mean() / x.square().mean())
    # 80 000 numbers max(z, 0)² with E = 1/2 · 2: the relative deviation of a mean over 200
    # independent samples is below √(5/200); half of it is 5 of the actual deviations.
    assert abs(ratio - 1) < 0.08


def test_other_powers_raise():
    with pytest.raises(ArgumentError, match="power: got 0.25, allowed: -1, -0.5, 0.5"):
        trained_networks._orthogonal_start(12, 0.25)
