"""The mean-field map: closed forms, quadratures of other kinds, sampling, and its own fixed points.

Standard errors of 8 shifts are compared through Student's law with 7 degrees of freedom, those of
at least 100 blocks of samples through the normal law; FALSE_ALARM bounds the chance of a false
alarm of a test, however many numbers it compares.
"""

import itertools
import math
import pickle

import numpy as np
import pytest
from scipy import integrate, special, stats

import bnmc
from bnmc import gram as gm
from bnmc.chain import Chain
from bnmc.chain.activations import Activation
from bnmc.errors import (
    ArgumentError,
    ArgumentTypeError,
    NonFiniteError,
    PartialEstimateError,
    ResultTooLargeError,
    ZeroVarianceError,
)
from bnmc.mean_field import MeanField
from bnmc.mean_field.map.homogeneous import slopes
from bnmc.mean_field.map.map import SHIFTS, MeanFieldTrajectory, Step

FALSE_ALARM = 1e-6
HOMOGENEOUS = ("linear", "relu", "leaky_relu", "abs")
SMOOTH = ("tanh", "sigmoid", "gelu", "sin")


def mean_field(activation, batch, **options) -> MeanField:
    return MeanField(Chain(width=100, batch=batch, activation=activation, **options))


def relu(x):
    return x if x > 0.0 else 0.0


def hard_tanh(x):
    return min(max(x, -1.0), 1.0)


def jump(x):
    return 1.0 if x > 0.3 else 0.0


def cosine(x):
    return math.cos(x)


#: relu with a kink declared where there is none: not taken for homogeneous.
HIDDEN_RELU = Activation(relu, kinks=(0.0, 50.0), name="hidden relu")


def random_gram(n, seed, rank=None, spread=2.0):
    """A Gram matrix of unequal samples; of full rank if `rank` is not given."""
    rng = np.random.default_rng(seed)
    a = rng.standard_normal((rank or 3 * n, n)) * np.linspace(1.0, spread, n)
    return a.T @ a / len(a)


def spectral_gram(values, seed):
    """A Gram matrix with given eigenvalues."""
    q = np.linalg.qr(np.random.default_rng(seed).standard_normal((len(values),) * 2))[0]
    return q * values @ q.T


def seen(G, norm):
    """Eigenvalues and eigenvectors of what the norm sees of G, those of 0 left out."""
    n = len(G)
    P = np.eye(n) - 1 / n if norm == "batch" else np.eye(n)
    values, vectors = np.linalg.eigh(P @ G @ P)
    keep = values > 1e-13 * values[-1]
    return values[keep], vectors[:, keep]


# --- oracles ---------------------------------------------------------------------------------


def on_circle(G, sigma, norm="batch"):
    """F(G) where S has rank 2: an integral over the angle of the Gaussian.

    Cut where a φ_i is 0, and where φ turns faster than the angle if S is nearly of rank 1.
    """
    values, vectors = seen(G, norm)
    assert values.size == 2
    root = vectors * np.sqrt(values)
    fast = np.sqrt(values[0] / values[1]) * 4.0 ** np.arange(-3, 12)
    fast = fast[fast < 1.0]
    cuts = np.concatenate([np.arctan2(-root[:, 0], root[:, 1]), fast, -fast, [0.0]]) % np.pi
    cuts = np.append(np.unique(cuts), np.pi)
    edges = np.concatenate([cuts, cuts[1:] + np.pi])
    nodes, weights = special.roots_legendre(80)
    half = np.diff(edges)[:, None] / 2
    angle = (edges[:-1, None] + half + half * nodes).ravel()
    u = root @ np.stack([np.cos(angle), np.sin(angle)])
    a = sigma(np.sqrt(len(G)) * u / np.linalg.norm(u, axis=0))
    return a * (half * weights).ravel() @ a.T / (2 * np.pi)


