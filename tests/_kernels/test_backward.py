"""The kernels of the backward pass: each as plain Python, and the sums of blocks in NumPy."""

import numpy as np
import pytest
from numpy_network import Networks, gram_of, normalised
from oracle import ks_distance, two_sample_threshold
from plain_python import run_plainly
from slow_cases import some

from bnmc import Chain
from bnmc._kernels.cpu import (
    backward,
    backward_matrices,
    backward_rows,
    blocks,
    factor,
    orthogonal,
    rows,
)
from bnmc._kernels.cpu.layers import records
from bnmc._kernels.cpu.numbers import BLOCK, STRIDE
from bnmc._kernels.scalar import codes
from bnmc.chain.activations import sigma_of, slope_of
from bnmc.chain.compiled import spec_of
from bnmc.gradients import backpropagate

ALL = ("delta_gram", "gram", "hidden_delta")

CHAINS = {
    "centred": Chain(70, 3, "tanh"),
    "uncentred with eps": Chain(20, 3, "relu", norm="batch-uncentred", eps=0.1),
    "skip": Chain(20, 3, "relu", skip=0.5),
    "twins without norm": Chain(20, 3, "tanh", norm="none"),
    "two samples": Chain(20, 2, "relu"),
    "haar": Chain(20, 3, "tanh", weights="haar"),
    "haar, width below batch, skip": Chain(3, 4, "tanh", norm="none", weights="haar", skip=0.5),
}

MODULES = (backward, backward_matrices, backward_rows, blocks, factor, orthogonal, rows)


@pytest.mark.parametrize("loss", ["gaussian", "squared"])
@pytest.mark.parametrize("name", some(CHAINS, "centred", "skip", "twins without norm", "haar"))
def test_python_and_compiled_kernels_agree(name, loss, monkeypatch):
    chain = CHAINS[name]
    options = {"labels": [0, 1, 1, 0][: chain.batch]} if loss == "squared" else {}
    if name.startswith("twins"):
        x = np.random.default_rng(0).standard_normal((20, 3))
        x[:, 1] = x[:, 0]
        options["initial"] = x

    def run():
        return backpropagate(chain, 3, rng=1, threads=1, loss=loss, observables=ALL, **options)

    compiled = run()
    run_plainly(monkeypatch, *MODULES)
    python = run()
    # Sums of 70 terms in another order, through three layers.
    np.testing.assert_allclose(
        python.log_gradient_norm, compiled.log_gradient_norm, rtol=0, atol=1e-11
    )
    for each in ALL:
        size = np.abs(compiled[each]).max(axis=(-2, -1), keepdims=True)
        difference = np.abs(python[each] - compiled[each])
        assert (difference <= 1e-11 * size).all(), each


@pytest.mark.parametrize("columns", [1, 3, 4, 9])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_add_cross_is_a_matrix_product(columns, dtype):
    rng = np.random.default_rng(columns)
    whole = (columns + 3) // 4 * 4
    first, second = np.zeros((2, whole, STRIDE), dtype)
    first[:columns], second[:columns] = rng.standard_normal((2, columns, STRIDE))
    tiles = whole // 4
    sums = np.ones(16 * tiles * tiles)
    blocks.add_cross(first.reshape(-1), second.reshape(-1), columns, 192, np.zeros(16, dtype), sums)
    product = sums.reshape(whole, whole) - 1
    a, b = first[:, :192].astype(float), second[:, :192].astype(float)
    # 192 products of normals, each sum of 192 / lanes of them: error of a few roundings.
    bound = 192 * np.finfo(dtype).eps * (np.abs(a) @ np.abs(b).T + 1)
    assert (np.abs(product - a @ b.T) <= bound).all()


# --- layers of different widths, gains and norms

UNEQUAL = {
    "widths and gains": [
        Chain(24, 3, "tanh", gain=1.0),
        Chain(7, 3, "tanh", gain=1.4),
        Chain(12, 3, "tanh", gain=0.6, norm="none"),
        Chain(5, 3, "tanh", gain=0.8, norm="batch-uncentred", eps=0.2),
        Chain(9, 3, "tanh", gain=1.2, norm="none"),
    ],
    "skip after no skip": [
        Chain(8, 3, "tanh"),
        Chain(6, 3, "tanh", gain=0.9),
        Chain(6, 3, "tanh", skip=0.7, gain=0.5),
        Chain(11, 3, "tanh", gain=1.1),
    ],
}
COUNT = 4_000


