"""The mean-field fixed point: references, closed forms, and routes that share no code with it."""

import dataclasses
import itertools
import json
import math
import pickle
from pathlib import Path

import mean_field_oracles as oracles
import numpy as np
import pytest
from mean_field_oracles import fixed_point, hard_tanh
from scipy import integrate
from slow_cases import pairs

import bnmc
from bnmc.chain import Chain
from bnmc.chain.activations import Activation
from bnmc.errors import ArgumentError
from bnmc.mean_field.fixed_point.symmetric import _mean_length, is_odd, limit

REFERENCE = json.loads(
    (Path(__file__).parents[2] / "reference" / "fixed_points.json").read_text(encoding="utf-8")
)["values"]

BATCHES = (2, 3, 4, 5, 6, 7, 10, 33, 64, 1000, 10_000)


def test_in_a_line():
    assert str(fixed_point("relu", 10)) == (
        "diagonal 0.5, correlation 0.264721 of 10 samples; "
        "stable: perturbations ×0.7911 per layer; squared gradient norm ×1.696 per layer"
    )
    unstable = str(fixed_point("silu", 40))
    assert "unstable: perturbations ×1.035" in unstable
    assert unstable.endswith("×1.248 per layer if the network stayed here")
    assert str(fixed_point("relu", 2)).endswith("squared gradient norm: infinite mean")


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
    j, slope = oracles.arc_cosine(-1.0 / (n - 1))
    fixed = fixed_point("relu", n)
    assert fixed.b == pytest.approx(0.5, abs=1e-13)
    assert fixed.c == pytest.approx(j, abs=1e-12)
    lambda_l = ((n - 2) * (1 - j) + n * slope / (n - 1)) / ((n + 1) * (1 - j))
    lambda_m = n / (n + 1) * slope / (1 - j)
    blocks = {2: 0, 3: 1}.get(n, 2)
    assert fixed.eigenvalues == pytest.approx([lambda_l, lambda_m][:blocks], rel=1e-11)
    backward = (slope + n - 1) / ((n - 3) * (1 - j)) - 1 / (n - 3) if n > 3 else math.inf
    assert fixed.backward_rate == pytest.approx(backward, rel=1e-10)
    cross = gamma_ratio(n - 1) ** 2 * n / (n - 1) ** 2 / (1 - j)
    assert fixed.cross_batch_rate == pytest.approx(cross, rel=1e-11)


def test_relu_limits():
    fixed = fixed_point("relu", 10**7)
    assert fixed.c == pytest.approx(1 / math.pi, abs=1e-6)
    assert fixed.backward_rate == pytest.approx(math.pi / (math.pi - 1), abs=1e-6)
    assert fixed.cross_batch_rate == pytest.approx(0.733471, abs=1e-6)


@pytest.mark.parametrize("n", [3, 4, 5, 10, 1000])
def test_sign_obeys_the_arcsine_law(n):
    fixed = fixed_point(Activation(oracles.sign), n)
    assert fixed.c == pytest.approx(2 / math.pi * math.asin(-1 / (n - 1)), abs=1e-13)
    assert fixed.backward_rate == math.inf


@pytest.mark.parametrize("activation", ["tanh", "sin", "sigmoid", "gelu", "silu", "celu"])
def test_large_batch_tends_to_the_gaussian_limit_like_one_over_n(activation):
    sigma = Activation.named(activation)
    expected = np.array(oracles.limits_of(sigma)[:4])

    def scaled_gap(n):
        fixed = fixed_point(activation, n)
        return n * (np.array([fixed.b, fixed.c, *fixed.eigenvalues]) - expected)

    gaps = [scaled_gap(n) for n in (2500, 5000, 10_000)]
    # n times the gap is g + h/n + O(1/n²): its second differences vanish like 1/n². Ten digits
    # lost in the quadrature at large n would show as 1e-2 here.
    curvature = gaps[0] - 3 * gaps[1] + 2 * gaps[2]
    np.testing.assert_allclose(curvature, 0.0, atol=3e-5)
    assert np.abs(gaps[2]).max() < 20


@pytest.mark.parametrize("n", [4, 5, 10, 20, 64])
@pytest.mark.parametrize("activation", ["tanh", "sin", "sigmoid", "gelu", "silu", "erf"])
def test_gegenbauer_series(activation, n):
    fixed = fixed_point(activation, n)
    expected = oracles.gegenbauer_fixed_point(Activation.named(activation), n)
    result = (fixed.b, fixed.c, *fixed.eigenvalues, fixed.backward_rate, fixed.cross_batch_rate)
    assert result == pytest.approx(expected, rel=1e-9)
    assert result[:4] == pytest.approx(expected[:4], abs=2e-12)


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


SAMPLED = ["relu", "sigmoid", "gelu", "abs", Activation(hard_tanh)]


@pytest.mark.parametrize(("activation", "n"), pairs(SAMPLED, [3, 4, 6]), ids=str)
def test_eigenvalues_by_sampling_their_definition(activation, n):
    """λ_Δ = (n−1)/(2μ‖Δ‖²) E[(σᵀΔσ)(uᵀΔu)] for a random Δ of each block, n not reduced to two."""
    fixed = fixed_point(activation, n)
    sigma = Chain(width=1, batch=2, activation=activation).activation
    rng = np.random.default_rng(20)
    phi = oracles.sampled_rows(Chain(1, n, "linear"), np.eye(n), 400_000, rng)
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
        oracles.assert_mean(samples, eigenvalue)


