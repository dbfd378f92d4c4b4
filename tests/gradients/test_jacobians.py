"""Jacobians: finite differences of drawn networks, laws, closed forms of moments, and bits."""

import functools
import math

import numpy as np
import pytest
from gradient_runs import assert_same_law
from numpy_network import Block, Networks, flattened, network_of
from oracle import FALSE_ALARM
from scipy import stats
from slow_cases import slow, some

import bnmc
from bnmc import Chain, Convolution, errors
from bnmc.gradients import extreme_singular_values, jacobian

RAW = {"activation": "linear", "norm": "none"}


def chains_of(depth, **options):
    """Return a layer 0 that is its input, or keeps it beside a skip connection, and the others."""
    chain = Chain(weights="uniform", **options)
    first = Chain(chain.width, chain.batch, norm="none", convolution=chain.convolution,
                  activation=chain.activation if chain.skip else "linear")  # fmt: skip
    return [first] + [chain] * depth


NETWORKS = {
    "batch": chains_of(2, width=6, batch=4, activation="tanh", gain=0.8),
    "uncentred, eps": chains_of(2, width=5, batch=3, activation="sin", norm="batch-uncentred",
                                eps=0.2),
    "batch, skip": chains_of(3, width=5, batch=4, activation="tanh", skip=0.7, gain=1.3),
    "residual": chains_of(3, width=5, batch=4, activation="tanh", skip=1.0,
                          order="pre-activation"),
    "batch after": chains_of(2, width=5, batch=4, activation="tanh", order="activation-norm"),
    "layer after, skip, bias": chains_of(2, width=6, batch=2, activation="tanh", norm="layer",
                                         order="activation-norm", skip=0.5, bias_variance=0.3),
    "rms, bias": chains_of(2, width=6, batch=2, activation="tanh", norm="rms", bias_variance=0.3),
    "none, bias": chains_of(3, width=6, batch=2, activation="sin", norm="none",
                            bias_variance=0.4, gain=1.2),
    "convolution": chains_of(2, width=3, batch=8, activation="tanh", norm="batch",
                             convolution=Convolution((2, 2), (2, 1))),
    "convolution, none": chains_of(2, width=3, batch=8, activation="tanh", norm="none",
                                   convolution=Convolution((2, 2), (2, 2))),
    "unequal widths": [
        Chain(4, 3, **RAW), Chain(7, 3, "tanh", weights="uniform"),
        Chain(3, 3, "sin", norm="none", weights="uniform"),
        Chain(5, 3, "tanh", norm="layer", weights="uniform"),
    ],
    "blocks": [
        Chain(4, 4, **RAW),
        Chain(5, 4, "tanh", weights="uniform", order="pre-activation", bias_variance=0.2),
        Block(
            [
                Chain(6, 4, "tanh", weights="uniform"),
                Block([Chain(3, 4, "sin", norm="none", weights="uniform"),
                       Chain(6, 4, "tanh", norm="layer", weights="uniform")], skip=0.4),
                Chain(5, 4, "sin", weights="uniform", order="pre-activation"),
            ],
            skip=-0.8,
        ),
        Block([Chain(4, 4, "tanh", weights="uniform"), Chain(7, 4, "tanh", weights="uniform")],
              Chain(7, 4, norm="none", weights="uniform", gain=1.3, bias_variance=0.2),
              skip=0.7),
    ],
    "blocks of activations": [
        Chain(5, 2, **RAW),
        Block([Chain(6, 2, "tanh", norm="rms", weights="uniform"),
               Chain(5, 2, "tanh", norm="none", weights="uniform")], source="activations"),
        Block([Chain(4, 2, "sin", norm="layer", weights="uniform")],
              Chain(4, 2, norm="none", weights="uniform"), source="activations"),
    ],
}  # fmt: skip


