"""Phase diagrams of networks without normalization, with measured points."""

from __future__ import annotations

import math
from typing import Annotated, NamedTuple

import numpy as np

from bnmc.chain.activations import as_activation
from bnmc.experiments import kit, pictures
from bnmc.experiments.beyond.wide_networks import Network, ensemble
from bnmc.experiments.kit import Dataset, Drawing, Experiment, Float64Array, Progress, Run, Table
from bnmc.experiments.sizes import Named, Several
from bnmc.mean_field import CorrelationMap, Phase, edge_of_chaos
from bnmc.plot.axes import COLOURS

#: 1 − c of the two inputs: so small that the map is linear through all layers.
_GAP = 1e-5


class Sizes(NamedTuple):
    """Sizes of the figure.

    curve: bias variances of the curve
    biases: bias variances of the points
    factors: weight variances of the points, divided by that of the edge
    networks: networks of each point
    """

    activations: tuple[Named, ...] = ("tanh", "erf", "selu")
    curve: tuple[Annotated[float, {"low": 0.0}], ...] = (
        0.0, 0.01, 0.03, 0.06, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
    )  # fmt: skip
    biases: tuple[Annotated[float, {"low": 0.0}], ...] = (0.05, 0.3)
    factors: tuple[float, ...] = (0.7, 1.0, 1.4)
    width: int = 1000
    depth: int = 5
    networks: Several = 40


@kit.figure(
    "edge-of-chaos", Sizes(), activations=("tanh", "erf", "sin", "selu", "elu", "sigmoid"),
    curve=(0.0, *(k / 40 for k in range(1, 25))), biases=(0.05, 0.15, 0.3, 0.5),
    factors=(0.6, 0.8, 1.0, 1.2, 1.5), width=10_000, depth=8, networks=100,
)  # fmt: skip
def edge_of_chaos_diagram(run: Run, sizes: Sizes) -> Experiment:
    r"""Phases of deep networks without normalization: ordered, critical and chaotic.

    The picture shows, for three activations (``full``: six), the edge of chaos in the plane of
    weight and bias variance (`bnmc.mean_field.edge_of_chaos`; Poole et al., arXiv 1606.05340;
    Schoenholz et al., arXiv 1611.01232).  At each point, networks of width 1000 (``full``: 10000)
    have two nearly equal inputs, 1 − c = 1e-5.  Their squared distance changes by the factor χ per
    layer, measured over 5 layers (``full``: 8).

    Expected: χ < 1 left of the edge, χ > 1 right of it, and χ = 1 on it, within the intervals.
    The factor is a mean of logarithms, which at width d is below ln χ by a correction of order 1/d.

    Returns
    -------
    Experiment
        Variables by ``activation``, ``bias`` and ``factor``.
    """
    results = kit.Results(
        run, activation=sizes.activations, curve=kit.Axis(sizes.curve, "bias variance"),
        bias=kit.Axis(sizes.biases, "bias variance"),
        factor=kit.Axis(sizes.factors, "weight variance over that of the edge"),
    )  # fmt: skip
    per = ("activation", "bias", "factor")
    edges = [edge_of_chaos(name, sizes.curve).weight_variance for name in sizes.activations]
    weights: dict[tuple[Named, float, float], float] = {}
    phases: dict[tuple[Named, float, float], Phase] = {}
    for name in sizes.activations:
        at = edge_of_chaos(name, sizes.biases).weight_variance.tolist()
        for bias, edge in zip(sizes.biases, at, strict=True):
            for factor in sizes.factors:
                weight = weights[name, bias, factor] = factor * edge
                field = CorrelationMap(name, weight_variance=weight, bias_variance=bias)
                phases[name, bias, factor] = field.phase()

    def growth_of(name: Named, bias: float, factor: float, progress: Progress) -> Float64Array:
        """Return the growth of |h_1 − h_2|² per layer in logarithms, for each network."""
        phase = phases[name, bias, factor]
        # Where the variance has no limit, the activation is homogeneous.
        variance = phase.variance if 0.0 < phase.variance < math.inf else 1.0
        network = Network(as_activation(name), sizes.width, weights[name, bias, factor], bias)
        start = variance * np.array([[1.0, 1.0 - _GAP], [1.0 - _GAP, 1.0]])
        grams = ensemble(
            network, start, sizes.depth, sizes.networks, run.generator, progress=progress
        ).preactivations
        square = grams[..., 0, 0] + grams[..., 1, 1] - 2.0 * grams[..., 0, 1]
        logs: Float64Array = np.log(square[:, -1] / square[:, 0]) / sizes.depth
        return logs

    parts = run.parts(growth_of, results.points(*per))
    results.add("edge", ("activation", "curve"), edges, "weight variance on the edge")
    results.add("weight", per, weights, "weight variance")
    predicted = {point: math.log(phase.gradient_factor) for point, phase in phases.items()}
    results.add("predicted", per, predicted, "logarithm of χ of the mean field")
    growth = results.add_means("growth", per, parts, "measured logarithm of χ")
    estimates = dict(zip(parts, growth.cells().values(), strict=True))
    table = Table(
        ("activation", "weight variance", "bias variance", "phase", "χ", "measured χ"),
        tuple(
            (
                as_activation(point[0]).name, weights[point], point[1], phase.name,
                phase.gradient_factor, estimates[point].exp(),
            )
            for point, phase in phases.items()
        ),
    )  # fmt: skip
    findings = []
    for name in sizes.activations:
        points = [point for point in phases if point[0] == name]
        inside = sum(
            estimates[point].ci[0] <= predicted[point] <= estimates[point].ci[1] for point in points
        )
        off = [point for point in points if phases[point].name != "critical"]
        sides = sum(
            (estimates[point].value > 0.0) == (phases[point].name == "chaotic") for point in off
        )
        findings.append(
            f"{as_activation(name).name}: χ of the mean field is in {inside} of {len(points)} "
            f"intervals at 95 %; differences grow or shrink as predicted at {sides} of {len(off)} "
            "points off the edge."
        )
    return results.experiment(
        "The edge of chaos, and measured growth of differences", table, findings, _draw,
        width=sizes.width, depth=sizes.depth, networks=sizes.networks, norm="none",
    )  # fmt: skip


