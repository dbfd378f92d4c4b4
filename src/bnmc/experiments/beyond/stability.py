"""Activations and batch sizes for which the symmetric fixed point is stable."""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np

from bnmc._kernels.scalar.activations import BUILTIN
from bnmc.chain.chain import Chain
from bnmc.errors import NotMixing
from bnmc.estimate.estimate import Estimate
from bnmc.experiments import kit, pictures
from bnmc.experiments.kit import Dataset, Drawing, Experiment, Progress, Run
from bnmc.experiments.sizes import Builtin, Several
from bnmc.experiments.statistics import interval
from bnmc.mean_field import atlas
from bnmc.mean_field.field import MeanField
from bnmc.mixing import contraction
from bnmc.plot.axes import COLOURS, mark_unstable, plain_ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage


class Sizes(NamedTuple):
    """Sizes of the figure.

    activations: activations of the mean field
    batches: batch sizes of the mean field
    measured: activations of the measurement
    at: batch sizes of the measurement
    width: width of the measurement
    """

    activations: tuple[Builtin, ...] = (
        "linear", "relu", "leaky_relu", "tanh", "sigmoid", "sin", "elu", "selu", "gelu", "silu",
    )  # fmt: skip
    batches: tuple[Annotated[int, {"low": 3}], ...] = (4, 6, 8, 12, 16, 24, 32, 48, 64)
    measured: tuple[Builtin, ...] = ("relu", "tanh")
    at: tuple[Annotated[int, {"low": 3}], ...] = (4, 8, 16)
    width: int = 2000
    pairs: Several = 32


@kit.figure(
    "stability-atlas", Sizes(), activations=tuple(BUILTIN), width=10_000,
    batches=(3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 96, 128),
    measured=("relu", "tanh", "sigmoid", "silu"), at=(4, 6, 8, 12, 16),
)  # fmt: skip
def stability_atlas(run: Run, sizes: Sizes) -> Experiment:
    r"""Activations and batch sizes for which the symmetric fixed point of BN is stable.

    The picture shows the rate of the mean field (`bnmc.mean_field.atlas`) for ten activations and
    batch sizes of 4 to 64 (``full``: all built-in activations, batch sizes of 3 to 128).  Beside it
    is the measured contraction of chains of width 2000 (``full``: 10000), for some of the stable
    ones.

    Expected: rates rise with the batch size.  One exception is sin, whose rate is largest at a
    batch size of 17, .866, and falls from there (``full``: another is abs, whose rate falls from 4
    to 5 only).  The rates of gelu and silu cross 1, at batch sizes of 39 and 26.  From there on
    infinitely wide networks leave the symmetric fixed point, which the theorems of *On bridging …*
    assume to be the attractor.  Measured contraction agrees with the rates, with a correction of
    order 1/width that grows with the batch size.

    Returns
    -------
    Experiment
        Variables by ``activation`` and ``batch``.
    """
    results = kit.Results(
        run, activation=sizes.activations, batch=sorted(sizes.batches),
        measured=kit.Axis(sizes.measured, "activation", ""),
        measured_batch=kit.Axis(sizes.at, "batch n", "samples"),
    )  # fmt: skip

    def made(kind: str, name: str, batch: int, progress: Progress) -> Any:
        """Return the numbers of the mean field, or a measured contraction, None if none."""
        if kind == "mean field":
            entries = atlas(sizes.activations, sizes.batches)
            eigenvalues = [
                [(*point.eigenvalues, np.nan)[:2] for point in entry.points] for entry in entries
            ]
            return {
                "rate": np.array([entry.rates for entry in entries]),
                "eigenvalues": np.array(eigenvalues),
                "error": np.array([[point.error for point in entry.points] for entry in entries]),
                "unstable": [
                    next((change.batch for change in entry.crossings if not change.stable), 0)
                    for entry in entries
                ],
            }
        try:
            measured = contraction(
                Chain(sizes.width, batch, name), pairs=sizes.pairs, rng=run.generator,
                executor=pool, progress=progress,
            )  # fmt: skip
        except NotMixing:
            return None
        return dataclasses.astuple(measured.rate_estimate)

    measurements = results.points("measured", "measured_batch")
    costs = [10.0, *(0.1 * batch**1.5 for _, batch in measurements)]
    points = [("mean field", "", 0), *(("measured", *point) for point in measurements)]
    with ThreadPoolExecutor(run.processors()) as pool:
        field, *contractions = run.parts(made, points, costs).values()
    per = ("activation", "batch")
    rate = results.add("rate", per, field["rate"], "rate of the mean field")
    results.add("lambda_L", per, field["eigenvalues"][..., 0], "eigenvalue λ_L")
    results.add("lambda_M", per, field["eigenvalues"][..., 1], "eigenvalue λ_M")
    results.add("error", per, field["error"], "error of the quadrature, relative")
    results.add(
        "unstable_from", ("activation",), field["unstable"],
        "first unstable batch, 0 for none", "samples",
    )  # fmt: skip
    estimates = {
        point: part and Estimate(*part)
        for point, part in zip(measurements, contractions, strict=True)
    }
    results.add("contraction", ("measured", "measured_batch"), estimates, "measured contraction")
    unstable = [batch or None for batch in field["unstable"]]
    table = kit.table_of({
        **{f"n = {n}": rate.at(batch=k) for k, n in enumerate(rate.axes["batch"])},
        "unstable from": results.column(("activation",), unstable),
    })  # fmt: skip
    starts = zip(sizes.activations, unstable, strict=True)
    listed = [f"{name} from {batch}" for name, batch in starts if batch]
    findings = [f"Unstable as the batch grows: {', '.join(listed) or 'none of these'}."]
    for (name, batch), estimate in estimates.items():
        theory = MeanField(Chain(2, batch, name)).fixed_point().rate
        said = f"contraction {interval(estimate)}" if estimate else "the pairs did not meet"
        findings.append(f"{name}, batch {batch}: {said}, mean field {theory:.4g}.")
    return results.experiment(
        "Batch sizes with a stable symmetric fixed point", table, findings, _draw,
        width=sizes.width, norm="batch", pairs=sizes.pairs,
    )  # fmt: skip


