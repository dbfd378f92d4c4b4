"""Pictures of runs: observables against depth."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from bnmc._support.arguments import choice, real
from bnmc.errors import ArgumentError, ArgumentTypeError
from bnmc.gram import distance, eigenvalues, orthogonality_gap
from bnmc.plot.axes import figure, label_layers, plain_ticks
from bnmc.plot.protocols import Run, about_chain, as_run, fixed_gram, is_run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["LABELS", "overview", "trajectory"]

#: Labels of the vertical axis by observable.
LABELS = {
    "distance": r"$\|G_\ell - G_*\|_F$",
    "eigenvalues": r"eigenvalues of $G_\ell$",
    "log_scale": r"log scale of $G_\ell$",
    "orthogonality_gap": "orthogonality gap",
    "rank_bound": "lower bound of the rank",
    "soft_rank": "soft rank",
}

#: Observables with a logarithmic axis.
_LOGARITHMIC = ("distance", "orthogonality_gap")


def trajectory(
    runs: Run | Iterable[Run] | Mapping[str, Run],
    observable: Any = "distance",
    *,
    star: Any = None,
    ax: Axes | None = None,
    level: float = 0.9,
) -> Axes:
    r"""Draw an observable against depth: its mean over chains, and a band.

    Parameters
    ----------
    runs : Trajectory, iterable of Trajectory, or mapping of labels to Trajectory
        One line per run; for an observable with several components, one line per component. Labels
        go to the legend.
    observable : str, default "distance"
        Name of a recorded observable. A fixed point or a Gram matrix here is `star`.
    star : FixedPoint or (batch, batch) array_like, optional
        A Gram matrix :math:`G_*`. If given, the distance :math:`\|G_l - G_*\|_F` of the recorded
        Gram matrices from it is drawn.
    ax : matplotlib.axes.Axes, optional
        Axes to draw in. Default: those of a new figure.
    level : float, default 0.9
        Fraction of the chains in the band, in (0, 1). The edges of the band are the quantiles
        (1 ± level)/2. If the run was reduced over chains, the edges are those of a normal law with
        the recorded mean and variance. A single chain has no band.

    Returns
    -------
    matplotlib.axes.Axes
        ``ax.figure.savefig("name.png")`` writes a file.

    Raises
    ------
    MissingExtraError
        If Matplotlib is not installed.
    ArgumentError, ArgumentTypeError
        If `runs` is no run, was reduced over layers or lacks the observable, or if `star` or
        `level` is not allowed.

    Examples
    --------
    >>> from bnmc.plot import trajectory
    >>> import bnmc
    >>> chain = bnmc.Chain(width=300, batch=4)
    >>> run = bnmc.simulate(chain, 20, chains=16, rng=0)
    >>> ax = trajectory(run, bnmc.MeanField(chain).fixed_point())
    >>> ax.get_xlabel(), ax.get_yscale()
    ('layer', 'log')
    """
    named = _named(runs)
    level = real("level", level, above=0.0, below=1.0)
    if star is None and not isinstance(observable, str):
        observable, star = "distance", observable
    if star is not None and observable != "distance":
        raise ArgumentError("observable", observable, "'distance' where star is given")
    for run in named.values():
        if star is None:
            _require_recorded(run, observable)
        elif "gram" not in run.observables:
            raise ArgumentError("runs", "one without 'gram'", "runs that recorded it, for star")
        else:
            star = fixed_gram(star, run)
    curves = {label: _curves(run, observable, star, level) for label, run in named.items()}
    if ax is None:
        ax = figure()[1][0]
        ax.set_title(_title(list(named.values()), level), fontsize="medium")
    spectra = [mean for mean, _, _ in curves.values()] if observable == "eigenvalues" else []
    if observable in _LOGARITHMIC or any(_spans_decades(mean) for mean in spectra):
        ax.set_yscale("log", nonpositive="mask")
    for label, run in named.items():
        _draw(ax, run.layers, *curves[label], label if isinstance(runs, Mapping) else None)
    if ax.get_yscale() == "log":
        _label_plainly(ax)
    label_layers(ax)
    ax.set_ylabel(LABELS.get(observable, observable))
    if isinstance(runs, Mapping):
        ax.legend()
    return ax


def overview(run: Run, star: Any = None, *, level: float = 0.9) -> Figure:
    """Draw the distance from a fixed point and the spectrum of a run against depth.

    Parameters
    ----------
    run : Trajectory
        With the observable "eigenvalues", and with "distance" or else "orthogonality_gap".
    star : FixedPoint or (batch, batch) array_like, optional
        A fixed point. Dashed lines mark its eigenvalues and its orthogonality gap.
    level : float, default 0.9
        Fraction of the chains in the bands, as in `trajectory`.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    MissingExtraError
        If Matplotlib is not installed.
    ArgumentError, ArgumentTypeError
        If `run` is no run or lacks an observable, or if `star` or `level` is not allowed.

    Examples
    --------
    >>> from bnmc.plot import overview
    >>> import bnmc
    >>> run = bnmc.simulate(
    ...     bnmc.Chain(300, 4),
    ...     20,
    ...     chains=16,
    ...     observables=["eigenvalues", "orthogonality_gap"],
    ...     rng=0,
    ... )
    >>> len(overview(run).axes)
    2
    """
    run = as_run("run", run)
    recorded = {*run.observables, *run.moments}
    fixed = None if star is None else fixed_gram(star, run)
    has_distance = "distance" in recorded
    drawn, (left, right) = figure(columns=2)
    trajectory(run, "distance" if has_distance else "orthogonality_gap", ax=left, level=level)
    trajectory(run, "eigenvalues", ax=right, level=level)
    if fixed is not None:
        # The distance of a fixed point from itself, 0, is not on a logarithmic axis.
        if not has_distance:
            _mark(left, [float(orthogonality_gap(fixed))])
        _mark(right, eigenvalues(fixed))
    left.set_title("Distance from G*" if has_distance else "Orthogonality gap")
    right.set_title("Spectrum")
    drawn.suptitle(_title([run], level))
    return drawn


def _title(runs: Sequence[Run], level: float) -> str:
    """Return a title: the chain, if all runs have the same, and the meaning of line and band."""
    numbers = sorted({run.chains for run in runs})
    shown = f"mean and {100 * level:g} % of {' or '.join(map(str, numbers))} networks"
    if numbers == [1]:  # a single network has no band
        shown = "1 network"
    chain = runs[0].chain
    if any(run.chain != chain for run in runs):
        return shown[0].upper() + shown[1:]
    return f"{about_chain(chain)}: {shown}"


def _named(runs: Any) -> dict[Any, Run]:
    """Return runs by label, or by number if they have no labels."""
    allowed = "a Trajectory, several, or a mapping to them"
    if isinstance(runs, Mapping):
        given = dict(runs)
    elif is_run(runs):
        given = {0: runs}
    elif isinstance(runs, Iterable):
        given = dict(enumerate(runs))
    else:
        raise ArgumentTypeError("runs", runs, allowed)
    named = {}
    for label, one in given.items():
        run = named[label] = as_run("runs", one, allowed)
        if any("layer" not in axes for axes in run.dims.values()):
            raise ArgumentError("runs", "one with reduce='layer'", "runs with values by layer")
    if not named:
        raise ArgumentError("runs", runs, "at least one run")
    return named


def _require_recorded(run: Run, observable: str) -> None:
    """Raise if an observable was not recorded; for "distance", with a hint at `star`."""
    recorded = [*run.observables, *run.moments]
    if observable == "distance" and "gram" in run.observables and observable not in recorded:
        hint = "star=bnmc.MeanField(run.chain).fixed_point().gram draws it from 'gram'"
        raise ArgumentError("observable", observable, ", ".join(recorded), hint)
    choice("observable", observable, recorded)


def _spans_decades(mean: NDArray[np.float64]) -> bool:
    """Whether eigenvalues differ by a factor above 1000, apart from those at rounding level."""
    largest = mean.max(axis=-1, keepdims=True)
    above = mean[mean > 4 * mean.shape[-1] * np.finfo(np.float64).eps * largest]
    return bool(above.size and above.max() > 1000 * above.min())


def _mark(ax: Axes, heights: ArrayLike) -> None:
    """Draw dashed horizontal lines at the heights that the axis can show."""
    for height in np.unique(np.round(np.asarray(heights, dtype=np.float64), 12)):
        if height > 0 or ax.get_yscale() == "linear":
            ax.axhline(height, color="black", linestyle="--", linewidth=1.0)


def _curves(
    run: Run, observable: str, star: ArrayLike | None, level: float
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return the mean, the lower and the upper edge of the band, each (layers, components)."""
    if star is None and observable in run.moments:
        moments = run.moments[observable]
        reach = ndtri((1 + level) / 2) * np.sqrt(moments.variance)
        curves = moments.mean, moments.mean - reach, moments.mean + reach
    else:
        values = run.observables["gram" if star is not None else observable]
        if star is not None:
            values = distance(values, star)
        edges = np.quantile(values, [(1 - level) / 2, (1 + level) / 2], axis=0)
        curves = values.mean(axis=0), edges[0], edges[1]
    mean, low, high = (curve.reshape(len(run.layers), -1) for curve in curves)
    return mean, low, high


def _draw(
    ax: Axes,
    layers: NDArray[np.int64],
    mean: NDArray[np.float64],
    low: NDArray[np.float64],
    high: NDArray[np.float64],
    label: str | None,
) -> None:
    """Draw the components of one run in one colour."""
    colour: Any = None
    if ax.get_yscale() == "log":  # a logarithmic axis shows positive numbers only
        mean, low, high = (np.where(curve > 0, curve, np.nan) for curve in (mean, low, high))
    for component in range(mean.shape[1]):
        (line,) = ax.plot(
            layers, mean[:, component], color=colour, label=label if colour is None else None
        )
        colour = line.get_color()
        if (high > low).any():
            ax.fill_between(
                layers, low[:, component], high[:, component], color=colour, alpha=0.2, linewidth=0
            )


def _label_plainly(ax: Axes) -> None:
    """Write 0.1, 0.2, 0.5 … instead of 6 × 10⁻¹ if a logarithmic axis spans below 3 decades."""
    low, high = ax.get_ylim()
    if high < 1000 * low:
        plain_ticks(ax.yaxis)
