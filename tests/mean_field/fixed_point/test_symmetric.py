"""The mean-field fixed point: references, closed forms, and routes that share no code with it.

Statistical tests allow 5.5 standard errors on each number: a false alarm has probability 4e-8 a
number (normal law, means of at least 100 blocks), and no test compares more than 20 numbers.
"""

import dataclasses
import itertools
import json
import math
import pickle
from pathlib import Path

import numpy as np
import pytest
from scipy import integrate, special
from slow_cases import pairs

import bnmc
from bnmc._kernels.scalar.codes import NORM_NONE
from bnmc.chain import Chain
from bnmc.chain.activations import Activation
from bnmc.chain.norms import Norm
from bnmc.errors import ArgumentError, ArgumentTypeError, PartialEstimateError, UnknownNameError
from bnmc.mean_field import FixedPoint, MeanField
from bnmc.mean_field.fixed_point.symmetric import _mean_length, is_odd, limit

REFERENCE = json.loads(
    (Path(__file__).parents[2] / "reference" / "fixed_points.json").read_text(encoding="utf-8")
)["values"]

BATCHES = (2, 3, 4, 5, 6, 7, 10, 33, 64, 1000, 10_000)

SIGMAS = 5.5


def fixed_point(activation, batch, **options) -> FixedPoint:
    return MeanField(Chain(width=100, batch=batch, activation=activation, **options)).fixed_point()


def test_in_a_line():
    assert str(fixed_point("relu", 10)) == (
        "diagonal 0.5, correlation 0.264721 of 10 samples; "
        "stable: perturbations ×0.7911 per layer; squared gradient norm ×1.696 per layer"
    )
    unstable = str(fixed_point("silu", 40))
    assert "unstable: perturbations ×1.035" in unstable
    assert unstable.endswith("×1.248 per layer if the network stayed here")
    assert str(fixed_point("relu", 2)).endswith("squared gradient norm: infinite mean")


def hard_tanh(x):
    return min(max(x, -1.0), 1.0)


def step(x):
    return 1.0 if x > 0.3 else 0.0


def absolute(x):
    return abs(x)


def constant(x):
    return 3.0


def gamma_ratio(m):
    """Γ((m+1)/2)/Γ(m/2) by its two-step recurrence."""
    ratio = math.sqrt(math.pi) / 2 if m % 2 == 0 else 1 / math.sqrt(math.pi)
    for k in range(2 - m % 2, m, 2):
        ratio *= (k + 1) / k
    return ratio


@pytest.mark.parametrize("row", REFERENCE, ids=lambda row: f"{row['activation']}-{row['n']}")
def test_reference_values(row):
    fixed = fixed_point(row["activation"], row["n"])
    assert fixed.b == pytest.approx(row["b"], abs=1e-12, rel=0)
    assert fixed.c == pytest.approx(row["c"], abs=1e-12, rel=0)
    expected = [row[name] for name in ("lambda_L", "lambda_M") if name in row]
    if expected:
        assert fixed.eigenvalues == pytest.approx(expected, abs=1e-12, rel=0)
        assert fixed.rate == max(map(abs, fixed.eigenvalues))


