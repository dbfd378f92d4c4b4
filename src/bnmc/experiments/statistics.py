"""Estimates over independent networks: means, proportions, slopes, and their intervals as text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnmc.estimate.estimate import Estimate, clopper_pearson

#: Level of all intervals.
LEVEL = 0.95

#: Method of `proportion`; tables print such estimates as counts and percent.
EXACT = "Clopper-Pearson"


def banded(samples: ArrayLike) -> NDArray[np.float64]:
    """Return means over independent networks with Student's intervals.

    Parameters
    ----------
    samples : (networks, ...) array_like

    Returns
    -------
    (..., 3) ndarray of float64
        Mean, lower end and upper end.
    """
    from scipy.special import stdtrit

    values = np.asarray(samples, dtype=np.float64)
    mean = values.mean(axis=0)
    stderr = values.std(axis=0, ddof=1) / np.sqrt(len(values))
    reach = float(stdtrit(len(values) - 1, (1 + LEVEL) / 2)) * stderr
    return np.stack([mean, mean - reach, mean + reach], axis=-1)


def mean_of_band(band: NDArray[np.float64], chains: int) -> Estimate:
    """Return one mean of `banded`, shape (3,), as an `Estimate`."""
    from scipy.special import stdtrit

    mean, low, high = (float(end) for end in band)
    stderr = (high - low) / 2 / float(stdtrit(chains - 1, (1 + LEVEL) / 2))
    return Estimate(mean, stderr, (low, high), chains, "mean over networks", LEVEL)


def rms(samples: ArrayLike, *, level: float = LEVEL) -> Estimate:
    """Return the root mean square of independent samples.

    The ends of the interval are the roots of the ends of the mean square's interval.
    """
    square = Estimate.from_samples(np.square(samples), level=level)
    value = math.sqrt(square.value)
    low, high = (math.sqrt(max(end, 0.0)) for end in square.ci)
    stderr = square.stderr / (2.0 * value) if value else 0.0
    return Estimate(value, stderr, (low, high), square.n, "root mean square", level)


def proportion(hits: ArrayLike) -> Estimate:
    """Return the share of True in `hits` with its Clopper-Pearson interval."""
    count, successes = int(np.size(hits)), float(np.sum(hits))
    low, high = clopper_pearson(np.array([successes]), count, LEVEL)[0].tolist()
    share = successes / count
    stderr = float(np.sqrt(share * (1 - share) / count))
    return Estimate(share, stderr, (low, high), count, EXACT)


def slope(
    x: ArrayLike, y: Sequence[Estimate], *, level: float = LEVEL, method: str = "slope in logs"
) -> Estimate:
    """Return the slope of log y against log x by weighted least squares, with a normal interval.

    The fit assumes independent values whose logarithms are nearly normal.
    """
    from scipy.special import ndtri

    logs = np.log(np.asarray(x, dtype=np.float64))
    values = np.log([estimate.value for estimate in y])
    weights = np.array([(estimate.value / estimate.stderr) ** 2 for estimate in y])
    centred = logs - np.average(logs, weights=weights)
    information = float(weights @ centred**2)
    value = float(weights @ (centred * values)) / information
    stderr = information**-0.5
    reach = float(ndtri((1 + level) / 2)) * stderr
    return Estimate(value, stderr, (value - reach, value + reach), len(y), method, level)


def interval(estimate: Estimate) -> str:
    """Return an estimate and its interval as text, with as many digits as the interval supports."""
    low, high = estimate.ci
    digits = 2
    if math.isfinite(high - low) and high > low and estimate.value:
        size = max(abs(low), abs(high))
        digits = min(max(math.ceil(math.log10(size / (high - low))) + 2, 2), 6)
    return f"{estimate.value:.{digits}g} [{low:.{digits}g}, {high:.{digits}g}]"


def overlap_note(
    first: Estimate | NDArray[np.float64], second: Estimate | NDArray[np.float64]
) -> str:
    """Return what follows two estimates, or means of `banded`, whose intervals overlap.

    Then the experiment does not decide which of the two is larger.
    """
    (_, low, high), (_, other_low, other_high) = _ends(first), _ends(second)
    overlap = low <= other_high and other_low <= high  # False for NaN
    return " (undecided: the intervals overlap)" if overlap else ""


def short_interval(estimate: Estimate | NDArray[np.float64]) -> str:
    """Return an estimate, or a mean of `banded`, and its interval as text with three digits.

    NaN, for example after a training that has diverged, is "undefined".
    """
    mean, low, high = _ends(estimate)
    return "undefined" if math.isnan(mean) else f"{mean:.3g} [{low:.3g}, {high:.3g}]"


def _ends(estimate: Estimate | NDArray[np.float64]) -> Iterable[float]:
    """Return a value and the ends of its interval."""
    return (estimate.value, *estimate.ci) if isinstance(estimate, Estimate) else estimate
