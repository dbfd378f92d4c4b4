"""The isometry gap over depth, with layer normalization before and after the activation."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnmc._support.progress import Progress
from bnmc.chain.activations import Activation, as_activation
from bnmc.estimate.estimate import Estimate
from bnmc.experiments.beyond.wide_networks import Network, ensemble
from bnmc.experiments.data import Variable, curve, dataset, with_ends
from bnmc.experiments.experiment import Experiment, Table, with_parameters
from bnmc.experiments.parts import Call, Store, chosen
from bnmc.experiments.pictures import axes_of, draw_band
from bnmc.experiments.statistics import banded, mean_of_band, short_interval
from bnmc.mean_field import CorrelationMap, IsometryRate, isometry_rate
from bnmc.plot.axes import COLOURS

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

__all__ = ["DEFAULT", "FULL", "ORDERS", "Sizes", "experiment", "isometry"]


class Sizes(NamedTuple):
    """Activations, width, batch, depth and networks."""

    activations: tuple[str | Activation, ...]
    width: int
    batch: int
    depth: int
    networks: int


DEFAULT = Sizes(("relu", "tanh", "sigmoid"), 1000, 10, 30, 10)
FULL = Sizes(("relu", "tanh", "sigmoid", "gelu", "selu", "sin"), 4000, 10, 60, 20)

ORDERS = ("norm-activation", "activation-norm")

#: 1 − c of all pairs of inputs; the isometry gap of 10 inputs is then about 6.
GAP = 1e-3

#: Gram matrices whose smallest eigenvalue is this part of the largest are singular to rounding.
SINGULAR = 1e-10

#: β as recorded by the authors' code.
RECORDED = {"relu": 1.265, "tanh": 1.070, "sigmoid": 1.012}


@with_parameters
def isometry(
    *,
    full: bool = False,
    rng: Any = 0,
    progress: bool | Progress = False,
    threads: int | None = None,
    store: Store = None,
) -> Experiment:
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
    call = Call("isometry", full, rng, progress, threads, store)
    return experiment(chosen(DEFAULT, FULL, full), call)


class _Curves(NamedTuple):
    """Gaps: measured (activations, orders, layers, 3), mean field (activations, orders, layers)."""

    measured: NDArray[np.float64]
    predicted: NDArray[np.float64]
    rates: list[IsometryRate]


def experiment(sizes: Sizes, call: Call) -> Experiment:
    """Run the experiment with these sizes."""
    activations = [as_activation(one) for one in sizes.activations]
    found = _run(sizes, call, activations)
    rows = [
        (
            activation.name, order, found.rates[k].beta,
            *(_cell(found.measured[k, j, layer], sizes) for layer in (1, -1)),
            float(found.predicted[k, j, -1]) if np.isfinite(found.predicted[k, j, -1]) else None,
        )
        for k, activation in enumerate(activations)
        for j, order in enumerate(ORDERS)
    ]  # fmt: skip
    heads = ("activation", "order", "β", "gap, layer 1", f"layer {sizes.depth}", "mean field")
    findings = tuple(
        _finding(activation, found, k, sizes) for k, activation in enumerate(activations)
    )
    title = "Isometry gap with the norm before and after the activation"
    data = _data(sizes, call, activations, found)
    return Experiment(call.name, title, data, Table(heads, tuple(rows)), findings, _draw)


def _run(sizes: Sizes, call: Call, activations: list[Activation]) -> _Curves:
    shape = (len(activations), len(ORDERS), sizes.depth + 1)
    measured, predicted = np.empty((*shape, 3)), np.empty(shape)
    with call.parts([1.0] * (len(activations) * len(ORDERS))) as parts:
        for k, activation in enumerate(activations):
            for j, order in enumerate(ORDERS):
                gaps = parts.run(
                    _measured, activation, order == "activation-norm", sizes, call.generator
                )
                measured[k, j] = banded(gaps)
                predicted[k, j] = _predicted(activation, order, sizes)
    return _Curves(measured, predicted, [isometry_rate(one) for one in activations])


def _measured(
    activation: Activation,
    norm_is_last: bool,
    sizes: Sizes,
    generator: np.random.Generator,
    *,
    progress: Progress,
) -> NDArray[np.float64]:
    """Return the isometry gaps of the pre-activations, (networks, depth + 1)."""
    n = sizes.batch
    network = Network(activation, sizes.width, normalizes=True, norm_is_last=norm_is_last)
    start = (1.0 - GAP) * np.ones((n, n)) + GAP * np.eye(n)
    grams = ensemble(
        network, start, sizes.depth, sizes.networks, generator, progress=progress
    ).preactivations
    values = np.linalg.eigvalsh(grams)
    regular = values[..., :1] > SINGULAR * values[..., -1:]
    logarithms = np.log(np.where(regular, values, np.nan))
    gaps: NDArray[np.float64] = np.log(values.mean(axis=-1)) - logarithms.mean(axis=-1)
    return gaps


def _predicted(activation: Activation, order: str, sizes: Sizes) -> NDArray[np.float64]:
    """Return the gaps of the mean field, (depth + 1,); all correlations remain equal."""
    n = sizes.batch
    field = CorrelationMap(activation, norm="layer", order=order)
    c = field.trajectory(sizes.depth, correlation=1.0 - GAP).correlation
    c = np.where(1.0 - c > n * SINGULAR, c, np.nan)
    gaps: NDArray[np.float64] = -((n - 1) * np.log1p(-c) + np.log1p((n - 1) * c)) / n
    return gaps


def _cell(band: NDArray[np.float64], sizes: Sizes) -> Estimate | None:
    """Return a cell of the table; None if a Gram matrix is singular to rounding."""
    return mean_of_band(band, sizes.networks) if np.isfinite(band).all() else None


def _finding(activation: Activation, found: _Curves, k: int, sizes: Sizes) -> str:
    name = activation.name
    recorded = f" (recorded: {RECORDED[name]})" if name in RECORDED and activation.builtin else ""
    parts = []
    for order, where in (("activation-norm", "after"), ("norm-activation", "before")):
        j = ORDERS.index(order)
        band, theory = found.measured[k, j, -1], found.predicted[k, j, -1]
        what = (
            f"{short_interval(band)} (mean field {theory:.3g})"
            if np.isfinite([*band, theory]).all()
            else "beyond rounding"
        )
        parts.append(f"{what} with the norm {where} the activation")
    rate = f"{name}: β = {found.rates[k].beta:.6f}{recorded}"
    return f"{rate}; after {sizes.depth} layers the isometry gap is {' and '.join(parts)}."


def _data(
    sizes: Sizes, call: Call, activations: list[Activation], found: _Curves
) -> xarray.Dataset:
    per = ("activation", "order", "layer")
    return dataset(
        {
            **with_ends("gap", per, found.measured, "isometry gap"),
            "predicted": Variable(per, found.predicted, "isometry gap of the mean field"),
            "beta": Variable(("activation",), [one.beta for one in found.rates], "rate β"),
        },
        {
            "activation": Variable(
                ("activation",), [one.name for one in activations], "activation", ""
            ),
            "order": Variable(("order",), list(ORDERS), "order of norm and activation", ""),
            "layer": Variable(("layer",), np.arange(sizes.depth + 1), "layer", "layers"),
        },
        call,
        {"width": sizes.width, "batch": sizes.batch, "networks": sizes.networks, "norm": "layer"},
    )


def _draw(data: xarray.Dataset, figure: Figure) -> None:
    names, layers = data["activation"].values, data["layer"].values
    columns = min(3, len(names))
    axes = axes_of(figure, columns, math.ceil(len(names) / columns), width=4.4, height=3.8)
    for ax, name in zip(axes.flat, names, strict=False):
        ax.set_yscale("log")
        for colour, order in zip(COLOURS, data["order"].values, strict=False):
            one = data.sel(activation=name, order=order)
            draw_band(ax, layers, curve(one, "gap"), colour, str(order))
            ax.plot(layers, one["predicted"], "--", color=colour, linewidth=1.0)
        ax.set(xlabel="layer")
        ax.set_title(f"{name}, β = {float(data['beta'].sel(activation=name)):.4f}", loc="left")
    for row in axes:
        row[0].set_ylabel("isometry gap")
    for ax in axes.flat[len(names) :]:
        ax.set_visible(False)
    axes.flat[0].plot([], [], "k--", linewidth=1.0, label="mean field")
    axes.flat[0].legend(loc="lower left", fontsize="small")
