"""Fig. 1 of the poster: the error against depth, width and batch size, and its Theorem 2."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from bnmc.bounds import bridging as bounds
from bnmc.chain.chain import Chain
from bnmc.estimate.estimate import Estimate
from bnmc.experiments import kit, pictures
from bnmc.experiments.bridging.common import (
    ACTIVATIONS,
    first_layer_of_covariance,
    paired_samples,
)
from bnmc.experiments.kit import Dataset, Drawing, Experiment, Float64Array, Progress, Run
from bnmc.experiments.sizes import Builtin, Integers, Several
from bnmc.experiments.statistics import interval, slope
from bnmc.gram import distance
from bnmc.mean_field.field import MeanField
from bnmc.plot.axes import COLOURS, band, estimates, plain_ticks
from bnmc.simulation.observables import Distance
from bnmc.simulation.run import simulate

#: Sizes of the poster: layer of (b, c), width of (a, c), batch size of (a, b).
_LAYER, _WIDTH, _BATCH = 20, 1000, 10

#: Panels (a), (b) and (c), and the axis of each.
_PANELS = {"depth": "layer", "width": "width", "batch": "batch"}


class Sizes(NamedTuple):
    """Sizes of the figure.

    depth: number of layers of (a)
    widths: widths of (b)
    batches: batch sizes of (c)
    """

    activations: tuple[Builtin, ...] = ("relu", "tanh")
    depth: int = 40
    networks: Several = 64
    widths: Integers = (100, 200, 400, 800, 1600, 3200)
    batches: tuple[int, ...] = (4, 6, 10, 16, 25, 40)


@kit.figure(
    "bridging-poster", Sizes(), activations=ACTIVATIONS, networks=256,
    widths=(100, 200, 400, 800, 1600, 3200, 6400, 12_800),
)  # fmt: skip
def poster(run: Run, sizes: Sizes) -> Experiment:
    r"""Fig. 1 a–c of the poster: the error against depth, width and batch, and its Theorem 2.

    Panel (a) shows width 1000 and batch 10 over depth; (b) layer 20 and batch 10 over the width;
    (c) width 1000 and layer 20 over the batch size.  These are the sizes of the poster.  There are
    64 networks with relu and tanh (``full``: 256 networks, six activations, larger widths).  The
    poster does not name its inputs.  Here the inputs of (a) are pairs of samples with correlation
    0.99, whose error decays visibly; those of (b) and (c) are independent samples.

    Expected: in (a) the error follows the mean field, ‖F^l(G_0) − G*‖ (dotted), down to a level.
    The level (b) falls as 1/√width and (c) rises with the batch size.  Dash-dotted lines are its
    prediction: the mean distance of the stationary law to leading order in 1/width
    (`bnmc.MeanField.fluctuations`).  Dashed lines
    are the poster's radius :math:`\kappa (1-\alpha)^{l/2} + n (d \alpha)^{-1/2} \ln^{1/2}(d/n)`
    with d the width and n the batch size.  The poster gives it as O(·), with high probability, and
    names neither constant nor probability; here the constant is 1.  It assumes α; here α is 1 −
    rate of the fixed point.  The exponent of the radius is half of that of deviations near the
    fixed point.  Far from the fixed point the mean field itself decays more slowly than its rate
    (tanh), so no κ(1−α)^{l/2} describes it from layer 0 on.

    Errors of the figure, by the authors' notebook: its G* is the mean over all layers, including
    the input and the transient, which makes the error of relu at width 1000 too large by 30 %.  Its
    G is of W times activations, with weights of variance gain²/d by Xavier's rule.  Its dashed
    line, :math:`2\kappa (2^{-l/2} + n/(2\sqrt d))`, has no logarithm, and a chosen constant and α.
    Its inputs are orthogonal, but one direction is 20 times as large as the others.

    Returns
    -------
    Experiment

    Examples
    --------
    >>> from bnmc.experiments import bridging
    >>> found = bridging.poster()  # doctest: +SKIP
    """
    laws = {
        (name, batch): MeanField(Chain(2, batch, name)).fluctuations()
        for name in sizes.activations
        for batch in dict.fromkeys((_BATCH, *sizes.batches))
    }

    def distances(
        name: str, panel: str, width: int, batch: int, progress: Progress
    ) -> Float64Array:
        """Return distances from G*, (networks, layers), or those of the mean field, (layers,)."""
        star, chain = laws[name, batch].fixed_point.gram, Chain(width, batch, name)
        if panel == "mean field":
            # Layer 0 is one step of the mean field from the covariance of the inputs.
            path = MeanField(chain).trajectory(
                paired_samples(batch), sizes.depth + 1, rtol=1e-2, rng=run.generator
            )
            return distance(path.gram[1:], star)
        is_depth = panel == "depth"
        inputs = paired_samples(batch) if is_depth else np.eye(batch)
        return simulate(
            chain, sizes.depth if is_depth else _LAYER, chains=sizes.networks,
            initial=first_layer_of_covariance(inputs), burn_in=0 if is_depth else _LAYER,
            observables=Distance(star), **run.options(progress),
        )["distance"]  # fmt: skip

    settings = {
        "depth": [(_WIDTH, _BATCH)],
        "mean field": [(_WIDTH, _BATCH)],
        "width": [(width, _BATCH) for width in sizes.widths],
        "batch": [(_WIDTH, batch) for batch in sizes.batches],
    }
    points = [
        (name, panel, *setting)
        for name in sizes.activations
        for panel, of_panel in settings.items()
        for setting in of_panel
    ]
    parts = run.parts(distances, points, [float(width * n**2) for _, _, width, n in points])
    results = kit.Results(
        run, activation=sizes.activations, layer=range(sizes.depth + 1), width=sizes.widths,
        batch=sizes.batches,
    )  # fmt: skip
    unit = "Frobenius norm"
    fields = {(name,): parts[name, "mean field", _WIDTH, _BATCH] for name in sizes.activations}
    results.add("mean_field", ("activation", "layer"), fields, "mean field, ‖F^l(G_0) - G*‖", unit)
    columns: dict[str, tuple[kit.Column, ...]] = {}
    for panel, axis in _PANELS.items():
        per = ("activation", axis)
        errors, radii, levels = {}, {}, {}
        for name, label in results.points(*per):
            setting = {"layer": _LAYER, "width": _WIDTH, "batch": _BATCH} | {axis: label}
            layer, width, batch = setting.values()
            samples = parts[name, panel, width, batch][:, layer if panel == "depth" else 0]
            law = laws[name, batch]
            star = law.fixed_point
            errors[name, label] = Estimate.from_samples(samples)
            radii[name, label] = bounds.poster_theorem(
                depth=layer, width=width, batch=batch, alpha=1.0 - star.rate, star=star.gram
            )
            levels[name, label] = law.mean_distance(width).value
        columns[panel] = tuple(
            results.add(f"{name}by_{panel}", per, values, text, unit)
            for name, values, text in (
                ("", errors, "mean error"),
                ("theorem_", radii, "radius of the poster's theorem, constant 1"),
                ("predicted_", levels, "predicted mean error at stationarity"),
            )
        )
    last, radius, level = (column.at(layer=-1) for column in columns["depth"])
    rates = [laws[name, _BATCH].fixed_point.rate for name in sizes.activations]
    slopes = [slope(sizes.widths, row) for row in columns["width"][0].values]
    per_name = ("activation",)
    table = kit.table_of({
        "rate of the mean field": results.column(per_name, rates),
        f"error at layer {sizes.depth}": last,
        "slope in width": results.column(per_name, slopes),
        "theorem over error": results.column(per_name, radius.values / last.means().values),
        "predicted": level,
    })  # fmt: skip
    looseness = [row[4] for row in table.rows]
    below = all(
        (error.means().values <= theorem.values).all() for error, theorem, _ in columns.values()
    )
    findings = (
        *(
            f"{name}: the error converges to {interval(end)} (predicted: {prediction:.4g}); its "
            f"slope in the width is {interval(fitted)} (theory, for large widths: -1/2)."
            for name, _, end, fitted, _, prediction in table.rows
        ),
        "The poster's radius with the constant 1 is "
        + ("above all measured means" if below else "below some measured means")
        + f", by {min(looseness):.2g} to {max(looseness):.2g} times in deep layers.",
    )
    return results.experiment(
        "The error converges with depth, falls with the width and rises with the batch", table,
        findings, _draw, width_fixed=_WIDTH, batch_fixed=_BATCH, layer_fixed=_LAYER, norm="batch",
        networks=sizes.networks, rates=rates,
        initial="(a) pairs of samples of correlation 0.99, (b, c) independent samples",
    )  # fmt: skip


def _draw(data: Dataset, figure: Drawing) -> None:
    axes = pictures.axes_of(figure, 3, width=4.4, height=4.0)[0]
    attrs = data.attrs
    d, n, layer = attrs["width_fixed"], attrs["batch_fixed"], attrs["layer_fixed"]
    titles = {
        "depth": (f"(a) depth: d = {d}, n = {n}", "layer"),
        "width": (f"(b) width: layer {layer}, n = {n}", "width $d$"),
        "batch": (f"(c) batch: layer {layer}, d = {d}", "batch $n$"),
    }
    for ax, (panel, (title, label)) in zip(axes, titles.items(), strict=True):
        x = data[_PANELS[panel]].values
        for colour, name in zip(COLOURS, data["activation"].values, strict=False):
            part: Any = data.sel(activation=name)
            draw = band if panel == "depth" else estimates
            draw(ax, x, *pictures.curve(part, f"by_{panel}").T, colour=colour, label=name)
            ax.plot(x, part[f"theorem_by_{panel}"], "--", color=colour, linewidth=1.2)
            ax.plot(x, part[f"predicted_by_{panel}"], "-.", color=colour, linewidth=1.0)
        pictures.finish(ax, title, label, yscale="log")
        if panel != "depth":
            ax.set_xscale("log")
            plain_ticks(ax.xaxis, x)
    axes[0].set_ylabel(r"$\|G_\ell - G_*\|_F$")
    for colour, field in zip(COLOURS, data["mean_field"].values, strict=False):
        axes[0].plot(data["layer"], field, ":", color=colour, linewidth=1.5)
    axes[0].set_ylim(bottom=float(data["by_depth"].min()) / 3)
    axes[0].plot([], [], ":", color="0.4", label="mean field")
    axes[0].plot([], [], "--", color="0.4", label="poster's theorem, constant 1")
    axes[0].plot([], [], "-.", color="0.4", label="predicted, stationary")
    text = "Error of the mean field, mean of {networks} networks with 95 % intervals"
    figure.suptitle(text.format(**attrs))
    pictures.legend_below(figure, axes[0])
