"""Fig. 9: the stationary mean of ‖M‖_F² against the width."""

from __future__ import annotations

import math

import numpy as np

from bnmc.experiments import kit, pictures
from bnmc.experiments.experiment import Dataset, Drawing, Experiment
from bnmc.experiments.rank_collapse import ensembles
from bnmc.experiments.runs import Run
from bnmc.experiments.statistics import interval
from bnmc.plot.axes import COLOURS


@kit.figure("rank-collapse-9", ensembles.Sizes(), **ensembles.FULL)
def fig_9(run: Run, sizes: ensembles.Sizes) -> Experiment:
    r"""Fig. 9: the stationary mean of ``‖M‖_F²`` against ``d^{3/2}``.

    Sizes are those of `fig_3a`; the paper does not print its own.

    Expected: ``E‖M‖_F²`` grows a little more slowly than ``d^{3/2}``, because α falls with the
    width d: at γ = ∞ it is 1.30 d^{3/2} at width 8 and 1.17 d^{3/2} at width 32.  For small γ,
    Lemma 13 bounds it by ``d^{3/2}/(2√(1−α))``.  With the measured α this bound (drawn) also holds
    at γ = ∞.

    Returns
    -------
    Experiment

    Examples
    --------
    >>> from bnmc.experiments import rank_collapse
    >>> found = rank_collapse.fig_9()  # doctest: +SKIP
    >>> found.plot().savefig("fig_9.png")  # doctest: +SKIP
    """
    dims = ensembles.DIMS
    results, averages, attributes = ensembles.measure(run, sizes)
    norm = results.add(
        "squared_norm", dims, averages["squared_norm"], "mean of the squared norm of M"
    )
    alpha = results.add("alpha", dims, averages["alpha"], "regularity constant").ends()[..., 0]
    widths = np.array(results.axes["width"])
    results.add(
        "lemma_13", dims, widths**1.5 / (2 * np.sqrt(1 - alpha)),
        "bound of Lemma 13, alpha measured",
    )  # fmt: skip
    slopes = ensembles.slopes(sizes, averages["squared_norm"])
    results.add("slope", ("gamma",), slopes, "slope of log E|M|^2 in log d")
    scaled = averages["scaled_norm"]
    bounds = {point: 0.5 / math.sqrt(1 - mean.value) for point, mean in averages["alpha"].items()}
    table = ensembles.table_of({
        "E|M|^2": norm, "over d^1.5": results.column(dims, scaled),
        "Lemma 13 over d^1.5": results.column(dims, bounds),
    })  # fmt: skip
    findings = (
        f"gamma = {gamma:g}: E|M|^2 grows with a slope of {interval(slopes[gamma,])} in the "
        f"width, 3/2 in the bound of Lemma 13 at one alpha; at width {last} it is "
        f"{scaled[gamma, last].value:.3f} d^1.5, at most {bounds[gamma, last]:.3f} by the lemma."
        for gamma, (*_, last) in zip(sizes.gammas, sizes.widths, strict=True)
    )
    return results.experiment(
        "Mean square of M against width, batch = width", table, findings, _draw, **attributes
    )


def _draw(data: Dataset, figure: Drawing) -> None:
    left, right = pictures.axes_of(figure, 2)[0]
    widths = data["width"].values
    for ax, source in ((left, data), (right, data / data["width"] ** 1.5)):
        ensembles.draw_widths(ax, source, "squared_norm")
        for index, theory in enumerate(source["lemma_13"].values):
            ax.plot(widths, theory, ":", color=COLOURS[index % len(COLOURS)])
        ax.plot([], [], ":", color="grey", label="Lemma 13, $\\alpha$ measured")
        pictures.label_widths(ax, widths)
    left.plot(widths, widths**1.5, "--", color="black", linewidth=1, label="$d^{3/2}$")
    pictures.logarithmic(left)
    left.set(ylabel=r"$E\,\|M\|_F^2$", title="As in the paper")
    right.set(ylabel=r"$E\,\|M\|_F^2 \,/\, d^{3/2}$", title="In units of $d^{3/2}$")
    left.legend(fontsize="small")
    right.legend(fontsize="small")
    figure.suptitle(r"Mean square of $M$ against width, batch = width: 95 % intervals")
