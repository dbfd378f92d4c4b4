"""Curves over the epochs: bands over networks, variables of a dataset, and panels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnmc.estimate.estimate import Estimate
from bnmc.experiments.data import Variable, curve, dataset, with_ends
from bnmc.experiments.parts import Call
from bnmc.experiments.pictures import draw_band
from bnmc.experiments.statistics import banded, mean_of_band
from bnmc.experiments.training.images import Images

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes

__all__ = ["CHANCE", "LONG_NAMES", "Axis", "bands", "cell", "draw_curves", "training_dataset"]

Float64Array = NDArray[np.float64]

#: Accuracy of a network that has learnt nothing, with ten classes of equal size.
CHANCE = 0.1

#: Numbers of a training, by the names of `train`; those of layers are of the last hidden one.
LONG_NAMES = {
    "loss": "cross-entropy of the training images",
    "accuracy": "accuracy on the training images",
    "rank": "rank of the last hidden layer",
    "rank_bound": "r of the last hidden layer",
    "orthogonality_gap": "orthogonality gap of the last hidden layer",
    "mean_correlation": "mean cosine in the last hidden layer",
    "gradient_norm": "norm of the gradient by the first weights",
}


class Axis(NamedTuple):
    """One axis of a dataset: its name, its coordinates, and their description."""

    name: str
    values: Sequence[Any]
    long_name: str


def bands(
    results: Iterable[dict[str, Float64Array]], name: str, shape: tuple[int, ...]
) -> Float64Array:
    """Return means over networks with their intervals, shape (*shape, records, 3).

    Parameters
    ----------
    results : iterable of dict
        As `trained` returns them, one for each entry of `shape` in C order.
    name : str
        A key of `LONG_NAMES`.
    shape : tuple of int
    """
    at = 0 if name == "gradient_norm" else -1
    found = [banded(one[name] if one[name].ndim == 2 else one[name][..., at]) for one in results]
    return np.reshape(found, (*shape, *found[0].shape))


def cell(band: Float64Array, networks: int) -> Estimate | str:
    """Return one mean of `bands`, shape (3,), for a table: "diverged" if a network diverged."""
    return mean_of_band(band, networks) if np.isfinite(band).all() else "diverged"


def training_dataset(
    call: Call,
    results: Sequence[dict[str, Float64Array]],
    axes: Sequence[Axis],
    names: Iterable[str],
    images: Images,
    settings: dict[str, Any],
) -> xarray.Dataset:
    """Return the dataset of trained networks: the curves, and the learning rates.

    Parameters
    ----------
    call : Call
    results : sequence of dict
        As `trained` returns them, in C order of the axes.
    axes : sequence of Axis
        Axes before that of the epochs.
    names : iterable of str
        Keys of `LONG_NAMES`.
    images : Images
    settings : dict
        Further attributes.
    """
    shape = tuple(len(one.values) for one in axes)
    over = tuple(one.name for one in axes)
    variables: dict[str, Variable] = {}
    for name in names:
        values = bands(results, name, shape)
        variables |= with_ends(name, (*over, "epoch"), values, LONG_NAMES[name])
    rates = np.reshape([float(one["rate"]) for one in results], shape)
    variables["rate"] = Variable(over, rates, "learning rate")
    coordinates = {
        one.name: Variable((one.name,), list(one.values), one.long_name, _units(one))
        for one in axes
    }
    coordinates["epoch"] = Variable(("epoch",), results[0]["epoch"][0], "epochs of training")
    about = {"images": f"{images.name}, {len(images.labels)} images"}
    return dataset(variables, coordinates, call, {**settings, **about})


def draw_curves(
    ax: Axes,
    data: xarray.Dataset,
    name: str,
    lines: Iterable[tuple[tuple[int, ...], str, Any, str]],
) -> None:
    """Draw curves over the epochs with their bands.

    Parameters
    ----------
    ax : matplotlib.axes.Axes
    data : xarray.Dataset
    name : str
    lines : iterable of tuple
        Index before the axis of epochs, label, colour and line style.
    """
    for index, label, colour, style in lines:
        values = curve(data, name)[index]
        draw_band(ax, data.epoch.values, values, colour, label, linestyle=style)
    ax.set(xlabel="epoch", ylabel=LONG_NAMES[name])


def _units(axis: Axis) -> str:
    return "" if isinstance(axis.values[0], str) else "1"
