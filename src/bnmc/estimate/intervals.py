"""Confidence intervals for means and proportions, and the jackknife."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

#: Halvings of an interval of length 1, down to the resolution of float64.
_BISECTIONS = 60

# Functions import SciPy's special functions locally, because SciPy is slow to import.


def half_width(stderr: float, degrees: float, level: float) -> float:
    """Return half the length of Student's interval.

    Parameters
    ----------
    stderr : float
        Standard error of the estimate, >= 0.
    degrees : float
        Degrees of freedom of the standard error, > 0.
    level : float
        Probability with which the interval covers the truth, in (0, 1).

    Returns
    -------
    float
        The interval is the estimate plus or minus this number.

    Examples
    --------
    >>> from bnmc.estimate.intervals import half_width
    >>> round(half_width(1.0, 9, 0.95), 6)
    2.262157
    """
    from scipy.special import stdtrit

    return float(stdtrit(degrees, 0.5 + level / 2)) * stderr


def mean_interval(values: NDArray[np.int64], quantile: float) -> tuple[float, float]:
    """Return an interval for the mean of samples of a law with positive skewness.

    The interval is Student's, ``mean ∓ t s/√n``, with the sample standard deviation s. If the
    sample skewness κ is positive, the upper end increases by the term of next order in κ,
    ``κ (1 + 2t²) s / (6n)`` (Hall, *On the removal of skewness by transformation*, 1992).

    Parameters
    ----------
    values : (n,) ndarray of int64
        Independent, identically distributed samples, n >= 2.
    quantile : float
        Probability of each one-sided interval, in (½, 1). For two-sided intervals of probability p
        it is (1 + p)/2.

    Returns
    -------
    low, high : float
        Both are the mean if all samples are equal.
    """
    from scipy.special import stdtrit

    count, mean, spread = values.size, float(values.mean()), float(values.std(ddof=1))
    if spread == 0.0:
        return mean, mean
    t = float(stdtrit(count - 1, quantile))
    skewness = float(((values - mean) ** 3).mean()) / spread**3
    shift = max(0.0, skewness) * (1.0 + 2.0 * t * t) / (6.0 * math.sqrt(count))
    stderr = spread / math.sqrt(count)
    return mean - t * stderr, mean + (t + shift) * stderr


def bounded_mean_interval(mean: ArrayLike, count: int, level: float) -> NDArray[np.float64]:
    r"""Return intervals for the mean of a law on [0, 1], whatever the law.

    The ends are the solutions μ, below and above the sample mean m, of

    .. math:: n \left(m \log\frac{m}{\mu} + (1 - m) \log\frac{1 - m}{1 - \mu}\right)
        = \log\frac{2}{1 - \text{level}}.

    By Theorem 1 of Hoeffding (*Probability inequalities for sums of bounded random variables*,
    1963), either end misses the mean with probability at most (1 − level)/2.

    Parameters
    ----------
    mean : (...) array_like
        Sample means m, in [0, 1].
    count : int
        Number n of independent samples in each mean, >= 1.
    level : float
        Lower bound of the probability with which an interval covers the mean, in (0, 1).

    Returns
    -------
    (..., 2) ndarray of float64
        Lower and upper ends, in [0, 1].

    Examples
    --------
    >>> from bnmc.estimate.intervals import bounded_mean_interval
    >>> bounded_mean_interval([0.0, 0.5], 100, 0.95).round(4)
    array([[0.    , 0.0362],
           [0.3667, 0.6333]])
    """
    clipped = np.clip(np.asarray(mean, dtype=np.float64), 0.0, 1.0)
    allowed = math.log(2.0 / (1.0 - level)) / count
    ends = np.stack([np.zeros(clipped.shape), np.ones(clipped.shape)])
    inside = np.stack([clipped, clipped])
    # The divergence grows monotonically away from m, so 60 bisections find both ends outwards: the
    # ends that are returned are never inside of the solutions.
    for _ in range(_BISECTIONS):
        middle = 0.5 * (ends + inside)
        beyond = _divergence(clipped, middle) > allowed
        ends, inside = np.where(beyond, middle, ends), np.where(beyond, inside, middle)
    return np.stack([*ends], axis=-1)


def _divergence(m: NDArray[np.float64], mu: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the divergence of Bernoulli(μ) from Bernoulli(m), which may be infinite."""
    from scipy.special import rel_entr

    return rel_entr(m, mu) + rel_entr(1.0 - m, 1.0 - mu)


def clopper_pearson(
    successes: NDArray[np.float64], count: int, level: float
) -> NDArray[np.float64]:
    """Return exact intervals for the probability of a binomial law (Clopper and Pearson 1934).

    Parameters
    ----------
    successes : (...) ndarray of float64
        Numbers of successes, integers in 0 … `count`.
    count : int
        Number of trials, >= 1.
    level : float
        Lower bound of the probability with which an interval covers the truth, in (0, 1).

    Returns
    -------
    (..., 2) ndarray of float64
        Lower and upper ends, in [0, 1].

    Examples
    --------
    >>> import numpy as np
    >>> from bnmc.estimate.intervals import clopper_pearson
    >>> clopper_pearson(np.array([0.0, 5.0]), 10, 0.95).round(4)
    array([[0.    , 0.3085],
           [0.1871, 0.8129]])
    """
    from scipy.special import betaincinv

    tail = 0.5 * (1.0 - level)
    some, not_all = successes > 0, successes < count
    low = np.zeros(successes.shape)
    low[some] = betaincinv(successes[some], count - successes[some] + 1.0, tail)
    high = np.ones(successes.shape)
    high[not_all] = betaincinv(successes[not_all] + 1.0, count - successes[not_all], 1.0 - tail)
    return np.stack([low, high], axis=-1)


def jackknife(full: Any, left_out: Any) -> tuple[Any, Any]:
    """Return an estimate without its bias of first order, and its standard error.

    The method is that of Efron and Stein (1981).

    Parameters
    ----------
    full : float or (...) ndarray
        The statistic of all m groups of the data.
    left_out : (m, ...) ndarray
        The statistic of all groups but one, for each omitted group.

    Returns
    -------
    estimate, stderr : float or (...) ndarray
    """
    count = len(left_out)
    mean = left_out.mean(axis=0)
    stderr = np.sqrt((count - 1) / count * np.square(left_out - mean).sum(axis=0))
    return count * full - (count - 1) * mean, stderr
