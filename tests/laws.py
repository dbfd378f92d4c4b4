"""Chains, the formula of their layers from a run's random numbers, and comparisons of laws."""

import math

import numpy as np
from numpy_network import Networks, gram_of, rows_of
from oracle import FALSE_ALARM, ks_distance, normals, projector, semidefinite_cholesky

import bnmc
from bnmc import Chain, Convolution
from bnmc._kernels.scalar import codes

# --- chains, and starts


def haar(width, batch, activation="tanh", **options):
    """Return a chain with orthogonal weights."""
    return Chain(width, batch, activation, weights="haar", **options)


def convolved(width, batch, shape, kernel, **options):
    return Chain(width, batch, "tanh", convolution=Convolution(shape, kernel), **options)


def normal(*shape, seed=8):
    return np.random.default_rng(seed).standard_normal(shape)


AFTER, UNCENTRED = {"order": "activation-norm"}, {"norm": "batch-uncentred"}
PIXELS, ROWS = normal(4, 2, 1, 4), normal(45, 4)
#: Starts whose Gram matrices are singular, or nearly so.
SINGULAR = {
    "copies": ROWS[:, [0, 1, 0, 1]],
    "multiples": np.outer(ROWS[:, 0], np.linspace(1, 2, 4)),
    "nearly equal": np.outer(ROWS[:, 0], np.ones(4)) + 1e-4 * ROWS,
}
#: Chains and their starts: every norm, order and bias, orthogonal weights, convolutions, several
#: inputs, fewer rows than samples, and singular Gram matrices and covariances.
CASES = {
    "layer": (Chain(4, 3, "tanh", norm="layer"), normal(4, 3)),
    "rms, d < n, bias": (Chain(3, 4, "tanh", norm="rms", bias_variance=0.4), normal(3, 4)),
    "groups, skip": (Chain(6, 3, "tanh", norm="group(2)", skip=0.7, gain=1.4), normal(6, 3)),
    "layer after": (Chain(5, 3, "tanh", norm="layer", **AFTER), normal(5, 3)),
    "rms after, skip, bias": (
        Chain(4, 2, "tanh", norm="rms", skip=0.5, bias_variance=0.3, eps=0.1, **AFTER),
        normal(4, 2),
    ),
    "groups after, bias": (
        Chain(8, 3, "tanh", norm="group(2)", bias_variance=0.3, **AFTER), normal(8, 3),
    ),
    "batch after, gain": (Chain(4, 3, "tanh", gain=1.7, **AFTER), normal(4, 3)),
    "batch after, skip, bias": (
        Chain(5, 3, "tanh", skip=-0.6, bias_variance=0.5, **AFTER), normal(5, 3),
    ),
    "uncentred after, d < n": (Chain(2, 4, "tanh", **UNCENTRED, **AFTER), normal(2, 4)),
    "layer, residual": (Chain.resnet(4, 3, "tanh", norm="layer", bias_variance=0.2), normal(4, 3)),
    "batch, residual": (Chain.resnet(4, 4, "tanh", gain=0.8, bias_variance=0.2), normal(4, 4)),
    "none, bias": (Chain(4, 3, "tanh", norm="none", bias_variance=0.3), normal(4, 3)),
    "uncentred, bias": (
        Chain(3, 3, "tanh", bias_variance=0.5, gain=0.5, **UNCENTRED), normal(3, 3),
    ),
    "eps, skip": (Chain(4, 3, "tanh", skip=-0.7, gain=0.6, eps=0.3), normal(4, 3)),
    "inputs, bias": (Chain(6, 2, "tanh", norm="rms", bias_variance=0.3), normal(2, 6, 2)),
    "inputs, batch": (Chain(6, 3, "tanh"), normal(2, 6, 3)),
    "inputs, uncentred": (Chain(6, 3, "tanh", **UNCENTRED), normal(2, 6, 3)),
    "inputs, none": (Chain(6, 3, "tanh", norm="none"), normal(2, 6, 3)),
    "haar, width = rank": (haar(4, 4, norm="none", gain=1.5), normal(4, 4)),
    "haar, width just above rank": (haar(4, 4), normal(4, 4)),
    "haar, width below batch": (haar(3, 6), normal(3, 6)),
    "haar, relu": (haar(12, 4, "relu", gain=0.7), normal(12, 4)),
    "haar, wide": (haar(40, 3, "leaky_relu"), normal(40, 3)),
    "haar, uncentred": (haar(6, 3, "sin", **UNCENTRED), normal(6, 3)),
    "haar, uncentred, width = rank": (haar(3, 3, "linear", **UNCENTRED), normal(3, 3)),
    "haar, eps": (haar(6, 3, gain=0.5, eps=0.3), normal(6, 3)),
    "haar, skip": (haar(5, 3, skip=0.8, gain=0.6), normal(5, 3)),
    "haar, skip without norm": (haar(5, 2, "leaky_relu", norm="none", skip=0.8), normal(5, 2)),
    "haar, inputs": (haar(5, 3), normal(2, 5, 3)),
    "haar, inputs, width = rank": (haar(4, 2, norm="none"), normal(2, 4, 2)),
    "haar, twins": (haar(5, 3, norm="none"), normal(5, 2)[:, [0, 0, 1]]),
    "haar, collinear": (
        haar(4, 3, norm="none", skip=0.5), np.outer(normal(4), [1.0, -2.0, 0.5]),
    ),
    **{
        f"{kind}, {norm}": (Chain(45, 4, "relu", norm=norm), start)
        for norm in ("batch", "batch-uncentred", "none")
        for kind, start in SINGULAR.items()
    },
    "three by three": (convolved(3, 12, (2, 3), (2, 3)), normal(3, 12)),
    "one by two": (convolved(4, 8, (1, 4), (1, 2)), normal(4, 8)),
    "one tap": (convolved(3, 8, (2, 2), (1, 1)), normal(3, 8)),
    "more channels than columns": (convolved(12, 6, (1, 3), (1, 3)), normal(12, 6)),
    "two channels, skip": (convolved(2, 9, (3, 3), (3, 3), skip=0.6, gain=1.2), normal(2, 9)),
    "taps, none": (convolved(4, 8, (2, 2), (2, 1), norm="none"), normal(4, 8)),
    "taps, uncentred": (convolved(4, 8, (4, 1), (3, 1), **UNCENTRED), normal(4, 8)),
    "taps, layer, bias": (
        convolved(4, 6, (1, 3), (1, 2), norm="layer", bias_variance=0.3), normal(4, 6),
    ),
    "taps, batch after": (convolved(4, 6, (1, 3), (1, 2), **AFTER), normal(4, 6)),
    "taps, inputs": (convolved(6, 6, (2, 3), (2, 2)), normal(2, 6, 6)),
    "equal pixels": (
        convolved(4, 8, (1, 4), (1, 2), norm="none"),
        np.broadcast_to(PIXELS[..., :1], PIXELS.shape).reshape(4, 8),
    ),
    "equal images": (
        convolved(4, 8, (1, 4), (1, 2), norm="none"), PIXELS[:, [0, 0]].reshape(4, 8),
    ),
    # A kernel of two taps averages them out: the covariance is singular, and the Gram matrix not.
    "stripes": (
        convolved(4, 8, (1, 4), (1, 2), norm="none"),
        (PIXELS[..., :1] * [1.0, -1.0, 1.0, -1.0]).reshape(4, 8),
    ),
}  # fmt: skip


