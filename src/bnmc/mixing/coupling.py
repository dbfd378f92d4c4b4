"""`tv_bound`: how far the law of a layer is from the invariant one, with a confidence interval."""

from __future__ import annotations

import math
from concurrent.futures import Executor
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnmc._support.arguments import integer, real
from bnmc._support.progress import Progress
from bnmc.chain.chain import Chain
from bnmc.chain.start import FirstLayer
from bnmc.estimate.intervals import clopper_pearson, mean_interval
from bnmc.mixing.meeting_bound import TVBound
from bnmc.mixing.meetings import MOST_DEPTH, PILOT_REPLICATES, Couplings
from bnmc.mixing.rate import RateEstimate
from bnmc.simulation.engine.pairs import Meetings
from bnmc.simulation.engine.state import MOST_CHAINS

__all__ = ["tv_bound"]

#: Values other than the commonest that the central limit theorem needs before it is used.
ENOUGH = 100


def tv_bound(
    chain: Chain,
    depth: int,
    *,
    lag: int | None = None,
    replicates: int = 1000,
    initial: str | ArrayLike | FirstLayer = "gaussian",
    rng: Any = None,
    level: float = 0.95,
    max_layers: int = 4000,
    executor: Executor | None = None,
    backend: str = "cpu",
    progress: bool | Progress = False,
) -> TVBound:
    r"""Bound the distance in total variation of the law of each layer from the invariant law.

    Two copies of the chain, one ahead of the other by a lag, are coupled so that they meet and stay
    together; how late they meet bounds the distance.

    Parameters
    ----------
    chain : Chain
        With norm "batch" or "batch-uncentred", Gaussian weights and no skip connection.
    depth : int
        The last layer l of the bound, >= 0.
    lag : int, optional
        Layers by which one copy is ahead, >= 1. A longer lag costs layers and makes the bound
        tighter. Chosen by a pilot run unless given: so that nine of ten pairs meet within a lag of
        being coupled.
    replicates : int, default 1000
        Number of pairs, >= 2.
    initial : str, array_like or FirstLayer, default "gaussian"
        The law of layer 0, as in `bnmc.simulate`: one batch for all chains, or a named law.
    rng : optional
        Anything `numpy.random.default_rng` takes (SPEC 7). One 64-bit key is drawn from it.
    level : float, default 0.95
        Level of the intervals, in (0, 1).
    max_layers : int, default 4000
        Layers after which a pair that is coupled and has not met is given up.
    executor : concurrent.futures.Executor, optional
        What runs ranges of replicates; threads unless given. Results do not depend on it.
    backend : {"cpu", "cuda"}
        "cuda" lets all replicates meet on a GPU, a block each, or on all that CUDA sees, with a
        part of them each: with the same random numbers, so meeting times differ only where
        rounding decides.
    progress : bool or callable
        True for a bar on standard error (extra ``cli``), or a function of (done, total) tasks.

    Returns
    -------
    TVBound

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For an argument that is not allowed, and for a chain for which the coupling is not defined,
        before any work; the message says what to use instead.
    NotMixing
        If pairs do not meet within `max_layers`, or a Gram matrix loses rank, as those of linear
        chains do where d is small beside n²/2. ``partial`` is the `TVBound` as far as it goes (or
        None if the pilot failed), ``exponent`` the measured contraction exponent, ``pivot_trend``
        the trend of the least pivot.
    ZeroVarianceError
        For a row that cannot be normalised.
    BackendError, ResultTooLargeError
        If there is no GPU for "cuda", or no memory on it; it says what is missing.

    Notes
    -----
    With X ahead of Y by L layers, both with the chain's law, and τ the first layer t with
    X_t = Y_{t−L} from which on they are equal,

    .. math:: \|\mu_l - \mu_*\|_{tv} \le E \max(0, \lceil (\tau - L - l)/L \rceil)

    (Biswas, Jacob and Vanetti, *Estimating convergence of Markov chains with L-lag couplings*,
    2019). μ_l is the law of x_l, the normalised representation, given the law of x_0; that of the
    Gram matrix G_l, and of all later layers, is no farther. The chain is driven by its rows given
    the Gram matrix of the layer before: both copies by the same normals, through the Cholesky
    factors of their covariances (of PGP if rows are centred; P projects out the mean), until these
    are so close that a maximal coupling of the two laws of d rows is likely to keep them equal.

    Examples
    --------
    >>> import bnmc
    >>> chain = bnmc.Chain(width=500, batch=5, activation="relu")
    >>> cert = bnmc.mixing.tv_bound(chain, depth=30, replicates=200, rng=0)
    >>> bool(cert.bound[0] > cert.bound[10] >= cert.bound[30])
    True
    """
    plan = Couplings(chain, initial, rng, max_layers, executor, progress, backend)
    depth = integer("depth", depth, low=0, high=MOST_DEPTH)
    replicates = integer("replicates", replicates, low=2, high=MOST_CHAINS - PILOT_REPLICATES)
    level = real("level", level, above=0.0, below=1.0)
    lag = plan.choose_lag(replicates) if lag is None else integer("lag", lag, low=1, high=2**20)
    meetings = plan.run(lag, 0, replicates)
    cert = _summary(meetings, lag, depth, plan.max_layers, level, plan.key)
    if cert.unmet:
        raise plan.finding(meetings, cert)
    return cert


