"""Experiments that no paper has: where the theory is stable, how fast chains forget, and scale.

Intervals are at level 0.95.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from bnmc._kernels.scalar.activations import BUILTIN
from bnmc._support.arguments import integer
from bnmc._support.machine import available_processors
from bnmc._support.progress import Progress
from bnmc.chain.chain import Chain
from bnmc.errors import NotMixing
from bnmc.estimate.estimate import Estimate
from bnmc.experiments._experiment import (
    Experiment,
    Parts,
    Sources,
    Store,
    Table,
    Variable,
    axes_of,
    dataset,
    estimated,
    interval,
    label_outer,
    rms,
    sized,
    slope,
    with_parameters,
)
from bnmc.experiments.bridging.common import stationary_linear
from bnmc.mean_field import MeanField, atlas
from bnmc.mixing import Comparison, compare, contraction
from bnmc.simulation.observables import Distance
from bnmc.simulation.run import simulate

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

__all__ = ["rates", "scale", "stability_atlas"]

#: Sizes of each experiment, and what ``full`` changes of them.
DEFAULT: dict[str, dict[str, Any]] = {
    "atlas": {
        "activations": (
            "linear", "relu", "leaky_relu", "tanh", "sigmoid", "sin", "elu", "selu", "gelu", "silu",
        ),
        "batches": (4, 6, 8, 12, 16, 24, 32, 48, 64), "measured": ("relu", "tanh"),
        "at": (4, 8, 16), "width": 2000, "pairs": 32,
    },
    "rates": {
        "activations": ("relu", "tanh"), "batches": (3, 5, 8), "widths": (400, 1000, 2500),
        "settings": {"pairs": 16, "replicates": 120, "chains": 16},
    },
    "scale": {
        "widths": (1000, 10_000, 100_000, 1_000_000), "chains": 4, "layers": 40,
        "batches": (8, 32, 128, 512), "width": 8192, "networks": 4, "deep": 3,
    },
}  # fmt: skip


FULL: dict[str, dict[str, Any]] = {
    "atlas": {
        "activations": tuple(BUILTIN), "measured": ("relu", "tanh", "sigmoid", "silu"),
        "batches": (3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 96, 128),
        "at": (4, 6, 8, 12, 16), "width": 10_000, "pairs": 32,
    },
    "rates": {
        "activations": tuple(BUILTIN), "batches": (3, 5, 8, 12, 16),
        "widths": (250, 1000, 4000, 16_000), "settings": {},
    },
    "scale": {"chains": 16, "layers": 100, "width": 32_768, "networks": 8, "deep": 5},
}  # fmt: skip


#: The rows of `bnmc.mixing.compare` but the mean field.
ESTIMATORS = ("contraction", "tv_bound", "autocorrelation", "spectral", "relaxation")


@with_parameters
def stability_atlas(
    *,
    full: bool = False,
    rng: Any = 0,
    progress: bool | Progress = False,
    threads: int | None = None,
    store: Store = None,
) -> Experiment:
    r"""For which activations and batch sizes the symmetric fixed point of BN is stable.

    The rate of the mean field (`bnmc.mean_field.atlas`) for ten activations and batches of 4 to 64
    (``full``: all built-in ones, 3 to 128), and the measured contraction of chains of width 2000
    (10000), where they are stable.

    What should be seen: rates rise with the batch, but for those of sin, which are largest at a
    batch of 17, .866, and fall from there (``full``: and of abs, which fall from 4 to 5 alone).
    gelu and silu cross 1, at batches of 39 and 26:
    from there on infinitely wide networks leave the symmetric fixed point, which the theorems of
    *On bridging …* take for the attractor.  Measured contraction agrees, with a correction of order
    1/width that grows as the batch does.

    Returns
    -------
    Experiment
        Variables by ``activation`` and ``batch``.
    """
    sizes, sources = sized("atlas", full, DEFAULT, FULL), Sources(rng)
    processors = available_processors() if threads is None else integer("threads", threads, low=1)
    pairs = [(name, batch) for name in sizes.measured for batch in sizes.at]
    weights = [10.0] + [0.1 * batch**1.5 for _, batch in pairs]
    found: dict[tuple[str, int], Estimate | None] = {}
    with (
        Parts(progress, "stability-atlas", weights, sources, full, store) as parts,
        ThreadPoolExecutor(processors) as pool,
    ):
        parts.next()
        entries = atlas(sizes.activations, sizes.batches)
        for name, batch in pairs:
            try:
                rate = parts.run(
                    contraction, Chain(sizes.width, batch, name), pairs=sizes.pairs,
                    rng=sources.generator, executor=pool,
                ).rate_estimate  # fmt: skip
                found[name, batch] = Estimate(rate.rate, rate.stderr, rate.ci, rate.n, rate.method)
            except NotMixing:
                found[name, batch] = None
    per, along = ("activation", "batch"), ("measured", "measured_batch")
    eigenvalues = np.array([entry.eigenvalues for entry in entries])
    nothing = Estimate(0.0, 0.0, (0.0, 0.0), 1, "none")
    rows = [[found[name, batch] or nothing for batch in sizes.at] for name in sizes.measured]
    missing = np.array(
        [[found[name, batch] is None for batch in sizes.at] for name in sizes.measured]
    )
    measured = {
        key: one._replace(values=np.where(missing, np.nan, one.values))
        for key, one in estimated("contraction", along, rows, "measured contraction").items()
    }
    crossings = {
        entry.activation: [one.batch for one in entry.crossings if not one.stable]
        for entry in entries
    }
    data = dataset(
        {
            "rate": Variable(per, [entry.rates for entry in entries], "rate of the mean field"),
            "lambda_L": Variable(per, eigenvalues[:, :, 0], "eigenvalue λ_L"),
            "lambda_M": Variable(per, eigenvalues[:, :, 1], "eigenvalue λ_M"),
            "error": Variable(
                per, [[point.error for point in entry.points] for entry in entries],
                "error of the quadrature, relative",
            ),
            "unstable_from": Variable(
                ("activation",), [(crossings[one] or [0])[0] for one in crossings],
                "first unstable batch, 0 for none", "samples",
            ),
            **measured,
        },
        {
            "activation": Variable(("activation",), list(crossings), "activation", ""),
            "batch": Variable(("batch",), entries[0].batches, "batch n", "samples"),
            "measured": Variable(("measured",), list(sizes.measured), "activation", ""),
            "measured_batch": Variable(("measured_batch",), list(sizes.at), "batch n", "samples"),
        },
        sources, full, {"width": sizes.width, "norm": "batch", "pairs": sizes.pairs},
    )  # fmt: skip
    table = Table(
        ("activation", *(f"n = {batch}" for batch in entries[0].batches), "unstable from"),
        tuple(
            (entry.activation, *(float(rate) for rate in entry.rates), *crossings[entry.activation])
            + (() if crossings[entry.activation] else (None,))
            for entry in entries
        ),
    )
    unstable = [f"{name} from {batches[0]}" for name, batches in crossings.items() if batches]
    findings = [
        "Unstable as the batch grows: " + (", ".join(unstable) if unstable else "none of these")
        + "."
    ]  # fmt: skip
    for (name, batch), one in found.items():
        theory = MeanField(Chain(2, batch, name)).fixed_point().rate
        said = "the pairs did not meet" if one is None else f"contraction {interval(one)}"
        findings.append(f"{name}, batch {batch}: {said}, mean field {theory:.4g}.")
    title = "Where the symmetric fixed point is stable"
    return Experiment("stability-atlas", title, data, table, tuple(findings), _draw_atlas)


def _draw_atlas(data: xarray.Dataset, figure: Figure) -> None:
    from bnmc.plot.axes import COLOURS, estimates, plain_ticks

    left, right = axes_of(figure, 2, width=6.2, height=4.8)[0]
    rate = data["rate"].values
    names, batches = data["activation"].values, data["batch"].values
    image = left.imshow(rate, cmap="cividis", vmin=0.3, vmax=1.0, aspect="auto")
    for row, column in np.ndindex(*rate.shape):
        value = rate[row, column]
        left.text(
            column, row, f"{value:.2f}", ha="center", va="center", fontsize="x-small",
            color="white" if value < 0.65 else "black",
            weight="bold" if value >= 1.0 else "normal",
        )  # fmt: skip
    for row, column in np.argwhere((rate[:, 1:] >= 1.0) & (rate[:, :-1] < 1.0)):
        left.plot([column + 0.5] * 2, [row - 0.5, row + 0.5], color=COLOURS[1], linewidth=4)
    left.grid(False)
    left.set_yticks(range(len(names)), names)
    left.set_xticks(range(len(batches)), batches)
    left.set(xlabel="batch $n$")
    left.set_title("rate of the mean field; unstable right of the bars", loc="left")
    figure.colorbar(image, ax=left, label="factor a layer", extend="min")
    shown = list(data["measured"].values)
    shown += [name for name in ("gelu", "silu") if name in names and name not in shown]
    for colour, name in zip(COLOURS, shown, strict=False):
        right.plot(batches, data["rate"].sel(activation=name), color=colour, label=name)
        if name in data["measured"].values:
            one = data.sel(measured=name)
            curve = [one[f"contraction{end}"] for end in ("", "_low", "_high")]
            estimates(right, data["measured_batch"].values, *curve, colour=colour)
    right.plot([], [], "o", color="0.4", markersize=4, label=f"measured, d = {data.attrs['width']}")
    right.axhline(1.0, color="black", linewidth=0.8)
    right.set(xscale="log", xlabel="batch $n$", ylabel="factor a layer")
    plain_ticks(right.xaxis, batches)
    right.set_title("mean field and measured contraction", loc="left")
    right.legend(loc="lower right")


@with_parameters
def rates(
    *,
    full: bool = False,
    rng: Any = 0,
    progress: bool | Progress = False,
    threads: int | None = None,
    store: Store = None,
) -> Experiment:
    r"""How fast chains forget, against batch and width, by every estimator of `mixing.compare`.

    relu and tanh, batches of 3, 5 and 8 at width 1000, widths of 400, 1000 and 2500 at batch 5
    (``full``: all built-in activations, batches to 16, widths to 16000, the samples that
    `bnmc.mixing.compare` takes by default).

    What should be seen: contraction, autocorrelation, spectral and relaxation agree with the mean
    field within their errors, those of contraction being far the smallest; it differs by a
    correction of order 1/width.  The tail of the meeting times (tv_bound) is of the certificate: it
    is larger where a pair that misses its chance starts anew.

    Returns
    -------
    Experiment
        Variables by ``activation``, ``estimator`` and ``batch`` or ``width``; NaN where there is no
        estimate.
    """
    sizes, sources = sized("rates", full, DEFAULT, FULL), Sources(rng)
    processors = available_processors() if threads is None else integer("threads", threads, low=1)
    middle, width = 5, 1000
    points = list(
        dict.fromkeys([(width, n) for n in sizes.batches] + [(d, middle) for d in sizes.widths])
    )
    weights = [n * (d / 1000 + 1) for d, n in points] * len(sizes.activations)
    shape = (len(sizes.activations), len(points), len(ESTIMATORS), 3)
    values, theory = np.full(shape, np.nan), np.full(shape[:2], np.nan)
    rows: list[tuple[Any, ...]] = []
    with (
        Parts(progress, "rates", weights, sources, full, store) as parts,
        ThreadPoolExecutor(processors) as pool,
    ):
        for i, name in enumerate(sizes.activations):
            for j, (d, n) in enumerate(points):
                found = parts.run(
                    _compared, Chain(d, n, name), rng=sources.generator, executor=pool,
                    **sizes.settings,
                )  # fmt: skip
                theory[i, j] = MeanField(Chain(d, n, name)).fixed_point().rate
                cells: list[Any] = []
                for row in found.rows[1:]:
                    one = row.estimate
                    if one is not None:
                        values[i, j, ESTIMATORS.index(row.name)] = one.rate, *one.ci
                    cells.append(one and Estimate(one.rate, one.stderr, one.ci, one.n, one.method))
                rows.append((name, d, n, float(theory[i, j]), *cells))
    by_batch = [points.index((width, n)) for n in sizes.batches]
    by_width = [points.index((d, middle)) for d in sizes.widths]
    variables: dict[str, Variable] = {}
    for kind, axis, chosen in (("batch", "batch", by_batch), ("width", "width", by_width)):
        for end, suffix in enumerate(("", "_low", "_high")):
            variables[f"rate_by_{kind}{suffix}"] = Variable(
                ("activation", axis, "estimator"), values[..., end][:, chosen],
                "rate" + suffix.replace("_", ", end of 95 %: "),
            )  # fmt: skip
        variables[f"mean_field_by_{kind}"] = Variable(
            ("activation", axis), theory[:, chosen], "rate of the mean field"
        )
    data = dataset(
        variables,
        {
            "activation": Variable(("activation",), list(sizes.activations), "activation", ""),
            "estimator": Variable(("estimator",), list(ESTIMATORS), "estimator", ""),
            "batch": Variable(("batch",), list(sizes.batches), "batch n", "samples"),
            "width": Variable(("width",), list(sizes.widths), "width d", "neurons"),
        },
        sources, full, {"width_fixed": width, "batch_fixed": middle, "norm": "batch"},
    )  # fmt: skip
    table = Table(("activation", "width", "batch", "mean field", *ESTIMATORS), tuple(rows))
    findings = []
    for k, name in enumerate(ESTIMATORS):
        low, high = values[:, :, k, 1], values[:, :, k, 2]
        known = np.isfinite(low)
        inside = int(((low <= theory) & (theory <= high))[known].sum())
        gap = np.abs(values[:, :, k, 0] - theory)[known]
        if gap.size:
            findings.append(
                f"{name}: the mean field is in {inside} of {gap.size} intervals at 95 %; median "
                f"difference {np.median(gap):.2g}."
            )
        else:
            findings.append(f"{name}: no estimate.")
    title = "Rates of forgetting, by every estimator"
    return Experiment("rates", title, data, table, tuple(findings), _draw_rates)


def _compared(chain: Chain, *, progress: Progress, **settings: Any) -> Comparison:
    """Compare, in silence: of the runs in a comparison each would report on its own."""
    return compare(chain, **settings)


def _draw_rates(data: xarray.Dataset, figure: Figure) -> None:
    from bnmc.plot.axes import COLOURS, estimates, plain_ticks

    names = data["activation"].values
    axes = axes_of(figure, 2, len(names), width=5.6, height=3.2)
    label_outer(axes, axes.size, "", "factor a layer")
    estimators = data["estimator"].values
    for row, name in zip(axes, names, strict=True):
        for ax, axis in zip(row, ("batch", "width"), strict=True):
            one, x = data.sel(activation=name), data[axis].values
            for k, (colour, which) in enumerate(zip(COLOURS, estimators, strict=False)):
                part = one.sel(estimator=which)
                curve = [part[f"rate_by_{axis}{end}"] for end in ("", "_low", "_high")]
                shifted = x * 1.03 ** (k - 2)  # beside each other, not on top
                estimates(ax, shifted, *curve, colour=colour, label=which)
            field = one[f"mean_field_by_{axis}"]
            ax.plot(x, field, "k--", linewidth=1.2, label="mean field")
            ax.set_xscale("log")
            plain_ticks(ax.xaxis, x)
            fixed = {"batch": f"d = {data.attrs['width_fixed']}"}
            fixed["width"] = f"n = {data.attrs['batch_fixed']}"
            ax.set_title(f"{name}, {fixed[axis]}", loc="left", fontsize="medium")
    axes[-1, 0].set_xlabel("batch $n$")
    axes[-1, 1].set_xlabel("width $d$")
    figure.suptitle("Rates of forgetting, with 95 % intervals")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3)


@with_parameters
def scale(
    *,
    full: bool = False,
    rng: Any = 0,
    progress: bool | Progress = False,
    threads: int | None = None,
    store: Store = None,
) -> Experiment:
    r"""Networks of width a million, and batches of 512.

    Left, linear and relu networks of 4 samples at widths 10³ to 10⁶: the root mean square of
    :math:`\|G_l - G_*\|_F` over layers 10 to 40.  Middle, linear and tanh networks of width 8192
    with 8 to 512 samples (``full``: width 32768), from independent samples: the same at layer 0,
    which is one step from the identity, and at layer 3 (5).  Right, layers a second of this
    machine, all networks together, set-up included, for the left and the middle.

    What should be seen: slope −1/2 over three decades of width, at the law of
    `bridging.stationary_linear` for linear networks; slope 1 in the batch, at layer 0 of linear
    networks at :math:`n \sqrt{(m-1)/(m d)}`, m = n − 1, exactly.  Layers a second are of this
    machine and load: they are the one thing here that a seed does not repeat.

    Returns
    -------
    Experiment
        Variables by ``wide`` (activation) and ``width``, and by ``long`` (activation) and
        ``batch``.
    """
    sizes, sources = sized("scale", full, DEFAULT, FULL), Sources(rng)
    n, first = 4, 10
    wide, large = ("linear", "relu"), ("linear", "tanh")
    weights = [width / 1000 * sizes.layers * sizes.chains for width in sizes.widths] * 2
    weights += [sizes.width / 1e5 * b**2 * sizes.networks for b in sizes.batches] * 2
    levels: list[list[Estimate]] = []
    speeds: list[list[float]] = []
    begin: list[list[Estimate]] = []
    end: list[list[Estimate]] = []
    paces: list[list[float]] = []

    def run(chain: Chain, depth: int, networks: int, burn_in: int, *, progress: Progress) -> Any:
        star = MeanField(chain).fixed_point().gram
        begun = time.perf_counter()
        found = simulate(
            chain, depth, chains=networks, burn_in=burn_in, rng=sources.generator,
            observables=Distance(star), threads=threads, progress=progress,
        )["distance"]  # fmt: skip
        return found, networks * (depth + 1) / (time.perf_counter() - begun)

    with Parts(progress, "scale", weights, sources, full, store) as parts:
        for name in wide:
            simulate(Chain(100, n, name), 1, rng=0)  # compiles, so that speeds are of runs
            found = [
                parts.run(run, Chain(d, n, name), sizes.layers, sizes.chains, first)
                for d in sizes.widths
            ]
            # Layers of a network are not independent, networks are.
            levels.append([rms(np.sqrt(np.square(one).mean(axis=1))) for one, _ in found])
            speeds.append([speed for _, speed in found])
        for name in large:
            simulate(Chain(100, n, name), 1, rng=0)
            found = [
                parts.run(run, Chain(sizes.width, b, name), sizes.deep, sizes.networks, 0)
                for b in sizes.batches
            ]
            begin.append([rms(one[:, 0]) for one, _ in found])
            end.append([rms(one[:, -1]) for one, _ in found])
            paces.append([speed for _, speed in found])
    law = np.sqrt([stationary_linear(d, n) for d in sizes.widths])
    batches = np.array(sizes.batches, dtype=np.float64)
    single = batches * np.sqrt((batches - 2) / ((batches - 1) * sizes.width))
    across, along = ("wide", "width"), ("large", "batch")
    unit, pace = "Frobenius norm", "layers a second"
    data = dataset(
        {
            **estimated("distance", across, levels, "r.m.s. distance from G*", unit),
            "law": Variable(("width",), law, "theory for linear networks", unit),
            "speed": Variable(across, speeds, "speed of all networks", pace),
            **estimated("one_step", along, begin, "r.m.s. distance at layer 0", unit),
            **estimated("deeper", along, end, "r.m.s. distance at the last layer", unit),
            "one_step_law": Variable(
                ("batch",), single, "theory of layer 0 for linear networks", unit
            ),
            "pace": Variable(along, paces, "speed of all networks", pace),
        },
        {
            "wide": Variable(("wide",), list(wide), "activation", ""),
            "width": Variable(("width",), list(sizes.widths), "width d", "neurons"),
            "large": Variable(("large",), list(large), "activation", ""),
            "batch": Variable(("batch",), list(sizes.batches), "batch n", "samples"),
        },
        sources, full,
        {
            "batch_fixed": n, "width_fixed": sizes.width, "norm": "batch", "deep": sizes.deep,
            "layers": [first, sizes.layers], "networks": [sizes.chains, sizes.networks],
        },
    )  # fmt: skip
    rows: list[tuple[Any, ...]] = [
        (name, d, n, level, float(law[j]) if name == "linear" else None, f"{speed:.3g}")
        for name, row, paced in zip(wide, levels, speeds, strict=True)
        for j, (d, level, speed) in enumerate(zip(sizes.widths, row, paced, strict=True))
    ]
    rows += [
        (
            name,
            sizes.width,
            b,
            level,
            float(single[j]) if name == "linear" else None,
            f"{speed:.3g}",
        )
        for name, row, paced in zip(large, begin, paces, strict=True)
        for j, (b, level, speed) in enumerate(zip(sizes.batches, row, paced, strict=True))
    ]
    table = Table(
        ("activation", "width", "batch", "r.m.s. distance", "theory", "layers a second"),
        tuple(rows),
    )
    findings = (
        *(
            f"{name}: slope in the width {interval(slope(sizes.widths, row))}; theory, for large "
            "widths: -1/2."
            for name, row in zip(wide, levels, strict=True)
        ),
        f"Width {sizes.widths[-1]}, linear: {interval(levels[0][-1])}; theory {law[-1]:.5g}.",
        f"Batch {sizes.batches[-1]}, linear, one layer: {interval(begin[0][-1])}; theory "
        f"{single[-1]:.5g}.",
        f"tanh, one layer: slope in the batch {interval(slope(sizes.batches, begin[1]))}; theory, "
        "for large batches: 1.",
    )
    title = "Widths up to a million, batches up to 512"
    return Experiment("scale", title, data, table, findings, _draw_scale)


def _draw_scale(data: xarray.Dataset, figure: Figure) -> None:
    from bnmc.plot.axes import COLOURS, estimates

    left, middle, right = axes_of(figure, 3, width=4.5, height=4.2)[0]
    width, batch = data["width"].values, data["batch"].values
    attrs = data.attrs
    for colour, name in zip(COLOURS, data["wide"].values, strict=False):
        one = data.sel(wide=name)
        curve = [one[f"distance{end}"] for end in ("", "_low", "_high")]
        estimates(left, width, *curve, colour=colour, label=name)
        right.plot(width, one["speed"], "o-", color=colour, label=f"{name}, over width")
    left.plot(width, data["law"], "k--", linewidth=1.2, label="theory, linear")
    left.set(xscale="log", yscale="log", xlabel="width $d$", ylabel=r"$\|G_\ell - G_*\|_F$, r.m.s.")
    left.set_title(f"n = {attrs['batch_fixed']}, deep layers", loc="left")
    left.legend()
    for colour, name in zip((COLOURS[0], COLOURS[2]), data["large"].values, strict=False):
        one = data.sel(large=name)
        for kind, fmt, where in (("one_step", "o", 0), ("deeper", "s-", attrs["deep"])):
            curve = [one[f"{kind}{end}"] for end in ("", "_low", "_high")]
            estimates(middle, batch, *curve, colour=colour, fmt=fmt, label=f"{name}, layer {where}")
        right.plot(batch, one["pace"], "s--", color=colour, label=f"{name}, over batch")
    middle.plot(batch, data["one_step_law"], "k--", linewidth=1.2, label="theory, linear, layer 0")
    middle.set(xscale="log", yscale="log", xlabel="batch $n$")
    middle.set_title(f"d = {attrs['width_fixed']}", loc="left")
    middle.legend(fontsize="small")
    right.set(xscale="log", yscale="log", xlabel="width or batch", ylabel="layers a second")
    right.set_ylim(top=30 * right.get_ylim()[1])  # room for the legend
    right.set_title("speed of this machine", loc="left")
    right.legend(fontsize="small", loc="upper right")
    figure.suptitle("Distance from the fixed point at large widths and batches, 95 % intervals")
