"""Rates of mixing against batch size and width, by every estimator of `bnmc.mixing.compare`."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnmc._kernels.scalar.activations import BUILTIN
from bnmc._support.progress import Progress
from bnmc.chain.chain import Chain
from bnmc.experiments.data import Variable, curve, dataset, ends
from bnmc.experiments.experiment import Experiment, Table, with_parameters
from bnmc.experiments.parts import Call, Store, chosen
from bnmc.experiments.pictures import axes_of, label_outer
from bnmc.experiments.statistics import rate_as_estimate
from bnmc.mean_field.field import MeanField
from bnmc.mixing import Comparison, compare
from bnmc.plot.axes import COLOURS, estimates, plain_ticks

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

__all__ = ["DEFAULT", "ESTIMATORS", "FULL", "Sizes", "experiment", "rates"]


class Sizes(NamedTuple):
    """Activations, batch sizes at `WIDTH`, widths at `BATCH`, and arguments of `compare`."""

    activations: tuple[str, ...]
    batches: tuple[int, ...]
    widths: tuple[int, ...]
    settings: dict[str, int]


DEFAULT = Sizes(
    ("relu", "tanh"), (3, 5, 8), (400, 1000, 2500), {"pairs": 16, "replicates": 120, "chains": 16}
)
FULL = Sizes(tuple(BUILTIN), (3, 5, 8, 12, 16), (250, 1000, 4000, 16_000), {})

#: Width at which the batch size varies, and batch size at which the width varies.
WIDTH, BATCH = 1000, 5

#: The rows of `bnmc.mixing.compare` after the mean field.
ESTIMATORS = ("contraction", "tv_bound", "autocorrelation", "spectral", "relaxation")


@with_parameters
def rates(
    *,
    full: bool = False,
    rng: Any = 0,
    progress: bool | Progress = False,
    threads: int | None = None,
    store: Store = None,
) -> Experiment:
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
    call = Call("rates", full, rng, progress, threads, store)
    return experiment(chosen(DEFAULT, FULL, full), call)


class _Measured(NamedTuple):
    """Results at each point, a width and a batch size.

    `rates` has the shape (activations, points, estimators, 3), with values and intervals; `theory`,
    the rates of the mean field, (activations, points).  `rows` are those of the table.
    """

    points: list[tuple[int, int]]
    rates: NDArray[np.float64]
    theory: NDArray[np.float64]
    rows: list[tuple[Any, ...]]


def experiment(sizes: Sizes, call: Call) -> Experiment:
    """Run the experiment with these sizes."""
    found = _measure(sizes, call)
    table = Table(("activation", "width", "batch", "mean field", *ESTIMATORS), tuple(found.rows))
    findings = tuple(
        _finding(name, found.rates[:, :, k], found.theory) for k, name in enumerate(ESTIMATORS)
    )
    title = "Rates of mixing, by every estimator"
    return Experiment(call.name, title, _data(sizes, call, found), table, findings, _draw)


def _measure(sizes: Sizes, call: Call) -> _Measured:
    processors = call.processors()
    points = list(
        dict.fromkeys([(WIDTH, n) for n in sizes.batches] + [(d, BATCH) for d in sizes.widths])
    )
    costs = [n * (d / 1000 + 1) for d, n in points] * len(sizes.activations)
    shape = (len(sizes.activations), len(points), len(ESTIMATORS), 3)
    values, theory = np.full(shape, np.nan), np.full(shape[:2], np.nan)
    rows: list[tuple[Any, ...]] = []
    with call.parts(costs) as parts, ThreadPoolExecutor(processors) as pool:
        for i, name in enumerate(sizes.activations):
            for j, (d, n) in enumerate(points):
                chain = Chain(d, n, name)
                found = parts.run(
                    _compared, chain, rng=call.generator, executor=pool, **sizes.settings
                )
                theory[i, j] = MeanField(chain).fixed_point().rate
                cells: list[Any] = []
                for row in found.rows[1:]:
                    one = row.estimate
                    if one is not None:
                        values[i, j, ESTIMATORS.index(row.name)] = ends(one)
                    cells.append(one and rate_as_estimate(one))
                rows.append((name, d, n, float(theory[i, j]), *cells))
    return _Measured(points, values, theory, rows)


def _compared(chain: Chain, *, progress: Progress, **settings: Any) -> Comparison:
    """Compare without progress: the estimators would report one after the other, each from 0."""
    return compare(chain, **settings)


def _finding(name: str, found: NDArray[np.float64], theory: NDArray[np.float64]) -> str:
    """Compare one estimator, (activations, points, 3), with the mean field."""
    low, high = found[..., 1], found[..., 2]
    known = np.isfinite(low)
    inside = int(((low <= theory) & (theory <= high))[known].sum())
    gap = np.abs(found[..., 0] - theory)[known]
    if not gap.size:
        return f"{name}: no estimate."
    return (
        f"{name}: the mean field is in {inside} of {gap.size} intervals at 95 %; median "
        f"difference {np.median(gap):.2g}."
    )


def _data(sizes: Sizes, call: Call, found: _Measured) -> xarray.Dataset:
    chosen_points = {
        "batch": [found.points.index((WIDTH, n)) for n in sizes.batches],
        "width": [found.points.index((d, BATCH)) for d in sizes.widths],
    }
    variables: dict[str, Variable] = {}
    for axis, along in chosen_points.items():
        for end, suffix in enumerate(("", "_low", "_high")):
            variables[f"rate_by_{axis}{suffix}"] = Variable(
                ("activation", axis, "estimator"), found.rates[..., end][:, along],
                "rate" + suffix.replace("_", ", end of 95 %: "),
            )  # fmt: skip
        variables[f"mean_field_by_{axis}"] = Variable(
            ("activation", axis), found.theory[:, along], "rate of the mean field"
        )
    return dataset(
        variables,
        {
            "activation": Variable(("activation",), list(sizes.activations), "activation", ""),
            "estimator": Variable(("estimator",), list(ESTIMATORS), "estimator", ""),
            "batch": Variable(("batch",), list(sizes.batches), "batch n", "samples"),
            "width": Variable(("width",), list(sizes.widths), "width d", "neurons"),
        },
        call,
        {"width_fixed": WIDTH, "batch_fixed": BATCH, "norm": "batch"},
    )


def _draw(data: xarray.Dataset, figure: Figure) -> None:
    names = data["activation"].values
    axes = axes_of(figure, 2, len(names), width=5.6, height=3.2)
    label_outer(axes, axes.size, "", "factor per layer")
    estimators = data["estimator"].values
    fixed = {
        "batch": f"d = {data.attrs['width_fixed']}", "width": f"n = {data.attrs['batch_fixed']}"
    }  # fmt: skip
    for row, name in zip(axes, names, strict=True):
        for ax, axis in zip(row, ("batch", "width"), strict=True):
            one, x = data.sel(activation=name), data[axis].values
            for k, (colour, which) in enumerate(zip(COLOURS, estimators, strict=False)):
                found = curve(one.sel(estimator=which), f"rate_by_{axis}").T
                shifted = x * 1.03 ** (k - 2)  # so that points do not hide each other
                estimates(ax, shifted, *found, colour=colour, label=which)
            field = one[f"mean_field_by_{axis}"]
            ax.plot(x, field, "k--", linewidth=1.2, label="mean field")
            ax.set_xscale("log")
            plain_ticks(ax.xaxis, x)
            ax.set_title(f"{name}, {fixed[axis]}", loc="left", fontsize="medium")
    axes[-1, 0].set_xlabel("batch $n$")
    axes[-1, 1].set_xlabel("width $d$")
    figure.suptitle("Rates of mixing, with 95 % intervals")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3)
