"""`compare`: every estimate of a chain's rate side by side, and the mean field's value."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bnmc._support.arguments import integer, real
from bnmc._support.keys import draw_key
from bnmc._support.progress import Progress, as_progress
from bnmc._support.workers import as_executor
from bnmc.chain.chain import Chain
from bnmc.errors import ArgumentError, ArgumentTypeError, BnmcError
from bnmc.mean_field import MeanField
from bnmc.mixing._series import contrast
from bnmc.mixing.autocorrelation_time import autocorrelation
from bnmc.mixing.contraction_rate import contraction
from bnmc.mixing.coupling import tv_bound
from bnmc.mixing.implied_timescales import spectral
from bnmc.mixing.rate import RateEstimate, timescale
from bnmc.mixing.relaxation_curve import relaxation
from bnmc.simulation.observables import Observable
from bnmc.simulation.run import simulate

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Comparison", "ComparisonRow", "compare"]

#: Recorded layers of the stationary run, in integrated autocorrelation times, and at least.
RUN_TIMES, LEAST_LAYERS = 75.0, 200

#: Layers before it, and those of the relaxation, in timescales.
BURN_IN_TIMES, RELAXATION_TIMES = 12.0, 8.0

#: Chains of the relaxation for each of the stationary run: it is short, and its signal weak.
RELAXATION_CHAINS = 4

#: The timescale that the runs are planned by where neither theory nor coupled pairs know one.
TIMESCALE_UNKNOWN = 10.0

#: By how much, at most 1, the start of the relaxation is away from a batch like any other.
CONTRAST = 0.9


@dataclass(frozen=True)
class ComparisonRow:
    """One line of a `Comparison`.

    Attributes
    ----------
    name : str
        Name of the estimator, or "mean field".
    estimate : RateEstimate or None
        What it found; None where it found nothing.
    note : str
        Why there is no estimate; else empty.
    """

    name: str
    estimate: RateEstimate | None
    note: str = ""


@dataclass(frozen=True)
class Comparison:
    """Estimates of one chain's rate; ``print`` shows them as a table.

    Attributes
    ----------
    chain : Chain
    rows : tuple of ComparisonRow
        The mean field first, then one for each estimator.
    level : float
        Level of the intervals.
    key : int
        The 64-bit key of all random numbers.
    """

    chain: Chain
    rows: tuple[ComparisonRow, ...]
    level: float
    key: int = field(repr=False)

    def __getitem__(self, name: str) -> RateEstimate:
        """Return the estimate of a row by its name."""
        found = {row.name: row for row in self.rows}
        if name not in found:
            raise KeyError(f"{name!r} is none of {', '.join(map(repr, found))}")
        estimate = found[name].estimate
        if estimate is None:
            raise KeyError(f"{name!r} has no estimate: {found[name].note}")
        return estimate

    def to_dict(self) -> dict[str, Any]:
        """Return the table as strings, numbers, lists and dicts, which `json.dumps` takes."""
        rows = []
        for row in self.rows:
            entry: dict[str, Any] = {"name": row.name, "note": row.note}
            if row.estimate is not None:
                found = row.estimate
                entry |= {"rate": found.rate, "stderr": found.stderr, "ci": list(found.ci)}
                entry |= {"timescale": found.timescale, "n": found.n}
            rows.append(entry)
        return {"chain": repr(self.chain), "level": self.level, "key": self.key, "rows": rows}

    def __str__(self) -> str:
        head = ("estimator", "rate", "stderr", f"{100 * self.level:g} % interval", "timescale", "n")
        lines = [head, *(_cells(row) for row in self.rows)]
        widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
        text = [
            "  ".join(
                [line[0].ljust(widths[0])]
                + [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
            ).rstrip()
            for line in lines
        ]
        notes = [f"{row.name}: {row.note}" for row in self.rows if row.note]
        return "\n".join([f"Rate of {self.chain}, a layer", *text, *notes])

    def plot(self, *, ax: Axes | None = None) -> Axes:
        """Draw the rates with their intervals, and a line at the mean field's.

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
        from bnmc.plot.axes import COLOURS, figure

        if ax is None:
            ax = figure()[1][0]
        names: list[str] = []
        for row in self.rows:
            if row.estimate is None:
                continue
            found = row.estimate
            if row.name == "mean field":
                ax.axvline(found.rate, color=COLOURS[1], label="mean field")
                continue
            low, high = found.ci
            error = [[found.rate - low], [high - found.rate]]
            ax.errorbar([found.rate], [len(names)], xerr=error, fmt="o", color=COLOURS[0])
            names.append(row.name)
        ax.set_yticks(range(len(names)), names)
        ax.invert_yaxis()
        ax.set_xlabel(f"factor per layer, with {100 * self.level:g} % intervals")
        ax.set_ylabel("estimator")
        ax.set_title(str(self.chain), fontsize="medium")
        if ax.get_legend_handles_labels()[0]:
            ax.legend()
        return ax


