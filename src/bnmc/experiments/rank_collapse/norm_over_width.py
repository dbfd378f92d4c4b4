"""Fig. 9: the stationary mean of ‖M‖_F² against the width."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from bnmc._support.progress import Progress
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

__all__ = ["experiment", "fig_9"]


@with_parameters
def fig_9(
    *,
    full: bool = False,
    rng: Any = 0,
    progress: bool | Progress = False,
    threads: int | None = None,
    store: Store = None,
) -> Experiment:
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
    call = Call("rank-collapse-9", full, rng, progress, threads, store)
    return experiment(chosen(DEFAULT, FULL, full), call)


def experiment(ensembles: tuple[EnsembleSizes, ...], call: Call) -> Experiment:
    """Run the experiment with these sizes."""
    found = measure(ensembles, call)
    slopes = [slope_in_width(one, "squared_norm") for one in found]
    alphas = table_of(found, "alpha")[..., 0]
    theory = all_widths(found) ** 1.5 / (2 * np.sqrt(1 - alphas))
    data = dataset_of(
        found, ensembles,
        {"squared_norm": "mean of the squared norm of M", "alpha": "regularity constant"}, call,
        {
            "lemma_13": Variable(("gamma", "width"), theory, "bound of Lemma 13, alpha measured"),
            **estimated("slope", ("gamma",), slopes, "slope of log E|M|^2 in log d"),
        },
    )  # fmt: skip
    table = Table(
        ("gamma", "width", "E|M|^2", "over d^1.5", "Lemma 13 over d^1.5"),
        tuple(
            (gamma_name(one), part.chain.width, part.squared_norm, part.scaled_norm,
             _lemma_13(part.alpha.value))
            for one in found for part in one.averages
        ),
    )  # fmt: skip
    findings = tuple(
        f"gamma = {gamma_name(one)}: E|M|^2 grows with a slope of {interval(fitted)} in the "
        f"width, 3/2 in the bound of Lemma 13 at one alpha; at width {one.widths[-1]} it is "
        f"{one.averages[-1].scaled_norm.value:.3f} d^1.5, at most "
        f"{_lemma_13(one.averages[-1].alpha.value):.3f} by the lemma."
        for one, fitted in zip(found, slopes, strict=True)
    )
    title = "Mean square of M against width, batch = width"
    return Experiment(call.name, title, data, table, findings, _draw)


def _lemma_13(alpha: float) -> float:
    """Return the bound of Lemma 13 over d^{3/2}."""
    return 0.5 / math.sqrt(1 - alpha)


def _draw(data: xarray.Dataset, figure: Figure) -> None:
    left, right = axes_of(figure, 2)[0]
    widths = data.width.values
    scale = widths**1.5
    scaled = data.assign(
        {name: data[name] / data.width**1.5 for name in data if str(name).startswith("squared")}
    )
    for ax, source, unit in ((left, data, 1.0), (right, scaled, scale)):
        draw_widths(ax, source, "squared_norm")
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
