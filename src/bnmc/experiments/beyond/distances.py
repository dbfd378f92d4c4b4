"""Distances from the fixed point: over their prediction, and at large widths and batches."""

from __future__ import annotations

import time
from operator import attrgetter
from typing import Annotated, Any, NamedTuple, TypeAlias

import numpy as np

from bnmc._kernels.scalar.activations import BUILTIN
from bnmc.chain.chain import Chain
from bnmc.errors import NotMixing
from bnmc.estimate.estimate import Estimate
from bnmc.experiments import kit, pictures
from bnmc.experiments.bridging.common import stationary_linear
from bnmc.experiments.kit import Dataset, Drawing, Experiment, Float64Array, Progress, Run, Table
from bnmc.experiments.sizes import Builtin, Integers, Natural, Several
from bnmc.experiments.statistics import interval, rms, slope
from bnmc.mean_field import Fluctuations
from bnmc.mean_field.field import MeanField
from bnmc.plot.axes import COLOURS, colours_of, estimates, plain_ticks
from bnmc.simulation.observables import Distance
from bnmc.simulation.run import simulate

# --- over the prediction, against the width


#: Markers of activations of the same colour.
_MARKERS = ("o", "s", "^")


class _GapSizes(NamedTuple):
    """Sizes of the figure."""

    activations: tuple[Builtin, ...] = ("linear", "relu", "tanh", "sigmoid", "selu", "gelu")
    batches: tuple[int, ...] = (5, 10)
    widths: tuple[int, ...] = (100, 300, 1000, 3000)
    chains: int = 32
    first: Natural = 61
    last: int = 260


@kit.figure(
    "gap", _GapSizes(), activations=tuple(BUILTIN), batches=(5, 10, 32),
    widths=(100, 300, 1000, 3000, 10_000, 30_000, 100_000), chains=64, first=201, last=600,
)  # fmt: skip
def gap(run: Run, sizes: _GapSizes) -> Experiment:
    r"""Mean square distance from the fixed point, measured over predicted.

    `bnmc.MeanField.fluctuations` predicts :math:`E\|G - G_*\|_F^2` at stationarity, to leading
    order in 1/d with d the width.  The picture shows the measured mean square over the predicted
    one for six activations, batch sizes of 5 and 10, and widths from 100 to 3000 (``full``: all
    built-in activations, batch sizes of 5, 10 and 32, widths to 100 000).

    Expected: the ratio tends to 1, with a difference of order 1/d.  At width 100 it is within 5 %
    of 1 at these batch sizes; the difference grows with the batch size.  Fixed points that are
    unstable, as that of silu at batch size 32, have no prediction.

    Returns
    -------
    Experiment
        Variables by ``activation``, ``batch`` and ``width``.
    """
    results = kit.Results(
        run, activation=sizes.activations, batch=sizes.batches, width=sizes.widths
    )
    per = ("activation", "batch")
    laws = {case: _prediction(*case) for case in results.points(*per)}
    stable = {case: law for case, law in laws.items() if law is not None}
    moments = {case: law.mean_square(1) for case, law in stable.items()}
    values, errors = (kit.each(moments, attrgetter(name)) for name in ("value", "stderr"))
    constant = results.add("constant", per, values, "predicted mean square times the width")
    results.add("error", per, errors, "numerical error of the prediction")

    def squares(name: str, batch: int, width: int, progress: Progress) -> Float64Array:
        """Return the mean square of each network over its prediction."""
        star = stable[name, batch].fixed_point.gram
        distances = simulate(
            Chain(width, batch, name), sizes.last, chains=sizes.chains, burn_in=sizes.first,
            observables=Distance(star), **run.options(progress),
        )["distance"]  # fmt: skip
        return np.square(distances).mean(axis=1) * width / moments[name, batch].value

    points = [(*case, width) for case in stable for width in sizes.widths]
    costs = [float(width * batch) for _, batch, width in points]
    ratios = kit.each(run.parts(squares, points, costs), Estimate.from_samples)
    ratio = results.add("ratio", (*per, "width"), ratios, "measured over predicted mean square")
    widths = {f"d = {width}": ratio.at(width=k).means() for k, width in enumerate(sizes.widths)}
    return results.experiment(
        "The distance from the fixed point, measured over predicted",
        kit.table_of({"predicted, times d": constant, **widths}),
        _findings(sizes, ratios, [case for case in laws if case not in stable]), _draw_gap,
        norm="batch", chains=sizes.chains, layers=[sizes.first, sizes.last],
    )  # fmt: skip


