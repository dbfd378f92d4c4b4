"""Tolerances and matrices that the tests of `bnmc.random_matrix` share.

A statistical test has a fixed seed and fails by chance with probability at most 1e-6: a z-test of
m means allows `sigmas(m)` standard errors. EPS is the unit of float64. If a tolerance is a
multiple of EPS, the multiple is the number of operations, times the condition of the problem.
"""

import math

import numpy as np
from hypothesis import strategies as st
from scipy import stats

EPS = np.finfo(float).eps
RATIOS = [1e-6, 1e-3, 0.0899, 0.0901, 0.25, 0.5, 0.999, 1.0, 1.001, 4.0, 1e3, 1e6]
seeds = st.integers(0, 2**32 - 1)


def sigmas(comparisons):
    return stats.norm.isf(0.5e-6 / comparisons)


def assert_mean(samples, exact):
    """Assert that the mean over the first axis is `exact`, by a z-test of false alarm 1e-6."""
    stderr = samples.std(axis=0, ddof=1) / math.sqrt(len(samples))
    assert np.all(np.abs(samples.mean(axis=0) - exact) <= sigmas(np.size(exact)) * stderr)


def covariance(rng, n, *, rank=None):
    rows = rng.standard_normal((2 * n if rank is None else rank, n))
    return rows.T @ rows / len(rows)


def one_dimensional_tv(ratio, d):
    """N(0, 1) and N(0, ratio), d rows: the densities of |x|² cross once."""
    crossing = d * math.log(ratio) * ratio / (ratio - 1)
    law = stats.chi2(d)
    return abs(law.cdf(crossing) - law.cdf(crossing / ratio))
