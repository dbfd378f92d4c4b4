"""Fig. 7's claim on the chain: the rank with and without centring in batch normalization."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import numpy as np

from bnmc.bounds import orthogonalizes as gap_bounds
from bnmc.chain.chain import Chain
from bnmc.estimate.estimate import Estimate
from bnmc.experiments import kit, pictures
from bnmc.experiments.kit import Dataset, Drawing, Experiment, Float64Array, Progress, Run
from bnmc.experiments.sizes import Several
from bnmc.experiments.statistics import interval
from bnmc.gram import rank_bound
from bnmc.mean_field.field import MeanField
from bnmc.plot.axes import COLOURS
from bnmc.simulation.observables import Observable
from bnmc.simulation.run import simulate

#: The variables of both quantities, with their descriptions and heads in the table.
_QUANTITIES = {
    "rank_bound": ("r, lower bound of the rank", "r"),
    "common_part": ("part of the squares that samples share", "common part"),
}

#: The variables of their theory.
_IN_THEORY = {"rank_bound": "rank_in_theory", "common_part": "common_part_in_theory"}


class Sizes(NamedTuple):
    """Sizes of the figure.

    width: width; in narrower relu networks without centring all neurons may become 0
    batch: batch size; one of the networks has one sample less
    depth: number of layers, of which averages are over the second half
    """

    width: Annotated[int, {"low": 40}] = 128
    batch: Annotated[int, {"low": 3}] = 16
    depth: int = 120
    networks: Several = 100


@kit.figure("rank-collapse-centring", Sizes(), width=512, batch=32, depth=400, networks=1000)
def centring(run: Run, sizes: Sizes) -> Experiment:
    r"""Fig. 7's claim on the chain: the effect of centring on the rank.

    The paper drops the mean from batch normalization, argues that rows are centred on average under
    the stationary law (Lemma 4), and shows in Fig. 7 that a VGG net trains as well without
    centring.  Here r is measured with and without centring over depth, for linear and ReLU networks
    that start from nearly equal samples.  Width d and batch size n are 128 and 16 (512 and 32 with
    `full`).

    For linear networks the claim holds, exactly: centring removes one dimension.  The law of the
    centred chain is that of the uncentred chain with one sample less, and
    ``E 1/r = 1/m + E V² ≃ 1/m + (m−1)(m+2)²/(4m(m+1)d)``, with V the orthogonality gap and m =
    n − 1 or n (drawn).  Without centring, the squared mean of a row is on average 1/n of its mean
    square, as for any other direction.

    For ReLU networks the claim fails.  Without centring all samples have a common part, which the
    fixed point of the mean field describes (drawn).  As the batch size grows, r tends to 1/c*², and
    centring reduces the correlations c* from about .5 to .3.

    Returns
    -------
    Experiment

    Examples
    --------
    >>> from bnmc.experiments import rank_collapse
    >>> found = rank_collapse.centring()  # doctest: +SKIP
    >>> found.plot().savefig("centring.png")  # doctest: +SKIP
    """
    d, n, half = sizes.width, sizes.batch, sizes.depth // 2
    cases = {
        "linear, centred": Chain(d, n, "linear"),
        "linear, uncentred": Chain(d, n, "linear", norm="batch-uncentred"),
        "linear, uncentred, one sample less": Chain(d, n - 1, "linear", norm="batch-uncentred"),
        "relu, centred": Chain(d, n, "relu"),
        "relu, uncentred": Chain(d, n, "relu", norm="batch-uncentred"),
    }
    results = kit.Results(
        run, case=kit.Axis(cases, "network", ""), layer=np.arange(sizes.depth + 1)
    )
    per = ("case",)

    def ranks_and_common_parts(case: str, progress: Progress) -> tuple[Float64Array, Float64Array]:
        """Return r and the part of the squares that samples share, (networks, layers)."""
        measured = simulate(
            cases[case], sizes.depth, chains=sizes.networks, initial="collinear",
            observables=["rank_bound", Observable(_common_part, name="common_part")],
            **run.options(progress),
        )  # fmt: skip
        return measured["rank_bound"], measured["common_part"]

    parts = run.parts(ranks_and_common_parts, results.points(*per))
    theory = {(case,): _in_theory(chain) for case, chain in cases.items()}
    columns = {}
    for place, (name, (text, head)) in enumerate(_QUANTITIES.items()):
        samples = kit.entry(parts, place)
        results.add_means(name, ("case", "layer"), samples, text)
        deep = kit.each(samples, lambda values: values[:, half:].mean(axis=1))
        columns[head] = results.column(per, kit.each(deep, Estimate.from_samples))
        columns[f"{head} in theory"] = results.add(
            _IN_THEORY[name], per, kit.entry(theory, place), f"{head} in theory"
        )
    ranks = list(map(interval, columns["r"].values))
    stars = columns["r in theory"].values
    findings = (
        f"Linear: centred r is {ranks[0]}, uncentred {ranks[1]}, and with "
        f"one sample less {ranks[2]}: the law of the centred one.",
        f"ReLU: centred r is {ranks[3]} (fixed point {stars[3]:.3f}), uncentred "
        f"{ranks[4]} (fixed point {stars[4]:.3f}).",
    )
    return results.experiment(
        f"Rank with and without centring, width {d}, batch {n}",
        kit.table_of(columns, ("network",)), findings, _draw, width=d, batch=n,
        chains=sizes.networks, start="nearly equal samples", settled_from_layer=half,
    )  # fmt: skip


def _common_part(G: Float64Array) -> float:
    """Return ``1ᵀ G 1 / (n Tr G)``: the squared mean over samples, relative to the mean square."""
    return float(G.sum() / (len(G) * np.trace(G)))


def _in_theory(chain: Chain) -> tuple[float, float]:
    """Return the stationary r and common part.

    For linear networks r is to order 1/d, and the common part is exact, by symmetry.  For other
    networks both are those of infinite width.
    """
    if chain.activation.name == "linear":
        norm = chain.normalization
        m = norm.dimensions(chain.batch)
        inverse = 1 / m + float(gap_bounds.stationary_squared_gap(chain.width, m))
        return 1 / inverse, 0.0 if norm.hides_common_part else 1 / chain.batch
    star = MeanField(chain).fixed_point().gram
    return float(rank_bound(star)), _common_part(star)


def _draw(data: Dataset, figure: Drawing) -> None:
    axes = pictures.axes_of(figure, 3, width=4.6)[0]
    near = data.sel(layer=slice(60))
    for case, colour in zip(data["case"].values, COLOURS, strict=False):
        activation, label = case.split(", ", 1)
        style = "--" if "less" in case else "-"
        ax = axes[0] if activation == "linear" else axes[1]
        for panel, name, text in ((ax, "rank_bound", label), (axes[2], "common_part", case)):
            values = pictures.curve(near.sel(case=case), name)
            pictures.draw_band(panel, near["layer"].values, values, colour, text, linestyle=style)
            theory = float(data[_IN_THEORY[name]].sel(case=case))
            panel.axhline(theory, color=colour, linestyle=":", linewidth=1)
    axes[0].plot([], [], ":", color="grey", label="theory, order $1/d$")
    axes[1].plot([], [], ":", color="grey", label=r"fixed point, $d = \infty$")
    bound = "$r$, lower bound of the rank"
    for ax, title, y, ends in (
        (axes[0], "linear", bound, (0, None)), (axes[1], "relu", bound, (0, None)),
        (axes[2], "what samples share", "part of squares", (-0.02, 1.02)),
    ):  # fmt: skip
        ax.set(title=title, xlabel="layer", ylabel=y, ylim=ends)
        ax.legend(fontsize="small")
    text = "Batch norm with and without centring, width {width}, batch {batch}"
    figure.suptitle(pictures.about(data, text))
