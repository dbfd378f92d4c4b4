"""Gradient norms over depth, for all activations, beside the backward rate of the mean field."""

from __future__ import annotations

import math
from typing import Annotated, NamedTuple

import numpy as np

from bnmc._kernels.scalar.activations import BUILTIN
from bnmc._support.progress import Progress
from bnmc.chain.chain import Chain
from bnmc.estimate.estimate import Estimate
from bnmc.experiments import kit, pictures
from bnmc.experiments.experiment import Dataset, Drawing, Experiment, Table
from bnmc.experiments.kit import Float64Array
from bnmc.experiments.runs import Run
from bnmc.experiments.sizes import Builtin, Several
from bnmc.experiments.statistics import interval
from bnmc.gradients import backpropagate
from bnmc.mean_field.field import MeanField

#: The laws of weights, with the styles of their curves.
_STYLES = {"gaussian": "-", "haar": "--"}

#: Number of layers in the data, evenly spaced.
_POINTS = 101

#: Layers that the estimate of the rate leaves out at both ends.
_ENDS = 30


class Sizes(NamedTuple):
    """Sizes of the figure."""

    width: int = 500
    batch: int = 10
    depth: Several = 1000
    networks: Several = 6
    activations: tuple[Builtin, ...] = tuple(BUILTIN)
    weights: tuple[Annotated[str, {"allowed": tuple(_STYLES)}], ...] = tuple(_STYLES)


@kit.figure("gradients-explosion", Sizes(), width=1000, networks=50)
def explosion(run: Run, sizes: Sizes) -> Experiment:
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
    depth, ends = sizes.depth, min(_ENDS, sizes.depth // 4)
    predicted = {
        name: MeanField(Chain(sizes.width, sizes.batch, name)).fixed_point().backward_rate
        for name in sizes.activations
    }

    def log_norms(weights: str, name: str, progress: Progress) -> Float64Array:
        """Return the log norms of the gradients of all layers, (networks, depth)."""
        return backpropagate(
            Chain(sizes.width, sizes.batch, name, weights=weights), depth, chains=sizes.networks,
            dtype="float32", observables=(), rng=run.generator, threads=run.threads,
            progress=progress,
        ).log_gradient_norm  # fmt: skip

    layers = np.unique(np.linspace(0, depth - 1, _POINTS).astype(np.int64))
    results = kit.Results(run, weights=sizes.weights, activation=sizes.activations, layer=layers)
    per = ("weights", "activation")
    logs = run.parts(log_norms, results.points(*per))
    results.add_means(
        "log_norm", (*per, "layer"),
        {point: norms[:, layers] - norms[:, -1:] for point, norms in logs.items()},
        "ln of the gradient norm, relative to the last layer",
    )  # fmt: skip
    rates = {point: _growth(norms, ends, depth - 1 - ends) for point, norms in logs.items()}
    results.add("rate", per, rates, "growth of the squared norm per layer")
    results.add(
        "mean_field", ("activation",), list(predicted.values()),
        "the same at infinite width, Gaussian weights",
    )  # fmt: skip
    table = Table(
        (
            "activation", "weights", "squared norm, per layer", "mean field, Gaussian weights",
            "difference, %",
        ),
        tuple(
            (name, weights, rate, predicted[name], 100.0 * (rate.value / predicted[name] - 1.0))
            for (weights, name), rate in rates.items()
        ),
    )  # fmt: skip
    findings = (
        f"{name}, {weights} weights: the squared gradient norm grows by {interval(rate)} per layer "
        f"towards the input; mean field of Gaussian weights: {theory:.5g}."
        for name, weights, rate, theory, _ in table.rows
    )
    return results.experiment(
        f"Gradients explode with depth: batch {sizes.batch}, width {sizes.width}", table, findings,
        _draw, width=sizes.width, batch=sizes.batch, depth=depth, chains=sizes.networks,
        norm="batch", dtype="float32",
    )  # fmt: skip


def _growth(logs: Float64Array, first: int, last: int) -> Estimate:
    """Return the growth of the squared norm per layer, from the logarithms."""
    growth = 2.0 * (logs[:, first] - logs[:, last]) / (last - first)
    return Estimate.from_samples(growth, method="growth of norms").exp()


def _draw(data: Dataset, figure: Drawing) -> None:
    from matplotlib import colormaps

    left, right = pictures.axes_of(figure, 2, width=5.8, height=4.4)[0]
    names, laws = data["activation"].values, data["weights"].values
    colours = colormaps["viridis"](np.linspace(0.0, 0.95, len(names)))
    layers, last = data["layer"].values, data.attrs["depth"] - 1
    norms = pictures.curve(data, "log_norm")
    for index, name in enumerate(names):
        slope = 0.5 * math.log(float(data["mean_field"][index]))
        left.plot(layers, slope * (last - layers), ":", color="black", linewidth=0.8)
        for row, weights in enumerate(laws):
            pictures.draw_band(
                left, layers, norms[row, index], colours[index], name if row == 0 else None,
                linestyle=_STYLES[weights],
            )  # fmt: skip
    for weights in laws[1:]:
        left.plot([], [], _STYLES[weights], color="black", label=f"{weights} weights")
    left.plot([], [], ":", color="black", label="mean field")
    left.set(xlabel=r"layer $\ell$", ylabel=r"$\ln\, \|\partial L/\partial W_\ell\|_F$, relative")
    left.set_title("Gradient norms", loc="left")
    left.legend(fontsize="x-small", ncols=2)
    places = np.arange(len(names))
    for row, weights in enumerate(laws):
        value, low, high = pictures.curve(data, "rate")[row].T
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
