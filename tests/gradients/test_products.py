"""Gradients through norms over the features, other orders, and biases.

The sampler "weights" is compared with derivatives by complex steps, given its own weights and
biases, and the conditional sampler with the sampler "weights" in law.
"""

import math

import numpy as np
import pytest
from numpy_network import Networks, rows_of
from oracle import FALSE_ALARM, ks_distance
from slow_cases import some

import bnmc
from bnmc import Chain, Convolution
from bnmc.errors import ArgumentError, ZeroVarianceError
from bnmc.gradients.network import ReplayedRows
from bnmc.simulation.runs import Run

ALL = ("delta_gram", "gram", "hidden_delta")
DEPTH = 3

#: Every norm, order and bias; groups of two features; d < n; singular G.
CASES = {
    "layer": Chain(6, 3, "tanh", norm="layer", gain=1.3),
    "rms, d < n, bias": Chain(3, 4, "tanh", norm="rms", bias_variance=0.4),
    "groups, skip, bias": Chain(
        6, 3, "tanh", norm="group(2)", skip=0.7, gain=1.4, bias_variance=0.2
    ),
    "layer after": Chain(5, 3, "tanh", norm="layer", order="activation-norm"),
    "rms after, skip, bias": Chain(
        4, 2, "tanh", norm="rms", order="activation-norm", skip=0.5, bias_variance=0.3, eps=0.1
    ),
    "batch after, gain": Chain(5, 4, "tanh", order="activation-norm", gain=1.7),
    "batch after, bias": Chain(5, 4, "tanh", order="activation-norm", bias_variance=0.5),
    "layer, residual": Chain.resnet(5, 3, "tanh", norm="layer", bias_variance=0.2),
    "batch, residual": Chain.resnet(4, 4, "tanh", gain=0.8, bias_variance=0.2),
    "none, bias": Chain(4, 3, "tanh", norm="none", bias_variance=0.3),
    "uncentred, bias": Chain(4, 3, "tanh", norm="batch-uncentred", bias_variance=0.5, gain=1.5),
    "convolution, layer, bias": Chain(
        4, 6, "tanh", norm="layer", bias_variance=0.3, gain=1.3,
        convolution=Convolution((1, 3), (1, 2)),
    ),
    # Of three images: readouts, the means of pixels, add to 0, so those of one or two have equal
    # squares, and the norm hides a common gradient.
    "convolution, batch after, skip": Chain(
        3, 12, "tanh", order="activation-norm", skip=0.5,
        convolution=Convolution((2, 2), (2, 2)),
    ),
    "convolution, uncentred, bias": Chain(
        3, 6, "tanh", norm="batch-uncentred", bias_variance=0.3,
        convolution=Convolution((3, 1), (3, 1)),
    ),
}  # fmt: skip


def start_of(chain):
    return np.random.default_rng(1).standard_normal((chain.width, chain.batch))


def networks_of(chain, start, layers, added=(0.0,) * DEPTH):
    """Networks with weights and biases; `added` is added to h of the layers from 1 on."""
    weights = [w if chain.convolution is None else rows_of(w) for w, _ in layers]
    weights = [w.reshape(-1, *w.shape[-2:]) for w in weights]
    biases = [b[:, None] + more for (_, b), more in zip(layers, added, strict=True)]
    return Networks(chain, DEPTH, 1, None, start, 1, weights, biases)


def entries(shape):
    """Matrices with a single entry that is not 0, for derivatives by a complex step."""
    size = math.prod(shape)
    return 1e-30j * np.eye(size).reshape(size, *shape)


def derivatives(chain, start, layers, delta):
    """∂L/∂W of all layers and ∂L/∂h of layers 1, …, for L = <δ, h> of the last layer."""
    of_weights, of_states = [], []
    for layer in range(len(layers)):
        for found, shape in ((of_weights, layers[layer][0].shape), (of_states, start.shape)):
            changed, added = list(layers), [0.0] * len(layers)
            if found is of_weights:
                changed[layer] = layers[layer][0] + entries(shape), layers[layer][1]
            else:
                added[layer] = entries(shape)
            h = networks_of(chain, start, changed, added).h[-1]
            losses = (delta * h).sum(axis=(-2, -1))
            found.append(losses.imag.reshape(shape) / 1e-30)
    return of_weights, of_states


