"""Fig. 3b: the largest eigenvalues of M over depth, from nearly equal samples."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import numpy as np

from bnmc.chain.chain import Chain
from bnmc.errors import ArgumentError
from bnmc.experiments import kit, pictures
from bnmc.experiments.kit import Dataset, Drawing, Experiment, Float64Array, Progress, Run
from bnmc.experiments.sizes import Several
from bnmc.experiments.statistics import banded, short_interval
from bnmc.simulation.run import simulate

#: Eigenvalues below this count as this, because rounding can make them 0 or negative.
_SMALLEST = float(np.finfo(np.float64).tiny)


class Sizes(NamedTuple):
    """Sizes of the figure.

    width: width and batch size
    shown: number of eigenvalues
    """

    width: Several = 50
    depth: Annotated[int, {"low": 10}] = 100
    networks: Several = 64
    shown: Several = 10


@kit.figure("rank-collapse-3b", Sizes(), networks=500)
def fig_3b(run: Run, sizes: Sizes) -> Experiment:
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
    d, depth, networks = sizes.width, sizes.depth, sizes.networks
    if sizes.shown > d:
        raise ArgumentError("shown", sizes.shown, f"at most the width {d}")
    chain = Chain.bn_residual(d, d, gamma=1.0)
    noise = run.generator.standard_normal((networks, d, d))
    starts: dict[str, dict[str, Any]] = {
        "nearly equal": {"depth": depth, "initial": d + 1e-5 * noise, "sampler": "weights"},
        "Gaussian": {"depth": 4 * depth, "burn_in": 2 * depth, "every": 4, "chains": networks},
    }

    def spectra(start: str, progress: Progress) -> tuple[Float64Array, Float64Array]:
        """Return logs of the largest eigenvalues, (networks, layers, shown), and r."""
        eigenvalues = simulate(
            chain, observables="eigenvalues", **run.options(progress), **starts[start]
        )["eigenvalues"]
        r = np.square(eigenvalues.sum(axis=-1)) / np.square(eigenvalues).sum(axis=-1)
        return _largest_logs(eigenvalues, sizes.shown), r

    parts = run.parts(spectra, [(start,) for start in starts], costs=[1.0, 2.0])
    (logs, r), (deep, _) = parts.values()
    results = kit.Results(
        run, layer=np.arange(depth + 1),
        mode=kit.Axis(range(1, sizes.shown + 1), "eigenvalue, largest first"),
    )  # fmt: skip
    eigenvalue = results.add(
        "eigenvalue", ("layer", "mode"), np.exp(banded(logs)), "eigenvalues of M, geometric mean",
        networks=networks,
    )  # fmt: skip
    settled = results.add(
        "settled", ("mode",), np.exp(banded(deep.mean(axis=1))),
        "the same from Gaussian inputs, deep layers", networks=networks,
    )  # fmt: skip
    rank = results.add_means(
        "rank_bound", ("layer",), {(): r}, "r, lower bound of the rank"
    ).cells()

    def texts(column: kit.Column) -> kit.Column:
        """Return means as texts with their intervals."""
        intervals = {point: short_interval(mean) for point, mean in column.cells().items()}
        return results.column(("mode",), intervals)

    table = kit.table_of({
        "layer 0": eigenvalue.means().at(layer=0), "layer 10": eigenvalue.means().at(layer=10),
        "last layer": texts(eigenvalue.at(layer=-1)), "from Gaussian inputs": texts(settled),
    }, heads=("eigenvalue",))  # fmt: skip
    (_, *first), (_, *second) = table.rows[:2]
    findings = (
        f"The second eigenvalue rises from {second[0]:.1e} to {second[1]:.2f} in ten layers, "
        f"while the largest falls from {first[0]:.1f} to {first[1]:.1f}.",
        f"At layer {depth} the largest is {first[2]} and the second {second[2]}; from Gaussian "
        f"inputs {first[3]} and {second[3]}.",
        f"r rises from {rank[0,].value:.2f} to {short_interval(rank[depth,])}.",
    )
    return results.experiment(
        f"Largest eigenvalues of M from nearly equal samples, width and batch {d}", table,
        findings, _draw, width=d, batch=d, gamma=1.0, chains=networks,
        start=f"{d} plus noise of 1e-5",
    )  # fmt: skip


def _largest_logs(eigenvalues: Float64Array, count: int) -> Float64Array:
    """Return the logs of the largest eigenvalues, largest first, from ascending eigenvalues."""
    logs: Float64Array = np.log(np.maximum(eigenvalues[..., : -count - 1 : -1], _SMALLEST))
    return logs


def _draw(data: Dataset, figure: Drawing) -> None:
    from matplotlib import colormaps

    ((ax,),) = pictures.axes_of(figure, 1, width=7.6, height=4.8)
    ax.set_yscale("log")
    layers = data["layer"].values
    colours = colormaps["viridis"](np.linspace(0, 0.9, data.sizes["mode"]))
    for mode, colour in zip(data["mode"].values, colours, strict=True):
        of_mode = data.sel(mode=mode)
        values = pictures.curve(of_mode, "eigenvalue")
        pictures.draw_band(ax, layers, values, colour, rf"$\lambda_{{{mode}}}$")
        ax.plot(layers[[-1]] * [1.01, 1.06], [float(of_mode["settled"])] * 2, color=colour)
    ax.plot([], [], color="grey", label="from Gaussian\ninputs (right)")
    ax.set(xlabel="layer", ylabel="eigenvalues of $M$, geometric mean", ylim=(1e-14, 100))
    ax.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1.0, 1.0))
    text = "Largest eigenvalues of $M$ from nearly equal samples, width and batch {width}"
    ax.set_title(pictures.about(data, text, "\n"))
