"""Rank, orthogonality, correlation and gradients over depth, for each norm."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnmc import gram as gm
from bnmc._support.progress import Progress
from bnmc.chain.activations import Activation, as_activation
from bnmc.chain.chain import Chain
from bnmc.errors import ArgumentError, BnmcError
from bnmc.estimate.estimate import Estimate
from bnmc.experiments.data import Variable, curve, dataset, estimated, with_ends
from bnmc.experiments.experiment import Experiment, Table, with_parameters
from bnmc.experiments.parts import Call, Store, chosen
from bnmc.experiments.pictures import axes_of, draw_band
from bnmc.experiments.statistics import banded, interval, mean_of_band, short_interval
from bnmc.gradients import backpropagate
from bnmc.mean_field import CorrelationMap, MeanField
from bnmc.plot.axes import COLOURS, label_layers

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

__all__ = ["DEFAULT", "FULL", "Sizes", "experiment", "norms"]

Float64Array = NDArray[np.float64]


class Sizes(NamedTuple):
    """Norms, activation, width, batch, depth and networks."""

    norms: tuple[str, ...]
    activation: str | Activation
    width: int
    batch: int
    depth: int
    networks: int


NORMS = ("batch", "layer", "rms", "group(8)", "none")

DEFAULT = Sizes(NORMS, "relu", 400, 8, 30, 8)
FULL = Sizes(NORMS, "relu", 1000, 10, 60, 20)

#: Eigenvalues of at least this part of their mean count for the soft rank.
TAU = 0.1

#: Variables of the data, and the axes and titles of their pictures.
PANELS = {
    "soft_rank": "soft rank",
    "gap": "orthogonality gap",
    "correlation": "mean correlation",
    "log_norm": r"$\ln\, \|\partial L/\partial W_\ell\|_F$, relative",
}
TITLES = {
    "soft_rank": "Soft rank", "gap": "Orthogonality", "correlation": "Correlation",
    "log_norm": "Gradients",
}  # fmt: skip


@with_parameters
def norms(
    *,
    full: bool = False,
    rng: Any = 0,
    progress: bool | Progress = False,
    threads: int | None = None,
    store: Store = None,
) -> Experiment:
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
    call = Call("norms", full, rng, progress, threads, store)
    return experiment(chosen(DEFAULT, FULL, full), call)


class _Found(NamedTuple):
    """Means with intervals (norms, layers, 3), growths of gradients, and predictions."""

    measured: dict[str, Float64Array]
    growth: list[Estimate]
    predicted: dict[str, Float64Array]


def experiment(sizes: Sizes, call: Call) -> Experiment:
    """Run the experiment with these sizes: at least 4 layers, 3 samples and 2 networks.

    Under batch normalization of 2 samples all gradients vanish.

    Raises
    ------
    ArgumentError
        If a gradient vanishes.
    """
    activation = as_activation(sizes.activation)
    gain = _gain(activation)
    chains = [
        Chain(sizes.width, sizes.batch, activation, norm=norm, gain=gain) for norm in sizes.norms
    ]
    found = _run(chains, sizes, call)
    last, steps = sizes.depth - 1, sizes.depth - 2
    theory = np.exp(2.0 * found.predicted["log_norm"][:, 0] / steps)
    rows = tuple(
        (
            norm,
            *(
                cell
                for name in ("soft_rank", "gap", "correlation")
                for cell in (
                    mean_of_band(found.measured[name][k, last], sizes.networks),
                    _number(found.predicted[name][k, last]),
                )
            ),
            found.growth[k], _number(theory[k]),
        )
        for k, norm in enumerate(sizes.norms)
    )  # fmt: skip
    heads = (
        "norm", "soft rank", "rank, mean field", "orthogonality gap", "gap, mean field",
        "correlation", "correlation, mean field", "squared gradient, per layer",
        "gradient, mean field",
    )  # fmt: skip
    findings = (
        *(_finding(norm, k, found, sizes, theory[k]) for k, norm in enumerate(sizes.norms)),
        _comparison(found, sizes),
    )
    title = f"Norms compared: {activation.name}, width {sizes.width}, batch {sizes.batch}"
    data = _data(sizes, call, activation, gain, found)
    return Experiment(call.name, title, data, Table(heads, rows), findings, _draw)


def _gain(activation: Activation) -> float:
    """Return the gain with which the variance 1 is a fixed point without norm, or 1."""
    z, weights = np.polynomial.hermite_e.hermegauss(200)
    mean_square = float(weights @ np.square(activation(z))) / math.sqrt(2.0 * math.pi)
    return 1.0 / math.sqrt(mean_square) if 0.0 < mean_square < math.inf else 1.0


def _run(chains: list[Chain], sizes: Sizes, call: Call) -> _Found:
    measured: dict[str, list[Float64Array]] = {name: [] for name in PANELS}
    predicted: dict[str, list[Float64Array]] = {name: [] for name in PANELS}
    growth = []
    with call.parts([1.0] * len(chains)) as parts:
        for chain in chains:
            values = parts.run(_measured, chain, sizes, call.generator, threads=call.threads)
            for name, one in values.items():
                measured[name].append(banded(one))
            growth.append(_growth(values["log_norm"][:, 0] / (sizes.depth - 2)))
            for name, of_layers in _predicted(chain, sizes).items():
                predicted[name].append(of_layers)
    return _Found(
        {name: np.array(values) for name, values in measured.items()},
        growth,
        {name: np.array(values) for name, values in predicted.items()},
    )


def _measured(
    chain: Chain,
    sizes: Sizes,
    generator: np.random.Generator,
    *,
    threads: int | None,
    progress: Progress,
) -> dict[str, Float64Array]:
    """Return the panels of each network, (networks, depth)."""
    run = backpropagate(
        chain, sizes.depth, chains=sizes.networks, rng=generator, threads=threads,
        progress=progress, observables=("gram",),
    )  # fmt: skip
    logs = run.log_gradient_norm
    if not np.isfinite(logs).all():
        allowed = "one at which gradients do not vanish"
        raise ArgumentError("width", chain.width, allowed, f'norm "{chain.norm}"')
    return {**_of_gram(run["gram"]), "log_norm": logs - logs[:, -2:-1]}


def _of_gram(grams: Float64Array) -> dict[str, Float64Array]:
    """Return soft rank, orthogonality gap and mean correlation of Gram matrices."""
    n = grams.shape[-1]
    unit = grams * (n / np.trace(grams, axis1=-2, axis2=-1)[..., None, None])
    correlations = gm.correlation(unit)
    return {
        "soft_rank": gm.soft_rank(unit, TAU, width=n).astype(np.float64),
        "gap": gm.orthogonality_gap(unit),
        "correlation": (correlations.sum(axis=(-2, -1)) - n) / (n * (n - 1)),
    }


def _growth(slopes: Float64Array) -> Estimate:
    """Return the factor of squared norms per layer, from the slopes of logarithms of norms."""
    slope = Estimate.from_samples(2.0 * slopes)
    value = math.exp(slope.value)
    low, high = (math.exp(end) for end in slope.ci)
    return Estimate(value, value * slope.stderr, (low, high), slope.n, "growth of norms")


def _predicted(chain: Chain, sizes: Sizes) -> dict[str, Float64Array]:
    """Return the panels of the mean field, (depth,); NaN where it has none."""
    try:
        found = _by_batch(chain, sizes) if chain.normalization.axis == "batch" else None
        return _by_pairs(chain, sizes) if found is None else found
    except BnmcError:
        return {name: np.full(sizes.depth, np.nan) for name in PANELS}


def _by_batch(chain: Chain, sizes: Sizes) -> dict[str, Float64Array]:
    """Independent samples are at the fixed point from the first layer on, if the norm centres."""
    depth = sizes.depth
    nothing = np.full(depth, np.nan)
    if not chain.normalization.centred:
        return dict.fromkeys(PANELS, nothing)
    point = MeanField(chain).fixed_point()
    rate = point.backward_rate
    logs = nothing.copy()
    if math.isfinite(rate) and rate > 0.0:
        # The gradient of the last layer has passed no norm, that of the one before has passed one.
        logs[:-1] = 0.5 * math.log(rate) * (depth - 2 - np.arange(depth - 1))
    of_gram = {name: np.full(depth, one) for name, one in _of_gram(point.gram).items()}
    return {**of_gram, "log_norm": logs}


def _by_pairs(chain: Chain, sizes: Sizes) -> dict[str, Float64Array]:
    """All correlations of independent samples remain equal, and gradients of samples separate."""
    n, depth = sizes.batch, sizes.depth
    path = CorrelationMap.of(chain).trajectory(depth + 1, correlation=0.0)
    # The correlations of G are those of the next pre-activations.
    c = path.correlation[2:]
    of_gram = _of_gram((1.0 - c)[:, None, None] * np.eye(n) + c[:, None, None])
    # ∂L/∂W of layer l has δ of layer l + 1, and the size of G of layer l.
    factors, sizes_of_gram = np.log(path.gradient_factor), np.log(path.variance[1:])
    logs = np.full(depth, np.nan)
    for layer in range(depth - 1):
        passed = factors[layer + 1 : depth - 1].sum()
        logs[layer] = 0.5 * (passed + sizes_of_gram[layer] - sizes_of_gram[depth - 2])
    return {**of_gram, "log_norm": logs}


def _number(value: float) -> float | None:
    """Return a cell of the table; None if there is no number."""
    return float(value) if math.isfinite(value) else None


def _finding(norm: str, k: int, found: _Found, sizes: Sizes, growth: float) -> str:
    def described(name: str, what: str) -> str:
        theory = found.predicted[name][k, -1]
        beside = f" (mean field {theory:.3g})" if math.isfinite(theory) else ""
        return f"{what} {short_interval(found.measured[name][k, -1])}{beside}"

    beside = f" (mean field {growth:.4g})" if math.isfinite(growth) else ""
    return (
        f'norm "{norm}", layer {sizes.depth}: '
        f"{described('soft_rank', 'soft rank')} of {sizes.batch}, "
        f"{described('gap', 'orthogonality gap')}, "
        f"{described('correlation', 'mean correlation')}; squared gradients grow by "
        f"{interval(found.growth[k])} per layer towards the input{beside}."
    )


def _comparison(found: _Found, sizes: Sizes) -> str:
    """Return which norms are extreme, with those whose intervals reach that of the extreme one."""
    gaps = found.measured["gap"][:, -1]
    rates = np.array([[one.value, *one.ci] for one in found.growth])
    return (
        f"After {sizes.depth} layers the samples are closest to orthogonal with norm "
        f"{_extreme(-gaps, sizes)} and most alike with {_extreme(gaps, sizes)}; towards the input "
        f"gradients grow fastest with {_extreme(rates, sizes)}."
    )


def _extreme(bands: Float64Array, sizes: Sizes) -> str:
    """Return the names of the norms whose intervals reach that of the largest mean."""
    low = bands[bands[:, 0].argmax(), 1:].min()
    return " or ".join(
        f'"{norm}"' for norm, band in zip(sizes.norms, bands, strict=True) if band[1:].max() >= low
    )


def _data(
    sizes: Sizes, call: Call, activation: Activation, gain: float, found: _Found
) -> xarray.Dataset:
    layers = dict.fromkeys(PANELS, "layer") | {"log_norm": "weight_layer"}
    texts = {
        "soft_rank": f"eigenvalues of G of at least {TAU:g} times their mean",
        "gap": "orthogonality gap of G",
        "correlation": "mean correlation of two samples",
        "log_norm": "ln of the gradient norm, relative to the last layer but one",
    }
    variables: dict[str, Variable] = {}
    for name in PANELS:
        over = ("norm", layers[name])
        variables |= with_ends(name, over, found.measured[name], texts[name])
        variables[f"{name}_predicted"] = Variable(
            over, found.predicted[name], f"{texts[name]}, mean field"
        )
    variables |= estimated(
        "growth", ("norm",), found.growth, "growth of the squared gradient norm per layer"
    )
    return dataset(
        variables,
        {
            "norm": Variable(("norm",), list(sizes.norms), "norm", ""),
            "layer": Variable(("layer",), np.arange(1, sizes.depth + 1), "layer", "layers"),
            "weight_layer": Variable(
                ("weight_layer",), np.arange(sizes.depth), "layer of the weights", "layers"
            ),
        },
        call,
        {
            "activation": activation.name, "gain": gain, "width": sizes.width,
            "batch": sizes.batch, "networks": sizes.networks, "tau": TAU,
        },
    )  # fmt: skip


def _draw(data: xarray.Dataset, figure: Figure) -> None:
    axes = axes_of(figure, 2, 2, width=4.6, height=3.4).flat
    for ax, (name, label) in zip(axes, PANELS.items(), strict=True):
        layers = data["weight_layer" if name == "log_norm" else "layer"].values
        bands = curve(data, name)
        for k, norm in enumerate(data["norm"].values):
            colour = COLOURS[k % len(COLOURS)]
            draw_band(ax, layers, bands[k], colour, str(norm))
            ax.plot(layers, data[f"{name}_predicted"][k], "k--", linewidth=0.8, zorder=3)
        label_layers(ax, r"layer $\ell$")
        ax.set_ylabel(label)
        ax.set_title(TITLES[name], loc="left")
    axes[0].plot([], [], "k--", linewidth=1.0, label="mean field")
    axes[0].legend(fontsize="small")
    attrs = data.attrs
    figure.suptitle(
        f"{attrs['activation']}, width {attrs['width']}, batch {attrs['batch']}: mean of "
        f"{attrs['networks']} networks, 95 % interval"
    )
