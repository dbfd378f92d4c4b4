"""Rank, orthogonality, correlation and gradients over depth, for each norm."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Annotated, NamedTuple

import numpy as np

from bnmc import gram as gm
from bnmc.chain.activations import Activation, as_activation
from bnmc.chain.chain import Chain
from bnmc.errors import ArgumentError, BnmcError
from bnmc.estimate.estimate import Estimate
from bnmc.experiments import kit, pictures
from bnmc.experiments.kit import (
    Column,
    Dataset,
    Drawing,
    Experiment,
    Float64Array,
    Progress,
    Run,
    Table,
)
from bnmc.experiments.sizes import Named, Several
from bnmc.gradients import backpropagate
from bnmc.mean_field import CorrelationMap, MeanField
from bnmc.plot.axes import COLOURS, label_layers

#: Eigenvalues of at least this part of their mean count for the soft rank.
_TAU = 0.1

#: Titles, axes and descriptions of the variables.
_PANELS = {
    "soft_rank":
        ("Soft rank", "soft rank", f"eigenvalues of G of at least {_TAU:g} times their mean"),
    "gap": ("Orthogonality", "orthogonality gap", "orthogonality gap of G"),
    "correlation": ("Correlation", "mean correlation", "mean correlation of two samples"),
    "log_norm": (
        "Gradients", r"$\ln\, \|\partial L/\partial W_\ell\|_F$, relative",
        "ln of the gradient norm, relative to the last layer but one",
    ),
}  # fmt: skip

#: Variables in the table, with their heads.
_AT_LAST_LAYER = {
    "soft_rank": "soft rank", "gap": "orthogonality gap", "correlation": "correlation",
}  # fmt: skip


class Sizes(NamedTuple):
    """Sizes of the figure.

    activation: activation
    depth: number of layers, at least 4
    chains: networks of each norm, at least 2
    """

    norms: tuple[str, ...] = ("batch", "layer", "rms", "group(8)", "none")
    activation: Named = "relu"
    width: int = 400
    batch: Several = 8
    depth: Annotated[int, {"low": 4}] = 30
    chains: Several = 8


@kit.figure("norms", Sizes(), width=1000, batch=10, depth=60, chains=20)
def norms(run: Run, sizes: Sizes) -> Experiment:
    r"""Rank, orthogonality gap, correlation and gradients over depth, for each norm.

    Networks of relu with width 400, batch 8 and 30 layers (``full``: 1000, 10 and 60) have batch,
    layer, RMS or group normalization before the activation, or none.  The inputs are independent
    and Gaussian.  The gain keeps the variance of networks without norm: :math:`1/\sqrt{E σ(z)^2}`
    for a normal z.  Of the Gram matrix G of the activations, the picture shows the soft rank (the
    number of eigenvalues of at least 0.1 times their mean), the orthogonality gap
    :math:`\|G/\mathrm{tr}\, G - I/n\|_F` and the mean correlation of two samples; and the norms of
    the gradients with respect to the weights, relative to the last layer but one.

    Expected: the mean field.  Batch normalization keeps the Gram matrix at its fixed point, with
    correlations below 1, and its gradients explode (`bnmc.MeanField`).  The others act on each pair
    of samples (`bnmc.mean_field.CorrelationMap`): correlations of relu tend to 1, the rank to 1,
    and gradients keep their size.  Layer, RMS and group normalization agree at infinite width.

    Returns
    -------
    Experiment
        Variables by ``norm`` and ``layer``, or ``weight_layer``.  Predictions are NaN where the
        mean field has none, and for gradients of the last layer, which have not passed a norm.
    """
    activation, depth = as_activation(sizes.activation), sizes.depth
    gain = _gain(activation)
    chains = {
        norm: Chain(sizes.width, sizes.batch, activation, norm=norm, gain=gain)
        for norm in sizes.norms
    }

    def panels(norm: str, progress: Progress) -> dict[str, Float64Array]:
        """Return the panels of each network, (networks, depth)."""
        passed = backpropagate(
            chains[norm], depth, chains=sizes.chains, observables=("gram",),
            **run.options(progress),
        )  # fmt: skip
        logs = passed.log_gradient_norm
        if not np.isfinite(logs).all():
            allowed = "one at which gradients do not vanish"
            raise ArgumentError("width", sizes.width, allowed, f'norm "{norm}"')
        return {**_of_gram(passed["gram"]), "log_norm": logs - logs[:, -2:-1]}

    results = kit.Results(
        run, norm=kit.Axis(sizes.norms, "norm", ""), layer=np.arange(1, depth + 1),
        weight_layer=np.arange(depth),
    )  # fmt: skip
    parts = run.parts(panels, results.points("norm"))
    predictions = {(norm,): _predicted(chain, depth) for norm, chain in chains.items()}
    measured: dict[str, Column] = {}
    predicted: dict[str, Column] = {}
    for name, (_, _, text) in _PANELS.items():
        axes = ("norm", "weight_layer" if name == "log_norm" else "layer")
        measured[name] = results.add_means(
            name, axes, kit.entry(parts, name), text, within=_range(name, sizes.batch)
        )
        predicted[name] = results.add(
            f"{name}_predicted", axes, kit.entry(predictions, name), f"{text}, mean field"
        )
    factors = kit.each(
        kit.entry(parts, "log_norm"),
        lambda logs: Estimate.from_samples(
            2.0 * (logs[:, 0] / (depth - 2)), method="growth of norms"
        ).exp(),
    )
    growth = results.add(
        "backward_rate", ("norm",), factors, "squared gradient norm, growth per layer"
    )
    theory = np.exp(2.0 * predicted["log_norm"].values[:, 0] / (depth - 2))
    last = {
        head: (measured[name].at(layer=-1).cells(), predicted[name].at(layer=-1).cells())
        for name, head in _AT_LAST_LAYER.items()
    }
    last["squared gradient growth"] = growth.cells(), results.column(("norm",), theory).cells()
    table = Table(
        ("norm", f"layer {depth}", "measured", "mean field"),
        tuple(
            (norm, head, *(cells[norm,] for cells in columns))
            for norm in sizes.norms
            for head, columns in last.items()
        ),
    )
    findings = _comparison(sizes, measured["gap"].at(layer=-1).ends(), growth.ends())
    return results.experiment(
        f"Norms compared: {activation.name}, width {sizes.width}, batch {sizes.batch}", table,
        findings, _draw, activation=activation.name, gain=gain, width=sizes.width,
        batch=sizes.batch, chains=sizes.chains, tau=_TAU,
    )  # fmt: skip


def _range(name: str, batch: int) -> tuple[float, float]:
    """Return the least and the largest possible value of a panel."""
    ranges = {
        "soft_rank": (1.0, float(batch)), "gap": (0.0, math.sqrt(1.0 - 1.0 / batch)),
        "correlation": (-1.0 / (batch - 1), 1.0),
    }  # fmt: skip
    return ranges.get(name, (-math.inf, math.inf))


def _gain(activation: Activation) -> float:
    """Return the gain with which the variance 1 is a fixed point without norm, or 1."""
    z, weights = np.polynomial.hermite_e.hermegauss(200)
    mean_square = float(weights @ np.square(activation(z))) / math.sqrt(2.0 * math.pi)
    return 1.0 / math.sqrt(mean_square) if 0.0 < mean_square < math.inf else 1.0


def _of_gram(grams: Float64Array) -> dict[str, Float64Array]:
    """Return soft rank, orthogonality gap and mean correlation of Gram matrices."""
    n = grams.shape[-1]
    unit = grams * (n / np.trace(grams, axis1=-2, axis2=-1)[..., None, None])
    correlations = gm.correlation(unit)
    return {
        "soft_rank": gm.soft_rank(unit, _TAU, width=n).astype(np.float64),
        "gap": gm.orthogonality_gap(unit),
        "correlation": (correlations.sum(axis=(-2, -1)) - n) / (n * (n - 1)),
    }


def _predicted(chain: Chain, depth: int) -> dict[str, Float64Array]:
    """Return the panels of the mean field, (depth,); NaN where it has none."""
    of_norm: Callable[[Chain, int], dict[str, Float64Array]] = (
        _by_batch if chain.normalization.axis == "batch" else _by_pairs
    )
    try:
        return of_norm(chain, depth)
    except BnmcError:
        return dict.fromkeys(_PANELS, np.full(depth, np.nan))


def _by_batch(chain: Chain, depth: int) -> dict[str, Float64Array]:
    """Independent samples are at the fixed point from the first layer on, if the norm centres."""
    nothing = np.full(depth, np.nan)
    if not chain.normalization.centred:
        return dict.fromkeys(_PANELS, nothing)
    point = MeanField(chain).fixed_point()
    rate = point.backward_rate
    logs = nothing.copy()
    if math.isfinite(rate) and rate > 0.0:
        # The gradient of the last layer has passed no norm, that of the one before has passed one.
        logs[:-1] = 0.5 * math.log(rate) * (depth - 2 - np.arange(depth - 1))
    of_gram = {name: np.full(depth, value) for name, value in _of_gram(point.gram).items()}
    return {**of_gram, "log_norm": logs}


def _by_pairs(chain: Chain, depth: int) -> dict[str, Float64Array]:
    """All correlations of independent samples remain equal, and gradients of samples separate."""
    n = chain.batch
    path = CorrelationMap.of(chain).trajectory(depth + 1, correlation=0.0)
    # The correlations of G are those of the next pre-activations.
    c = path.correlation[2:]
    of_gram = _of_gram((1.0 - c)[:, None, None] * np.eye(n) + c[:, None, None])
    # ∂L/∂W of layer l has δ of layer l + 1, and the size of G of layer l.
    factors, sizes_of_gram = np.log(path.backward_rate), np.log(path.variance[1:])
    logs = np.full(depth, np.nan)
    for layer in range(depth - 1):
        passed = factors[layer + 1 : depth - 1].sum()
        logs[layer] = 0.5 * (passed + sizes_of_gram[layer] - sizes_of_gram[depth - 2])
    return {**of_gram, "log_norm": logs}


def _comparison(sizes: Sizes, gaps: Float64Array, growths: Float64Array) -> Iterator[str]:
    """Compare several norms; norms whose intervals overlap are not told apart."""
    if len(sizes.norms) == 1:
        return
    closest, alike, fastest = (_extreme(bands, sizes) for bands in (-gaps, gaps, growths))
    layers = f"After {sizes.depth} layers"
    if set(closest) & set(alike):
        yield f"{layers} the intervals of the orthogonality gap do not tell the norms apart."
    else:
        yield (
            f"{layers} the samples are closest to orthogonal with norm {' or '.join(closest)} and "
            f"most alike with {' or '.join(alike)}."
        )
    if len(fastest) < len(sizes.norms):
        yield f"Towards the input gradients grow fastest with norm {' or '.join(fastest)}."


def _extreme(bands: Float64Array, sizes: Sizes) -> list[str]:
    """Return the names of the norms whose intervals reach that of the largest mean."""
    low = bands[bands[:, 0].argmax(), 1:].min()
    return [
        f'"{norm}"' for norm, band in zip(sizes.norms, bands, strict=True) if band[1:].max() >= low
    ]


#: Marks of the norms in turn, each in every fifth layer, since several curves coincide.
_MARKERS = "osv^D"


def _draw(data: Dataset, figure: Drawing) -> None:
    axes = pictures.axes_of(figure, 2, 2, width=4.6, height=3.4).flat
    for ax, (name, (title, label, _)) in zip(axes, _PANELS.items(), strict=True):
        layers = data["weight_layer" if name == "log_norm" else "layer"].values
        bands = pictures.curve(data, name)
        for k, norm in enumerate(data["norm"].values):
            colour = COLOURS[k % len(COLOURS)]
            pictures.draw_band(
                ax, layers, bands[k], colour, str(norm), linewidth=1.2, marker=_MARKERS[k % 5],
                markersize=5, markevery=(k % 5, 5),
            )  # fmt: skip
            ax.plot(layers, data[f"{name}_predicted"][k], "k--", linewidth=0.8, zorder=3)
        label_layers(ax, r"layer $\ell$")
        pictures.finish(ax, title, y=label)
    axes[0].plot([], [], "k--", linewidth=1.0, label="mean field")
    axes[0].legend(fontsize="small")
    figure.suptitle(pictures.about(data, "{activation}, width {width}, batch {batch}"))