@pytest.mark.parametrize("name", [*CASES, "pytorch"])
def test_gradients_are_those_of_the_drawn_weights_and_biases(name):
    chain = CASES.get(name) or Chain(6, 3, "tanh", norm="layer", weights="pytorch", eps=1e-5)
    start = start_of(chain)
    delta = np.random.default_rng(2).standard_normal(start.shape)
    run = bnmc.simulate(chain, DEPTH, initial=start, sampler="weights", rng=3)
    layers = [
        (bnmc.drawn_weights(run, layer), bnmc.drawn_biases(run, layer))
        for layer in range(1, DEPTH + 1)
    ]
    gradients, deltas = derivatives(chain, start, layers, delta)
    back = bnmc.backpropagate(
        chain, DEPTH, initial=start, loss=delta, sampler="weights", rng=3, observables=ALL
    )
    assert (back.sampler, back.key) == ("weights", run.key)
    # The gradient of W, and not of the weights gain W of a layer of PyTorch.
    logs = [0.5 * math.log(np.square(one).sum()) for one in gradients]
    np.testing.assert_allclose(back.log_gradient_norm[0], logs, atol=1e-10)
    np.testing.assert_allclose(back.gram[0], run.gram[0, 1:], rtol=1e-11, atol=1e-13)
    for place, one in enumerate(deltas):
        scale = math.exp(2 * back.log_scale[0, place])
        expected, atol = one.T @ one, 1e-10 * np.square(one).sum()
        np.testing.assert_allclose(back.delta_gram[0, place] * scale, expected, atol=atol)


def readout_gradient(chain, start, layers, readout):
    """∂L/∂W of all layers for L = Σ f³ / 3 of the outputs f = V a of the last layer."""
    found = []
    for layer in range(len(layers)):
        changed = list(layers)
        w, b = layers[layer]
        changed[layer] = w + entries(w.shape), b
        outputs = networks_of(chain, start, changed).outputs(readout)
        found.append(((outputs**3).sum(axis=(-2, -1)) / 3).imag / 1e-30)
    return found


