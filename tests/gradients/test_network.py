"""Networks with all their rows: products with weights, and gradients, against the formulas."""

import math

import numpy as np
import pytest
from gradient_runs import assert_same_law
from slow_cases import some

import bnmc
from bnmc import Chain
from bnmc.chain.start import prepare
from bnmc.errors import NonFiniteError
from bnmc.gradients.network import (
    Network,
    ReplayedRows,
    UnseenWeights,
    start_rows,
)
from bnmc.simulation.runs import Run


def test_normal_starts_are_those_of_simulate():
    for chain in (Chain(5, 3, "tanh"), Chain(5, 3, "relu", norm="none")):
        run = bnmc.simulate(chain, 1, chains=3, rng=3)
        start = prepare(chain.repeat(0), "gaussian", 3, None)
        x = start_rows(Run(chain.repeat(1), "weights", 2, None, "float64", run.key, first=1), start)
        a = chain.activation(x)
        np.testing.assert_allclose(a.swapaxes(1, 2) @ a / 5, run.gram[1:, 0], rtol=1e-13)


def test_products_with_unseen_weights_have_their_law():
    """W a and then Wᵀ δ with δ = (W a)², a of rank 2 with 3 columns, at width 4."""
    count, rng = 20_000, np.random.default_rng(7)
    a = rng.standard_normal((4, 2)) @ rng.standard_normal((2, 3))
    each = np.broadcast_to(a, (count, 4, 3))
    run = Run(Chain(4, 3, norm="none").repeat(1), "conditional", count, None, "float64")
    unseen = UnseenWeights(run, [np.random.default_rng((0, k)) for k in range(count)])
    h = unseen.times(1, each)
    back = unseen.transposed_times(1, each, h**2)
    real = rng.standard_normal((count, 4, 4)) / 2

    def features(h, back):
        products = (h * back).sum(axis=(1, 2)), (a * back).sum(axis=(1, 2))
        return np.stack([h[:, 0, 0], back[:, 0, 0], back[:, 1, 2], *products], axis=1)

    assert_same_law(features(h, back), features(real @ a, real.swapaxes(1, 2) @ (real @ a) ** 2))
    # What W a determines, it determines exactly: aᵀ Wᵀ δ = (W a)ᵀ δ.
    np.testing.assert_allclose(
        a.T @ back, h.swapaxes(1, 2) @ h**2, rtol=1e-8, atol=1e-8 * np.abs(a.T @ back).max()
    )


#: What the rows of W a depend on: a as it is, of rank 2 with 3 columns; with one more row for the
#: bias; without the means of the rows; two batches.
PRODUCTS = {
    "singular": (Chain(4, 3, "tanh", norm="layer"), None),
    "bias": (Chain(4, 3, "tanh", norm="rms", bias_variance=1.5, gain=1.5), None),
    "centred, inputs": (Chain.resnet(4, 2, "tanh"), 2),
    # The rows that `simulate` draws have another scale, which this norm does not see.
    "uncentred, bias": (
        Chain(4, 3, "tanh", norm="batch-uncentred", bias_variance=1.5, gain=0.1), None
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", some(PRODUCTS, "bias", "singular"))
def test_products_given_the_rows_have_their_law(name):
    """y = W a + b 1ᵀ / gain, and then Wᵀ δ for δ = max(y, 0)²; against real weights and biases."""
    (chain, inputs), count, rng = PRODUCTS[name], 4_000, np.random.default_rng(13)
    columns = chain.batch * (inputs or 1)
    a = rng.standard_normal((4, 2)) @ rng.standard_normal((2, columns))
    if chain.shows_bias:  # of full rank, or y would tell the bias and W a apart
        a = rng.standard_normal((4, columns))
    each = np.broadcast_to(a, (count, 4, columns))
    replayed = ReplayedRows(Run(chain.repeat(1), "conditional", count, inputs, "float64", 14))
    real = rng.standard_normal((count, 4, 4)) / 2
    rows = (
        real @ a
        + (math.sqrt(chain.bias_variance) / chain.gain * rng.standard_normal((count, 4, 1)))
        * chain.shows_bias
    )

    def centred(y):
        """Without the means that batch normalization does not see."""
        by_batch = y.reshape(count, 4, -1, chain.batch)
        unseen = by_batch.mean(axis=-1, keepdims=True) * chain.normalization.hides_common_part
        return (by_batch - unseen).reshape(y.shape)

    def features(y, back):
        products = [(y * back).sum(axis=(1, 2)), (a * back).sum(axis=(1, 2))]
        if chain.shows_bias:
            # What y does not tell of aᵀ Wᵀ δ = (W a)ᵀ δ, the share of W a in y.
            gram = a.T @ a / 4
            share = gram @ np.linalg.pinv(gram + chain.bias_variance / chain.gain**2)
            delta = np.maximum(y, 0) ** 2
            rest = a.T @ back - share @ (y.swapaxes(1, 2) @ delta)
            size = np.linalg.norm(delta.sum(axis=2), axis=1)
            products.append(rest.sum(axis=(1, 2)) / np.where(size > 0.0, size, 1.0))
        return np.stack([y[:, 0, 0], back[:, 0, 0], back[:, 1, 2], *products], axis=1)

    y = replayed.times(1, each)
    ours = features(y, replayed.transposed_times(1, each, np.maximum(y, 0) ** 2))
    rows = centred(rows)
    theirs = features(rows, real.swapaxes(1, 2) @ np.maximum(rows, 0) ** 2)
    assert_same_law(ours, theirs)


def test_a_bias_is_the_weight_of_one_more_row():
    """The rows of W a + b 1ᵀ / gain have the covariance G + bias_variance / gain²."""
    chain, a = PRODUCTS["bias"][0], np.random.default_rng(15).standard_normal((4, 3))
    seen = ReplayedRows(Run(chain.repeat(1), "conditional", 1, None, "float64", 16))._operand(
        1, a[None]
    )[0]
    expected = a.T @ a / 4 + chain.bias_variance / chain.gain**2
    np.testing.assert_allclose(seen.T @ seen / 4, expected, rtol=1e-13)


def test_hidden_rows_have_no_mean_if_the_norm_centres():
    chain = Chain(5, 4, "tanh", eps=0.3)
    run = Run(chain.repeat(1), "weights", 1, None, "float64")
    weights = UnseenWeights(run, [np.random.default_rng(0)])
    x = np.random.default_rng(1).standard_normal((1, 5, 4))
    network = Network(run, x, weights, 1)
    h = weights.times(1, x)  # another draw, of the shape only
    assert network.layers[1].hidden().shape == h.shape
    np.testing.assert_allclose(network.layers[1].hidden().mean(axis=2), 0.0, atol=1e-14)
    spread = np.sqrt(network.layers[1].hidden().var(axis=2, keepdims=True) + 0.3)
    np.testing.assert_allclose(network.layers[1].hidden() / spread, network.layers[1].x, rtol=1e-12)


def test_layers_out_of_range_raise():
    chain = Chain(5, 4, "relu", norm="none", gain=1e-80)
    run = Run(chain.repeat(1), "weights", 1, None, "float64")
    weights = UnseenWeights(run, [np.random.default_rng(0)])
    with pytest.raises(NonFiniteError, match="layer 2"):
        Network(run, np.ones((1, 5, 4)), weights, 3)
