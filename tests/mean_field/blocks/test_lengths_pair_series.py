"""The orthogonal series for pairs of samples."""

import math

import numpy as np
from scipy import special

from bnmc.mean_field.blocks.lengths import add_pair_series, funk_hecke_ratios


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
    found = [[float(sums[p, q][0]) for q in (0, 1)] for p in (0, 1)]
    np.testing.assert_allclose(found, [[1.0, 0.0], [0.0, -0.5]], atol=1e-13)
    assert error[0] < 1e-13
