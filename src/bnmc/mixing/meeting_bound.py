"""`tv_bound`: an upper bound of the distance from the law of later layers, from coupled pairs."""

from __future__ import annotations

import math
from concurrent.futures import Executor
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnmc._support.arguments import Float64Array, integer, real
from bnmc._support.progress import Progress
from bnmc._support.text import plain, text_table, wrapped
from bnmc._support.workers import Parallel
from bnmc.chain.chain import Chain
from bnmc.chain.start import FirstLayer
from bnmc.errors import ArgumentError
from bnmc.estimate.estimate import (
    Estimates,
    bounded_mean_interval,
    clopper_pearson,
    mean_interval,
)
from bnmc.mixing import coupling
from bnmc.mixing.absorption import AbsorbingEvent
from bnmc.mixing.coupling import CoupledPairs, CrossedStart, absorption_probability, assumptions
from bnmc.mixing.rate import RateEstimate, WithRate
from bnmc.plot.drawn import Curves, Drawn
from bnmc.simulation.engine.pairs import Meetings

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Largest depth of a bound: the result holds a few numbers for each layer.
MOST_DEPTH = 2**20

#: Default horizon, in lags.
HORIZON_LAGS = 2


@dataclass(frozen=True, eq=False, kw_only=True)
class _Bounds(Estimates):
    """Estimates of a bound for each layer, from coupled pairs: value and n have other names, too.

    Attributes
    ----------
    layers : (depth + 1,) ndarray of int
    lag : int
    """

    layers: NDArray[np.int64]
    lag: int

    @property
    def bound(self) -> Float64Array:
        """`value`: the bound for each layer."""
        return self.value

    @property
    def chains(self) -> int:
        """`n`: the number of pairs of chains."""
        return self.n

    def as_json(self) -> dict[str, Any]:
        """Return the fields for a JSON document, value and n as ``bound`` and ``chains``."""
        names = {"value": "bound", "n": "chains"}
        return {names.get(each.name, each.name): getattr(self, each.name) for each in fields(self)}

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as numbers and lists, for `json.dumps`."""
        return plain(self)

    def _table(self, further: int | None = None) -> str:
        """Return the bound at some layers, and a further one, as a table, with its intervals.

        Of the layers with a vacuous bound, 1 or more, the last one is shown.
        """
        layers = shown_layers(int(self.layers[-1]))
        layers = sorted({*layers, layers[0] if further is None else further})
        first = max((layer for layer in layers if self.bound[layer] >= 1.0), default=0)
        rows = []
        for layer in (layer for layer in layers if layer >= first):
            bound, ends = self.bound[layer], self.ci[layer]
            # A share of 0 of the pairs is less than one pair, not nothing.
            share = f"{bound:.4g}" if bound > 0.0 else f"< {1.0 / self.chains:.4g}"
            rows.append((str(layer), share, "[{:.4g}, {:.4g}]".format(*ends)))
        heads = ("layer", "mean of pairs", f"{100 * self.level:g} %: certified is the upper end")
        return text_table(heads, rows, align=">>>")


@dataclass(frozen=True, eq=False, kw_only=True)
class LaggedDistance(Curves, _Bounds):
    r"""Upper bounds of ‖μ_l − μ_{l+lag}‖_tv for each layer l; ``print`` shows a table.

    They are `bnmc.Estimates` of the probabilities below: item l is the `bnmc.Estimate` of layer l.

    A pair that has met by layer l + lag of the chain ahead is one state with both laws, so

    .. math:: \|\mu_l - \mu_{l + L}\|_{tv} \le P(\tau - L > l)

    for any chain, any law of layer 0 and any lag L.  The number of pairs that have not met is
    binomial, so the confidence intervals of the probability are exact.  A small distance between
    layers l and l + L does not mean that μ_l is near the stationary law: if a chain leaves a set of
    states only once in 10⁶ layers, the two laws are nearly equal for about that long.

    Attributes
    ----------
    layers : (depth + 1,) ndarray of int
        0 to depth.
    bound, stderr : (depth + 1,) ndarray of float64
        Share of the pairs that have not met l layers after the coupling began, and its standard
        error; ``value`` is another name of it.
    ci : (depth + 1, 2) ndarray of float64
        Clopper–Pearson intervals of P(τ − lag > l), for each layer separately.
    band : float
        Half width of a confidence band for all layers simultaneously (Dvoretzky, Kiefer and
        Wolfowitz, with Massart's constant).
    lag : int
        Layers between the two laws.
    n : int
        Number of pairs of chains; ``chains`` is another name of it.
    level : float
        Level of the intervals and of the band.

    Examples
    --------
    >>> import bnmc
    >>> chain = bnmc.Chain(width=500, batch=5, activation="relu")
    >>> cert = bnmc.mixing.tv_bound(chain, depth=8, chains=200, rng=0)
    >>> print(cert.lagged[8])
    0.065 ± 0.017
    >>> print(cert.lagged)
    Upper bound of the total-variation distance between layers l and l + 7; 200 pairs, no assumption
    layer  mean of pairs  95 %: certified is the upper end
        2              1                       [0.9817, 1]
        4           0.99                  [0.9643, 0.9988]
        8          0.065                 [0.03506, 0.1086]
    """

    _axis = "layers", "layer l"
    _curves = MappingProxyType({"bound": "bound of the distance between layers l and l + lag"})
    _scale = "log"

    band: float

    def layers_to(self, atol: float) -> int | None:
        """Return the first layer whose interval ends at or below `atol`; None if none does."""
        below = np.flatnonzero(self.ci[:, 1] <= real("atol", atol, above=0.0))
        return int(self.layers[below[0]]) if below.size else None

    def __str__(self) -> str:
        """The bound at layers 0, 1, 2, 4, 8, … and the last, with its interval."""
        head = (
            f"Upper bound of the total-variation distance between layers l and l + {self.lag}; "
            f"{self.chains} pairs, no assumption"
        )
        return f"{wrapped(head)}\n{self._table()}"


def shown_layers(depth: int) -> list[int]:
    """Return the layers of a table: 0, the powers of 2, and `depth`."""
    return sorted({0, depth} | {2**k for k in range(depth.bit_length()) if 2**k < depth})


@dataclass(frozen=True, eq=False, kw_only=True)
class TVBound(Drawn, WithRate, _Bounds):
    r"""Upper bounds of the distance ‖μ_l − μ*‖_tv for each layer l; ``print`` shows a table.

    They are `bnmc.Estimates` of E J_l below, with intervals for the horizon: item l is the one of
    layer l, which `assumes` what the intervals leave out.

    `plot` draws the bound against the layer on a logarithmic axis, in the band of its intervals.

    Attributes
    ----------
    layers : (depth + 1,) ndarray of int
        0 to depth.
    bound : (depth + 1,) ndarray of float64
        Means of J_l = max(0, ⌈(τ − lag − l)/lag⌉) over pairs; nonincreasing.  Values of 1 or
        more are vacuous.  ``value`` is another name.
    stderr : (depth + 1,) ndarray of float64
        Standard errors of these means.
    ci : (depth + 1, 2) ndarray of float64
        Confidence intervals of E min(J_l, horizon/lag), for each layer separately; see Notes.
    lagged : LaggedDistance
        The bound of ‖μ_l − μ_{l+lag}‖_tv, which assumes nothing, with exact intervals.
    meeting_times : (chains,) ndarray of int
        τ, the layer of the chain ahead at which a pair met; for a pair that has not met, the last
        layer of its run.
    lag : int
        Layers by which one chain of a pair is ahead of the other.
    horizon : int
        Layers over which `ci` holds without an assumption; a multiple of the lag.
    tail_probability : float or None
        The caller's upper bound of the probability that a pair waits longer than `horizon` layers.
    crossed_starts : tuple of CrossedStart
        Other starts, with the waiting times of pairs of a chain from there and a chain from the
        given start, and the number of pairs that were absorbed.
    absorbing_events : tuple of AbsorbingEvent
        Known events that end in states that the chain never leaves, with their probability per
        layer.
    rate_estimate : RateEstimate
        Factor by which P(τ > t) decreases per layer t, just beyond the median of τ.  It describes
        the coupling, and may be smaller or larger than the rate of the chain, which
        `bnmc.mixing.contraction` estimates.  Its interval assumes that the times beyond the median
        are nearly geometric.
    tries, refusals : int
        Number of maximal couplings that were tried, and that failed.
    unmet : int
        Number of pairs that have not met.  It is 0 except in the ``partial`` result of a
        `NotMixing` error, where both bounds are too small.
    level : float
        Level of the intervals.
    key : int
        The 64-bit key of all random numbers: as `rng` it repeats the call.

    Notes
    -----
    Three statements follow from the same meeting times.

    1. ‖μ_l − μ_{l+lag}‖_tv ≤ P(τ − lag > l).  This needs no assumption about the chain.  `lagged`
       has the exact confidence intervals of the probability.
    2. ‖μ_l − μ_{l+m}‖_tv ≤ E min(J_l, k), if m is a multiple of the lag and m ≤ k·lag.  This needs
       no assumption about the chain either.  As min(J_l, k)/k is in [0, 1], Hoeffding's inequality
       gives the intervals `ci` for k = horizon/lag, whatever the law of τ.  `over` returns upper
       ends for other horizons.
    3. ‖μ_l − μ*‖_tv ≤ E J_l.  J_l is unbounded: an event of probability p that keeps a pair apart
       for 1/p layers contributes about 1/lag to E J_l, and R pairs do not show it if p is small
       compared with 1/R.  So without an assumption R pairs give no interval for E J_l.

    Statement 2 bounds the distance from the *quasi-stationary* law, the law of deep layers as far
    as the certificate follows them.  If the bound at layer l is ε, the law of layer l differs by at
    most ε from that of each layer l + m, with m a multiple of the lag and at most the horizon.  If
    no event is too rare to be seen in the simulated pairs, this is the stationary law.  `assumes`
    lists the conditions with the numbers of this result.  `law` is "stationary" only if the caller
    excludes rarer events by ``tail_probability=0``.

    Examples
    --------
    >>> import bnmc
    >>> chain = bnmc.Chain(width=500, batch=5, activation="relu")
    >>> cert = bnmc.mixing.tv_bound(chain, depth=30, chains=200, rng=0)
    >>> cert.layers_to(0.1), cert.law, cert.chains
    (13, 'quasi-stationary', 200)
    >>> print(cert[13])
    0.025 ± 0.011
    """

    lagged: LaggedDistance
    meeting_times: NDArray[np.int64]
    horizon: int
    tail_probability: float | None
    crossed_starts: tuple[CrossedStart, ...]
    absorbing_events: tuple[AbsorbingEvent, ...]
    rate_estimate: RateEstimate
    tries: int
    refusals: int
    unmet: int
    key: int = field(repr=False)

    @property
    def law(self) -> str:
        """The law whose distance `ci` bounds: "quasi-stationary" or "stationary"."""
        excluded = self.tail_probability == 0.0 and not self.absorbing_events
        return "stationary" if excluded else "quasi-stationary"

    @property
    def assumes(self) -> tuple[str, ...]:
        """Conditions under which the quasi-stationary law is the stationary law, in sentences."""
        return assumptions(
            self.meeting_times - self.lag, self.horizon, self.tail_probability,
            self.crossed_starts, self.absorbing_events,
        )  # fmt: skip

    def over(self, layers: float) -> Float64Array:
        """Return upper ends of the distance of layer l from later layers, for another horizon.

        The later layers are those at a multiple of the lag, up to the horizon.

        Parameters
        ----------
        layers : float
            Horizon in layers, > 0; infinite only if `law` is "stationary".

        Returns
        -------
        (depth + 1,) ndarray of float64
            Upper ends, at the level of `ci`, of E min(J_l, k) with k = ⌈layers/lag⌉.  Beyond
            `horizon` each lag adds `tail_probability`, if the caller stated it, and about
            log(2/(1 − level))/chains otherwise.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            If `layers` is not such a number.
        """
        layers = real("layers", layers, above=0.0, finite=False)
        if math.isinf(layers) and self.law != "stationary":
            raise ArgumentError("layers", layers, "a finite number unless the law is stationary")
        if math.isinf(layers):
            return self.ci[:, 1].copy()
        lags, covered = math.ceil(layers / self.lag), self.horizon // self.lag
        if lags > covered and self.tail_probability is not None:
            return self.ci[:, 1] + (lags - covered) * self.tail_probability
        waited, depth = self.meeting_times - self.lag, int(self.layers[-1])
        return capped_intervals(waited, self.lag, depth, lags, self.level)[:, 1]

    def absorbed(self, layers: int) -> float:
        """Return the probability of an absorbing event within some layers, at most or about.

        Parameters
        ----------
        layers : int
            Number of layers, >= 0.

        Returns
        -------
        float
            The number of layers times the sum of the probabilities of `absorbing_events`, each with
            three standard errors; at most 1.  An upper bound if all events are bounds.  Otherwise
            an estimate: few states may dominate the mean, so the truth can be several times larger.
        """
        return absorption_probability(self.absorbing_events, integer("layers", layers, low=0))

    def layers_to(self, atol: float) -> int | None:
        """Return the first layer whose bound and interval are at most `atol`, or None.

        Parameters
        ----------
        atol : float
            Largest total-variation distance, > 0.

        Returns
        -------
        int or None
            The first layer at which both `bound` and the upper end of `ci` are at most `atol`.
            If rare slow pairs dominate `bound`, it exceeds the interval for the horizon.

        Notes
        -----
        Bounds fall with the layer, so the level holds for the returned layer.
        """
        atol = real("atol", atol, above=0.0)
        below = np.flatnonzero((self.ci[:, 1] <= atol) & (self.bound <= atol))
        return int(self.layers[below[0]]) if below.size else None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as numbers, lists and dicts, for `json.dumps`."""
        return {
            **plain(self),
            "rows": [
                {"layer": int(layer), "bound": float(bound), "ci": ci.tolist()}
                for layer, bound, ci in zip(self.layers, self.bound, self.ci, strict=True)
            ],
            "law": self.law,
            "assumes": list(self.assumes),
            "crossed_starts": {start.name: plain(start) for start in self.crossed_starts},
            "rate": plain(self.rate_estimate),
        }

    def __str__(self) -> str:
        """The layer of distance 0.05, the bounds of both distances, and the assumptions."""
        return self.text()

    def text(self, atol: float = 0.05) -> str:
        """Return what ``print`` shows: first the layer from which the distance is at most `atol`.

        Parameters
        ----------
        atol : float, default 0.05
            As in `layers_to`.
        """
        layer, level = self.layers_to(atol), f"({100 * self.level:g} %)"
        first = f"Distance from the {self.law} law at most {atol:g} from layer {layer} on {level}"
        if layer is None or self.unmet:
            last, end = self.layers[-1], max(self.bound[-1], self.ci[-1, 1])
            first = f"No layer up to {last} has a certified distance <= {atol:g} {level}"
            if not self.unmet:
                first += f": at layer {last} it is at most {end:.2g}; take more chains or depth"
        lines = [
            wrapped(first),
            str(self.lagged),
            "",
            f"Upper bound of the total-variation distance from the {self.law} law",
            f"(Waits count up to the horizon of {self.horizon} layers: an interval can lie below "
            "the mean.)",
            self._table(layer),
        ]
        if self.unmet:
            lines.append(f"Too small: {self.unmet} pairs had not met.")
        return "\n".join([*lines, "", *map(wrapped, self.assumes)])

    def _draw(self, ax: Axes) -> None:
        """Draw the bound against the layer on a logarithmic axis, in the band of its intervals."""
        from bnmc.plot.axes import COLOURS, label_layers

        positive = self.bound > 0.0
        colour = COLOURS[0]
        label = f"mean, in steps of the lag of {self.lag} layers"
        ax.plot(self.layers[positive], self.bound[positive], color=colour, label=label)
        label = f"{100 * self.level:g} % intervals"
        low, high = self.ci.T
        # A logarithmic axis has no 0: lower ends at 0 are drawn below its range.
        least = 0.1 / self.chains
        ax.fill_between(
            self.layers, np.maximum(low, least), high, color=colour, alpha=0.25, label=label
        )
        ax.set_yscale("log")
        # Bounds above 1 are vacuous.
        ax.axhline(1.0, color="grey", linewidth=0.8, linestyle="--")
        shown = max(least, 0.5 * float(low.min())) if low.min() > 0.0 else least
        ax.set_ylim(shown, 2.0 * max(1.0, float(self.bound[0])))
        ax.set_title(f"Distance from the {self.law} law, at most: {self.chains} pairs")
        label_layers(ax, r"layer $\ell$")
        ax.set_ylabel(f"total variation distance from the {self.law} law, at most")
        ax.legend()


def tv_bound(
    chain: Chain,
    depth: int,
    *,
    lag: int | None = None,
    chains: int = 1000,
    horizon: int | None = None,
    tail_probability: float | None = None,
    initial: str | ArrayLike | FirstLayer = "gaussian",
    rng: Any = None,
    level: float = 0.95,
    max_layers: int = 4000,
    threads: int | None = None,
    executor: Executor | None = None,
    backend: str = "cpu",
    progress: bool | Progress = False,
) -> TVBound:
    r"""Bound the total-variation distance of the law of each layer from that of later layers.

    Two copies of the chain, one ahead of the other by a lag, are coupled so that they meet and stay
    equal.  The law of the meeting times bounds the distance.  Chains from other starts must meet
    chains from the given start, too.

    Parameters
    ----------
    chain : Chain
        With a norm, Gaussian weights and no skip connection: then the Gram matrix of the
        activations that W multiplies is a Markov chain, for each norm, order, bias and convolution.
    depth : int
        The last layer l of the bound, >= 0.
    lag : int, optional
        Layers by which one copy is ahead, >= 1.  A longer lag costs more layers and gives a
        tighter bound.  By default chosen by a pilot run such that nine of ten pairs meet within
        one lag after the coupling begins.
    chains : int, default 1000
        Number of pairs of chains, >= 2.
    horizon : int, optional
        Layers over which the intervals hold without an assumption, for layers that are a multiple
        of the lag apart; >= 1, rounded up to a multiple of the lag.  By default 2 lags.  The upper
        ends of deep layers are about log(2/(1 − level)) horizon/(lag chains).
    tail_probability : float, optional
        Upper bound of the probability that a pair waits longer than `horizon` layers, in [0, 1), if
        you can state one; needs `horizon`.  It extends the bound to longer horizons
        (`TVBound.over`); 0 extends it to the stationary law.
    initial : str, array_like or FirstLayer, default "gaussian"
        Law of layer 0, as in `bnmc.simulate`: one batch for all chains, or a named law.
    rng : optional
        Anything `numpy.random.default_rng` takes (SPEC 7), from which one 64-bit key is drawn, or
        the ``key`` of a result.
    level : float, default 0.95
        Level of the intervals, in (0, 1).
    max_layers : int, default 4000
        Number of layers, from the start of the coupling, after which a pair is given up.
    threads : int, optional
        Number of threads, >= 1.  Default: all processors.  Results do not depend on it.
    executor : concurrent.futures.Executor, optional
        Executor that runs the tasks in place of threads; a task is a range of pairs.  Results do
        not depend on it.
    backend : {"cpu", "cuda"}
        "cuda" runs all pairs on the visible GPUs, one block per pair, with the same
        random numbers.  Meeting times differ from those of "cpu" only where rounding decides. It
        takes norms over the batch before the activation, with biases and convolutions.
    progress : bool or callable, default False
        True for a bar on standard error (extra ``cli``), or a function of (done, total) tasks.
        There is no time limit: the pairs that have met by then would be those that meet early, so
        the bound would be too small.

    Returns
    -------
    TVBound

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For an argument that is not allowed, and for a chain without this coupling; the message
        names an alternative.
    ResultTooLargeError
        If the pairs do not fit in memory.
    NotMixing
        If pairs do not meet within `max_layers`, or a Gram matrix loses rank.  Gram matrices of
        linear chains do so if the width is below about n²/4 + n/2, for a batch of n.
        Also if a chain from `initial` does not meet one from another start: independent samples,
        samples near a line, one sample that stands out, a block of samples that nearly coincide,
        the batch in another order, and the same start one layer behind.  Then the law of deep
        layers depends on the start.
        ``partial`` is the `TVBound` with the pairs that have met (None if the pilot failed),
        ``exponent`` the contraction exponent, and ``pivot_trend`` the change of log10 of the least
        pivot per layer.
    ZeroVarianceError
        For a row with zero variance.
    BackendError, ResultTooLargeError
        For "cuda", without a usable GPU or without enough memory on it. `BackendError` also for
        norms over the features and other orders.

    Notes
    -----
    Let X be ahead of Y by L layers, both with the chain's law, and let τ be the first layer t with
    X_t = Y_{t−L}; from there on they stay equal.  Then

    .. math:: \|\mu_l - \mu_{l+L}\|_{tv} \le P(\tau - L > l), \qquad
        \|\mu_l - \mu_*\|_{tv} \le E \max(0, \lceil (\tau - L - l)/L \rceil)

    (Biswas, Jacob and Vanetti, *Estimating convergence of Markov chains with L-lag couplings*,
    2019).  Here μ_l is the law of x_l, the normalized representation, given the law of x_0.  The
    bound also holds for the law of the Gram matrix G_l and for all later layers.  The coupling acts
    on the rows given the Gram matrix of the previous layer.  Both copies multiply the same normals
    by the Cholesky factors of their covariances G (of PGP if rows are centred; P projects out the
    mean).  Once the covariances are close, a maximal coupling of the two laws of d rows makes the
    copies equal with high probability.

    The first inequality needs no assumption.  The second bounds the distance from the stationary
    law by a mean that R pairs cannot estimate if rare events dominate it: see `TVBound`.  To make a
    statement about a horizon of H layers without an assumption, choose ``lag=H``.

    Examples
    --------
    >>> import bnmc
    >>> chain = bnmc.Chain(width=500, batch=5, activation="relu")
    >>> cert = bnmc.mixing.tv_bound(chain, depth=30, chains=200, rng=0)
    >>> bool(cert.bound[0] > cert.bound[10] >= cert.bound[30])
    True
    >>> cert.law, cert.horizon == 2 * cert.lag
    ('quasi-stationary', True)
    """
    parallel = Parallel.of(threads, executor, progress)
    pairs = CoupledPairs(chain, initial, rng, max_layers, parallel, backend)
    depth = integer("depth", depth, low=0, high=MOST_DEPTH)
    chains = integer("chains", chains, low=2, high=coupling.MOST_REPLICATES)
    level = real("level", level, above=0.0, below=1.0)
    if lag is not None:
        lag = integer("lag", lag, low=1, high=coupling.MOST_LAG)
    if horizon is not None:
        horizon = integer("horizon", horizon, low=1, high=2**40)
    if tail_probability is not None:
        tail_probability = real("tail_probability", tail_probability, low=0.0, below=1.0)
        if horizon is None:
            raise ArgumentError("horizon", None, "a number of layers, with tail_probability")
    if lag is None:
        lag = int(pairs.pilot_waits(chains)[coupling.LAG_PAIR])
    lags = HORIZON_LAGS if horizon is None else -(-horizon // lag)
    meetings = pairs.run(lag, 0, chains)
    cert = summary(meetings, lag, depth, lags, pairs.max_layers, level, pairs.key)
    if cert.unmet:
        raise coupling.not_mixing(chain, meetings, pairs.max_layers, cert)
    waited = meetings.layers - lag
    if tail_probability is not None:
        longer = np.count_nonzero(waited > cert.horizon)
        least = float(clopper_pearson(np.array([float(longer)]), chains, level)[0, 0])
        if least > tail_probability:
            raise ArgumentError(
                "tail_probability", tail_probability, f"at least {least:.2g}",
                f"{longer} of {chains} pairs waited longer than {cert.horizon} layers",
            )  # fmt: skip
    events = pairs.absorbing_events(lag, chains)
    cert = replace(cert, absorbing_events=events)
    crossed = pairs.cross_starts(waited, events, cert)
    return replace(cert, crossed_starts=crossed, tail_probability=tail_probability)


def summary(
    meetings: Meetings, lag: int, depth: int, lags: int, max_layers: int, level: float, key: int
) -> TVBound:
    """Return the bound from meetings; a pair that has not met counts with its last layer."""
    met = meetings.layers >= 0
    times = np.where(met, meetings.layers, lag + max_layers)
    waited = times - lag
    bound, stderr = _excess_means(waited, lag, depth)
    share, share_ci, band = survival(waited, depth, level)
    shared: dict[str, Any] = {
        "n": len(waited), "level": level, "layers": np.arange(depth + 1), "lag": lag
    }  # fmt: skip
    return TVBound(
        value=bound,
        stderr=stderr,
        method="coupled pairs, Hoeffding",
        ci=capped_intervals(waited, lag, depth, lags, level),
        lagged=LaggedDistance(
            value=share, stderr=np.sqrt(share * (1.0 - share) / len(waited)),
            method="coupled pairs, Clopper–Pearson", ci=share_ci, band=band, **shared,
        ),
        meeting_times=times,
        horizon=lags * lag,
        tail_probability=None,
        crossed_starts=(),
        absorbing_events=(),
        rate_estimate=tail_rate(waited, level),
        tries=int(meetings.tries.sum()),
        refusals=int(meetings.refusals.sum()),
        unmet=int(np.count_nonzero(~met)),
        key=key,
        **shared,
    )  # fmt: skip


# --- statistics of meeting times: the bound of each layer, survival, and the rate of the tail
#
# A pair of chains, one ahead of the other by a lag, meets at layer τ of the chain ahead.  Its
# waiting time is τ − lag, the number of layers after the coupling began.


def _excess_means(
    waited: NDArray[np.int64], lag: int, depth: int
) -> tuple[Float64Array, Float64Array]:
    """Return the means of J_l = max(0, ⌈(waiting time − l)/lag⌉), which bound the distance.

    Parameters
    ----------
    waited : (chains,) ndarray of int
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
) -> Float64Array:
    """Return intervals for the means of min(J_l, lags), whatever the law of the waiting times.

    min(J_l, lags)/lags is in [0, 1], so `bounded_mean_interval` applies.  The ends do not increase
    with l.

    Parameters
    ----------
    waited, lag, depth
        As in `_excess_means`.
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
) -> tuple[Float64Array, Float64Array, float]:
    """Return the shares of pairs whose waiting time exceeds each layer from 0 to `depth`.

    Returns
    -------
    share : (depth + 1,) ndarray of float64
    ci : (depth + 1, 2) ndarray of float64
        Clopper–Pearson intervals, for each layer separately.
    band : float
        Half width of a simultaneous band (Dvoretzky, Kiefer and Wolfowitz; Massart's constant).
    """
    chains = len(waited)
    layers = np.arange(depth + 1)
    share = 1.0 - np.searchsorted(np.sort(waited), layers, side="right") / chains
    ci = clopper_pearson(np.rint(share * chains), chains, level)
    return share, ci, math.sqrt(math.log(2.0 / (1.0 - level)) / (2.0 * chains))


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