@pytest.mark.parametrize(
    "name",
    ["layer", "layer after", "layer, residual", "batch after, bias", "convolution, layer, bias"],
)
def test_losses_after_a_readout(name):
    chain, seen = CASES[name], []

    def cube(outputs):
        seen.append(outputs)
        return outputs**2

    start = start_of(chain)
    run = bnmc.simulate(chain, DEPTH, initial=start, sampler="weights", rng=4)
    back = bnmc.backpropagate(
        chain, DEPTH, initial=start, loss=cube, classes=2, sampler="weights", rng=4
    )
    layers = [
        (bnmc.drawn_weights(run, layer), bnmc.drawn_biases(run, layer))
        for layer in range(1, DEPTH + 1)
    ]
    generator = np.random.Generator(np.random.Philox(key=run.key, counter=[0, 0, 0, 0]))
    readout = generator.standard_normal((2, chain.width)) / math.sqrt(chain.width)
    gradients = readout_gradient(chain, start, layers, readout)
    logs = [0.5 * math.log(np.square(one).sum()) for one in gradients]
    np.testing.assert_allclose(back.log_gradient_norm[0], logs, atol=1e-10)
    pixels = 1 if chain.convolution is None else chain.convolution.positions
    assert seen[0].shape == (chain.batch // pixels, 2)


# --- the conditional sampler


@pytest.mark.parametrize("name", CASES)
def test_the_forward_pass_is_that_of_simulate(name):
    options = {"chains": 2, "rng": 5, "sampler": "conditional"}
    back = bnmc.backpropagate(CASES[name], DEPTH, observables=ALL, **options)
    run = bnmc.simulate(CASES[name], DEPTH, **options)
    assert (back.sampler, back.key) == ("conditional", run.key)
    np.testing.assert_allclose(back.gram, run.gram[:, 1:], rtol=1e-9, atol=1e-11)


def test_wide_layers_have_several_blocks_of_rows():
    chain = Chain(1300, 3, "tanh", norm="group(4)", skip=0.5, bias_variance=0.1)
    for dtype, rtol in (("float64", 1e-11), ("float32", 1e-5)):
        back = bnmc.backpropagate(chain, 2, rng=6, dtype=dtype, observables=("gram",))
        run = bnmc.simulate(chain, 2, rng=6, dtype=dtype, sampler="conditional")
        np.testing.assert_allclose(back.gram, run.gram[:, 1:], rtol=rtol, atol=rtol)


def test_bits_do_not_depend_on_threads():
    runs = [
        bnmc.backpropagate(CASES["groups, skip, bias"], 4, chains=5, rng=7, threads=threads)
        for threads in (1, 3)
    ]
    assert runs[0].log_gradient_norm.tobytes() == runs[1].log_gradient_norm.tobytes()


def statistics(run):
    """Log gradient norms, and sizes, sums and products of δ, rounded so that ties stay ties."""
    delta = run.delta_gram * np.exp(2 * run.log_scale)[..., None, None]
    hidden = run.hidden_delta * np.exp(run.log_scale)[..., None, None]
    size = np.trace(delta, axis1=-2, axis2=-1)
    values = [
        run.log_gradient_norm,
        delta[..., 0, 1] / size,
        delta.sum(axis=(-2, -1)) / size,
        hidden[..., 0, 1] / np.sqrt(size),
        run.gram[..., 0, 1],
    ]
    return np.round(np.concatenate(values, axis=-1), 7).T


def of_networks(chain, sampler, seed, networks):
    """Gradients of a loss that is not linear, so that δ depends on h."""
    run = bnmc.backpropagate(
        chain, DEPTH, chains=networks, initial=start_of(chain), loss=lambda f: f**2, classes=2,
        sampler=sampler, rng=seed, observables=ALL, threads=1,
    )  # fmt: skip
    return statistics(run)


def largest_distance(pair):
    return max(ks_distance(x, y) for x, y in zip(*pair, strict=True))


def threshold(statistics, networks):
    """The two-sample bound of Wei and Dudley for all statistics together."""
    return math.sqrt(math.log(2 * statistics / FALSE_ALARM) / networks)


@pytest.mark.slow
@pytest.mark.untraced
@pytest.mark.parametrize("name", CASES)
def test_samplers_have_one_law(name):
    networks = 4_000
    pair = [of_networks(CASES[name], how, 8, networks) for how in ("conditional", "weights")]
    assert largest_distance(pair) <= threshold(len(pair[0]), networks)


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
    replayed = ReplayedRows(Run(chain, "conditional", count, inputs, "float64", 14))
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
        return np.stack([y[:, 0, 0], back[:, 0, 0], back[:, 1, 2], *products])

    y = replayed.times(1, each)
    ours = features(y, replayed.transposed_times(1, each, np.maximum(y, 0) ** 2))
    rows = centred(rows)
    theirs = features(rows, real.swapaxes(1, 2) @ np.maximum(rows, 0) ** 2)
    assert largest_distance((ours, theirs)) <= threshold(len(ours), count)


def test_a_bias_is_the_weight_of_one_more_row():
    """The rows of W a + b 1ᵀ / gain have the covariance G + bias_variance / gain²."""
    chain, a = PRODUCTS["bias"][0], np.random.default_rng(15).standard_normal((4, 3))
    seen = ReplayedRows(Run(chain, "conditional", 1, None, "float64", 16))._operand(1, a[None])[0]
    expected = a.T @ a / 4 + chain.bias_variance / chain.gain**2
    np.testing.assert_allclose(seen.T @ seen / 4, expected, rtol=1e-13)


# --- limits


def test_orthogonal_weights_are_drawn():
    chain = Chain(6, 3, "tanh", norm="layer", weights="haar")
    assert bnmc.backpropagate(chain, 2, rng=9).sampler == "weights"
    with pytest.raises(ArgumentError, match="sampler"):
        bnmc.backpropagate(chain, 2, rng=9, sampler="conditional")


def test_a_norm_of_two_features_has_no_gradient():
    run = bnmc.backpropagate(Chain(6, 3, "tanh", norm="group(3)"), 3, rng=10)
    assert (run.log_gradient_norm[0, :-1] == -np.inf).all()


@pytest.mark.parametrize("sampler", ["conditional", "weights"])
def test_samples_without_variance_are_named(sampler):
    """All features of a sample are 0 after relu, with probability 1/8 per sample."""
    chain = Chain(3, 4, "relu", norm="rms", order="activation-norm")
    with pytest.raises(ZeroVarianceError) as raised:
        bnmc.backpropagate(chain, 100, rng=11, sampler=sampler)
    assert raised.value.row is None
    assert 0 <= raised.value.sample < 4


def test_tangent_kernels_have_a_column_for_each_sample():
    """With few networks: the mean of the two samplers agrees at 6 standard errors."""
    for norm, order in (("layer", "norm-activation"), ("rms", "pre-activation")):
        chain = Chain(30, 3, "tanh", norm=norm, order=order, skip=0.5)
        runs = [
            bnmc.gradients.tangent_kernel(chain, 2, chains=300, rng=12, sampler=sampler)
            for sampler in ("conditional", "weights")
        ]
        error = np.hypot(runs[0].stderr(), runs[1].stderr())
        assert (np.abs(runs[0].mean() - runs[1].mean()) < 6 * error).all()
