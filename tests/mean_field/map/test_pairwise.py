"""The map for other activations: quadratures of other kinds, sampling, and its standard errors."""

import itertools
import math

import mean_field_oracles as oracles
import numpy as np
import pytest
from mean_field_oracles import (
    SMOOTH,
    assert_within_stderr,
    hard_tanh,
    jump,
    mean_field,
    random_gram,
)
from oracle import FALSE_ALARM
from scipy import integrate, stats
from slow_cases import pairs, some

from bnmc.errors import PartialEstimateError
from bnmc.mean_field.map.iteration import SHIFTS, MeanFieldTrajectory, Step


@pytest.mark.parametrize(
    ("activation", "n"),
    # abs is constant on the two points of a batch of two.
    sorted(set(itertools.product(oracles.HOMOGENEOUS, (2, 3, 4, 10, 40))) - {("abs", 2)}),
)
def test_the_fixed_point_is_fixed(activation, n):
    point = mean_field(activation, n).fixed_point()
    step = mean_field(activation, n).step(point.gram)
    np.testing.assert_allclose(step, point.gram, rtol=0, atol=1e-12)
    assert (step.method, step.nodes, step.key) == ("homogeneous", 0, None)
    assert not step.stderr.any()
    assert step.error < 1e-13


@pytest.mark.parametrize(
    ("activation", "n", "rtol"),
    [
        *(pytest.param(*row.values, 1e-10, marks=row.marks)
          for row in pairs(SMOOTH, [2, 3, 4, 5, 10, 24])),
        ("selu", 5, 5e-3), (hard_tanh, 5, 5e-3), (jump, 5, 5e-3), ("tanh", 60, 1e-2),
    ],
)  # fmt: skip
def test_the_fixed_point_is_fixed_on_lattices(activation, n, rtol):
    point = mean_field(activation, n).fixed_point()
    step = mean_field(activation, n).step(point.gram, rtol=rtol, rng=n)
    assert_within_stderr(step, point.gram)
    assert step.method == "lattice"
    assert step.error <= rtol
    assert step.error == pytest.approx(np.linalg.norm(step.stderr) / np.linalg.norm(step))


@pytest.mark.parametrize("activation", SMOOTH)
def test_against_quadrature_on_the_sphere(activation):
    """Rank 3: centred with 4 samples, and 6 samples of which S sees 3 dimensions."""
    for G, norm in (
        (random_gram(4, seed=10), "batch"),
        (random_gram(6, seed=11, rank=3), "batch-uncentred"),
    ):
        model = mean_field(activation, len(G), norm=norm)
        step = model.step(G, rtol=1e-11, rng=2)
        np.testing.assert_allclose(
            step, oracles.on_sphere(G, model.chain.activation, norm), rtol=0, atol=1e-10
        )


@pytest.mark.parametrize("ratio", [1.0, 1e-2, 1e-4])
def test_against_quadrature_on_the_circle(ratio):
    G = oracles.spectral_gram([ratio, 1.0], seed=12)
    for activation in SMOOTH:
        model = mean_field(activation, 2, norm="batch-uncentred")
        expected = oracles.on_circle(G, model.chain.activation, "batch-uncentred")
        step = model.step(G, rtol=1e-10, rng=3)
        np.testing.assert_allclose(step, expected, rtol=0, atol=1e-9)


UNCENTRED = {"norm": "batch-uncentred"}
SAMPLED = [
    *((activation, {}) for activation in ("relu", "abs", "leaky_relu", "tanh", hard_tanh)),
    *((activation, UNCENTRED) for activation in ("relu", "abs", "leaky_relu", "selu")),
    # With eps, scale and gain matter.
    ("leaky_relu", {"eps": 0.7, "gain": 1.3}),
    ("leaky_relu", {**UNCENTRED, "eps": 0.7, "gain": 1.3}),
    ("gelu", {**UNCENTRED, "eps": 0.4, "gain": 0.6}),
    (jump, {"eps": 2.0, "gain": 1.7}),
    ("sigmoid", {"norm": "none", "gain": 0.8}),
    (hard_tanh, {"norm": "none"}),
]


