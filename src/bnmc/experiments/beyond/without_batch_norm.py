"""Wide networks with a norm over the features, or none: the isometry gap, and the edge of chaos.

Given its inputs a, (width, n), the rows of the next pre-activations are i.i.d. normal with
covariance σ_w² aᵀa/width + σ_b², so no weights are drawn.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, NamedTuple

import numpy as np

from bnmc._support.linalg import semidefinite_root
from bnmc.chain.activations import Activation, as_activation
from bnmc.experiments import kit, pictures
from bnmc.experiments.kit import Dataset, Drawing, Experiment, Float64Array, Progress, Run, Table
from bnmc.experiments.sizes import Named, Several
from bnmc.experiments.statistics import banded, short_interval
from bnmc.mean_field import CorrelationMap, Phase, edge_of_chaos, isometry_rate
from bnmc.plot.axes import COLOURS, logarithmic

# --- networks


class _Network(NamedTuple):
    """A network without skip connection.

    Attributes
    ----------
    activation : Activation
    width : int
    weight_variance, bias_variance : float
    normalizes : bool
        Whether layer normalization is used.
    norm_is_last : bool
        Whether it acts after the activation.
    """

    activation: Activation
    width: int
    weight_variance: float = 1.0
    bias_variance: float = 0.0
    normalizes: bool = False
    norm_is_last: bool = False

    def branch(self, h: Float64Array) -> Float64Array:
        """Return what the weights multiply."""
        if not self.normalizes:
            return np.asarray(self.activation(h))
        if self.norm_is_last:
            return _normalized(np.asarray(self.activation(h)))
        return np.asarray(self.activation(_normalized(h)))


def _ensemble(
    network: _Network,
    start: Float64Array,
    depth: int,
    count: int,
    generator: np.random.Generator,
    *,
    progress: Progress | None = None,
) -> Float64Array:
    """Return the Gram matrices of h of `count` networks, (count, depth + 1, n, n).

    Parameters
    ----------
    network : _Network
    start : (n, n) ndarray
        Gram matrix of h_0, positive definite.  Each network draws other rows with exactly this
        Gram matrix.
    depth, count : int
    generator : numpy.random.Generator
    progress : callable, optional
        Called with (done, total).
    """
    n, width = len(start), network.width
    grams = np.empty((count, depth + 1, n, n))
    root = np.linalg.cholesky(start).T
    for k in range(count):
        if progress is not None:
            progress(k, count)
        basis, _ = np.linalg.qr(generator.standard_normal((width, n)))
        h = np.sqrt(width) * basis @ root
        for layer in range(depth + 1):
            grams[k, layer] = h.T @ h / width
            if layer < depth:
                a = network.branch(h)
                covariance = network.weight_variance * (a.T @ a / width) + network.bias_variance
                h = generator.standard_normal((width, n)) @ semidefinite_root(covariance)
    return grams


def _normalized(h: Float64Array) -> Float64Array:
    """Normalize each column."""
    centred = h - h.mean(axis=0)
    return np.asarray(centred / np.sqrt(np.mean(centred**2, axis=0)))


# --- the isometry gap


_ORDERS = ("norm-activation", "activation-norm")

#: 1 − c of all pairs of inputs; the isometry gap of 10 inputs is then about 6.
_ISOMETRY_GAP = 1e-3

#: Gram matrices whose smallest eigenvalue is this part of the largest are singular to rounding.
_SINGULAR = 1e-10

#: β as recorded by the authors' code.
_RECORDED = {"relu": 1.265, "tanh": 1.070, "sigmoid": 1.012}


class _IsometrySizes(NamedTuple):
    """Sizes of the figure."""

    activations: tuple[Named, ...] = ("relu", "tanh", "sigmoid")
    width: int = 1000
    batch: Several = 10
    depth: int = 30
    chains: Several = 10


@kit.figure(
    "isometry", _IsometrySizes(), activations=("relu", "tanh", "sigmoid", "gelu", "selu", "sin"),
    width=4000, depth=60, chains=20,
)  # fmt: skip
def isometry(run: Run, sizes: _IsometrySizes) -> Experiment:
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
        network = _Network(
            as_activation(activation), sizes.width, normalizes=True,
            norm_is_last=order == "activation-norm",
        )  # fmt: skip
        start = (1.0 - _ISOMETRY_GAP) * np.ones((n, n)) + _ISOMETRY_GAP * np.eye(n)
        grams = _ensemble(
            network, start, sizes.depth, sizes.chains, run.generator, progress=progress
        )
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
    predictions = {point: _predicted_gaps(sizes, *point) for point in parts}
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
        _isometry_finding(as_activation(activation), sizes.depth, *table.rows[2 * k : 2 * k + 2])
        for k, activation in enumerate(sizes.activations)
    ]
    return results.experiment(
        "Isometry gap with the norm before and after the activation", table, findings, _draw_gaps,
        width=sizes.width, batch=sizes.batch, chains=sizes.chains, norm="layer",
    )  # fmt: skip


def _predicted_gaps(sizes: _IsometrySizes, activation: Named, order: str) -> Float64Array:
    """Return the gaps of the mean field, (depth + 1,); all correlations remain equal."""
    n = sizes.batch
    field = CorrelationMap(activation, norm="layer", order=order)
    c = field.trajectory(sizes.depth, correlation=1.0 - _ISOMETRY_GAP).correlation
    c = np.where(1.0 - c > n * _SINGULAR, c, np.nan)
    gaps: Float64Array = -((n - 1) * np.log1p(-c) + np.log1p((n - 1) * c)) / n
    return gaps


def _isometry_finding(
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


def _draw_gaps(data: Dataset, figure: Drawing) -> None:
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
        logarithmic(ax)
        pictures.finish(ax, f"{name}, β = {beta:.4f}", "layer", "isometry gap")
    for ax in axes.flat[len(names) :]:
        ax.set_visible(False)
    axes.flat[0].plot([], [], "k--", linewidth=1.0, label="mean field")
    axes.flat[0].legend(loc="lower left", fontsize="small")
    figure.suptitle(pictures.about(data, "Isometry gap, layer norm, width {width}"))


# --- the edge of chaos


#: 1 − c of the two inputs: so small that the map is linear through all layers.
_PHASE_GAP = 1e-5


class _PhaseSizes(NamedTuple):
    """Sizes of the figure.

    curve: bias variances of the curve
    biases: bias variances of the points
    factors: weight variances of the points, divided by that of the edge
    chains: networks of each point
    """

    activations: tuple[Named, ...] = ("tanh", "erf", "selu")
    curve: tuple[Annotated[float, {"low": 0.0}], ...] = (
        0.0, 0.01, 0.03, 0.06, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
    )  # fmt: skip
    biases: tuple[Annotated[float, {"low": 0.0}], ...] = (0.05, 0.3)
    factors: tuple[float, ...] = (0.7, 1.0, 1.4)
    width: int = 1000
    depth: int = 5
    chains: Several = 40


@kit.figure(
    "edge-of-chaos", _PhaseSizes(), activations=("tanh", "erf", "sin", "selu", "elu", "sigmoid"),
    curve=(0.0, *(k / 40 for k in range(1, 25))), biases=(0.05, 0.15, 0.3, 0.5),
    factors=(0.6, 0.8, 1.0, 1.2, 1.5), width=10_000, depth=8, chains=100,
)  # fmt: skip
def edge_of_chaos_diagram(run: Run, sizes: _PhaseSizes) -> Experiment:
    r"""Phases of deep networks without normalization: ordered, critical and chaotic.

    The picture shows, for three activations (``full``: six), the edge of chaos in the plane of
    weight and bias variance (`bnmc.mean_field.edge_of_chaos`; Poole et al., arXiv 1606.05340;
    Schoenholz et al., arXiv 1611.01232).  At each point, networks of width 1000 (``full``: 10000)
    have two nearly equal inputs, 1 − c = 1e-5.  Their squared distance changes by the factor χ per
    layer, measured over 5 layers (``full``: 8).

    Expected: χ < 1 left of the edge, χ > 1 right of it, and χ = 1 on it, within the intervals.
    The factor is the root of the mean growth through all layers.  The mean of its logarithm would
    be below ln χ, by a term of order 1/d.

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
        """Return the factor of |h_1 − h_2|² through all layers, for each network."""
        phase = phases[name, bias, factor]
        # Where the variance has no limit, the activation is homogeneous.
        variance = phase.variance if 0.0 < phase.variance < math.inf else 1.0
        network = _Network(as_activation(name), sizes.width, weights[name, bias, factor], bias)
        start = variance * np.array([[1.0, 1.0 - _PHASE_GAP], [1.0 - _PHASE_GAP, 1.0]])
        grams = _ensemble(
            network, start, sizes.depth, sizes.chains, run.generator, progress=progress
        )
        square = grams[..., 0, 0] + grams[..., 1, 1] - 2.0 * grams[..., 0, 1]
        factors: Float64Array = square[:, -1] / square[:, 0]
        return factors

    def per_layer(factors: Float64Array) -> Float64Array:
        """Return the logarithm of the mean factor per layer, and the ends of its interval."""
        mean, low, high = banded(factors)
        reach = (high - low) / 2 / mean  # of the logarithm, to first order
        return np.array([np.log(mean), np.log(mean) - reach, np.log(mean) + reach]) / sizes.depth

    parts = run.parts(growth_of, results.points(*per))
    results.add("edge", ("activation", "curve"), edges, "weight variance on the edge")
    results.add("weight", per, weights, "weight variance")
    predicted = {point: math.log(phase.backward_rate) for point, phase in phases.items()}
    results.add("predicted", per, predicted, "logarithm of χ of the mean field")
    growth = results.add(
        "growth", per, kit.each(parts, per_layer), "measured logarithm of χ",
        chains=sizes.chains,
    )  # fmt: skip
    estimates = dict(zip(parts, growth.cells().values(), strict=True))
    table = Table(
        ("activation", "weight variance", "bias variance", "phase", "χ", "measured χ"),
        tuple(
            (
                as_activation(point[0]).name, weights[point], point[1], phase.name,
                phase.backward_rate, estimates[point].exp(),
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
        "The edge of chaos, and measured growth of differences", table, findings, _draw_phases,
        width=sizes.width, depth=sizes.depth, chains=sizes.chains, norm="none",
    )  # fmt: skip


def _draw_phases(data: Dataset, figure: Drawing) -> None:
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
            vmin=0.8, vmax=1.2, edgecolors="black", zorder=3,
        )  # fmt: skip
        pictures.finish(
            ax, str(name), r"weight variance $\sigma_w^2$", r"bias variance $\sigma_b^2$",
            xlim=(0.0, right),
        )  # fmt: skip
    for ax in axes.flat[len(names) :]:
        ax.set_visible(False)
    axes.flat[0].legend(loc="upper left", fontsize="small")
    figure.suptitle("Points: measured, width {width}, {chains} networks".format(**data.attrs))
    if image is not None:
        figure.colorbar(image, ax=axes.ravel().tolist(), label=r"measured $\chi$", extend="both")
