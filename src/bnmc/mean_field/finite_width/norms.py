"""The mean norm of a Gaussian vector."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

__all__ = ["mean_norm"]

# Step and ends of the trapezoidal rule in the logarithm of the variable.
_STEP, _LAST = 0.05, 40.0


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
