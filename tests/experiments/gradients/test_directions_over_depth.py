"""Cosines between gradients of samples, beside networks with real weights."""

import numpy as np
from experiment_checks import CERTAIN, stderr_of
from figure_sizes import FIGURES
from numpy_network import Networks
from scipy import special

from bnmc import Chain
from bnmc.experiments.gradients import directions

FIGURE = "gradients-directions"


def moduli(chain, depth, count, seed):
    """Return mean moduli of cosines of real networks: of the readout, and of hidden weights."""
    rng = np.random.default_rng(seed)
    n = chain.batch
    networks = Networks(chain, depth, count, rng)
    readout = rng.standard_normal((count, n, chain.width)) / np.sqrt(chain.width)
    outputs = networks.outputs(readout)
    gradient = (special.softmax(outputs, axis=-1) - np.eye(n)) / n
    deltas, _ = networks.backward(networks.delta_of_outputs(readout, gradient))

    def correlations(products):
        lengths = np.sqrt(np.diagonal(products, axis1=1, axis2=2))
        return products / lengths[:, :, None] / lengths[:, None, :]

    pairs = np.triu_indices(n, 1)

    def mean(cosines):
        return np.nanmean(np.abs(cosines[:, pairs[0], pairs[1]]), axis=1)

    with np.errstate(invalid="ignore"):
        grams = [correlations(networks.gram(layer)) for layer in range(1, depth + 1)]
        of_delta = [correlations(matrices.swapaxes(1, 2) @ matrices) for matrices in deltas]
        hidden = [mean(of_delta[k] * grams[k - 1]) for k in range(1, depth)]
        return np.stack([mean(matrices) for matrices in grams], axis=1), np.stack(hidden, axis=1)


def test_cosines_are_those_of_real_networks(data):
    sizes = FIGURES["gradients-directions"].sizes
    count, chains = 1000, sizes["networks"]
    for row, name in enumerate(("linear", "relu")):
        for column, norm in enumerate(("none", "batch")):
            gain = 2**0.5 if name == "relu" and norm == "none" else 1.0
            chain = Chain(24, 4, name, norm=norm, gain=gain)
            theirs = moduli(chain, sizes["depth"], count, 3)
            for kind, values in zip(("readout", "hidden"), theirs, strict=True):
                error = np.hypot(
                    stderr_of(data, kind, chains)[row, column],
                    values.std(axis=0) / np.sqrt(count),
                )
                far = np.abs(data[kind].values[row, column] - values.mean(axis=0))
                # 36 comparisons in all.
                assert (far < special.ndtri(1 - CERTAIN / 2) * error).all(), (name, norm, kind)


def test_only_vanilla_networks_align():
    deep = directions(width=24, batch=4, depth=240, networks=30)
    last = deep.data["readout"].values[:, :, -1]
    assert (last[:, 0] > 0.9).all()
    assert (last[:, 1] < 0.6).all()
    middle = deep.data["hidden"].values[:, :, 120]
    assert (middle[:, 0] > 2 * middle[:, 1]).all()
