"""TODO-DOC bnmc.experiments.rank_collapse.common.spectrum_over_depth."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bnmc._support.progress import Progress
from bnmc.chain.chain import Chain
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
    with_parameters,
)
from bnmc.experiments.rank_collapse.common import Float64Array, _interval
from bnmc.simulation.run import simulate

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

__all__ = ["fig_3b"]


class _Spectrum(NamedTuple):
    """Sizes of Fig. 3b; `shown` eigenvalues are drawn."""

    width: int
    depth: int
    chains: int
    shown: int = 10


_FIG_3B = _Spectrum(50, 100, 64), _Spectrum(50, 100, 500)


@with_parameters
def fig_3b(
    *,
    full: bool = False,
    rng: Any = 0,
    progress: bool | Progress = False,
    threads: int | None = None,
    store: Store = None,
) -> Experiment:
    r"""Fig. 3b: the ten largest eigenvalues of M over depth, from nearly equal samples.

    The paper has width and batch 50 and 100 layers of one network; its input is a constant
    matrix of about 50 plus noise of 1e-5, and γ is .01 with weights of standard deviation 100, so
    1.  Here are 64 networks, and 500 with `full`.

    All but the largest eigenvalue start near 1e-13 and rise, the first of them within ten layers;
    the largest falls from d.  They come to what the chain has from Gaussian inputs (strokes at the
    right): it forgets its start, one eigenvalue after the other.

    What the figure gets wrong: the authors' code iterates M itself in float64, and the small
    eigenvalues of the print are those of rounding errors.  By layer 5 its tenth eigenvalue is 30
    times too large, by layer 10 a thousand times, and until layer 100 it hides how slowly the
    directions come back; the largest two are right.  Iterating H with the same weights, in float64
    or longer, gives what is shown here.  The authors also write ``x @ x.T`` for a vector, which is
    a number, so that their input is constant but for the noise, and their first M has no unit
    diagonal.

    Returns
    -------
    Experiment

    Examples
    --------
    >>> from bnmc.experiments import rank_collapse
    >>> found = rank_collapse.fig_3b()  # doctest: +SKIP
    >>> found.plot().savefig("fig_3b.png")  # doctest: +SKIP
    """
    return _fig_3b(chosen(_FIG_3B, full), full, rng, progress, threads, store)


def _fig_3b(
    sizes: _Spectrum,
    full: bool,
    rng: Any,
    progress: bool | Progress,
    threads: int | None,
    store: Store = None,
) -> Experiment:
    sources = Sources(rng)
    d = sizes.width
    chain = Chain.bn_residual(d, d, gamma=1.0)
    noise = sources.generator.standard_normal((sizes.chains, d, d))
    with Parts(progress, "rank-collapse-3b", [1, 2], sources, full, store) as parts:
        run = parts.run(
            simulate, chain, sizes.depth, initial=d + 1e-5 * noise, sampler="weights",
            observables="eigenvalues", rng=sources.generator, threads=threads,
        )  # fmt: skip
        settled = parts.run(
            simulate, chain, 4 * sizes.depth, burn_in=2 * sizes.depth, every=4, chains=sizes.chains,
            observables="eigenvalues", rng=sources.generator, threads=threads,
        )  # fmt: skip
    eigenvalues = run["eigenvalues"]
    logs = _largest_logs(eigenvalues, sizes.shown)
    levels = np.exp(banded(_largest_logs(settled["eigenvalues"], sizes.shown).mean(axis=1)))
    r = banded(np.square(eigenvalues.sum(axis=-1)) / np.square(eigenvalues).sum(axis=-1))
    data = dataset(
        {
            **with_ends(
                "eigenvalue",
                ("layer", "mode"), np.exp(banded(logs)),
                "eigenvalues of M, geometric mean",
            ),
            **with_ends(
                "settled",
                ("mode",), levels, "the same from Gaussian inputs, deep layers"
            ),
            **with_ends("rank_bound", ("layer",), r, "r, lower bound of the rank"),
        },
        {
            "layer": Variable(("layer",), run.layers, "layer"),
            "mode": Variable(("mode",), np.arange(1, sizes.shown + 1), "eigenvalue, largest first"),
        },
        sources,
        full,
        {"width": d, "batch": d, "gamma": 1.0, "chains": sizes.chains,
         "start": f"{d} plus noise of 1e-5"},
    )  # fmt: skip
    found = curve(data, "eigenvalue")
    first, tenth, last = found[[0, 10, sizes.depth]]
    table = Table(
        ("eigenvalue", "layer 0", "layer 10", "last layer", "from Gaussian inputs"),
        tuple(
            (mode + 1, first[mode, 0], tenth[mode, 0], _interval(last[mode]),
             _interval(levels[mode]))
            for mode in range(sizes.shown)
        ),
    )  # fmt: skip
    findings = (
        f"The second eigenvalue rises from {first[1, 0]:.1e} to {tenth[1, 0]:.2f} in ten layers, "
        f"while the largest falls from {first[0, 0]:.1f} to {tenth[0, 0]:.1f}.",
        f"At layer {sizes.depth} the largest is {_interval(last[0])} and the second "
        f"{_interval(last[1])}; from Gaussian inputs {_interval(levels[0])} and "
        f"{_interval(levels[1])}.",
        f"r rises from {r[0, 0]:.2f} to {_interval(r[-1])}.",
    )
    title = f"Largest eigenvalues of M from nearly equal samples, width and batch {d}"
    return Experiment("rank-collapse-3b", title, data, table, findings, _draw_3b)


def _largest_logs(eigenvalues: Float64Array, count: int) -> Float64Array:
    """Logarithms of the largest eigenvalues, of ascending ones: largest first."""
    logs: Float64Array = np.log(np.maximum(eigenvalues[..., : -count - 1 : -1], _SMALLEST))
    return logs


_SMALLEST = float(np.finfo(np.float64).tiny)


def _draw_3b(data: xarray.Dataset, figure: Figure) -> None:
    from matplotlib import colormaps

    ((ax,),) = axes_of(figure, 1, width=7.6, height=4.8)
    ax.set_yscale("log")
    layers = data.layer.values
    colours = colormaps["viridis"](np.linspace(0, 0.9, data.sizes["mode"]))
    for index, (mode, colour) in enumerate(zip(data.mode.values, colours, strict=True)):
        draw_band(ax, layers, curve(data, "eigenvalue")[:, index], colour, rf"$\lambda_{{{mode}}}$")
        ax.plot(layers[[-1]] * [1.01, 1.06], data.settled.values[[index, index]], color=colour)
    ax.plot([], [], color="grey", label="from Gaussian\ninputs (right)")
    ax.set(
        xlabel="layer",
        ylabel="eigenvalues of $M$, geometric mean",
        ylim=(1e-14, 100),
    )
    ax.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1.0, 1.0))
    ax.set_title(
        f"Largest eigenvalues of $M$ from nearly equal samples, width and batch "
        f"{data.attrs['width']}:\nmean of {data.attrs['chains']} networks, 95 % interval"
    )
