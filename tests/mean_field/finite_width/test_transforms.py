"""Moments by transforms, against nested rules, rules for two coordinates, and closed forms."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import special

from bnmc.chain.activations import as_activation
from bnmc.mean_field.finite_width import joint_moments
from bnmc.mean_field.finite_width.joint_moments import Cuts, nested_moments
from bnmc.mean_field.finite_width.transforms import transformed_moments, transformed_pairs
from bnmc.mean_field.fixed_point.expectations import Turned
from bnmc.mean_field.quadrature.panels import subdivided
from bnmc.mean_field.quadrature.profile import profile
from bnmc.mean_field.quadrature.sphere import moments, reach, sphere_rule


def panels_of(kink, edge):
    return subdivided(np.array([-edge, kink, edge]), 1.0)


@pytest.mark.parametrize("n", [2, 3, 4, 8, 40])
@pytest.mark.parametrize("growth", [1.0, 1.1])
def test_the_rule_for_the_angle_has_the_moments_of_a_coordinate_on_a_sphere(n, growth):
    """ζ on the sphere of radius √n has E ζ² = 1 and E ζ⁴ = 3n/(n+2).

    What the rule cuts off has a density of at most 1e-20 times that at 0, or 1e-40 if σ grows.
    """
    point, edge = SimpleNamespace(c=0.3), growth * reach(n - 1)
    sigma = SimpleNamespace(edge=edge, profile=profile(as_activation("linear"), edge))
    rule = joint_moments.angle_rule(n, point, sigma, 20)
    assert rule.weight.sum() == pytest.approx(1.0, rel=1e-14)
    assert rule.weight @ rule.zeta**2 == pytest.approx(1.0, rel=1e-12)
    assert rule.weight @ rule.zeta**4 == pytest.approx(3.0 * n / (n + 2.0), rel=1e-11)
    if n == 40:  # the outermost node is near the limit, but not at it
        density = (1.0 - rule.zeta.max() ** 2 / n) ** ((n - 2) / 2)
        least = 1e-20 if growth == 1.0 else 1e-40
        assert least < density < 1e3 * least


@pytest.mark.parametrize(("n", "name", "nested_error"), [(24, "sin", 1e-10), (64, "relu", 5e-9)])
def test_nested_rules(n, name, nested_error):
    """σ is not symmetric, so no moment is 0. The nested rules have 18 nodes per panel of an angle.

    If σ has a kink, the integral over a later angle is not smooth, and the nested rule less exact.
    """
    activation, m = as_activation(name), n - 1
    edge, kink = reach(m), -1.0 / 3.0

    def function(x):
        return np.asarray(activation(0.3 + 0.9 * x))

    panels = panels_of(kink, edge)
    mean, expected, centred = joint_moments._pairs(function, n, panels, 32)
    at = moments(sphere_rule(function, m, -1.0 / m, panels, 32), n)
    assert mean == at.mean
    assert expected[:2] == pytest.approx([at.variance, at.covariance], rel=1e-12)
    kinks = np.array([kink]) if name == "relu" else np.empty(0)
    nested = nested_moments(centred, Cuts(n, kinks), edge, 18)
    for order, tolerance in ((16, 1e-11), (20, 1e-12)):
        result, products, rest = transformed_pairs(function, n, panels, order)
        assert result == pytest.approx(mean, rel=0, abs=tolerance)
        assert products == pytest.approx(expected, rel=0, abs=tolerance)
        assert rest == pytest.approx(nested, rel=0, abs=nested_error)
        assert transformed_moments(centred, n, panels, order) == pytest.approx(rest, abs=1e-14)
    assert np.abs(expected).min() > 1e-5
    assert np.abs(nested).min() > 1e-5


@pytest.mark.parametrize("n", [24, 100, 1000, 10_000])
def test_quadratic_function(n):
    """σ = x²: power sums of the sphere are constants.

    With p = Σx_i⁴ and so on, E (x₁²−1)(x₂²−1) = −E (x₁²−1)²/(n−1), since Σ(x_i² − 1) = 0, and the
    triple is 2/((n−1)(n−2)) times E (x₁²−1)³ for the same reason.
    """
    m, edge = n - 1, reach(n - 1)
    panels = panels_of(0.0, edge)
    mean, products, nested = transformed_pairs(lambda x: x * x, n, panels, 20)
    # x₁² is n − 1 times a Beta variable with parameters ½ and (m − 1)/2.
    second, third, fourth = (
        m**k * np.prod([(0.5 + i) / (0.5 * m + i) for i in range(k)]) for k in (2, 3, 4)
    )
    variance, skew = second - 1.0, third - 3.0 * second + 2.0
    kurt = fourth - 4.0 * third + 6.0 * second - 3.0
    pair, triples = products[1], products[4:]
    assert mean == pytest.approx(1.0, rel=1e-12)
    assert products[0] == pytest.approx(variance, rel=1e-11)
    assert pair == pytest.approx(-variance / m, rel=1e-9)
    assert products[2:4] == pytest.approx([skew, kurt], rel=1e-10)
    assert triples[:2] == pytest.approx([-skew / m, -kurt / m], rel=1e-9)
    assert nested[0] == pytest.approx(2.0 * skew / (m * (n - 2.0)), rel=1e-8)
    triple = -(triples[1] + triples[2]) / (n - 2.0)
    assert nested[1] == pytest.approx(triple, rel=1e-8)
    assert nested[2] == pytest.approx(-3.0 * triple / (n - 3.0), rel=1e-8)


def test_given_angle(monkeypatch):
    """All moments given ψ under a norm that does not centre, by both methods."""
    activation, n, angle = as_activation("relu"), 24, 0.4
    edge = reach(n - 1)

    def found(order):
        function = Turned(profile(activation, math.hypot(1.0, edge)), angle, edge)
        return np.array(joint_moments._moments_given(function, Cuts(n, np.zeros(1)), order))

    transformed = found(20)
    monkeypatch.setattr(joint_moments.transforms, "LEAST_BATCH", 10**9)
    assert transformed == pytest.approx(found(16), rel=1e-9, abs=1e-10)
    # E σ₁², with x₁ a coordinate of the sphere of radius √(n−1).
    sine, cosine, m = math.sin(angle), math.cos(angle), n - 1
    assert -sine / cosine > -edge
    x, weight = special.roots_legendre(200)
    x = 0.5 * (edge - sine / cosine) + 0.5 * (edge + sine / cosine) * x
    density = (1.0 - x * x / m) ** ((m - 3) / 2)
    normalizer = math.sqrt(m) * special.beta(0.5, (m - 1) / 2)
    weight = 0.5 * (edge + sine / cosine) * weight * density / normalizer
    assert transformed[0] == pytest.approx(weight @ (sine + cosine * x) ** 2, rel=1e-9)
