"""`tv_bound`: how far the law of a layer is from the invariant one, with a confidence interval."""

from __future__ import annotations

import math
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnmc._executor import as_executor, ranges, run_tasks
from bnmc._machine import available_processors
from bnmc._pairs import Meetings, joined, meet, require_coupling
from bnmc._progress import Progress, Reporter, as_progress
from bnmc._samplers import MOST_CHAINS
from bnmc._validate import choice, integer, real
from bnmc.chain import Chain
from bnmc.errors import ArgumentError, ArgumentTypeError, BackendError, NotMixing
from bnmc.initial import Covariance, FirstLayer, Representation, prepare
from bnmc.mixing.rate import RateEstimate
from bnmc.simulation import draw_key

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["TVBound", "tv_bound"]

#: Pairs of the pilot run, and the layers by which one is ahead in it.
PILOT_REPLICATES, PILOT_LAG = 32, 16
#: The share of the pilot's pairs that have met within the lag, counted from when they are coupled.
LAG_QUANTILE = 0.9
#: Values other than the commonest that the central limit theorem needs before it is used.
ENOUGH = 100
#: The last layer a bound may be asked for: the result has a few numbers for each.
MOST_DEPTH = 2**20
#: What a task of one thread should take, in layers times numbers of a layer.
TASK_NUMBERS = 5e8


