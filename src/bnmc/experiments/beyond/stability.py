"""Activations and batch sizes for which the symmetric fixed point is stable."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bnmc._kernels.scalar.activations import BUILTIN
from bnmc._support.progress import Progress
from bnmc.chain.chain import Chain
from bnmc.errors import NotMixing
from bnmc.estimate.estimate import Estimate
from bnmc.experiments.data import Variable, curve, dataset, ends, with_ends
from bnmc.experiments.experiment import Experiment, Table, with_parameters
from bnmc.experiments.parts import Call, Store, chosen
from bnmc.experiments.pictures import axes_of
from bnmc.experiments.statistics import interval, rate_as_estimate
from bnmc.mean_field import Stability, atlas
from bnmc.mean_field.field import MeanField
from bnmc.mixing import contraction
from bnmc.plot.axes import COLOURS, estimates, mark_unstable, plain_ticks

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

__all__ = ["DEFAULT", "FULL", "Sizes", "experiment", "stability_atlas"]


class Sizes(NamedTuple):
    """Activations and batch sizes of the mean field; those, width and pairs of the measurement."""

    activations: tuple[str, ...]
    batches: tuple[int, ...]
    measured: tuple[str, ...]
    at: tuple[int, ...]
    width: int
    pairs: int


DEFAULT = Sizes(
    (
        "linear", "relu", "leaky_relu", "tanh", "sigmoid", "sin", "elu", "selu", "gelu", "silu",
    ),
    (4, 6, 8, 12, 16, 24, 32, 48, 64), ("relu", "tanh"), (4, 8, 16), 2000, 32,
)  # fmt: skip
FULL = Sizes(
    tuple(BUILTIN), (3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 96, 128),
    ("relu", "tanh", "sigmoid", "silu"), (4, 6, 8, 12, 16), 10_000, 32,
)  # fmt: skip


@with_parameters
def stability_atlas(
    *,
    full: bool = False,
    rng: Any = 0,
    progress: bool | Progress = False,
    threads: int | None = None,
    store: Store = None,
) -> Experiment:
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
    call = Call("stability-atlas", full, rng, progress, threads, store)
    return experiment(chosen(DEFAULT, FULL, full), call)


class _Rates(NamedTuple):
    """Stability by activation; contraction by activation and batch, None if pairs did not meet."""

    entries: tuple[Stability, ...]
    measured: dict[tuple[str, int], Estimate | None]

    def unstable_batches(self) -> dict[str, list[int]]:
        """Return by activation the batch sizes at which the fixed point becomes unstable."""
        return {
            entry.activation: [one.batch for one in entry.crossings if not one.stable]
            for entry in self.entries
        }


def experiment(sizes: Sizes, call: Call) -> Experiment:
    """Run the experiment with these sizes."""
    found = _measure(sizes, call)
    unstable = found.unstable_batches()
    batches = found.entries[0].batches
    table = Table(
        ("activation", *(f"n = {batch}" for batch in batches), "unstable from"),
        tuple(
            (
                entry.activation,
                *(float(rate) for rate in entry.rates),
                *(unstable[entry.activation] or (None,)),
            )
            for entry in found.entries
        ),
    )
    title = "Batch sizes with a stable symmetric fixed point"
    data = _data(sizes, call, found)
    return Experiment(call.name, title, data, table, _findings(found), _draw)


def _measure(sizes: Sizes, call: Call) -> _Rates:
    processors = call.processors()
    pairs = [(name, batch) for name in sizes.measured for batch in sizes.at]
    costs = [10.0] + [0.1 * batch**1.5 for _, batch in pairs]
    measured: dict[tuple[str, int], Estimate | None] = {}
    with call.parts(costs) as parts, ThreadPoolExecutor(processors) as pool:
        parts.next()
        entries = atlas(sizes.activations, sizes.batches)
        for name, batch in pairs:
            try:
                rate = parts.run(
                    contraction, Chain(sizes.width, batch, name), pairs=sizes.pairs,
                    rng=call.generator, executor=pool,
                ).rate_estimate  # fmt: skip
                measured[name, batch] = rate_as_estimate(rate)
            except NotMixing:
                measured[name, batch] = None
    return _Rates(entries, measured)


def _findings(found: _Rates) -> tuple[str, ...]:
    unstable = [
        f"{name} from {batches[0]}" for name, batches in found.unstable_batches().items() if batches
    ]
    findings = [
        "Unstable as the batch grows: " + (", ".join(unstable) if unstable else "none of these")
        + "."
    ]  # fmt: skip
    for (name, batch), one in found.measured.items():
        theory = MeanField(Chain(2, batch, name)).fixed_point().rate
        said = "the pairs did not meet" if one is None else f"contraction {interval(one)}"
        findings.append(f"{name}, batch {batch}: {said}, mean field {theory:.4g}.")
    return tuple(findings)


def _data(sizes: Sizes, call: Call, found: _Rates) -> xarray.Dataset:
    per, along = ("activation", "batch"), ("measured", "measured_batch")
    entries, unstable = found.entries, found.unstable_batches()
    eigenvalues = np.array([entry.eigenvalues for entry in entries])
    nothing = np.full(3, np.nan)
    contractions = [
        [nothing if one is None else ends(one) for one in row]
        for row in ([found.measured[name, batch] for batch in sizes.at] for name in sizes.measured)
    ]
    return dataset(
        {
            "rate": Variable(per, [entry.rates for entry in entries], "rate of the mean field"),
            "lambda_L": Variable(per, eigenvalues[:, :, 0], "eigenvalue λ_L"),
            "lambda_M": Variable(per, eigenvalues[:, :, 1], "eigenvalue λ_M"),
            "error": Variable(
                per, [[point.error for point in entry.points] for entry in entries],
                "error of the quadrature, relative",
            ),
            "unstable_from": Variable(
                ("activation",), [(batches or [0])[0] for batches in unstable.values()],
                "first unstable batch, 0 for none", "samples",
            ),
            **with_ends("contraction", along, contractions, "measured contraction"),
        },
        {
            "activation": Variable(("activation",), list(unstable), "activation", ""),
            "batch": Variable(("batch",), entries[0].batches, "batch n", "samples"),
            "measured": Variable(("measured",), list(sizes.measured), "activation", ""),
            "measured_batch": Variable(("measured_batch",), list(sizes.at), "batch n", "samples"),
        },
        call,
        {"width": sizes.width, "norm": "batch", "pairs": sizes.pairs},
    )  # fmt: skip


def _draw(data: xarray.Dataset, figure: Figure) -> None:
    left, right = axes_of(figure, 2, width=6.2, height=4.8)[0]
    image = _draw_map(left, data)
    figure.colorbar(image, ax=left, label="factor per layer", extend="min")
    rate = data["rate"]
    names, batches = data["activation"].values, data["batch"].values
    shown = list(data["measured"].values)
    shown += [name for name in ("gelu", "silu") if name in names and name not in shown]
    for colour, name in zip(COLOURS, shown, strict=False):
        right.plot(batches, rate.sel(activation=name), color=colour, label=name)
        if name in data["measured"].values:
            found = curve(data.sel(measured=name), "contraction").T
            estimates(right, data["measured_batch"].values, *found, colour=colour)
    right.plot([], [], "o", color="0.4", markersize=4, label=f"measured, d = {data.attrs['width']}")
    mark_unstable(right)
    right.set(xscale="log", xlabel="batch $n$", ylabel="factor per layer")
    plain_ticks(right.xaxis, batches)
    right.set_title("mean field and measured contraction", loc="left")
    right.legend(loc="lower right")


def _draw_map(ax: Axes, data: xarray.Dataset) -> AxesImage:
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
    ax.set(xlabel="batch $n$")
    ax.set_title("rate of the mean field; unstable right of the bars", loc="left")
    return image
