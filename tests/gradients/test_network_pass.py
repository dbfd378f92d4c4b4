"""The backward pass with drawn weights: gradients of these weights, and of PyTorch's autograd."""

import tracemalloc

import numpy as np
import pytest
from numpy_network import Networks
from scipy import special

import bnmc
from bnmc import Chain, Convolution
from bnmc.errors import ArgumentError, Interrupted, NonFiniteError, ResultTooLargeError
from bnmc.gradients import network, parts

ALL = ("delta_gram", "gram", "hidden_delta")

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
}  # fmt: skip
DEPTH, CHAINS = 4, 2


def start_of(chain, inputs):
    return np.random.default_rng(1).standard_normal((inputs or 1, chain.width, chain.batch))


def weights_of(chain, inputs, initial):
    """Return the weights of all layers, as lists of (chains, width, width)."""
    run = bnmc.simulate(
        chain, DEPTH, chains=CHAINS, inputs=inputs, initial=initial, sampler="weights", rng=5
    )
    return [
        np.stack([rows_of(bnmc.drawn_weights(run, layer, chain=one)) for one in range(CHAINS)])
        for layer in range(1, DEPTH + 1)
    ], run


def rows_of(weights):
    """Return weights as matrices: those of a convolution with its taps side by side."""
    return weights if weights.ndim == 2 else np.moveaxis(weights, 1, -1).reshape(len(weights), -1)


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_the_weights_that_were_drawn(name):
    chain, inputs = CASES[name]
    rows = start_of(chain, inputs)
    initial = rows if inputs else rows[0]
    weights, run = weights_of(chain, inputs, initial)
    networks = Networks(
        chain, DEPTH, CHAINS, None, np.concatenate(rows, axis=1), inputs or 1, weights
    )
    given = np.random.default_rng(2).standard_normal(
        (CHAINS, inputs or 1, chain.width, chain.batch)
    )
    delta = given.swapaxes(1, 2).reshape(CHAINS, chain.width, -1)
    deltas, gradients = networks.backward(delta)
    back = bnmc.backpropagate(
        chain, DEPTH, chains=CHAINS, inputs=inputs, initial=initial, rng=5, sampler="weights",
        loss=given if inputs else given[:, 0], observables=ALL, every=3,
    )  # fmt: skip
    assert (back.sampler, back.key) == ("weights", run.key)
    logs = np.stack([np.log(np.square(one).sum(axis=(1, 2))) / 2 for one in gradients], axis=1)
    np.testing.assert_allclose(back.log_gradient_norm, logs, atol=1e-11)
    assert back.layers.tolist() == [3, 4]
    for place, layer in enumerate((3, 4)):
        expected = deltas[layer - 1]
        unit = np.exp(back.log_scale[:, place, None, None])
        products = expected.swapaxes(1, 2) @ expected
        size = np.abs(products).max()
        np.testing.assert_allclose(back.delta_gram[:, place] * unit**2, products, atol=1e-11 * size)
        np.testing.assert_allclose(
            back.gram[:, place], networks.gram(layer), rtol=1e-11, atol=1e-12
        )
        h = networks.h[layer]
        if chain.norm == "batch":
            by_batch = h.reshape(*h.shape[:2], -1, chain.batch)
            h = (by_batch - by_batch.mean(axis=-1, keepdims=True)).reshape(h.shape)
        np.testing.assert_allclose(
            back.hidden_delta[:, place] * unit, h.swapaxes(1, 2) @ expected,
            rtol=1e-9, atol=1e-10,
        )  # fmt: skip


def readout_of(key, number, classes, width):
    """Return the readout of a chain, by the generator that `network.py` describes."""
    generator = np.random.Generator(np.random.Philox(key=key, counter=[0, 0, 0, number]))
    return generator.standard_normal((classes, width)) / np.sqrt(width)


def test_losses_of_a_readout_have_the_gradients_of_autograd():
    torch = pytest.importorskip("torch")
    chain, labels = Chain(9, 4, "tanh", gain=0.7), [0, 2, 1, 1]
    initial = start_of(chain, None)[0]
    weights, run = weights_of(chain, None, initial)
    back = bnmc.backpropagate(
        chain, DEPTH, chains=CHAINS, initial=initial, rng=5, sampler="weights",
        loss="cross-entropy", labels=labels,
    )  # fmt: skip
    for number in range(CHAINS):
        matrices = [torch.tensor(w[number], requires_grad=True) for w in weights]

        def normalised(h):
            return (h - h.mean(1, keepdim=True)) / h.var(1, correction=0, keepdim=True).sqrt()

        x = normalised(torch.tensor(initial))
        for matrix in matrices:
            x = normalised(chain.gain * matrix @ torch.tanh(x))
        readout = torch.tensor(readout_of(run.key, number, 3, 9))
        outputs = (readout @ torch.tanh(x)).T
        torch.nn.functional.cross_entropy(outputs, torch.tensor(labels)).backward()
        logs = [float(matrix.grad.norm().log()) for matrix in matrices]
        np.testing.assert_allclose(back.log_gradient_norm[number], logs, atol=1e-10)


