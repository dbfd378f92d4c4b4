"""TODO-DOC bnmc.experiments.bridging.common.poster_distances."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from bnmc import gram as grams
from bnmc._support.progress import Progress
from bnmc.bounds import bridging as bounds
from bnmc.chain.chain import Chain
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
    sized,
    slope,
    with_parameters,
)
from bnmc.experiments.bridging.common import DEFAULT, FULL
from bnmc.experiments.bridging.same_network import _paired, _rows_of
from bnmc.mean_field import MeanField
from bnmc.simulation.observables import Distance
from bnmc.simulation.run import simulate

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

__all__ = ["poster"]


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

    (a) width 1000, batch 10, over depth; (b) layer 20, batch 10, over width; (c) width 1000, layer
    20, over the batch: sizes of the poster.  relu and tanh, 64 networks (``full``: six activations,
    256 networks, wider).  Inputs, which the poster does not name, are in (a) pairs of samples with
    correlation 0.99, so that there is something to forget, and else independent samples.

    What should be seen: (a) the error follows the mean field, ‖F^l(G_0) − G*‖ (dotted), down to a
    level, (b) which falls as the root of the width and (c) rises with the batch.  Dashed lines are
    the poster's radius :math:`\kappa (1-\alpha)^{l/2} + n (d \alpha)^{-1/2} \ln^{1/2}(d/n)` with
    the constant 1 and α = 1 − rate of the fixed point, which the poster only assumes.  Its
    transient part falls half as fast, in logs, as deviations do near the fixed point; far from it
    the mean field itself is slower than its rate (tanh), so that no κ(1−α)^{l/2} follows at once.
    The poster says O(·), with high probability, and names neither.

    What the figure gets wrong, by the authors' notebook: its G* is the mean over all layers, the
    input and its transient included, which makes the error of relu at width 1000 too large by 30 %;
    its G is of W times activations, with weights of variance gain²/d by Xavier's rule; and its
    dashed line, :math:`2\kappa (2^{-l/2} + n/(2\sqrt d))`, has no logarithm, and a constant and α
    that are chosen.  Its inputs are orthogonal but for one direction that is 20 times as large.

    Returns
    -------
    Experiment

    Examples
    --------
    >>> from bnmc.experiments import bridging
    >>> found = bridging.poster()  # doctest: +SKIP
    """
    sizes, sources = sized("poster", full, DEFAULT, FULL), Sources(rng)
    n, width, layer = 10, 1000, 20
    points = [("depth", width, n)]
    points += [("width", d, n) for d in sizes.widths] + [("batch", width, b) for b in sizes.batches]
    weights = [d * b**2 for _, d, b in points] * len(sizes.activations)
    values: dict[tuple[str, str], list[Any]] = {}
    theory: dict[tuple[str, str], list[Any]] = {}
    rates, fields = [], []
    with Parts(progress, "bridging-poster", weights, sources, full, store) as parts:
        for name in sizes.activations:
            for kind, d, b in points:
                chain = Chain(d, b, name)
                star = MeanField(chain).fixed_point()
                depth = sizes.depth if kind == "depth" else layer
                inputs = _paired(b) if kind == "depth" else np.eye(b)
                run = parts.run(
                    simulate, chain, depth, chains=sizes.chains, initial=_rows_of(inputs),
                    burn_in=0 if kind == "depth" else depth, rng=sources.generator,
                    observables=Distance(star.gram), threads=threads,
                )  # fmt: skip
                bound = bounds.poster_theorem(
                    depth=run.layers, width=d, batch=b, alpha=1.0 - star.rate, star=star.gram
                )
                values.setdefault((kind, name), []).append(run["distance"])
                theory.setdefault((kind, name), []).append(np.atleast_1d(bound))
                if kind == "depth":
                    rates.append(star.rate)
                    # Layer 0 is one step of the mean field from the covariance of the inputs.
                    field = MeanField(chain).trajectory(
                        inputs, depth + 1, rtol=1e-2, rng=sources.generator
                    )
                    fields.append(grams.distance(field.gram[1:], star.gram))
    names = sizes.activations
    coordinates = {
        "activation": Variable(("activation",), list(names), "activation", ""),
        "layer": Variable(("layer",), np.arange(sizes.depth + 1), "layer"),
        "width": Variable(("width",), sizes.widths, "width d", "neurons"),
        "batch": Variable(("batch",), sizes.batches, "batch n", "samples"),
    }
    unit = "Frobenius norm"
    variables = {
        "mean_field": Variable(("activation", "layer"), fields, "mean field, ‖F^l(G_0) - G*‖", unit)
    }
    found: dict[str, list[list[Estimate]]] = {}
    for kind, axis in (("depth", "layer"), ("width", "width"), ("batch", "batch")):
        per = ("activation", axis)
        found[kind] = [
            [
                Estimate.from_samples(column)
                for column in np.concatenate(values[kind, name], axis=1).T
            ]
            for name in names
        ]
        variables |= estimated(f"by_{kind}", per, found[kind], "mean error", unit)
        variables[f"theorem_by_{kind}"] = Variable(
            per, [np.concatenate(theory[kind, name]) for name in names],
            "radius of the poster's theorem, constant 1", unit,
        )  # fmt: skip
    data = dataset(
        variables, coordinates, sources, full,
        {
            "width_fixed": width, "batch_fixed": n, "layer_fixed": layer, "norm": "batch",
            "networks": sizes.chains, "rates": rates,
            "initial": "(a) pairs of samples of correlation 0.99, (b, c) independent samples",
        },
    )  # fmt: skip
    slopes = [slope(sizes.widths, row) for row in found["width"]]
    ends = [row[-1] for row in found["depth"]]
    looseness = [
        float(np.concatenate(theory["depth", name])[-1]) / end.value
        for name, end in zip(names, ends, strict=True)
    ]
    table = Table(
        (
            "activation", "rate of the mean field", f"error at layer {sizes.depth}",
            "slope in width", "theorem over error",
        ),
        tuple(zip(names, rates, ends, slopes, looseness, strict=True)),
    )  # fmt: skip
    below = all((data[f"by_{kind}"] <= data[f"theorem_by_{kind}"]).all() for kind in found)
    findings = (
        *(
            f"{name}: the error settles at {interval(end)}; its slope in the width is "
            f"{interval(fitted)} (theory, for large widths: -1/2)."
            for name, end, fitted in zip(names, ends, slopes, strict=True)
        ),
        "The poster's radius with the constant 1 is "
        + ("above all measured means" if below else "below some measured means")
        + f", by {min(looseness):.2g} to {max(looseness):.2g} times in deep layers.",
    )
    title = "The error settles with depth, falls with width and rises with the batch"
    return Experiment("bridging-poster", title, data, table, findings, _draw_poster)


