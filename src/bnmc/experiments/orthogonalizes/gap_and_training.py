"""Fig. 3: loss and orthogonality gap while networks of several depths are trained."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnmc._support.progress import Progress
from bnmc.experiments.data import curve
from bnmc.experiments.experiment import Experiment, Table, with_parameters
from bnmc.experiments.parts import Call, Store, chosen
from bnmc.experiments.pictures import axes_of
from bnmc.experiments.statistics import banded, short_interval
from bnmc.experiments.training.curves import Axis, cell, draw_curves, training_dataset
from bnmc.experiments.training.networks import mlp, xavier_
from bnmc.experiments.training.runs import Case, images_of, trained
from bnmc.experiments.training.trainer import Plan
from bnmc.plot.axes import COLOURS

if TYPE_CHECKING:
    import torch
    import xarray
    from matplotlib.figure import Figure

__all__ = ["DEFAULT", "FULL", "Sizes", "experiment", "fig_3", "xavier"]


class Sizes(NamedTuple):
    """Width, hidden layers, batch size, images, epochs, epochs between records, rate, networks."""

    width: int
    depths: tuple[int, ...]
    batch: int
    images: int
    epochs: int
    every: int
    rate: float
    networks: int


DEFAULT = Sizes(48, (4, 8, 16, 24), 64, 640, 16, 2, 0.03, 5)
FULL = Sizes(800, (14, 29, 44, 59, 74), 500, 50_000, 30, 1, 0.01, 5)


@with_parameters
def fig_3(
    *,
    full: bool = False,
    rng: Any = 0,
    progress: bool | Progress = False,
    threads: int | None = None,
    store: Store = None,
    data: Store = None,
) -> Experiment:
    """Fig. 3: loss and orthogonality gap while networks of several depths are trained.

    ReLU networks without batch normalization and without biases start from Xavier's weights with
    gain √2, and SGD trains them.  The paper uses CIFAR-10 (``data=``), width 800, batch size 500,
    15 to 75 layers with the readout, 30 epochs, and learning rate .01; `full` has these sizes.  The
    default has 640 digits, width 48, batch size 64, 4 to 24 hidden layers, 16 epochs, and learning
    rate .03.  Grey values are scaled to [−1, 1].

    Expected: the deeper the network, the larger the orthogonality gap of its last hidden layer
    before training, and the slower the training.  The paper states that SGD first makes the
    representations more orthogonal: the gap falls in the first epochs.

    The gap is ``‖G/Tr G − I/n‖`` of the Gram matrix of the last hidden layer for one batch of n
    samples, as the paper defines it; it is at most √(1 − 1/n).  The published code computes another
    number, from the singular values of the 10 logits of each batch.

    Returns
    -------
    Experiment

    Examples
    --------
    >>> from bnmc.experiments import orthogonalizes
    >>> found = orthogonalizes.fig_3()  # doctest: +SKIP
    >>> found.data["loss"].dims  # doctest: +SKIP
    ('depth', 'epoch')
    """
    call = Call("orthogonalizes-3", full, rng, progress, threads, store, data)
    return experiment(chosen(DEFAULT, FULL, full), call)


def experiment(sizes: Sizes, call: Call) -> Experiment:
    """Run the experiment with these sizes."""
    images = images_of(call, sizes.images, sizes.batch)
    cases = [
        Case(partial(xavier, images.features, sizes.width, depth), (sizes.rate,), cost=depth + 1.0)
        for depth in sizes.depths
    ]
    plan = Plan(sizes.epochs, sizes.batch, sizes.rate, sizes.every)
    results = trained(call, cases, images, plan, sizes.networks, (2.0, -1.0))
    data = training_dataset(
        call, results, [Axis("depth", sizes.depths, "hidden layers")],
        ("loss", "accuracy", "orthogonality_gap"), images,
        {"width": sizes.width, "batch": sizes.batch, "networks": sizes.networks},
    )  # fmt: skip
    gap, loss = curve(data, "orthogonality_gap"), curve(data, "loss")
    columns = ("hidden layers", "gap before", "gap after", "loss before", "loss after")
    rows = tuple(
        (
            depth,
            *(
                cell(band[row, record], sizes.networks)
                for band in (gap, loss)
                for record in (0, -1)
            ),
        )
        for row, depth in enumerate(sizes.depths)
    )
    title = f"Loss and orthogonality gap in training, width {sizes.width}, {images.name}"
    gaps = [one["orthogonality_gap"][..., -1] for one in results]
    changes = np.stack([banded(one[:, 1] - one[:, 0]) for one in gaps])
    return Experiment(call.name, title, data, Table(columns, rows), _findings(data, changes), _draw)


def xavier(features: int, width: int, depth: int, norm: str = "none") -> torch.nn.Module:
    """Return a ReLU network without biases, with Xavier's weights and gain √2."""
    return xavier_(mlp(features, width, depth, norm=norm, bias=False), gain=np.sqrt(2.0))


def _findings(data: xarray.Dataset, changes: NDArray[np.float64]) -> tuple[str, ...]:
    """Compare depths; `changes` are those of the gap of each network until the second record."""
    gap, loss = curve(data, "orthogonality_gap"), curve(data, "loss")
    depths, epochs = data.depth.values, data.epoch.values
    most = np.sqrt(1 - 1 / data.attrs["batch"])
    fell = [str(depth) for depth, one in zip(depths, changes, strict=True) if one[2] < 0]
    rose = [str(depth) for depth, one in zip(depths, changes, strict=True) if one[1] > 0]
    rest = [str(depth) for depth in depths if str(depth) not in (*fell, *rose)]
    others = (f"; it rises at {', '.join(rose)}" if rose else "") + (
        f"; undecided at {', '.join(rest)}" if rest else ""
    )
    return (
        f"Before training the gap is {short_interval(gap[0, 0])} at {depths[0]} hidden layers and "
        f"{short_interval(gap[-1, 0])} at {depths[-1]}; at most it is {most:.3g}.",
        f"After {epochs[-1]:.0f} epochs the loss is {short_interval(loss[0, -1])} at {depths[0]} "
        f"hidden layers and {short_interval(loss[-1, -1])} at {depths[-1]}.",
        f"In the first {epochs[1]:.0f} epochs the gap falls, with a 95 % interval of the change "
        f"below 0, at these numbers of hidden layers: {', '.join(fell) or 'none'}"
        f"{others}.",
        f"After {epochs[-1]:.0f} epochs the gap is {short_interval(gap[0, -1])} at {depths[0]} "
        f"hidden layers and {short_interval(gap[-1, -1])} at {depths[-1]}.",
    )


def _draw(data: xarray.Dataset, figure: Figure) -> None:
    axes = axes_of(figure, 2)[0]
    lines = [
        ((row,), f"{depth} hidden layers", COLOURS[row % len(COLOURS)], "-")
        for row, depth in enumerate(data.depth.values)
    ]
    for ax, name, title in zip(
        axes, ("loss", "orthogonality_gap"), ("Training", "Orthogonality"), strict=True
    ):
        draw_curves(ax, data, name, lines)
        ax.set_title(title, loc="left")
        ax.set_ylim(0, None)
        ax.legend(fontsize="small")
    figure.suptitle(
        f"ReLU networks without norm, width {data.attrs['width']}, {data.attrs['images']}: mean of "
        f"{data.attrs['networks']} networks, 95 % interval"
    )
