"""Networks with all their rows: products with weights, and gradients, against the formulas."""

import numpy as np
import pytest
from numpy_network import Networks
from oracle import FALSE_ALARM
from scipy import stats

import bnmc
from bnmc import Chain
from bnmc.chain.start import prepare
from bnmc.errors import NonFiniteError
from bnmc.gradients.network import DrawnWeights, Network, UnseenWeights, start_rows
from bnmc.simulation.runs import Run

CASES = {
    "centred": (Chain(6, 3, "tanh"), None),
    "skip": (Chain(6, 3, "tanh", skip=0.5, gain=0.7), None),
    "uncentred, eps": (Chain(6, 3, "sin", norm="batch-uncentred", eps=0.1), None),
    "none": (Chain(6, 3, "tanh", norm="none"), None),
    "inputs": (Chain(7, 3, "relu"), 2),
    "uniform": (Chain(7, 3, "tanh", weights="uniform"), 2),
}


@pytest.mark.parametrize("name", CASES)
def test_drawn_networks_are_those_of_simulate(name):
    chain, inputs = CASES[name]
    groups = inputs or 1
    rng = np.random.default_rng(1)
    initial = rng.standard_normal((groups, chain.width, chain.batch))
    given = initial if inputs else initial[0]
    run = bnmc.simulate(chain, 3, chains=2, inputs=inputs, initial=given, sampler="weights", rng=5)
    weights = [
        np.stack([bnmc.drawn_weights(run, layer, chain=one) for one in range(2)])
        for layer in (1, 2, 3)
    ]
    expected = Networks(chain, 3, 2, None, np.concatenate(initial, axis=1), groups, weights)
    start = prepare(chain, given, 2, inputs)
    of_run = Run(chain, "weights", 2, inputs, "float64", run.key)
    network = Network(of_run, start_rows(of_run, start), DrawnWeights(of_run), 3)
    for layer in range(4):
        np.testing.assert_allclose(network.gram(layer), expected.gram(layer), atol=1e-13)
    delta = rng.standard_normal(expected.h[-1].shape)
    deltas, _ = expected.backward(delta)
    for layer in (3, 2):
        delta = network.down(layer, delta)
        np.testing.assert_allclose(delta, deltas[layer - 2], rtol=1e-10, atol=1e-12)


def test_normal_starts_are_those_of_simulate():
    for chain in (Chain(5, 3, "tanh"), Chain(5, 3, "relu", norm="none")):
        run = bnmc.simulate(chain, 1, chains=3, rng=3)
        start = prepare(chain, "gaussian", 3, None)
        x = start_rows(Run(chain, "weights", 2, None, "float64", run.key, first=1), start)
        a = chain.activation(x)
        np.testing.assert_allclose(a.swapaxes(1, 2) @ a / 5, run.gram[1:, 0], rtol=1e-13)


def test_products_with_unseen_weights_have_their_law():
    # W a and then Wᵀ δ with δ = (W a)², a of rank 2 with 3 columns, at width 4.
    count, rng = 20_000, np.random.default_rng(7)
    a = rng.standard_normal((4, 2)) @ rng.standard_normal((2, 3))
    each = np.broadcast_to(a, (count, 4, 3))
    chain = Chain(4, 3, norm="none")
    run = Run(chain, "conditional", count, None, "float64")
    unseen = UnseenWeights(run, [np.random.default_rng((0, k)) for k in range(count)])
    h = unseen.times(1, each)
    back = unseen.transposed_times(1, each, h**2)
    real = rng.standard_normal((count, 4, 4)) / 2
    real_h = real @ a
    real_back = real.swapaxes(1, 2) @ real_h**2

    def features(h, back):
        products = (h * back).sum(axis=(1, 2)), (a * back).sum(axis=(1, 2))
        return np.stack([h[:, 0, 0], back[:, 0, 0], back[:, 1, 2], *products], axis=1)

    ours, theirs = features(h, back), features(real_h, real_back)
    values = [stats.ks_2samp(x, y).pvalue for x, y in zip(ours.T, theirs.T, strict=True)]
    assert min(values) > FALSE_ALARM / len(values), np.round(values, 4)
    # What W a determines, it determines exactly: aᵀ Wᵀ δ = (W a)ᵀ δ.
    np.testing.assert_allclose(
        a.T @ back, h.swapaxes(1, 2) @ h**2, rtol=1e-8, atol=1e-8 * np.abs(a.T @ back).max()
    )


def test_hidden_rows_have_no_mean_if_the_norm_centres():
    chain = Chain(5, 4, "tanh", eps=0.3)
    run = Run(chain, "weights", 1, None, "float64")
    weights = UnseenWeights(run, [np.random.default_rng(0)])
    x = np.random.default_rng(1).standard_normal((1, 5, 4))
    network = Network(run, x, weights, 1)
    h = weights.times(1, x)  # another draw, of the shape only
    assert network.hidden(1).shape == h.shape
    np.testing.assert_allclose(network.hidden(1).mean(axis=2), 0.0, atol=1e-14)
    spread = np.sqrt(network.hidden(1).var(axis=2, keepdims=True) + 0.3)
    np.testing.assert_allclose(network.hidden(1) / spread, network.layers[1].x, rtol=1e-12)


def test_layers_out_of_range_raise():
    chain = Chain(5, 4, "relu", norm="none", gain=1e-80)
    run = Run(chain, "weights", 1, None, "float64")
    weights = UnseenWeights(run, [np.random.default_rng(0)])
    with pytest.raises(NonFiniteError, match="layer 2"):
        Network(run, np.ones((1, 5, 4)), weights, 3)
