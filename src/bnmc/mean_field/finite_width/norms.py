"""The mean norm of a Gaussian vector, and its quantiles."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from bnmc.mean_field.float64 import FloatArray

__all__ = ["mean_norm", "norm_quantile"]

# Step and ends of the trapezoidal rule in the logarithm of the variable.
_STEP, _LAST = 0.05, 40.0

# From this effective number of components on, Imhof's integral replaces Talbot's contour, which
# then loses digits.
_MANY = 30.0

# Nodes of the contour. Step and nodes of Imhof's integral, for Σλ = 1: with 30 equal components its
# integrand at the last node is below 1e-15.
_CONTOUR, _IMHOF_STEP, _IMHOF_NODES = 24, 0.1, 2000


def mean_norm(variances: Sequence[tuple[float, int]], mean: float = 0.0) -> float:
    """Return E‖z‖ of a Gaussian vector z.

    With Q = ‖z‖², λ the variances of its independent components, and m the mean of the first one,

        E √Q = 1/(2√π) ∫₀^∞ (1 − E e^(−sQ)) s^(−3/2) ds,
        E e^(−sQ) = exp(−s m²/(1 + 2sλ₁)) Π (1 + 2sλ)^(−1/2).

    The trapezoidal rule in log s converges exponentially.

    Parameters
    ----------
    variances : sequence of (float, int)
        The variances λ ≥ 0, each with its multiplicity; that of the first one is 1.
    mean : float, default 0
        m. All other components have mean 0.
    """
    total = sum(variance * count for variance, count in variances) + mean**2
    if total <= 0.0:
        return 0.0
    # In units of the total the integrand is centred near s = 1, and decays like e^(∓|log s|/2).
    v = np.arange(-2.0 * _LAST, 2.0 * _LAST + _STEP, _STEP)
    s = np.exp(v)
    log_mean = -s * mean**2 / total / (1.0 + 2.0 * s * max(variances[0][0], 0.0) / total)
    for variance, count in variances:  # rounding may make a variance of 0 negative
        log_mean -= 0.5 * count * np.log1p(2.0 * s * max(variance, 0.0) / total)
    integral = _STEP * float(np.sum(-np.expm1(log_mean) * np.exp(-0.5 * v)))
    return math.sqrt(total) * integral / (2.0 * math.sqrt(math.pi))


def norm_quantile(variances: FloatArray, probability: float) -> float:
    """Return a quantile of ‖z‖ for a Gaussian vector z of mean 0.

    Let Q = ‖z‖², λ be the variances of its independent components, and 1 their sum. If few of them
    count, that is 1/Σλ² is at most 30, the law of Q is the inverse of its Laplace transform
    ``Π (1 + 2sλ)^(−½)``, by Talbot's contour. All singularities are negative numbers, so the
    contour converges geometrically. If many count, it is the integral of Imhof (1961),

        P(Q ≤ x) = ½ − (1/π) ∫₀^∞ sin(½ Σ arctan(2λu) − ux) / (u Π (1 + 4λ²u²)^¼) du.

    Parameters
    ----------
    variances : ndarray of shape (components,)
        λ. Negative ones, which rounding causes, count as 0.
    probability : float
        In (0, 1).
    """
    from scipy.optimize import brentq

    kept = np.maximum(variances, 0.0)
    total = float(kept.sum())
    if total == 0.0:
        return 0.0
    shares = kept[kept > 0.0] / total
    law = _by_talbot if 1.0 / float(np.sum(shares**2)) <= _MANY else _by_imhof

    def excess(log_square: float) -> float:
        return law(shares, math.exp(log_square)) - probability

    # Q ≥ 1 + 2√t + 2t has a probability of at most e^(−t) (Laurent and Massart 2000).
    t = -math.log1p(-probability)
    ends = _chernoff(shares, math.log(probability)), math.log(1.0 + 2.0 * math.sqrt(t) + 2.0 * t)
    return math.sqrt(total * math.exp(brentq(excess, *ends, xtol=1e-9, rtol=1e-9)))


def _chernoff(shares: FloatArray, log_probability: float) -> float:
    """Return a lower bound of the logarithm of a quantile of Q.

    P(Q ≤ x) ≤ e^(sx) E e^(−sQ) for all s > 0, and least if x = Σ λ/(1 + 2sλ). Far below this bound
    the contour would overflow.
    """
    from scipy.optimize import brentq

    def location(s: float) -> float:
        return float(np.sum(shares / (1.0 + 2.0 * s * shares)))

    def excess(log_s: float) -> float:
        s = math.exp(log_s)
        log_laplace = -0.5 * float(np.sum(np.log1p(2.0 * s * shares)))
        return s * location(s) + log_laplace - log_probability

    return math.log(location(math.exp(brentq(excess, -30.0, 60.0, xtol=1e-6, rtol=1e-9))))


def _by_talbot(shares: FloatArray, x: float) -> float:
    """Return P(Q ≤ x) by Talbot's contour, in the form of Abate and Valkó (2004)."""
    k = np.arange(1, _CONTOUR)
    angle = k * np.pi / _CONTOUR
    cotangent = 1.0 / np.tan(angle)
    points = np.concatenate([[0.4 * _CONTOUR], 0.4 * k * np.pi * (cotangent + 1j)])
    factors = 1.0 + 1j * angle * (1.0 + cotangent**2) - 1j * cotangent
    weights = np.exp(points) * np.concatenate([[0.5], factors])
    s = points / x
    logs = np.log1p(2.0 * s[:, None] * shares).sum(axis=1)
    return float(0.4 / x * np.sum((weights * np.exp(-0.5 * logs) / s).real))


def _by_imhof(shares: FloatArray, x: float) -> float:
    """Return P(Q ≤ x) by the midpoint rule, which converges geometrically."""
    u = _IMHOF_STEP * (np.arange(_IMHOF_NODES) + 0.5)
    products = 2.0 * u[:, None] * shares
    phase = 0.5 * np.arctan(products).sum(axis=1) - u * x
    log_size = 0.25 * np.log1p(products**2).sum(axis=1)
    return 0.5 - _IMHOF_STEP / math.pi * float(np.sum(np.sin(phase) * np.exp(-log_size) / u))