@pytest.mark.parametrize("n", BATCHES)
def test_linear_centred(n):
    fixed = fixed_point("linear", n)
    assert fixed.b == pytest.approx(1.0, abs=1e-13)
    assert fixed.c == pytest.approx(-1.0 / (n - 1), rel=1e-11)
    eigenvalue = (n - 1) / (n + 1)
    blocks = {2: 0, 3: 1}.get(n, 2)
    assert fixed.eigenvalues == pytest.approx([eigenvalue] * blocks, rel=1e-12)
    assert fixed.multiplicities == (n - 1, n * (n - 3) // 2)[:blocks]
    assert fixed.rate == pytest.approx(eigenvalue if n > 2 else 0.0, rel=1e-12)
    backward = (n - 2) / (n - 3) if n > 3 else math.inf
    assert fixed.backward_rate == pytest.approx(backward, rel=1e-11)
    assert fixed.cross_batch == pytest.approx(0.0, abs=1e-25)
    assert fixed.cross_batch_rate == pytest.approx(2 * gamma_ratio(n - 1) ** 2 / (n - 1), rel=1e-12)


@pytest.mark.parametrize("n", BATCHES)
def test_linear_uncentred(n):
    fixed = fixed_point("linear", n, norm="batch-uncentred")
    assert (fixed.b, fixed.c) == (pytest.approx(1.0, abs=1e-13), 0.0)
    assert fixed.eigenvalues == pytest.approx([n / (n + 2)] * 2, rel=1e-12)
    assert fixed.multiplicities == (n - 1, n * (n - 1) // 2)
    assert fixed.backward_rate == pytest.approx((n - 1) / (n - 2) if n > 2 else math.inf, rel=1e-11)
    assert fixed.cross_batch_rate == pytest.approx(2 * gamma_ratio(n) ** 2 / n, rel=1e-12)


@pytest.mark.parametrize("n", BATCHES)
def test_relu_centred(n):
    rho = -1.0 / (n - 1)
    angle = math.pi - math.acos(rho)
    j, slope = (math.sqrt(max(0.0, 1 - rho * rho)) + angle * rho) / math.pi, angle / math.pi
    fixed = fixed_point("relu", n)
    assert fixed.b == pytest.approx(0.5, abs=1e-13)
    assert fixed.c == pytest.approx(j, abs=1e-12)
    lambda_l = ((n - 2) * (1 - j) + n * slope / (n - 1)) / ((n + 1) * (1 - j))
    lambda_m = n / (n + 1) * slope / (1 - j)
    blocks = {2: 0, 3: 1}.get(n, 2)
    assert fixed.eigenvalues == pytest.approx([lambda_l, lambda_m][:blocks], rel=1e-11)
    backward = (slope + n - 1) / ((n - 3) * (1 - j)) - 1 / (n - 3) if n > 3 else math.inf
    assert fixed.backward_rate == pytest.approx(backward, rel=1e-10)


def test_relu_limits():
    fixed = fixed_point("relu", 10**7)
    assert fixed.c == pytest.approx(1 / math.pi, abs=1e-6)
    assert fixed.backward_rate == pytest.approx(math.pi / (math.pi - 1), abs=1e-6)
    assert fixed.cross_batch_rate == pytest.approx(0.733471, abs=1e-6)


@pytest.mark.parametrize(
    ("activation", "n", "value"),
    [
        ("linear", 5, 0.883573),
        ("linear", 10, 0.946066),
        ("linear", 20, 0.974039),
        ("tanh", 10, 0.90424),
        ("sin", 10, 0.87935),
        ("sigmoid", 10, 0.93855),
        ("selu", 10, 0.92701),
        ("celu", 10, 0.89761),
    ],
)
def test_cross_batch_rates(activation, n, value):
    digits = 6 if activation == "linear" else 5
    assert round(fixed_point(activation, n).cross_batch_rate, digits) == value


@pytest.mark.parametrize("n", [3, 4, 5, 10, 1000])
def test_sign_obeys_the_arcsine_law(n):
    sign = Activation(lambda x: 1.0 if x > 0 else -1.0)
    fixed = fixed_point(sign, n)
    assert fixed.c == pytest.approx(2 / math.pi * math.asin(-1 / (n - 1)), abs=1e-13)
    assert fixed.backward_rate == math.inf


@pytest.mark.parametrize("activation", ["tanh", "sin", "sigmoid", "gelu", "silu", "celu"])
def test_large_batch_tends_to_the_gaussian_limit_like_one_over_n(activation):
    sigma = Chain(width=1, batch=2, activation=activation).activation
    x, weight = special.roots_legendre(400)
    # Two halves, so that no kink at 0 is hit.
    x = np.concatenate([-6.5 + 6.5 * x, 6.5 + 6.5 * x])
    weight = np.concatenate([weight, weight]) * 6.5 * np.exp(-0.5 * x**2) / math.sqrt(2 * math.pi)
    value = sigma(x)
    mean = weight @ value
    variance = weight @ (value - mean) ** 2
    limit = np.array(
        [
            mean**2 + variance,
            mean**2 / (mean**2 + variance),
            weight @ ((value - mean) ** 2 * (x**2 - 1)) / (2 * variance),
            (weight @ (value * x)) ** 2 / variance,
        ]
    )

    def scaled_gap(n):
        fixed = fixed_point(activation, n)
        return n * (np.array([fixed.b, fixed.c, *fixed.eigenvalues]) - limit)

    gaps = [scaled_gap(n) for n in (2500, 5000, 10_000)]
    # n times the gap is g + h/n + O(1/n²): its second differences vanish like 1/n². Ten digits
    # lost in the quadrature at large n would show as 1e-2 here.
    curvature = gaps[0] - 3 * gaps[1] + 2 * gaps[2]
    np.testing.assert_allclose(curvature, 0.0, atol=3e-5)
    assert np.abs(gaps[2]).max() < 20


def gegenbauer_fixed_point(sigma, n, terms=160):
    """Same numbers from E f(x) g(y) = Σ f_k g_k P_k(ρ), P_k the Gegenbauer polynomials."""
    m, rho = n - 1, -1.0 / (n - 1)
    alpha = (m - 2) / 2
    t, weight = special.roots_gegenbauer(2 * terms, alpha)
    weight = weight / weight.sum()
    k = np.arange(terms)
    # Normalized to 1 at 1 by recurrence: (k+2α) P_{k+1} = 2(k+α) t P_k − k P_{k−1}.
    points = np.append(t, rho)
    p = np.ones((terms, points.size))
    p[1] = points
    for i in range(1, terms - 1):
        p[i + 1] = (2 * (i + alpha) * points * p[i] - i * p[i - 1]) / (i + 2 * alpha)
    polynomials, at_rho = p[:, :-1], p[:, -1]
    norms = polynomials**2 @ weight
    x = math.sqrt(m) * t
    value = sigma(x) - weight @ sigma(x)

    def coefficients(power):
        return polynomials @ (weight * value * x**power) / np.sqrt(norms)

    def pair(p, q):
        return float(np.sum(coefficients(p) * coefficients(q) * at_rho))

    mu = weight @ value**2 - pair(0, 0)
    b = weight @ sigma(x) ** 2
    own = weight @ (value**2 * (x**2 - 1))
    cross = pair(2, 0) - pair(0, 0)
    lambda_l = n / (2 * mu * (n - 2)) * ((1 - 2 / n) * own - 2 * (1 - 1 / n) * cross)
    square = 2 * pair(1, 1) + 2 * pair(2, 0)
    others = (square + 2 * pair(2, 0) - n * pair(0, 0)) / ((n - 2) * (n - 3))
    lambda_m = (n - 1) / (n * mu) * (pair(1, 1) + square / (n - 2) + others)
    laplacian = k * (k + m - 2.0)
    backward = np.sum(laplacian * coefficients(0) ** 2 * (1 - at_rho)) / (mu * (n - 3))
    return b, 1 - mu / b, lambda_l, lambda_m, float(backward)


@pytest.mark.parametrize("n", [4, 5, 10, 20, 64])
@pytest.mark.parametrize("activation", ["tanh", "sin", "sigmoid", "gelu", "silu", "erf"])
def test_gegenbauer_series(activation, n):
    fixed = fixed_point(activation, n)
    expected = gegenbauer_fixed_point(Chain(width=1, batch=2, activation=activation).activation, n)
    found = (fixed.b, fixed.c, *fixed.eigenvalues, fixed.backward_rate)
    assert found == pytest.approx(expected, rel=1e-9)
    assert found[:4] == pytest.approx(expected[:4], abs=2e-12)


def test_kinks_off_the_origin_against_adaptive_integration():
    """n = 4 and hard tanh, where φ₁ is uniform and φ₂ given φ₁ has the arcsine law."""
    root = math.sqrt(3.0)

    def inner(x):
        centre, spread = -x / 3, math.sqrt(8.0 * (3 - x * x)) / 3
        cuts = {math.asin(min(1.0, max(-1.0, (k - centre) / spread))) for k in (-1.0, 1.0)}
        edges = sorted(cuts | {-math.pi / 2, math.pi / 2})
        pieces = (
            integrate.quad(lambda a: hard_tanh(centre + spread * math.sin(a)), low, high)[0]
            for low, high in itertools.pairwise(edges)
        )
        return sum(pieces) / math.pi

    # Where the cut at ±1 reaches the edge of the circle of φ₂.
    edges = [-root, -5 / 3, -1.0, -1 / 3, 1 / 3, 1.0, 5 / 3, root]
    product = sum(
        integrate.quad(lambda x: hard_tanh(x) * inner(x), low, high, epsabs=1e-11, limit=200)[0]
        for low, high in itertools.pairwise(edges)
    ) / (2 * root)
    fixed = fixed_point(Activation(hard_tanh, kinks=(-1.0, 1.0)), 4)
    assert fixed.b == pytest.approx((1 / 3 + root - 1) / root, abs=1e-13)
    assert fixed.b * fixed.c == pytest.approx(product, abs=1e-9)


def sphere_samples(n, count, rng):
    w = rng.standard_normal((count, n))
    w -= w.mean(axis=1, keepdims=True)
    return w / np.sqrt((w**2).mean(axis=1, keepdims=True))


def assert_mean(samples, expected):
    """Mean of independent samples along axis 0, a number a column, within SIGMAS."""
    stderr = samples.std(axis=0, ddof=1) / math.sqrt(len(samples))
    np.testing.assert_array_less(np.abs(samples.mean(axis=0) - expected), SIGMAS * stderr)


SAMPLED = ["relu", "sigmoid", "gelu", Activation(hard_tanh), Activation(absolute)]


@pytest.mark.parametrize(
    ("activation", "n"), pairs(SAMPLED, [3, 4, 6]), ids=lambda a: getattr(a, "name", a)
)
def test_eigenvalues_by_sampling_their_definition(activation, n):
    """λ_Δ = (n−1)/(2μ‖Δ‖²) E[(σᵀΔσ)(uᵀΔu)] for a random Δ of each block, n not reduced to two."""
    fixed = fixed_point(activation, n)
    sigma = Chain(width=1, batch=2, activation=activation).activation
    rng = np.random.default_rng(20)
    phi = sphere_samples(n, 400_000, rng)
    value = sigma(phi) - sigma(phi[0]).mean()
    centring = np.eye(n) - 1 / n
    d = rng.standard_normal(n)
    deltas = [centring @ np.diag(d - d.mean()) @ centring]
    if n > 3:
        # A random Δ, less its trace and its part in the first block (by projecting onto its span).
        free = centring @ (lambda a: a + a.T)(rng.standard_normal((n, n))) @ centring
        span = [centring @ np.diag(row) @ centring for row in np.eye(n)]
        basis = np.linalg.qr(np.array([block.ravel() for block in span]).T)[0]
        rest = free.ravel() - basis @ (basis.T @ free.ravel())
        deltas.append(rest.reshape(n, n))
    mu = fixed.b * (1 - fixed.c)
    for delta, eigenvalue in zip(deltas, fixed.eigenvalues, strict=True):
        outer = np.einsum("ri,ij,rj->r", value, delta, value)
        inner = np.einsum("ri,ij,rj->r", phi, delta, phi) / n
        samples = (n - 1) / (2 * mu * np.sum(delta**2)) * outer * inner
        assert_mean(samples.reshape(400, -1).mean(axis=1), eigenvalue)


@pytest.mark.parametrize(("activation", "n"), [("tanh", 5), ("sigmoid", 4), ("relu", 7)])
def test_map_and_jacobian_by_finite_differences(activation, n):
    """F(G* ± εΔ) with common random numbers: fixed, and contracting at the two eigenvalues."""
    fixed = fixed_point(activation, n)
    sigma = Chain(width=1, batch=2, activation=activation).activation
    mu = fixed.b * (1 - fixed.c)
    z = np.random.default_rng(7).standard_normal((200_000, n))
    centring = np.eye(n) - 1 / n

    def rows(gram):
        values, vectors = np.linalg.eigh(centring @ gram @ centring)
        w = z @ (vectors * np.sqrt(np.clip(values, 0, None))) @ vectors.T
        w -= w.mean(axis=1, keepdims=True)
        return sigma(w / np.sqrt((w**2).mean(axis=1, keepdims=True)))

    here = rows(fixed.gram)
    products = (here[:, :, None] * here[:, None, :]).reshape(200, -1, n * n).mean(axis=1)
    upper = np.triu_indices(n)
    assert_mean(products.reshape(200, n, n)[:, upper[0], upper[1]], fixed.gram[upper])

    d = np.arange(n) - (n - 1) / 2
    first = centring @ np.diag(d) @ centring
    e = np.eye(n)
    second = np.outer(e[0] - e[1], e[2] - e[3])
    for delta, eigenvalue in zip((first, second + second.T), fixed.eigenvalues, strict=True):
        step_size = 1e-3 * mu / np.abs(delta).max()
        plus, minus = (rows(fixed.gram + s * step_size * delta) for s in (1, -1))
        change = np.einsum("ri,ij,rj->r", plus, delta, plus)
        change -= np.einsum("ri,ij,rj->r", minus, delta, minus)
        samples = change / (2 * step_size * np.sum(delta**2))
        # The difference quotient is off by O(ε²) = 1e-6, far below the standard error.
        assert_mean(samples.reshape(200, -1).mean(axis=1), eigenvalue)


@pytest.mark.parametrize("norm", ["batch", "batch-uncentred"])
def test_backward_rate_by_sampling_the_normalization_layer(norm):
    """E tr[J D Π D J] for tanh, n = 6, with J the Jacobian of the normalization at h ~ N(0, G*)."""
    n = 6
    fixed = fixed_point("tanh", n, norm=norm)
    projector = np.eye(n) - 1 / n if norm == "batch" else np.eye(n)
    rank = round(np.trace(projector))
    h = np.random.default_rng(3).standard_normal((200_000, n)) @ projector
    h *= math.sqrt(fixed.b * (1 - fixed.c))
    length = np.linalg.norm(h, axis=1)
    u = h / length[:, None]
    jacobian = projector - u[:, :, None] * u[:, None, :]
    jacobian *= (math.sqrt(n) / length)[:, None, None]
    slope = 1 - np.tanh(math.sqrt(n) * u) ** 2
    back = jacobian * slope[:, None, :] @ projector
    samples = np.sum(back**2, axis=(1, 2)) / rank
    assert_mean(samples.reshape(400, -1).mean(axis=1), fixed.backward_rate)


def test_uncentred_odd_by_sampling():
    n = 4
    fixed = fixed_point("tanh", n, norm="batch-uncentred")
    w = np.random.default_rng(5).standard_normal((400_000, n))
    phi = w / np.sqrt((w**2).mean(axis=1, keepdims=True))
    value = np.tanh(phi)
    diagonal = (value[:, 0] ** 2 - value[:, 1] ** 2) * (phi[:, 0] ** 2 - phi[:, 1] ** 2) / 4
    mixed = value[:, 0] * value[:, 1] * phi[:, 0] * phi[:, 1]
    samples = np.stack([value[:, 2] ** 2, diagonal / fixed.b, mixed / fixed.b], axis=1)
    assert_mean(samples.reshape(400, -1, 3).mean(axis=1), (fixed.b, *fixed.eigenvalues))


def test_cross_batch_block_by_simulation():
    """Two batches through one network: the block between them, and how it forgets its start."""
    n, count = 4, 400_000
    fixed = fixed_point("sigmoid", n)
    rng = np.random.default_rng(11)
    mu = fixed.b * (1 - fixed.c)
    z, other = rng.standard_normal((2, count, n))
    centring = np.eye(n) - 1 / n
    size = 0.02

    def rows(w):
        w = w @ centring
        return 1 / (1 + np.exp(-w / np.sqrt((w**2).mean(axis=1, keepdims=True))))

    # w and w′ have covariance ±size·μ·P; their product tends to (Eσ)² plus the rate times that.
    blocks = [
        np.einsum("ri,rj->rij", rows(z), rows(s * size * z + math.sqrt(1 - size**2) * other))
        for s in (1, -1)
    ]
    middle = 0.5 * (blocks[0] + blocks[1])
    assert_mean(middle.reshape(400, -1, n * n).mean(axis=1)[:, 1], fixed.cross_batch)
    change = np.einsum("rij,ij->r", blocks[0] - blocks[1], centring) / (2 * size * mu * (n - 1))
    assert_mean(change.reshape(400, -1).mean(axis=1), fixed.cross_batch_rate)


@pytest.mark.parametrize("n", [3, 4, 5, 10, 64, 10_000])
@pytest.mark.parametrize(("function", "kinks"), [(hard_tanh, (-1.0, 1.0)), (step, (0.3,))])
def test_undeclared_kinks_are_found(function, kinks, n):
    declared = fixed_point(Activation(function, kinks=kinks), n)
    found = fixed_point(Activation(function), n)
    for a, b in zip(_numbers(declared), _numbers(found), strict=True):
        assert a == pytest.approx(b, abs=1e-12, rel=1e-10)


def _numbers(fixed):
    return (
        fixed.b,
        fixed.c,
        *fixed.eigenvalues,
        fixed.backward_rate,
        fixed.cross_batch_rate,
    )


def test_a_steep_activation_is_resolved():
    fixed = fixed_point(Activation(lambda x: math.tanh(300 * x)), 10)
    sign = fixed_point(Activation(lambda x: 1.0 if x > 0 else -1.0), 10)
    assert fixed.eigenvalues == pytest.approx(sign.eigenvalues, abs=0.01)
    assert fixed.error < 1e-8


def test_an_offset_changes_neither_rate_nor_accuracy():
    plain = fixed_point("tanh", 10)
    offset = fixed_point(Activation(lambda x: 1000.0 + math.tanh(x)), 10)
    assert offset.eigenvalues == pytest.approx(plain.eigenvalues, abs=1e-11)
    assert offset.cross_batch == pytest.approx(1e6)


def test_an_unstable_fixed_point_is_reported_as_such():
    fixed = fixed_point(Activation(lambda x: math.exp(x)), 10)
    assert fixed.rate > 1.2
    assert not fixed.stable


def test_negative_eigenvalues_count_by_their_modulus():
    fixed = fixed_point(Activation(absolute), 3)
    assert fixed.eigenvalues[0] < -0.19
    assert fixed.rate == -fixed.eigenvalues[0]


@pytest.mark.slow
def test_a_divergent_backward_rate_is_not_passed_off_as_a_number():
    root = Activation(lambda x: math.copysign(math.sqrt(abs(x)), x), kinks=(0.0,))
    fixed = fixed_point(root, 4)
    assert fixed.backward_rate == math.inf
    assert fixed.b == pytest.approx(math.sqrt(3) / 2, abs=1e-10)


@pytest.mark.parametrize(
    ("options", "argument"),
    [
        ({"norm": "none"}, "norm"),
        ({"skip": 0.5}, "skip"),
        ({"eps": 1e-5}, "eps"),
    ],
)
def test_chains_without_this_fixed_point(options, argument):
    with pytest.raises(ArgumentError) as caught:
        fixed_point("relu", 5, **options)
    assert caught.value.argument == argument


def test_norms_over_the_features_have_no_such_fixed_point():
    norm = Norm("toy", NORM_NONE, "features", centred=True)
    with pytest.raises(ArgumentError, match="^norm: .*CorrelationMap"):
        fixed_point("tanh", 5, norm=norm)


@pytest.mark.parametrize(
    ("function", "n"),
    [
        (constant, 5),
        (lambda x: 0.0, 5),
        (absolute, 2),
        (lambda x: math.nan, 5),
        (lambda x: math.sin(1e6 * x), 5),
    ],
)
def test_activations_without_this_fixed_point(function, n):
    with pytest.raises(ArgumentError) as caught:
        fixed_point(Activation(function), n)
    assert caught.value.argument == "activation"


def test_bad_arguments():
    with pytest.raises(ArgumentError, match="batch"):
        fixed_point("tanh", 1, norm="batch-uncentred")
    with pytest.raises(ArgumentTypeError):
        MeanField("relu")
    mean_field = MeanField(Chain(width=10, batch=5, activation="relu"))
    for rtol in (0.0, -1.0, math.nan):
        with pytest.raises(ArgumentError):
            mean_field.fixed_point(rtol=rtol)
    with pytest.raises(PartialEstimateError):
        mean_field.fixed_point(rtol=1e-16)


def test_gram_and_immutability():
    fixed = fixed_point("sigmoid", 5)
    gram = fixed.gram
    assert gram.shape == (5, 5)
    assert np.all(np.diag(gram) == fixed.b)
    assert np.all(gram[~np.eye(5, dtype=bool)] == fixed.b * fixed.c)
    gram[0, 0] = 7.0
    assert fixed.gram[0, 0] == fixed.b
    with pytest.raises(dataclasses.FrozenInstanceError):
        fixed.b = 1.0
    assert pickle.loads(pickle.dumps(fixed)) == fixed
    assert len({fixed, fixed_point("sigmoid", 5)}) == 1


def test_width_gain_and_weights_play_no_role():
    fixed = fixed_point("tanh", 5)
    assert fixed_point("tanh", 5, gain=3.0, weights="uniform") == fixed


@pytest.mark.parametrize(
    ("activation", "batch", "norm"),
    [
        ("relu", 3, "batch"),
        ("relu", 7, "batch"),
        ("tanh", 2, "batch-uncentred"),
        ("tanh", 6, "batch-uncentred"),
        ("sigmoid", 5, "batch-uncentred"),
    ],
)
def test_eigenvalues_are_those_of_the_jacobians(activation, batch, norm):
    fixed = fixed_point(activation, batch, norm=norm)
    assert len(fixed.jacobians) == min(batch, 4) - 1 or batch == 2
    values = np.concatenate([np.linalg.eigvals(jacobian) for jacobian in fixed.jacobians])
    for value in fixed.eigenvalues:
        assert np.abs(values - value).min() < 1e-10
    # In the other directions the Jacobian is 0.
    others = [x for x in values if np.abs(x - np.array(fixed.eigenvalues)).min() > 1e-10]
    np.testing.assert_allclose(others, 0.0, atol=1e-10)
    star = [fixed.b * math.sqrt(batch), fixed.b * fixed.c * math.sqrt(batch * (batch - 1.0))]
    np.testing.assert_allclose(fixed.jacobians[0] @ star, 0.0, atol=1e-9)


# --- Parts of the fixed point of rows that are uniform on a sphere


@pytest.mark.parametrize("dimension", [1, 2, 3, 150, 298, 299, 300, 301, 400, 3_000, 10**6, 10**9])
def test_mean_lengths_of_neighbouring_dimensions(dimension):
    """Γ(m/2 + 1) = (m/2) Γ(m/2), so the lengths L of m and m + 1 have L² L'² = m/(m + 1).

    From 300 dimensions on they are a series: its last term is 2e-14 there, the next one 2e-16.
    """
    product = _mean_length(dimension) * _mean_length(dimension + 1)
    units = 16 if dimension < 299 else 4  # the Gamma function has a relative error of some units
    assert abs(product**2 * (dimension + 1) / dimension - 1) < 2 * units * np.finfo(float).eps


def test_mean_lengths_in_closed_form():
    """E|z| of one, two and three normals, and 1 − 1/(4m) of many."""
    assert _mean_length(1) == pytest.approx(math.sqrt(2 / math.pi), rel=1e-15)
    assert _mean_length(2) == pytest.approx(math.sqrt(math.pi) / 2, rel=1e-15)
    assert _mean_length(3) == pytest.approx(math.sqrt(8 / (3 * math.pi)), rel=1e-15)
    assert _mean_length(1e9) == pytest.approx(1 - 0.25e-9, rel=1e-15)
    assert _mean_length(math.inf) == 1.0


def test_a_function_is_odd_only_if_it_is_so_everywhere():
    """One that is odd near 0 alone, one that is not odd near 0 alone, and one that is odd."""
    breaks = np.array([-8.0, 0.0, 8.0])
    assert is_odd(np.tanh, breaks)
    assert not is_odd(lambda x: np.clip(x, -1.0, 2.0), breaks)
    assert not is_odd(lambda x: np.where(np.abs(x) < 1.0, np.abs(x), x), breaks)


# --- The limit of large batches: closed forms, integrals of one normal number, finite batches


SMOOTH = ["linear", "tanh", "sigmoid", "sin", "erf", "silu", "gelu"]


def normal_mean(function):
    """E f(z): Gauss-Hermite quadrature of 200 nodes, exact to rounding for what is smooth."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(200)
    return float(weights @ function(nodes)) / math.sqrt(2 * math.pi)


def test_relu_has_the_published_limits():
    relu = limit("relu")
    mu = 0.5 * (1 - 1 / math.pi)
    assert relu.b == pytest.approx(0.5, rel=1e-13)
    assert relu.c == pytest.approx(1 / math.pi, rel=1e-13)
    assert relu.backward_rate == pytest.approx(math.pi / (math.pi - 1), rel=1e-13)
    assert relu.backward_rate == pytest.approx(1.467, abs=1e-4)
    assert relu.eigenvalues[1] == pytest.approx(0.25 / mu, rel=1e-13)
    assert relu.cross_batch == pytest.approx(1 / (2 * math.pi), rel=1e-13)
    assert relu.cross_batch_rate == pytest.approx(0.25 / mu, rel=1e-13)


@pytest.mark.parametrize("name", SMOOTH)
def test_smooth_activations_are_integrals_of_one_normal_number(name):
    sigma = bnmc.Activation(name) if callable(name) else bnmc.Chain(1, 2, name).activation
    found = limit(name)
    mean = normal_mean(sigma)
    mu = normal_mean(lambda z: (sigma(z) - mean) ** 2)
    first = normal_mean(lambda z: sigma(z) * z)
    assert found.b == pytest.approx(mu + mean**2, rel=1e-11)
    assert found.c == pytest.approx(mean**2 / (mu + mean**2), rel=1e-11, abs=1e-13)
    diagonal = normal_mean(lambda z: (sigma(z) - mean) ** 2 * (z * z - 1)) / (2 * mu)
    assert found.eigenvalues == pytest.approx((diagonal, first**2 / mu), rel=1e-10)
    assert found.rate == max(map(abs, found.eigenvalues))
    # E σ'^2 = Σ k² a_k² / k! by Hermite's expansion: here from values alone, by differences.
    step = 1e-5
    slope = normal_mean(lambda z: ((sigma(z + step) - sigma(z - step)) / (2 * step)) ** 2)
    assert found.backward_rate == pytest.approx(slope / mu, rel=1e-8)
    assert found.cross_batch_rate == pytest.approx(first**2 / mu, rel=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["batch", "batch-uncentred"])
@pytest.mark.parametrize("name", ["relu", "tanh", "silu"])
def test_finite_batches_approach_the_limit_as_one_over_n(name, norm):
    # f(n) = f + a/n + O(1/n²): Richardson's 2 f(2n) − f(n) is off by O(1/n²).
    at = limit(name, norm=norm)
    fields = ("b", "c", "rate", "cross_batch", "cross_batch_rate", "backward_rate")
    n = 2000 if norm == "batch" else 500
    once, twice = (
        bnmc.MeanField(bnmc.Chain(10, size, name, norm=norm)).fixed_point() for size in (n, 2 * n)
    )
    for field in fields:
        f1, f2, f = (getattr(point, field) for point in (once, twice, at))
        assert abs(f1 - f) < 20.0 / n, field
        assert abs(2.0 * f2 - f1 - f) < 400.0 / n**2, field


def test_ten_thousand_samples_lose_no_accuracy():
    point = bnmc.MeanField(bnmc.Chain(10, 10_000, "relu")).fixed_point()
    rho = -1 / 9999
    arc = (math.sqrt(1 - rho**2) + (math.pi - math.acos(rho)) * rho) / math.pi
    slope = (math.pi - math.acos(rho)) / math.pi
    assert point.c == pytest.approx(arc, rel=1e-12)
    assert point.eigenvalues[1] == pytest.approx(10_000 / 10_001 * slope / (1 - arc), rel=1e-11)


def test_gradients_explode_or_vanish_over_a_depth():
    relu = limit("relu")
    assert relu.explosion_depth == pytest.approx(1 / math.log(math.pi / (math.pi - 1)))
    assert abs(limit("linear").explosion_depth) > 1e12  # of a rate of 1, but for rounding
    assert limit("sigmoid").stable
    assert not limit("silu").stable


def test_an_activation_that_jumps_has_no_gradient():
    steps = bnmc.Activation(lambda x: 1.0 if x > 0 else 0.0, kinks=(0.0,), name="step")
    assert limit(steps).backward_rate == math.inf


def test_bad_input_is_refused():
    with pytest.raises(UnknownNameError, match="norm"):
        limit("relu", norm="bach")
    with pytest.raises(UnknownNameError, match="activation"):
        limit("rellu")
    with pytest.raises(ArgumentError, match="rtol"):
        limit("relu", rtol=0.0)
    with pytest.raises(ArgumentError, match="constant"):
        limit(bnmc.Activation(lambda x: 2.0 + 0.0 * x, name="two"))
    with pytest.raises(PartialEstimateError) as found:
        limit("relu", rtol=1e-17)
    assert found.value.partial.b == pytest.approx(0.5)
