"""`compare`: all estimates of the rate of a chain in one table, with the rate of the mean field."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from bnmc._support.arguments import Float64Array, choice, draw_key, integer, real
from bnmc._support.interruption import Stop
from bnmc._support.progress import Progress
from bnmc._support.text import Result, plain, text_table, wrapped
from bnmc._support.workers import Parallel
from bnmc.chain.chain import Chain
from bnmc.chain.needs import STATIONARY, TWO_SAMPLES, require
from bnmc.errors import ArgumentError, BnmcError, NotMixing
from bnmc.mean_field.correlation.correlation_map import CorrelationMap
from bnmc.mean_field.field import MeanField
from bnmc.mixing.autocorrelation_time import autocorrelation
from bnmc.mixing.contraction_rate import contraction
from bnmc.mixing.implied_timescales import spectral
from bnmc.mixing.meeting_bound import tv_bound
from bnmc.mixing.observed import contrast, slowest_component
from bnmc.mixing.rate import RateEstimate, timescale
from bnmc.mixing.relaxation_curve import relaxation
from bnmc.plot.drawn import Drawn
from bnmc.simulation.observables import Observable
from bnmc.simulation.run import simulate
from bnmc.simulation.trajectory import Trajectory

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Recorded layers of the stationary run: in integrated autocorrelation times, and the minimum.
_RUN_TIMES, _LEAST_LAYERS = 75.0, 200

#: Burn-in of the stationary run, and depth of the relaxation, in timescales.
_BURN_IN_TIMES, _RELAXATION_TIMES = 12.0, 8.0

#: Numbers of chains of `compare` by default, and the least ones.
_CHAINS = {"contraction": (32, 2), "tv_bound": (500, 2), "runs": (50, 5)}

#: Chains of the relaxation per chain of the stationary run: it is short and its signal weak.
_RELAXATION_CHAINS = 4

#: Assumed timescale if neither the mean field nor coupled pairs give one.
_TIMESCALE_UNKNOWN = 10.0

#: Size, at most 1, of the departure of the first layer of the relaxation from i.i.d. samples.
_DEPARTURE = 0.9

#: The estimators that read a run.
_FROM_RUNS = ("autocorrelation", "spectral", "relaxation")


@dataclass(frozen=True)
class ComparisonRow(Result):
    """One line of a `Comparison`.

    Attributes
    ----------
    name : str
        Name of the estimator, or "mean field".
    estimate : RateEstimate or None
        The estimate; None if there is none.
    note : str
        The reason why there is no estimate, or what limits it; otherwise empty.

    Examples
    --------
    >>> from bnmc.mixing import ComparisonRow
    >>> row = ComparisonRow("relaxation", None, "too few layers above the noise")
    >>> row.estimate is None, row.note
    (True, 'too few layers above the noise')
    """

    name: str
    estimate: RateEstimate | None
    note: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return name and note, and the fields of the estimate if there is one."""
        estimate = {} if self.estimate is None else self.estimate.as_json()
        return {"name": self.name, "note": self.note, **estimate}


