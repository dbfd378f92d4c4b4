"""Statistics of meeting times: the bound of each layer, survival, and the rate of the tail.

A pair of chains, one ahead of the other by a lag, meets at layer τ of the chain ahead.  Its waiting
time is τ − lag, the number of layers after the coupling began.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from bnmc.errors import NotMixing
from bnmc.estimate.intervals import clopper_pearson, mean_interval
from bnmc.mixing.rate import RateEstimate
from bnmc.simulation.engine.pairs import Meetings

__all__ = ["excess_means", "not_mixing", "survival", "tail_rate"]

FloatArray = NDArray[np.float64]

#: Fewest values other than the commonest for an interval by the central limit theorem.
ENOUGH = 100


def excess_means(
    waited: NDArray[np.int64], lag: int, depth: int, rate: RateEstimate
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the means of J_l = max(0, ⌈(waiting time − l)/lag⌉), which bound the distance.

    Parameters
    ----------
    waited : (replicates,) ndarray of int
        Waiting times.
    lag : int
    depth : int
        The last layer l.
    rate : RateEstimate
        Rate of the tail of the waiting times; its level is that of the intervals.

    Returns
    -------
    mean, stderr : (depth + 1,) ndarray of float64
    ci : (depth + 1, 2) ndarray of float64
        See the Notes of `bnmc.mixing.TVBound`.
    """
    replicates, quantile = len(waited), 0.5 + rate.level / 2
    layers = np.arange(depth + 1)
    mean, stderr, low, high, commonest, above, below, most_above = np.zeros((8, depth + 1))
    for layer in layers[layers < waited.max()]:
        excess = np.maximum(0, -((layer - waited) // lag))
        mean[layer] = excess.mean()
        stderr[layer] = excess.std(ddof=1) / math.sqrt(replicates)
        low[layer], high[layer] = mean_interval(excess, quantile)
        common = commonest[layer] = np.bincount(excess).argmax()
        more = excess[excess > common] - common
        above[layer], below[layer] = more.size, np.count_nonzero(excess < common)
        if more.size > 1:
            most_above[layer] = mean_interval(more, quantile)[1]

    if_geometric = 1.0 / (1.0 - rate.ci[1] ** lag) if rate.ci[1] < 1.0 else math.inf
    most_above = np.maximum(most_above, if_geometric)
    more_ci, less_ci = (clopper_pearson(k, replicates, rate.level) for k in (above, below))
    rare = above + below < ENOUGH
    low = np.where(rare, commonest + more_ci[:, 0] - commonest * less_ci[:, 1], low)
    high = np.where(rare, commonest + more_ci[:, 1] * most_above - less_ci[:, 0], high)
    return mean, stderr, np.stack([np.maximum(low, 0.0), high], axis=1)


def survival(
    waited: NDArray[np.int64], depth: int, level: float
) -> tuple[FloatArray, FloatArray, float]:
    """Return the shares of pairs whose waiting time exceeds each layer from 0 to `depth`.

    Returns
    -------
    share : (depth + 1,) ndarray of float64
    ci : (depth + 1, 2) ndarray of float64
        Clopper–Pearson intervals, for each layer separately.
    band : float
        Half width of a simultaneous band (Dvoretzky, Kiefer and Wolfowitz; Massart's constant).
    """
    replicates = len(waited)
    layers = np.arange(depth + 1)
    share = 1.0 - np.searchsorted(np.sort(waited), layers, side="right") / replicates
    ci = clopper_pearson(np.rint(share * replicates), replicates, level)
    return share, ci, math.sqrt(math.log(2.0 / (1.0 - level)) / (2.0 * replicates))


def tail_rate(waited: NDArray[np.int64], level: float) -> RateEstimate:
    """Return the rate of the geometric law with the mean of the waiting times beyond the median.

    If k waiting times exceed the median u, the excess e = τ − lag − u >= 1 has mean 1/(1 − rate).
    For k deaths in Σe layers the exact interval is that of the negative binomial law.  A maximal
    coupling that fails costs another contraction, which spreads the times more than a geometric
    law: the interval therefore also covers the interval for the mean of e.
    """
    from scipy.special import betaincinv

    method = "tail of the meeting times"
    tail = 0.5 * (1.0 - level)
    # The lower median is a stopping time, so the excess over it is independent of the past.
    threshold = int(np.quantile(waited, 0.5, method="lower"))
    beyond = waited[waited > threshold] - threshold
    count, total = len(beyond), float(beyond.sum())
    if count == 0:
        # All pairs have met by the median: the rate 0, with an interval for so few pairs.
        high = 1.0 - tail ** (1.0 / len(waited))
        return RateEstimate(0.0, 0.0, (0.0, high), len(waited), method, level)
    low = 1.0 - betaincinv(count, total - count, 1.0 - tail) if total > count else 0.0
    high = 1.0 - betaincinv(count, total - count + 1.0, tail)
    mean = total / count
    stop = 1.0 / mean
    rate = 1.0 - stop
    stderr = stop * math.sqrt(rate / count)
    if count > 1:
        spread = float(beyond.std(ddof=1)) / math.sqrt(count)
        stderr = max(stderr, spread * stop**2)
        least, most = mean_interval(beyond, 1.0 - tail)
        low = min(low, 1.0 - 1.0 / max(1.0, least))
        high = max(high, 1.0 - 1.0 / most)
    return RateEstimate(rate, stderr, (float(low), float(high)), count, method, level)


def not_mixing(meetings: Meetings, max_layers: int, partial: object) -> NotMixing:
    """Return the error for pairs that did not meet, with the trends of distance and pivot.

    Parameters
    ----------
    meetings : Meetings
        With a trace of at least one pair.
    max_layers : int
        Layers after which pairs were given up.
    partial : object
        The result as far as it goes, or None.
    """
    count = len(meetings.layers)
    with np.errstate(divide="ignore"):
        exponent, trend = _slope(np.log(meetings.distance)), _slope(np.log10(meetings.pivot))
    lost = np.count_nonzero(meetings.degenerate)
    if lost:
        layer = int(np.median(meetings.degenerate[meetings.degenerate > 0]))
        reason = (
            f"{lost} of {count} pairs lost rank, half of them by layer {layer}: the least "
            f"pivot of their Gram matrices changes by a factor of 10^{trend:.2g} a layer"
        )
    else:
        unmet = np.count_nonzero(meetings.layers < 0)
        reason = (
            f"{unmet} of {count} pairs had not met after {max_layers} layers; driven by "
            f"the same normals they change their distance by e^{exponent:.2g} a layer"
        )
    return NotMixing(reason, partial, exponent, trend)


def _slope(values: FloatArray) -> float:
    """Return the change per layer of the first pair's finite values, by least squares."""
    kept = np.flatnonzero(np.isfinite(values[0]))
    if kept.size < 2:
        return math.nan
    return float(np.polyfit(kept, values[0][kept], 1)[0])
