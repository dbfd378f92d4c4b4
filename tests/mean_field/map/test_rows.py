"""The law of a row: which eps it still sees."""

import itertools
import math

import numpy as np
import pytest
from mean_field_maps import (
    HOMOGENEOUS,
    assert_agrees,
    mean_field,
    on_circle,
    random_gram,
    sampled,
)
from scipy import special

from bnmc import Chain
from bnmc.chain.activations import Activation
from bnmc.mean_field.map.rows import gaussian_rows


@pytest.mark.parametrize("rank", [1, 4])
def test_an_eps_below_rounding_is_none(rank):
    """Of four equal or four independent samples the damping is eps; one of 1e-32 changes no
    expectation by more than rounding."""
    gram = np.ones((4, 4)) if rank == 1 else np.eye(4)
    above = math.nextafter(1e-32, 1.0)

    def damping(eps):
        rows = gaussian_rows(Chain(4, 4, norm="batch-uncentred", eps=eps).layers[1], gram)
        assert rows.rank == rank
        return rows.damping

    assert damping(1e-32) == 0.0
    assert damping(above) == pytest.approx(above, rel=1e-15, abs=0.0)


# --- The map for homogeneous activations: closed forms, quadratures of other kinds, sampling


@pytest.mark.parametrize(
    ("activation", "n"),
    # abs is constant on the two points of a batch of two.
    sorted(set(itertools.product(HOMOGENEOUS, (2, 3, 4, 10, 40))) - {("abs", 2)}),
)
def test_the_fixed_point_is_fixed(activation, n):
    point = mean_field(activation, n).fixed_point()
    step = mean_field(activation, n).step(point.gram)
    np.testing.assert_allclose(step, point.gram, rtol=0, atol=1e-12)
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