@dataclass(frozen=True)
class Comparison(Drawn, Result):
    """Estimates of the rate of one chain; ``print`` shows a table.

    `plot` draws the rates with their intervals, and a line at the rate of the mean field.

    Attributes
    ----------
    chain : Chain
    rows : tuple of ComparisonRow
        The mean field first, then one row per estimator.
    level : float
        Level of the intervals.
    key : int
        The 64-bit key of all random numbers: as `rng` it repeats the call.

    Examples
    --------
    >>> import bnmc
    >>> found = bnmc.mixing.compare(bnmc.Chain(width=1000, batch=5, activation="relu"), rng=0)
    >>> round(found["mean field"].rate, 4), len(found.rows)
    (0.6097, 6)
    """

    chain: Chain
    rows: tuple[ComparisonRow, ...]
    level: float
    key: int = field(repr=False)

    def __getitem__(self, name: str) -> RateEstimate:
        """Return the estimate of a row by its name; raise `KeyError` if there is none."""
        rows = {row.name: row for row in self.rows}
        if name not in rows:
            raise KeyError(f"{name!r} is none of {', '.join(map(repr, rows))}")
        estimate = rows[name].estimate
        if estimate is None:
            raise KeyError(f"{name!r} has no estimate: {rows[name].note}")
        return estimate

    def to_dict(self) -> dict[str, Any]:
        """Return the table as strings, numbers, lists and dicts, for `json.dumps`."""
        return plain(self)

    def __str__(self) -> str:
        interval = f"{100 * self.level:g} % interval"
        heads = (
            "estimator",
            "rate",
            "std. error",
            interval,
            "timescale, layers",
            "pairs or chains",
        )
        table = text_table(heads, [_cells(row) for row in self.rows])
        notes = [wrapped(f"{row.name}: {row.note}") for row in self.rows if row.note]
        return "\n".join([wrapped(f"Rate per layer of {self.chain}"), table, *notes])

    def _draw(self, ax: Axes) -> None:
        """Draw the rates with their intervals, and a line at the rate of the mean field."""
        from bnmc.plot.axes import COLOURS, about_chain

        names: list[str] = []
        for name, estimate in ((row.name, row.estimate) for row in self.rows if row.estimate):
            if name == "mean field":
                ax.axvline(estimate.rate, color=COLOURS[1], label="mean field")
                continue
            low, high = estimate.ci
            error = [[estimate.rate - low], [high - estimate.rate]]
            ax.errorbar([estimate.rate], [len(names)], xerr=error, fmt="o", color=COLOURS[0])
            names.append(name)
        ax.set_yticks(range(len(names)), names)
        ax.invert_yaxis()
        ax.set_xlabel(f"factor per layer, with {100 * self.level:g} % intervals")
        ax.set_ylabel("estimator")
        ax.set_title(about_chain(self.chain), fontsize="medium")
        if ax.get_legend_handles_labels()[0]:
            ax.legend()


