"""Rates of mixing by every estimator, and the batch sizes with a stable fixed point."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np

from bnmc._kernels.scalar.activations import BUILTIN
from bnmc.chain.chain import Chain
from bnmc.errors import NotMixing
from bnmc.estimate.estimate import Estimate
from bnmc.experiments import kit, pictures
from bnmc.experiments.kit import Dataset, Drawing, Experiment, Progress, Run, Table
from bnmc.experiments.sizes import Builtin, Several
from bnmc.experiments.statistics import interval
from bnmc.mean_field import atlas
from bnmc.mean_field.field import MeanField
from bnmc.mixing import compare, contraction
from bnmc.plot.axes import COLOURS, colours_of, estimates, mark_unstable, plain_ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage


# --- stability of the symmetric fixed point


class _StabilitySizes(NamedTuple):
    """Sizes of the figure.

    activations: activations of the mean field
    batches: batch sizes of the mean field
    measured: activations of the measurement
    at: batch sizes of the measurement
    width: width of the measurement
    chains: pairs of coupled chains of the measurement
    """

    activations: tuple[Builtin, ...] = (
        "linear", "relu", "leaky_relu", "tanh", "sigmoid", "sin", "elu", "selu", "gelu", "silu",
    )  # fmt: skip
    batches: tuple[Annotated[int, {"low": 3}], ...] = (4, 6, 8, 12, 16, 24, 32, 48, 64)
    measured: tuple[Builtin, ...] = ("relu", "tanh")
    at: tuple[Annotated[int, {"low": 3}], ...] = (4, 8, 16)
    width: int = 2000
    chains: Several = 32


@kit.figure(
    "stability-atlas", _StabilitySizes(), activations=tuple(BUILTIN), width=10_000,
    batches=(3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 96, 128),
    measured=("relu", "tanh", "sigmoid", "silu"), at=(4, 6, 8, 12, 16),
)  # fmt: skip
def stability_atlas(run: Run, sizes: _StabilitySizes) -> Experiment:
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
                Chain(sizes.width, batch, name), chains=sizes.chains, **run.options(progress)
            )  # fmt: skip
        except NotMixing:
            return None
        return dataclasses.astuple(measured.rate_estimate)

    measurements = results.points("measured", "measured_batch")
    costs = [10.0, *(0.1 * batch**1.5 for _, batch in measurements)]
    points = [("mean field", "", 0), *(("measured", *point) for point in measurements)]
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
        "Batch sizes with a stable symmetric fixed point", table, findings, _draw_stability,
        width=sizes.width, norm="batch", chains=sizes.chains,
    )  # fmt: skip


def _draw_stability(data: Dataset, figure: Drawing) -> None:
    left, right = pictures.axes_of(figure, 2, width=6.2, height=4.8)[0]
    image = _draw_map(left, data)
    figure.colorbar(image, ax=left, label="factor per layer", extend="min")
    rate = data["rate"]
    names, batches = data["activation"].values, data["batch"].values
    shown = list(data["measured"].values)
    shown += [name for name in ("gelu", "silu") if name in names and name not in shown]
    for colour, name in zip(colours_of(shown), shown, strict=True):
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


# --- rates by every estimator of `bnmc.mixing.compare`


#: Width at which the batch size varies, and batch size at which the width varies.
_WIDTH, _BATCH = 1000, 5

#: The rows of `bnmc.mixing.compare` after the mean field.
_ESTIMATORS = ("contraction", "tv_bound", "autocorrelation", "spectral", "relaxation")


class _RateSizes(NamedTuple):
    """Sizes of the figure.

    batches: batch sizes at width 1000
    widths: widths at batch size 5
    contraction_chains: pairs of the contraction
    bound_chains: pairs of the meeting times
    chains: networks of the stationary run
    """

    activations: tuple[Builtin, ...] = ("relu", "tanh")
    batches: tuple[Several, ...] = (3, 5, 8)
    widths: tuple[int, ...] = (400, 1000, 2500)
    contraction_chains: Several = 16
    bound_chains: Several = 120
    chains: Annotated[int, {"low": 5}] = 16


@kit.figure(
    "rates", _RateSizes(), activations=tuple(BUILTIN), batches=(3, 5, 8, 12, 16),
    widths=(250, 1000, 4000, 16_000), contraction_chains=32, bound_chains=500, chains=50,
)  # fmt: skip
def rates(run: Run, sizes: _RateSizes) -> Experiment:
    r"""Rates of mixing against batch size and width, by every estimator of `mixing.compare`.

    Activations are relu and tanh.  Batch sizes are 3, 5 and 8 at width 1000; widths are 400, 1000
    and 2500 at batch size 5 (``full``: all built-in activations, batch sizes to 16, widths to
    16000, and the numbers of samples that `bnmc.mixing.compare` takes by default).

    Expected: contraction, autocorrelation, spectral and relaxation agree with the mean field within
    their errors.  The errors of contraction are by far the smallest; contraction differs from the
    mean field by a correction of order 1/width.  The tail of the meeting times (tv_bound) is a rate
    of the coupling just beyond the median.  It is larger than the rate of the chain if a pair that
    misses its chance to meet starts anew, and may be smaller if pairs meet within a few layers.

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
            Chain(width, batch, name), **run.options(False), chains={
                "contraction": sizes.contraction_chains, "tv_bound": sizes.bound_chains,
                "runs": sizes.chains,
            },
        )  # fmt: skip
        return tuple(
            row.estimate and dataclasses.astuple(row.estimate) for row in comparison.rows[1:]
        )

    costs = [batch * (width / 1000 + 1) for _, width, batch in points]
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
        "Rates of mixing, by every estimator", table, findings, _draw_rate, width_fixed=_WIDTH,
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


def _draw_rate(data: Dataset, figure: Drawing) -> None:
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
    pictures.legend_below(figure, axes[0, 0])
