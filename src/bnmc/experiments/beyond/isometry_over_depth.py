"""The isometry gap over depth, with layer normalization before and after the activation."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from bnmc.chain.activations import Activation, as_activation
from bnmc.experiments import kit, pictures
from bnmc.experiments.beyond.wide_networks import Network, ensemble
from bnmc.experiments.kit import Dataset, Drawing, Experiment, Float64Array, Progress, Run
from bnmc.experiments.sizes import Named, Several
from bnmc.experiments.statistics import short_interval
from bnmc.mean_field import CorrelationMap, isometry_rate
from bnmc.plot.axes import COLOURS

_ORDERS = ("norm-activation", "activation-norm")

#: 1 − c of all pairs of inputs; the isometry gap of 10 inputs is then about 6.
_GAP = 1e-3

#: Gram matrices whose smallest eigenvalue is this part of the largest are singular to rounding.
_SINGULAR = 1e-10

#: β as recorded by the authors' code.
_RECORDED = {"relu": 1.265, "tanh": 1.070, "sigmoid": 1.012}


class Sizes(NamedTuple):
    """Sizes of the figure."""

    activations: tuple[Named, ...] = ("relu", "tanh", "sigmoid")
    width: int = 1000
    batch: Several = 10
    depth: int = 30
    networks: Several = 10


@kit.figure(
    "isometry", Sizes(), activations=("relu", "tanh", "sigmoid", "gelu", "selu", "sin"),
    width=4000, depth=60, networks=20,
)  # fmt: skip
def isometry(run: Run, sizes: Sizes) -> Experiment:
    r"""Isometry gap of the Gram matrix over depth, with the norm before or after the activation.

    Joudaki, Daneshmand and Bach, *On the impact of activation and normalization in obtaining
    isometric embeddings at initialization* (arXiv 2305.18399).  The isometry gap of the Gram matrix
    G of n inputs is :math:`\ln(\mathrm{tr}\, G / n) - \ln(\det G) / n`.  Networks of width 1000
    with 10 inputs and 30 layers (``full``: width 4000 and 60 layers) have layer normalization
    before or after the activation.  The inputs have correlations of .999.  The mean field applies
    `bnmc.mean_field.CorrelationMap` to each correlation.

    Expected: with the norm after the activation, the gap decreases to about n/(2 width), the
    faster the larger β is (`bnmc.mean_field.isometry_rate`).  With the norm before it, correlations
    of relu tend to 1 like the power −2 of the depth, so that the gap grows like its logarithm.  For
    odd activations the mean field of both orders is the same: E σ = 0 leaves nothing to subtract.

    The README of the authors' code states another formula for β than the code; the code's is used.
    Inputs of the authors have one singular value that is multiplied by 100, and their figure
    averages the gaps before and after the normalization of a layer.

    Returns
    -------
    Experiment
        Variables by ``activation``, ``order`` and ``layer``; NaN where Gram matrices are singular
        to rounding, as those of sigmoid with the norm before it.
    """
    n = sizes.batch

    def gaps(activation: Named, order: str, progress: Progress) -> Float64Array:
        """Return the isometry gaps of the pre-activations, (networks, depth + 1)."""
        network = Network(
            as_activation(activation), sizes.width, normalizes=True,
            norm_is_last=order == "activation-norm",
        )  # fmt: skip
        start = (1.0 - _GAP) * np.ones((n, n)) + _GAP * np.eye(n)
        grams = ensemble(
            network, start, sizes.depth, sizes.networks, run.generator, progress=progress
        ).preactivations
        values = np.linalg.eigvalsh(grams)
        regular = values[..., :1] > _SINGULAR * values[..., -1:]
        logarithms = np.log(np.where(regular, values, np.nan))
        of_networks: Float64Array = np.log(values.mean(axis=-1)) - logarithms.mean(axis=-1)
        return of_networks

    results = kit.Results(
        run, activation=sizes.activations,
        order=kit.Axis(_ORDERS, "order of norm and activation", ""),
        layer=np.arange(sizes.depth + 1),
    )  # fmt: skip
    per = ("activation", "order")
    parts = run.parts(gaps, results.points(*per))
    gap = results.add_means("gap", (*per, "layer"), parts, "isometry gap")
    predictions = {point: _predicted(sizes, *point) for point in parts}
    predicted = results.add(
        "predicted", (*per, "layer"), predictions, "isometry gap of the mean field"
    )
    rates = {activation: isometry_rate(activation).beta for activation in sizes.activations}
    results.add("beta", ("activation",), list(rates.values()), "rate β")
    table = kit.table_of({
        "β": results.column(per, {point: rates[point[0]] for point in parts}),
        "gap, layer 1": gap.at(layer=1), f"layer {sizes.depth}": gap.at(layer=-1),
        "mean field": predicted.at(layer=-1),
    })  # fmt: skip
    findings = [
        _finding(as_activation(activation), sizes.depth, *table.rows[2 * k : 2 * k + 2])
        for k, activation in enumerate(sizes.activations)
    ]
    return results.experiment(
        "Isometry gap with the norm before and after the activation", table, findings, _draw,
        width=sizes.width, batch=sizes.batch, networks=sizes.networks, norm="layer",
    )  # fmt: skip


def _predicted(sizes: Sizes, activation: Named, order: str) -> Float64Array:
    """Return the gaps of the mean field, (depth + 1,); all correlations remain equal."""
    n = sizes.batch
    field = CorrelationMap(activation, norm="layer", order=order)
    c = field.trajectory(sizes.depth, correlation=1.0 - _GAP).correlation
    c = np.where(1.0 - c > n * _SINGULAR, c, np.nan)
    gaps: Float64Array = -((n - 1) * np.log1p(-c) + np.log1p((n - 1) * c)) / n
    return gaps


def _finding(
    activation: Activation, depth: int, before: tuple[Any, ...], after: tuple[Any, ...]
) -> str:
    """Return what two rows of the table state: with the norm before and after the activation."""
    name = activation.name
    recorded = f" (recorded: {_RECORDED[name]})" if name in _RECORDED and activation.builtin else ""
    parts = []
    for (*_, gap, theory), where in ((after, "after"), (before, "before")):
        what = "beyond rounding"
        if gap is not None and theory is not None:
            what = f"{short_interval(gap)} (mean field {theory:.3g})"
        parts.append(f"{what} with the norm {where} the activation")
    rate = f"{name}: β = {after[2]:.6f}{recorded}"
    return f"{rate}; after {depth} layers the isometry gap is {' and '.join(parts)}."


def _draw(data: Dataset, figure: Drawing) -> None:
    names, layers = data["activation"].values, data["layer"].values
    columns = min(3, len(names))
    axes = pictures.axes_of(figure, columns, math.ceil(len(names) / columns), width=4.4, height=3.8)
    for ax, name in zip(axes.flat, names, strict=False):
        ax.set_yscale("log")
        for colour, order in zip(COLOURS, data["order"].values, strict=False):
            part = data.sel(activation=name, order=order)
            pictures.draw_band(ax, layers, pictures.curve(part, "gap"), colour, str(order))
            ax.plot(layers, part["predicted"], "--", color=colour, linewidth=1.0)
        beta = float(data["beta"].sel(activation=name))
        pictures.finish(ax, f"{name}, β = {beta:.4f}", "layer")
    for row in axes:
        row[0].set_ylabel("isometry gap")
    for ax in axes.flat[len(names) :]:
        ax.set_visible(False)
    axes.flat[0].plot([], [], "k--", linewidth=1.0, label="mean field")
    axes.flat[0].legend(loc="lower left", fontsize="small")
