"""Training of implicit layers: its law, and its room."""

import numpy as np
import pytest
from scipy import stats
from torch_models import nn, one_thread, torch  # noqa: F401

from bnmc.torch import ImplicitLinear

pytestmark = pytest.mark.usefixtures("one_thread")

FALSE_ALARM = 1e-6
X = torch.linspace(-1.0, 2.0, 12, dtype=torch.float64).cos().reshape(4, 3)
Y = torch.tensor([0, 1, 1, 0])


def network(random, *, is_implicit, seed):
    """Return a network with Gaussian weights, which are drawn or implicit."""
    layers = [nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 2)]
    model = nn.Sequential(*layers).double()
    for layer in model[::2]:
        nn.init.constant_(layer.bias, 0.1)
        size = layer.weight.shape
        layer.weight.data = torch.from_numpy(random.normal(0.0, size[1] ** -0.5, size))
    if is_implicit:
        for place in (0, 2, 4):
            rows, columns = model[place].weight.shape
            new = ImplicitLinear(
                columns, rows, std=columns**-0.5, rng=(seed, place), dtype=torch.float64
            )
            new.bias = model[place].bias
            model[place] = new
    return model


def statistics(model, steps):
    """Return losses of some steps, outputs for other inputs, and norms of gradients."""
    numbers = []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.5, weight_decay=0.1)
    for step in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(X * (step + 1.0)), Y)
        loss.backward()
        numbers.append(loss.item())
        numbers.append(float(model[2].weight.grad.norm()))
        optimizer.step()
    with torch.no_grad():
        numbers += model(X[:1].sin()).flatten().tolist()
    return numbers


@pytest.mark.parametrize("count", [150, pytest.param(5000, marks=pytest.mark.slow)])
def test_trained_networks_have_the_law_of_drawn_weights(count):
    """Kolmogorov and Smirnov, with the bound of Bonferroni over the statistics."""
    steps, random = 2, np.random.default_rng(0)
    samples = [
        np.array([
            statistics(network(random, is_implicit=is_implicit, seed=seed), steps)
            for seed in range(count)
        ])
        for is_implicit in (False, True)
    ]  # fmt: skip
    drawn_numbers, ours = samples
    values = [
        stats.ks_2samp(*pair, method="asymp").pvalue
        for pair in zip(drawn_numbers.T, ours.T, strict=True)
    ]
    assert min(values) * len(values) > FALSE_ALARM