@dataclass(frozen=True)
class TVBound:
    """An upper bound of ‖μ_l − μ*‖_tv for each layer l; ``print`` shows it as a table.

    Attributes
    ----------
    layers : (depth + 1,) ndarray of int
        0 to depth.
    bound : (depth + 1,) ndarray of float64
        Means of J_l = max(0, ⌈(τ − lag − l)/lag⌉) over replicates; not increasing, and above 1
        where it says nothing.
    stderr : (depth + 1,) ndarray of float64
        Standard errors of these means.
    ci : (depth + 1, 2) ndarray of float64
        Confidence intervals of E J_l, at each layer alone; see Notes.
    survival : (depth + 1,) ndarray of float64
        Share of the replicates that have not met l layers after they were coupled.
    survival_ci : (depth + 1, 2) ndarray of float64
        Clopper-Pearson intervals of its expectation P(τ − lag > l): exact, at each layer alone.
    survival_band : float
        Half width of a band that holds for all layers at once (Dvoretzky, Kiefer and Wolfowitz,
        with Massart's constant).
    meeting_times : (replicates,) ndarray of int
        τ, the layer of the chain ahead at which a pair met; for one that has not, the last layer
        it was seen at.
    lag : int
        Layers by which the chain ahead is ahead.
    rate_estimate : RateEstimate
        Factor by which P(τ > t) falls with each layer t, where pairs meet. Far in the tail it is
        at least the chain's own rate, which `bnmc.mixing.contraction` estimates; in the few layers
        in which fast chains meet it may be less.
    tries, refusals : int
        Maximal couplings that were tried, and refused.
    unmet : int
        Replicates that have not met: their τ is too small, and with it bound and survival. Not 0
        only in what a `NotMixing` error carries.
    level : float
        Level of the intervals and of the band.
    key : int
        The 64-bit key of all random numbers.

    Notes
    -----
    J_l is not bounded, so an interval for its mean needs an assumption. Where at least 100
    replicates have a J_l other than the commonest, c (0 in deep layers), the interval is Student's,
    by the central limit theorem, with the term of next order in the skewness of J_l added to its
    upper end (Hall, *On the removal of skewness by transformation*, 1992). Elsewhere it adds to c
    the excess, of which the probability has a Clopper-Pearson interval, and the mean is at least 1
    and at most the larger of such an upper end for it and of 1/(1 − rate^lag), that mean if the
    tail of τ is geometric, at the upper end of
    the rate; and it takes away, likewise, the probability that J_l < c, times 1 to c.
    """

    layers: NDArray[np.int64]
    bound: NDArray[np.float64]
    stderr: NDArray[np.float64]
    ci: NDArray[np.float64]
    survival: NDArray[np.float64]
    survival_ci: NDArray[np.float64]
    survival_band: float
    meeting_times: NDArray[np.int64]
    lag: int
    rate_estimate: RateEstimate
    tries: int
    refusals: int
    unmet: int
    level: float
    key: int = field(repr=False)

    @property
    def rate(self) -> float:
        """`rate_estimate.rate`: the factor per layer."""
        return self.rate_estimate.rate

    @property
    def alpha(self) -> float:
        """``1 − rate``: what stands for α of Assumption 1 of *On bridging …*."""
        return 1.0 - self.rate

    @property
    def replicates(self) -> int:
        """Number of pairs."""
        return len(self.meeting_times)

    def layers_to(self, tolerance: float) -> int | None:
        """Return the first layer whose interval ends at or below `tolerance`; None if none does."""
        below = np.flatnonzero(self.ci[:, 1] <= real("tolerance", tolerance, above=0.0))
        return int(self.layers[below[0]]) if below.size else None

    def to_dict(self) -> dict[str, Any]:
        """Return numbers, lists and dicts, which `json.dumps` takes."""
        arrays = ("layers", "bound", "stderr", "ci", "survival", "survival_ci", "meeting_times")
        rate = self.rate_estimate
        return {
            **{name: getattr(self, name).tolist() for name in arrays},
            "survival_band": self.survival_band,
            "lag": self.lag,
            "rate": {"rate": rate.rate, "stderr": rate.stderr, "ci": list(rate.ci), "n": rate.n},
            "tries": self.tries,
            "refusals": self.refusals,
            "unmet": self.unmet,
            "level": self.level,
            "key": self.key,
        }

    def __str__(self) -> str:
        """The bound at layers 0, 1, 2, 4, 8, … and the last, with its interval."""
        depth = int(self.layers[-1])
        shown = sorted({0, depth} | {2**k for k in range(depth.bit_length()) if 2**k < depth})
        interval = f"{100 * self.level:g} % interval"
        lines = [
            f"Total variation distance from the invariant law, at most; {self.replicates} pairs, "
            f"lag {self.lag}",
            "(1 or more says nothing; it falls in steps that are a lag apart)",
            f"{'layer':>7}  {'bound':>9}  {interval:>20}",
        ]
        for layer in shown:
            low, high = self.ci[layer]
            lines.append(f"{layer:>7}  {self.bound[layer]:>9.4g}  {f'[{low:.4g}, {high:.4g}]':>20}")
        if self.unmet:
            lines.append(f"Too small: {self.unmet} pairs had not met.")
        return "\n".join([*lines, f"rate {self.rate_estimate}"])

    def plot(self, *, ax: Axes | None = None) -> Axes:
        """Draw the bound against the layer on a logarithmic axis, in the band of its intervals.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            Where to draw; a new figure unless given.

        Returns
        -------
        matplotlib.axes.Axes

        Raises
        ------
        MissingExtraError
            Without Matplotlib (extra ``plot``).
        """
        from bnmc.plot import COLOURS, figure

        if ax is None:
            ax = figure()[1][0]
        drawn = self.bound > 0.0
        colour = COLOURS[0]
        label = f"mean, in steps of the lag of {self.lag} layers"
        ax.plot(self.layers[drawn], self.bound[drawn], color=colour, label=label)
        label = f"{100 * self.level:g} % intervals"
        low, high = self.ci.T
        # What a logarithmic axis has no place for is below everything that it shows.
        least = 0.1 / self.replicates
        ax.fill_between(
            self.layers, np.maximum(low, least), high, color=colour, alpha=0.25, label=label
        )
        ax.set_yscale("log")
        # Above it nothing is said.
        ax.axhline(1.0, color="grey", linewidth=0.8, linestyle="--")
        shown = max(least, 0.5 * float(low.min())) if low.min() > 0.0 else least
        ax.set_ylim(shown, 2.0 * max(1.0, float(self.bound[0])))
        ax.set_title(f"Distance from the invariant law, at most: {self.replicates} pairs")
        ax.set_xlabel(r"layer $\ell$")
        ax.set_ylabel(r"bound of $\|\mu_\ell - \mu_*\|_{tv}$")
        ax.legend()
        return ax


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