def compare(
    chain: Chain,
    *,
    pairs: int = 32,
    replicates: int = 500,
    chains: int = 50,
    level: float = 0.95,
    max_layers: int = 4000,
    rng: Any = None,
    executor: Executor | None = None,
    progress: bool | Progress = False,
) -> Comparison:
    r"""Estimate how fast a chain forgets in every way there is, beside the mean field's rate.

    Parameters
    ----------
    chain : Chain
        With norm "batch" or "batch-uncentred" and batch >= 2. The rows of `contraction` and
        `tv_bound` also need Gaussian weights and no skip connection.
    pairs, replicates : int, default 32 and 500
        Pairs of `contraction`, and of `tv_bound`.
    chains : int, default 50
        Chains of the stationary run, and a quarter of those of the relaxation, >= 5.
    level : float, default 0.95
        Level of the intervals, in (0, 1).
    max_layers : int, default 4000
        Layers after which a coupled pair is given up.
    rng : optional
        Anything `numpy.random.default_rng` takes (SPEC 7). One 64-bit key is drawn from it.
    executor, progress
        As in `tv_bound`; the progress of each run is reported on its own.

    Returns
    -------
    Comparison

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For an argument that is not allowed. What an estimator finds wanting in the chain or in its
        data is no error here, but the note of its row.

    Notes
    -----
    ================= ==============================================================================
    mean field        modulus of the leading eigenvalue of the Jacobian at the fixed point: the rate
                      at infinite width
    contraction       two chains under common normals, top Lyapunov exponent
    tv_bound          tail of the meeting times of coupled chains, never below the rate of the
                      chain: a pair may miss its chance to meet
    autocorrelation   integrated time of a component of G along a stationary run
    spectral          implied timescale of the same component (VAMP)
    relaxation        decay of its mean from a batch that stands out in it
    ================= ==============================================================================

    The component is one that permutations of the batch move, ⟨D, G⟩ for a fixed matrix D that is
    orthogonal to all symmetric G*; for norm "batch" it follows the leading eigenvalue alone. Its
    stationary mean is 0. An observable that sees a slow mode only in part, or squares, has another
    rate; a component that sees none of the slowest mode a smaller one.

    Examples
    --------
    >>> import bnmc
    >>> table = bnmc.mixing.compare(bnmc.Chain(width=1000, batch=5, activation="relu"), rng=0)
    >>> [row.name for row in table.rows if row.estimate is None]
    []
    >>> abs(table["contraction"].rate - table["mean field"].rate) < 0.02
    True
    """
    if not isinstance(chain, Chain):
        raise ArgumentTypeError("chain", chain, "a bnmc.Chain")
    if chain.norm == "none":
        allowed = '"batch" or "batch-uncentred": without normalization there is no invariant law'
        raise ArgumentError("norm", chain.norm, allowed)
    if chain.batch < 2:
        raise ArgumentError("batch", chain.batch, "an integer >= 2", "one sample is no chain")
    pairs = integer("pairs", pairs, low=2)
    replicates = integer("replicates", replicates, low=2)
    chains = integer("chains", chains, low=5)
    level = real("level", level, above=0.0, below=1.0)
    max_layers = integer("max_layers", max_layers, low=1)
    executor, progress = as_executor(executor), as_progress(progress)
    chain.activation.check()
    key = draw_key(rng)
    seeds = np.random.SeedSequence(key).spawn(5)

    rows = [_mean_field(chain)]

    def attempt(name: str, estimate: Callable[[], RateEstimate]) -> None:
        try:
            rows.append(ComparisonRow(name, estimate()))
        except BnmcError as error:
            rows.append(ComparisonRow(name, None, str(error)))

    attempt(
        "contraction",
        lambda: contraction(
            chain, pairs=pairs, level=level, max_layers=max_layers, rng=seeds[0],
            executor=executor, progress=progress,
        ).rate_estimate,
    )  # fmt: skip
    attempt(
        "tv_bound",
        lambda: tv_bound(
            chain, 0, replicates=replicates, level=level, max_layers=max_layers, rng=seeds[1],
            executor=executor, progress=progress,
        ).rate_estimate,
    )  # fmt: skip

    component = _component(chain)
    observable = Observable(lambda G: np.vdot(component, G), name="component")
    rate = max((row.estimate.rate for row in rows[:2] if row.estimate), default=math.nan)
    memory = TIMESCALE_UNKNOWN if math.isnan(rate) else timescale(rate)
    burn_in = math.ceil(BURN_IN_TIMES * memory) + 5
    # The integrated time is (1 + ρ)/(1 − ρ) = coth(1/2T) for a timescale T.
    layers = max(LEAST_LAYERS, math.ceil(RUN_TIMES * max(1.0, 2.0 * memory)))
    try:
        run = simulate(
            chain, burn_in + layers, chains=chains, burn_in=burn_in, observables=[observable],
            rng=seeds[2], progress=progress,
        )  # fmt: skip
        values = run["component"]
        start = simulate(
            chain, math.ceil(RELAXATION_TIMES * memory) + 6, chains=RELAXATION_CHAINS * chains,
            initial=_standing_out(chain, component, np.random.default_rng(seeds[3])),
            observables=[observable], rng=seeds[4], progress=progress,
        )["component"]  # fmt: skip
    except BnmcError as error:
        lost = [ComparisonRow(name, None, str(error)) for name in _FROM_RUNS]
        return Comparison(chain, (*rows, *lost), level, key)
    estimates: tuple[Callable[[], RateEstimate], ...] = (
        lambda: autocorrelation(values, level=level),
        lambda: spectral(values, [1, 2, 4], level=level),
        lambda: relaxation(start, 0.0, level=level),
    )
    for name, estimate in zip(_FROM_RUNS, estimates, strict=True):
        attempt(name, estimate)
    return Comparison(chain, tuple(rows), level, key)


