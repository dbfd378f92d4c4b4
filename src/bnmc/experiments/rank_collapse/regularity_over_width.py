"""Fig. 8: the regularity constant of the stationary law against the width."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bnmc._support.progress import Progress
from bnmc.experiments.experiment import Experiment, Table, with_parameters
from bnmc.experiments.parts import Call, Store, chosen
from bnmc.experiments.pictures import axes_of, label_widths
from bnmc.experiments.rank_collapse.ensembles import (
    DEFAULT,
    FULL,
    EnsembleSizes,
    dataset_of,
    draw_widths,
    gamma_name,
    measure,
)
from bnmc.experiments.statistics import interval

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

__all__ = ["experiment", "fig_8"]


@with_parameters
def fig_8(
    *,
    full: bool = False,
    rng: Any = 0,
    progress: bool | Progress = False,
    threads: int | None = None,
    store: Store = None,
) -> Experiment:
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
    call = Call("rank-collapse-8", full, rng, progress, threads, store)
    return experiment(chosen(DEFAULT, FULL, full), call)


def experiment(ensembles: tuple[EnsembleSizes, ...], call: Call) -> Experiment:
    """Run the experiment with these sizes."""
    found = measure(ensembles, call)
    data = dataset_of(found, ensembles, {"alpha": "regularity constant"}, call, {})
    table = Table(
        ("gamma", "width", "alpha"),
        tuple(
            (gamma_name(one), part.chain.width, part.alpha)
            for one in found
            for part in one.averages
        ),
    )
    findings = tuple(
        f"gamma = {gamma_name(one)}: alpha falls from {interval(one.averages[0].alpha)} at "
        f"width {one.widths[0]} to {interval(one.averages[-1].alpha)} at {one.widths[-1]}; "
        "the paper states less than 0.9 for widths above 10."
        for one in found
    )
    title = "Regularity constant against width, batch = width"
    return Experiment(call.name, title, data, table, findings, _draw)


def _draw(data: xarray.Dataset, figure: Figure) -> None:
    ((ax,),) = axes_of(figure, 1, width=6.4, height=4.8)
    draw_widths(ax, data, "alpha")
    ax.axhline(1.0, color="black", linewidth=1)
    ax.annotate(
        "largest possible (Lemma 10)", (0.98, 1.0), xycoords=("axes fraction", "data"), ha="right",
        va="top", xytext=(0, -3), textcoords="offset points", fontsize="small",
    )  # fmt: skip
    ax.axhline(0.9, color="grey", linestyle="--", linewidth=1, label="paper: below it for $d > 10$")
    label_widths(ax, data.width.values)
    ax.set(ylabel=r"regularity constant $\alpha$", ylim=(None, 1.02))
    # Between the two lines, at the right, the axes are empty, because alpha is small there.
    ax.legend(loc="center right", bbox_to_anchor=(1.0, 0.72), fontsize="small")
    ax.set_title("Regularity constant of the stationary law, batch = width:\n95 % intervals")
