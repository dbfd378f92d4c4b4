"""Steps and trajectories of the map: invariances, Jacobian, arguments, results."""

import math
import pickle

import numpy as np
import pytest
from mean_field_oracles import HOMOGENEOUS, mean_field, random_gram, reach
from numpy_network import covariance, network_of
from slow_cases import slow

import bnmc
from bnmc import gram as gm
from bnmc.chain import Chain
from bnmc.chain.activations import Activation
from bnmc.chain.start import Representation
from bnmc.errors import ArgumentError, ArgumentTypeError, NonFiniteError, ZeroVarianceError
from bnmc.mean_field import MeanField
from bnmc.mean_field.map.iteration import iterates
from bnmc.simulation.observables import OBSERVABLES
from bnmc.simulation.runs import Recorded, Run
from bnmc.simulation.segment import Segment


def test_rank_one_is_two_points():
    row = np.array([3.0, -1.0, 0.0, -2.0])
    unit = row / np.sqrt(np.mean(row**2))
    for activation in (*HOMOGENEOUS, "tanh", "sigmoid"):
        model = mean_field(activation, 4)
        values = model.chain.activation(np.array([unit, -unit]))
        step = model.step(7.0 * np.outer(row, row) + 5.0)
        np.testing.assert_allclose(step, values.T @ values / 2, rtol=0, atol=1e-14)


@pytest.mark.parametrize("factor", [1e-200, 1e-3, 1e200])
@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_the_scale_of_G_is_not_seen(activation, factor):
    G = random_gram(5, seed=8)
    model = mean_field(activation, 5)
    step, scaled = model.step(G, rng=0), model.step(factor * G, rng=0)
    np.testing.assert_allclose(scaled, step, rtol=0, atol=1e-12)


@pytest.mark.parametrize("activation", ["relu", "tanh", "sigmoid"])
def test_samples_can_be_permuted(activation):
    G = random_gram(6, seed=9)
    order = np.random.default_rng(0).permutation(6)
    model = mean_field(activation, 6)
    step = model.step(G, rtol=1e-10, rng=0).gram
    permuted = model.step(G[np.ix_(order, order)], rtol=1e-10, rng=1)
    np.testing.assert_allclose(permuted, step[np.ix_(order, order)], rtol=0, atol=1e-9)


def test_the_scale_is_the_eigenvalue_zero():
    model = mean_field("tanh", 4)
    point = model.fixed_point()
    step = model.step(1.5 * point.gram + 0.3, rtol=1e-10, rng=0)
    np.testing.assert_allclose(step, point.gram, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("activation", "norm", "method"),
    [("relu", "batch", "homogeneous"), ("tanh", "batch", "lattice"), ("tanh", "layer", "pairwise")],
)
def test_a_trajectory_iterates_the_step(activation, norm, method):
    G = random_gram(4, seed=25)
    model = mean_field(activation, 4, norm=norm)
    run = model.trajectory(G, 4, rtol=1e-9, rng=0)
    assert run.gram.shape == run.stderr.shape == (5, 4, 4)
    assert run.method == method
    assert run.layers.tolist() == [0, 1, 2, 3, 4]
    np.testing.assert_array_equal(run.gram[0], G)
    assert not run.stderr[0].any()
    for layer in range(4):
        step = model.step(run.gram[layer], rtol=1e-9, rng=1)
        np.testing.assert_allclose(run.gram[layer + 1], step, rtol=0, atol=1e-7)
    np.testing.assert_array_equal(np.asarray(run), run.gram)
    start = model.trajectory(G, 0)
    np.testing.assert_array_equal(start, G[None])
    assert start.error == 0.0


@pytest.mark.parametrize("activation", ["relu", slow("tanh"), "sigmoid"])
def test_trajectories_converge_at_the_rate_of_the_fixed_point(activation):
    model = mean_field(activation, 5)
    point = model.fixed_point()
    run = model.trajectory(random_gram(5, seed=26), 25, rtol=1e-12, rng=0)
    gap = gm.distance(run.gram, point.gram)
    # What is left of the second eigenvalue, and of second order, is (λ₂/λ₁)^25 and gap[24].
    assert gap[25] / gap[24] == pytest.approx(point.rate, abs=2e-3)
    assert gap[25] < 1e-2 * gap[0]


