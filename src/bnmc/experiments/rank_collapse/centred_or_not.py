"""Fig. 7's claim on the chain: the rank with and without centring in batch normalization."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnmc._support.progress import Progress
from bnmc.bounds import orthogonalizes as gap_bounds
from bnmc.chain.chain import Chain
from bnmc.estimate.estimate import Estimate
from bnmc.experiments.data import Variable, curve, dataset, with_ends
from bnmc.experiments.experiment import Experiment, Table, with_parameters
from bnmc.experiments.parts import Call, Store, chosen
from bnmc.experiments.pictures import axes_of, draw_band
from bnmc.experiments.statistics import banded, interval
from bnmc.gram import rank_bound
from bnmc.mean_field.field import MeanField
from bnmc.plot.axes import COLOURS
from bnmc.simulation.observables import Observable
from bnmc.simulation.run import simulate

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

__all__ = ["DEFAULT", "FULL", "Sizes", "centring", "experiment"]

Float64Array = NDArray[np.float64]


class Sizes(NamedTuple):
    """Width, batch size, layers, and networks.  Averages are over the second half of the layers."""

    width: int
    batch: int
    depth: int
    chains: int


DEFAULT = Sizes(128, 16, 120, 100)
FULL = Sizes(512, 32, 400, 1000)


@with_parameters
def centring(
    *,
    full: bool = False,
    rng: Any = 0,
    progress: bool | Progress = False,
    threads: int | None = None,
    store: Store = None,
) -> Experiment:
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
    call = Call("rank-collapse-centring", full, rng, progress, threads, store)
    return experiment(chosen(DEFAULT, FULL, full), call)


class _Measured(NamedTuple):
    """Recorded layers, and results by case.

    `ranks` (r) and `common_parts` have the shape (layers, 3); their means are over the second half
    of the layers.
    """

    layers: NDArray[np.int64]
    ranks: list[Float64Array]
    common_parts: list[Float64Array]
    mean_ranks: list[Estimate]
    mean_common_parts: list[Estimate]


def experiment(sizes: Sizes, call: Call) -> Experiment:
    """Run the experiment with these sizes."""
    d, n = sizes.width, sizes.batch
    cases = {
        "linear, centred": Chain(d, n, "linear"),
        "linear, uncentred": Chain(d, n, "linear", norm="batch-uncentred"),
        "linear, uncentred, one sample less": Chain(d, n - 1, "linear", norm="batch-uncentred"),
        "relu, centred": Chain(d, n, "relu"),
        "relu, uncentred": Chain(d, n, "relu", norm="batch-uncentred"),
    }
    found = _measure(sizes, call, cases)
    ranks, common_parts = zip(*map(_in_theory, cases.values()), strict=True)
    data = dataset(
        {
            **with_ends("rank_bound", ("case", "layer"), found.ranks, "r, lower bound of the rank"),
            **with_ends(
                "common_part", ("case", "layer"), found.common_parts,
                "part of the squares that samples share",
            ),
            "rank_in_theory": Variable(("case",), ranks, "r in theory"),
            "common_part_in_theory": Variable(("case",), common_parts, "common part in theory"),
        },
        {
            "case": Variable(("case",), list(cases), "network", ""),
            "layer": Variable(("layer",), found.layers, "layer"),
        },
        call,
        {
            "width": d, "batch": n, "chains": sizes.chains, "start": "nearly equal samples",
            "settled_from_layer": sizes.depth // 2,
        },
    )  # fmt: skip
    means = found.mean_ranks
    table = Table(
        ("network", "r", "r in theory", "common part", "common part in theory"),
        tuple(zip(cases, means, ranks, found.mean_common_parts, common_parts, strict=True)),
    )
    findings = (
        f"Linear: centred r is {interval(means[0])}, uncentred {interval(means[1])}, and with "
        f"one sample less {interval(means[2])}: the law of the centred one.",
        f"ReLU: centred r is {interval(means[3])} (fixed point {ranks[3]:.3f}), uncentred "
        f"{interval(means[4])} (fixed point {ranks[4]:.3f}).",
    )
    title = f"Rank with and without centring, width {d}, batch {n}"
    return Experiment(call.name, title, data, table, findings, _draw)


def _measure(sizes: Sizes, call: Call, cases: dict[str, Chain]) -> _Measured:
    half = sizes.depth // 2
    curves: dict[str, list[Float64Array]] = {"rank_bound": [], "common_part": []}
    means: dict[str, list[Estimate]] = {"rank_bound": [], "common_part": []}
    with call.parts([1.0] * len(cases)) as parts:
        for chain in cases.values():
            run = parts.run(
                simulate, chain, sizes.depth, chains=sizes.chains, initial="collinear",
                observables=["rank_bound", Observable(_common_part, name="common_part")],
                rng=call.generator, threads=call.threads,
            )  # fmt: skip
            for name in curves:
                curves[name].append(banded(run[name]))
                means[name].append(Estimate.from_samples(run[name][:, half:].mean(axis=1)))
    return _Measured(
        run.layers, curves["rank_bound"], curves["common_part"], means["rank_bound"],
        means["common_part"],
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


def _draw(data: xarray.Dataset, figure: Figure) -> None:
    axes = axes_of(figure, 3, width=4.6)[0]
    layers = data.layer.values
    seen = layers <= np.minimum(layers[-1], 60)
    for index, (case, colour) in enumerate(zip(data.case.values, COLOURS, strict=False)):
        activation, label = case.split(", ", 1)
        style = "--" if "less" in case else "-"
        ax = axes[0] if activation == "linear" else axes[1]
        for panel, name, text in ((ax, "rank", label), (axes[2], "common_part", case)):
            variable = "rank_bound" if name == "rank" else name
            draw_band(
                panel, layers[seen], curve(data, variable)[index][seen], colour, text,
                linestyle=style,
            )  # fmt: skip
            theory = float(data[f"{name}_in_theory"][index])
            panel.axhline(theory, color=colour, linestyle=":", linewidth=1)
    axes[0].plot([], [], ":", color="grey", label="theory, order $1/d$")
    axes[1].plot([], [], ":", color="grey", label=r"fixed point, $d = \infty$")
    axes[0].set(title="linear", ylabel="$r$, lower bound of the rank", ylim=(0, None))
    axes[1].set(title="relu", ylabel="$r$, lower bound of the rank", ylim=(0, None))
    axes[2].set(title="what samples share", ylabel="part of squares", ylim=(-0.02, 1.02))
    for ax in axes:
        ax.set_xlabel("layer")
        ax.legend(fontsize="small")
    figure.suptitle(
        f"Batch norm with and without centring, width {data.attrs['width']}, batch "
        f"{data.attrs['batch']}: mean of {data.attrs['chains']} networks, 95 % interval"
    )
