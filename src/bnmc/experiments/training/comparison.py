"""Starts of training: networks with several initial weights and depths, trained and compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnmc.experiments.data import curve
from bnmc.experiments.experiment import Experiment, Table
from bnmc.experiments.parts import Call
from bnmc.experiments.pictures import axes_of, draw_band
from bnmc.experiments.statistics import short_interval
from bnmc.experiments.training.curves import Axis, cell, draw_curves, training_dataset
from bnmc.experiments.training.images import Images
from bnmc.experiments.training.runs import Case, trained
from bnmc.experiments.training.trainer import Plan
from bnmc.plot.axes import COLOURS

if TYPE_CHECKING:
    import torch
    import xarray
    from matplotlib.figure import Figure

__all__ = ["Comparison", "compare"]


class Comparison(NamedTuple):
    """What is compared.

    Attributes
    ----------
    starts : mapping of str to (callable, callable or None)
        Networks by label: a function of the depth, and the preparation of a `Case`.
    depths : tuple of int
    depth_name : str
        What the depths count.
    rates : tuple of float
        Learning rates; each start has its best one at each depth.
    networks : int
    scale : (float, float)
        Factor of the grey values, and the constant added to them.
    own : str
        Label of the start that is compared with the others.
    summary : str
        Number of the last hidden layer that the picture shows before training.
    """

    starts: Mapping[str, tuple[Callable[[int], torch.nn.Module], Any]]
    depths: tuple[int, ...]
    depth_name: str
    rates: tuple[float, ...]
    networks: int
    scale: tuple[float, float]
    own: str
    summary: str = "orthogonality_gap"


def compare(
    call: Call, compared: Comparison, images: Images, plan: Plan, settings: dict[str, Any]
) -> Experiment:
    """Train all networks, and return the experiment without its title's details."""
    cases = [
        Case(partial(build, depth), compared.rates, prepare, depth + 1.0)
        for build, prepare in compared.starts.values()
        for depth in compared.depths
    ]
    results = trained(call, cases, images, plan, compared.networks, compared.scale)
    axes = [
        Axis("start", list(compared.starts), "start"),
        Axis("depth", compared.depths, compared.depth_name),
    ]
    names = ("loss", "accuracy", compared.summary, "gradient_norm")
    about = {
        "batch": plan.batch, "networks": compared.networks, "summary": compared.summary,
        "own": compared.own, **settings,
    }  # fmt: skip
    data = training_dataset(call, results, axes, names, images, about)
    loss, summary = curve(data, "loss"), curve(data, compared.summary)
    table = Table(
        ("start", compared.depth_name, "learning rate", f"{_short(data)} before", "loss after"),
        tuple(
            (
                start, depth, float(data.rate[row, column]), float(summary[row, column, 0, 0]),
                cell(loss[row, column, -1], compared.networks),
            )
            for row, start in enumerate(compared.starts)
            for column, depth in enumerate(compared.depths)
        ),
    )  # fmt: skip
    title = f"Starts of training, {images.name}"
    return Experiment(call.name, title, data, table, _findings(data), _draw)


def _findings(data: xarray.Dataset) -> tuple[str, ...]:
    """Compare one start with each other one at each depth."""
    name, depth_name = data.attrs["own"], data.depth.attrs["long_name"]
    loss, summary, gradient = (
        curve(data, one) for one in ("loss", data.attrs["summary"], "gradient_norm")
    )
    starts, depths = [str(one) for one in data.start.values], data.depth.values
    own = starts.index(name)
    deepest = f"{depths[-1]} {depth_name}"
    others = ", ".join(
        f"{short_interval(summary[row, -1, 0])} with {start}"
        for row, start in enumerate(starts)
        if row != own
    )
    found = [
        f"Before training at {deepest} the {_short(data)} of the last hidden layer is "
        f"{short_interval(summary[own, -1, 0])} with {name}; {others}."
    ]
    for row, start in enumerate(starts):
        if row != own:
            words = ", ".join(
                f"{_verdict(loss[own, column, -1], loss[row, column, -1])} at {depth}"
                for column, depth in enumerate(depths)
            )
            note = " (undecided: the intervals overlap)" if "undecided" in words else ""
            found.append(
                f"Final loss with {name} beside that with {start}, by {depth_name}: {words}{note}."
            )
    growth = gradient[own, -1, 0, 0] / gradient[own, 0, 0, 0]
    found.append(
        f"Before training the norm of the gradient by the first weights with {name} is "
        f"{gradient[own, -1, 0, 0]:.2g} at {deepest}, {growth:.2g} times that at {depths[0]}."
    )
    return tuple(found)


def _short(data: xarray.Dataset) -> str:
    return {"orthogonality_gap": "orthogonality gap", "rank_bound": "r"}[data.attrs["summary"]]


def _verdict(own: NDArray[np.float64], other: NDArray[np.float64]) -> str:
    """Return a word for two means with their ends: smaller, larger, or undecided."""
    if not np.isfinite([*own, *other]).all():
        return "diverged" if not np.isfinite(own).all() else "smaller (the other diverged)"
    if own[2] < other[1]:
        return "smaller"
    return "larger" if own[1] > other[2] else "undecided"


def _draw(data: xarray.Dataset, figure: Figure) -> None:
    depths = data.depth.values
    columns = len(depths) + 1
    axes = axes_of(figure, columns, width=3.7)[0]
    starts = [str(one) for one in data.start.values]
    for column, depth in enumerate(depths):
        lines = [((row, column), start, COLOURS[row], "-") for row, start in enumerate(starts)]
        draw_curves(axes[column], data, "loss", lines)
        axes[column].set_title(f"{depth} {data.depth.attrs['long_name']}", loc="left")
    for row, start in enumerate(starts):
        values = curve(data, data.attrs["summary"])[row, :, 0]
        draw_band(axes[-1], depths, values, COLOURS[row], start, marker="o")
    axes[-1].set_title("Before training", loc="left")
    axes[-1].set(xlabel=data.depth.attrs["long_name"], ylabel=_short(data), ylim=(0, None))
    for ax in axes[:-1]:
        ax.set_ylim(0, 3.5)
    for ax in axes:
        ax.legend(fontsize="small")
    figure.suptitle(
        f"Starts of training, {data.attrs['images']}: mean of {data.attrs['networks']} networks, "
        "95 % interval"
    )
