"""Figs. 3a, 8 and 9: averages over the stationary law against the width, for several γ."""

from __future__ import annotations

import dataclasses
import math
from typing import Annotated, Any, NamedTuple, TypeAlias

import numpy as np

from bnmc.bounds import rank_collapse as bounds
from bnmc.errors import ArgumentError
from bnmc.estimate.estimate import Estimate
from bnmc.experiments import kit, pictures, statistics
from bnmc.experiments.kit import Dataset, Drawing, Experiment, Point, Progress, Run, Table
from bnmc.experiments.sizes import Several, as_text
from bnmc.experiments.statistics import interval
from bnmc.plot.axes import COLOURS, estimates, logarithmic
from bnmc.regularity import figures

#: The axes of all quantities.
_DIMS = ("gamma", "width")

#: What is measured, named as in `bnmc.regularity.Averages`.
_QUANTITIES = ("alpha", "rank_bound", "soft_rank", "squared_norm", "scaled_norm")

#: Both ranks, with their descriptions and those of their slopes.
_RANKS = {
    "rank_bound": ("r, lower bound of the rank", "slope of log r in log d"),
    "soft_rank": ("soft rank, tau = 1/2", "slope of the log soft rank in log d"),
}

#: Threshold of the soft rank.
_TAU = 0.5

#: Widths of which r is random.
_Widths: TypeAlias = Annotated[tuple[Annotated[int, {"low": 3}], ...], {"least": 2}]


class Sizes(NamedTuple):
    """Sizes of the figures.

    gammas: strengths γ of the weights; inf: no skip connection
    widths: widths for each γ, also the batch sizes
    chains: networks of each width, for each γ
    rtols: target of the relative standard errors for each γ
    depths: largest number of layers for each γ
    """

    gammas: tuple[Annotated[float, {"above": 0.0, "finite": False}], ...] = (math.inf, 1.0, 0.1)
    widths: tuple[_Widths, ...] = ((8, 16, 32, 64, 128), (8, 16, 32), (8, 16))
    chains: Annotated[tuple[Several, ...], {"repeats": True}] = (64, 16, 8)
    rtols: Annotated[tuple[float, ...], {"repeats": True}] = (0.01, 0.03, 0.03)
    depths: Annotated[tuple[Annotated[int, {"low": 4}], ...], {"repeats": True}] = (200_000,) * 3


#: The sizes that differ with ``full=True``.
_FULL: dict[str, Any] = {
    "gammas": (math.inf, 1.0, 0.1, 0.01),
    "widths": ((8, 16, 32, 64, 128, 256), (8, 16, 32, 64, 128), (8, 16, 32, 64), (8, 16, 32)),
    "chains": (64, 16, 16, 8), "rtols": (0.01, 0.01, 0.02, 0.03),
    "depths": (200_000, 200_000, 10**6, 10**7),
}  # fmt: skip


# --- the figures


