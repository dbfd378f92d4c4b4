"""Fig. 1 of the poster: the error against depth, width and batch size, and its Theorem 2."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bnmc._support.progress import Progress
from bnmc.bounds import bridging as bounds
from bnmc.chain.chain import Chain
from bnmc.estimate.estimate import Estimate
from bnmc.experiments.bridging.common import (
    ACTIVATIONS,
    FloatArray,
    first_layer_of_covariance,
    paired_samples,
)
from bnmc.experiments.data import Variable, curve, dataset, estimated
from bnmc.experiments.experiment import Experiment, Table, with_parameters
from bnmc.experiments.parts import Call, Parts, Store, chosen
from bnmc.experiments.pictures import axes_of
from bnmc.experiments.statistics import interval, slope
from bnmc.gram import distance
from bnmc.mean_field import Fluctuations
from bnmc.mean_field.field import MeanField
from bnmc.plot.axes import COLOURS, band, estimates, plain_ticks
from bnmc.simulation.observables import Distance
from bnmc.simulation.run import simulate

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

__all__ = ["DEFAULT", "FULL", "Sizes", "experiment", "poster"]


class Sizes(NamedTuple):
    """Activations, layers of (a), networks, widths of (b), and batch sizes of (c)."""

    activations: tuple[str, ...]
    depth: int
    chains: int
    widths: tuple[int, ...]
    batches: tuple[int, ...]


DEFAULT = Sizes(("relu", "tanh"), 40, 64, (100, 200, 400, 800, 1600, 3200), (4, 6, 10, 16, 25, 40))
FULL = Sizes(
    ACTIVATIONS, 40, 256, (100, 200, 400, 800, 1600, 3200, 6400, 12800), DEFAULT.batches
)  # fmt: skip

#: Sizes of the poster: width of (a, c), batch size of (a, b), layer of (b, c).
WIDTH, BATCH, LAYER = 1000, 10, 20

#: Panels (a), (b) and (c), and the axis of each.
_PANELS = {"depth": "layer", "width": "width", "batch": "batch"}


@with_parameters
def poster(
    *,
    full: bool = False,
    rng: Any = 0,
    progress: bool | Progress = False,
    threads: int | None = None,
    store: Store = None,
) -> Experiment:
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
    call = Call("bridging-poster", full, rng, progress, threads, store)
    return experiment(chosen(DEFAULT, FULL, full), call)


class _Panels(NamedTuple):
    """Results of the three panels.

    By panel and activation: mean errors, radii of the theorem, and predicted stationary errors.  By
    activation: the mean field over depth, shape (layers,), and its rate.
    """

    errors: dict[str, list[list[Estimate]]]
    radii: dict[str, list[FloatArray]]
    levels: dict[str, list[FloatArray]]
    fields: list[FloatArray]
    rates: list[float]


def experiment(sizes: Sizes, call: Call) -> Experiment:
    """Run the experiment with these sizes."""
    names = sizes.activations
    found = _measure(sizes, call)
    slopes = [slope(sizes.widths, row) for row in found.errors["width"]]
    last = [row[-1] for row in found.errors["depth"]]
    looseness = [
        float(radius[-1]) / end.value
        for radius, end in zip(found.radii["depth"], last, strict=True)
    ]
    predicted = [float(row[-1]) for row in found.levels["depth"]]
    columns = (
        "activation", "rate of the mean field", f"error at layer {sizes.depth}", "slope in width",
        "theorem over error", "predicted",
    )  # fmt: skip
    cells = zip(names, found.rates, last, slopes, looseness, predicted, strict=True)
    table = Table(columns, tuple(cells))
    data = _data(sizes, call, found)
    below = all((data[f"by_{panel}"] <= data[f"theorem_by_{panel}"]).all() for panel in _PANELS)
    findings = (
        *(
            f"{name}: the error converges to {interval(end)} (predicted: {level:.4g}); its slope "
            f"in the width is {interval(fitted)} (theory, for large widths: -1/2)."
            for name, end, level, fitted in zip(names, last, predicted, slopes, strict=True)
        ),
        "The poster's radius with the constant 1 is "
        + ("above all measured means" if below else "below some measured means")
        + f", by {min(looseness):.2g} to {max(looseness):.2g} times in deep layers.",
    )
    title = "The error converges with depth, falls with the width and rises with the batch"
    return Experiment(call.name, title, data, table, findings, _draw)


def _measure(sizes: Sizes, call: Call) -> _Panels:
    points = {
        "depth": [(WIDTH, BATCH)],
        "width": [(width, BATCH) for width in sizes.widths],
        "batch": [(WIDTH, batch) for batch in sizes.batches],
    }
    costs = [width * batch**2 for of_panel in points.values() for width, batch in of_panel]
    found = _Panels(
        {panel: [] for panel in _PANELS},
        {panel: [] for panel in _PANELS},
        {panel: [] for panel in _PANELS},
        [],
        [],
    )
    with call.parts(costs * len(sizes.activations)) as parts:
        for name in sizes.activations:
            for panel, of_panel in points.items():
                errors: list[Estimate] = []
                radii: list[FloatArray] = []
                levels = [_level(name, width, batch) for width, batch in of_panel]
                for width, batch in of_panel:
                    chain = Chain(width, batch, name)
                    one, radius = _errors(panel, chain, sizes, call, parts)
                    errors += one
                    radii.append(radius)
                found.errors[panel].append(errors)
                found.radii[panel].append(np.concatenate(radii))
                found.levels[panel].append(np.resize(levels, len(errors)))
                if panel == "depth":
                    rate, field = _mean_field(chain, sizes.depth, call)
                    found.rates.append(rate)
                    found.fields.append(field)
    return found


def _errors(
    panel: str, chain: Chain, sizes: Sizes, call: Call, parts: Parts
) -> tuple[list[Estimate], FloatArray]:
    """Return the mean error and the theorem's radius at each recorded layer.

    Panel "depth" records all layers, and the others the last one.
    """
    star = MeanField(chain).fixed_point()
    is_depth = panel == "depth"
    depth = sizes.depth if is_depth else LAYER
    inputs = paired_samples(chain.batch) if is_depth else np.eye(chain.batch)
    run = parts.run(
        simulate, chain, depth, chains=sizes.chains, initial=first_layer_of_covariance(inputs),
        burn_in=0 if is_depth else depth, rng=call.generator, observables=Distance(star.gram),
        threads=call.threads,
    )  # fmt: skip
    radius = bounds.poster_theorem(
        depth=run.layers, width=chain.width, batch=chain.batch, alpha=1.0 - star.rate,
        star=star.gram,
    )  # fmt: skip
    errors = [Estimate.from_samples(column) for column in run["distance"].T]
    return errors, np.atleast_1d(radius)


def _level(name: str, width: int, batch: int) -> float:
    """Return the predicted mean error at stationarity."""
    return _law(name, batch).mean_distance(width).value


@lru_cache(maxsize=64)
def _law(name: str, batch: int) -> Fluctuations:
    """Return the fluctuations, which do not depend on the width."""
    return MeanField(Chain(2, batch, name)).fluctuations()


def _mean_field(chain: Chain, depth: int, call: Call) -> tuple[float, FloatArray]:
    """Return the rate of the fixed point, and the mean field's distance from it by layer."""
    field = MeanField(chain)
    star = field.fixed_point()
    # Layer 0 is one step of the mean field from the covariance of the inputs.
    path = field.trajectory(
        paired_samples(chain.batch), depth + 1, rtol=1e-2, rng=call.generator
    )  # fmt: skip
    return star.rate, distance(path.gram[1:], star.gram)


