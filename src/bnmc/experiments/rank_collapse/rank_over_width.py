"""Fig. 3a: the rank of deep layers against the width, for several γ."""

from __future__ import annotations

import numpy as np

from bnmc.bounds import rank_collapse as bounds
from bnmc.experiments import kit, pictures
from bnmc.experiments.experiment import Dataset, Drawing, Experiment
from bnmc.experiments.rank_collapse import ensembles
from bnmc.experiments.runs import Run
from bnmc.experiments.statistics import interval
from bnmc.plot.axes import COLOURS

#: Both ranks, with their descriptions and those of their slopes.
_RANKS = {
    "rank_bound": ("r, lower bound of the rank", "slope of log r in log d"),
    "soft_rank": ("soft rank, tau = 1/2", "slope of the log soft rank in log d"),
}


@kit.figure("rank-collapse-3a", ensembles.Sizes(), **ensembles.FULL)
def fig_3a(run: Run, sizes: ensembles.Sizes) -> Experiment:
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
    dims = ensembles.DIMS
    results, averages, attributes = ensembles.measure(run, sizes)
    ranks, slopes = {}, {}
    for name, (text, text_of_slope) in _RANKS.items():
        ranks[name] = results.add(name, dims, averages[name], text)
        slopes[name] = ensembles.slopes(sizes, averages[name])
        results.add(f"{name}_slope", ("gamma",), slopes[name], text_of_slope)
    lower = {
        (gamma, width): float(bounds.theorem_14(width, alpha.value, 0.0))
        for (gamma, width), alpha in averages["alpha"].items()
    }
    theorem = results.add("theorem_14", dims, lower, "bound of r in Theorem 14")
    table = ensembles.table_of({
        "r": ranks["rank_bound"], "soft rank": ranks["soft_rank"], "bound of r": theorem,
    })  # fmt: skip
    findings = (
        f"gamma = {gamma:g}: r grows with a slope of {interval(slopes['rank_bound'][gamma,])} in "
        f"the width, the soft rank with {interval(slopes['soft_rank'][gamma,])}; the theorem "
        "states 1/2."
        for gamma in sizes.gammas
    )
    return results.experiment(
        "Rank against width, batch = width", table, findings, _draw, **attributes
    )


def _draw(data: Dataset, figure: Drawing) -> None:
    left, right = pictures.axes_of(figure, 2)[0]
    widths = data["width"].values
    for ax, name in ((left, "rank_bound"), (right, "soft_rank")):
        ensembles.draw_widths(ax, data, name)
        ax.plot(widths, np.sqrt(widths), "--", color="black", linewidth=1, label=r"$\sqrt{d}$")
        pictures.logarithmic(ax)
        pictures.label_widths(ax, widths)
        ax.set(ylabel=data[name].attrs["long_name"].replace("tau = 1/2", r"$\tau = 1/2$"))
    for index, theory in enumerate(data["theorem_14"].values):
        left.plot(widths, theory, ":", color=COLOURS[index % len(COLOURS)])
    left.plot([], [], ":", color="grey", label=r"bound $2\sqrt{1-\alpha}\sqrt{d}$")
    left.legend(fontsize="small")
    right.legend(fontsize="small")
    figure.suptitle("Rank of deep layers against width, batch = width: 95 % intervals")