def differences(items, x, maps):
    """Return dstate/dx of the last layer by central differences, (rows, columns) of all entries."""
    chains, paths = flattened(items)
    keeps_x = any(chain.skip for chain in chains)
    keeps_x |= any(path.block.source == "state" for path in paths)
    step = 1e-5
    moves = step * np.eye(x.size).reshape(-1, *x.shape)
    ends = []
    for sign in (1.0, -1.0):
        last = Networks(items, None, x.size, None, x + sign * moves, 1, *maps)._made[-1]
        ends.append((last.state if keeps_x else last.a).reshape(x.size, -1))
    return (ends[0] - ends[1]).T / (2.0 * step)


def maps_of(run, items, number):
    """Return the drawn weights and biases of a network, and those of projections."""

    def drawn(layer, **options):
        weights = bnmc.drawn_weights(run, layer, chain=number, **options)
        if weights.ndim > 2:  # kernels
            weights = np.moveaxis(weights, -3, -1).reshape(len(weights), -1)
        bias = bnmc.drawn_biases(run, layer, chain=number, **options)
        return weights[None], bias[None, :, None]

    chains, paths = flattened(items)
    weights, biases = zip(*(drawn(layer) for layer in range(1, len(chains))), strict=True)
    projections = [drawn(path.end, projection=True) for path in paths if path.block.projection]
    return list(weights), list(biases), projections


@pytest.mark.parametrize("name", NETWORKS)
def test_singular_values_are_those_of_finite_differences(name):
    """Errors of central differences are of order 1e-10 times third derivatives."""
    items = NETWORKS[name]
    network, chains = network_of(items), flattened(items)[0]
    rng = np.random.default_rng(3)
    x = rng.standard_normal((chains[0].width, chains[0].batch))
    run = bnmc.simulate(network, chains=2, initial=x, sampler="weights", rng=5)
    ours = jacobian(network, chains=2, initial=x, rng=run.key)
    ends = extreme_singular_values(network, chains=2, initial=x, rtol=1e-9, rng=run.key)
    batch = any(chain.norm.startswith("batch") for chain in chains)
    pixels = 1 if chains[0].convolution is None else chains[0].convolution.positions
    mixing = x.shape[1] if batch else pixels
    for number in range(2):
        whole = differences(items, x, maps_of(run, items, number))
        largest = np.linalg.norm(whole, 2)
        assert ends.squares[number] == pytest.approx(largest**2, rel=1e-7)
        samples = x.shape[1] // mixing
        by_sample = whole.reshape(-1, samples, mixing, x.shape[0], samples, mixing)
        for sample in range(samples):
            part = by_sample[:, sample, :, :, sample].reshape(-1, x.shape[0] * mixing)
            values = np.zeros(part.shape[1])
            exact = np.linalg.svd(part, compute_uv=False)
            values[: len(exact)] = exact
            ours_here = np.exp(ours.log_singular_values[number, -1, sample])
            assert np.abs(ours_here - values).max() < 1e-7 * values[0]
        # No sample depends on another one that does not mix with it.
        for first in range(samples):
            for second in set(range(samples)) - {first}:
                assert np.abs(by_sample[:, first, :, :, second]).max() < 1e-9


def products(chain, depth, count, rng):
    """Return singular values of D_L W_L ... D_1 W_1 for one sample or batch, by NumPy."""
    networks = Networks(chain, depth, count, rng)
    columns = np.eye(chain.width * chain.batch).reshape(-1, chain.width, chain.batch)
    at = np.broadcast_to(columns, (count, *columns.shape))
    for layer in range(1, depth + 1):
        h, weight = networks.h[layer][:, None], networks.weights[layer - 1][:, None]
        at_h = chain.gain * weight @ at
        if chain.norm == "batch":
            s, x = h.std(axis=-1, keepdims=True), networks._made[layer]._normed[:, None]
            at_h = (at_h - at_h.mean(-1, keepdims=True)) / s
            at_h -= x * (x * at_h).mean(-1, keepdims=True)
        argument = networks._made[layer]._normed[:, None]
        slope = (argument > 0.0) if chain.activation.name == "relu" else 1 - np.tanh(argument) ** 2
        at = slope * at_h
    return np.linalg.svd(at.reshape(count, columns.shape[0], -1), compute_uv=False)