class Couplings:
    """Coupled pairs of a chain, whose every argument has been checked."""

    def __init__(
        self,
        chain: Chain,
        initial: Any,
        rng: Any,
        max_layers: int,
        executor: object,
        progress: object,
        backend: str = "cpu",
    ) -> None:
        self.backend = _usable(choice("backend", backend, ("cpu", "cuda")), executor)
        if not isinstance(chain, Chain):
            raise ArgumentTypeError("chain", chain, "a bnmc.Chain")
        require_coupling(chain)
        self.chain = chain
        self.max_layers = integer("max_layers", max_layers, low=1, high=2**30)
        self.executor = as_executor(executor)
        self.progress = as_progress(progress)
        chain.activation.check()
        self.start: Covariance | Representation = prepare(chain, initial, 1, None)
        self.key = draw_key(rng)

    def choose_lag(self, first: int) -> int:
        """Let a few pairs meet that are not among the replicates, and look how long that takes."""
        meetings = self.run(PILOT_LAG, first, first + PILOT_REPLICATES)
        apart = meetings.layers < 0
        waited = np.sort(np.where(apart, math.inf, meetings.layers - PILOT_LAG))
        lag = waited[math.ceil(LAG_QUANTILE * (PILOT_REPLICATES - 1))]
        if lag == math.inf:
            raise self.finding(meetings, None)
        return int(lag)

    def run(self, lag: int, first: int, last: int) -> Meetings:
        """Let pairs first:last meet, a range of them a task."""
        if self.backend == "cuda":
            from bnmc._gpu_pairs import meet_on_devices

            return meet_on_devices(
                self.chain, self.start, lag, first, last, self.key, self.max_layers
            )
        processors = available_processors()
        numbers = 2.0 * (lag + 30) * self.chain.width * self.chain.batch
        size = int(np.clip(TASK_NUMBERS / numbers, 1, max(1, (last - first) // (4 * processors))))
        tasks = [
            (self.chain, self.start, lag, first + a, first + b, self.key, self.max_layers,
             min(1, b - a) if a == 0 else 0)
            for a, b in ranges(last - first, size)
        ]  # fmt: skip
        with Reporter(self.progress, "coupling", "tasks") as report:
            return joined(run_tasks(meet, tasks, self.executor, processors, report))

    def finding(self, meetings: Meetings, partial: TVBound | None) -> NotMixing:
        """Return the error that says why pairs did not meet."""
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
                f"{unmet} of {count} pairs had not met after {self.max_layers} layers; driven by "
                f"the same normals they change their distance by e^{exponent:.2g} a layer"
            )
        return NotMixing(reason, partial, exponent, trend)


def _usable(backend: str, executor: object) -> str:
    """Return a backend that can run here, or raise what is missing."""
    if backend == "cuda":
        if executor is not None:
            raise ArgumentError("executor", executor, "None with backend='cuda'")
        from bnmc._kernels.gpu.device import why_not

        reason = why_not()
        if reason is not None:
            raise BackendError("cuda", reason)
    return backend


def _slope(values: NDArray[np.float64]) -> float:
    """Mean change by a layer of the first pair's values, where they are finite."""
    kept = np.flatnonzero(np.isfinite(values[0]))
    if kept.size < 2:
        return math.nan
    return float(np.polyfit(kept, values[0][kept], 1)[0])


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
        low[layer], high[layer] = _mean_interval(excess, quantile)
        common = commonest[layer] = np.bincount(excess).argmax()
        more = excess[excess > common] - common
        above[layer], below[layer] = more.size, np.count_nonzero(excess < common)
        if more.size > 1:
            most_above[layer] = _mean_interval(more, quantile)[1]

    survival = 1.0 - np.searchsorted(np.sort(waited), layers, side="right") / replicates
    survival_ci = _clopper_pearson(np.rint(survival * replicates), replicates, level)
    if_geometric = 1.0 / (1.0 - rate.ci[1] ** lag) if rate.ci[1] < 1.0 else math.inf
    most_above = np.maximum(most_above, if_geometric)
    more_ci, less_ci = (_clopper_pearson(k, replicates, level) for k in (above, below))
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


def _clopper_pearson(
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


def _mean_interval(values: NDArray[np.int64], quantile: float) -> tuple[float, float]:
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
        least, most = _mean_interval(beyond, 1.0 - tail)
        low = min(low, 1.0 - 1.0 / max(1.0, least))
        high = max(high, 1.0 - 1.0 / most)
    return RateEstimate(rate, stderr, (float(low), float(high)), count, method, level)