@pytest.mark.parametrize("norm", ["batch", "batch-uncentred"])
def test_backward_rate_by_sampling_the_normalization_layer(norm):
    """E tr[J D Π D J] for tanh, n = 6, with J the Jacobian of the normalization at h ~ N(0, G*)."""
    n = 6
    fixed = fixed_point("tanh", n, norm=norm)
    projector = np.eye(n) - 1 / n if norm == "batch" else np.eye(n)
    rank = round(np.trace(projector))
    h = np.random.default_rng(3).standard_normal((60_000, n)) @ projector
    h *= math.sqrt(fixed.b * (1 - fixed.c))
    length = np.linalg.norm(h, axis=1)
    u = h / length[:, None]
    jacobian = projector - u[:, :, None] * u[:, None, :]
    jacobian *= (math.sqrt(n) / length)[:, None, None]
    slope = 1 - np.tanh(math.sqrt(n) * u) ** 2
    back = jacobian * slope[:, None, :] @ projector
    samples = np.sum(back**2, axis=(1, 2)) / rank
    oracles.assert_mean(samples, fixed.backward_rate)


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
    oracles.assert_mean(middle[:, 0, 1], fixed.cross_batch)
    change = np.einsum("rij,ij->r", blocks[0] - blocks[1], centring) / (2 * size * mu * (n - 1))
    oracles.assert_mean(change, fixed.cross_batch_rate)


@pytest.mark.parametrize("n", [3, 4, 5, 10, 64, 10_000])
@pytest.mark.parametrize(("function", "kinks"), [(hard_tanh, (-1.0, 1.0)), (oracles.jump, (0.3,))])
def test_undeclared_kinks_are_found(function, kinks, n):
    declared = fixed_point(Activation(function, kinks=kinks), n)
    result = fixed_point(Activation(function), n)
    assert result.eigenvalues == pytest.approx(declared.eigenvalues, abs=1e-12, rel=1e-10)
    for name in ("b", "c", "backward_rate", "cross_batch_rate"):
        expected = pytest.approx(getattr(declared, name), abs=1e-12, rel=1e-10)
        assert getattr(result, name) == expected, name


def test_a_steep_activation_is_resolved():
    fixed = fixed_point(Activation(lambda x: math.tanh(300 * x)), 10)
    expected = fixed_point(Activation(oracles.sign), 10).eigenvalues
    assert fixed.eigenvalues == pytest.approx(expected, abs=0.01)
    assert fixed.error < 1e-8


def test_an_offset_changes_neither_rate_nor_accuracy():
    plain = fixed_point("tanh", 10)
    offset = fixed_point(Activation(lambda x: 1000.0 + math.tanh(x)), 10)
    assert offset.eigenvalues == pytest.approx(plain.eigenvalues, abs=1e-11)
    assert offset.cross_batch == pytest.approx(1e6)


def test_negative_eigenvalues_count_by_their_modulus():
    fixed = fixed_point("abs", 3)
    assert fixed.eigenvalues[0] < -0.19
    assert fixed.rate == -fixed.eigenvalues[0]


@pytest.mark.slow
def test_a_divergent_backward_rate_is_not_passed_off_as_a_number():
    root = Activation(lambda x: math.copysign(math.sqrt(abs(x)), x), kinks=(0.0,))
    fixed = fixed_point(root, 4)
    assert fixed.backward_rate == math.inf
    assert fixed.b == pytest.approx(math.sqrt(3) / 2, abs=1e-10)


@pytest.mark.parametrize(
    ("function", "n"),
    [(lambda x: 3.0, 5), (lambda x: 0.0, 5), (abs, 2), (lambda x: math.nan, 5),
     (lambda x: math.sin(1e6 * x), 5)],
)  # fmt: skip
def test_activations_without_this_fixed_point(function, n):
    with pytest.raises(ArgumentError) as caught:
        fixed_point(Activation(function), n)
    assert caught.value.argument == "activation"


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


# --- the limit of large batches


def test_relu_has_the_published_limits():
    relu = limit("relu")
    names = ("b", "c", "backward_rate", "cross_batch", "cross_batch_rate")
    rate = math.pi / (math.pi - 1)
    expected = [0.5, 1 / math.pi, rate, 0.5 / math.pi, 0.5 * rate]
    assert [getattr(relu, name) for name in names] == pytest.approx(expected, rel=1e-13)
    assert relu.eigenvalues[1] == pytest.approx(0.5 * rate, rel=1e-13)


@pytest.mark.parametrize(
    "name", ["relu", "linear", "tanh", "sigmoid", "sin", "erf", "silu", "gelu"]
)
def test_limits_are_integrals_of_one_normal_number(name):
    at = limit(name)
    b, c, *eigenvalues, backward = oracles.limits_of(Activation.named(name))
    assert at.b == pytest.approx(b, rel=1e-11)
    assert at.c == pytest.approx(c, rel=1e-11, abs=1e-13)
    assert at.eigenvalues == pytest.approx(eigenvalues, rel=1e-10)
    assert at.rate == max(map(abs, at.eigenvalues))
    assert at.backward_rate == pytest.approx(backward, rel=1e-8)
    assert at.cross_batch == pytest.approx(b * c, rel=1e-10, abs=1e-13)
    assert at.cross_batch_rate == pytest.approx(eigenvalues[1], rel=1e-10)


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


def test_gradients_explode_or_vanish_over_a_depth():
    relu = limit("relu")
    assert relu.explosion_depth == pytest.approx(1 / math.log(math.pi / (math.pi - 1)))
    assert abs(limit("linear").explosion_depth) > 1e12  # of a rate of 1, but for rounding
    assert limit("sigmoid").stable
    assert not limit("silu").stable
