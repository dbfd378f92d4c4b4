"""TODO-DOC bnmc.experiments.rank_collapse.common.centred_or_not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bnmc import gram as grams
from bnmc._support.progress import Progress
from bnmc.bounds import orthogonalizes as gap_bounds
from bnmc.chain.chain import Chain
from bnmc.estimate.estimate import Estimate
from bnmc.experiments._common import banded, chosen, curve, draw_band, with_ends
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
    with_parameters,
)
from bnmc.experiments.rank_collapse.common import Float64Array
from bnmc.mean_field import MeanField
from bnmc.plot.axes import COLOURS
from bnmc.simulation.observables import Observable
from bnmc.simulation.run import simulate

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

__all__ = ["centring"]


class _Centring(NamedTuple):
    """Sizes of `centring`: the second half of the layers is averaged over."""

    width: int
    batch: int
    depth: int
    chains: int


_CENTRING = _Centring(128, 16, 120, 100), _Centring(512, 32, 400, 1000)


@with_parameters
def centring(
    *,
    full: bool = False,
    rng: Any = 0,
    progress: bool | Progress = False,
    threads: int | None = None,
    store: Store = None,
) -> Experiment:
    r"""Fig. 7's claim on the chain: what centring does to the rank.

    The paper drops the mean from batch normalization, argues that rows are centred on average
    under the invariant law (Lemma 4), and shows in Fig. 7 that a VGG net trains as well without.
    Here r is measured with and without centring over depth, from nearly equal samples, width 128
    and batch 16 (512 and 32 with `full`), linear and ReLU networks.

    For linear networks the claim holds, and exactly so: centring takes one dimension, since the
    centred chain is the uncentred one with one sample less in law, with
    ``E 1/r = 1/m + E V² ≃ 1/m + (m−1)(m+2)²/(4m(m+1)d)``, m = n − 1 or n (drawn).  Without it the
    squared mean of a row is 1/n of its square, no more than of any other direction.

    For ReLU networks it fails.  Without centring the activations keep a common part, which
    their mean field knows (the fixed point, drawn): r tends to 1/c*² as the batch grows, with
    correlations c* that centring takes from about .5 to .3.

    Returns
    -------
    Experiment

    Examples
    --------
    >>> from bnmc.experiments import rank_collapse
    >>> found = rank_collapse.centring()  # doctest: +SKIP
    >>> found.plot().savefig("centring.png")  # doctest: +SKIP
    """
    return _centring(chosen(_CENTRING, full), full, rng, progress, threads, store)


def _centring(
    sizes: _Centring,
    full: bool,
    rng: Any,
    progress: bool | Progress,
    threads: int | None,
    store: Store = None,
) -> Experiment:
    sources = Sources(rng)
    d, n = sizes.width, sizes.batch
    cases = {
        "linear, centred": Chain(d, n, "linear"),
        "linear, uncentred": Chain(d, n, "linear", norm="batch-uncentred"),
        "linear, uncentred, one sample less": Chain(d, n - 1, "linear", norm="batch-uncentred"),
        "relu, centred": Chain(d, n, "relu"),
        "relu, uncentred": Chain(d, n, "relu", norm="batch-uncentred"),
    }
    curves, shares, settled, settled_shares, theory, common = [], [], [], [], [], []
    with Parts(
        progress, "rank-collapse-centring", [1.0] * len(cases), sources, full, store
    ) as parts:
        for chain in cases.values():
            run = parts.run(
                simulate, chain, sizes.depth, chains=sizes.chains, initial="collinear",
                observables=["rank_bound", Observable(_common_part, name="common_part")],
                rng=sources.generator, threads=threads,
            )  # fmt: skip
            half = sizes.depth // 2
            curves.append(banded(run["rank_bound"]))
            shares.append(banded(run["common_part"]))
            settled.append(Estimate.from_samples(run["rank_bound"][:, half:].mean(axis=1)))
            settled_shares.append(Estimate.from_samples(run["common_part"][:, half:].mean(axis=1)))
            rank, part = _in_theory(chain)
            theory.append(rank)
            common.append(part)
    data = dataset(
        {
            **with_ends("rank_bound", ("case", "layer"), curves, "r, lower bound of the rank"),
            **with_ends(
                "common_part",
                ("case", "layer"), shares, "part of the squares that samples share"
            ),
            "rank_in_theory": Variable(("case",), theory, "r in theory"),
            "common_part_in_theory": Variable(("case",), common, "common part in theory"),
        },
        {
            "case": Variable(("case",), list(cases), "network", ""),
            "layer": Variable(("layer",), run.layers, "layer"),
        },
        sources,
        full,
        {"width": d, "batch": n, "chains": sizes.chains, "start": "nearly equal samples",
         "settled_from_layer": sizes.depth // 2},
    )  # fmt: skip
    rows = tuple(zip(cases, settled, theory, settled_shares, common, strict=True))
    table = Table(("network", "r", "r in theory", "common part", "common part in theory"), rows)
    findings = (
        f"Linear: centred r is {interval(settled[0])}, uncentred {interval(settled[1])}, and with "
        f"one sample less {interval(settled[2])}: the law of the centred one.",
        f"ReLU: centred r is {interval(settled[3])} (fixed point {theory[3]:.3f}), uncentred "
        f"{interval(settled[4])} (fixed point {theory[4]:.3f}).",
    )
    title = f"Rank with and without centring, width {d}, batch {n}"
    return Experiment("rank-collapse-centring", title, data, table, findings, _draw_centring)


def _common_part(G: Float64Array) -> float:
    """``1ᵀ G 1 / (n Tr G)``: what part of the squares the mean over samples is."""
    return float(G.sum() / (len(G) * np.trace(G)))


def _in_theory(chain: Chain) -> tuple[float, float]:
    """Where r and `_common_part` settle.

    Of linear networks to order 1/d and, by symmetry, exactly; of others at infinite width.
    """
    if chain.activation.name == "linear":
        is_centred = chain.norm == "batch"
        m = chain.batch - is_centred
        inverse = 1 / m + float(gap_bounds.stationary_squared_gap(chain.width, m))
        return 1 / inverse, 0.0 if is_centred else 1 / chain.batch
    star = MeanField(chain).fixed_point().gram
    return float(grams.rank_bound(star)), _common_part(star)


def _draw_centring(data: xarray.Dataset, figure: Figure) -> None:
    axes = axes_of(figure, 3, width=4.6)[0]
    layers = data.layer.values
    last = np.minimum(layers[-1], 60)
    seen = layers <= last
    for index, (case, colour) in enumerate(zip(data.case.values, COLOURS, strict=False)):
        activation, label = case.split(", ", 1)
        style = "--" if "less" in case else "-"
        ax = axes[0] if activation == "linear" else axes[1]
        draw_band(
            ax, layers[seen], curve(data, "rank_bound")[index][seen], colour, label, linestyle=style
        )
        ax.axhline(float(data.rank_in_theory[index]), color=colour, linestyle=":", linewidth=1)
        draw_band(
            axes[2], layers[seen], curve(data, "common_part")[index][seen], colour, case,
            linestyle=style,
        )  # fmt: skip
        axes[2].axhline(
            float(data.common_part_in_theory[index]), color=colour, linestyle=":", linewidth=1
        )
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
