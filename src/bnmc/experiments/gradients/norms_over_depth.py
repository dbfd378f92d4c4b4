"""Gradient norms over depth, for all activations, beside the backward rate of the mean field."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnmc._kernels.scalar.activations import BUILTIN
from bnmc._support.progress import Progress
from bnmc.chain.chain import Chain
from bnmc.estimate.estimate import Estimate
from bnmc.experiments.data import Variable, curve, dataset, estimated, with_ends
from bnmc.experiments.experiment import Experiment, Table, with_parameters
from bnmc.experiments.parts import Call, Store, chosen
from bnmc.experiments.pictures import axes_of, draw_band
from bnmc.experiments.statistics import banded, interval
from bnmc.gradients import backpropagate
from bnmc.mean_field.field import MeanField

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

__all__ = ["DEFAULT", "FULL", "Sizes", "experiment", "explosion"]

Float64Array = NDArray[np.float64]


class Sizes(NamedTuple):
    """Width, batch size, layers, networks, activations, and laws of weights."""

    width: int
    batch: int
    depth: int
    chains: int
    activations: tuple[str, ...] = tuple(BUILTIN)
    weights: tuple[str, ...] = ("gaussian", "haar")


DEFAULT = Sizes(500, 10, 1000, 6)
FULL = Sizes(1000, 10, 1000, 50)

#: Number of layers in the data, evenly spaced.
_POINTS = 101

#: Layers that the estimate of the rate leaves out at both ends.
_ENDS = 30


@with_parameters
def explosion(
    *,
    full: bool = False,
    rng: Any = 0,
    progress: bool | Progress = False,
    threads: int | None = None,
    store: Store = None,
) -> Experiment:
    r"""Gradients of networks with batch normalization explode with depth, for every activation.

    The picture shows :math:`\ln \|\partial L/\partial W_\ell\|_F` against the layer ℓ, relative to
    the last layer, for 1000 layers, the thirteen named activations, batch 10 and width 500
    (`full`: 1000), with 6 networks (`full`: 50) for each law of weights: Gaussian, and uniformly
    distributed on the orthogonal matrices ("haar").  The gradient with respect to the last layer
    has independent normal entries.  The table has the growth of the squared norm per layer towards
    the input, between layers 30 from both ends, and `FixedPoint.backward_rate`, the growth at
    infinite width with Gaussian weights.

    Expected: straight lines.  With Gaussian weights their slope is the rate of the mean field up to
    a relative difference of order batch/width, which is measured here: at width 500 it is larger
    than the error.  Rows of wide orthogonal matrices are nearly independent and normal, so the
    slope with orthogonal weights differs from it by the same order.

    Returns
    -------
    Experiment

    Examples
    --------
    >>> from bnmc.experiments import gradients
    >>> found = gradients.explosion()  # doctest: +SKIP
    """
    call = Call("gradients-explosion", full, rng, progress, threads, store)
    return experiment(chosen(DEFAULT, FULL, full), call)


class _Measured(NamedTuple):
    """Layers of the data, and results by law of weights and activation.

    `norms` are means over networks of log norms relative to the last layer, with their intervals,
    (layers, 3).  `rates` are growths of the squared norm per layer.
    """

    layers: NDArray[np.int64]
    norms: list[list[Float64Array]]
    rates: list[list[Estimate]]


def experiment(sizes: Sizes, call: Call) -> Experiment:
    """Run the experiment with these sizes."""
    predicted = [
        MeanField(Chain(sizes.width, sizes.batch, name)).fixed_point().backward_rate
        for name in sizes.activations
    ]
    found = _measure(sizes, call)
    rows = tuple(
        (name, weights, rate, theory, 100.0 * (rate.value / theory - 1.0))
        for weights, rates in zip(sizes.weights, found.rates, strict=True)
        for name, rate, theory in zip(sizes.activations, rates, predicted, strict=True)
    )
    table = Table(
        (
            "activation", "weights", "squared norm, per layer", "mean field, Gaussian weights",
            "difference, %",
        ),
        rows,
    )  # fmt: skip
    findings = tuple(
        f"{name}, {weights} weights: the squared gradient norm grows by {interval(rate)} per layer "
        f"towards the input; mean field of Gaussian weights: {theory:.5g}."
        for name, weights, rate, theory, _ in rows
    )
    title = f"Gradients explode with depth: batch {sizes.batch}, width {sizes.width}"
    data = _data(sizes, call, found, predicted)
    return Experiment(call.name, title, data, table, findings, _draw)


def _measure(sizes: Sizes, call: Call) -> _Measured:
    depth = sizes.depth
    layers = np.unique(np.linspace(0, depth - 1, _POINTS).astype(np.int64))
    found = _Measured(layers, [], [])
    ends = min(_ENDS, depth // 4)
    with call.parts([1.0] * (len(sizes.activations) * len(sizes.weights))) as parts:
        for weights in sizes.weights:
            norms, rates = [], []
            for name in sizes.activations:
                chain = Chain(sizes.width, sizes.batch, name, weights=weights)
                logs = parts.run(
                    _log_norms, chain, depth, chains=sizes.chains, rng=call.generator,
                    threads=call.threads,
                )  # fmt: skip
                norms.append(banded(logs[:, layers] - logs[:, -1:]))
                rates.append(_growth(logs, ends, depth - 1 - ends))
            found.norms.append(norms)
            found.rates.append(rates)
    return found


def _log_norms(chain: Chain, depth: int, **options: Any) -> Float64Array:
    """Return the log norms of the gradients of all layers, (networks, depth)."""
    return backpropagate(
        chain, depth, dtype="float32", observables=(), **options
    ).log_gradient_norm  # fmt: skip


def _growth(logs: Float64Array, first: int, last: int) -> Estimate:
    """Return the growth of the squared norm per layer, from the logarithms."""
    slope = Estimate.from_samples(2.0 * (logs[:, first] - logs[:, last]) / (last - first))
    value = math.exp(slope.value)
    low, high = (math.exp(end) for end in slope.ci)
    return Estimate(value, value * slope.stderr, (low, high), slope.n, "growth of norms")


def _data(sizes: Sizes, call: Call, found: _Measured, predicted: list[float]) -> xarray.Dataset:
    over = ("weights", "activation")
    return dataset(
        {
            **with_ends(
                "log_norm", (*over, "layer"), found.norms,
                "ln of the gradient norm, relative to the last layer",
            ),
            **estimated("rate", over, found.rates, "growth of the squared norm per layer"),
            "mean_field": Variable(
                ("activation",), predicted, "the same at infinite width, Gaussian weights"
            ),
        },
        {
            "weights": Variable(("weights",), list(sizes.weights), "law of weights", ""),
            "activation": Variable(("activation",), list(sizes.activations), "activation", ""),
            "layer": Variable(("layer",), found.layers, "layer"),
        },
        call,
        {
            "width": sizes.width, "batch": sizes.batch, "depth": sizes.depth,
            "chains": sizes.chains, "norm": "batch", "dtype": "float32",
        },
    )  # fmt: skip


def _draw(data: xarray.Dataset, figure: Figure) -> None:
    from matplotlib import colormaps

    left, right = axes_of(figure, 2, width=5.8, height=4.4)[0]
    names = data["activation"].values
    colours = colormaps["viridis"](np.linspace(0.0, 0.95, len(names)))
    layers, last = data["layer"].values, data.attrs["depth"] - 1
    for index, name in enumerate(names):
        slope = 0.5 * math.log(float(data["mean_field"][index]))
        left.plot(layers, slope * (last - layers), ":", color="black", linewidth=0.8)
        for row, style in zip(range(data.sizes["weights"]), ("-", "--"), strict=False):
            draw_band(
                left, layers, curve(data, "log_norm")[row, index], colours[index],
                name if row == 0 else None, linestyle=style,
            )  # fmt: skip
    for weights, style in zip(data["weights"].values[1:], ("--",), strict=False):
        left.plot([], [], style, color="black", label=f"{weights} weights")
    left.plot([], [], ":", color="black", label="mean field")
    left.set(xlabel=r"layer $\ell$", ylabel=r"$\ln\, \|\partial L/\partial W_\ell\|_F$, relative")
    left.set_title("Gradient norms", loc="left")
    left.legend(fontsize="x-small", ncols=2)
    places = np.arange(len(names))
    for row, weights in enumerate(data["weights"].values):
        value, low, high = curve(data, "rate")[row].T
        right.errorbar(
            places + 0.15 * row, value, [value - low, high - value], fmt="o", markersize=4,
            capsize=2.5, label=f"measured, {weights}",
        )  # fmt: skip
    right.plot(places, data["mean_field"], "k_", markersize=12, label="mean field")
    right.set_xticks(places, names, rotation=60)
    right.set(xlabel="activation", ylabel="squared norm, per layer")
    right.set_title("Growth", loc="left")
    right.legend(fontsize="small")
    attrs = data.attrs
    figure.suptitle(
        f"Gradients with batch norm, width {attrs['width']}, batch {attrs['batch']}: "
        f"mean of {attrs['chains']} networks, 95 % interval"
    )
