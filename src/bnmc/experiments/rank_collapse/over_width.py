"""TODO-DOC bnmc.experiments.rank_collapse.common.over_width."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnmc._support.progress import Progress
from bnmc.bounds import rank_collapse as bounds
from bnmc.estimate.estimate import Estimate
from bnmc.experiments._common import chosen, curve, ends, label_widths, logarithmic, with_ends
from bnmc.experiments._experiment import (
    Experiment,
    Parts,
    Sources,
    Store,
    Table,
    Variable,
    axes_of,
    dataset,
    interval,
    slope,
    with_parameters,
)
from bnmc.experiments.rank_collapse.common import Float64Array
from bnmc.plot.axes import COLOURS, estimates
from bnmc.regularity import ergodic

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["fig_3a", "fig_8", "fig_9"]


class _Gamma(NamedTuple):
    """One strength of the weights: widths, networks, target of the standard error, most layers."""

    gamma: float
    widths: tuple[int, ...]
    chains: int
    rtol: float = 0.01
    depth: int = 200_000


_ENSEMBLES = (
    (
        _Gamma(math.inf, (8, 16, 32, 64, 128), 64),
        _Gamma(1.0, (8, 16, 32), 16, 0.03),
        _Gamma(0.1, (8, 16), 8, 0.03),
    ),
    (
        _Gamma(math.inf, (8, 16, 32, 64, 128, 256), 64),
        _Gamma(1.0, (8, 16, 32, 64, 128), 16),
        _Gamma(0.1, (8, 16, 32, 64), 16, 0.02, 10**6),
        _Gamma(0.01, (8, 16, 32), 8, 0.03, 10**7),
    ),
)


@with_parameters
def fig_3a(
    *,
    full: bool = False,
    rng: Any = 0,
    progress: bool | Progress = False,
    threads: int | None = None,
    store: Store = None,
) -> Experiment:
    r"""Fig. 3a: the rank of deep layers against the width, for several γ.

    The paper has batch n = d, widths 8 to 256 and γ down to .01, averages of the soft rank over a
    million layers of one network, and the curve √d beside them.  Here independent networks are
    averaged over depth once they have settled: γ = ∞ (no skip connection) up to width 128, γ = 1
    to 32, γ = .1 to 16.  `full` goes to 256, 128, 64, and to γ = .01 up to 32, in some tens of
    minutes: the chain needs 1/γ² times as many layers to settle.

    Both grow somewhat faster than √d at these widths, r with a slope of .55 and the soft rank with
    .64, with little difference between the γ; r lies above the bound ``2 √(1−α) √d`` of Theorem 14
    with the measured α (lines), which itself has a slope of .61, as α falls.

    What the figure gets wrong: the authors' code averages two ranks in one list, NumPy's
    ``matrix_rank`` and the number of eigenvalues above 1e-9, whose thresholds differ by six orders
    of magnitude, where the text has the soft rank.  It iterates M itself, which over 10⁵ layers
    loses symmetry and positivity, so that ``matrix_rank`` is 6.7 where H Hᵀ, with the same weights,
    has 4.7 (width 8, γ = .01, a million layers); r is the same.  And its horizontal axis, labelled
    d, is √d.

    Returns
    -------
    Experiment

    Examples
    --------
    >>> from bnmc.experiments import rank_collapse
    >>> found = rank_collapse.fig_3a()  # doctest: +SKIP
    >>> found.plot().savefig("fig_3a.png")  # doctest: +SKIP
    """
    return _fig_3a(chosen(_ENSEMBLES, full), full, rng, progress, threads, store)


def _fig_3a(
    groups: tuple[_Gamma, ...], full: bool, rng: Any, progress: bool | Progress,
    threads: int | None, store: Store = None,
) -> Experiment:  # fmt: skip
    sources = Sources(rng)
    found = _measured(groups, "rank-collapse-3a", sources, full, progress, threads, store)
    names = {"rank_bound": "r, lower bound of the rank", "soft_rank": "soft rank, tau = 1/2"}
    slopes = {name: [_slope(one, name) for one in found] for name in names}
    alphas = _table_of(found, "alpha")[..., 0]
    widths = _widths(found)
    with np.errstate(invalid="ignore"):
        theory = 2 * np.sqrt(1 - alphas) * np.sqrt(widths)
    data = _dataset_of(
        found, groups, names, sources, full,
        {
            "theorem_14": Variable(("gamma", "width"), theory, "bound of r in Theorem 14"),
            **with_ends(
                "rank_bound_slope",
                ("gamma",), ends(slopes["rank_bound"]), "slope of log r in log d"
            ),
            **with_ends(
                "soft_rank_slope",
                ("gamma",), ends(slopes["soft_rank"]), "slope of the log soft rank in log d"
            ),
        },
    )  # fmt: skip
    table = Table(
        ("gamma", "width", "r", "soft rank", "bound of r"),
        tuple(
            (_gamma_name(one), average.chain.width, average.rank_bound, average.soft_rank,
             float(bounds.theorem_14(average.chain.width, min(average.alpha.value, 1 - 1e-9), 0)))
            for one in found for average in one.averages
        ),
    )  # fmt: skip
    findings = tuple(
        f"gamma = {_gamma_name(one)}: r grows with a slope of {interval(fitted)} in the "
        f"width, the soft rank with {interval(soft)}; the theorem has 1/2."
        for one, fitted, soft in zip(found, slopes["rank_bound"], slopes["soft_rank"], strict=True)
    )
    return Experiment(
        "rank-collapse-3a", "Rank against width, batch = width", data, table, findings, _draw_3a
    )


def _measured(
    groups: tuple[_Gamma, ...], label: str, sources: Sources, full: bool,
    progress: bool | Progress, threads: int | None, store: Store,
) -> list[ergodic.Figures]:  # fmt: skip
    """Average over the invariant law at each γ and width."""
    costs = [
        group.chains * sum(d**1.5 * (d + 30) for d in group.widths) * (1 + group.gamma**-2)
        for group in groups
    ]
    found = []
    with Parts(progress, label, costs, sources, full, store) as parts:
        for group in groups:
            found.append(
                parts.run(
                    ergodic.figures, group.widths, gamma=group.gamma, chains=group.chains,
                    rtol=group.rtol,
                    depth=group.depth, rng=sources.generator, threads=threads,
                )
            )  # fmt: skip
    return found


def _widths(found: list[ergodic.Figures]) -> NDArray[np.int64]:
    return np.unique(np.concatenate([one.widths for one in found]))


def _table_of(found: list[ergodic.Figures], name: str) -> Float64Array:
    """Estimates by γ and width, (γ, widths, 3), NaN where there are none."""
    widths = _widths(found)
    table = np.full((len(found), len(widths), 3), np.nan)
    for row, one in zip(table, found, strict=True):
        row[np.isin(widths, one.widths)] = ends(getattr(part, name) for part in one.averages)
    return table


def _slope(found: ergodic.Figures, name: str) -> Estimate:
    values = [getattr(one, name) for one in found.averages]
    return slope(found.widths, values, method="weighted least squares of logs")


def _dataset_of(
    found: list[ergodic.Figures], groups: tuple[_Gamma, ...], names: dict[str, str],
    sources: Sources, full: bool, others: dict[str, Variable],
) -> xarray.Dataset:  # fmt: skip
    measured: dict[str, Variable] = {}
    for name, label in names.items():
        measured |= with_ends(name, ("gamma", "width"), _table_of(found, name), label)
    return dataset(
        measured | others,
        {
            "gamma": Variable(("gamma",), [one.gamma for one in found], "strength of the weights"),
            "width": Variable(("width",), _widths(found), "width and batch"),
        },
        sources,
        full,
        {"chains": [group.chains for group in groups], "tau": found[0].averages[0].tau,
         "layers": [average.layers[1] for one in found for average in one.averages]},
    )  # fmt: skip


def _gamma_name(found: ergodic.Figures) -> str:
    return "inf" if math.isinf(found.gamma) else f"{found.gamma:g}"


def _gamma_label(gamma: float) -> str:
    return r"$\gamma = \infty$" if math.isinf(gamma) else rf"$\gamma = {gamma:g}$"


_MARKERS = "osv^D"


def _draw_widths(ax: Axes, data: xarray.Dataset, name: str) -> None:
    """Draw a quantity against the width, one colour a γ."""
    widths, shared = data.width.values, np.isfinite(data[name].values).sum(axis=0) > 1
    for index, gamma in enumerate(data.gamma.values):
        found = curve(data, name)[index]
        there = np.isfinite(found[:, 0])
        # Points that agree would hide each other.
        beside = np.where(shared, 1.04 ** (index - len(data.gamma) // 2), 1.0) * widths
        estimates(
            ax, beside[there], *found[there].T,
            colour=COLOURS[index % len(COLOURS)], fmt=_MARKERS[index % 5],
            label=_gamma_label(gamma),
        )  # fmt: skip


def _draw_3a(data: xarray.Dataset, figure: Figure) -> None:
    left, right = axes_of(figure, 2)[0]
    widths = data.width.values
    for ax, name in ((left, "rank_bound"), (right, "soft_rank")):
        _draw_widths(ax, data, name)
        ax.plot(widths, np.sqrt(widths), "--", color="black", linewidth=1, label=r"$\sqrt{d}$")
        logarithmic(ax)
        label_widths(ax, widths)
        ax.set(ylabel=data[name].attrs["long_name"].replace("tau = 1/2", r"$\tau = 1/2$"))
    for index, theory in enumerate(data.theorem_14.values):
        left.plot(widths, theory, ":", color=COLOURS[index % len(COLOURS)])
    left.plot([], [], ":", color="grey", label=r"bound $2\sqrt{1-\alpha}\sqrt{d}$")
    left.legend(fontsize="small")
    right.legend(fontsize="small")
    figure.suptitle("Rank of deep layers against width, batch = width: 95 % intervals")


@with_parameters
def fig_8(
    *,
    full: bool = False,
    rng: Any = 0,
    progress: bool | Progress = False,
    threads: int | None = None,
    store: Store = None,
) -> Experiment:
    r"""Fig. 8: the regularity constant of the invariant law against the width.

    ``α = E Tr(diag(M²)²) / E Tr(M³)`` (Definition 3), by averages over depth, batch n = d.  The
    paper does not print its γ or its number of layers.  Sizes here are those of `fig_3a`.

    α falls with the width, and is below .9 for d > 10, as the paper says: at γ = ∞ from .912 at
    width 8 to .833 at 128.  The text proves α < 1 under an invariant law only; by Cauchy–Schwarz
    it is at most 1 under every law (drawn).  Small γ have the same α to within a few percent.

    Returns
    -------
    Experiment

    Examples
    --------
    >>> from bnmc.experiments import rank_collapse
    >>> found = rank_collapse.fig_8()  # doctest: +SKIP
    >>> found.plot().savefig("fig_8.png")  # doctest: +SKIP
    """
    return _fig_8(chosen(_ENSEMBLES, full), full, rng, progress, threads, store)


def _fig_8(
    groups: tuple[_Gamma, ...], full: bool, rng: Any, progress: bool | Progress,
    threads: int | None, store: Store = None,
) -> Experiment:  # fmt: skip
    sources = Sources(rng)
    found = _measured(groups, "rank-collapse-8", sources, full, progress, threads, store)
    data = _dataset_of(found, groups, {"alpha": "regularity constant"}, sources, full, {})
    table = Table(
        ("gamma", "width", "alpha"),
        tuple(
            (_gamma_name(one), part.chain.width, part.alpha)
            for one in found for part in one.averages
        ),
    )  # fmt: skip
    findings = tuple(
        f"gamma = {_gamma_name(one)}: alpha falls from {interval(one.averages[0].alpha)} at "
        f"width {one.widths[0]} to {interval(one.averages[-1].alpha)} at {one.widths[-1]}; "
        "the paper has less than .9 for widths above 10."
        for one in found
    )
    title = "Regularity constant against width, batch = width"
    return Experiment("rank-collapse-8", title, data, table, findings, _draw_8)


def _draw_8(data: xarray.Dataset, figure: Figure) -> None:
    ((ax,),) = axes_of(figure, 1, width=6.4, height=4.8)
    _draw_widths(ax, data, "alpha")
    ax.axhline(1.0, color="black", linewidth=1)
    ax.annotate(
        "largest there is (Lemma 10)", (0.98, 1.0), xycoords=("axes fraction", "data"), ha="right",
        va="top", xytext=(0, -3), textcoords="offset points", fontsize="small",
    )  # fmt: skip
    ax.axhline(0.9, color="grey", linestyle="--", linewidth=1, label="paper: below it for $d > 10$")
    label_widths(ax, data.width.values)
    ax.set(ylabel=r"regularity constant $\alpha$", ylim=(None, 1.02))
    # Between the two lines, to the right, where alpha is small.
    ax.legend(loc="center right", bbox_to_anchor=(1.0, 0.72), fontsize="small")
    ax.set_title("Regularity constant of the invariant law, batch = width:\n95 % intervals")


@with_parameters
def fig_9(
    *,
    full: bool = False,
    rng: Any = 0,
    progress: bool | Progress = False,
    threads: int | None = None,
    store: Store = None,
) -> Experiment:
    r"""Fig. 9: the mean of ``‖M‖_F²`` under the invariant law against ``d^{3/2}``.

    Sizes are those of `fig_3a`; the paper does not print its own.

    ``E‖M‖_F²`` grows a little slower than ``d^{3/2}``, as α falls: at γ = ∞ it is 1.30 d^{3/2} at
    width 8 and 1.17 at 32.  Lemma 13 bounds it by ``d^{3/2}/(2√(1−α))`` for small γ; with the
    measured α the bound (drawn) holds at γ = ∞ as well.

    Returns
    -------
    Experiment

    Examples
    --------
    >>> from bnmc.experiments import rank_collapse
    >>> found = rank_collapse.fig_9()  # doctest: +SKIP
    >>> found.plot().savefig("fig_9.png")  # doctest: +SKIP
    """
    return _fig_9(chosen(_ENSEMBLES, full), full, rng, progress, threads, store)


def _fig_9(
    groups: tuple[_Gamma, ...], full: bool, rng: Any, progress: bool | Progress,
    threads: int | None, store: Store = None,
) -> Experiment:  # fmt: skip
    sources = Sources(rng)
    found = _measured(groups, "rank-collapse-9", sources, full, progress, threads, store)
    slopes = [_slope(one, "squared_norm") for one in found]
    alphas = _table_of(found, "alpha")[..., 0]
    theory = _widths(found) ** 1.5 / (2 * np.sqrt(1 - alphas))
    data = _dataset_of(
        found, groups,
        {"squared_norm": "mean of the squared norm of M", "alpha": "regularity constant"},
        sources, full,
        {
            "lemma_13": Variable(("gamma", "width"), theory, "bound of Lemma 13, alpha measured"),
            **with_ends("slope", ("gamma",), ends(slopes), "slope of log E|M|^2 in log d"),
        },
    )  # fmt: skip
    table = Table(
        ("gamma", "width", "E|M|^2", "over d^1.5", "Lemma 13 over d^1.5"),
        tuple(
            (_gamma_name(one), part.chain.width, part.squared_norm, part.scaled_norm,
             0.5 / math.sqrt(1 - part.alpha.value))
            for one in found for part in one.averages
        ),
    )  # fmt: skip
    findings = tuple(
        f"gamma = {_gamma_name(one)}: E|M|^2 grows with a slope of {interval(fitted)} in the "
        f"width, 3/2 in the bound of Lemma 13 at one alpha; at width {one.widths[-1]} it is "
        f"{one.averages[-1].scaled_norm.value:.3f} d^1.5, at most "
        f"{0.5 / math.sqrt(1 - one.averages[-1].alpha.value):.3f} by the lemma."
        for one, fitted in zip(found, slopes, strict=True)
    )
    title = "Mean square of M against width, batch = width"
    return Experiment("rank-collapse-9", title, data, table, findings, _draw_9)


def _draw_9(data: xarray.Dataset, figure: Figure) -> None:
    left, right = axes_of(figure, 2)[0]
    widths = data.width.values
    scale = widths**1.5
    scaled = data.assign(
        {name: data[name] / data.width**1.5 for name in data if str(name).startswith("squared")}
    )
    for ax, source, unit in ((left, data, 1.0), (right, scaled, scale)):
        _draw_widths(ax, source, "squared_norm")
        for index, theory in enumerate(data.lemma_13.values):
            ax.plot(widths, theory / unit, ":", color=COLOURS[index % len(COLOURS)])
        ax.plot([], [], ":", color="grey", label="Lemma 13, $\\alpha$ measured")
        label_widths(ax, widths)
    left.plot(widths, scale, "--", color="black", linewidth=1, label="$d^{3/2}$")
    logarithmic(left)
    left.set(ylabel=r"$E\,\|M\|_F^2$", title="As in the paper")
    right.set(ylabel=r"$E\,\|M\|_F^2 \,/\, d^{3/2}$", title="In units of $d^{3/2}$")
    left.legend(fontsize="small")
    right.legend(fontsize="small")
    figure.suptitle(r"Mean square of $M$ against width, batch = width: 95 % intervals")