def _draw(data: Dataset, figure: Drawing) -> None:
    names = data["activation"].values
    columns = min(3, len(names))
    axes = pictures.axes_of(figure, columns, -(-len(names) // columns), width=4.4, height=4.0)
    image = None
    for ax, name in zip(axes.flat, names, strict=False):
        part = data.sel(activation=name)
        edge, bias = part["edge"].values, data["curve"].values
        weights = part["weight"].values
        right = 1.1 * max(float(weights.max()), float(edge.max()))
        ax.fill_betweenx(bias, 0.0, edge, color=COLOURS[0], alpha=0.12, label="ordered")
        ax.fill_betweenx(bias, edge, right, color=COLOURS[1], alpha=0.12, label="chaotic")
        ax.plot(edge, bias, color="black", linewidth=1.2, label="edge of chaos")
        heights = np.repeat(data["bias"].values, data.sizes["factor"])
        image = ax.scatter(
            weights.ravel(), heights, c=np.exp(part["growth"].values.ravel()), cmap="coolwarm",
            vmin=0.5, vmax=1.5, edgecolors="black", zorder=3,
        )  # fmt: skip
        pictures.finish(ax, str(name), r"weight variance $\sigma_w^2$", xlim=(0.0, right))
    for row in axes:
        row[0].set_ylabel(r"bias variance $\sigma_b^2$")
    for ax in axes.flat[len(names) :]:
        ax.set_visible(False)
    axes.flat[0].legend(loc="upper left", fontsize="small")
    if image is not None:
        figure.colorbar(image, ax=axes.ravel().tolist(), label=r"measured $\chi$", extend="both")
