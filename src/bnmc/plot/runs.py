"""Pictures of runs: observables against depth, as simulated and as predicted, and spectra."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import helmert
from scipy.special import ndtri

from bnmc import gram
from bnmc._support.arguments import choice, finite_array, integer, real
from bnmc.chain.chain import layer_at, pattern_of
from bnmc.errors import ArgumentError
from bnmc.plot import axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: The attributes of a run: `bnmc.Trajectory`, or any object that has them.
_RUN = ("network", "chains", "layers", "observables", "moments", "dims")

#: Labels of the vertical axis by observable.
LABELS = {
    "distance": r"$\|G_\ell - G_*\|_F$",
    "eigenvalues": r"eigenvalues of $G_\ell$",
    "log_scale": r"log scale of $G_\ell$",
    "orthogonality_gap": "orthogonality gap",
    "rank_bound": "lower bound of the rank",
    "soft_rank": "soft rank",
}

#: Observables that are computed if only the Gram matrices are recorded.
_OF_GRAM = {"eigenvalues": gram.eigenvalues, "orthogonality_gap": gram.orthogonality_gap}

#: Observables with a logarithmic axis.
_LOGARITHMIC = ("distance", "orthogonality_gap")


def trajectory(
    runs: Any,
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
        Name of a recorded observable; "eigenvalues" and "orthogonality_gap" are computed from
        recorded Gram matrices, too. A fixed point or a Gram matrix here is `star`.
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
            star = _fixed_gram(star, run)
    curves = {label: _curves(run, observable, star, level) for label, run in named.items()}
    if ax is None:
        ax = axes.figure()[1][0]
        ax.set_title(_title(list(named.values()), level), fontsize="medium")
    spectra = [mean for mean, _, _ in curves.values()] if observable == "eigenvalues" else []
    if observable in _LOGARITHMIC or any(_spans_decades(mean) for mean in spectra):
        ax.set_yscale("log", nonpositive="mask")
    for label, run in named.items():
        _draw(ax, run.layers, curves[label], label if isinstance(runs, Mapping) else None)
    if ax.get_yscale() == "log":
        axes.logarithmic(ax)
    axes.label_layers(ax)
    ax.set_ylabel(LABELS.get(observable, observable))
    if isinstance(runs, Mapping):
        ax.legend()
    return ax


def overview(run: Any, star: Any = None, *, level: float = 0.9) -> Figure:
    """Draw the distance from a fixed point and the spectrum of a run against depth.

    Parameters
    ----------
    run : Trajectory
        With the observable "gram", or with "eigenvalues", and "distance" or else
        "orthogonality_gap".
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
    axes.require_attributes("run", run, "a Trajectory", *_RUN)
    recorded = {*run.observables, *run.moments}
    fixed = None if star is None else _fixed_gram(star, run)
    has_distance = "distance" in recorded
    picture, (left, right) = axes.figure(columns=2)
    trajectory(run, "distance" if has_distance else "orthogonality_gap", ax=left, level=level)
    trajectory(run, "eigenvalues", ax=right, level=level)
    if fixed is not None:
        # The distance of a fixed point from itself, 0, is not on a logarithmic axis.
        if not has_distance:
            _mark(left, [float(gram.orthogonality_gap(fixed))])
        _mark(right, gram.eigenvalues(fixed))
    left.set_title("Distance from G*" if has_distance else "Orthogonality gap")
    right.set_title("Spectrum")
    picture.suptitle(_title([run], level))
    return picture


def _title(runs: list[Any], level: float) -> str:
    """Return a title: the chain, if all runs have the same, and the meaning of line and band."""
    band = axes.about_band((run.chains for run in runs), level)
    network = runs[0].network
    if any(pattern_of(run.network) != pattern_of(network) for run in runs):
        return band[0].upper() + band[1:]
    return f"{axes.about_network(network)}: {band}"


def _named(runs: Any) -> dict[Any, Any]:
    """Return runs by label, or by number if they have no labels."""
    labels = isinstance(runs, Mapping) and [*runs]
    values = [*runs.values()] if labels else runs
    allowed = "a Trajectory, several, or a mapping to them"
    results = axes.as_results("runs", values, "run", allowed, *_RUN)
    if any("layer" not in dims for run in results for dims in run.dims.values()):
        raise ArgumentError("runs", "one with reduce='layer'", "runs with values by layer")
    return dict(zip(labels or range(len(results)), results, strict=True))


def _fixed_gram(star: Any, run: Any) -> NDArray[np.float64]:
    """Return the Gram matrix of a fixed point, or `star` itself if it is a matrix of the batch."""
    n = run.network.batch
    return finite_array("star", getattr(star, "gram", star), shape=(n, n)).astype(np.float64)


