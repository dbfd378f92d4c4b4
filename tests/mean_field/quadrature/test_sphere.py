"""Quadrature over coordinates of a uniform point on a sphere."""

import numpy as np
import pytest

from bnmc.mean_field.quadrature.resolution import resolve
from bnmc.mean_field.quadrature.sphere import reach, sphere_rule


@pytest.mark.parametrize(("dimension", "correlation"), [(2, -0.5), (2, 0.0), (3, 0.4), (9, -1 / 9)])
def test_rule_integrates_moments_of_a_sphere(dimension, correlation):
    rule = sphere_rule(
        lambda x: x**3, dimension, correlation, resolve(lambda x: x**3, reach(dimension), ()), 32
    )
    m, r = dimension, correlation
    fourth, sixth = 3 * m / (m + 2), 15 * m * m / ((m + 2) * (m + 4))
    assert rule.mean(np.ones_like(rule.x)) == pytest.approx(1, abs=1e-14)
    assert rule.mean(rule.x * rule.value) == pytest.approx(fourth, abs=1e-13)
    assert rule.mean(rule.x * rule.given[0]) == pytest.approx(r * fourth, abs=1e-13)
    # E x³y³ = (9r + 6r³)/15 E x⁶, by Isserlis' theorem.
    expected = (9 * r + 6 * r**3) / 15 * sixth
    assert rule.mean(rule.value * rule.given[0]) == pytest.approx(expected, abs=1e-13)
    # The gradient of x³ on the sphere: 9 x⁴ (m − x²).
    gradient = rule.mean(rule.slope**2 * (m - rule.x**2))
    assert gradient == pytest.approx(9 * (m * fourth - sixth), rel=1e-11)