def _summary(
    meetings: Meetings, lag: int, depth: int, max_layers: int, level: float, key: int
) -> TVBound:
    met = meetings.layers >= 0
    times = np.where(met, meetings.layers, lag + max_layers)
    waited = times - lag
    replicates = len(times)
    quantile = 0.5 + level / 2
    rate = _tail_rate(waited, level)
    layers = np.arange(depth + 1)
    bound, stderr, low, high, commonest, above, below, most_above = np.zeros((8, depth + 1))
    for layer in layers[layers < waited.max()]:
        excess = np.maximum(0, -((layer - waited) // lag))
        bound[layer] = excess.mean()
        stderr[layer] = excess.std(ddof=1) / math.sqrt(replicates)
        low[layer], high[layer] = mean_interval(excess, quantile)
        common = commonest[layer] = np.bincount(excess).argmax()
        more = excess[excess > common] - common
        above[layer], below[layer] = more.size, np.count_nonzero(excess < common)
        if more.size > 1:
            most_above[layer] = mean_interval(more, quantile)[1]

    survival = 1.0 - np.searchsorted(np.sort(waited), layers, side="right") / replicates
    survival_ci = clopper_pearson(np.rint(survival * replicates), replicates, level)
    if_geometric = 1.0 / (1.0 - rate.ci[1] ** lag) if rate.ci[1] < 1.0 else math.inf
    most_above = np.maximum(most_above, if_geometric)
    more_ci, less_ci = (clopper_pearson(k, replicates, level) for k in (above, below))
    rare = above + below < ENOUGH
    low = np.where(rare, commonest + more_ci[:, 0] - commonest * less_ci[:, 1], low)
    high = np.where(rare, commonest + more_ci[:, 1] * most_above - less_ci[:, 0], high)
    ci = np.stack([np.maximum(low, 0.0), high], axis=1)
    return TVBound(
        layers=layers,
        bound=bound,
        stderr=stderr,
        ci=ci,
        survival=survival,
        survival_ci=survival_ci,
        survival_band=math.sqrt(math.log(2.0 / (1.0 - level)) / (2.0 * replicates)),
        meeting_times=times,
        lag=lag,
        rate_estimate=rate,
        tries=int(meetings.tries.sum()),
        refusals=int(meetings.refusals.sum()),
        unmet=int(np.count_nonzero(~met)),
        level=level,
        key=key,
    )


def _tail_rate(waited: NDArray[np.int64], level: float) -> RateEstimate:
    """Rate of the geometric law that has the mean of the times beyond their median.

    Of k times beyond u the excess e = τ − u >= 1 has mean 1/(1 − rate). Of k deaths in Σe layers
    the exact interval is that of the negative binomial law. A refused coupling costs a whole
    contraction more, which spreads the times farther than that: the interval reaches as far as
    that for the mean of e does.
    """
    from scipy.special import betaincinv

    method = "tail of the meeting times"
    tail = 0.5 * (1.0 - level)
    # The lower median: whether it has come is known at the time, so it says nothing of the rest.
    threshold = int(np.quantile(waited, 0.5, method="lower"))
    beyond = waited[waited > threshold] - threshold
    count, total = len(beyond), float(beyond.sum())
    if count == 0:
        # All met by the median: a rate of 0, as far as so few can tell.
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