def _data(sizes: Sizes, call: Call, found: _Panels) -> xarray.Dataset:
    unit = "Frobenius norm"
    variables = {
        "mean_field": Variable(
            ("activation", "layer"), found.fields, "mean field, ‖F^l(G_0) - G*‖", unit
        )
    }
    for panel, axis in _PANELS.items():
        per = ("activation", axis)
        variables |= estimated(f"by_{panel}", per, found.errors[panel], "mean error", unit)
        variables[f"theorem_by_{panel}"] = Variable(
            per, found.radii[panel], "radius of the poster's theorem, constant 1", unit
        )
        variables[f"predicted_by_{panel}"] = Variable(
            per, found.levels[panel], "predicted mean error at stationarity", unit
        )
    return dataset(
        variables,
        {
            "activation": Variable(("activation",), list(sizes.activations), "activation", ""),
            "layer": Variable(("layer",), np.arange(sizes.depth + 1), "layer"),
            "width": Variable(("width",), sizes.widths, "width d", "neurons"),
            "batch": Variable(("batch",), sizes.batches, "batch n", "samples"),
        },
        call,
        {
            "width_fixed": WIDTH, "batch_fixed": BATCH, "layer_fixed": LAYER, "norm": "batch",
            "networks": sizes.chains, "rates": found.rates,
            "initial": "(a) pairs of samples of correlation 0.99, (b, c) independent samples",
        },
    )  # fmt: skip


def _draw(data: xarray.Dataset, figure: Figure) -> None:
    axes = axes_of(figure, 3, width=4.4, height=4.0)[0]
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
            one = data.sel(activation=name)
            draw = band if panel == "depth" else estimates
            draw(ax, x, *curve(one, f"by_{panel}").T, colour=colour, label=name)
            ax.plot(x, one[f"theorem_by_{panel}"], "--", color=colour, linewidth=1.2)
            ax.plot(x, one[f"predicted_by_{panel}"], "-.", color=colour, linewidth=1.0)
        ax.set(yscale="log", xlabel=label)
        if panel != "depth":
            ax.set_xscale("log")
            plain_ticks(ax.xaxis, x)
        ax.set_title(title, loc="left")
    axes[0].set_ylabel(r"$\|G_\ell - G_*\|_F$")
    for colour, field in zip(COLOURS, data["mean_field"].values, strict=False):
        axes[0].plot(data["layer"], field, ":", color=colour, linewidth=1.5)
    lowest = float(data["by_depth"].min())
    axes[0].set_ylim(bottom=lowest / 3)
    axes[0].plot([], [], ":", color="0.4", label="mean field")
    axes[0].plot([], [], "--", color="0.4", label="poster's theorem, constant 1")
    axes[0].plot([], [], "-.", color="0.4", label="predicted, stationary")
    figure.suptitle(
        f"Error of the mean field, mean of {attrs['networks']} networks with 95 % intervals"
    )
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
