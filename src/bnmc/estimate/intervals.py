"""TODO-DOC bnmc.estimate.estimate.intervals."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["half_width", "jackknife"]


def jackknife(full: Any, left_out: Any) -> tuple[Any, Any]:
    """Estimate without its bias of first order, and standard error, from the values left out.

    `left_out` has, along its first axis, the statistic of all stretches but one; `full` that of
    all (Efron and Stein 1981).
    """
    count = len(left_out)
    mean = left_out.mean(axis=0)
    stderr = np.sqrt((count - 1) / count * np.square(left_out - mean).sum(axis=0))
    return count * full - (count - 1) * mean, stderr


def half_width(stderr: float, degrees: float, level: float) -> float:
    """Return half the length of Student's interval."""
    from scipy.special import stdtrit  # SciPy is slow to import, and few need this

    return float(stdtrit(degrees, 0.5 + level / 2)) * stderr


def clopper_pearson(
    successes: NDArray[np.float64], count: int, level: float
) -> NDArray[np.float64]:
    """Exact intervals of a binomial's probability, (…, 2)."""
    from scipy.special import betaincinv

    tail = 0.5 * (1.0 - level)
    some, not_all = successes > 0, successes < count
    low = np.zeros(successes.shape)
    low[some] = betaincinv(successes[some], count - successes[some] + 1.0, tail)
    high = np.ones(successes.shape)
    high[not_all] = betaincinv(successes[not_all] + 1.0, count - successes[not_all], 1.0 - tail)
    return np.stack([low, high], axis=-1)


def mean_interval(values: NDArray[np.int64], quantile: float) -> tuple[float, float]:
    """Student's interval for a mean, its upper end moved by the term of next order in skewness."""
    from scipy.special import stdtrit

    count, mean, spread = values.size, float(values.mean()), float(values.std(ddof=1))
    if spread == 0.0:
        return mean, mean
    t = float(stdtrit(count - 1, quantile))
    skewness = float(((values - mean) ** 3).mean()) / spread**3
    move = max(0.0, skewness) * (1.0 + 2.0 * t * t) / (6.0 * math.sqrt(count))
    unit = spread / math.sqrt(count)
    return mean - t * unit, mean + (t + move) * unit