@kit.figure("rank-collapse-3a", Sizes(), **_FULL)
def fig_3a(run: Run, sizes: Sizes) -> Experiment:
    r"""Fig. 3a: the rank of deep layers against the width, for several γ.

    The paper uses batch size n = d, widths d from 8 to 256 and γ down to .01.  It shows averages of
    the soft rank over a million layers of one network, and the curve √d.  Here averages are over
    the stationary layers of independent networks: γ = ∞ (no skip connection) up to width 128, γ = 1
    to 32, and γ = .1 to 16.  With `full` the widths go to 256, 128 and 64, and γ = .01 is included
    up to width 32.  That takes some tens of minutes, because the number of layers until
    stationarity grows as 1/γ².

    Expected: both ranks grow somewhat faster than √d at these widths.  The slope of r is .55 and
    that of the soft rank .64, with little difference between the γ.  r lies above the bound
    ``2 √(1−α) √d`` of Theorem 14 with the measured α (lines).  The bound itself has a slope of .61,
    because α falls with the width.

    Errors of the figure: the authors' code averages two ranks in one list, NumPy's ``matrix_rank``
    and the number of eigenvalues above 1e-9; their thresholds differ by six orders of magnitude,
    and the text has the soft rank.  The code iterates M itself, which loses symmetry and positivity
    over 10⁵ layers: ``matrix_rank`` is then 6.7, and 4.7 for H Hᵀ with the same weights (width 8,
    γ = .01, a million layers).  r is the same for both.  Its horizontal axis, labelled d, is √d.

    Returns
    -------
    Experiment

    Examples
    --------
    >>> from bnmc.experiments import rank_collapse
    >>> found = rank_collapse.fig_3a()  # doctest: +SKIP
    >>> found.plot().savefig("fig_3a.png")  # doctest: +SKIP
    """
    results, averages, attributes = _measured(run, sizes)
    ranks, slopes = {}, {}
    for name, (text, text_of_slope) in _RANKS.items():
        ranks[name] = results.add(name, _DIMS, averages[name], text)
        slopes[name] = _slopes(sizes, averages[name])
        results.add(f"{name}_slope", ("gamma",), slopes[name], text_of_slope)
    lower = {
        (gamma, width): float(bounds.theorem_14(width, alpha.value, 0.0))
        for (gamma, width), alpha in averages["alpha"].items()
    }
    theorem = results.add("theorem_14", _DIMS, lower, "bound of r in Theorem 14")
    table = _table({
        "r": ranks["rank_bound"], "soft rank": ranks["soft_rank"], "bound of r": theorem,
    })  # fmt: skip
    findings = (
        f"gamma = {gamma:g}: r grows with a slope of {interval(slopes['rank_bound'][gamma,])} in "
        f"the width, the soft rank with {interval(slopes['soft_rank'][gamma,])}; the theorem "
        "states 1/2."
        for gamma in sizes.gammas
    )
    return results.experiment(
        "Rank against width, batch = width", table, findings, _draw_ranks, **attributes
    )


def _draw_ranks(data: Dataset, figure: Drawing) -> None:
    left, right = pictures.axes_of(figure, 2)[0]
    widths = data["width"].values
    for ax, name in ((left, "rank_bound"), (right, "soft_rank")):
        _draw_widths(ax, data, name)
        ax.plot(widths, np.sqrt(widths), "--", color="black", linewidth=1, label=r"$\sqrt{d}$")
        logarithmic(ax)
        ax.set(ylabel=data[name].attrs["long_name"].replace("tau = 1/2", r"$\tau = 1/2$"))
    _draw_bounds(left, data, "theorem_14", r"bound $2\sqrt{1-\alpha}\sqrt{d}$")
    left.legend(fontsize="small")
    right.legend(fontsize="small")
    figure.suptitle("Rank of deep layers against width, batch = width: 95 % intervals")


@kit.figure("rank-collapse-8", Sizes(), **_FULL)
def fig_8(run: Run, sizes: Sizes) -> Experiment:
    r"""Fig. 8: the regularity constant of the stationary law against the width.

    The regularity constant is ``α = E Tr(diag(M²)²) / E Tr(M³)`` (Definition 3), with batch size
    n = d.  It is estimated by averages over depth.  The paper does not print its γ or its number of
    layers.  Sizes are those of `fig_3a`.

    Expected: α falls with the width.  As the paper says, it is below .9 for d > 10.  At γ = ∞ it
    falls from .912 at width 8 to .833 at 128.  The text proves α < 1 under a stationary law only;
    by the Cauchy–Schwarz inequality α is at most 1 under every law (drawn).  Small γ have the same
    α to within a few percent.

    Returns
    -------
    Experiment

    Examples
    --------
    >>> from bnmc.experiments import rank_collapse
    >>> found = rank_collapse.fig_8()  # doctest: +SKIP
    >>> found.plot().savefig("fig_8.png")  # doctest: +SKIP
    """
    results, averages, attributes = _measured(run, sizes)
    alphas = averages["alpha"]
    alpha = results.add("alpha", _DIMS, alphas, "regularity constant")
    findings = (
        f"gamma = {gamma:g}: alpha falls from {interval(alphas[gamma, widths[0]])} at "
        f"width {widths[0]} to {interval(alphas[gamma, widths[-1]])} at {widths[-1]}; "
        "the paper states less than 0.9 for widths above 10."
        for gamma, widths in zip(sizes.gammas, sizes.widths, strict=True)
    )
    return results.experiment(
        "Regularity constant against width, batch = width", _table({"alpha": alpha}), findings,
        _draw_regularity, **attributes,
    )  # fmt: skip


