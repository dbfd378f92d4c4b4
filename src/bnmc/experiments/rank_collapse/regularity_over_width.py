"""Fig. 8: the regularity constant of the stationary law against the width."""

from __future__ import annotations

from bnmc.experiments import kit, pictures
from bnmc.experiments.experiment import Dataset, Drawing, Experiment
from bnmc.experiments.rank_collapse import ensembles
from bnmc.experiments.runs import Run
from bnmc.experiments.statistics import interval


@kit.figure("rank-collapse-8", ensembles.Sizes(), **ensembles.FULL)
def fig_8(run: Run, sizes: ensembles.Sizes) -> Experiment:
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
    results, averages, attributes = ensembles.measure(run, sizes)
    alphas = averages["alpha"]
    alpha = results.add("alpha", ensembles.DIMS, alphas, "regularity constant")
    findings = (
        f"gamma = {gamma:g}: alpha falls from {interval(alphas[gamma, widths[0]])} at "
        f"width {widths[0]} to {interval(alphas[gamma, widths[-1]])} at {widths[-1]}; "
        "the paper states less than 0.9 for widths above 10."
        for gamma, widths in zip(sizes.gammas, sizes.widths, strict=True)
    )
    return results.experiment(
        "Regularity constant against width, batch = width", ensembles.table_of({"alpha": alpha}),
        findings, _draw, **attributes,
    )  # fmt: skip


def _draw(data: Dataset, figure: Drawing) -> None:
    ((ax,),) = pictures.axes_of(figure, 1, width=6.4, height=4.8)
    ensembles.draw_widths(ax, data, "alpha")
    ax.axhline(1.0, color="black", linewidth=1)
    ax.annotate(
        "largest possible (Lemma 10)", (0.98, 1.0), xycoords=("axes fraction", "data"), ha="right",
        va="top", xytext=(0, -3), textcoords="offset points", fontsize="small",
    )  # fmt: skip
    ax.axhline(0.9, color="grey", linestyle="--", linewidth=1, label="paper: below it for $d > 10$")
    pictures.label_widths(ax, data["width"].values)
    ax.set(ylabel=r"regularity constant $\alpha$", ylim=(None, 1.02))
    # Between the two lines, at the right, the axes are empty, because alpha is small there.
    ax.legend(loc="center right", bbox_to_anchor=(1.0, 0.72), fontsize="small")
    ax.set_title("Regularity constant of the stationary law, batch = width:\n95 % intervals")