_FROM_RUNS = ("autocorrelation", "spectral", "relaxation")


def _mean_field(chain: Chain) -> ComparisonRow:
    try:
        rate = MeanField(chain).fixed_point().rate
    except BnmcError as error:
        return ComparisonRow("mean field", None, str(error))
    if rate >= 1.0:
        note = f"unstable: deviations grow by a factor of {rate:.4g} a layer"
        return ComparisonRow("mean field", None, note)
    return ComparisonRow("mean field", RateEstimate(rate, 0.0, (rate, rate), 1, "mean field"))


def _component(chain: Chain) -> NDArray[np.float64]:
    """Return D of unit norm whose ⟨D, G⟩ the slowest eigenvalue rules, and is 0 at symmetric G."""
    n = chain.batch
    if chain.norm == "batch":
        try:
            eigenvalues = MeanField(chain).fixed_point().eigenvalues
        except BnmcError:
            eigenvalues = ()
        if eigenvalues:
            return contrast(n, int(np.argmax(np.abs(eigenvalues))))
        if n > 2:
            return contrast(n, 0)
    D = np.zeros((n, n))
    D[0, 0], D[1, 1] = 0.5**0.5, -(0.5**0.5)
    return D


def _standing_out(
    chain: Chain, component: NDArray[np.float64], rng: np.random.Generator
) -> NDArray[np.float64]:
    """Return a batch whose samples have covariance I + s D, and so stand out in ⟨D, G⟩."""
    values, vectors = np.linalg.eigh(component)
    scale = CONTRAST / np.abs(values).max()
    root = (vectors * np.sqrt(1.0 + scale * values)) @ vectors.T
    x: NDArray[np.float64] = rng.standard_normal((chain.width, chain.batch)) @ root
    return x


def _cells(row: ComparisonRow) -> tuple[str, ...]:
    found = row.estimate
    if found is None:
        return row.name, "none", "", "", "", ""
    low, high = found.ci
    return (
        row.name,
        f"{found.rate:.5f}",
        f"{found.stderr:.1g}" if found.stderr else "",
        f"[{low:.5f}, {high:.5f}]" if high > low else "",
        f"{found.timescale:.4g}",
        str(found.n) if found.stderr else "",
    )