def features(gram, delta_gram, hidden_delta):
    """Numbers of a layer that tell laws of gradients apart; arrays are (networks, 3, 3)."""
    size = np.trace(delta_gram, axis1=1, axis2=2)
    return [gram[:, 0, 1], np.log(size), delta_gram[:, 0, 1] / size, hidden_delta[:, 2, 0]]


def rows_of(blocks, spec):
    """Rows of a layer in blocks, as (width, columns)."""
    columns = blocks.reshape(len(blocks), -1, STRIDE)[:, : spec.columns, :BLOCK]
    return columns.transpose(0, 2, 1).reshape(-1, spec.columns)[: spec.width]


def pass_of_one_network(chains, specs, buffers, number, a):
    """δᵀδ, hᵀδ and G of all layers from 1 on, of which one call takes all but the last one."""
    key, last = (np.uint32(5), np.uint32(6)), len(chains) - 1
    draws = [codes.Draw(layer, np.uint32(number), *key) for layer in range(len(chains))]
    products = np.zeros((len(chains), 3, 3, 3))
    nothing, xs = np.zeros((0, 1)), np.zeros((len(chains), 3, BLOCK))
    grams = [gram_of(a)]
    for layer in range(1, len(chains)):
        spec, chain = specs[layer], chains[layer]
        # Also the direction at the top, which counts for the last layer only.
        backward.begin_backward(
            None, records(spec), nothing, grams[-1], xs[layer - 1], draws[layer], buffers,
            products[layer],
        )  # fmt: skip
        x = normalised(rows_of(buffers.rows.hidden, spec), chain.norm, chain.eps)
        xs[layer, :, : spec.width] = x.T
        grams.append(gram_of(np.tanh(x)))
    sigma, slope = sigma_of(chains[0].activation), slope_of(chains[0].activation)
    buffers.rows.above[:] = buffers.rows.delta
    record = backward.Record(products[1:last], np.zeros(last - 1), np.zeros(3, np.int64))
    backward.backward_layers(
        None,
        backward_rows.activation(sigma, "float64", "float64"),
        backward_rows.derivative(slope, "float64", "float64"),
        backward.ForwardLayers(
            records(*specs[1:last]), np.stack(grams[:-1]), np.ones((last - 1, 3)), xs, 0
        ),
        records(specs[last]), draws[last - 1],
        backward.Gradient(products[last, :2].copy(), 0.0, False), record, buffers,
    )  # fmt: skip
    assert not record.status.any()
    unit = np.exp2(record.log_scales)
    products[1:last] *= np.stack([unit**2, unit, unit], axis=1)[..., None, None]
    widths = np.array([chain.width for chain in chains])[:, None, None, None]
    return np.stack(grams), products * widths


@pytest.mark.untraced
@pytest.mark.parametrize("name", UNEQUAL)
def test_layers_need_not_be_equal(name):
    """One call of a kernel, with a spec for each layer, against networks in NumPy."""
    chains = UNEQUAL[name]
    widths = [chain.width for chain in chains]
    specs = [
        spec_of(chain)._replace(fan_in=fan_in)
        for chain, fan_in in zip(chains, [widths[0], *widths[:-1]], strict=True)
    ]
    buffers = backward.buffers(max(widths), 3, 1, "float64", "float64", skips=True, hidden=True)
    rng = np.random.default_rng(8)
    start = rng.standard_normal((widths[0], 3))
    networks = Networks(chains, len(chains) - 1, COUNT, rng, start)
    deltas, _ = networks.backward(rng.standard_normal(networks.h[-1].shape))
    a = networks.activations(0)[0]
    passes = [pass_of_one_network(chains, specs, buffers, number, a) for number in range(COUNT)]
    grams, products = (np.stack(each, axis=1) for each in zip(*passes, strict=True))
    worst = 0.0
    for layer in range(1, len(chains)):
        delta, h = deltas[layer - 1], networks.h[layer]
        if chains[layer].norm == "batch":  # without the means of h
            h = h - h.mean(axis=2, keepdims=True)
        turned = delta.swapaxes(1, 2)
        theirs = features(networks.gram(layer), turned @ delta, h.swapaxes(1, 2) @ delta)
        ours = features(grams[layer], products[layer, :, 0], products[layer, :, 2])
        worst = max(worst, *(ks_distance(x, y) for x, y in zip(ours, theirs, strict=True)))
    assert worst < two_sample_threshold(COUNT, 4 * (len(chains) - 1))
