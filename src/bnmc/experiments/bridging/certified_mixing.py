"""Assumption 1: certified mixing in total variation, beside the decay that the paper assumes."""

from __future__ import annotations

from dataclasses import astuple
from typing import Any, NamedTuple

import numpy as np

from bnmc.chain.chain import Chain
from bnmc.estimate.estimate import Estimate
from bnmc.experiments import kit, pictures
from bnmc.experiments.bridging.common import ACTIVATIONS
from bnmc.experiments.kit import Dataset, Drawing, Experiment, Progress, Run
from bnmc.experiments.sizes import Builtin, Several
from bnmc.experiments.statistics import LEVEL, interval
from bnmc.mean_field.field import MeanField
from bnmc.mixing import contraction, tv_bound
from bnmc.plot.axes import COLOURS

_BATCH = 5


class Sizes(NamedTuple):
    """Sizes of the figure.

    chains: pairs of coupled chains for the bound
    contraction_chains: pairs of coupled chains for the contraction
    """

    activations: tuple[Builtin, ...] = ("linear", *ACTIVATIONS)
    width: int = 1000
    chains: Several = 500
    contraction_chains: Several = 32
    depth: int = 40


@kit.figure("bridging-certificate", Sizes(), chains=5000)
def certificate(run: Run, sizes: Sizes) -> Experiment:
    r"""Assumption 1: certified mixing in total variation, which the paper assumes.

    Networks of width 1000 start from 5 independent normal samples, with linear, relu, tanh,
    sigmoid, sin, selu and celu activations.  The picture shows upper bounds of the total-variation
    distance from the quasi-stationary law, from 500 coupled pairs of chains
    (`bnmc.mixing.tv_bound`; ``full``: 5000 pairs).  The upper end of the 95 % interval is what is
    certified; the mean of the pairs is 0 where its line ends.  Beside them is the assumed decay
    :math:`(1-\alpha)^l`, with α = 1 − rate of the fixed point.

    Expected: the chains mix, and in the end the bounds fall geometrically.  They lie above
    (1−α)^l, because a coupled pair needs some layers until it is near enough to meet.  So the
    certified decay is C(1−α)^l with a constant C above 1, which depends on the start and on the
    coupling.  Assumption 1 has C at most 1.  The factor of the tail is that of the meeting times,
    measured at the layers where pairs meet.  A pair that misses its chance to meet increases this
    factor above the chain's own rate.  `bnmc.mixing.contraction` measures the chain's rate, which
    agrees with the mean field.

    Returns
    -------
    Experiment
        Variables by ``activation`` and ``layer``.

    Examples
    --------
    >>> from bnmc.experiments import bridging
    >>> found = bridging.certificate()  # doctest: +SKIP
    """
    chains = {name: Chain(sizes.width, _BATCH, name) for name in sizes.activations}
    rates = {(name,): MeanField(chain).fixed_point().rate for name, chain in chains.items()}

    def certified(name: str, kind: str, progress: Progress) -> Any:
        """Return the bound, its intervals, the layer where it is 1/4, and its tail; or the rate."""
        common: dict[str, Any] = {**run.options(progress), "level": LEVEL}
        if kind == "rate":
            measured = contraction(chains[name], chains=sizes.contraction_chains, **common)
            return astuple(measured.rate_estimate)
        bound = tv_bound(chains[name], sizes.depth, lag=sizes.depth, chains=sizes.chains, **common)
        tail = astuple(bound.rate_estimate)
        return bound.bound, *bound.ci.T, bound.layers_to(0.25), tail

    points = [(name, kind) for name in sizes.activations for kind in ("bound", "rate")]
    parts = run.parts(certified, points, [4.0, 1.0] * len(chains))
    bounds = {(name,): parts[name, "bound"] for name in sizes.activations}
    layers = np.arange(sizes.depth + 1)
    results = kit.Results(run, activation=sizes.activations, layer=layers)
    per, along = ("activation",), ("activation", "layer")
    for place, (name, text) in enumerate({
        "bound": "bound of the total variation distance",
        "bound_low": "lower end of its interval", "bound_high": "upper end of its interval",
    }.items()):  # fmt: skip
        results.add(name, along, kit.entry(bounds, place), text)
    results.add(
        "assumed", along, {name: rate**layers for name, rate in rates.items()},
        "(1-α)^l, α = 1 - rate of the fixed point",
    )  # fmt: skip
    tails = {name: Estimate(*tail) for name, tail in kit.entry(bounds, 4).items()}
    measured = {(name,): Estimate(*parts[name, "rate"]) for name in sizes.activations}
    table = kit.table_of({
        "rate of the mean field": results.add(
            "mean_field_rate", per, rates, "rate of the fixed point"
        ),
        "contraction": results.add("rate", per, measured, "contraction of coupled chains"),
        "tail of meeting times": results.add(
            "tail", per, tails, "factor of the tail of meeting times, per layer"
        ),
        "TV <= 1/4 from layer": results.column(per, kit.entry(bounds, 3)),
    })  # fmt: skip
    findings = (
        f"{name}: total variation at most 1/4 from layer {layer} on (95 %, quasi-stationary law); "
        f"contraction by {interval(contracted)} per layer, mean field {rate:.4g}."
        for name, rate, contracted, _, layer in table.rows
    )
    return results.experiment(
        "Certified mixing, beside what the paper assumes", table, findings, _draw,
        width=sizes.width, batch=_BATCH, norm="batch", chains=sizes.chains,
        lag=sizes.depth, initial="gaussian", level=LEVEL,
    )  # fmt: skip


def _draw(data: Dataset, figure: Drawing) -> None:
    names = data["activation"].values
    columns = min(3, len(names))
    axes = pictures.axes_of(figure, columns, -(-len(names) // columns), width=3.4, height=2.9)
    pictures.label_outer(axes, len(names), "layer", "total variation, at most")
    layers, attrs = data["layer"].values, data.attrs
    least = 0.1 / attrs["chains"]
    for ax, name in zip(axes.flat, names, strict=False):
        part = data.sel(activation=name)
        mean = np.where(part["bound"].values > 0.0, part["bound"].values, np.nan)
        ax.plot(layers, part["bound_high"], color=COLOURS[0], label="certified at 95 %")
        ax.plot(layers, mean, color=COLOURS[0], linewidth=0.7, label="mean of the pairs")
        ax.plot(
            layers, part["assumed"], "--", color=COLOURS[1], linewidth=1.3,
            label=r"assumed $(1-\alpha)^\ell$",
        )  # fmt: skip
        ax.axhline(1.0, color="black", linewidth=0.8)
        ax.set(yscale="log", ylim=(least, 2.0 * max(2.0, float(data["bound"].max()))))
        alpha = 1 - float(part["mean_field_rate"])
        ax.set_title(f"{name}, α = {alpha:.3f}", loc="left", fontsize="medium")
    text = "Total variation from the quasi-stationary law, n = {batch}, d = {width}, "
    figure.suptitle((text + "{chains} pairs").format(**attrs))
    pictures.legend_below(figure, figure.axes[0])
