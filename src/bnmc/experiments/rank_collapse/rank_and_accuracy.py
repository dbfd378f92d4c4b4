"""Fig. 1: rank before and accuracy after training against depth, with and without batch norm."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnmc._support.progress import Progress
from bnmc.experiments.data import Variable, curve, dataset, with_ends
from bnmc.experiments.experiment import Experiment, Table, with_parameters
from bnmc.experiments.parts import Call, Store, chosen
from bnmc.experiments.pictures import axes_of, draw_band
from bnmc.experiments.statistics import banded, short_interval
from bnmc.experiments.training.curves import CHANCE, cell
from bnmc.experiments.training.networks import mlp
from bnmc.experiments.training.runs import Case, images_of, trained
from bnmc.experiments.training.trainer import Plan
from bnmc.plot.axes import COLOURS

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

__all__ = ["DEFAULT", "FULL", "Sizes", "experiment", "fig_1"]

#: Networks of the figure, by their normalization.
NETWORKS = {"without norm": "none", "batch norm": "batch"}


class Sizes(NamedTuple):
    """Width, hidden layers, batch size, images, epochs, learning rates, networks per case."""

    width: int
    depths: tuple[int, ...]
    batch: int
    images: int
    epochs: int
    rates: tuple[float, ...]
    networks: int


DEFAULT = Sizes(64, (1, 3, 6, 10, 16), 64, 1280, 5, (0.1,), 5)
FULL = Sizes(128, tuple(range(1, 34, 2)), 128, 60_000, 75, (0.001, 0.01, 0.1), 5)


@with_parameters
def fig_1(
    *,
    full: bool = False,
    rng: Any = 0,
    progress: bool | Progress = False,
    threads: int | None = None,
    store: Store = None,
    data: Store = None,
) -> Experiment:
    """Fig. 1: rank before and accuracy after training against depth, with and without batch norm.

    ReLU networks with PyTorch's default initialization learn to classify images by SGD.  The paper
    has Fashion-MNIST (``data=``), width and batch size 128, 75 epochs, and 1 to 33 hidden layers;
    `full` has these sizes.  The default has 1280 digits, width and batch size 64,
    and 5 epochs with learning rate 0.1, so a learning rate is not searched.

    Expected: without batch normalization the rank of the last hidden layer falls to 1 within 16
    layers, and the accuracy to chance.  With batch normalization both stay.  The paper's code
    records these ranks at 1, 3, …, 15 hidden layers without batch normalization, at width and batch
    128: about 125, 100, 68, 55, 34, 15, 3, 1.

    The print and its code differ: networks with batch normalization use Adam there, and two of
    their accuracies are replaced by hand (.874 by .953, .849 by .925).  Here all networks use
    SGD.  The rank counts singular values above max(n, d) 2⁻²³ of the largest, as ``matrix_rank``
    does in float32.  Batch normalization has the statistics of the batch, also for accuracies.

    The figure also shows r, which needs no threshold.  PyTorch's default initialization
    has biases and shrinks the weights, so all samples approach one common vector: r is near 1 long
    before the rank is.

    Returns
    -------
    Experiment

    Examples
    --------
    >>> from bnmc.experiments import rank_collapse
    >>> found = rank_collapse.fig_1()  # doctest: +SKIP
    >>> float(found.data["rank"].sel(network="batch norm", depth=16))  # doctest: +SKIP
    64.0
    """
    call = Call("rank-collapse-1", full, rng, progress, threads, store, data)
    return experiment(chosen(DEFAULT, FULL, full), call)


def experiment(sizes: Sizes, call: Call) -> Experiment:
    """Run the experiment with these sizes."""
    found = images_of(call, sizes.images, sizes.batch)
    cases = [
        Case(
            partial(mlp, found.features, sizes.width, depth, norm=norm), sizes.rates,
            cost=depth + 1.0,
        )
        for norm in NETWORKS.values()
        for depth in sizes.depths
    ]  # fmt: skip
    plan = Plan(sizes.epochs, sizes.batch, sizes.rates[0], every=max(sizes.epochs, 1))
    results = trained(call, cases, found, plan, sizes.networks)
    shape = (len(NETWORKS), len(sizes.depths), 3)
    bands = {
        "rank": [banded(one["rank"][:, 0, -1]) for one in results],
        "rank_bound": [banded(one["rank_bound"][:, 0, -1]) for one in results],
        "trained_rank": [banded(one["rank"][:, -1, -1]) for one in results],
        "accuracy": [banded(one["accuracy"][:, -1]) for one in results],
        "loss": [banded(one["loss"][:, -1]) for one in results],
    }
    shaped = {name: np.reshape(values, shape) for name, values in bands.items()}
    over = ("network", "depth")
    names = {
        "rank": "rank of the last hidden layer before training",
        "rank_bound": "r of the last hidden layer before training",
        "trained_rank": "rank of the last hidden layer after training",
        "accuracy": "accuracy on the training images after training",
        "loss": "cross-entropy after training",
    }
    variables: dict[str, Variable] = {}
    for name, long_name in names.items():
        variables |= with_ends(name, over, shaped[name], long_name)
    rates = np.reshape([float(one["rate"]) for one in results], shape[:2])
    data = dataset(
        {**variables, "rate": Variable(over, rates, "learning rate")},
        {
            "network": Variable(("network",), list(NETWORKS), "network", ""),
            "depth": Variable(("depth",), list(sizes.depths), "hidden layers"),
        },
        call,
        {
            "width": sizes.width, "batch": sizes.batch, "epochs": sizes.epochs,
            "networks": sizes.networks, "images": f"{found.name}, {len(found.labels)} images",
        },
    )  # fmt: skip
    table = Table(
        ("network", "hidden layers", "rank", "r", "accuracy after training"),
        tuple(
            (
                network, depth, float(shaped["rank"][row, column, 0]),
                float(shaped["rank_bound"][row, column, 0]),
                cell(shaped["accuracy"][row, column], sizes.networks),
            )
            for row, network in enumerate(NETWORKS)
            for column, depth in enumerate(sizes.depths)
        ),
    )  # fmt: skip
    title = f"Rank and accuracy against depth, width {sizes.width}, {found.name}"
    return Experiment(call.name, title, data, table, _findings(shaped, sizes), _draw)


def _findings(bands: dict[str, NDArray[np.float64]], sizes: Sizes) -> tuple[str, ...]:
    """Compare the two networks, and rank with accuracy."""
    depths = sizes.depths
    rank, accuracy = bands["rank"], bands["accuracy"]
    least = float(rank[1, :, 0].min())
    above = np.count_nonzero(accuracy[1, :, 1] > accuracy[0, :, 2])
    below = np.count_nonzero(accuracy[1, :, 2] < accuracy[0, :, 1])
    undecided = len(depths) - above - below
    others = (f", at {below} below" if below else "") + (
        f", at {undecided} undecided" if undecided else ""
    )
    found = [
        f"Before training the rank, at most {min(sizes.batch, sizes.width)}, goes from "
        f"{rank[0, 0, 0]:.3g} at {_layers(depths[0])} to {rank[0, -1, 0]:.3g} at "
        f"{_layers(depths[-1])} without batch norm.  With batch norm it is at least {least:.3g}.",
        f"After training the accuracy at {_layers(depths[-1])} is "
        f"{short_interval(accuracy[0, -1])} without batch norm and "
        f"{short_interval(accuracy[1, -1])} with it; chance is {CHANCE}.",
        f"At {above} of {len(depths)} depths the interval of the accuracy with batch norm is above "
        f"that without{others}.",
    ]
    failed = np.flatnonzero(accuracy[0, :, 2] < 2 * CHANCE)
    if not failed.size:
        unclear = np.flatnonzero(accuracy[0, :, 1] < 2 * CHANCE)
        if unclear.size:
            where = ", ".join(_layers(depths[one]) for one in unclear)
            end = f"Whether the networks learn without batch norm is undecided at {where}."
        else:
            end = "Without batch norm the networks learn at each of these depths."
        return (*found, end)
    first = int(failed[0])
    bound = float(bands["rank_bound"][0, first, 0])
    found.append(
        f"Without batch norm the accuracy is below {2 * CHANCE} from {_layers(depths[first])} on, "
        f"where the rank is {rank[0, first, 0]:.3g} and r is {bound:.3g}."
    )
    if rank[0, first, 0] > 2 > bound:
        found.append(
            "So training fails before the rank, at the threshold of float32, has collapsed; r has."
        )
    return tuple(found)


def _layers(depth: int) -> str:
    return f"{depth} hidden layer{'s' if depth > 1 else ''}"


def _draw(data: xarray.Dataset, figure: Figure) -> None:
    axes = axes_of(figure, 3, width=4.4)[0]
    depths = data.depth.values
    shown = {
        "rank": ("Before training", "rank of the last hidden layer"),
        "rank_bound": ("Before training", "$r$ of the last hidden layer"),
        "accuracy": (f"After {data.attrs['epochs']} epochs", "accuracy on the training images"),
    }
    for ax, (name, (title, label)) in zip(axes, shown.items(), strict=True):
        for row, network in enumerate(data.network.values):
            draw_band(ax, depths, curve(data, name)[row], COLOURS[row], str(network), marker="o")
        ax.set_title(title, loc="left")
        ax.set(ylabel=label, xlabel="hidden layers", ylim=(0, None))
    axes[2].axhline(CHANCE, color="grey", linestyle=":", linewidth=1, label="chance")
    for ax in axes:
        ax.legend(fontsize="small")
    figure.suptitle(
        f"ReLU networks of width {data.attrs['width']}, {data.attrs['images']}: mean of "
        f"{data.attrs['networks']} networks, 95 % interval"
    )
