"""Roots of quadratic equations of either sign, among them double roots."""

import numpy as np

from bnmc.mean_field.blocks.lengths import _roots


def test_double_roots_are_found_whatever_the_rounding_of_the_discriminant():
    """(x ± r)² a = 0; the rounded discriminant is negative for many r."""
    r = np.random.default_rng(0).uniform(0.1, 2.0, 1000)
    for a in (0.3, -0.7):
        b, c = 2.0 * a * r, a * r * r
        assert (b * b - 4.0 * a * c < 0.0).any()
        found = _roots(np.full_like(r, a), b, c).reshape(4, r.size)
        # √ε of rounding in the discriminant shows in the roots.
        np.testing.assert_allclose(np.abs(found), np.tile(r, (4, 1)), rtol=1e-7)
        np.testing.assert_array_equal(found[2:], -found[:2])


def test_roots_exist_up_to_rounding_alone():
    """Discriminants of −1e-13 and −1e-11 of the sum of the sizes of their terms, b² + 4 |ac|."""
    for share, exists in ((1e-13, True), (1e-11, False)):
        # b² − 4ac = −share (b² + 4ac) at b = 2, a = 1.
        c = (1.0 + share) / (1.0 - share)
        found = _roots(np.array([1.0]), 2.0, np.array([c]))
        np.testing.assert_allclose(np.abs(found), float(exists), rtol=1e-12)


def test_roots_of_terms_of_both_signs():
    """(x − 2)(x + 5) and (x + 2)(x − 5), as b has either sign."""
    found = _roots(np.array([1.0]), 3.0, np.array([-10.0]))
    np.testing.assert_allclose(np.sort(found), [-5.0, -2.0, 2.0, 5.0], rtol=1e-15)