# With eps, two dimensions have no closed form either.
#: Each activation has one rank each time.
CASES = [
    pytest.param(*case, rank, marks=[] if number % 2 == place else pytest.mark.slow)
    for number, case in enumerate(SAMPLED)
    for place, rank in enumerate((3, None))
]
CASES += [(*SAMPLED[11], 2)]


def text_of(value):
    """A name that is the same in all processes."""
    return getattr(value, "__name__", str(value))


@pytest.mark.parametrize(("activation", "options", "rank"), CASES, ids=text_of)
def test_against_sampling(activation, options, rank):
    G = random_gram(5, seed=13, rank=rank)
    model = mean_field(activation, 5, **options)
    step = model.step(G, rtol=1e-3 if activation is jump else 1e-4, rng=4)
    count = 200_000 if step.method == "homogeneous" else 20_000
    oracles.assert_agrees(step, oracles.sampled(model.chain, G, count, seed=14))


@pytest.mark.parametrize(("activation", "kernel"), [("relu", oracles.arc_cosine), ("linear", None)])
def test_without_normalization(activation, kernel):
    """The arc-cosine kernel of relu at any scale, and 0 of samples that are 0."""
    G, gain = random_gram(4, seed=7), -1.5
    step = mean_field(activation, 4, norm="none", gain=gain).step(G)
    sizes = np.sqrt(np.outer(np.diag(G), np.diag(G)))
    image = sizes * kernel(np.minimum(G / sizes, 1.0))[0] / 2 if kernel else G
    np.testing.assert_allclose(step, gain**2 * image, rtol=1e-13)
    assert not mean_field(activation, 4, norm="none").step(np.zeros((4, 4))).gram.any()


def test_samples_on_a_line_without_normalization():
    row = np.array([1.0, -0.5, 0.0])
    step = mean_field("tanh", 3, norm="none", gain=0.5).step(np.outer(row, row), rtol=1e-10, rng=5)
    values = np.tanh(0.5 * np.outer(row, oracles.NODES))
    np.testing.assert_allclose(step, values * oracles.WEIGHTS @ values.T, rtol=0, atol=1e-9)


@pytest.mark.parametrize("eps", [1e-6, 0.1, 1e3])
def test_one_dimension_with_eps(eps):
    """Two centred samples are ±g, and a single one is g: a one-dimensional integral."""

    def expected(sigma, variance):
        def integrand(g):
            u = math.sqrt(variance) * g
            value = sigma(u / math.sqrt(u * u + eps))
            return value**2 * math.exp(-g * g / 2) / math.sqrt(2 * math.pi)

        scale = math.sqrt(eps / variance)
        points = sorted({min(8.0, p * scale) for p in (0.1, 1.0, 10.0, 100.0)})
        edges = [0.0, *points, 9.0]
        return 2 * sum(
            integrate.quad(integrand, a, b, epsabs=1e-13)[0] for a, b in itertools.pairwise(edges)
        )

    pair = mean_field("tanh", 2, eps=eps).step([[2.0, 0.5], [0.5, 1.0]], rtol=1e-9, rng=6)
    value = expected(math.tanh, (2.0 + 1.0 - 2 * 0.5) / 4)
    np.testing.assert_allclose(pair, value * np.array([[1, -1], [-1, 1]]), rtol=1e-8)
    single = mean_field("tanh", 1, norm="batch-uncentred", eps=eps).step([[3.0]], rtol=1e-9, rng=6)
    assert single.gram[0, 0] == pytest.approx(expected(math.tanh, 3.0), rel=1e-8)