def _draw_regularity(data: Dataset, figure: Drawing) -> None:
    ((ax,),) = pictures.axes_of(figure, 1, width=6.4, height=4.8)
    _draw_widths(ax, data, "alpha")
    ax.axhline(1.0, color="black", linewidth=1)
    ax.annotate(
        "largest possible (Lemma 10)", (0.98, 1.0), xycoords=("axes fraction", "data"), ha="right",
        va="top", xytext=(0, -3), textcoords="offset points", fontsize="small",
    )  # fmt: skip
    ax.axhline(0.9, color="grey", linestyle="--", linewidth=1, label="paper: below it for $d > 10$")
    ax.set(ylabel=r"regularity constant $\alpha$", ylim=(None, 1.02))
    # Between the two lines, at the right, the axes are empty, because alpha is small there.
    ax.legend(loc="center right", bbox_to_anchor=(1.0, 0.72), fontsize="small")
    ax.set_title("Regularity constant of the stationary law, batch = width:\n95 % intervals")


@kit.figure("rank-collapse-9", Sizes(), **_FULL)
def fig_9(run: Run, sizes: Sizes) -> Experiment:
    r"""Fig. 9: the stationary mean of ``‖M‖_F²`` against :math:`d^{3/2}`.

    Sizes are those of `fig_3a`; the paper does not print its own.

    Expected: ``E‖M‖_F²`` grows a little more slowly than :math:`d^{3/2}`, because α falls with the
    width d: at γ = ∞ it is :math:`1.30\,d^{3/2}` at width 8 and :math:`1.17\,d^{3/2}` at width 32.
    For small γ, Lemma 13 bounds it by :math:`d^{3/2}/(2\sqrt{1-\alpha})`.  With the measured α this
    bound (drawn) also holds at γ = ∞.

    Returns
    -------
    Experiment

    Examples
    --------
    >>> from bnmc.experiments import rank_collapse
    >>> found = rank_collapse.fig_9()  # doctest: +SKIP
    >>> found.plot().savefig("fig_9.png")  # doctest: +SKIP
    """
    results, averages, attributes = _measured(run, sizes)
    norm = results.add(
        "squared_norm", _DIMS, averages["squared_norm"], "mean of the squared norm of M"
    )
    alpha = results.add("alpha", _DIMS, averages["alpha"], "regularity constant").ends()[..., 0]
    widths = np.array(results.axes["width"])
    results.add(
        "lemma_13", _DIMS, widths**1.5 / (2 * np.sqrt(1 - alpha)),
        "bound of Lemma 13, alpha measured",
    )  # fmt: skip
    slopes = _slopes(sizes, averages["squared_norm"])
    results.add("slope", ("gamma",), slopes, "slope of log E|M|^2 in log d")
    scaled = averages["scaled_norm"]
    lemma = kit.each(averages["alpha"], lambda mean: 0.5 / math.sqrt(1 - mean.value))
    table = _table({
        "E|M|^2": norm, "over d^1.5": results.column(_DIMS, scaled),
        "Lemma 13 over d^1.5": results.column(_DIMS, lemma),
    })  # fmt: skip
    findings = (
        f"gamma = {gamma:g}: E|M|^2 grows with a slope of {interval(slopes[gamma,])} in the "
        f"width, 3/2 in the bound of Lemma 13 at one alpha; at width {last} it is "
        f"{scaled[gamma, last].value:.3f} d^1.5, at most {lemma[gamma, last]:.3f} by the lemma."
        for gamma, (*_, last) in zip(sizes.gammas, sizes.widths, strict=True)
    )
    return results.experiment(
        "Mean square of M against width, batch = width", table, findings, _draw_norm, **attributes
    )


def _draw_norm(data: Dataset, figure: Drawing) -> None:
    left, right = pictures.axes_of(figure, 2)[0]
    widths = data["width"].values
    for ax, source in ((left, data), (right, data / data["width"] ** 1.5)):
        _draw_widths(ax, source, "squared_norm")
        _draw_bounds(ax, source, "lemma_13", "Lemma 13, $\\alpha$ measured")
    left.plot(widths, widths**1.5, "--", color="black", linewidth=1, label="$d^{3/2}$")
    logarithmic(left)
    left.set(ylabel=r"$E\,\|M\|_F^2$", title="As in the paper")
    right.set(ylabel=r"$E\,\|M\|_F^2 \,/\, d^{3/2}$", title="In units of $d^{3/2}$")
    left.legend(fontsize="small")
    right.legend(fontsize="small")
    figure.suptitle(r"Mean square of $M$ against width, batch = width: 95 % intervals")


