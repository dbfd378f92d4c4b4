"""Networks without norm whose depth is comparable with their width: laws beside simulation."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from bnmc import random_matrix
from bnmc.errors import ArgumentError
from bnmc.estimate.estimate import Estimate
from bnmc.experiments import kit, pictures
from bnmc.experiments.kit import Dataset, Drawing, Experiment, Float64Array, Progress, Run
from bnmc.experiments.sizes import Integers, Several
from bnmc.experiments.statistics import LEVEL, interval
from bnmc.mean_field.float64 import TINY
from bnmc.plot.axes import COLOURS

#: Parts of the largest depth over width, and quantiles of correlations in per cent.
_PARTS, _QUANTILES = (0.25, 0.5, 0.75, 1.0), (5, 50, 95)

#: Slopes of shaped ReLU are 1 + c/√width for these c; and the first correlation.
_SHAPE, _START = (-1.0, 1.0), 0.3

#: Numbers of a block of networks.
_BLOCK = 1 << 22


class Sizes(NamedTuple):
    """Sizes of the figure.

    ratio: largest depth over width
    """

    widths: Integers = (40, 160)
    ratio: float = 0.2
    chains: Several = 8000


@kit.figure("depth-over-width", Sizes(), widths=(40, 160, 640), chains=40_000)
def depth_over_width(run: Run, sizes: Sizes) -> Experiment:
    r"""Laws of networks that are as deep as wide depend on depth over width.

    The networks have ReLU, weights of variance 2/width and no norm.  8000 of them have widths 40
    and 160, and depths of 0.05 to 0.2 widths (``full``: 40000 networks, up to width 640).  Four
    panels show quantities of one or two inputs against depth over width:

    - the variance of the logarithm of the squared norm, and its mean in the table, beside the exact
      law (`bnmc.random_matrix.log_norm`; Hanin and Nica, arXiv:1812.05994);
    - :math:`E Θ²/(E Θ)²` of the tangent kernel Θ of one input
      (`bnmc.random_matrix.tangent_kernel_dispersion`);
    - the four-point vertex :math:`\mathrm{Var} K/(E K)²` of ReLU, and of tanh at criticality
      (`bnmc.random_matrix.four_point_vertex`; Roberts, Yaida and Hanin, arXiv:2106.10165);
    - quantiles of the correlation of two inputs in networks of shaped ReLU, with the slopes
      :math:`1 ± 1/\sqrt d`, beside their limit (`bnmc.random_matrix.shaped_relu`; Li, Nica and Roy,
      arXiv:2206.02768).

    Expected: networks of both widths have nearly the same laws.  The first two formulas are exact
    at each width.  The vertex of tanh is a leading order: the start adds a constant.  The moments
    have heavy tails, so at larger depth over width intervals of some 1000 networks are too short.

    Returns
    -------
    Experiment
        Variables by ``width``, ``time`` (depth over width) and ``quantile``.

    Examples
    --------
    >>> from bnmc.experiments import beyond
    >>> found = beyond.depth_over_width()  # doctest: +SKIP
    """
    times = [sizes.ratio * part for part in _PARTS]
    depths = {(width,): _depths(width, times) for width in sizes.widths}

    def measured(width: int, progress: Progress) -> dict[str, Float64Array]:
        """Return samples of each quantity, (networks, times)."""
        layers, rng, blocks = depths[width,], run.generator, []
        size = max(1, _BLOCK // (width * layers[-1]))
        for first in range(0, sizes.chains, size):
            progress(first, sizes.chains)
            count = min(size, sizes.chains - first)
            squares, tangents = _relu_networks(width, layers, count, rng)
            if not (squares > 0.0).all():
                allowed = "widths of layers that stay active: 40 or more"
                raise ArgumentError("widths", width, allowed, "a layer is 0 in a network")
            blocks.append({
                "norm": squares, "tangent": tangents,
                "tanh": _tanh_networks(width, layers, count, rng),
                "correlation": _shaped_networks(width, layers, count, rng),
            })  # fmt: skip
        return {name: np.concatenate([each[name] for each in blocks]) for name in blocks[0]}

    results = kit.Results(
        run, width=sizes.widths, time=kit.Axis(times, "depth over width"),
        quantile=kit.Axis(_QUANTILES, "quantile", "percent"),
    )  # fmt: skip
    per = "width", "time"
    parts = run.parts(measured, results.points("width"), [float(d) ** 2 for d in sizes.widths])

    def add(name: str, kind: str, function: Callable[[Float64Array], Estimate], text: str) -> Any:
        values = {
            (*point, time): function(samples[:, place])
            for point, samples in kit.entry(parts, kind).items()
            for place, time in enumerate(times)
        }
        return results.add(name, per, values, text)

    def add_law(name: str, law: Callable[[int, int], float], text: str) -> Any:
        values = {
            point: np.array([law(*point, depth) for depth in layers])
            for point, layers in depths.items()
        }
        return results.add(f"{name}_theory", per, values, f"{text}, theory")

    of_norm, of_tangent = "the log squared norm", "E Θ²/(E Θ)²"
    relu, tanh = "Var K/(E K)² of relu", "Var K/(E K)² of tanh"
    vertex, dispersion = random_matrix.four_point_vertex, random_matrix.tangent_kernel_dispersion
    columns = {
        "mean of ln": add("mean", "norm", _log_mean, f"mean of {of_norm}"),
        "mean, theory": add_law("mean", lambda *at: _law(*at).mean, f"mean of {of_norm}"),
        "variance of ln": add("variance", "norm", _log_variance, f"variance of {of_norm}"),
        "variance, theory": add_law(
            "variance", lambda *at: _law(*at).variance, f"variance of {of_norm}"
        ),
        of_tangent: add("tangent", "tangent", _dispersion, of_tangent),
        "Θ, theory": add_law("tangent", dispersion, of_tangent),
        "vertex": add("vertex", "norm", _vertex, relu),
        "vertex, theory": add_law("vertex", lambda d, depth: vertex(d, depth, (0.0, 1.0)), relu),
        "vertex, tanh": add("vertex_tanh", "tanh", _vertex, tanh),
        "tanh, theory": add_law("vertex_tanh", vertex, tanh),
    }
    correlations = kit.entry(parts, "correlation")
    results.add(
        "correlation", ("width", "time", "quantile"),
        kit.each(correlations, _quantiles), "correlation of two inputs",
    )  # fmt: skip
    limit = _limit_of_correlations(times, sizes.chains, run.generator)
    results.add("correlation_limit", ("time", "quantile"), limit, "its limit of infinite width")
    widest = max(sizes.widths)
    deepest = {head: column.at(time=-1).cells() for head, column in columns.items()}
    findings = [
        f"Width {width}, depth {layers[-1]}: the log squared norm has variance "
        f"{interval(deepest['variance of ln'][width,])}, theory "
        f"{deepest['variance, theory'][width,]:.4g}; E Θ²/(E Θ)² is "
        f"{interval(deepest[of_tangent][width,])}, theory {deepest['Θ, theory'][width,]:.4g}."
        for (width,), layers in depths.items()
    ]
    deep = _quantiles(correlations[widest,])[-1]
    findings.append(
        f"Quantiles of 5, 50 and 95 % of the correlation of shaped networks at depth over width "
        f"{times[-1]:.3g}: {', '.join(f'{value:.3f}' for value in deep)} at width {widest}, "
        f"{', '.join(f'{value:.3f}' for value in limit[-1])} in the limit."
    )
    return results.experiment(
        "Networks nearly as deep as wide: norms, tangent kernels, correlations",
        kit.table_of(columns), findings, _draw, chains=sizes.chains, start=_START,
    )  # fmt: skip


def _law(width: int, depth: int) -> random_matrix.LogNorm:
    return random_matrix.log_norm([width] * depth)


def _depths(width: int, times: list[float]) -> list[int]:
    """Return the numbers of layers of a width."""
    return [max(1, round(time * width)) for time in times]


# --- networks given their Gram matrices


def _relu_networks(
    width: int, depths: list[int], count: int, rng: np.random.Generator
) -> tuple[Float64Array, Float64Array]:
    """Return ‖a_l‖²/width and the tangent kernel of one input at each depth, (networks, depths).

    Given a, W a is √(2/width) ‖a‖ times a standard normal z.  Given W a too, the part of Wᵀδ that
    is orthogonal to a is independent of both, and normal (`bnmc.gradients`).
    """
    a, layers = np.ones((count, width)), []
    squares, tangents = np.empty((2, count, len(depths)))
    for depth in range(1, max(depths) + 1):
        h = np.sqrt(2.0 * np.mean(a * a, axis=1))[:, None] * rng.standard_normal(a.shape)
        layers.append((a, h))
        a = np.maximum(h, 0.0)
        for place in np.flatnonzero(np.equal(depths, depth)):
            squares[:, place] = np.mean(a * a, axis=1)
            tangents[:, place] = _tangents(a, layers, rng)
    return squares, tangents


def _tangents(
    a: Float64Array, layers: list[tuple[Float64Array, Float64Array]], rng: np.random.Generator
) -> Float64Array:
    """Return Θ over the number of matrices: the sum of ‖a‖² ‖δ‖² over all layers."""
    width = a.shape[1]
    total = np.mean(a * a, axis=1)
    delta = rng.standard_normal(a.shape) / math.sqrt(width)
    for below, h in reversed(layers):
        delta = math.sqrt(2.0) * (h > 0.0) * delta
        # A layer of zeros raises later.
        square = np.maximum(np.sum(below * below, axis=1), TINY)[:, None]
        total = total + square[:, 0] / width * np.sum(delta * delta, axis=1)
        # The weights are W √2, with entries of variance 1/width.
        along = np.sum(h * delta, axis=1)[:, None] / math.sqrt(2.0)
        fresh = np.linalg.norm(delta, axis=1)[:, None] / math.sqrt(width)
        fresh = fresh * rng.standard_normal(a.shape)
        along = along - np.sum(below * fresh, axis=1)[:, None]
        delta = fresh + below * (along / square)
    return np.asarray(total / (len(layers) + 1.0))


def _tanh_networks(
    width: int, depths: list[int], count: int, rng: np.random.Generator
) -> Float64Array:
    """Return the variance of pre-activations at each depth, from 1, with critical weights."""
    square, made = np.ones(count), np.empty((count, len(depths)))
    for depth in range(1, max(depths) + 1):
        h = np.sqrt(square)[:, None] * rng.standard_normal((count, width))
        square = np.mean(np.tanh(h) ** 2, axis=1)
        made[:, np.equal(depths, depth)] = square[:, None]
    return made


def _shaped_networks(
    width: int, depths: list[int], count: int, rng: np.random.Generator
) -> Float64Array:
    """Return the correlation of two inputs at each depth of networks of shaped ReLU."""
    left, right = (1.0 + c / math.sqrt(width) for c in _SHAPE)
    gain = math.sqrt(2.0 / (left**2 + right**2))
    correlation, made = np.full(count, _START), np.empty((count, len(depths)))
    size = np.ones((2, count))
    for depth in range(1, max(depths) + 1):
        first, other = rng.standard_normal((2, count, width))
        second = correlation[:, None] * first + np.sqrt(1.0 - correlation**2)[:, None] * other
        # Lengths do not matter: the activation is homogeneous.
        rows = [gain * np.where(row > 0.0, right, left) * row for row in (first, second)]
        size = np.array([np.sqrt(np.mean(row * row, axis=1)) for row in rows])
        product = np.mean(rows[0] * rows[1], axis=1) / size[0] / size[1]
        correlation = np.clip(product, -1.0, 1.0)
        made[:, np.equal(depths, depth)] = correlation[:, None]
    return made


def _limit_of_correlations(
    times: list[float], paths: int, rng: np.random.Generator
) -> Float64Array:
    """Return the quantiles of correlations by the covariance equation, (times, quantiles)."""
    start = np.array([[1.0, _START], [_START, 1.0]])
    made = np.empty((paths, len(times)))
    for place, time in enumerate(times):
        V = random_matrix.shaped_relu(start, time, _SHAPE, paths=paths, steps=100, rng=rng)
        made[:, place] = V[:, 0, 1] / np.sqrt(V[:, 0, 0] * V[:, 1, 1])
    return _quantiles(made)


# --- estimates


def _quantiles(samples: Float64Array) -> Float64Array:
    """Return quantiles of samples, (networks, times), of shape (times, quantiles)."""
    return np.quantile(samples, np.array(_QUANTILES) / 100.0, axis=0).T


def _log_mean(samples: Float64Array) -> Estimate:
    return Estimate.from_samples(np.log(samples))


def _log_variance(samples: Float64Array) -> Estimate:
    logs = np.log(samples)
    return Estimate.from_samples((logs - logs.mean()) ** 2 * (len(logs) / (len(logs) - 1.0)))


def _dispersion(samples: Float64Array) -> Estimate:
    """Return the mean square over the squared mean, by the delta method."""
    mean, square = samples.mean(), np.mean(samples**2)
    value = float(square / mean**2)
    influence = samples**2 / mean**2 - 2.0 * value * samples / mean
    stderr = float(influence.std(ddof=1)) / math.sqrt(len(samples))
    reach = 1.96 * stderr
    return Estimate(value, stderr, (value - reach, value + reach), len(samples), "ratio", LEVEL)


def _vertex(samples: Float64Array) -> Estimate:
    return _dispersion(samples) - 1.0


def _draw(data: Dataset, figure: Drawing) -> None:
    axes = pictures.axes_of(figure, 2, 2, width=4.8, height=3.5).flat
    times = data["time"].values
    panels = (
        ("variance", "Log squared norm", r"variance of $\ln \|a_\ell\|^2$"),
        ("tangent", "Tangent kernel", r"$E\,\Theta^2/(E\,\Theta)^2$"),
        ("vertex", "Four-point vertex", r"$\mathrm{Var}\,K/(E\,K)^2$"),
    )
    for ax, (name, title, y) in zip(axes, panels, strict=False):
        for colour, width in zip(COLOURS, data["width"].values, strict=False):
            part = data.sel(width=width)
            for variable, fmt, suffix in ((name, "o", ""), (f"{name}_tanh", "s", ", tanh")):
                if variable in data:
                    label = f"d = {width}{suffix}"
                    pictures.points(ax, part, variable, "time", colour=colour, fmt=fmt, label=label)
                    ax.plot(times, part[f"{variable}_theory"], "-", color=colour, linewidth=1.0)
        pictures.finish(ax, title, "depth over width", y, legend=True)
    axes[2].set_yscale("log")
    for place, quantile in enumerate(data["quantile"].values):
        at, is_first = data.sel(quantile=quantile), place == 0
        for colour, width in zip(COLOURS, data["width"].values, strict=False):
            values = at["correlation"].sel(width=width)
            entry = f"d = {width}" if is_first else None
            axes[3].plot(times, values, "o", color=colour, label=entry)
        entry = "limit" if is_first else None
        axes[3].plot(times, at["correlation_limit"], "k-", linewidth=1.0, label=entry)
    title = "Shaped ReLU: 5, 50 and 95 %"
    pictures.finish(axes[3], title, "depth over width", "correlation of two inputs")
    axes[3].legend(fontsize="small", loc="center right")
    figure.suptitle(
        f"{data.attrs['chains']} networks; points: simulated, 95 % intervals; lines: theory"
    )
