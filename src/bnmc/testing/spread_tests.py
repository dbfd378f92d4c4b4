"""Tests of the spread of χ² variables, from many at once, with exact bounds of the p-values.

For q with the law χ² with m degrees of freedom, the orthonormal polynomial of degree 2 is

    g(q) = ((q − m − 2)² − 2(m + 2))/√(8 m(m + 2)),    E g = 0,  E g² = 1.

Its mean is the most powerful test against a small change of the variance of q: the kurtosis of
single weights (m = 1, q a squared weight), norms of rows (m the rank of G) and norms of calls
(m the rank times the width).  For rows of W of norm 1, E g = −√(m(m + 2)/2)/(width + 2).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from bnmc._claims.claims import Claim

__all__ = ["scores", "spread_claim"]

FloatArray = NDArray[np.float64]

#: q is moved to these quantiles where it is beyond them: g then has exponential moments.
TAIL = 1e-5

#: Exponents t of Chernoff's bound.  The best one is about z/√count for z standard errors.
_EXPONENTS = np.geomspace(1e-5, 4.0, 128)

#: Nodes of the quadrature of E exp(t g).
_NODES = 160


def spread_claim(claim: str, parts: Iterable[tuple[FloatArray, int]]) -> Claim:
    """Test the mean of g(q) over independent χ² variables q, by Chernoff's bound.

    For S = Σ g(q), the probability that S is at least s is at most exp(log E exp(tS) − ts) for each
    t > 0.  The p-value is twice the least of these bounds over a fixed grid of t, for the more
    unlikely sign.  So it is never too small, and at z standard errors about z√(2π) times too large.

    Parameters
    ----------
    claim : str
        Name of the claim.
    parts : iterable of (ndarray, int)
        Values and their degrees of freedom.

    Returns
    -------
    Claim
        Its statistic is the mean of g(q), with q moved into its central quantiles.
    """
    total, expected, count = 0.0, 0.0, 0
    above, below = np.zeros_like(_EXPONENTS), np.zeros_like(_EXPONENTS)
    for values, degrees in parts:
        mean, up, down = _cumulants(degrees)
        total += float(scores(values, degrees).sum())
        expected += values.size * mean
        count += values.size
        above += values.size * up
        below += values.size * down
    if count == 0:
        return Claim(claim, 0.0, 0.0, None, p_value=1.0)
    logs = float((above - _EXPONENTS * total).min()), float((below + _EXPONENTS * total).min())
    p = min(1.0, 2.0 * math.exp(min(0.0, *logs)))
    return Claim(claim, total / count, expected / count, 1 / math.sqrt(count), p_value=p)


def scores(values: FloatArray, degrees: int) -> FloatArray:
    """Return g(q), with q moved into the quantiles 1e-5 to 1 − 1e-5."""
    return _polynomial(np.clip(values, *_quantiles(degrees)), degrees)


def _polynomial(q: FloatArray, degrees: int) -> FloatArray:
    return ((q - degrees - 2) ** 2 - 2 * (degrees + 2)) / math.sqrt(8 * degrees * (degrees + 2))


@lru_cache(maxsize=256)
def _quantiles(degrees: int) -> tuple[float, float]:
    from scipy.special import gammainccinv, gammaincinv

    return 2 * float(gammaincinv(degrees / 2, TAIL)), 2 * float(gammainccinv(degrees / 2, TAIL))


@lru_cache(maxsize=1)
def _rule() -> tuple[FloatArray, FloatArray]:
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    return np.asarray(nodes), np.asarray(weights)


@lru_cache(maxsize=256)
def _cumulants(degrees: int) -> tuple[float, FloatArray, FloatArray]:
    """Return E g, and log E exp(tg) and log E exp(−tg) on the grid of t.

    The integrals are over r = √q, whose density is smooth at 0, by the rule of Gauss and Legendre.
    """
    from scipy.special import logsumexp

    low, high = _quantiles(degrees)
    nodes, weights = _rule()
    center, half = (math.sqrt(high) + math.sqrt(low)) / 2, (math.sqrt(high) - math.sqrt(low)) / 2
    r = center + half * nodes
    logs = np.log(weights) + (degrees - 1) * np.log(r / center) - (np.square(r) - center**2) / 2
    # The mass between the quantiles is known, so the constant of the density is not needed.
    logs += math.log1p(-2 * TAIL) - logsumexp(logs)
    logs = np.concatenate([[math.log(TAIL)], logs, [math.log(TAIL)]])
    values = _polynomial(np.concatenate([[low], np.square(r), [high]]), degrees)
    up, down = (
        np.asarray(logsumexp(logs + sign * _EXPONENTS[:, None] * values, axis=1))
        for sign in (1.0, -1.0)
    )
    return float((np.exp(logs) * values).sum()), up, down