@pytest.mark.parametrize(
    ("options", "activation"),
    [
        ({}, "tanh"),
        ({}, "relu"),
        ({"norm": "batch-uncentred"}, "tanh"),
        ({"norm": "none", "gain": 1.3}, "tanh"),
        ({"eps": 0.1, "gain": 0.5}, "relu"),
        ({"norm": "layer", "convolution": bnmc.Convolution((1, 4), (1, 2))}, "relu"),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_trajectories_against_simulated_chains(options, activation):
    """40 chains of width 20 000: the mean over them is off by O(1/width), far below its error."""
    depth, n, width = 6, 4, 20_000
    chain = Chain(width=width, batch=n, activation=activation, **options)
    x = np.random.default_rng(27).standard_normal((width, n)) @ np.diag([1.0, 1.5, 2.0, 3.0])
    x[:, 1] += x[:, 0]
    run = bnmc.simulate(chain, depth, chains=40, initial=x, rng=28)
    field = MeanField(chain).trajectory(run.gram[0, 0], depth, rtol=1e-6, rng=29)
    upper = np.triu_indices(n)
    samples = run.gram[:, 1:, upper[0], upper[1]]
    error = np.abs(samples.mean(axis=0) - field.gram[1:, upper[0], upper[1]])
    np.testing.assert_array_less(error, reach(samples) + 10 / width * np.abs(samples[0]))


def test_a_layer_without_variance_is_named():
    G = [[2.0, 0.0], [0.0, 1.0]]
    assert np.ptp(mean_field("abs", 2).step(G).gram) == 0.0
    for activation in ("abs", lambda x: math.cos(x)):
        with pytest.raises(ZeroVarianceError, match="layer 2") as caught:
            mean_field(activation, 2).trajectory(G, 3)
        assert caught.value.layer == 2


def test_overflow_is_named():
    model = mean_field(Activation(lambda x: x * x), 2, norm="none", gain=10.0)
    with pytest.raises(NonFiniteError, match="layer"):
        model.trajectory(np.eye(2), 60, rtol=0.5, rng=0)
    with pytest.raises(NonFiniteError, match="layer 1"):
        mean_field("relu", 2, norm="none", gain=1e200).step(np.eye(2))


def test_equal_samples_are_seen_at_the_precision_of_the_input():
    rng = np.random.default_rng(30)
    a = np.repeat(rng.standard_normal((1000, 1)), 3, axis=1)
    G = gm.gram(a)
    noise = np.triu(rng.standard_normal((3, 3)))
    for dtype in (np.float32, np.float64):
        rounded = (G * (1 + 0.5 * np.finfo(dtype).eps * (noise + noise.T) / 4)).astype(dtype)
        with pytest.raises(ArgumentError, match="not all equal"):
            mean_field("relu", 3).step(rounded)
    # What float64 still tells apart.
    step = mean_field("relu", 3).step(G + 1e-12 * np.diag([1.0, 2.0, 3.0]))
    expected = mean_field("relu", 3).step(np.diag([1.0, 2.0, 3.0]))
    np.testing.assert_allclose(step, expected, rtol=0, atol=1e-2)


@pytest.mark.parametrize("norm", ["layer", "rms", "group(2)"])
@pytest.mark.parametrize("eps", [0.0, 0.3])
def test_a_norm_over_the_features_divides_each_sample(norm, eps):
    """E erf(u)erf(v) = (2/π) arcsin(2 E uv / √((1 + 2 E u²)(1 + 2 E v²))), by Williams (1997)."""
    convolution = bnmc.Convolution((1, 3), (1, 2))
    gram = random_gram(6, 5)
    options = {"gain": 1.7, "bias_variance": 0.4, "convolution": convolution}
    chain = Chain(8, 6, "erf", norm=norm, eps=eps, **options)
    seen = 1.7**2 * covariance(gram, (1, 3), (1, 2)) + 0.4
    spread = np.sqrt(np.diag(seen) + eps)
    q = seen / np.outer(spread, spread)
    size = np.sqrt(1.0 + 2.0 * np.diag(q))
    expected = 2.0 / np.pi * np.arcsin(2.0 * q / np.outer(size, size))
    result = MeanField(chain).step(gram, rtol=1e-9, rng=0)
    np.testing.assert_allclose(result, expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize(("activation", "slope"), [("tanh", 1.0), ("gelu", 0.5), ("silu", 0.5)])
def test_samples_whose_squares_vanish_have_an_error(activation, slope):
    """There σ(x) is slope x; entries of G are above 1e-200, their squares are 0."""
    G = 1e-200 * (np.eye(3) + 0.5)
    step = bnmc.MeanField(bnmc.Chain(10, 3, activation, norm="none")).step(G)
    assert 1e-16 < step.error < 1e-12
    np.testing.assert_allclose(step.gram, slope**2 * G, rtol=1e-13)


def test_results_are_arrays_where_arrays_are_wanted():
    step = mean_field("relu", 3).step(np.eye(3))
    assert np.asarray(step) is step.gram
    assert np.array(step) is not step.gram
    assert np.asarray(step, dtype=np.float32).dtype == np.float32
    assert np.allclose(step, step.gram)
    assert gm.distance(step, step.gram) == 0.0
    assert (step - step.gram == 0.0).all()
    with pytest.raises(AttributeError):
        step.gram = None


def test_results_can_be_pickled():
    step = mean_field("tanh", 3).step(np.eye(3), rng=0)
    again = pickle.loads(pickle.dumps(step))
    np.testing.assert_array_equal(again, step)
    assert again.key == step.key


# --- Iterates of layers that differ: single steps, one after the other, and wide networks


START = np.random.default_rng(0).standard_normal((8, 4))
G0 = START.T @ START / 8

#: Layers of all three methods.
OPTIONS = [
    ("tanh", {"norm": "none", "gain": 1.3, "bias_variance": 0.3}),
    ("relu", {}),
    ("gelu", {"norm": "layer", "eps": 0.1}),
    ("silu", {"norm": "rms", "order": "activation-norm", "gain": 2.0}),
    ("relu", {"norm": "batch-uncentred", "eps": 0.1, "bias_variance": 0.2}),
    ("tanh", {"eps": 0.05}),
]


def chains(width, options=OPTIONS):
    return [bnmc.Chain(width, 4, activation, **rest) for activation, rest in options]


def passed(some):
    return iterates([chain.layers[1] for chain in some], len(some), G0, 3, 1e-9, 10**7)


@pytest.mark.parametrize(
    ("places", "method"),
    [((0, 2, 3), "pairwise"), ((2, 1, 0, 4), "homogeneous"), ((1, 5, 0, 4), "lattice")],
)
def test_layers_that_differ_are_steps_one_after_the_other(places, method):
    some = [chains(8)[place] for place in places]
    run, states = passed(some), [G0]
    for chain in some:
        states.append(MeanField(chain).step(states[-1], rtol=1e-9, rng=1).gram)
    assert run.method == method
    assert (run.nodes > 0) == (run.key is not None) == (method == "lattice")
    if method == "lattice":
        assert run.error <= 1e-9
        np.testing.assert_allclose(run.gram, states, rtol=0, atol=1e-7)
    else:
        np.testing.assert_array_equal(run.gram, states)
    back = passed(some[::-1])
    assert np.abs(back.gram[-1] - run.gram[-1]).max() > 0.01


def test_a_network_has_the_maps_of_its_layers():
    first, some = bnmc.Chain(8, 4, norm="none"), [chains(8)[place] for place in (2, 1, 1, 0, 4)]
    run = MeanField(network_of([first, *some])).trajectory(G0, rtol=1e-9)
    np.testing.assert_array_equal(run.gram, passed(some).gram)
    same = MeanField(some[1].repeat(3))
    np.testing.assert_array_equal(
        same.trajectory(G0).gram, MeanField(some[1]).trajectory(G0, 3).gram
    )
    np.testing.assert_array_equal(same.step(G0), MeanField(some[1]).step(G0))


def test_a_default_bias_has_the_width_before():
    narrow = bnmc.Chain(2, 4, "relu", norm="none", weights="pytorch")
    given = bnmc.Chain(2, 4, "relu", norm="none", gain=3**-0.5, bias_variance=1 / 24)
    networks = [
        bnmc.Chain(8, 4, norm="none").repeat(0) + each.repeat(1) for each in (narrow, given)
    ]
    of_default, expected = (MeanField(network).trajectory(G0).gram for network in networks)
    np.testing.assert_allclose(of_default, expected, rtol=1e-14)


def test_a_network_has_no_fixed_point():
    mean_field = MeanField(network_of(chains(8)))
    for of_chain in (
        mean_field.fixed_point, mean_field.fluctuations, lambda: mean_field.step(G0),
    ):  # fmt: skip
        with pytest.raises(ArgumentTypeError, match="meaning for one repeated layer only"):
            of_chain()
    with pytest.raises(ArgumentError, match="depth: got 3, allowed: None with a network"):
        mean_field.trajectory(G0, 3)
    with pytest.raises(ArgumentError, match="skip"):
        MeanField(network_of([bnmc.Chain(8, 4), bnmc.Chain(8, 4, skip=0.5)])).trajectory(G0)


@pytest.mark.slow
def test_wide_networks_have_these_gram_matrices():
    """The mean of 20 networks, with a bias of the order 1/width.

    One of 96 entries is off by 10 standard errors with a probability of 5e-7.
    """
    width, networks = 4000, 20
    start = np.tile(START, (width // len(START), 1))  # aᵀa/width is G0
    first = bnmc.Chain(width, 4, "linear", norm="none")
    run = Run(
        network_of([first, *chains(width)]), "conditional", networks, None, "float64",
        3 + (5 << 32), observables=(OBSERVABLES["gram"],), recorded=Recorded(1, 1, len(OPTIONS)),
    )  # fmt: skip
    grams = np.zeros((networks, len(OPTIONS), 4, 4))
    segment, values = Segment(run, 1), {"gram": grams}
    segment.begin(Representation(start[None], start[None]), values)
    segment.advance(len(OPTIONS), values, 0)
    limit = passed(chains(8)).gram[1:]
    stderr = grams.std(axis=0, ddof=1) / np.sqrt(networks)
    far = np.abs(grams.mean(axis=0) - limit)
    assert (far < 10.0 * stderr + 20.0 / width).all()
    assert stderr.max() < 0.01


@pytest.mark.parametrize("norm", ["batch", "batch-uncentred", "layer", "none"])
def test_a_bias_beyond_all_multiples_of_the_gain(norm):
    """The variance of the bias over gain² exceeds float64: rows are the bias alone."""
    fields = {"norm": norm, "bias_variance": 1.0, "eps": 0.0 if norm == "none" else 1.0}
    small, least = (
        MeanField(Chain(10, 3, "relu", gain=gain, **fields)).step(np.diag([1.0, 2.0, 3.0])).gram
        for gain in (1e-20, 1e-200)
    )
    assert least == pytest.approx(small, abs=1e-14)


# --- skip connections

INPUT = np.random.default_rng(1).standard_normal((20, 6)) + np.array([0, 2.0, 2, 2, 0, 0])
COVARIANCE = INPUT.T @ INPUT / 20
RESIDUAL = {
    "batch norm, relu": ("relu", {"gain": 2**0.5}),
    "batch norm, tanh": ("tanh", {"skip": 0.9, "bias_variance": 0.3}),
    "layer norm": ("relu", {"norm": "layer", "skip": -0.7, "eps": 0.1}),
    "norm after": ("tanh", {"norm": "rms", "order": "activation-norm"}),
    "norm first": ("silu", {"norm": "layer", "order": "norm-activation", "gain": 0.5}),
    "batch norm after": ("relu", {"order": "activation-norm", "eps": 1e-3, "skip": 0.5}),
    "no norm": ("tanh", {"norm": "none", "skip": 0.5}),
}


def resnet(width, name, options):
    return bnmc.Chain(width, 6, name, **{"skip": 1.0, "order": "pre-activation", **options})


@pytest.mark.parametrize("kind", RESIDUAL)
def test_residual_networks_from_gaussian_rows(kind):
    """The mean of 60 networks of width 1000 after 4 blocks.

    Entries are off by 8 standard errors, Student with 59 degrees of freedom, with probability
    5e-11 each, of 180; and by terms of order 1/width.
    """
    width, depth, networks = 1000, 4, 60
    options = {"rng": 2, "initial": bnmc.FirstLayer(INPUT), "observables": ("gram", "state_gram")}
    of_run = bnmc.simulate(resnet(width, *RESIDUAL[kind]), depth, chains=networks, **options)
    path = MeanField(resnet(8, *RESIDUAL[kind])).trajectory(
        covariance=COVARIANCE, depth=depth, rng=0
    )
    pairs = [("gram", path.gram)]
    if kind != "norm first":
        pairs.append(("state_gram", path.covariance))
    for name, limit in pairs:
        some = of_run[name]
        stderr = some.std(axis=0, ddof=1) / np.sqrt(networks)
        size = np.sqrt(np.einsum("lii->li", limit))
        scale = size[:, :, None] * size[:, None]
        far = np.abs(some.mean(axis=0) - limit)
        lattice = 10.0 * path.stderr if path.method == "points" else 0.0
        assert (far < 8.0 * stderr + 20.0 / width * scale + lattice).all(), name
        assert (stderr < 0.05 * scale).all()


def test_skip_connections_in_one_formula():
    """Σ and G of two blocks with layer norm, by the formulas in plain NumPy."""
    chain = resnet(8, "relu", {"norm": "rms", "skip": 0.7, "gain": 1.3, "bias_variance": 0.2})
    path = MeanField(chain).trajectory(covariance=COVARIANCE, depth=2)
    sigma, states, grams = COVARIANCE, [], []
    for _ in range(3):
        states.append(sigma)
        root = np.sqrt(np.diagonal(sigma))
        rho = np.clip(sigma / np.outer(root, root), -1, 1)
        grams.append((np.sqrt(1 - rho**2) + (np.pi - np.arccos(rho)) * rho) / (2 * np.pi))
        sigma = 0.49 * sigma + 1.69 * grams[-1] + 0.2
    np.testing.assert_allclose(path.covariance, states, rtol=1e-13)
    np.testing.assert_allclose(path.gram, grams, rtol=0, atol=1e-9)


def test_a_skip_connection_begins_within_a_network():
    """After a layer without skip connection, rows are Gaussian from any start."""
    blocks = resnet(8, "relu", {})
    plain = bnmc.Chain(8, 6, "relu", order="pre-activation")
    gram = np.diag(np.arange(1.0, 7.0))
    path = MeanField(plain.repeat(1) + blocks.repeat(2)).trajectory(gram)
    assert path.covariance is None
    expected = MeanField(blocks).trajectory(covariance=gram, depth=2)
    np.testing.assert_allclose(path.gram[1:], expected.gram, rtol=1e-12)


def test_starts_and_skip_connections_that_have_no_map():
    blocks = MeanField(resnet(8, "relu", {}))
    with pytest.raises(ArgumentError, match="skip: got 1.0, allowed: 0 in the layer after G0"):
        blocks.trajectory(COVARIANCE, 2)
    with pytest.raises(ArgumentError, match="skip"):
        blocks.step(COVARIANCE)
    for both in ({}, {"G0": COVARIANCE, "covariance": COVARIANCE}):
        with pytest.raises(ArgumentError, match="covariance: .* a matrix in place of G0"):
            blocks.trajectory(depth=2, **both)
    with pytest.raises(ArgumentError, match="skip: .*not Gaussian"):
        MeanField(bnmc.Chain.bn_residual(8, 6, "relu", gamma=1.0)).trajectory(
            covariance=COVARIANCE, depth=2
        )
    plain = bnmc.Chain(8, 6, "relu").repeat(0)
    after = MeanField(plain + resnet(8, "relu", {"norm": "none"}).repeat(2))
    with pytest.raises(ArgumentError, match="skip: .*not Gaussian"):
        after.trajectory(covariance=COVARIANCE)
    with pytest.raises(ArgumentError, match="skip: .*of the rows"):
        blocks.trajectory(covariance=COVARIANCE, depth=2, fluctuations=True)


# --- blocks with a skip path


def with_blocks(kind, width):
    pre = bnmc.Chain(width, 6, "relu", order="pre-activation", gain=1.4)
    tanh = bnmc.Chain(width, 6, "tanh", norm="none")
    network, block = bnmc.Network, bnmc.Residual
    if kind == "pre-activation":
        end = bnmc.Chain(width // 2, 6, "tanh", order="pre-activation")
        narrow = bnmc.Chain(width // 2, 6, norm="none", gain=0.7, bias_variance=0.3)
        inner = block(network((pre, 2)), skip=0.5)
        return network(
            (pre, 1), block(network((pre, 1), inner, (pre, 1))), block(network((end, 2)), narrow)
        )
    if kind == "layer norm after the sum":
        last = bnmc.Chain(width, 6, "linear", norm="layer")
        return network((last, 0), *[block(network((tanh, 1), (last, 1)))] * 2)
    if kind == "projected activations":
        biased = bnmc.Chain(width, 6, norm="none", gain=0.8, bias_variance=0.4)
        return network((tanh, 1), block(network((tanh, 2)), biased, source="activations"))
    normed = bnmc.Chain(width, 6, "relu")
    return network(
        (normed, 1), block(network((normed, 2)), bnmc.Chain(width, 6, norm="none", gain=2.0))
    )


KINDS = (
    "pre-activation", "layer norm after the sum", "projected activations",
    "projected state behind batch norm",
)  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_from_gaussian_rows(kind):
    """The mean of 60 networks of width 800, as for residual networks; at most 288 entries."""
    width, networks = 800, 60
    run = bnmc.simulate(
        with_blocks(kind, width), chains=networks, initial=bnmc.FirstLayer(INPUT), rng=2
    )
    path = MeanField(with_blocks(kind, 8)).trajectory(covariance=COVARIANCE, rng=0, rtol=1e-3)
    stderr = run.gram.std(axis=0, ddof=1) / np.sqrt(networks)
    size = np.sqrt(np.einsum("lii->li", path.gram))
    scale = size[:, :, None] * size[:, None]
    far = np.abs(run.gram.mean(axis=0) - path.gram)
    assert (far < 8.0 * stderr + 20.0 / width * scale + 10.0 * path.stderr).all()
    assert (stderr < 0.05 * scale).all()


def test_blocks_from_a_gram_matrix():
    """Activations are known from G0, the state is not; fluctuations know no blocks."""
    network = with_blocks("projected activations", 8)
    start = bnmc.Network((network.first, 0), *network.stages[1:])
    path = MeanField(start).trajectory(G0=np.eye(6) + 0.2)
    assert path.covariance is None
    assert path.gram.shape == (3, 6, 6)
    block = with_blocks("layer norm after the sum", 8)
    with pytest.raises(ArgumentError, match="skip: .*covariance="):
        MeanField(block).trajectory(G0=np.eye(6))
    with pytest.raises(ArgumentError, match="without residual blocks"):
        MeanField(start).trajectory(np.eye(6), fluctuations=True)
