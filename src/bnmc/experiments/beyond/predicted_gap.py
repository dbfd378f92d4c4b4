"""The mean square distance from the fixed point over its prediction, against the width."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnmc._kernels.scalar.activations import BUILTIN
from bnmc._support.progress import Progress
from bnmc.chain.chain import Chain
from bnmc.errors import NotMixing
from bnmc.estimate.estimate import Estimate
from bnmc.experiments.data import Variable, curve, dataset, with_ends
from bnmc.experiments.experiment import Experiment, Table, with_parameters
from bnmc.experiments.parts import Call, Store, chosen
from bnmc.experiments.pictures import axes_of
from bnmc.experiments.statistics import interval
from bnmc.mean_field import Fluctuations
from bnmc.mean_field.field import MeanField
from bnmc.plot.axes import COLOURS, estimates, plain_ticks
from bnmc.simulation.observables import Distance
from bnmc.simulation.run import simulate

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

__all__ = ["DEFAULT", "FULL", "Sizes", "experiment", "gap"]


class Sizes(NamedTuple):
    """Activations, batch sizes, widths, networks, and the first and last layer of the average."""

    activations: tuple[str, ...]
    batches: tuple[int, ...]
    widths: tuple[int, ...]
    chains: int
    first: int
    last: int


DEFAULT = Sizes(
    ("linear", "relu", "tanh", "sigmoid", "selu", "gelu"),
    (5, 10), (100, 300, 1000, 3000), 32, 61, 260,
)  # fmt: skip
FULL = Sizes(
    tuple(BUILTIN), (5, 10, 32), (100, 300, 1000, 3000, 10_000, 30_000, 100_000), 64, 201, 600
)

#: Markers of activations of the same colour.
_MARKERS = ("o", "s", "^")


@with_parameters
def gap(
    *,
    full: bool = False,
    rng: Any = 0,
    progress: bool | Progress = False,
    threads: int | None = None,
    store: Store = None,
) -> Experiment:
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
    call = Call("gap", full, rng, progress, threads, store)
    return experiment(chosen(DEFAULT, FULL, full), call)


class _Found(NamedTuple):
    """Predictions, NaN if there is none, and ratios with the ends of their intervals."""

    constant: NDArray[np.float64]
    error: NDArray[np.float64]
    ratio: NDArray[np.float64]
    widest: dict[tuple[str, int], Estimate]


def experiment(sizes: Sizes, call: Call) -> Experiment:
    """Run the experiment with these sizes."""
    found = _measure(sizes, call)
    table = Table(
        ("activation", "batch", "predicted, times d", *(f"d = {d}" for d in sizes.widths)),
        tuple(
            (name, batch, float(found.constant[i, j]), *found.ratio[i, j, :, 0].tolist())
            for i, name in enumerate(sizes.activations)
            for j, batch in enumerate(sizes.batches)
            if np.isfinite(found.constant[i, j])
        ),
    )
    title = "The distance from the fixed point, measured over predicted"
    data = _data(sizes, call, found)
    return Experiment(call.name, title, data, table, _findings(sizes, found), _draw)


def _measure(sizes: Sizes, call: Call) -> _Found:
    shape = len(sizes.activations), len(sizes.batches)
    constant, error = np.full(shape, np.nan), np.full(shape, np.nan)
    ratio = np.full((*shape, len(sizes.widths), 3), np.nan)
    widest: dict[tuple[str, int], Estimate] = {}
    cases = [(i, j) for i in range(shape[0]) for j in range(shape[1])]
    costs = [float(d * sizes.batches[j]) for _, j in cases for d in sizes.widths]
    with call.parts(costs) as parts:
        for i, j in cases:
            name, batch = sizes.activations[i], sizes.batches[j]
            law = _prediction(name, batch)
            if law is None:
                continue
            predicted = law.mean_square(1)
            constant[i, j], error[i, j] = predicted.value, predicted.stderr
            for k, width in enumerate(sizes.widths):
                values = parts.run(
                    simulate, Chain(width, batch, name), sizes.last, chains=sizes.chains,
                    burn_in=sizes.first, rng=call.generator,
                    observables=Distance(law.fixed_point.gram), threads=call.threads,
                )["distance"]  # fmt: skip
                squares = np.square(values).mean(axis=1) * width / predicted.value
                one = Estimate.from_samples(squares)
                ratio[i, j, k] = one.value, *one.ci
                widest[name, batch] = one
    return _Found(constant, error, ratio, widest)


def _prediction(name: str, batch: int) -> Fluctuations | None:
    """Return the prediction; None if the fixed point is unstable."""
    try:
        return MeanField(Chain(2, batch, name)).fluctuations()
    except NotMixing:
        return None


def _findings(sizes: Sizes, found: _Found) -> tuple[str, ...]:
    narrow, wide = sizes.widths[0], sizes.widths[-1]
    name, batch = max(found.widest, key=lambda case: abs(found.widest[case].value - 1.0))
    values = found.ratio[..., 0, 0]
    findings = [
        f"At width {narrow} the mean square is {np.nanmin(values):.3g} to {np.nanmax(values):.3g} "
        "times the predicted one.",
        f"At width {wide} the ratio that differs most from 1 is that of {name}, batch {batch}: "
        f"{interval(found.widest[name, batch])}.",
    ]
    inside = sum(one.ci[0] <= 1.0 <= one.ci[1] for one in found.widest.values())
    findings.append(
        f"The 95 % intervals of {inside} of {len(found.widest)} ratios at width {wide} contain 1."
    )
    unstable = [
        f"{activation}, batch {n}"
        for i, activation in enumerate(sizes.activations)
        for j, n in enumerate(sizes.batches)
        if np.isnan(found.constant[i, j])
    ]
    if unstable:
        findings.append(f"Unstable, without a prediction: {'; '.join(unstable)}.")
    return tuple(findings)


def _data(sizes: Sizes, call: Call, found: _Found) -> xarray.Dataset:
    per, along = ("activation", "batch"), ("activation", "batch", "width")
    return dataset(
        {
            "constant": Variable(per, found.constant, "predicted mean square times the width"),
            "error": Variable(per, found.error, "numerical error of the prediction"),
            **with_ends("ratio", along, found.ratio, "measured over predicted mean square"),
        },
        {
            "activation": Variable(("activation",), list(sizes.activations), "activation", ""),
            "batch": Variable(("batch",), list(sizes.batches), "batch n", "samples"),
            "width": Variable(("width",), list(sizes.widths), "width d", "neurons"),
        },
        call,
        {"norm": "batch", "networks": sizes.chains, "layers": [sizes.first, sizes.last]},
    )


def _draw(data: xarray.Dataset, figure: Figure) -> None:
    batches, widths = data["batch"].values, data["width"].values
    axes = axes_of(figure, len(batches), width=4.8, height=4.2)[0]
    count = len(data["activation"])
    for ax, batch in zip(axes, batches, strict=True):
        ax.set(xscale="log", xlabel="width $d$")
        for index, name in enumerate(data["activation"].values):
            found = curve(data.sel(activation=name, batch=batch), "ratio").T
            if np.isnan(found).any():
                continue
            # The points of one width are beside each other.
            shift = 1.25 ** ((index - 0.5 * (count - 1)) / count)
            estimates(
                ax, widths * shift, *found, colour=COLOURS[index % len(COLOURS)], label=str(name),
                fmt=_MARKERS[index // len(COLOURS) % len(_MARKERS)],
            )  # fmt: skip
        ax.axhline(1.0, color="black", linewidth=0.8)
        plain_ticks(ax.xaxis, widths)
        ax.set_title(f"n = {batch}", loc="left")
    axes[0].set_ylabel("measured over predicted")
    axes[-1].legend(fontsize="small")
    figure.suptitle(r"$E\|G - G_*\|_F^2$ over its prediction, norm batch, 95 % intervals")