def _draw_poster(data: xarray.Dataset, figure: Figure) -> None:
    from bnmc.plot.axes import COLOURS, band, estimates, plain_ticks

    axes = axes_of(figure, 3, width=4.4, height=4.0)[0]
    attrs = data.attrs
    d, n, layer = attrs["width_fixed"], attrs["batch_fixed"], attrs["layer_fixed"]
    panels = (
        ("depth", "layer", f"(a) depth: d = {d}, n = {n}", "layer"),
        ("width", "width", f"(b) width: layer {layer}, n = {n}", "width $d$"),
        ("batch", "batch", f"(c) batch: layer {layer}, d = {d}", "batch $n$"),
    )
    for ax, (kind, axis, title, label) in zip(axes, panels, strict=True):
        x = data[axis].values
        for colour, name in zip(COLOURS, data["activation"].values, strict=False):
            one = data.sel(activation=name)
            curve = [one[f"by_{kind}{end}"] for end in ("", "_low", "_high")]
            draw = band if kind == "depth" else estimates
            draw(ax, x, *curve, colour=colour, label=name)
            ax.plot(x, one[f"theorem_by_{kind}"], "--", color=colour, linewidth=1.2)
        ax.set(yscale="log", xlabel=label)
        if kind != "depth":
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
    figure.suptitle(
        f"Error of the mean field, mean of {attrs['networks']} networks with 95 % intervals"
    )
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
