"""Rates of mixing against batch size and width, by every estimator of `bnmc.mixing.compare`."""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, NamedTuple

import numpy as np

from bnmc._kernels.scalar.activations import BUILTIN
from bnmc.chain.chain import Chain
from bnmc.estimate.estimate import Estimate
from bnmc.experiments import kit, pictures
from bnmc.experiments.kit import Dataset, Drawing, Experiment, Progress, Run, Table
from bnmc.experiments.sizes import Builtin, Several
from bnmc.mean_field.field import MeanField
from bnmc.mixing import compare
from bnmc.plot.axes import COLOURS, estimates, plain_ticks

#: Width at which the batch size varies, and batch size at which the width varies.
_WIDTH, _BATCH = 1000, 5

#: The rows of `bnmc.mixing.compare` after the mean field.
_ESTIMATORS = ("contraction", "tv_bound", "autocorrelation", "spectral", "relaxation")


class Sizes(NamedTuple):
    """Sizes of the figure.

    batches: batch sizes at width 1000
    widths: widths at batch size 5
    pairs: pairs of the contraction
    replicates: pairs of the meeting times
    networks: networks of the stationary run
    """

    activations: tuple[Builtin, ...] = ("relu", "tanh")
    batches: tuple[Several, ...] = (3, 5, 8)
    widths: tuple[int, ...] = (400, 1000, 2500)
    pairs: Several = 16
    replicates: Several = 120
    networks: Annotated[int, {"low": 5}] = 16


@kit.figure(
    "rates", Sizes(), activations=tuple(BUILTIN), batches=(3, 5, 8, 12, 16),
    widths=(250, 1000, 4000, 16_000), pairs=32, replicates=500, networks=50,
)  # fmt: skip
def rates(run: Run, sizes: Sizes) -> Experiment:
    r"""Rates of mixing against batch size and width, by every estimator of `mixing.compare`.

    Activations are relu and tanh.  Batch sizes are 3, 5 and 8 at width 1000; widths are 400, 1000
    and 2500 at batch size 5 (``full``: all built-in activations, batch sizes to 16, widths to
    16000, and the numbers of samples that `bnmc.mixing.compare` takes by default).

    Expected: contraction, autocorrelation, spectral and relaxation agree with the mean field within
    their errors.  The errors of contraction are by far the smallest; contraction differs from the
    mean field by a correction of order 1/width.  The tail of the meeting times (tv_bound) is a rate
    of the coupling.  It is larger if a pair that misses its chance to meet starts anew.

    Returns
    -------
    Experiment
        Variables by ``activation``, ``estimator`` and ``batch`` or ``width``; NaN if there is no
        estimate.
    """
    results = kit.Results(
        run, activation=sizes.activations, estimator=kit.Axis(_ESTIMATORS, "estimator", ""),
        batch=sizes.batches, width=sizes.widths,
    )  # fmt: skip
    pairs = [(_WIDTH, n) for n in sizes.batches] + [(d, _BATCH) for d in sizes.widths]
    points = [(name, *pair) for name in sizes.activations for pair in dict.fromkeys(pairs)]

    def compared(name: str, width: int, batch: int, progress: Progress) -> tuple[Any, ...]:
        """Return the fields of the estimate of each estimator, None if there is none.

        There is no progress: the estimators would report one after the other, each from 0.
        """
        comparison = compare(
            Chain(width, batch, name), pairs=sizes.pairs, replicates=sizes.replicates,
            chains=sizes.networks, rng=run.generator, executor=pool,
        )  # fmt: skip
        return tuple(
            row.estimate and dataclasses.astuple(row.estimate) for row in comparison.rows[1:]
        )

    costs = [batch * (width / 1000 + 1) for _, width, batch in points]
    with ThreadPoolExecutor(run.processors()) as pool:
        parts = run.parts(compared, points, costs)
    values = {
        point: [fields and Estimate(*fields) for fields in part] for point, part in parts.items()
    }
    theory = {
        (name, width, batch): float(MeanField(Chain(width, batch, name)).fixed_point().rate)
        for name, width, batch in points
    }
    for axis in ("batch", "width"):
        by_label = {
            (name, label): (name, _WIDTH, label) if axis == "batch" else (name, label, _BATCH)
            for name, label in results.points("activation", axis)
        }
        results.add(
            f"rate_by_{axis}", ("activation", axis, "estimator"),
            {
                (*labels, estimator): estimate
                for labels, point in by_label.items()
                for estimator, estimate in zip(_ESTIMATORS, values[point], strict=True)
            },
            "rate",
        )  # fmt: skip
        results.add(
            f"mean_field_by_{axis}", ("activation", axis),
            {labels: theory[point] for labels, point in by_label.items()},
            "rate of the mean field",
        )  # fmt: skip
    table = Table(
        ("activation", "width", "batch", "mean field", *_ESTIMATORS),
        tuple((*point, theory[point], *values[point]) for point in points),
    )
    findings = [
        _finding(name, [(row[3], row[4 + k]) for row in table.rows if row[4 + k] is not None])
        for k, name in enumerate(_ESTIMATORS)
    ]
    return results.experiment(
        "Rates of mixing, by every estimator", table, findings, _draw, width_fixed=_WIDTH,
        batch_fixed=_BATCH, norm="batch",
    )  # fmt: skip


def _finding(name: str, pairs: list[tuple[float, Estimate]]) -> str:
    """Compare one estimator with the mean field."""
    if not pairs:
        return f"{name}: no estimate."
    inside = sum(estimate.ci[0] <= theory <= estimate.ci[1] for theory, estimate in pairs)
    gaps = [abs(estimate.value - theory) for theory, estimate in pairs]
    return (
        f"{name}: the mean field is in {inside} of {len(gaps)} intervals at 95 %; median "
        f"difference {np.median(gaps):.2g}."
    )


def _draw(data: Dataset, figure: Drawing) -> None:
    names = data["activation"].values
    axes = pictures.axes_of(figure, 2, len(names), width=5.6, height=3.2)
    pictures.label_outer(axes, axes.size, "", "factor per layer")
    estimators = data["estimator"].values
    fixed = {
        "batch": f"d = {data.attrs['width_fixed']}", "width": f"n = {data.attrs['batch_fixed']}"
    }  # fmt: skip
    for row, name in zip(axes, names, strict=True):
        for ax, axis in zip(row, ("batch", "width"), strict=True):
            part, x = data.sel(activation=name), data[axis].values
            for k, (colour, which) in enumerate(zip(COLOURS, estimators, strict=False)):
                values = pictures.curve(part.sel(estimator=which), f"rate_by_{axis}").T
                shifted = x * 1.03 ** (k - 2)  # so that points do not hide each other
                estimates(ax, shifted, *values, colour=colour, label=which)
            field = part[f"mean_field_by_{axis}"]
            ax.plot(x, field, "k--", linewidth=1.2, label="mean field")
            ax.set_xscale("log")
            plain_ticks(ax.xaxis, x)
            ax.set_title(f"{name}, {fixed[axis]}", loc="left", fontsize="medium")
    axes[-1, 0].set_xlabel("batch $n$")
    axes[-1, 1].set_xlabel("width $d$")
    figure.suptitle("Rates of mixing, with 95 % intervals")
    pictures.legend_below(figure, axes[0, 0], columns=3)
