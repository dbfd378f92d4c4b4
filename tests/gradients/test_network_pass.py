"""The backward pass with drawn weights: gradients of these weights; and with unseen ones, in law.

The cases have every norm, order and bias; groups of two features; d < n; singular G.
"""

import tracemalloc

import numpy as np
import pytest
from gradient_runs import ALL, assert_same_law, networks_as_drawn, readouts_of
from scipy import special

import bnmc
from bnmc import Chain, Convolution, errors
from bnmc.gradients import network

DEPTH, CHAINS = 4, 2

#: Chains with Gaussian weights whose layers no kernel makes.
GAUSSIAN = {
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

CASES = {
    "gaussian": (Chain(9, 4, "tanh", gain=0.7), None),
    "skip": (Chain(9, 4, "tanh", skip=0.5, weights="uniform"), None),
    "inputs": (Chain(9, 3, "leaky_relu", weights="rademacher"), 2),
    "none": (Chain(9, 3, "relu", norm="none", gain=1.4), None),
    "uncentred": (Chain(9, 3, "sin", norm="batch-uncentred", eps=0.1), None),
    "convolution": (
        Chain(5, 12, "tanh", skip=0.3, convolution=Convolution((2, 3), (2, 2))), None
    ),
    "convolution, inputs": (
        Chain(5, 3, "sin", norm="none", weights="uniform", convolution=Convolution((1, 3), (1, 2))),
        2,
    ),
    "own": (
        Chain(9, 4, "tanh", weights=lambda rng, shape: rng.laplace(size=shape) / 2**0.5), None
    ),
    "pytorch": (Chain(6, 3, "tanh", norm="layer", weights="pytorch", eps=1e-5), None),
    **{name: (chain, None) for name, chain in GAUSSIAN.items()},
}  # fmt: skip


def start_of(chain, inputs=None):
    rows = np.random.default_rng(1).standard_normal((inputs or 1, chain.width, chain.batch))
    return rows if inputs else rows[0]


def log_norms(gradients):
    return np.stack([np.log(np.square(each).sum(axis=(1, 2))) / 2 for each in gradients], axis=1)


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_the_weights_that_were_drawn(name):
    chain, inputs = CASES[name]
    initial = start_of(chain, inputs)
    networks, key = networks_as_drawn(chain, DEPTH, initial, CHAINS, inputs)
    given = np.random.default_rng(2).standard_normal(
        (CHAINS, inputs or 1, chain.width, chain.batch)
    )
    delta = given.swapaxes(1, 2).reshape(CHAINS, chain.width, -1)
    deltas, gradients = networks.backward(delta)
    back = bnmc.backpropagate(
        chain, DEPTH, chains=CHAINS, inputs=inputs, initial=initial, rng=5, sampler="weights",
        loss=given if inputs else given[:, 0], observables=ALL, every=3,
    )  # fmt: skip
    assert (back.sampler, back.key) == ("weights", key)
    # The gradient of W, and not of the weights gain W of a layer of PyTorch.
    np.testing.assert_allclose(back.log_gradient_norm, log_norms(gradients), atol=1e-10)
    assert back.layers.tolist() == [3, 4]
    for place, layer in enumerate((3, 4)):
        expected = deltas[layer - 1]
        unit = np.exp(back.log_scale[:, place, None, None])
        products = expected.swapaxes(1, 2) @ expected
        size = np.abs(products).max()
        np.testing.assert_allclose(back.delta_gram[:, place] * unit**2, products, atol=1e-10 * size)
        np.testing.assert_allclose(
            back.gram[:, place], networks.gram(layer), rtol=1e-11, atol=1e-12
        )
        h = networks.hidden(layer)
        np.testing.assert_allclose(
            back.hidden_delta[:, place] * unit, h.swapaxes(1, 2) @ expected,
            rtol=1e-9, atol=1e-10,
        )  # fmt: skip


LOSSES = {
    "gaussian": (
        {"loss": "cross-entropy", "labels": [0, 2, 1, 1]},
        lambda f: (special.softmax(f, axis=-1) - np.eye(3)[[0, 2, 1, 1]]) / 4,
    ),
    **dict.fromkeys(
        (
            "layer", "layer after", "layer, residual", "batch after, bias",
            "convolution, layer, bias",
        ),
        ({"loss_gradient": np.square, "classes": 3}, lambda f: f**2),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LOSSES)
def test_losses_of_a_readout_have_the_gradients_of_these_outputs(name):
    chain, (loss, gradient_of) = CASES[name][0], LOSSES[name]
    initial = start_of(chain)
    networks, key = networks_as_drawn(chain, DEPTH, initial, CHAINS)
    readout = readouts_of(key, CHAINS, 3, chain.width)
    delta = networks.delta_of_outputs(readout, gradient_of(networks.outputs(readout)))
    back = bnmc.backpropagate(
        chain, DEPTH, chains=CHAINS, initial=initial, rng=5, sampler="weights", **loss
    )
    expected = log_norms(networks.backward(delta)[1])
    np.testing.assert_allclose(back.log_gradient_norm, expected, atol=1e-10)


@pytest.mark.parametrize("name", LOSSES)
def test_losses_without_a_readout_are_functions_of_the_last_states(name):
    chain = CASES[name][0]
    initial = start_of(chain)
    networks, _ = networks_as_drawn(chain, DEPTH, initial, CHAINS)
    delta = networks.hidden(DEPTH) ** 3
    if chain.convolution is not None:  # outputs are means over the pixels of a sample
        pixels = chain.convolution.positions
        images = networks.hidden(DEPTH).reshape(CHAINS, chain.width, -1, pixels)
        delta = np.repeat(images.mean(axis=-1) ** 3, pixels, axis=-1) / pixels
    back = bnmc.backpropagate(
        chain, DEPTH, chains=CHAINS, initial=initial, rng=5, sampler="weights",
        loss_gradient=lambda f: f**3,
    )  # fmt: skip
    expected = log_norms(networks.backward(delta)[1])
    np.testing.assert_allclose(back.log_gradient_norm, expected, atol=1e-10)


def test_float32_weights_are_those_of_float64_but_for_rounding():
    single, double = (
        bnmc.backpropagate(Chain(9, 4, "tanh"), 3, chains=5, rng=1, sampler="weights", dtype=dtype)
        for dtype in ("float32", "float64")
    )
    difference = np.abs(single.log_gradient_norm - double.log_gradient_norm)
    assert 0.0 < difference.max() < 1e-3


def test_scales_beyond_float64_are_split_off():
    chain, loss = Chain(8, 3, "linear", norm="none", gain=1e-3), np.full((8, 3), 1e-300)
    options = {"chains": 2, "rng": 0, "sampler": "weights"}
    for direction in ({}, {"loss": loss}):
        run = bnmc.backpropagate(chain, 40, **options, **direction)
        assert np.isfinite(run.log_gradient_norm).all()
    zero = bnmc.backpropagate(chain, 4, loss=0.0 * loss, **options)
    assert (zero.log_gradient_norm == -np.inf).all()


def test_images_of_several_chains_give_their_number():
    chain, _ = CASES["convolution"]
    images = np.random.default_rng(1).standard_normal((CHAINS, 5, 2, 2, 3))
    back = bnmc.backpropagate(chain, 1, initial=images, rng=0)
    given = bnmc.backpropagate(chain, 1, initial=images.reshape(CHAINS, 5, 12), rng=0)
    np.testing.assert_array_equal(back.log_gradient_norm, given.log_gradient_norm)
    assert back.chains == CHAINS


def traced_bytes(chain, depth):
    """Return the most memory that a backward pass of one network takes."""
    tracemalloc.start()
    bnmc.backpropagate(chain, depth, rng=0, observables=(), threads=1)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return most


@pytest.mark.slow
@pytest.mark.parametrize(
    "chain",
    [Chain(200, 16, "relu", norm="layer"), Chain(200, 16, "tanh", norm="rms", bias_variance=0.1)],
    ids=str,
)
def test_memory_grows_as_the_root_of_the_depth(chain, monkeypatch):
    """A layer has rows of 200 × 16 × 8 = 25,600 bytes, of which a stretch keeps three or four."""
    monkeypatch.setattr(network, "ROWS_BYTES", 1)
    bnmc.backpropagate(chain, 400, rng=0, observables=())  # what stays after it is not counted
    # Twenty layers and twenty ends of stretches; all rows would take 400 × 3 × 25,600 bytes.
    # Objects of a fixed size (a measured coverage among them) take less than a megabyte.
    assert traced_bytes(chain, 400) < 200 * 25_600


def test_bytes_of_a_layer_are_counted(monkeypatch):
    """Of two samples a layer keeps h, N(σ(h)) and normals, and of each row a mean and a deviation,
    together a fourth array; its other objects are small beside rows of 10,000 × 2 numbers."""
    chain = Chain(10_000, 2, "tanh", skip=0.5, order="activation-norm")
    monkeypatch.setattr(network, "ROWS_BYTES", 1 << 40)
    tasks, call = [], network.NetworkTask.__call__

    def noted(task, *arguments):
        tasks.append(task)
        return call(task, *arguments)

    monkeypatch.setattr(network.NetworkTask, "__call__", noted)
    # The first run makes what stays.
    taken = [traced_bytes(chain, depth) for depth in (2, 4, 6)]
    counted = [task.bytes_of_pass(1) for task in tasks]
    array = 8 * 10_000 * 2
    per_layer = [round((sizes[2] - sizes[1]) / (2 * array)) for sizes in (taken, counted)]
    assert per_layer == [4, 4]


def test_what_does_not_work_raises():
    with pytest.raises(errors.ResultTooLargeError, match="depth"):
        bnmc.backpropagate(Chain(10**6, 4), 3, sampler="weights")
    with pytest.raises(errors.NonFiniteError, match="layer"):
        bnmc.backpropagate(Chain(8, 3, "relu", norm="none", gain=1e9), 40, rng=0, sampler="weights")
    with pytest.raises(errors.ArgumentError, match="weights"):
        bnmc.backpropagate(Chain(9, 4, weights=lambda rng, shape: rng.standard_normal(3)), 2)


# --- Gaussian weights that are never made


@pytest.mark.parametrize("name", GAUSSIAN)
def test_the_forward_pass_is_that_of_simulate(name):
    options = {"chains": 2, "rng": 5, "sampler": "conditional"}
    back = bnmc.backpropagate(GAUSSIAN[name], DEPTH, observables=ALL, **options)
    run = bnmc.simulate(GAUSSIAN[name], DEPTH, **options)
    assert (back.sampler, back.key) == ("conditional", run.key)
    np.testing.assert_allclose(back.gram, run.gram[:, 1:], rtol=1e-9, atol=1e-11)


def test_wide_layers_have_several_blocks_of_rows():
    chain = Chain(1300, 3, "tanh", norm="group(4)", skip=0.5, bias_variance=0.1)
    for dtype, rtol in (("float64", 1e-11), ("float32", 1e-5)):
        back = bnmc.backpropagate(chain, 2, rng=6, dtype=dtype, observables=("gram",))
        run = bnmc.simulate(chain, 2, rng=6, dtype=dtype, sampler="conditional")
        np.testing.assert_allclose(back.gram, run.gram[:, 1:], rtol=rtol, atol=rtol)


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
    return np.round(np.concatenate(values, axis=-1), 7)


@pytest.mark.slow
@pytest.mark.untraced
@pytest.mark.parametrize("name", GAUSSIAN)
def test_samplers_have_one_law(name):
    """4000 networks each, of a loss that is not linear, so that δ depends on h."""
    chain = GAUSSIAN[name]
    runs = [
        bnmc.backpropagate(
            chain, 3, chains=4_000, initial=start_of(chain), loss_gradient=np.square, classes=2,
            sampler=sampler, rng=8, observables=ALL, threads=1,
        )
        for sampler in ("conditional", "weights")
    ]  # fmt: skip
    assert_same_law(*map(statistics, runs))


# --- limits


def test_orthogonal_weights_are_drawn():
    chain = Chain(6, 3, "tanh", norm="layer", weights="haar")
    assert bnmc.backpropagate(chain, 2, rng=9).sampler == "weights"
    with pytest.raises(errors.ArgumentError, match="sampler"):
        bnmc.backpropagate(chain, 2, rng=9, sampler="conditional")


def test_a_norm_of_two_features_has_no_gradient():
    run = bnmc.backpropagate(Chain(6, 3, "tanh", norm="group(3)"), 3, rng=10)
    assert (run.log_gradient_norm[0, :-1] == -np.inf).all()


@pytest.mark.parametrize("sampler", ["conditional", "weights"])
def test_samples_without_variance_are_named(sampler):
    """All features of a sample are 0 after relu, with probability 1/8 per sample."""
    chain = Chain(3, 4, "relu", norm="rms", order="activation-norm")
    with pytest.raises(errors.ZeroVarianceError) as raised:
        bnmc.backpropagate(chain, 100, rng=11, sampler=sampler)
    assert raised.value.row is None
    assert 0 <= raised.value.sample < 4