def test_losses_of_a_readout_have_the_gradients_of_these_outputs():
    chain, labels = Chain(9, 4, "tanh", gain=0.7), [0, 2, 1, 1]
    initial = start_of(chain, None)[0]
    weights, run = weights_of(chain, None, initial)
    networks = Networks(chain, DEPTH, CHAINS, None, initial, 1, weights)
    readout = np.stack([readout_of(run.key, one, 3, 9) for one in range(CHAINS)])
    outputs = networks.outputs(readout)
    gradient = (special.softmax(outputs, axis=-1) - np.eye(3)[labels]) / 4
    _, gradients = networks.backward(networks.delta_of_outputs(readout, gradient))
    back = bnmc.backpropagate(
        chain, DEPTH, chains=CHAINS, initial=initial, rng=5, sampler="weights",
        loss="cross-entropy", labels=labels,
    )  # fmt: skip
    logs = np.stack([np.log(np.square(one).sum(axis=(1, 2))) / 2 for one in gradients], axis=1)
    np.testing.assert_allclose(back.log_gradient_norm, logs, atol=1e-11)


def test_float32_weights_and_bits(monkeypatch):
    chain = Chain(9, 4, "tanh")

    def run(**options):
        return bnmc.backpropagate(
            chain, 3, chains=5, rng=1, sampler="weights", **options
        ).log_gradient_norm

    double = run()
    single = run(dtype="float32")
    assert 0.0 < np.abs(single - double).max() < 1e-3
    monkeypatch.setattr(parts, "PART_SECONDS", 1e-9)
    assert run(threads=2).tobytes() == double.tobytes()


def test_scales_beyond_float64_are_split_off():
    chain = Chain(8, 3, "linear", norm="none", gain=1e-3)
    found = bnmc.backpropagate(chain, 40, chains=2, rng=0, sampler="weights")
    loss = np.full((8, 3), 1e-300)
    tiny = bnmc.backpropagate(chain, 40, chains=2, rng=0, sampler="weights", loss=loss)
    assert np.isfinite(found.log_gradient_norm).all()
    assert np.isfinite(tiny.log_gradient_norm).all()
    zero = bnmc.backpropagate(chain, 4, chains=2, rng=0, sampler="weights", loss=0.0 * loss)
    assert (zero.log_gradient_norm == -np.inf).all()


@pytest.mark.parametrize(
    "chain",
    [
        Chain(60, 4, "relu", norm="layer"),
        pytest.param(Chain(60, 4, "tanh", norm="rms", bias_variance=0.1), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_memory_grows_as_the_root_of_the_depth(chain, monkeypatch):
    """A layer has rows of 60 x 4 x 8 = 1,920 bytes, of which a stretch keeps three or four."""
    monkeypatch.setattr(network, "ROWS_BYTES", 1)
    bnmc.backpropagate(chain, 400, rng=0, observables=())  # what stays after it is not counted
    tracemalloc.start()
    bnmc.backpropagate(chain, 400, rng=0, observables=(), threads=1)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # Twenty layers and twenty ends of stretches; all rows would take 400 x 3 x 1,920 bytes.
    assert most < 400 * 1_920


def test_bytes_of_a_layer_are_counted(monkeypatch):
    """Of two samples a layer keeps h, N(σ(h)) and normals, and of each row a mean and a deviation,
    together a fourth array; its other objects are small beside rows of 10,000 × 2 numbers."""
    chain = Chain(10_000, 2, "tanh", skip=0.5, order="activation-norm")
    monkeypatch.setattr(network, "ROWS_BYTES", 1 << 40)
    made = []

    def noted(task, *arguments):
        made.append(task)
        return call(task, *arguments)

    call = network.NetworkTask.__call__
    monkeypatch.setattr(network.NetworkTask, "__call__", noted)
    taken, counted = [], []
    for depth in (2, 4, 6):  # the first run makes what stays
        tracemalloc.start()
        bnmc.backpropagate(chain, depth, rng=0, observables=(), threads=1)
        taken.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        counted.append(made[-1].bytes_of_pass(1))
    array = 8 * 10_000 * 2
    per_layer = [round((one[2] - one[1]) / (2 * array)) for one in (taken, counted)]
    assert per_layer == [4, 4]


def test_what_does_not_work_raises():
    with pytest.raises(ResultTooLargeError, match="depth"):
        bnmc.backpropagate(Chain(10**6, 4), 3, sampler="weights")
    with pytest.raises(NonFiniteError, match="layer"):
        bnmc.backpropagate(Chain(8, 3, "relu", norm="none", gain=1e9), 40, rng=0, sampler="weights")
    own = Chain(9, 4, weights=lambda rng, shape: rng.standard_normal(3))
    with pytest.raises(ArgumentError, match="weights"):
        bnmc.backpropagate(own, 2)


def test_ctrl_c_hands_over_finished_chains(monkeypatch):
    monkeypatch.setattr(parts, "PART_SECONDS", 1e-9)

    def interrupt(done, total):
        if done >= 2:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted) as caught:
        bnmc.backpropagate(
            Chain(9, 4), 2, chains=6, rng=0, sampler="weights", threads=1, progress=interrupt
        )
    assert caught.value.partial.chains >= 1