def inputs_of(start):
    """Return the argument `inputs` of a run from a start, (width, columns) or one of each input."""
    return len(start) if start.ndim == 3 else None


# --- runs against the formula


class DrawnProducts:
    """Weights and bias of a layer of the sampler "conditional", known by their products alone.

    Given a, the rows of W a + b / gain are L z with the covariance L Lᵀ and the normals z of their
    addresses.  Those of orthogonal weights have an orthogonal basis in place of z.
    """

    def __init__(self, run, layer, sees_state, chain=None, number=0):
        self.run, self.layer, self.chain, self.number = run, layer, chain or run.chain, number
        self.centred = self.chain.layers[1].rows.hides_common_part() and not sees_state

    def __matmul__(self, a):
        chain, key = self.chain, self.run.key
        covariance = gram_of(a[0]) + chain.bias_variance / chain.gain**2
        if self.centred:
            centre = projector(chain.batch, self.run.inputs or 1)
            covariance = centre @ covariance @ centre
        factor = semidefinite_cholesky(covariance)
        stream = codes.STREAM_ROWS | np.uint32(self.number)
        draw = codes.Draw(self.layer, stream, np.uint32(key & 0xFFFFFFFF), np.uint32(key >> 32))
        z = normals(np.arange(len(factor)), np.arange(chain.width), draw, np.dtype(self.run.dtype))
        z = z.T.astype(np.float64)
        if chain.weights == "haar":
            regular = np.flatnonzero(factor.any(axis=0))[: chain.width]
            q, r = np.linalg.qr(z[:, regular])
            z, factor = q * np.sign(np.diag(r)) * math.sqrt(chain.width), factor[:, regular]
        return (z @ factor.T)[None]


