"""The orthogonal series for pairs of samples."""

import math

import numpy as np
from scipy import special

from bnmc.mean_field.blocks.pair_series import funk_hecke_ratios


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