@pytest.mark.parametrize("eps", [1e-300, 1e-60, 1e-30])
@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_tiny_eps_changes_nothing(activation, eps):
    """At rank 1, what eps changes is of the order of its root."""
    for G in ([[2.0, 0.5], [0.5, 1.0]], random_gram(3, seed=5), random_gram(4, seed=5)):
        step = mean_field(activation, len(G), eps=eps).step(G, rtol=1e-8, rng=6)
        without = mean_field(activation, len(G)).step(G, rtol=1e-8, rng=6)
        np.testing.assert_allclose(step, without, rtol=0, atol=2e-7)


def test_rows_that_are_zero():
    """Where there is eps, or no normalization, they are no error."""
    zero = np.zeros((3, 3))
    for options in ({"eps": 0.1}, {"norm": "batch-uncentred", "eps": 0.1}, {"norm": "none"}):
        result = mean_field("sigmoid", 3, **options).step(zero)
        np.testing.assert_allclose(result, np.full((3, 3), 0.25), rtol=1e-14)  # sums round
        assert not mean_field("relu", 3, **options).step(zero).gram.any()
    np.testing.assert_array_equal(mean_field("sigmoid", 3, eps=0.1).step(zero + 7.0), 0.25)
    # Samples so small beside eps that the quotient leaves the range of float64.
    tiny = mean_field("sigmoid", 3, eps=1e10).step(1e-305 * np.eye(3))
    np.testing.assert_array_equal(tiny, 0.25)


def test_equal_opposite_and_vanishing_samples():
    a = np.random.default_rng(35).standard_normal((3, 6))
    a[:, 1], a[:, 3], a[:, 5] = a[:, 0], -2.0 * a[:, 2], 0.0
    model = mean_field("sigmoid", 6, norm="batch-uncentred")
    step = model.step(a.T @ a, rtol=1e-9, rng=7).gram
    expected = oracles.on_sphere(a.T @ a, model.chain.activation, "batch-uncentred")
    np.testing.assert_allclose(step, expected, rtol=0, atol=1e-8)
    np.testing.assert_allclose(step[5, :5], 0.25, rtol=0, atol=1e-9)


@pytest.mark.parametrize("difference", some([1e-3, 1e-5, 1e-6, 1e-7, 1e-8], 1e-3, 1e-6, 1e-8))
def test_nearly_equal_samples(difference):
    a = np.random.default_rng(2).standard_normal((3, 5))
    a[:, 1] = a[:, 0] + difference * np.array([1.0, -1.0, 2.0])
    a[:, 4] = -a[:, 2] + difference * np.array([0.5, 1.0, 2.0])
    model = mean_field("sigmoid", 5, norm="batch-uncentred")
    step = model.step(a.T @ a, rtol=1e-8, rng=8)
    expected = oracles.on_sphere(a.T @ a, model.chain.activation, "batch-uncentred")
    np.testing.assert_allclose(step, expected, rtol=0, atol=1e-7)


@pytest.mark.parametrize("exponent", [4, 8, 12])
def test_spread_spectra(exponent):
    """Against the one-dimensional form, and the diagonal of a centred linear chain."""
    G = oracles.spectral_gram(10.0 ** -np.linspace(0, exponent, 5), seed=18)
    exact = mean_field("relu", 5, norm="batch-uncentred").step(G)
    step = mean_field(oracles.HIDDEN_RELU, 5, norm="batch-uncentred").step(G, rtol=3e-4, rng=9)
    assert_within_stderr(step, exact.gram)