def on_sphere(G, sigma, norm="batch"):
    """F(G) where S has rank 3: directions have the density ∝ (θᵀ S⁻¹ θ)^(−3/2)."""
    values, vectors = seen(G, norm)
    assert values.size == 3
    t, weight = special.roots_legendre(200)
    angle = 2 * np.pi * np.arange(400) / 400
    t, angle = (a.ravel() for a in np.meshgrid(t, angle, indexing="ij"))
    theta = np.stack([np.sqrt(1 - t * t) * np.cos(angle), np.sqrt(1 - t * t) * np.sin(angle), t])
    density = np.repeat(weight, 400) * (theta**2 / values[:, None]).sum(axis=0) ** -1.5
    a = sigma(np.sqrt(len(G)) * vectors @ theta)
    return a * (density / density.sum()) @ a.T


def sampled(chain, G, count, seed):
    """Blocks of samples of σ(φ) σ(φ)ᵀ, (200, n, n)."""
    n = chain.batch
    values, vectors = np.linalg.eigh(G)
    root = vectors * np.sqrt(np.clip(values, 0, None))
    rng = np.random.default_rng(seed)
    blocks = []
    for _ in range(200):
        row = chain.gain * rng.standard_normal((count // 200, n)) @ root.T
        if chain.norm == "batch":
            row -= row.mean(axis=1, keepdims=True)
        if chain.norm != "none":
            row /= np.sqrt((row**2).mean(axis=1, keepdims=True) + chain.eps)
        a = chain.activation(row)
        blocks.append(a.T @ a / len(a))
    return np.array(blocks)


def assert_agrees(step: Step, blocks):
    """Entries on and above the diagonal against the mean of blocks of samples."""
    upper = np.triu_indices(blocks.shape[1])
    stderr = blocks.std(axis=0, ddof=1)[upper] / math.sqrt(len(blocks))
    error = np.abs(np.asarray(step)[upper] - blocks.mean(axis=0)[upper])
    sigmas = stats.norm.isf(FALSE_ALARM / 4 / stderr.size)
    quantile = stats.t.isf(FALSE_ALARM / 4 / stderr.size, SHIFTS - 1)
    assert np.linalg.norm(step.stderr[upper]) < 0.7 * np.linalg.norm(stderr)
    np.testing.assert_array_less(error, sigmas * stderr + quantile * step.stderr[upper])


def assert_within_stderr(step, expected):
    """All entries on and above the diagonal, by Student's law."""
    upper = np.triu_indices(len(expected))
    quantile = stats.t.isf(FALSE_ALARM / 2 / upper[0].size, SHIFTS - 1)
    error = np.abs(step.gram - expected)[upper]
    np.testing.assert_array_less(error, quantile * step.stderr[upper])


# --- homogeneous activations -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("activation", "n"),
    # abs is constant on the two points of a batch of two.
    sorted(set(itertools.product(HOMOGENEOUS, (2, 3, 4, 10, 40))) - {("abs", 2)}),
)
def test_the_fixed_point_is_fixed(activation, n):
    star = mean_field(activation, n).fixed_point()
    step = mean_field(activation, n).step(star.gram)
    np.testing.assert_allclose(step, star.gram, rtol=0, atol=1e-12)
    assert step.method == "homogeneous"
    assert (step.nodes, step.key) == (0, None)
    assert not step.stderr.any()
    assert step.error < 1e-13


@pytest.mark.parametrize("ratio", [1.0, 1e-3, 1e-6, 1e-12])
def test_linear_in_two_dimensions(ratio):
    """E u₁²/‖u‖² = √s₁/(√s₁ + √s₂), whatever the spread."""
    G = np.diag([1.0, ratio])
    share = 1 / (1 + math.sqrt(ratio))
    expected = 2 * np.diag([share, 1 - share])
    step = mean_field("linear", 2, norm="batch-uncentred").step(G)
    np.testing.assert_allclose(step, expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("values", [(1, 2, 3), (1, 1e-3, 1e-6), (1, 1, 1e-12), (1, 1e-12, 1e-12)])
def test_linear_in_three_dimensions(values):
    """E u₁²/‖u‖² is an elliptic integral: R_D, in Carlson's form."""
    s = np.array(values, dtype=float)
    x = 1 / (2 * s)
    shares = [
        math.sqrt(np.prod(x)) * special.elliprd(x[(i + 1) % 3], x[(i + 2) % 3], x[i]) / 3
        for i in range(3)
    ]
    q = np.linalg.qr(np.random.default_rng(1).standard_normal((3, 3)))[0]
    step = mean_field("linear", 3, norm="batch-uncentred").step(np.diag(s))
    np.testing.assert_allclose(step, 3 * np.diag(shares), rtol=0, atol=1e-14)
    rotated = mean_field("linear", 3, norm="batch-uncentred").step(q * s @ q.T)
    # Rounding of G moves its small eigenvalues, and F is Hölder-1/2 in those near rank 1.
    atol = 1e-13 if values[1] > 1e-6 else 1e-8
    np.testing.assert_allclose(rotated, 3 * (q * shares) @ q.T, rtol=0, atol=atol)


@pytest.mark.parametrize("ratio", [1.0, 1e-2, 1e-6])
@pytest.mark.parametrize("activation", [*HOMOGENEOUS, Activation(lambda x: 2 * x if x < 0 else -x)])
def test_homogeneous_on_a_circle(activation, ratio):
    helmert = np.array([[1, -1, 0] / np.sqrt(2), [1, 1, -2] / np.sqrt(6)])
    turned = np.array([[0.8, 0.6], [-0.6, 0.8]]) @ helmert
    G = turned.T * [1.0, ratio] @ turned
    model = mean_field(activation, 3)
    expected = on_circle(G, model.chain.activation)
    # Rounding of G moves its small eigenvalue by 1e-16, and F by the root of the ratio less.
    atol = 1e-14 / math.sqrt(ratio)
    np.testing.assert_allclose(model.step(G), expected, rtol=0, atol=atol)


@pytest.mark.parametrize("rank", [2, 4, None])
@pytest.mark.parametrize("norm", ["batch", "batch-uncentred"])
@pytest.mark.parametrize("activation", ["relu", "abs", "leaky_relu"])
def test_homogeneous_against_sampling(activation, norm, rank):
    G = random_gram(5, seed=3, rank=rank)
    model = mean_field(activation, 5, norm=norm)
    assert_agrees(model.step(G), sampled(model.chain, G, 200_000, seed=4))


@pytest.mark.parametrize("norm", ["batch", "batch-uncentred"])
def test_homogeneous_with_eps_against_sampling(norm):
    """With eps, scale and gain matter."""
    G = random_gram(4, seed=5)
    model = mean_field("leaky_relu", 4, norm=norm, eps=0.7, gain=1.3)
    assert_agrees(model.step(G), sampled(model.chain, G, 200_000, seed=6))


def test_large_eps_divides_by_its_root():
    G = random_gram(4, seed=5)
    model = mean_field("linear", 4, norm="batch-uncentred", eps=1e12, gain=3.0)
    np.testing.assert_allclose(model.step(G).gram, 9.0 * G / 1e12, rtol=1e-10)


def test_without_normalization_relu_is_the_arc_cosine_kernel():
    G = random_gram(4, seed=7)
    model = mean_field("relu", 4, norm="none", gain=-1.5)
    size = np.sqrt(np.diag(G))
    for i, j in itertools.product(range(4), repeat=2):
        rho = min(1.0, G[i, j] / (size[i] * size[j]))
        J = (math.sqrt(1 - rho**2) + (math.pi - math.acos(rho)) * rho) / math.pi
        expected = 1.5**2 * size[i] * size[j] * J / 2
        assert model.step(G).gram[i, j] == pytest.approx(expected, rel=1e-13)
    linear = mean_field("linear", 4, norm="none", gain=-1.5).step(G)
    np.testing.assert_allclose(linear, 2.25 * G, rtol=1e-13)
    assert not mean_field("relu", 4, norm="none").step(np.zeros((4, 4))).gram.any()


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


class Plain:
    """What `slopes` needs of an activation, without a compiler."""

    def __init__(self, function, kinks=()):
        self.function, self.kinks = function, kinks

    def __call__(self, x):
        return self.function(np.asarray(x, dtype=np.float64))


def test_homogeneity_is_seen_from_values():
    known = {"linear": (1, 1), "relu": (0, 1), "leaky_relu": (0.01, 1), "abs": (-1, 1)}
    for name in (*HOMOGENEOUS, *SMOOTH, "erf", "elu", "celu", "selu", "silu"):
        assert slopes(Activation.named(name)) == known.get(name)
    assert slopes(Plain(lambda x: np.where(x > 0, 3.0 * x, -0.1 * x))) == (-0.1, 3.0)
    assert slopes(Plain(lambda x: 0.0 * x)) == (0.0, 0.0)
    assert slopes(Plain(lambda x: np.maximum(x, 0.0), kinks=(0.0,))) == (0.0, 1.0)
    others = [
        Plain(lambda x: np.maximum(x, 0.0), kinks=(0.0, 50.0)),
        Plain(lambda x: np.clip(x, -1.0, 1.0)),
        Plain(lambda x: np.minimum(x, 1e9)),
        Plain(lambda x: x + 1e-12),
        Plain(lambda x: x + 1e-13 * np.sin(x)),
        Plain(lambda x: x * np.abs(x)),
        Plain(np.sign),
        Plain(lambda x: np.where(np.abs(x - 3.7) < 0.002, 0.0, x)),
        Plain(lambda x: np.where(np.abs(x + 27.7) < 0.002, 0.0, x)),
        Plain(lambda x: np.where(x == 0.0, 1.0, x)),
        Plain(lambda x: np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x)))),
        Plain(lambda x: np.where(x > 0.0, np.nan, x)),
    ]
    for activation in others:
        assert slopes(activation) is None


