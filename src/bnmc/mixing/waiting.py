"""Statistics of meeting times: the bound of each layer, survival, and the rate of the tail.

A pair of chains, one ahead of the other by a lag, meets at layer τ of the chain ahead.  Its waiting
time is τ − lag, the number of layers after the coupling began.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from bnmc.errors import NotMixing
from bnmc.estimate.intervals import bounded_mean_interval, clopper_pearson, mean_interval
from bnmc.mixing.rate import RateEstimate
from bnmc.simulation.engine.pairs import Meetings

FloatArray = NDArray[np.float64]


def excess_means(waited: NDArray[np.int64], lag: int, depth: int) -> tuple[FloatArray, FloatArray]:
    """Return the means of J_l = max(0, ⌈(waiting time − l)/lag⌉), which bound the distance.

    Parameters
    ----------
    waited : (replicates,) ndarray of int
        Waiting times.
    lag : int
    depth : int
        The last layer l.

    Returns
    -------
    mean, stderr : (depth + 1,) ndarray of float64
    """
    mean, stderr = np.zeros((2, depth + 1))
    for layer in range(min(depth + 1, int(waited.max()))):
        excess = np.maximum(0, -((layer - waited) // lag))
        mean[layer] = excess.mean()
        stderr[layer] = excess.std(ddof=1) / math.sqrt(len(waited))
    return mean, stderr


def capped_intervals(
    waited: NDArray[np.int64], lag: int, depth: int, lags: int, level: float
) -> FloatArray:
    """Return intervals for the means of min(J_l, lags), whatever the law of the waiting times.

    min(J_l, lags)/lags is in [0, 1], so `bounded_mean_interval` applies.  The ends do not increase
    with l.

    Parameters
    ----------
    waited, lag, depth
        As in `excess_means`.
    lags : int
        The cap, >= 1.
    level : float
        Level of each interval, in (0, 1).

    Returns
    -------
    (depth + 1, 2) ndarray of float64
    """
    ordered = np.sort(waited)
    # min(J_l, lags) counts the times l, l + lag, … at which a pair has not met: none is later than
    # the longest waiting time.
    counted = min(lags, -(-int(ordered[-1]) // lag))
    times = np.arange(depth + 1)[:, None] + lag * np.arange(counted)
    apart = len(waited) - np.searchsorted(ordered, times, side="right")
    share = apart.sum(axis=1) / (len(waited) * float(lags))
    return float(lags) * bounded_mean_interval(share, len(waited), level)


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

    The interval assumes that these times are nearly geometric.  It does not cover a small share of
    much slower pairs.

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


def not_mixing(
    meetings: Meetings, max_layers: int, partial: object, context: str = "{}"
) -> NotMixing:
    """Return the error for pairs that did not meet, with the trends of distance and pivot.

    Parameters
    ----------
    meetings : Meetings
        With a trace of at least one pair.
    max_layers : int
        Layers after which pairs were given up.
    partial : object
        The result as far as it goes, or None.
    context : str, default "{}"
        The message, with {} in place of the reason.
    """
    count = len(meetings.layers)
    with np.errstate(divide="ignore"):
        exponent, trend = _slope(np.log(meetings.distance)), _slope(np.log10(meetings.pivot))
    lost = np.count_nonzero(meetings.degenerate)
    if lost:
        layer = int(np.median(meetings.degenerate[meetings.degenerate > 0]))
        reason = (
            f"{lost} of {count} pairs lost rank, half of them by layer {layer}: the least "
            f"pivot of their Gram matrices changes by a factor of 10^{trend:.2g} per layer"
        )
    else:
        unmet = np.count_nonzero(meetings.layers < 0)
        reason = (
            f"{unmet} of {count} pairs had not met after {max_layers} layers; driven by "
            f"the same normals they change their distance by e^{exponent:.2g} per layer"
        )
    return NotMixing(context.format(reason), partial, exponent, trend)


def _slope(values: FloatArray) -> float:
    """Return the change per layer of the first pair's finite values, by least squares."""
    finite = np.flatnonzero(np.isfinite(values[0]))
    if finite.size < 2:
        return math.nan
    return float(np.polyfit(finite, values[0][finite], 1)[0])