# --- what they share


def _measured(
    run: Run, sizes: Sizes
) -> tuple[kit.Results, dict[str, dict[Point, Estimate]], dict[str, Any]]:
    """Average over the stationary law at each γ and width.

    Returns results without columns, averages by quantity and point, and attributes of the data.
    """
    for name, values in sizes._asdict().items():
        if len(values) != len(sizes.gammas):
            allowed = f"{len(sizes.gammas)} of them, one for each of gammas"
            raise ArgumentError(name, as_text(values), allowed)

    def averages_of(
        gamma: float, widths: tuple[int, ...], chains: int, rtol: float, depth: int,
        progress: Progress,
    ) -> dict[str, Any]:  # fmt: skip
        """Return last layers, and estimates by quantity, of each width."""
        averages = figures(
            widths, gamma=gamma, tau=_TAU, chains=chains, rtol=rtol, depth=depth,
            **run.options(progress),
        ).averages  # fmt: skip
        return {
            "layers": [average.layers[1] for average in averages],
            **{
                name: [dataclasses.astuple(getattr(average, name)) for average in averages]
                for name in _QUANTITIES
            },
        }

    points = list(zip(*sizes, strict=True))
    costs = [
        networks * sum(d**1.5 * (d + 30) for d in widths) * (1 + gamma**-2)
        for gamma, widths, networks, *_ in points
    ]
    parts = run.parts(averages_of, points, costs)
    averages = {
        name: {
            (gamma, width): Estimate(*fields)
            for (gamma, widths, *_), part in parts.items()
            for width, fields in zip(widths, part[name], strict=True)
        }
        for name in _QUANTITIES
    }
    results = kit.Results(
        run, gamma=kit.Axis(sizes.gammas, "strength of the weights"),
        width=kit.Axis(sorted(set().union(*sizes.widths)), "width and batch"),
    )  # fmt: skip
    layers = [layer for part in parts.values() for layer in part["layers"]]
    attributes = {"chains": list(sizes.chains), "tau": _TAU, "layers": layers}
    return results, averages, attributes


def _slopes(sizes: Sizes, averages: dict[Point, Estimate]) -> dict[Point, Estimate]:
    """Return the slope of the log of a quantity in the log of the width, for each γ."""
    return {
        (gamma,): statistics.slope(
            widths, [averages[gamma, width] for width in widths],
            method="weighted least squares of logs",
        )
        for gamma, widths in zip(sizes.gammas, sizes.widths, strict=True)
    }  # fmt: skip


def _table(columns: dict[str, kit.Column]) -> Table:
    """Return a table over γ, as text, and width."""
    table = kit.table_of(columns)
    return Table(table.columns, tuple((f"{gamma:g}", *cells) for gamma, *cells in table.rows))


def _draw_widths(ax: Any, data: Dataset, name: str) -> None:
    """Draw a quantity against the width, one colour per γ, with one tick per width."""
    widths, shared = data["width"].values, np.isfinite(data[name].values).sum(axis=0) > 1
    gammas = data["gamma"].values
    for index, gamma in enumerate(gammas):
        values = pictures.curve(data.sel(gamma=gamma), name)
        there = np.isfinite(values[:, 0])
        # Points of several γ stand beside each other, because equal points hide each other.
        beside = np.where(shared, 1.04 ** (index - len(gammas) // 2), 1.0) * widths
        label = r"$\gamma = \infty$" if math.isinf(gamma) else rf"$\gamma = {gamma:g}$"
        estimates(
            ax, beside[there], *values[there].T, colour=COLOURS[index % len(COLOURS)],
            fmt="osv^D"[index % 5], label=label,
        )  # fmt: skip
    pictures.label_widths(ax, widths)


def _draw_bounds(ax: Any, data: Dataset, name: str, label: str) -> None:
    """Draw a bound against the width, in the colour of each γ."""
    for index, bound in enumerate(data[name].values):
        ax.plot(data["width"].values, bound, ":", color=COLOURS[index % len(COLOURS)])
    ax.plot([], [], ":", color="grey", label=label)