LAWS = {
    "relu": (Chain(30, 1, "relu", norm="none", gain=2**0.5), 3),
    "haar": (Chain(30, 1, "tanh", norm="none", weights="haar", gain=1.3), 3),
    "batch": (Chain(9, 5, "tanh"), 3),
    "batch, haar": (Chain(9, 5, "relu", weights="haar"), 2),
}


def features(values):
    """Return numbers of networks: ln of the sum of squares, of the largest and of a middle one."""
    squares = values**2
    middle = squares[:, squares.shape[1] // 3]
    share = np.square(squares).sum(axis=1) / squares.sum(axis=1) ** 2
    return np.stack([np.log(squares.sum(axis=1)), np.log(squares[:, 0]), np.log(middle), share], 1)


@pytest.mark.parametrize(
    ("name", "count"),
    [pytest.param(name, 300, id=name) for name in ("relu", "batch, haar")]
    + [pytest.param(name, 5000, id=f"{name}, slow", marks=pytest.mark.slow) for name in LAWS],
)
def test_spectra_have_the_law_of_drawn_products(name, count):
    """Four two-sample Kolmogorov-Smirnov tests of level 1e-6 / 4; distances of .22 (slow: .055)."""
    chain, depth = LAWS[name]
    theirs = products(chain, depth, count, np.random.default_rng(1))
    ours = jacobian(chain, depth, chains=count, every=depth, rng=2)
    squares = np.sqrt(ours.squared_singular_values)
    assert_same_law(features(squares), features(theirs))


# Gaussian matrices that are drawn by direction: `implicit/test_matrix.py`.
@pytest.mark.parametrize("name", some(LAWS, "haar"))
def test_directions_have_the_law_of_drawn_products(name):
    """Few directions take the matrices that are drawn by direction.

    The singular values on a random span are those of J times orthonormal columns.  Two-sample
    Kolmogorov-Smirnov tests of 250 networks a side see distances of .24.
    """
    (chain, depth), count, k = LAWS[name], 250, 2
    chain = Chain(
        30, chain.batch, chain.activation, norm=chain.norm, gain=chain.gain, weights=chain.weights
    )
    chain, depth = (chain, depth) if chain.norm == "none" else (chain, 2)
    rng = np.random.default_rng(4)
    theirs = np.stack([of_span(chain, depth, k, rng) for _ in range(count)])
    ours = jacobian(chain, depth, directions=k, chains=count, rng=5)
    squares = np.sqrt(ours.squared_singular_values)
    assert_same_law(np.log(squares), np.log(theirs))


def of_span(chain, depth, k, rng):
    """Return singular values on the span of k random directions, of one network."""
    networks = Networks(chain, depth, 1, rng)
    size = chain.width * chain.batch
    basis, _ = np.linalg.qr(rng.standard_normal((size, k)))
    at = basis.T.reshape(k, chain.width, chain.batch)
    for layer in range(1, depth + 1):
        made = networks._made[layer]
        at_h = chain.gain * networks.weights[layer - 1][0] @ at
        x = made._normed[0]
        if chain.norm == "batch":
            at_h = at_h - at_h.mean(-1, keepdims=True)
            at_h = (at_h - x * (x * at_h).mean(-1, keepdims=True)) / made.h[0].std(
                axis=-1, keepdims=True
            )
        at = at_h * ((x > 0.0) if chain.activation.name == "relu" else 1 - np.tanh(x) ** 2)
    return np.linalg.svd(at.reshape(k, -1), compute_uv=False)


# --- closed forms


def moments(kind, depth, width):
    """Return E m_1², E m_2 for m_k = tr (JᵀJ)ᵏ / d, exactly; E m_1 = 1.

    Rows of W are independent N(0, 1/d), and relu with gain² = 2 keeps each with probability 1/2,
    whatever the other layers: given a row up to its sign, the sign is fair.
    """
    p = q = 1.0
    for _ in range(depth):
        if kind == "linear":
            p, q = p * (1 + 1 / width) + q, q + 2 * p / width**2
        else:
            p, q = p * (1 + 3 / width) + 2 * q, q * (1 + 1 / width) + 4 * p / width**2
    return q, p


def test_the_closed_moments_are_those_of_the_limit():
    for depth in (4, 10):
        assert moments("relu", depth, 1e9)[1] - 1 == pytest.approx(2 * depth)
        assert moments("linear", depth, 1e9)[1] - 1 == pytest.approx(depth)


# A linear layer is one of relu whose slopes are all 1.
@pytest.mark.parametrize(
    ("kind", "depth"), [("relu", 4), slow("relu", 10), slow("linear", 4), slow("linear", 10)]
)
def test_moments_of_networks_without_norm(kind, depth):
    """Means of 400 networks within 5.1 standard errors: a false alarm has probability 1e-6."""
    width, gain = 50, 2**0.5 if kind == "relu" else 1.0
    chain = Chain(width, 1, kind, norm="none", gain=gain)
    squares = jacobian(chain, depth, every=depth, chains=400, rng=6).squared_singular_values
    bound = stats.norm.isf(FALSE_ALARM / 6)
    q, p = moments(kind, depth, width)
    for values, exact in (
        (squares.mean(axis=1), 1.0),
        (squares.mean(axis=1) ** 2, q),
        ((squares**2).mean(axis=1), p),
    ):
        error = values.std(ddof=1) / math.sqrt(len(values))
        assert abs(values.mean() - exact) < bound * error
        assert error < 0.1 * exact


def test_orthogonal_linear_networks_are_isometries():
    chain = Chain(40, 1, "linear", norm="none", weights="haar")
    for directions in (None, 5):
        squares = jacobian(chain, 5, directions=directions, chains=2, rng=0)
        assert np.abs(squares.log_singular_values).max() < 1e-13


@pytest.mark.slow
@pytest.mark.parametrize("depth", [4, 10])
def test_moments_of_wide_networks(depth):
    """Width 200 and 200 networks: E m_2 within 5 standard errors, with its terms of order 1/width.

    The dispersion of a network is 2 depth up to such terms, here below 6 %.
    """
    chain = Chain(200, 1, "relu", norm="none", gain=2**0.5)
    ours = jacobian(chain, depth, every=depth, chains=200, rng=0)
    seconds = (ours.squared_singular_values**2).mean(axis=1)
    error = seconds.std(ddof=1) / math.sqrt(len(seconds))
    assert abs(seconds.mean() - moments("relu", depth, 200)[1]) < 5 * error
    assert abs(ours.dispersion().value - 2 * depth) < 0.12 * depth
    assert ours.largest().value / ours.law().largest == pytest.approx(1.0, abs=0.3)


# --- bits, ranges and errors


def test_results_do_not_depend_on_threads_or_the_number_of_networks():
    chain = Chain(12, 3, "tanh")
    runs = [
        jacobian(chain, 3, chains=count, threads=threads, rng=7).log_singular_values
        for count, threads in ((4, 1), (4, 3), (2, 2))
    ]
    assert runs[0].tobytes() == runs[1].tobytes()
    assert runs[0][:2].tobytes() == runs[2].tobytes()


def test_singular_values_beyond_float64():
    """Slopes 1e4 cos(h) of 50 layers; ln of a mean fluctuates by less than 1 for each 30 layers."""
    chain = Chain(30, 1, "sin", norm="none", gain=1e4)
    ours = jacobian(chain, 50, every=50, chains=3, rng=0)
    logs = np.logaddexp.reduce(2 * ours.log_singular_values[:, 0, 0], axis=-1) - math.log(30)
    assert ours.log_singular_values.max() > 400
    assert np.abs(logs - ours.law().log_mean).max() < 8.0
    assert ours.squared_singular_values.max() == math.inf
    with pytest.raises(errors.PartialEstimateError):
        ours.mean()
    assert ours.to_dict()["rows"][0]["mean"] == math.inf


@pytest.mark.parametrize(
    ("chain", "initial", "reason"),
    [
        (Chain(6, 4), np.vander(np.arange(2.0, 8.0), 4),
         "initial: got 'ndarray', allowed: \"gaussian\" (under a norm over the batch the law is "
         "known for this start only)"),
        (Chain(6, 2, "sin", norm="none"), [[1.0, 2.0]] * 6,
         "initial: got 'mean squares 0.7081 to 0.8268', allowed: equal mean squares (the law "
         "depends on the mean square of the activations a_0 of a sample)"),
    ],
)  # fmt: skip
def test_an_unknown_law_has_a_reason_in_place_of_columns(chain, initial, reason):
    ours = jacobian(chain, 2, chains=2, initial=initial, rng=3)
    with pytest.raises(errors.ArgumentError) as refused:
        ours.law()
    assert str(refused.value) == reason == ours.to_dict()["reason"]
    _, heads, *rows, last = str(ours).splitlines()
    assert heads.split() == ["layer", "mean", "s²", "variance/mean²", "largest/mean"]
    assert {len(row.split()) for row in rows} == {4}
    assert last == f"limit of infinite width unknown: {reason}"
    assert jacobian(chain, 2, chains=2, rng=3).to_dict()["reason"] == ""


def test_the_kept_layers_are_those_of_a_shorter_run():
    chain = Chain(10, 1, "relu", norm="none")
    every, last = (jacobian(chain, 4, every=step, chains=2, rng=3) for step in (1, 3))
    assert last.layers.tolist() == [3, 4]
    assert np.array_equal(every.log_singular_values[:, 2:], last.log_singular_values)
    assert every.mean(3).value == pytest.approx(
        np.exp(2 * every.log_singular_values[:, 2]).mean(), rel=1e-12
    )


def test_estimates_of_few_networks_and_directions():
    ours = jacobian(Chain(10, 1, "relu", norm="none"), 2, directions=3, chains=1, rng=3)
    with pytest.raises(errors.PartialEstimateError):
        ours.mean()
    with pytest.raises(errors.ArgumentError, match="^directions"):
        ours.dispersion()
    with pytest.raises(errors.ArgumentError, match="^layer"):
        ours.mean(5)


@functools.cache
def pictured(norm):
    return jacobian(Chain(12, 4, "tanh", norm=norm), 2, chains=3, rng=0)


@pytest.mark.parametrize(("norm", "curves"), [("none", 1), ("batch", 1), ("layer", 1)])
def test_pictures_have_the_histogram_and_the_law(norm, curves):
    ax = pictured(norm).plot()
    assert len(ax.lines) == curves
    assert len(ax.patches) == 1


def test_laws_that_are_not_known_leave_their_cells_empty():
    residual = jacobian(Chain.resnet(8, 4, "tanh"), 2, chains=3, rng=0)
    with pytest.raises(errors.ArgumentError, match="^skip"):
        residual.law()
    assert residual.to_dict()["rows"][0]["limit_mean"] is None
    assert len(residual.plot().lines) == 0
    x = np.random.default_rng(0).standard_normal((8, 2)) * [1.0, 3.0]
    samples = jacobian(Chain(8, 2, "tanh", norm="none"), 1, initial=x, chains=2, rng=0)
    with pytest.raises(errors.ArgumentError, match="^initial"):
        samples.law()
    relu = jacobian(Chain(8, 2, "relu", norm="none"), 1, initial=x, chains=2, rng=0)
    assert relu.law().mean == pytest.approx(0.5)
    x = np.random.default_rng(1).standard_normal((8, 4))
    batch = jacobian(Chain(8, 4, "tanh"), 1, initial=x, chains=2, rng=0)
    with pytest.raises(errors.ArgumentError, match="^initial"):
        batch.law()
