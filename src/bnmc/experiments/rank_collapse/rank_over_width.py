"""Fig. 3a: the rank of deep layers against the width, for several γ."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from bnmc._support.progress import Progress
from bnmc.bounds import rank_collapse as bounds
from bnmc.experiments.data import Variable, estimated
from bnmc.experiments.experiment import Experiment, Table, with_parameters
from bnmc.experiments.parts import Call, Store, chosen
from bnmc.experiments.pictures import axes_of, label_widths, logarithmic
from bnmc.experiments.rank_collapse.ensembles import (
    DEFAULT,
    FULL,
    EnsembleSizes,
    all_widths,
    dataset_of,
    draw_widths,
    gamma_name,
    measure,
    slope_in_width,
    table_of,
)
from bnmc.experiments.statistics import interval
from bnmc.plot.axes import COLOURS

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

__all__ = ["experiment", "fig_3a"]


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
    call = Call("rank-collapse-3a", full, rng, progress, threads, store)
    return experiment(chosen(DEFAULT, FULL, full), call)


def experiment(ensembles: tuple[EnsembleSizes, ...], call: Call) -> Experiment:
    """Run the experiment with these sizes."""
    found = measure(ensembles, call)
    ranks = [slope_in_width(one, "rank_bound") for one in found]
    soft_ranks = [slope_in_width(one, "soft_rank") for one in found]
    alphas = table_of(found, "alpha")[..., 0]
    with np.errstate(invalid="ignore"):
        theory = 2 * np.sqrt(1 - alphas) * np.sqrt(all_widths(found))
    data = dataset_of(
        found, ensembles,
        {"rank_bound": "r, lower bound of the rank", "soft_rank": "soft rank, tau = 1/2"}, call,
        {
            "theorem_14": Variable(("gamma", "width"), theory, "bound of r in Theorem 14"),
            **estimated("rank_bound_slope", ("gamma",), ranks, "slope of log r in log d"),
            **estimated(
                "soft_rank_slope", ("gamma",), soft_ranks,
                "slope of the log soft rank in log d",
            ),
        },
    )  # fmt: skip
    table = Table(
        ("gamma", "width", "r", "soft rank", "bound of r"),
        tuple(
            (
                gamma_name(one), part.chain.width, part.rank_bound, part.soft_rank,
                float(bounds.theorem_14(part.chain.width, min(part.alpha.value, 1 - 1e-9), 0)),
            )
            for one in found for part in one.averages
        ),
    )  # fmt: skip
    findings = tuple(
        f"gamma = {gamma_name(one)}: r grows with a slope of {interval(fitted)} in the "
        f"width, the soft rank with {interval(soft)}; the theorem states 1/2."
        for one, fitted, soft in zip(found, ranks, soft_ranks, strict=True)
    )
    return Experiment(
        call.name, "Rank against width, batch = width", data, table, findings, _draw
    )  # fmt: skip


def _draw(data: xarray.Dataset, figure: Figure) -> None:
    left, right = axes_of(figure, 2)[0]
    widths = data.width.values
    for ax, name in ((left, "rank_bound"), (right, "soft_rank")):
        draw_widths(ax, data, name)
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