def _require_recorded(run: Any, observable: str) -> None:
    """Raise if an observable was not recorded; for "distance", with a hint at `star`."""
    recorded = [*run.observables, *run.moments]
    if observable == "distance" and "gram" in run.observables and observable not in recorded:
        hint = "star=bnmc.MeanField(run.chain).fixed_point().gram draws it from 'gram'"
        raise ArgumentError("observable", observable, ", ".join(recorded), hint)
    computed = list(_OF_GRAM) if "gram" in run.observables else []
    choice("observable", observable, [*recorded, *computed])


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
    run: Any, observable: str, star: ArrayLike | None, level: float
) -> list[NDArray[np.float64]]:
    """Return the mean, the lower and the upper edge of the band, each (layers, components)."""
    if star is None and observable in run.moments:
        moments = run.moments[observable]
        reach = ndtri((1 + level) / 2) * np.sqrt(moments.variance)
        curves = moments.mean, moments.mean - reach, moments.mean + reach
    else:
        is_recorded = star is None and observable in run.observables
        values = run.observables[observable if is_recorded else "gram"]
        if star is not None:
            values = gram.distance(values, star)
        elif not is_recorded:
            values = _OF_GRAM[observable](values)
        edges = np.quantile(values, [(1 - level) / 2, (1 + level) / 2], axis=0)
        curves = values.mean(axis=0), edges[0], edges[1]
    return [curve.reshape(len(run.layers), -1) for curve in curves]


def _draw(
    ax: Axes, layers: NDArray[np.int64], curves: list[NDArray[np.float64]], label: str | None
) -> None:
    """Draw the components of one run in one colour."""
    if ax.get_yscale() == "log":  # a logarithmic axis shows positive numbers only
        curves = [np.where(curve > 0, curve, np.nan) for curve in curves]
    colour: Any = None
    for component in np.moveaxis(np.array(curves), -1, 0):
        colour = axes.draw_mean(ax, layers, component, None if colour else label, colour)


def predicted_band(
    fluctuations: Any,
    width: int,
    observable: Any = None,
    *,
    level: float = 0.9,
    label: str | None = None,
    colour: str = axes.COLOURS[0],
    ax: Axes | None = None,
) -> Axes:
    r"""Draw the predicted median and band of an observable against depth.

    Parameters
    ----------
    fluctuations : PathFluctuations
        The attribute ``fluctuations`` of the result of
        ``MeanField.trajectory(..., fluctuations=True)``.
    width : int
        Width d, >= 1.
    observable : callable or (batch, batch) array_like, optional
        As in `bnmc.mean_field.PathFluctuations.band`. Default: the distance
        :math:`\|G_l - F^l(G_0)\|_F` from the mean field.
    level : float, default 0.9
        Probability of the band, in (0, 1).
    label : str, optional
        Label of the median in the legend.
    colour : str, default "#0072B2"
        Colour of median and band.
    ax : matplotlib.axes.Axes, optional
        Axes to draw in. Default: those of a new figure.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    MissingExtraError
        If Matplotlib is not installed.
    ArgumentError, ArgumentTypeError
        If `fluctuations` are no predictions, or an argument is not allowed.

    Examples
    --------
    >>> import bnmc, numpy as np
    >>> from bnmc.plot import predicted_band
    >>> mean_field = bnmc.MeanField(bnmc.Chain(1000, 3, "tanh"))
    >>> path = mean_field.trajectory(np.diag([1.0, 2.0, 3.0]), 5, rng=0, fluctuations=True)
    >>> ax = predicted_band(path.fluctuations, width=1000)
    >>> ax.get_xlabel(), len(ax.lines), len(ax.collections)
    ('layer', 1, 1)
    """
    allowed = "a PathFluctuations"
    axes.require_attributes("fluctuations", fluctuations, allowed, "band", "layers")
    low, high = fluctuations.band(width, observable, level=level)
    # The median is the limit of bands of small probability.
    middle = fluctuations.band(width, observable, level=1e-6).mean(axis=0)
    if ax is None:
        ax = axes.figure()[1][0]
        ax.set_title(f"predicted, width {width}, band {level:.0%}", fontsize="medium")
    axes.band(ax, fluctuations.layers, middle, low, high, colour=colour, label=label)
    axes.label_layers(ax)
    ax.set_ylabel(r"$\|G_\ell - F^\ell(G_0)\|_F$" if observable is None else "observable")
    return ax