def compare(
    chain: Chain,
    *,
    chains: int | Mapping[str, int] | None = None,
    level: float = 0.95,
    max_layers: int = 4000,
    rng: Any = None,
    threads: int | None = None,
    executor: Executor | None = None,
    timeout: float | None = None,
    progress: bool | Progress = False,
) -> Comparison:
    r"""Estimate the rate of a chain by all estimators, beside the rate of the mean field.

    Parameters
    ----------
    chain : Chain
        With a norm and batch >= 2. The rows of `contraction` and
        `tv_bound` also need Gaussian weights and no skip connection.
    chains : int or dict, optional
        Number of pairs of `contraction` and of `tv_bound`, and of chains of the stationary run that
        the other estimators read, >= 5; the relaxation has four times as many.  A dict names them:
        ``{"contraction": 32, "tv_bound": 500, "runs": 50}`` is the default, and the least numbers
        are 2, 2 and 5.
    level : float, default 0.95
        Level of the intervals, in (0, 1).
    max_layers : int, default 4000
        Number of layers after which a coupled pair is given up.
    rng : optional
        Anything `numpy.random.default_rng` takes (SPEC 7), from which one 64-bit key is drawn, or
        the ``key`` of a result.
    threads, executor, progress
        As in `tv_bound`; each run reports its own progress.
    timeout : float, optional
        Seconds, > 0, after which no estimator begins, and runs end with the layers that are
        finished.  Coupled pairs that have begun are finished: those that have met by then are the
        fast ones.  If an estimator has too few layers, its row says so.

    Returns
    -------
    Comparison

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For an argument that is not allowed.  If an estimator raises an error about the chain or
        its data, the message is the note of its row.

    Notes
    -----
    ================= ==============================================================================
    mean field        modulus of the leading eigenvalue of the Jacobian at the fixed point: the rate
                      at infinite width; for norms over the features, that of the correlation map
    contraction       two chains under common normals, top Lyapunov exponent
    tv_bound          tail of the meeting times of coupled chains just beyond their median: larger
                      than the rate of the chain if maximal couplings fail, and smaller if pairs
                      meet within a few layers
    autocorrelation   integrated time of a component of G along a stationary run
    spectral          implied timescale of the same component (VAMP)
    relaxation        decay of its mean from a batch in which it is large; a note if no other method
                      finds a rate, since the mean may decay while no chain converges
    ================= ==============================================================================

    The component is ⟨D, G⟩ for a fixed matrix D that is orthogonal to all matrices G* that
    permutations of the batch leave unchanged.  Its stationary mean is 0.  For norm "batch", and for
    norms over the features, it decays by the leading eigenvalue alone.  An observable to which
    several modes contribute, or a quadratic one, has another rate; one to which the slowest mode
    does not contribute has a smaller rate.

    Examples
    --------
    >>> import bnmc
    >>> table = bnmc.mixing.compare(bnmc.Chain(width=1000, batch=5, activation="relu"), rng=0)
    >>> [row.name for row in table.rows if row.estimate is None]
    []
    >>> abs(table["contraction"].rate - table["mean field"].rate) < 0.02
    True
    """
    require(chain, (*STATIONARY, TWO_SAMPLES))
    numbers = _numbers_of_chains({} if chains is None else chains)
    level = real("level", level, above=0.0, below=1.0)
    max_layers = integer("max_layers", max_layers, low=1)
    parallel = Parallel.of(threads, executor, progress, timeout)
    stop = parallel.stop
    chain.activation.check()
    key = draw_key(rng)
    seeds = np.random.SeedSequence(key).spawn(5)

    shared: dict[str, Any] = {
        "level": level, "max_layers": max_layers, **parallel.options
    }  # fmt: skip
    rows = [
        _row("mean field", lambda: _of_mean_field(chain)),
        _row("contraction", lambda: contraction(
            chain, chains=numbers["contraction"], rng=seeds[0], **shared
        ), stop),
        _row("tv_bound", lambda: tv_bound(
            chain, 0, chains=numbers["tv_bound"], rng=seeds[1], **shared
        ), stop),
    ]  # fmt: skip
    rate = max((row.estimate.rate for row in rows[:2] if row.estimate), default=math.nan)
    memory = _TIMESCALE_UNKNOWN if math.isnan(rate) else timescale(rate)
    try:
        stationary, approach = _runs(chain, numbers["runs"], memory, seeds[2:], parallel)
    except BnmcError as error:
        rows += [ComparisonRow(name, None, str(error)) for name in _FROM_RUNS]
    else:
        estimators = (
            lambda: autocorrelation(_values(stationary, stop), level=level),
            lambda: spectral(_values(stationary, stop), [1, 2, 4], level=level),
            lambda: relaxation(_values(approach, stop), 0.0, level=level),
        )
        rows += map(_row, _FROM_RUNS, estimators)
    decay = rows[-1].estimate
    if decay is not None and not any(row.estimate for row in rows[1:-1]):
        # The ensemble mean can converge although single chains keep changing: no rate of mixing.
        note = f"the ensemble mean decays by the factor {decay.rate:.5f} per layer"
        note = f"{note}, but no other method estimates a rate of mixing"
        rows[-1] = ComparisonRow(rows[-1].name, None, note)
    return Comparison(chain, tuple(rows), level, key)


def _numbers_of_chains(chains: int | Mapping[str, int]) -> dict[str, int]:
    """Return the numbers of chains by name: one for all, or those of a mapping."""
    if not isinstance(chains, Mapping):
        return dict.fromkeys(_CHAINS, integer("chains", chains, low=_CHAINS["runs"][1]))
    given = {choice("chains", name, tuple(_CHAINS)): number for name, number in chains.items()}
    return {
        name: integer("chains", given.get(name, usual), low=least)
        for name, (usual, least) in _CHAINS.items()
    }


def _row(name: str, estimate: Callable[[], Any], stop: Stop | None = None) -> ComparisonRow:
    """Return the row of an estimator, with the error as a note if it raises one.

    Known absorbing states are a note too, and that the time limit is over.
    """
    try:
        if stop is not None and stop():
            raise stop.error("the estimator does not begin")
        result = estimate()
    except BnmcError as error:
        return ComparisonRow(name, None, str(error))
    note = ""
    if events := getattr(result, "absorbing_events", ()):
        described = " ".join(event.description for event in events)
        note = f"rate of the {result.law} law, as there are absorbing states. {described}"
    return ComparisonRow(name, result.rate_estimate, note)


