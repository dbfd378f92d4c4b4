"""The law of a row: which eps it still sees."""

import math

import numpy as np
import pytest
from mean_field_oracles import HOMOGENEOUS, mean_field, on_circle, random_gram
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


@pytest.mark.parametrize("activation", ["linear", "tanh"])
@pytest.mark.parametrize(
    ("gain", "eps"), [(1e-5, 9.0), (1e-100, 1.0), (1e-150, 1.0), (1e-154, 0.1)]
)
def test_large_eps_divides_by_its_root(activation, gain, eps):
    """Also if eps over the variance of a row, or the squares of entries, leave float64."""
    G = random_gram(4, seed=5)
    model = mean_field(activation, 4, norm="batch-uncentred", eps=eps, gain=gain)
    np.testing.assert_allclose(
        model.step(G, rtol=1e-9, rng=0).gram / gain, G * gain / eps, rtol=0, atol=1e-7 * gain
    )
