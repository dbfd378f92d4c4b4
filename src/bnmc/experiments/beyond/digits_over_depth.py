"""Handwritten digits over depth: their Gram matrix converges to the fixed point."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import numpy as np

from bnmc.chain.chain import Chain
from bnmc.chain.start import FirstLayer
from bnmc.estimate.estimate import Estimate
from bnmc.experiments import kit, pictures
from bnmc.experiments.kit import Dataset, Drawing, Experiment, Float64Array, Progress, Run, Table
from bnmc.experiments.sizes import Builtin, Several
from bnmc.experiments.statistics import interval
from bnmc.experiments.training.images import digits as handwritten
from bnmc.mean_field.field import MeanField
from bnmc.plot.axes import colours_of, logarithmic
from bnmc.simulation.observables import Distance
from bnmc.simulation.run import simulate

#: Layers of the table, besides the last.
_SHOWN = (0, 1, 2, 5, 10, 20, 50, 100)

#: The observables, with their heads in the table.
_HEADS = {"distance": "‖G − G*‖", "orthogonality_gap": "orthogonality gap"}


class Sizes(NamedTuple):
    """Sizes of the figure.

    batch: number of digits
    """

    activations: tuple[Builtin, ...] = ("linear", "relu")
    width: int = 1000
    batch: Annotated[int, {"low": 2, "high": 1740}] = 10
    depth: int = 40
    chains: Several = 64


@kit.figure("digits", Sizes(), chains=1000)
def digits(run: Run, sizes: Sizes) -> Experiment:
    r"""Handwritten digits in deep random networks: they converge to the mean field.

    The inputs are images of handwritten digits, by default one of each.  They go through networks
    with batch normalization.  The picture shows the distance of their Gram matrix from the fixed
    point of the mean field, :math:`\|G_\ell - G_*\|_F`; the table has the orthogonality gap, too.

    Expected: the distance shrinks by the rate of the fixed point per layer, until it reaches the
    size of the fluctuations at finite width, which falls as the root of the width.

    Returns
    -------
    Experiment
        Variables by ``activation`` and ``layer``.

    Examples
    --------
    >>> from bnmc.experiments import beyond
    >>> found = beyond.digits()
    >>> found.data.distance.sel(layer=40).values.round(1)
    array([0.5, 0.2])
    """
    chains = {name: Chain(sizes.width, sizes.batch, name) for name in sizes.activations}
    stars = {name: MeanField(chain).fixed_point() for name, chain in chains.items()}
    inputs = FirstLayer(handwritten(sizes.batch))

    def observables(name: str, progress: Progress) -> tuple[Float64Array, Float64Array]:
        """Return distances from the fixed point and orthogonality gaps, (networks, layers)."""
        recorded = simulate(
            chains[name], sizes.depth, chains=sizes.chains, initial=inputs,
            observables=[Distance(stars[name].gram), "orthogonality_gap"], **run.options(progress),
        )  # fmt: skip
        return recorded["distance"], recorded["orthogonality_gap"]

    results = kit.Results(run, activation=sizes.activations, layer=np.arange(sizes.depth + 1))
    parts = run.parts(observables, results.points("activation"))
    along = ("activation", "layer")
    distances, gaps = kit.entry(parts, 0), kit.entry(parts, 1)
    results.add_range(
        "distance", along, distances, "distance from the fixed point", "Frobenius norm"
    )
    results.add_range("orthogonality_gap", along, gaps, "orthogonality gap")
    levels = [
        MeanField(chain).fluctuations().mean_distance(sizes.width).value
        for chain in chains.values()
    ]
    results.add("level", ("activation",), levels, "predicted distance of deep layers")
    rates = [star.rate for star in stars.values()]
    results.add("rate", ("activation",), rates, "rate of the fixed point")
    measured = [samples for part in parts.values() for samples in part]
    shown = [layer for layer in _SHOWN if layer < sizes.depth] + [sizes.depth]
    table = Table(
        ("layer", *(f"{name}: {head}" for name in chains for head in _HEADS.values())),
        tuple(
            (layer, *(Estimate.from_samples(samples[:, layer]) for samples in measured))
            for layer in shown
        ),
    )
    first, last = table.rows[0], table.rows[-1]
    findings = (
        f"{name}: the mean field predicts that the distance shrinks by the factor {rate:.3f} per "
        f"layer until it reaches the size of the fluctuations; it is {interval(start)} at layer 0 "
        f"and {interval(end)} at layer {sizes.depth}."
        for name, rate, start, end in zip(chains, rates, first[1::2], last[1::2], strict=True)
    )
    return results.experiment(
        "Digits converge to the fixed point of the mean field", table, findings, _draw,
        width=sizes.width, batch=sizes.batch, norm="batch", chains=sizes.chains,
    )  # fmt: skip


def _draw(data: Dataset, figure: Drawing) -> None:
    ((ax,),) = pictures.axes_of(figure, 1, width=7.2, height=5.0)
    colours = colours_of(data["activation"].values)
    pictures.lines(
        ax, data, "distance", "layer", by="activation", kind="_band", text="batch norm, {}",
        colours=colours,
    )  # fmt: skip
    attrs = data.attrs
    for name, colour in zip(data["activation"].values, colours, strict=True):
        level = float(data["level"].sel(activation=name))
        ax.axhline(level, linestyle="--", color=colour, linewidth=1.0)
    ax.plot([], [], "--", color="0.4", label="predicted, deep layers")
    ax.set_title("Digits converge to the fixed point of the mean field", loc="left")
    ax.set_ylabel(r"distance from the fixed point, $\|G_\ell - G_*\|_F$")
    logarithmic(ax)
    ax.set_xlabel(
        f"layer\n{attrs['batch']} digits, width {attrs['width']}; mean and 90 % of "
        f"{attrs['chains']} networks"
    )
    figure.legend(loc="outside lower center", ncols=2, fontsize="small")
