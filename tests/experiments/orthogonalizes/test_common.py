"""Orthogonal starts: their gap and their scale."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from bnmc.errors import ArgumentError  # noqa: E402
from bnmc.experiments.orthogonalizes.common import orthogonal_start, xavier  # noqa: E402
from bnmc.experiments.training.networks import convolutional, seeded, xavier_  # noqa: E402


@pytest.mark.parametrize("power", [-1.0, -0.5])
def test_hidden_outputs_have_norm_one(power):
    x = torch.rand(20, 1, 4, 4, dtype=torch.float64)
    with seeded(1):
        model = xavier(16, 24, 4)
        first = model[1].weight.detach().clone()
        orthogonal_start(12, power)(model, x, np.random.default_rng(0))
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
        orthogonal_start(6, -0.5)(model, x, np.random.default_rng(0))
    model.requires_grad_(False)
    assert float(model[:4](x).norm()) == pytest.approx(1.0, rel=1e-6)


def test_the_start_keeps_the_mean_square():
    """Xavier's weights with gain √2 have E h² of a ReLU layer equal to that of its input."""
    with seeded(0):
        model = xavier(400, 400, 1)
    x = torch.randn(200, 400, dtype=torch.float64)
    ratio = float(model[:3](x).detach().square().mean() / x.square().mean())
    # 80 000 numbers max(z, 0)² with E = 1/2 · 2: the relative deviation of a mean over 200
    # independent samples is below √(5/200); half of it is 5 of the actual deviations.
    assert abs(ratio - 1) < 0.08


def test_other_powers_raise():
    with pytest.raises(ArgumentError, match="power: got 0.25, allowed: -1, -0.5, 0.5"):
        orthogonal_start(12, 0.25)
