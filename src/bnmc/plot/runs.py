"""Pictures of runs; needs the extra ``plot``.

Figures are made with Matplotlib's object-oriented interface: no window opens, no global state
changes, and they can be drawn in any thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from bnmc import gram as grams
from bnmc._support.arguments import choice, finite_array, integer, real
from bnmc.chain.chain import Chain
from bnmc.errors import ArgumentError, ArgumentTypeError
from bnmc.plot.axes import COLOURS, figure, plain_ticks
from bnmc.simulation.trajectory import Trajectory

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["LABELS", "overview", "spectrum", "trajectory"]

#: What the vertical axis says of an observable.
LABELS = {
    "distance": r"$\|G_\ell - G_*\|_F$",
    "eigenvalues": r"eigenvalues of $G_\ell$",
    "log_scale": r"log scale of $G_\ell$",
    "orthogonality_gap": "orthogonality gap",
    "rank_bound": "lower bound of the rank",
    "soft_rank": "soft rank",
}


_LOGARITHMIC = ("distance", "orthogonality_gap")


def trajectory(
    runs: Trajectory | Iterable[Trajectory] | Mapping[str, Trajectory],
    observable: str = "distance",
    *,
    star: ArrayLike | None = None,
    ax: Axes | None = None,
    level: float = 0.9,
) -> Axes:
    r"""Draw an observable against depth: its mean over chains, in a band of the chains.

    Parameters
    ----------
    runs : Trajectory, several of them, or a mapping of labels to them
        One line each, or one for each component of an observable that is no number.  Labels go
        to the legend.
    observable : str, default "distance"
        What to draw, by the name under which it was recorded.
    star : (batch, batch) array_like, optional
        Draw the distance :math:`\|G_l - G_*\|_F` of the recorded Gram matrices from this one.
    ax : matplotlib.axes.Axes, optional
        Where to draw; a new figure unless given.
    level : float, default 0.9
        The band holds this part of the chains, in (0, 1): between the quantiles (1 ± level)/2.
        Of a run with ``reduce="chain"`` only moments are known, and the band is that of a normal
        law with these.  There is none for a single chain.

    Returns
    -------
    matplotlib.axes.Axes
        ``ax.figure.savefig("name.png")`` makes a file.

    Raises
    ------
    MissingExtraError
        Without Matplotlib.
    ArgumentError, ArgumentTypeError
        If `runs` are no runs, were reduced over layers or lack the observable, or `star` or
        `level` is not allowed.

    Examples
    --------
    >>> import bnmc
    >>> chain = bnmc.Chain(width=300, batch=4)
    >>> run = bnmc.simulate(chain, 20, chains=16, rng=0)
    >>> ax = trajectory(run, star=bnmc.MeanField(chain).fixed_point().gram)
    >>> ax.get_xlabel(), ax.get_yscale()
    ('layer', 'log')
    """
    named = _named(runs)
    level = real("level", level, above=0.0, below=1.0)
    if star is not None and observable != "distance":
        raise ArgumentError("observable", observable, "'distance' where star is given")
    for run in named.values():
        if star is None:
            _require_recorded(run, observable)
        elif "gram" not in run.observables:
            raise ArgumentError("runs", "one without 'gram'", "runs that recorded it, for star")
        else:
            star = _star(star, run)
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
    ax.set_xlabel("layer")
    ax.set_ylabel(LABELS.get(observable, observable))
    if isinstance(runs, Mapping):
        ax.legend()
    return ax


def overview(run: Trajectory, star: Any = None, *, level: float = 0.9) -> Figure:
    """Draw what the command line records: how the Gram matrix settles, and its spectrum.

    Parameters
    ----------
    run : Trajectory
        With "eigenvalues", and with "distance" or else "orthogonality_gap".
    star : FixedPoint or (batch, batch) array_like, optional
        A fixed point: dashed lines are at its eigenvalues and its orthogonality gap.  Its distance
        from itself, 0, has no place on a logarithmic axis.
    level : float, default 0.9
        See `trajectory`.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    MissingExtraError, ArgumentError
        As `trajectory`.

    Examples
    --------
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
    if not isinstance(run, Trajectory):
        raise ArgumentTypeError("run", run, "a Trajectory")
    recorded = {*run.observables, *run.moments}
    fixed = None if star is None else _star(star, run)
    settling = "distance" if "distance" in recorded else "orthogonality_gap"
    drawn, (left, right) = figure(columns=2)
    trajectory(run, settling, ax=left, level=level)
    trajectory(run, "eigenvalues", ax=right, level=level)
    if fixed is not None:
        if settling == "orthogonality_gap":
            _level(left, [float(grams.orthogonality_gap(fixed))])
        _level(right, grams.eigenvalues(fixed))
    left.set_title("Distance from G*" if settling == "distance" else "Orthogonality gap")
    right.set_title("Spectrum")
    drawn.suptitle(_title([run], level))
    return drawn


