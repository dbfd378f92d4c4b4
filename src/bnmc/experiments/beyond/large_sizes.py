"""Networks of width a million and batches of 512: distances from the fixed point, and speed."""

from __future__ import annotations

import time
from typing import Annotated, Any, NamedTuple, TypeAlias

import numpy as np

from bnmc.chain.chain import Chain
from bnmc.experiments import kit, pictures
from bnmc.experiments.bridging.common import stationary_linear
from bnmc.experiments.kit import Dataset, Drawing, Experiment, Float64Array, Progress, Run, Table
from bnmc.experiments.sizes import Integers, Several
from bnmc.experiments.statistics import interval, rms, slope
from bnmc.mean_field.field import MeanField
from bnmc.plot.axes import COLOURS
from bnmc.simulation.observables import Distance
from bnmc.simulation.run import simulate

#: Batch size of the networks over the width, and the first of their layers that is averaged over.
_BATCH, _FIRST = 4, 10

_OVER_WIDTH, _OVER_BATCH = ("linear", "relu"), ("linear", "tanh")

_Batch: TypeAlias = Annotated[int, {"low": 3}]


class Sizes(NamedTuple):
    """Sizes of the figure.

    networks: networks of each width
    layers: layers of the networks over the width, at least 10
    width: width of the networks over the batch size
    batch_networks: networks of each batch size
    deep: layers of the networks over the batch size
    """

    widths: Integers = (1000, 10_000, 100_000, 1_000_000)
    networks: Several = 4
    layers: Annotated[int, {"low": _FIRST}] = 40
    batches: Annotated[tuple[_Batch, ...], {"least": 2}] = (8, 32, 128, 512)
    width: int = 8192
    batch_networks: Several = 4
    deep: int = 3


@kit.figure("scale", Sizes(), networks=16, layers=100, width=32_768, batch_networks=8, deep=5)
def scale(run: Run, sizes: Sizes) -> Experiment:
    r"""Networks of width a million, and batches of 512.

    Left: linear and relu networks of 4 samples at widths d from 10³ to 10⁶.  Shown is the root mean
    square of :math:`\|G_l - G_*\|_F` over layers 10 to 40.  Middle: linear and tanh networks of
    width 8192 with n = 8 to 512 samples (``full``: width 32768), from independent samples.  Shown
    is the same at layer 0, which is one step from the identity, and at layer 3 (``full``: 5).
    Right: layers per second of all networks together, including set-up, for both.

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
        networks = sizes.networks if is_wide else sizes.batch_networks
        depth, first = (sizes.layers, _FIRST) if is_wide else (sizes.deep, 0)
        star = MeanField(chain).fixed_point().gram
        # Compiles, so that the speeds do not include compilation.
        simulate(Chain(100, _BATCH, name), 1, rng=0)
        begun = time.perf_counter()
        distances = simulate(
            chain, depth, chains=networks, burn_in=first, observables=Distance(star),
            **run.options(progress),
        )["distance"]  # fmt: skip
        return distances, networks * (depth + 1) / (time.perf_counter() - begun)

    results = kit.Results(
        run, wide=kit.Axis(_OVER_WIDTH, "activation", ""), width=sizes.widths,
        large=kit.Axis(_OVER_BATCH, "activation", ""), batch=sizes.batches,
    )  # fmt: skip
    across, along = ("wide", "width"), ("large", "batch")
    wide, large = results.points(*across), results.points(*along)
    costs = [width / 1000 * sizes.layers * sizes.networks for _, width in wide]
    costs += [sizes.width / 1e5 * batch**2 * sizes.batch_networks for _, batch in large]
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
        "Widths up to a million, batches up to 512", table, findings, _draw, batch_fixed=_BATCH,
        width_fixed=sizes.width, norm="batch", deep=sizes.deep, layers=[_FIRST, sizes.layers],
        networks=[sizes.networks, sizes.batch_networks],
    )  # fmt: skip


def _draw(data: Dataset, figure: Drawing) -> None:
    left, middle, right = pictures.axes_of(figure, 3, width=4.5, height=4.2)[0]
    width, batch = data["width"].values, data["batch"].values
    attrs = data.attrs
    for colour, name in zip(COLOURS, data["wide"].values, strict=False):
        part = data.sel(wide=name)
        pictures.points(left, part, "distance", "width", colour=colour, label=name)
        right.plot(width, part["speed"], "o-", color=colour, label=f"{name}, over width")
    left.plot(width, data["law"], "k--", linewidth=1.2, label="theory, linear")
    logs: dict[str, Any] = {"xscale": "log", "yscale": "log"}
    title, norm = f"n = {attrs['batch_fixed']}, deep layers", r"$\|G_\ell - G_*\|_F$, r.m.s."
    pictures.finish(left, title, "width $d$", norm, **logs)
    left.legend()
    for colour, name in zip((COLOURS[0], COLOURS[2]), data["large"].values, strict=False):
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