def networks_of(run, start, depth, sees_states=False):
    """Return the network of a run in NumPy, with its own random numbers.

    If a run by rows records nothing of h before the norm, its h has no part that the norm hides.
    """
    numbers, chain = range(1, depth + 1), run.chain
    if run.sampler == "weights":
        weights = [bnmc.drawn_weights(run, layer).astype(np.float64) for layer in numbers]
        if chain.convolution is not None:
            weights = [rows_of(weight) for weight in weights]
        biases = [bnmc.drawn_biases(run, layer).astype(np.float64)[:, None] for layer in numbers]
    else:
        weights = [DrawnProducts(run, layer, sees_states) for layer in numbers]
        biases = [np.zeros(1)] * depth
    rows = np.concatenate(start, axis=1) if run.inputs else start.reshape(chain.width, -1)
    return Networks(chain, depth, 1, None, rows, run.inputs or 1, weights, biases)


def assert_formula(chain, start, rtol, depth=2, *, records_h=False, **options):
    """Compare G of all layers, and the Gram matrices of h if they are recorded.

    A run that records h draws all parts of its rows.  For several threads, more kernels would be
    compiled, whose bits are equal.
    """
    observables = ["gram", *["state_gram"] * records_h, *["cross_gram"] * (start.ndim == 3)]
    run = bnmc.simulate(
        chain, depth, initial=start, inputs=inputs_of(start), observables=observables, rng=2,
        threads=1, **options,
    )  # fmt: skip
    networks = networks_of(run, start, depth, sees_states=records_h)
    expected, grams = networks.grams[0], grams_of(run)[0]
    np.testing.assert_allclose(grams, expected, rtol=rtol, atol=rtol * np.abs(expected).max())
    if not records_h:
        return
    states = np.stack([gram_of(h[0]) for h in networks.h])
    blocks = [np.s_[k * chain.batch : (k + 1) * chain.batch] for k in range(run.inputs or 1)]
    expected = np.stack([states[:, block, block] for block in blocks], axis=1)
    actual = run["state_gram"][0].reshape(expected.shape)
    np.testing.assert_allclose(actual, expected, rtol=rtol, atol=rtol * np.abs(expected).max())


# --- laws


def grams_of(run):
    """Return the Gram matrices of all samples, those of all inputs together."""
    if run.inputs is None:
        return run.gram
    cross = run["cross_gram"].swapaxes(-3, -2)
    columns = cross.shape[-2] * cross.shape[-1]
    return cross.reshape(*cross.shape[:2], columns, columns)


def law_of(chain, sampler, seed, networks, layers, start, parts=1, **options):
    """Return Gram matrices at some layers, (networks, layers, columns, columns).

    Arrays of runs in parts are reused.
    """
    inputs = inputs_of(start)
    options = {
        "chains": networks // parts, "sampler": sampler, "threads": 1, "inputs": inputs,
        "initial": start, "observables": "cross_gram" if inputs else "gram", **options,
    }  # fmt: skip
    seeds = [seed] if parts == 1 else [[seed, part] for part in range(parts)]
    runs = (bnmc.simulate(chain, max(layers), rng=rng, **options) for rng in seeds)
    return np.concatenate([grams_of(run)[:, layers] for run in runs])


def statistics(matrices, digits):
    """Return the upper triangle of G, its eigenvalues, and a product of G of two layers.

    They are rounded so that equal numbers stay so.
    """
    upper = np.triu_indices(matrices.shape[-1])
    values = [matrices[..., *upper], np.linalg.eigvalsh(matrices)]
    of_layers = np.concatenate(values, axis=-1).reshape(len(matrices), -1)
    joint = matrices[:, 0, -1, 0] * matrices[:, -1, -1, 0]
    return np.round(np.column_stack([of_layers, joint]), digits)


def assert_one_law(mine, other, digits=7):
    """Compare all statistics by the two-sample bound of Wei and Dudley; see `oracle`."""
    a, b = (statistics(x, digits).T for x in (mine, other))
    threshold = math.sqrt(math.log(2 * len(a) / FALSE_ALARM) / len(mine))
    assert max(ks_distance(x, y) for x, y in zip(a, b, strict=True)) <= threshold