def _prediction(name: str, batch: int) -> Fluctuations | None:
    """Return the prediction; None if the fixed point is unstable."""
    try:
        return MeanField(Chain(2, batch, name)).fluctuations()
    except NotMixing:
        return None


def _findings(
    sizes: _GapSizes, ratios: dict[tuple[str, int, int], Estimate], unstable: list[tuple[str, int]]
) -> tuple[str, ...]:
    narrow, wide = sizes.widths[0], sizes.widths[-1]
    values = [ratio.value for (_, _, width), ratio in ratios.items() if width == narrow]
    widest = {case: ratio for case, ratio in ratios.items() if case[-1] == wide}
    name, batch, _ = far = max(widest, key=lambda case: abs(widest[case].value - 1.0))
    inside = sum(ratio.ci[0] <= 1.0 <= ratio.ci[1] for ratio in widest.values())
    findings = (
        f"At width {narrow} the mean square is {min(values):.3g} to {max(values):.3g} "
        "times the predicted one.",
        f"At width {wide} the ratio that differs most from 1 is that of {name}, batch {batch}: "
        f"{interval(widest[far])}.",
        f"The 95 % intervals of {inside} of {len(widest)} ratios at width {wide} contain 1.",
    )
    if not unstable:
        return findings
    listed = "; ".join(f"{activation}, batch {n}" for activation, n in unstable)
    return (*findings, f"Unstable, without a prediction: {listed}.")