def _runs(
    chain: Chain,
    chains: int,
    memory: float,
    seeds: Sequence[np.random.SeedSequence],
    parallel: Parallel,
) -> tuple[Trajectory, Trajectory]:
    """Return a stationary run with the component, and one from a batch where it is large.

    `memory` is the expected timescale.
    """
    # The integrated time is (1 + ρ)/(1 − ρ) = coth(1/2T) for a timescale T.
    layers = max(_LEAST_LAYERS, math.ceil(_RUN_TIMES * max(1.0, 2.0 * memory)))
    burn_in = math.ceil(_BURN_IN_TIMES * memory) + 5
    component = _component(chain)
    shared: dict[str, Any] = {
        "observables": [Observable(partial(np.vdot, component), name="component")],
        **parallel.options,
    }
    stationary = simulate(
        chain, burn_in + layers, chains=chains, burn_in=burn_in, rng=seeds[0],
        timeout=parallel.stop.seconds_left, **shared,
    )  # fmt: skip
    start = _atypical_batch(chain, component, np.random.default_rng(seeds[1]))
    depth, more = math.ceil(_RELAXATION_TIMES * memory) + 6, _RELAXATION_CHAINS * chains
    approach = simulate(
        chain, depth, chains=more, initial=start, rng=seeds[2],
        timeout=parallel.stop.seconds_left, **shared,
    )  # fmt: skip
    return stationary, approach


def _values(run: Trajectory, stop: Stop) -> Float64Array:
    """Return the component along a run, or raise if the time limit left no layer."""
    if not run.layers.size:
        raise stop.error("no layer after the burn-in is finished")
    return run["component"]


def _of_mean_field(chain: Chain) -> RateEstimate:
    """Return the rate at infinite width, or raise if it is not below 1."""
    if chain.normalization.acts_on_rows or chain.skip != 0.0 or chain.convolution is not None:
        rate = MeanField(chain).fixed_point().rate
    else:
        phase = CorrelationMap.of(chain).phase()
        rate = max(abs(phase.variance_rate), abs(phase.correlation_rate))
    if rate >= 1.0:
        raise NotMixing(f"unstable: deviations grow by a factor of {rate:.4g} per layer", None,
                        math.log(rate), math.nan)  # fmt: skip
    return RateEstimate(rate, 0.0, (rate, rate), 1, "mean field")


def _component(chain: Chain) -> Float64Array:
    """Return D of unit norm such that ⟨D, G⟩ decays by the slowest eigenvalue and has mean 0.

    Raises
    ------
    ArgumentError
        If no such component is known.
    """
    n = chain.batch
    D = np.zeros((n, n))
    if not chain.normalization.acts_on_rows:
        # The map acts on pairs of samples; the next diagonal does not depend on this one.
        if n == 2:
            hint = "the correlation of two samples is no component of mean 0"
            raise ArgumentError("batch", n, f"at least 3 for norm={chain.norm!r}", hint)
        D[0, 1:3] = D[1:3, 0] = 0.5, -0.5
        return D
    if chain.normalization.hides_common_part:
        with suppress(BnmcError):
            point = MeanField(chain).fixed_point()
            if point.rate:
                return slowest_component(point, chain.convolution)
        if n > 2:
            return contrast(n, 0)
    D[0, 0], D[1, 1] = 0.5**0.5, -(0.5**0.5)
    return D


def _atypical_batch(
    chain: Chain, component: Float64Array, rng: np.random.Generator
) -> Float64Array:
    """Return a batch whose samples have covariance I + s D, so that ⟨D, G⟩ is large."""
    values, vectors = np.linalg.eigh(component)
    scale = _DEPARTURE / np.abs(values).max()
    root = (vectors * np.sqrt(1.0 + scale * values)) @ vectors.T
    return rng.standard_normal((chain.width, chain.batch)) @ root


def _cells(row: ComparisonRow) -> tuple[str, ...]:
    """Return the cells of a row of the table; exact values have neither error nor count."""
    estimate = row.estimate
    if estimate is None:
        return row.name, "none", "", "", "", ""
    low, high = estimate.ci
    return (
        row.name,
        f"{estimate.rate:.5f}",
        f"{estimate.stderr:.1g}" if estimate.stderr else "",
        f"[{low:.5f}, {high:.5f}]" if high > low else "",
        f"{estimate.timescale:.4g}",
        str(estimate.n) if estimate.stderr else "",
    )
