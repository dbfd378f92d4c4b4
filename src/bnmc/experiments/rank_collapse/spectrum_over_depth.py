"""Fig. 3b: the largest eigenvalues of M over depth, from nearly equal samples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnmc._support.progress import Progress
from bnmc.chain.chain import Chain
from bnmc.experiments.data import Variable, curve, dataset, with_ends
from bnmc.experiments.experiment import Experiment, Table, with_parameters
from bnmc.experiments.parts import Call, Store, chosen
from bnmc.experiments.pictures import axes_of, draw_band
from bnmc.experiments.statistics import banded, short_interval
from bnmc.simulation.run import simulate

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

__all__ = ["DEFAULT", "FULL", "Sizes", "experiment", "fig_3b"]

Float64Array = NDArray[np.float64]


class Sizes(NamedTuple):
    """Width (also the batch size), layers, networks, and the number of eigenvalues to draw."""

    width: int
    depth: int
    chains: int
    shown: int = 10


DEFAULT = Sizes(50, 100, 64)
FULL = Sizes(50, 100, 500)

#: Eigenvalues below this count as this, because rounding can make them 0 or negative.
_SMALLEST = float(np.finfo(np.float64).tiny)


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

    The paper uses width and batch size 50, and 100 layers of one network.  Its input is a constant
    matrix of about 50 plus noise of 1e-5.  Its γ is .01 with weights of standard deviation 100,
    which equals γ = 1 with weights of standard deviation 1.  Here there are 64 networks, and 500
    with `full`.

    Expected: all eigenvalues except the largest start near 1e-13 and rise, the second within ten
    layers; the largest falls from d.  One after the other, all converge to the stationary values
    from Gaussian inputs (strokes at the right).

    Errors of the figure: the authors' code iterates M itself in float64, and the small eigenvalues
    of the printed figure are rounding errors.  At layer 5 its tenth eigenvalue is 30 times too
    large, and at layer 10 a thousand times.  Until layer 100 the rounding errors hide how slowly
    the directions return.  The two largest eigenvalues are right.  Iterating H with the same
    weights gives the values shown here, in float64 and in higher precision.  The authors also
    write ``x @ x.T`` for a vector, which is a number.  So their input is constant except for the
    noise, and their first M has no unit diagonal.

    Returns
    -------
    Experiment

    Examples
    --------
    >>> from bnmc.experiments import rank_collapse
    >>> found = rank_collapse.fig_3b()  # doctest: +SKIP
    >>> found.plot().savefig("fig_3b.png")  # doctest: +SKIP
    """
    call = Call("rank-collapse-3b", full, rng, progress, threads, store)
    return experiment(chosen(DEFAULT, FULL, full), call)


def experiment(sizes: Sizes, call: Call) -> Experiment:
    """Run the experiment with these sizes."""
    d = sizes.width
    chain = Chain.bn_residual(d, d, gamma=1.0)
    noise = call.generator.standard_normal((sizes.chains, d, d))
    with call.parts([1, 2]) as parts:
        run = parts.run(
            simulate, chain, sizes.depth, initial=d + 1e-5 * noise, sampler="weights",
            observables="eigenvalues", rng=call.generator, threads=call.threads,
        )  # fmt: skip
        stationary = parts.run(
            simulate, chain, 4 * sizes.depth, burn_in=2 * sizes.depth, every=4, chains=sizes.chains,
            observables="eigenvalues", rng=call.generator, threads=call.threads,
        )  # fmt: skip
    eigenvalues = run["eigenvalues"]
    found = np.exp(banded(_largest_logs(eigenvalues, sizes.shown)))
    levels = np.exp(banded(_largest_logs(stationary["eigenvalues"], sizes.shown).mean(axis=1)))
    r = banded(np.square(eigenvalues.sum(axis=-1)) / np.square(eigenvalues).sum(axis=-1))
    data = dataset(
        {
            **with_ends(
                "eigenvalue", ("layer", "mode"), found, "eigenvalues of M, geometric mean"
            ),
            **with_ends(
                "settled", ("mode",), levels, "the same from Gaussian inputs, deep layers"
            ),
            **with_ends("rank_bound", ("layer",), r, "r, lower bound of the rank"),
        },
        {
            "layer": Variable(("layer",), run.layers, "layer"),
            "mode": Variable(("mode",), np.arange(1, sizes.shown + 1), "eigenvalue, largest first"),
        },
        call,
        {
            "width": d, "batch": d, "gamma": 1.0, "chains": sizes.chains,
            "start": f"{d} plus noise of 1e-5",
        },
    )  # fmt: skip
    first, tenth, last = found[[0, 10, sizes.depth]]
    table = Table(
        ("eigenvalue", "layer 0", "layer 10", "last layer", "from Gaussian inputs"),
        tuple(
            (mode + 1, first[mode, 0], tenth[mode, 0], short_interval(last[mode]),
             short_interval(levels[mode]))
            for mode in range(sizes.shown)
        ),
    )  # fmt: skip
    findings = (
        f"The second eigenvalue rises from {first[1, 0]:.1e} to {tenth[1, 0]:.2f} in ten layers, "
        f"while the largest falls from {first[0, 0]:.1f} to {tenth[0, 0]:.1f}.",
        f"At layer {sizes.depth} the largest is {short_interval(last[0])} and the second "
        f"{short_interval(last[1])}; from Gaussian inputs {short_interval(levels[0])} and "
        f"{short_interval(levels[1])}.",
        f"r rises from {r[0, 0]:.2f} to {short_interval(r[-1])}.",
    )
    title = f"Largest eigenvalues of M from nearly equal samples, width and batch {d}"
    return Experiment(call.name, title, data, table, findings, _draw)


def _largest_logs(eigenvalues: Float64Array, count: int) -> Float64Array:
    """Return the logs of the largest eigenvalues, largest first, from ascending eigenvalues."""
    logs: Float64Array = np.log(np.maximum(eigenvalues[..., : -count - 1 : -1], _SMALLEST))
    return logs


def _draw(data: xarray.Dataset, figure: Figure) -> None:
    from matplotlib import colormaps

    ((ax,),) = axes_of(figure, 1, width=7.6, height=4.8)
    ax.set_yscale("log")
    layers = data.layer.values
    colours = colormaps["viridis"](np.linspace(0, 0.9, data.sizes["mode"]))
    for index, (mode, colour) in enumerate(zip(data.mode.values, colours, strict=True)):
        draw_band(ax, layers, curve(data, "eigenvalue")[:, index], colour, rf"$\lambda_{{{mode}}}$")
        ax.plot(layers[[-1]] * [1.01, 1.06], data.settled.values[[index, index]], color=colour)
    ax.plot([], [], color="grey", label="from Gaussian\ninputs (right)")
    ax.set(xlabel="layer", ylabel="eigenvalues of $M$, geometric mean", ylim=(1e-14, 100))
    ax.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1.0, 1.0))
    ax.set_title(
        f"Largest eigenvalues of $M$ from nearly equal samples, width and batch "
        f"{data.attrs['width']}:\nmean of {data.attrs['chains']} networks, 95 % interval"
    )