@pytest.mark.slow
@pytest.mark.parametrize("activation", [oracles.HIDDEN_RELU, "tanh"], ids=["kink", "smooth"])
def test_lattices_are_unbiased_and_their_standard_errors_honest(activation):
    """100 seeds on the coarsest lattice, four layers, against values known to 1e-11."""
    seeds = 100
    G = random_gram(4, seed=19)
    name = "relu" if activation is oracles.HIDDEN_RELU else activation
    exact = mean_field(name, 4).trajectory(G, 4, rtol=1e-11, rng=0).gram
    model = mean_field(activation, 4)
    runs = [model.trajectory(G, 4, rtol=0.5, rng=seed) for seed in range(seeds)]
    assert all(run.nodes < 1000 for run in runs)
    for entry in ((1, 0, 0), (1, 0, 1), (4, 0, 0), (4, 0, 1)):
        error = np.array([run.gram[entry] - exact[entry] for run in runs])
        stderr = np.array([run.stderr[entry] for run in runs])
        sigmas = stats.norm.isf(FALSE_ALARM / 16)
        # The mean over seeds has no bias, but for the square of the error of one seed's shifts.
        bias = 2 * SHIFTS * np.mean(stderr**2) / exact[1:].max()
        assert abs(error.mean()) < sigmas * error.std(ddof=1) / math.sqrt(seeds) + bias
        # The squared standard error is the variance, in the mean: the difference has mean 0.
        excess = error**2 - stderr**2
        assert abs(excess.mean()) < sigmas * excess.std(ddof=1) / math.sqrt(seeds)
        # Student's 95 % interval covers at least 90 %: so few would be seen with FALSE_ALARM / 16.
        covered = np.abs(error) <= stats.t.isf(0.025, SHIFTS - 1) * stderr
        assert covered.sum() >= stats.binom.ppf(FALSE_ALARM / 16, seeds, 0.90)


def test_hidden_homogeneity_agrees_with_the_one_dimensional_form():
    for norm, n in itertools.product(("batch", "batch-uncentred"), (3, 4, 7)):
        G = random_gram(n, seed=20 + n)
        exact = mean_field("relu", n, norm=norm).step(G).gram
        step = mean_field(oracles.HIDDEN_RELU, n, norm=norm).step(G, rtol=1e-3, rng=11)
        assert_within_stderr(step, exact)


def test_rng_decides_the_lattice():
    G = random_gram(5, seed=21)
    model = mean_field("tanh", 5)
    first, again, other = (model.step(G, rng=seed) for seed in (0, np.random.default_rng(0), 1))
    np.testing.assert_array_equal(first, again)
    assert first.key == again.key != other.key
    assert not np.array_equal(first, other)
    assert model.step(G).key != model.step(G).key


def test_rtol_is_met():
    G = random_gram(5, seed=22)
    model = mean_field("tanh", 5)
    steps = [model.step(G, rtol=rtol, rng=0) for rtol in (1e-2, 1e-5, 1e-9)]
    for step, rtol in zip(steps, (1e-2, 1e-5, 1e-9), strict=True):
        assert step.error <= rtol
    assert steps[0].nodes < steps[1].nodes < steps[2].nodes
    assert steps[1].error < 0.1 * steps[0].error


def test_an_unreachable_rtol_carries_the_estimate():
    G = random_gram(5, seed=23)
    model = mean_field(jump, 5)
    with pytest.raises(PartialEstimateError, match="rtol is 1.0e-09") as caught:
        model.step(G, rtol=1e-9, rng=0, max_nodes=3000)
    partial = caught.value.partial
    assert isinstance(partial, Step)
    assert 1500 < partial.nodes <= 3000
    assert 1e-9 < partial.error < 0.1
    oracles.assert_agrees(partial, oracles.sampled(model.chain, G, 20_000, seed=24))

    with pytest.raises(PartialEstimateError) as caught:
        model.trajectory(G, 3, rtol=1e-9, rng=0, max_nodes=1)
    partial = caught.value.partial
    assert isinstance(partial, MeanFieldTrajectory)
    assert partial.gram.shape == partial.stderr.shape == (4, 5, 5)

    with pytest.raises(PartialEstimateError) as caught:
        mean_field("relu", 5).step(G, rtol=1e-17)
    np.testing.assert_array_equal(caught.value.partial, mean_field("relu", 5).step(G))
    with pytest.raises(PartialEstimateError):
        mean_field("tanh", 5).step(G, rtol=1e-16, max_nodes=5000)
