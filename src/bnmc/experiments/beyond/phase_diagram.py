"""Phase diagrams of networks without normalization, with measured points."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnmc._support.progress import Progress
from bnmc.chain.activations import Activation, as_activation
from bnmc.estimate.estimate import Estimate
from bnmc.experiments.beyond.wide_networks import Network, ensemble
from bnmc.experiments.data import Variable, dataset, ends, with_ends
from bnmc.experiments.experiment import Experiment, Table, with_parameters
from bnmc.experiments.parts import Call, Store, chosen
from bnmc.experiments.pictures import axes_of
from bnmc.experiments.statistics import LEVEL, banded, mean_of_band
from bnmc.mean_field import CorrelationMap, EdgeOfChaos, Phase, edge_of_chaos
from bnmc.plot.axes import COLOURS

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

__all__ = ["DEFAULT", "FULL", "Sizes", "edge_of_chaos_diagram", "experiment"]


class Sizes(NamedTuple):
    """Activations; biases of the curve and of the points; weights of the points; networks.

    `factors` are weight variances of the points, divided by that of the edge.
    """

    activations: tuple[str | Activation, ...]
    curve: tuple[float, ...]
    biases: tuple[float, ...]
    factors: tuple[float, ...]
    width: int
    depth: int
    networks: int


DEFAULT = Sizes(
    ("tanh", "erf", "selu"), (0.0, 0.01, 0.03, 0.06, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5),
    (0.05, 0.3), (0.7, 1.0, 1.4), 1000, 5, 40,
)  # fmt: skip
FULL = Sizes(
    ("tanh", "erf", "sin", "selu", "elu", "sigmoid"),
    (0.0, *(k / 40 for k in range(1, 25))),
    (0.05, 0.15, 0.3, 0.5), (0.6, 0.8, 1.0, 1.2, 1.5), 10_000, 8, 100,
)  # fmt: skip

#: 1 − c of the two inputs: so small that the map is linear through all layers.
GAP = 1e-5


@with_parameters
def edge_of_chaos_diagram(
    *,
    full: bool = False,
    rng: Any = 0,
    progress: bool | Progress = False,
    threads: int | None = None,
    store: Store = None,
) -> Experiment:
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
    call = Call("edge-of-chaos", full, rng, progress, threads, store)
    return experiment(chosen(DEFAULT, FULL, full), call)


class _Point(NamedTuple):
    """One point of the plane: mean field, and the measured logarithm of χ."""

    weight: float
    bias: float
    phase: Phase
    growth: Estimate


def experiment(sizes: Sizes, call: Call) -> Experiment:
    """Run the experiment with these sizes."""
    activations = [as_activation(one) for one in sizes.activations]
    edges, points = [], []
    count = len(sizes.activations) * len(sizes.biases) * len(sizes.factors)
    with call.parts([1.0] * count) as parts:
        for activation in activations:
            edges.append(edge_of_chaos(activation, sizes.curve))
            at = edge_of_chaos(activation, sizes.biases)
            for bias, edge in zip(sizes.biases, at.weight_variance.tolist(), strict=True):
                for factor in sizes.factors:
                    weight = factor * edge
                    field = CorrelationMap(activation, weight_variance=weight, bias_variance=bias)
                    phase = field.phase()
                    # Where the variance has no limit, the activation is homogeneous.
                    variance = phase.variance if 0.0 < phase.variance < math.inf else 1.0
                    growth = parts.run(
                        _measured, activation, weight, bias, variance, sizes, call.generator
                    )
                    estimate = mean_of_band(banded(growth), sizes.networks)
                    points.append(_Point(weight, bias, phase, estimate))
    table = Table(
        ("activation", "weight variance", "bias variance", "phase", "χ", "measured χ"),
        tuple(
            (
                activation.name, one.weight, one.bias, one.phase.name,
                one.phase.gradient_factor, _exponential(one.growth),
            )
            for activation, mine in zip(activations, _divided(points, activations), strict=True)
            for one in mine
        ),
    )  # fmt: skip
    title = "The edge of chaos, and measured growth of differences"
    data = _data(sizes, call, activations, edges, points)
    return Experiment(call.name, title, data, table, _findings(activations, points), _draw)


def _divided(points: list[_Point], activations: list[Activation]) -> list[list[_Point]]:
    size = len(points) // len(activations)
    return [points[k * size : (k + 1) * size] for k in range(len(activations))]


def _measured(
    activation: Activation,
    weight: float,
    bias: float,
    variance: float,
    sizes: Sizes,
    generator: np.random.Generator,
    *,
    progress: Progress,
) -> NDArray[np.float64]:
    """Return the growth of |h_1 − h_2|² per layer in logarithms, for each network."""
    network = Network(activation, sizes.width, weight, bias)
    start = variance * np.array([[1.0, 1.0 - GAP], [1.0 - GAP, 1.0]])
    grams = ensemble(
        network, start, sizes.depth, sizes.networks, generator, progress=progress
    ).preactivations
    square = grams[..., 0, 0] + grams[..., 1, 1] - 2.0 * grams[..., 0, 1]
    growth: NDArray[np.float64] = np.log(square[:, -1] / square[:, 0]) / sizes.depth
    return growth


def _exponential(growth: Estimate) -> Estimate:
    """Return χ from its logarithm."""
    value, low, high = (math.exp(x) for x in (growth.value, *growth.ci))
    return Estimate(value, growth.stderr * value, (low, high), growth.n, growth.method, LEVEL)


def _findings(activations: list[Activation], points: list[_Point]) -> tuple[str, ...]:
    findings = []
    for activation, mine in zip(activations, _divided(points, activations), strict=True):
        inside = sum(
            one.growth.ci[0] <= math.log(one.phase.gradient_factor) <= one.growth.ci[1]
            for one in mine
        )
        off = [one for one in mine if one.phase.name != "critical"]
        sides = sum((one.growth.value > 0.0) == (one.phase.name == "chaotic") for one in off)
        findings.append(
            f"{activation.name}: χ of the mean field is in {inside} of {len(mine)} intervals at "
            f"95 %; differences grow or shrink as predicted at {sides} of {len(off)} points off "
            "the edge."
        )
    return tuple(findings)


def _data(
    sizes: Sizes,
    call: Call,
    activations: list[Activation],
    edges: list[EdgeOfChaos],
    points: list[_Point],
) -> xarray.Dataset:
    per = ("activation", "bias", "factor")
    shape = (len(activations), len(sizes.biases), len(sizes.factors))

    def shaped(values: list[float]) -> NDArray[np.float64]:
        return np.reshape(np.array(values), shape)

    growth = np.reshape(ends([one.growth for one in points]), (*shape, 3))
    return dataset(
        {
            "edge": Variable(
                ("activation", "curve"), [one.weight_variance for one in edges],
                "weight variance on the edge",
            ),
            "weight": Variable(per, shaped([one.weight for one in points]), "weight variance"),
            "predicted": Variable(
                per, shaped([math.log(one.phase.gradient_factor) for one in points]),
                "logarithm of χ of the mean field",
            ),
            **with_ends("growth", per, growth, "measured logarithm of χ"),
        },
        {
            "activation": Variable(
                ("activation",), [one.name for one in activations], "activation", ""
            ),
            "curve": Variable(("curve",), list(sizes.curve), "bias variance"),
            "bias": Variable(("bias",), list(sizes.biases), "bias variance"),
            "factor": Variable(
                ("factor",), list(sizes.factors), "weight variance over that of the edge"
            ),
        },
        call,
        {"width": sizes.width, "depth": sizes.depth, "networks": sizes.networks, "norm": "none"},
    )  # fmt: skip


def _draw(data: xarray.Dataset, figure: Figure) -> None:
    names = data["activation"].values
    columns = min(3, len(names))
    axes = axes_of(figure, columns, -(-len(names) // columns), width=4.4, height=4.0)
    image = None
    for ax, name in zip(axes.flat, names, strict=False):
        one = data.sel(activation=name)
        edge, bias = one["edge"].values, data["curve"].values
        weights = one["weight"].values
        right = 1.1 * max(float(weights.max()), float(edge.max()))
        ax.fill_betweenx(bias, 0.0, edge, color=COLOURS[0], alpha=0.12, label="ordered")
        ax.fill_betweenx(bias, edge, right, color=COLOURS[1], alpha=0.12, label="chaotic")
        ax.plot(edge, bias, color="black", linewidth=1.2, label="edge of chaos")
        heights = np.repeat(data["bias"].values, data.sizes["factor"])
        image = ax.scatter(
            weights.ravel(), heights, c=np.exp(one["growth"].values.ravel()), cmap="coolwarm",
            vmin=0.5, vmax=1.5, edgecolors="black", zorder=3,
        )  # fmt: skip
        ax.set(xlim=(0.0, right), xlabel=r"weight variance $\sigma_w^2$")
        ax.set_title(str(name), loc="left")
    for row in axes:
        row[0].set_ylabel(r"bias variance $\sigma_b^2$")
    for ax in axes.flat[len(names) :]:
        ax.set_visible(False)
    axes.flat[0].legend(loc="upper left", fontsize="small")
    if image is not None:
        figure.colorbar(image, ax=axes.ravel().tolist(), label=r"measured $\chi$", extend="both")