def _draw_gap(data: Dataset, figure: Drawing) -> None:
    batches, widths = data["batch"].values, data["width"].values
    axes = pictures.axes_of(figure, len(batches), width=4.8, height=4.2)[0]
    names = data["activation"].values
    count, colours = len(names), colours_of(names)
    for ax, batch in zip(axes, batches, strict=True):
        ax.set(xscale="log", xlabel="width $d$")
        for index, name in enumerate(names):
            ratios = pictures.curve(data.sel(activation=name, batch=batch), "ratio").T
            if np.isnan(ratios).any():
                continue
            # The points of one width are beside each other.
            shift = 1.25 ** ((index - 0.5 * (count - 1)) / count)
            estimates(
                ax, widths * shift, *ratios, colour=colours[index], label=str(name),
                fmt=_MARKERS[index // len(COLOURS) % len(_MARKERS)],
            )  # fmt: skip
        ax.axhline(1.0, color="black", linewidth=0.8)
        plain_ticks(ax.xaxis, widths)
        ax.set_title(f"n = {batch}", loc="left")
    axes[0].set_ylabel("measured over predicted")
    axes[-1].legend(fontsize="small")
    figure.suptitle(r"$E\|G - G_*\|_F^2$ over its prediction, norm batch, 95 % intervals")


# --- widths of a million and batches of 512, and speed


#: Batch size of the networks over the width, and the first of their layers that is averaged over.
_BATCH, _FIRST = 4, 10

_OVER_WIDTH, _OVER_BATCH = ("linear", "relu"), ("linear", "tanh")

_Batch: TypeAlias = Annotated[int, {"low": 3}]


class _ScaleSizes(NamedTuple):
    """Sizes of the figure.

    chains: networks of each width
    layers: layers of the networks over the width, at least 10
    width: width of the networks over the batch size
    batch_chains: networks of each batch size
    deep: layers of the networks over the batch size
    """

    widths: Integers = (1000, 10_000, 100_000, 1_000_000)
    chains: Several = 4
    layers: Annotated[int, {"low": _FIRST}] = 40
    batches: Annotated[tuple[_Batch, ...], {"least": 2}] = (8, 32, 128, 512)
    width: int = 8192
    batch_chains: Several = 4
    deep: int = 3


@kit.figure("scale", _ScaleSizes(), chains=16, layers=100, width=32_768, batch_chains=8, deep=5)
def scale(run: Run, sizes: _ScaleSizes) -> Experiment:
    r"""Networks of width a million, and batches of 512.

    Top left: linear and relu networks of 4 samples at widths d from 10³ to 10⁶.  Shown is the root
    mean square of :math:`\|G_l - G_*\|_F` over layers 10 to 40.  Top right: linear and tanh
    networks of width 8192 with n = 8 to 512 samples (``full``: width 32768), from independent
    samples.  Shown is the same at layer 0, which is one step from the identity, and at layer 3
    (``full``: 5).
    Below: layers per second of all networks together, including set-up, for both.

    Expected: over three decades of width the slope is −1/2, and linear networks have the level of
    `bridging.stationary_linear`.  In the batch size the slope is 1; linear networks have exactly
    :math:`n \sqrt{(m-1)/(m d)}` at layer 0, with m = n − 1.  Layers per second depend on the
    machine and its load.  They are the only numbers of this experiment that a seed does not repeat.

    Returns
    -------
    Experiment
        Variables by ``wide`` (activation) and ``width``, and by ``large`` (activation) and
        ``batch``.
    """

    def timed(kind: str, name: str, size: int, progress: Progress) -> tuple[Float64Array, float]:
        """Return distances from the fixed point, (networks, layers), and layers per second."""
        is_wide = kind == "wide"
        chain = Chain(size, _BATCH, name) if is_wide else Chain(sizes.width, size, name)
        count = sizes.chains if is_wide else sizes.batch_chains
        depth, first = (sizes.layers, _FIRST) if is_wide else (sizes.deep, 0)
        star = MeanField(chain).fixed_point().gram
        # Compiles, so that the speeds do not include compilation.
        simulate(Chain(100, _BATCH, name), 1, rng=0)
        begun = time.perf_counter()
        distances = simulate(
            chain, depth, chains=count, burn_in=first, observables=Distance(star),
            **run.options(progress),
        )["distance"]  # fmt: skip
        return distances, count * (depth + 1) / (time.perf_counter() - begun)

    results = kit.Results(
        run, wide=kit.Axis(_OVER_WIDTH, "activation", ""), width=sizes.widths,
        large=kit.Axis(_OVER_BATCH, "activation", ""), batch=sizes.batches,
    )  # fmt: skip
    across, along = ("wide", "width"), ("large", "batch")
    wide, large = results.points(*across), results.points(*along)
    costs = [width / 1000 * sizes.layers * sizes.chains for _, width in wide]
    costs += [sizes.width / 1e5 * batch**2 * sizes.batch_chains for _, batch in large]
    points = [*(("wide", *point) for point in wide), *(("large", *point) for point in large)]
    parts = run.parts(timed, points, costs)
    distances, speeds = kit.entry(parts, 0), kit.entry(parts, 1)
    # Layers of one network depend on each other, so each network is one sample.
    levels = {
        point: rms(np.sqrt(np.square(distances["wide", *point]).mean(axis=1))) for point in wide
    }
    first = {point: rms(distances["large", *point][:, 0]) for point in large}
    last = {point: rms(distances["large", *point][:, -1]) for point in large}
    n = np.array(sizes.batches, dtype=np.float64)
    deep_law = np.sqrt([stationary_linear(width, _BATCH) for width in sizes.widths])
    one_step_law = n * np.sqrt((n - 2) / ((n - 1) * sizes.width))
    unit, pace = "Frobenius norm", "layers a second"
    results.add("distance", across, levels, "r.m.s. distance from G*", unit)
    results.add("law", ("width",), deep_law, "theory for linear networks", unit)
    results.add(
        "speed", across, {point: speeds["wide", *point] for point in wide},
        "speed of all networks", pace,
    )  # fmt: skip
    results.add("one_step", along, first, "r.m.s. distance at layer 0", unit)
    results.add("deeper", along, last, "r.m.s. distance at the last layer", unit)
    results.add(
        "one_step_law", ("batch",), one_step_law, "theory of layer 0 for linear networks", unit
    )
    results.add(
        "pace", along, {point: speeds["large", *point] for point in large},
        "speed of all networks", pace,
    )  # fmt: skip
    rows = []
    for kind, values, laws in (("wide", levels, deep_law), ("large", first, one_step_law)):
        for ((name, size), level), law in zip(values.items(), np.tile(laws, 2), strict=True):
            width, batch = (size, _BATCH) if kind == "wide" else (sizes.width, size)
            theory = float(law) if name == "linear" else None
            speed = f"{speeds[kind, name, size]:.3g}"
            rows.append((name, width, batch, level, theory, speed))
    table = Table(
        ("activation", "width", "batch", "r.m.s. distance", "theory", "layers a second"),
        tuple(rows),
    )
    slopes = {
        name: interval(slope(sizes.widths, [levels[name, width] for width in sizes.widths]))
        for name in _OVER_WIDTH
    }
    of_batch = slope(sizes.batches, [first["tanh", batch] for batch in sizes.batches])
    widest, largest = sizes.widths[-1], sizes.batches[-1]
    findings = (
        *(
            f"{name}: slope in the width {fitted}; theory, for large widths: -1/2."
            for name, fitted in slopes.items()
        ),
        f"Width {widest}, linear: {interval(levels['linear', widest])}; theory {deep_law[-1]:.5g}.",
        f"Batch {largest}, linear, one layer: {interval(first['linear', largest])}; theory "
        f"{one_step_law[-1]:.5g}.",
        f"tanh, one layer: slope in the batch {interval(of_batch)}; theory, for large batches: 1.",
    )
    return results.experiment(
        "Widths up to a million, batches up to 512", table, findings, _draw_scale,
        batch_fixed=_BATCH, width_fixed=sizes.width, norm="batch", deep=sizes.deep,
        layers=[_FIRST, sizes.layers], chains=[sizes.chains, sizes.batch_chains],
    )  # fmt: skip


def _draw_scale(data: Dataset, figure: Drawing) -> None:
    left, middle, right = pictures.axes_of(figure, 3, width=4.5, height=4.2)[0]
    width, batch = data["width"].values, data["batch"].values
    attrs = data.attrs
    for colour, name in zip(colours_of(data["wide"].values), data["wide"].values, strict=True):
        part = data.sel(wide=name)
        pictures.points(left, part, "distance", "width", colour=colour, label=name)
        right.plot(width, part["speed"], "o-", color=colour, label=f"{name}, over width")
    left.plot(width, data["law"], "k--", linewidth=1.2, label="theory, linear")
    logs: dict[str, Any] = {"xscale": "log", "yscale": "log"}
    title, norm = f"n = {attrs['batch_fixed']}, deep layers", r"$\|G_\ell - G_*\|_F$, r.m.s."
    pictures.finish(left, title, "width $d$", norm, **logs)
    left.legend()
    for colour, name in zip(colours_of(data["large"].values), data["large"].values, strict=True):
        part = data.sel(large=name)
        for kind, fmt, layer in (("one_step", "o", 0), ("deeper", "s-", attrs["deep"])):
            pictures.points(
                middle, part, kind, "batch", colour=colour, fmt=fmt, label=f"{name}, layer {layer}"
            )  # fmt: skip
        right.plot(batch, part["pace"], "s--", color=colour, label=f"{name}, over batch")
    middle.plot(batch, data["one_step_law"], "k--", linewidth=1.2, label="theory, linear, layer 0")
    title = f"d = {attrs['width_fixed']}"
    pictures.finish(middle, title, "batch $n$", legend=True, **logs)
    title = "speed of this machine"
    pictures.finish(right, title, "width or batch", "layers a second", **logs)
    right.set_ylim(top=30 * right.get_ylim()[1])  # room for the legend
    right.legend(fontsize="small", loc="upper right")
    figure.suptitle("Distance from the fixed point at large widths and batches, 95 % intervals")
