"""Roots of quadratic equations of either sign, among them double roots."""

import math

import numpy as np
from scipy import special

from bnmc.mean_field.blocks.lengths import _roots, add_pair_series, funk_hecke_ratios


def test_double_roots_are_found_whatever_the_rounding_of_the_discriminant():
    """(x ± r)² a = 0; the rounded discriminant is negative for many r."""
    r = np.random.default_rng(0).uniform(0.1, 2.0, 1000)
    for a in (0.3, -0.7):
        b, c = 2.0 * a * r, a * r * r
        assert (b * b - 4.0 * a * c < 0.0).any()
        result = _roots(np.full_like(r, a), b, c).reshape(4, r.size)
        # √ε of rounding in the discriminant shows in the roots.
        np.testing.assert_allclose(np.abs(result), np.tile(r, (4, 1)), rtol=1e-7)
        np.testing.assert_array_equal(result[2:], -result[:2])


def test_roots_exist_up_to_rounding_alone():
    """Discriminants of −1e-13 and −1e-11 of the sum of the sizes of their terms, b² + 4 |ac|."""
    for share, exists in ((1e-13, True), (1e-11, False)):
        # b² − 4ac = −share (b² + 4ac) at b = 2, a = 1.
        c = (1.0 + share) / (1.0 - share)
        result = _roots(np.array([1.0]), 2.0, np.array([c]))
        np.testing.assert_allclose(np.abs(result), float(exists), rtol=1e-12)


def test_roots_of_terms_of_both_signs():
    """(x − 2)(x + 5) and (x + 2)(x − 5), as b has either sign."""
    result = _roots(np.array([1.0]), 3.0, np.array([-10.0]))
    np.testing.assert_allclose(np.sort(result), [-5.0, -2.0, 2.0, 5.0], rtol=1e-15)


# --- The orthogonal series for pairs of samples


def test_series_of_pairs():
    """p_k(ρ)/p_k(1) and the recurrence: cosines on the circle, Legendre polynomials on S²."""
    k = np.arange(20)
    np.testing.assert_allclose(
        [r[0] for r in funk_hecke_ratios(2)[:20]], np.cos(2 * math.pi / 3 * k)
    )
    legendre = [special.eval_legendre(i, -1 / 3) for i in k]
    np.testing.assert_allclose([r[0] for r in funk_hecke_ratios(3)[:20]], legendre, atol=1e-14)
    assert [r[:2] for r in funk_hecke_ratios(1)] == [(1.0, 1.0), (-1.0, 0.0)]
    for dimension in (2, 3, 9):
        later = [r[1] for r in funk_hecke_ratios(dimension)]
        assert later == sorted(later, reverse=True)
        assert all(
            b >= abs(a[0]) for a, b in zip(funk_hecke_ratios(dimension)[1:], later, strict=False)
        )


def test_a_series_ends_when_the_tails_of_all_powers_are_small():
    """Of f = 1 one term is enough, of f x two: on the circle of radius √2, E xy is cos 120°."""
    x = math.sqrt(2.0) * np.cos((np.arange(48) + 0.5) * (2.0 * math.pi / 48))[None]
    weighted = [np.ones_like(x) / x.size, x / x.size]
    sums = {(p, q): np.zeros(1) for p in (0, 1) for q in (0, 1)}
    error = add_pair_series(sums, np.ones((2, 1)), weighted, x, np.ones(1), 2)
    result = [[float(sums[p, q][0]) for q in (0, 1)] for p in (0, 1)]
    np.testing.assert_allclose(result, [[1.0, 0.0], [0.0, -0.5]], atol=1e-13)
    assert error[0] < 1e-13
