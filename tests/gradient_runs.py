"""Backward passes in tests: networks in NumPy, and by how much two passes may differ."""

import numpy as np
from numpy_network import Networks, rows_of
from oracle import FALSE_ALARM
from scipy import stats

import bnmc

ALL = ("delta_gram", "gram", "hidden_delta")


# --- networks in NumPy with the numbers that the library draws


def networks_as_drawn(chain, depth, initial, count=2, inputs=None, rng=5):
    """Return networks with the weights and biases of `simulate`, and their key."""
    run = bnmc.simulate(
        chain, depth, chains=count, inputs=inputs, initial=initial, sampler="weights", rng=rng
    )
    weights, biases = (
        [
            np.stack([of_layer(run, layer, chain=number) for number in range(count)])
            for layer in range(1, depth + 1)
        ]
        for of_layer in (bnmc.drawn_weights, bnmc.drawn_biases)
    )
    if chain.convolution is not None:
        weights = [rows_of(kernels) for kernels in weights]
    columns = np.concatenate(initial, axis=1) if inputs else initial
    biases = [bias[:, :, None] for bias in biases]
    return Networks(chain, depth, count, None, columns, inputs or 1, weights, biases), run.key


def generator_of(key, number):
    """Return the generator of a network, as `bnmc/gradients/network.py` describes it."""
    return np.random.Generator(np.random.Philox(key=key, counter=[0, 0, 0, number]))


def readouts_of(key, count, classes, width):
    """Return the readouts of networks, (count, classes, width)."""
    normals = [generator_of(key, n).standard_normal((classes, width)) for n in range(count)]
    return np.stack(normals) / np.sqrt(width)


# --- comparisons


def assert_same_bits(run, other):
    assert (run.key, run.widened) == (other.key, other.widened)
    assert run.log_gradient_norm.tobytes() == other.log_gradient_norm.tobytes()
    assert run.log_scale.tobytes() == other.log_scale.tobytes()
    for name, values in run.observables.items():
        assert values.tobytes() == other[name].tobytes()


def assert_same_law(features, others):
    """Compare each number of networks, (networks, numbers), by an exact test of its share of 1e-6.

    They are two-sample Kolmogorov-Smirnov tests.
    """
    assert np.isfinite(features).all()
    values = [stats.ks_2samp(a, b).pvalue for a, b in zip(features.T, others.T, strict=True)]
    assert min(values) > FALSE_ALARM / len(values), np.round(values, 4)


# --- on a GPU


def on_device(chain, depth, **options):
    return bnmc.backpropagate(
        chain, depth, backend="cuda", **{"rng": 3, "observables": ALL, **options}
    )


def assert_same_to_rounding(chain, depth, **options):
    """Compare a run on the GPU with that on the CPU.

    As in `gpu_runs`: rounding of d terms of random sign, after products with matrices of order n,
    whose condition, here at most 100, multiplies it.  A layer has such sums twice, and its
    gradient depends on those of all layers above.
    """
    a = bnmc.backpropagate(chain, depth, **{"rng": 3, "observables": ALL, **options})
    b = on_device(chain, depth, **options)
    assert (a.backend, b.backend) == ("cpu", "cuda")
    assert (a.key, a.dtype, a.sampler, a.widened) == (b.key, b.dtype, b.sampler, b.widened)
    n, unit = chain.batch * (a.inputs or 1), 2.0**-23 if a.dtype == "float32" else 2.0**-52
    allowed = 100 * unit * (np.sqrt(chain.width) + 3 * n + 20) * 2 * depth
    assert np.abs(a.log_gradient_norm - b.log_gradient_norm).max() <= allowed
    for name in ALL:
        # Relative to the size of each matrix, in the unit of δ of the CPU.
        power = {"gram": 0, "hidden_delta": 1, "delta_gram": 2}[name]
        unit_of = np.exp(power * (b.log_scale - a.log_scale))[..., None, None]
        size = np.abs(a[name]).max(axis=(2, 3), keepdims=True)
        assert (np.abs(a[name] - b[name] * unit_of) <= allowed * size).all(), name
    return a, b
