"""The mean square distance from the fixed point over its prediction, against the width."""

from __future__ import annotations

from operator import attrgetter
from typing import NamedTuple

import numpy as np

from bnmc._kernels.scalar.activations import BUILTIN
from bnmc.chain.chain import Chain
from bnmc.errors import NotMixing
from bnmc.estimate.estimate import Estimate
from bnmc.experiments import kit, pictures
from bnmc.experiments.kit import Dataset, Drawing, Experiment, Float64Array, Progress, Run
from bnmc.experiments.sizes import Builtin, Natural
from bnmc.experiments.statistics import interval
from bnmc.mean_field import Fluctuations
from bnmc.mean_field.field import MeanField
from bnmc.plot.axes import COLOURS, estimates, plain_ticks
from bnmc.simulation.observables import Distance
from bnmc.simulation.run import simulate

#: Markers of activations of the same colour.
_MARKERS = ("o", "s", "^")


class Sizes(NamedTuple):
    """Sizes of the figure."""

    activations: tuple[Builtin, ...] = ("linear", "relu", "tanh", "sigmoid", "selu", "gelu")
    batches: tuple[int, ...] = (5, 10)
    widths: tuple[int, ...] = (100, 300, 1000, 3000)
    networks: int = 32
    first: Natural = 61
    last: int = 260


@kit.figure(
    "gap", Sizes(), activations=tuple(BUILTIN), batches=(5, 10, 32),
    widths=(100, 300, 1000, 3000, 10_000, 30_000, 100_000), networks=64, first=201, last=600,
)  # fmt: skip
def gap(run: Run, sizes: Sizes) -> Experiment:
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
            Chain(width, batch, name), sizes.last, chains=sizes.networks, burn_in=sizes.first,
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
        _findings(sizes, ratios, [case for case in laws if case not in stable]), _draw,
        norm="batch", networks=sizes.networks, layers=[sizes.first, sizes.last],
    )  # fmt: skip


def _prediction(name: str, batch: int) -> Fluctuations | None:
    """Return the prediction; None if the fixed point is unstable."""
    try:
        return MeanField(Chain(2, batch, name)).fluctuations()
    except NotMixing:
        return None


def _findings(
    sizes: Sizes, ratios: dict[tuple[str, int, int], Estimate], unstable: list[tuple[str, int]]
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


def _draw(data: Dataset, figure: Drawing) -> None:
    batches, widths = data["batch"].values, data["width"].values
    axes = pictures.axes_of(figure, len(batches), width=4.8, height=4.2)[0]
    count = len(data["activation"])
    for ax, batch in zip(axes, batches, strict=True):
        ax.set(xscale="log", xlabel="width $d$")
        for index, name in enumerate(data["activation"].values):
            ratios = pictures.curve(data.sel(activation=name, batch=batch), "ratio").T
            if np.isnan(ratios).any():
                continue
            # The points of one width are beside each other.
            shift = 1.25 ** ((index - 0.5 * (count - 1)) / count)
            estimates(
                ax, widths * shift, *ratios, colour=COLOURS[index % len(COLOURS)], label=str(name),
                fmt=_MARKERS[index // len(COLOURS) % len(_MARKERS)],
            )  # fmt: skip
        ax.axhline(1.0, color="black", linewidth=0.8)
        plain_ticks(ax.xaxis, widths)
        ax.set_title(f"n = {batch}", loc="left")
    axes[0].set_ylabel("measured over predicted")
    axes[-1].legend(fontsize="small")
    figure.suptitle(r"$E\|G - G_*\|_F^2$ over its prediction, norm batch, 95 % intervals")