# --- other activations -----------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 3, 4, 5, 10, 24])
@pytest.mark.parametrize("activation", SMOOTH)
def test_the_fixed_point_is_fixed_on_lattices(activation, n):
    star = mean_field(activation, n).fixed_point()
    step = mean_field(activation, n).step(star.gram, rtol=1e-10, rng=n)
    assert_within_stderr(step, star.gram)
    assert step.method == "lattice"
    assert step.error <= 1e-10
    assert step.error == pytest.approx(np.linalg.norm(step.stderr) / np.linalg.norm(step))


@pytest.mark.parametrize("activation", ["selu", hard_tanh, jump])
def test_the_fixed_point_is_fixed_with_kinks(activation):
    model = mean_field(activation, 5)
    star = model.fixed_point()
    step = model.step(star.gram, rtol=5e-3, rng=1)
    assert_within_stderr(step, star.gram)


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
            step, on_sphere(G, model.chain.activation, norm), rtol=0, atol=1e-10
        )


@pytest.mark.parametrize("ratio", [1.0, 1e-2, 1e-4])
def test_against_quadrature_on_the_circle(ratio):
    G = spectral_gram([ratio, 1.0], seed=12)
    for activation in SMOOTH:
        model = mean_field(activation, 2, norm="batch-uncentred")
        expected = on_circle(G, model.chain.activation, "batch-uncentred")
        step = model.step(G, rtol=1e-10, rng=3)
        np.testing.assert_allclose(step, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("options", "activation"),
    [
        ({}, "tanh"),
        ({}, hard_tanh),
        ({"norm": "batch-uncentred"}, "selu"),
        ({"norm": "batch-uncentred", "eps": 0.4, "gain": 0.6}, "gelu"),
        ({"eps": 2.0, "gain": 1.7}, jump),
        ({"norm": "none", "gain": 0.8}, "sigmoid"),
        ({"norm": "none"}, hard_tanh),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
@pytest.mark.parametrize("rank", [3, None])
def test_against_sampling(options, activation, rank):
    G = random_gram(5, seed=13, rank=rank)
    model = mean_field(activation, 5, **options)
    step = model.step(G, rtol=1e-3 if activation is jump else 1e-4, rng=4)
    assert_agrees(step, sampled(model.chain, G, 20_000, seed=14))


def test_without_normalization_against_hermite_quadrature():
    G = random_gram(3, seed=15)
    x, weight = special.roots_hermitenorm(120)
    weight = np.outer(weight, weight) / weight.sum() ** 2
    model = mean_field("tanh", 3, norm="none", gain=0.5)
    step = model.step(G, rtol=1e-10, rng=5).gram
    for i, j in itertools.combinations_with_replacement(range(3), 2):
        first = 0.5 * math.sqrt(G[i, i]) * x[:, None]
        slope = G[i, j] / G[i, i]
        rest = math.sqrt(max(0.0, G[j, j] - slope * G[i, j]))
        second = slope * first + 0.5 * rest * x[None, :]
        expected = np.sum(weight * np.tanh(first) * np.tanh(second))
        assert step[i, j] == pytest.approx(expected, abs=1e-9)
    row = np.array([1.0, -0.5, 0.0])
    values = np.tanh(0.5 * np.outer(row, x))
    step = model.step(np.outer(row, row), rtol=1e-10, rng=5)
    np.testing.assert_allclose(step, values * weight.sum(axis=0) @ values.T, rtol=0, atol=1e-9)


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
        np.testing.assert_array_equal(mean_field("sigmoid", 3, **options).step(zero), 0.25)
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
    expected = on_sphere(a.T @ a, model.chain.activation, "batch-uncentred")
    np.testing.assert_allclose(step, expected, rtol=0, atol=1e-8)
    np.testing.assert_allclose(step[5, :5], 0.25, rtol=0, atol=1e-9)


@pytest.mark.parametrize("difference", [1e-3, 1e-5, 1e-6, 1e-7, 1e-8])
def test_nearly_equal_samples(difference):
    a = np.random.default_rng(2).standard_normal((3, 5))
    a[:, 1] = a[:, 0] + difference * np.array([1.0, -1.0, 2.0])
    a[:, 4] = -a[:, 2] + difference * np.array([0.5, 1.0, 2.0])
    model = mean_field("sigmoid", 5, norm="batch-uncentred")
    step = model.step(a.T @ a, rtol=1e-8, rng=8)
    expected = on_sphere(a.T @ a, model.chain.activation, "batch-uncentred")
    np.testing.assert_allclose(step, expected, rtol=0, atol=1e-7)


@pytest.mark.parametrize("exponent", [4, 8, 12])
def test_spread_spectra(exponent):
    """Against the one-dimensional form, and the diagonal of a centred linear chain."""
    G = spectral_gram(10.0 ** -np.linspace(0, exponent, 5), seed=18)
    exact = mean_field("relu", 5, norm="batch-uncentred").step(G)
    step = mean_field(HIDDEN_RELU, 5, norm="batch-uncentred").step(G, rtol=3e-4, rng=9)
    assert_within_stderr(step, exact.gram)


def test_many_samples():
    star = mean_field("tanh", 60).fixed_point()
    step = mean_field("tanh", 60).step(star.gram, rtol=1e-2, rng=10)
    assert_within_stderr(step, star.gram)


# --- the standard error ----------------------------------------------------------------------


@pytest.mark.parametrize("activation", [HIDDEN_RELU, "tanh"], ids=["kink", "smooth"])
def test_lattices_are_unbiased_and_their_standard_errors_honest(activation):
    """100 seeds on the coarsest lattice, four layers, against values known to 1e-11."""
    seeds = 100
    G = random_gram(4, seed=19)
    name = "relu" if activation is HIDDEN_RELU else activation
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
        step = mean_field(HIDDEN_RELU, n, norm=norm).step(G, rtol=1e-3, rng=11)
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
    assert_agrees(partial, sampled(model.chain, G, 20_000, seed=24))

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


# --- the Jacobian ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("activation", "n"),
    [("relu", 5), ("relu", 10), ("abs", 4), ("linear", 6), ("tanh", 5), ("tanh", 10), ("gelu", 6)],
)
def test_eigenvalues_of_the_jacobian_by_finite_differences(activation, n):
    model = mean_field(activation, n)
    star = model.fixed_point()
    P = np.eye(n) - 1 / n
    d = np.arange(n) - (n - 1) / 2
    e = np.eye(n)
    second = np.outer(e[0] - e[1], e[2] - e[3])
    # Central differences are off by h², and by twice the step's own error over 2h.
    h = 1e-4 * star.b * (1 - star.c)
    for delta, eigenvalue in zip((P * d @ P, second + second.T), star.eigenvalues, strict=True):
        delta = delta / np.abs(delta).max()
        plus, minus = (
            model.step(star.gram + s * h * delta, rtol=1e-12, rng=12).gram for s in (1, -1)
        )
        change = P @ (plus - minus) @ P / (2 * h)
        np.testing.assert_allclose(change, eigenvalue * delta, rtol=0, atol=1e-6)


def test_the_scale_is_the_eigenvalue_zero():
    model = mean_field("tanh", 4)
    star = model.fixed_point()
    step = model.step(1.5 * star.gram + 0.3, rtol=1e-10, rng=0)
    np.testing.assert_allclose(step, star.gram, rtol=0, atol=1e-9)


# --- trajectories ----------------------------------------------------------------------------


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_a_trajectory_iterates_the_step(activation):
    G = random_gram(4, seed=25)
    model = mean_field(activation, 4)
    run = model.trajectory(G, 4, rtol=1e-9, rng=0)
    assert run.gram.shape == run.stderr.shape == (5, 4, 4)
    assert run.layers.tolist() == [0, 1, 2, 3, 4]
    np.testing.assert_array_equal(run.gram[0], G)
    assert not run.stderr[0].any()
    for layer in range(4):
        step = model.step(run.gram[layer], rtol=1e-9, rng=1)
        np.testing.assert_allclose(run.gram[layer + 1], step, rtol=0, atol=1e-7)
    np.testing.assert_array_equal(np.asarray(run), run.gram)


def test_no_layers():
    for activation in ("relu", "tanh"):
        run = mean_field(activation, 3).trajectory(np.eye(3), 0)
        np.testing.assert_array_equal(run, np.eye(3)[None])
        assert run.error == 0.0


@pytest.mark.parametrize("activation", ["relu", "tanh", "sigmoid"])
def test_trajectories_converge_at_the_rate_of_the_fixed_point(activation):
    model = mean_field(activation, 5)
    star = model.fixed_point()
    run = model.trajectory(random_gram(5, seed=26), 25, rtol=1e-12, rng=0)
    gap = gm.distance(run.gram, star.gram)
    # What is left of the second eigenvalue, and of second order, is (λ₂/λ₁)^25 and gap[24].
    assert gap[25] / gap[24] == pytest.approx(star.rate, abs=2e-3)
    assert gap[25] < 1e-2 * gap[0]


@pytest.mark.parametrize(
    ("options", "activation"),
    [
        ({}, "tanh"),
        ({}, "relu"),
        ({"norm": "batch-uncentred"}, "tanh"),
        ({"norm": "none", "gain": 1.3}, "tanh"),
        ({"eps": 0.1, "gain": 0.5}, "relu"),
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
    stderr = samples.std(axis=0, ddof=1) / math.sqrt(40)
    quantile = stats.t.isf(FALSE_ALARM / 2 / stderr.size, 39)
    error = np.abs(samples.mean(axis=0) - field.gram[1:, upper[0], upper[1]])
    np.testing.assert_array_less(error, quantile * stderr + 10 / width * np.abs(samples[0]))


def test_a_layer_without_variance_is_named():
    G = [[2.0, 0.0], [0.0, 1.0]]
    assert np.ptp(mean_field("abs", 2).step(G).gram) == 0.0
    for activation in ("abs", cosine):
        with pytest.raises(ZeroVarianceError, match="layer 2") as caught:
            mean_field(activation, 2).trajectory(G, 3)
        assert caught.value.layer == 2


def test_overflow_is_named():
    model = mean_field(Activation(lambda x: x * x), 2, norm="none", gain=10.0)
    with pytest.raises(NonFiniteError, match="layer"):
        model.trajectory(np.eye(2), 60, rtol=0.5, rng=0)
    with pytest.raises(NonFiniteError, match="layer 1"):
        mean_field("relu", 2, norm="none", gain=1e200).step(np.eye(2))


# --- arguments -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("G", "message"),
    [
        (np.eye(4), "shape"),
        (np.eye(3)[None], "shape"),
        ([1.0, 2.0, 3.0], "shape"),
        ([[1.0, 0.5, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]], "symmetric"),
        (np.diag([1.0, 1.0, -0.5]), "negative eigenvalue"),
        (np.diag([1.0, 1.0, np.nan]), "finite"),
        (np.diag([1.0, 1.0, np.inf]), "finite"),
        (np.zeros((3, 3)), "samples that are not all equal"),
        (np.full((3, 3), 0.7), "samples that are not all equal"),
        (np.full((3, 3), 1e200), "samples that are not all equal"),
    ],
)
@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_bad_matrices(activation, G, message):
    model = mean_field(activation, 3)
    with pytest.raises(ArgumentError, match=message) as caught:
        model.step(G)
    assert caught.value.argument == "G"
    with pytest.raises(ArgumentError, match=message) as caught:
        model.trajectory(G, 2)
    assert caught.value.argument == "G0"


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


def test_zeros_without_centring():
    with pytest.raises(ArgumentError, match="samples not all 0"):
        mean_field("relu", 3, norm="batch-uncentred").step(np.zeros((3, 3)))


def test_bad_arguments():
    G = np.eye(3)
    model = mean_field("tanh", 3)
    with pytest.raises(ArgumentError) as caught:
        mean_field("tanh", 3, skip=0.5).step(G)
    assert caught.value.argument == "skip"
    for options, argument in (
        ({"rtol": 0.0}, "rtol"),
        ({"rtol": -1e-3}, "rtol"),
        ({"rtol": math.nan}, "rtol"),
        ({"max_nodes": 0}, "max_nodes"),
    ):
        with pytest.raises(ArgumentError) as caught:
            model.step(G, **options)
        assert caught.value.argument == argument
        with pytest.raises(ArgumentError):
            model.trajectory(G, 2, **options)
    for depth, error in ((-1, ArgumentError), (2.0, ArgumentTypeError), ("3", ArgumentTypeError)):
        with pytest.raises(error, match="depth"):
            model.trajectory(G, depth)
    for activation in ("tanh", "relu"):
        with pytest.raises(ArgumentTypeError, match="rng"):
            mean_field(activation, 3).step(G, rng="seed")
    with pytest.raises(ArgumentTypeError, match="G"):
        model.step([["a"] * 3] * 3)
    with pytest.raises(ArgumentError, match="activation"):
        mean_field(Activation(lambda x: math.log(x) if x > 0 else math.nan), 3).step(G)
    with pytest.raises(ResultTooLargeError, match="depth"):
        model.trajectory(G, 10**13)


# --- the results -----------------------------------------------------------------------------


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