def spectrum(run: Trajectory, *, layer: int = -1, star: Any = None, ax: Axes | None = None) -> Axes:
    r"""Draw the spectrum of one layer beside the law of Marchenko and Pastur.

    A histogram of the n − 1 eigenvalues of each Gram matrix on the directions orthogonal to the
    ones, over all chains, and the density of `bnmc.random_matrix.MarchenkoPastur` of ratio
    :math:`\gamma = n/d` and the mean :math:`v` of these eigenvalues,

    .. math:: \frac{\sqrt{(b - x)(x - a)}}{2 \pi v \gamma x}, \qquad a, b = v(1 \mp \sqrt\gamma)^2.

    Parameters
    ----------
    run : Trajectory
        With "gram", of a batch of 2 or more.
    layer : int, default -1
        One of ``run.layers``; negative numbers count recorded layers from the last.
    star : FixedPoint or (batch, batch) array_like, optional
        A fixed point, whose eigenvalues on these directions are drawn dashed.
    ax : matplotlib.axes.Axes, optional
        Where to draw; a new figure unless given.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    MissingExtraError
        Without Matplotlib.
    ArgumentError, ArgumentTypeError
        If `run` is no run or lacks what is drawn, or `layer` or `star` is not allowed.

    Notes
    -----
    The law is about that of one layer's fluctuation, without a skip connection: of d independent
    rows whose covariance is :math:`v` on these directions.  The stationary spectrum is wider, as
    fluctuations of former layers add up.

    Examples
    --------
    >>> import bnmc
    >>> chain = bnmc.Chain(width=100, batch=10)
    >>> run = bnmc.simulate(chain, 20, chains=16, rng=0)
    >>> ax = spectrum(run, star=bnmc.MeanField(chain).fixed_point())
    >>> ax.get_xlabel(), ax.get_ylabel()
    ('eigenvalue of $G_{20}$', 'density')
    """
    from scipy.linalg import helmert

    from bnmc.random_matrix import MarchenkoPastur

    if not isinstance(run, Trajectory):
        raise ArgumentTypeError("run", run, "a Trajectory")
    if "gram" not in run.observables or "layer" not in run.dims["gram"]:
        raise ArgumentError("run", "one without 'gram' by layer", "a run that recorded it")
    n, layers = run.chain.batch, run.layers.tolist()
    if n < 2:
        raise ArgumentError("run", "one of a batch of 1", "a run of a batch of 2 or more")
    index = integer("layer", layer)
    if index >= 0 and index in layers:
        index = layers.index(index)
    elif not -len(layers) <= index < 0:
        raise ArgumentError("layer", layer, "a recorded layer, or the last ones by -1, -2, …")
    directions = helmert(n)

    def bulk(matrices: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(np.linalg.eigvalsh(directions @ matrices @ directions.T)).ravel()

    values = np.maximum(bulk(run["gram"][:, index]), 0.0)
    fixed = None if star is None else bulk(_star(star, run))
    if not values.mean() > 0:
        raise ArgumentError("run", "a layer of equal samples", "one with a spectrum to draw")
    law = MarchenkoPastur(n / run.chain.width, variance=float(values.mean()))
    ends = min(values.min(), law.edges[0]), max(values.max(), law.edges[1])
    if ax is None:
        ax = figure()[1][0]
        networks = "1 network" if run.chains == 1 else f"{run.chains} networks"
        ax.set_title(f"{_about(run.chain)}: {networks}", fontsize="medium")
    ax.hist(
        values, bins=40, range=ends, density=True, color=COLOURS[0], alpha=0.5,
        label="on directions orthogonal to ones",
    )  # fmt: skip
    # Inside the edges: at 0, where the ratio is 1, the density is infinite.
    x = np.linspace(*law.edges, 402)[1:-1]
    ax.plot(x, law.pdf(x), color=COLOURS[1], label="Marchenko–Pastur: one layer's fluctuation")
    if fixed is not None:
        for number, value in enumerate(np.unique(np.round(fixed, 12))):
            label = None if number else "fixed point"
            ax.axvline(value, color="black", linestyle="--", linewidth=1.0, label=label)
    ax.set_xlabel(f"eigenvalue of $G_{{{layers[index]}}}$")
    ax.set_ylabel("density")
    ax.legend(fontsize="small")
    return ax


def _about(chain: Chain) -> str:
    norm = {"batch": "batch norm", "batch-uncentred": "uncentred batch norm", "none": "no norm"}
    return f"{chain.activation.name}, {norm[chain.norm]}, width {chain.width}, batch {chain.batch}"


def _title(runs: Sequence[Trajectory], level: float) -> str:
    """Say which chain, if it is one, and what line and band are."""
    numbers = sorted({run.chains for run in runs})
    shown = f"mean and {100 * level:g} % of {' or '.join(map(str, numbers))} networks"
    if numbers == [1]:  # which has no band
        shown = "1 network"
    chain = runs[0].chain
    if any(run.chain != chain for run in runs):
        return shown[0].upper() + shown[1:]
    return f"{_about(chain)}: {shown}"


def _named(runs: Any) -> dict[Any, Trajectory]:
    """Return runs by label, or by number where they have none."""
    if isinstance(runs, Mapping):
        named = dict(runs)
    elif isinstance(runs, Trajectory):
        named = {0: runs}
    elif isinstance(runs, Iterable):
        named = dict(enumerate(runs))
    else:
        raise ArgumentTypeError("runs", runs, "a Trajectory, several, or a mapping to them")
    for run in named.values():
        if not isinstance(run, Trajectory):
            raise ArgumentTypeError("runs", run, "a Trajectory, several, or a mapping to them")
        if any("layer" not in axes for axes in run.dims.values()):
            raise ArgumentError("runs", "one with reduce='layer'", "runs with values by layer")
    if not named:
        raise ArgumentError("runs", runs, "at least one run")
    return named


def _require_recorded(run: Trajectory, observable: str) -> None:
    """Refuse what was not recorded, and say how else to draw the distance."""
    recorded = [*run.observables, *run.moments]
    if observable == "distance" and "gram" in run.observables and observable not in recorded:
        hint = "star=bnmc.MeanField(run.chain).fixed_point().gram draws it from 'gram'"
        raise ArgumentError("observable", observable, ", ".join(recorded), hint)
    choice("observable", observable, recorded)


def _star(star: Any, run: Trajectory) -> NDArray[np.float64]:
    """Return the matrix of a fixed point, or that matrix itself, of the size of the run's."""
    n = run.chain.batch
    return finite_array("star", getattr(star, "gram", star), shape=(n, n)).astype(np.float64)


def _spans_decades(mean: NDArray[np.float64]) -> bool:
    """Whether eigenvalues that are more than rounding lie more than three decades apart."""
    largest = mean.max(axis=-1, keepdims=True)
    above = mean[mean > 4 * mean.shape[-1] * np.finfo(np.float64).eps * largest]
    return bool(above.size and above.max() > 1000 * above.min())


def _level(ax: Axes, heights: ArrayLike) -> None:
    """Draw dashed lines at what a fixed point has, those that the axis can show."""
    for height in np.unique(np.round(np.asarray(heights, dtype=np.float64), 12)):
        if height > 0 or ax.get_yscale() == "linear":
            ax.axhline(height, color="black", linestyle="--", linewidth=1.0)


def _curves(
    run: Trajectory, observable: str, star: ArrayLike | None, level: float
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return mean, lower and upper edge of the band, each (layers, components)."""
    if star is None and observable in run.moments:
        moments = run.moments[observable]
        reach = ndtri((1 + level) / 2) * np.sqrt(moments.variance)
        curves = moments.mean, moments.mean - reach, moments.mean + reach
    else:
        values = run[observable] if star is None else grams.distance(run["gram"], star)
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
    if ax.get_yscale() == "log":  # what is not positive has no place there
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
    """Write 0.1, 0.2, 0.5 … beside a logarithmic axis of few decades, not 6 × 10⁻¹."""
    low, high = ax.get_ylim()
    if high < 1000 * low:
        plain_ticks(ax.yaxis)