def _draw(data: Dataset, figure: Drawing) -> None:
    left, right = pictures.axes_of(figure, 2, width=6.2, height=4.8)[0]
    image = _draw_map(left, data)
    figure.colorbar(image, ax=left, label="factor per layer", extend="min")
    rate = data["rate"]
    names, batches = data["activation"].values, data["batch"].values
    shown = list(data["measured"].values)
    shown += [name for name in ("gelu", "silu") if name in names and name not in shown]
    for colour, name in zip(COLOURS, shown, strict=False):
        right.plot(batches, rate.sel(activation=name), color=colour, label=name)
        if name in data["measured"].values:
            part = data.sel(measured=name)
            pictures.points(right, part, "contraction", "measured_batch", colour=colour)
    right.plot([], [], "o", color="0.4", markersize=4, label=f"measured, d = {data.attrs['width']}")
    mark_unstable(right)
    right.set(xscale="log", xlabel="batch $n$", ylabel="factor per layer")
    plain_ticks(right.xaxis, batches)
    right.set_title("mean field and measured contraction", loc="left")
    right.legend(loc="lower right")


def _draw_map(ax: Axes, data: Dataset) -> AxesImage:
    """Draw rates by activation and batch size, with a bar at each crossing of 1."""
    rate = data["rate"].values
    names, batches = data["activation"].values, data["batch"].values
    image = ax.imshow(rate, cmap="cividis", vmin=0.3, vmax=1.0, aspect="auto")
    for row, column in np.ndindex(*rate.shape):
        value = rate[row, column]
        ax.text(
            column, row, f"{value:.2f}", ha="center", va="center", fontsize="x-small",
            color="white" if value < 0.65 else "black",
            weight="bold" if value >= 1.0 else "normal",
        )  # fmt: skip
    for row, column in np.argwhere((rate[:, 1:] >= 1.0) & (rate[:, :-1] < 1.0)):
        ax.plot([column + 0.5] * 2, [row - 0.5, row + 0.5], color=COLOURS[1], linewidth=4)
    ax.grid(False)
    ax.set_yticks(range(len(names)), names)
    ax.set_xticks(range(len(batches)), batches)
    pictures.finish(ax, "rate of the mean field; unstable right of the bars", "batch $n$")
    return image