def spectrum(run: Any, *, layer: int = -1, star: Any = None, ax: Axes | None = None) -> Axes:
    r"""Draw the spectrum of one layer beside the law of Marchenko and Pastur.

    Let d be the width and n the batch size. The histogram shows, over all chains, the n − 1
    eigenvalues of each Gram matrix on the directions orthogonal to the vector of ones. The curve is
    the density of `bnmc.random_matrix.MarchenkoPastur` with ratio :math:`\gamma = n/d`, where v is
    the mean of these eigenvalues:

    .. math:: \frac{\sqrt{(b - x)(x - a)}}{2 \pi v \gamma x}, \qquad a, b = v(1 \mp \sqrt\gamma)^2.

    Parameters
    ----------
    run : Trajectory
        With the observable "gram", and a batch of at least 2.
    layer : int, default -1
        One of ``run.layers``. Negative numbers count recorded layers from the last.
    star : FixedPoint or (batch, batch) array_like, optional
        A fixed point. Dashed lines mark its eigenvalues on these directions.
    ax : matplotlib.axes.Axes, optional
        Axes to draw in. Default: those of a new figure.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    MissingExtraError
        If Matplotlib is not installed.
    ArgumentError, ArgumentTypeError
        If `run` is no run or lacks "gram", or if `layer` or `star` is not allowed.

    Notes
    -----
    The law approximates the fluctuations of a single layer without a skip connection: that layer
    has d independent rows, with covariance v times the identity on these directions. The stationary
    spectrum is wider, since the fluctuations of earlier layers add up.

    Examples
    --------
    >>> from bnmc.plot import spectrum
    >>> import bnmc
    >>> chain = bnmc.Chain(width=100, batch=10)
    >>> run = bnmc.simulate(chain, 20, chains=16, rng=0)
    >>> ax = spectrum(run, star=bnmc.MeanField(chain).fixed_point())
    >>> ax.get_xlabel(), ax.get_ylabel()
    ('eigenvalue of $G_{20}$', 'density')
    """
    axes.require_attributes("run", run, "a Trajectory", *_RUN)
    n, index = run.network.batch, _index_of_layer(run, layer)
    directions = helmert(n)

    def bulk(matrices: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(np.linalg.eigvalsh(directions @ matrices @ directions.T)).ravel()

    values = np.maximum(bulk(run.observables["gram"][:, index]), 0.0)
    fixed = None if star is None else bulk(_fixed_gram(star, run))
    if not values.mean() > 0:
        raise ArgumentError("run", "a layer of equal samples", "one with a spectrum to draw")
    width = layer_at(run.network, int(run.layers[index])).linear.width
    ratio, variance = n / width, float(values.mean())
    low, high = (variance * (1.0 + sign * math.sqrt(ratio)) ** 2 for sign in (-1.0, 1.0))
    if ax is None:
        ax = axes.figure()[1][0]
        networks = "1 network" if run.chains == 1 else f"{run.chains} networks"
        ax.set_title(f"{axes.about_network(run.network)}: {networks}", fontsize="medium")
    ends = min(values.min(), low), max(values.max(), high)
    ax.hist(
        values, bins=40, range=ends, density=True, color=axes.COLOURS[0], alpha=0.5,
        label="on directions orthogonal to ones",
    )  # fmt: skip
    # The edges are left out: at ratio 1 the density is infinite at 0.
    x = np.linspace(low, high, 402)[1:-1]
    density = np.sqrt((high - x) * (x - low)) / (2.0 * math.pi * variance * ratio * x)
    ax.plot(x, density, color=axes.COLOURS[1], label="Marchenko–Pastur: one layer's fluctuation")
    if fixed is not None:
        for number, value in enumerate(np.unique(np.round(fixed, 12))):
            label = None if number else "fixed point"
            ax.axvline(value, color="black", linestyle="--", linewidth=1.0, label=label)
    ax.set_xlabel(f"eigenvalue of $G_{{{run.layers[index]}}}$")
    ax.set_ylabel("density")
    ax.legend(fontsize="small")
    return ax


def _index_of_layer(run: Any, layer: int) -> int:
    """Return the index of a recorded layer of a run with Gram matrices."""
    if "gram" not in run.observables or "layer" not in run.dims["gram"]:
        raise ArgumentError("run", "one without 'gram' by layer", "a run that recorded it")
    if run.network.batch < 2:
        raise ArgumentError("run", "one of a batch of 1", "a run of a batch of 2 or more")
    index, layers = integer("layer", layer), run.layers.tolist()
    if index >= 0 and index in layers:
        return int(layers.index(index))
    if not -len(layers) <= index < 0:
        raise ArgumentError("layer", layer, "a recorded layer, or the last ones by -1, -2, …")
    return index
