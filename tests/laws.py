"""Runs against the formula, from their own weights, and ensembles whose laws are compared."""

import math

import numpy as np
from numpy_network import Networks, rows_of
from oracle import FALSE_ALARM, ks_distance

import bnmc


def networks_of(run, start, depth):
    """Return the network of a run by weights in NumPy, from a start of one row per feature."""
    numbers = range(1, depth + 1)
    weights = [bnmc.drawn_weights(run, layer).astype(np.float64) for layer in numbers]
    if run.chain.convolution is not None:
        weights = [rows_of(weight) for weight in weights]
    biases = [bnmc.drawn_biases(run, layer).astype(np.float64)[:, None] for layer in numbers]
    rows = start.reshape(run.chain.width, -1)
    return Networks(run.chain, depth, 1, None, rows, 1, weights, biases)


def formula_of(run, start, depth):
    """Return the Gram matrices of all layers of a run by weights."""
    return networks_of(run, start, depth).grams[0]


def law_of(chain, sampler, seed, networks, layers, parts=1, **options):
    """Return Gram matrices at some layers, (networks, layers, columns, columns).

    Arrays of runs in parts are reused.
    """
    options = {"chains": networks // parts, "sampler": sampler, "threads": 1, **options}
    seeds = [seed] if parts == 1 else [[seed, part] for part in range(parts)]
    runs = (bnmc.simulate(chain, max(layers), rng=rng, **options) for rng in seeds)
    return np.concatenate([run.gram[:, layers] for run in runs])


def statistics(matrices, digits):
    """Return the upper triangle of G and its eigenvalues, rounded so that equal numbers stay so."""
    upper = np.triu_indices(matrices.shape[-1])
    values = [matrices[..., *upper], np.linalg.eigvalsh(matrices)]
    return np.round(np.concatenate(values, axis=-1), digits)


def assert_one_law(mine, other, digits=7):
    """Compare all statistics by the two-sample bound of Wei and Dudley; see `oracle`."""
    a, b = (statistics(x, digits).reshape(len(x), -1).T for x in (mine, other))
    threshold = math.sqrt(math.log(2 * len(a) / FALSE_ALARM) / len(mine))
    assert max(ks_distance(x, y) for x, y in zip(a, b, strict=True)) <= threshold
