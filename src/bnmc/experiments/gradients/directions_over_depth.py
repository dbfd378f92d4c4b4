"""Rank collapse, Prop. 19: without batch norm the gradients of all samples become parallel."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnmc._support.progress import Progress
from bnmc.chain.chain import Chain
from bnmc.experiments.data import Variable, curve, dataset, with_ends
from bnmc.experiments.experiment import Experiment, Table, with_parameters
from bnmc.experiments.parts import Call, Store, chosen
from bnmc.experiments.pictures import axes_of, draw_band
from bnmc.experiments.statistics import banded, mean_of_band, short_interval
from bnmc.gradients import backpropagate
from bnmc.plot.axes import COLOURS

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

__all__ = ["DEFAULT", "FULL", "Sizes", "directions", "experiment"]

Float64Array = NDArray[np.float64]


class Sizes(NamedTuple):
    """Width, batch size (also the number of classes), layers, networks, and activations."""

    width: int
    batch: int
    depth: int
    chains: int
    activations: tuple[str, ...] = ("linear", "relu")


DEFAULT = Sizes(32, 10, 256, 50)
FULL = Sizes(128, 10, 1024, 200)

#: The networks, with their norms.
_NETWORKS = {"vanilla": "none", "batch norm": "batch"}

#: Gains that keep the size of representations without a norm.
_GAINS = {"relu": math.sqrt(2.0)}


@with_parameters
def directions(
    *,
    full: bool = False,
    rng: Any = 0,
    progress: bool | Progress = False,
    threads: int | None = None,
    store: Store = None,
) -> Experiment:
    r"""Prop. 19 and Fig. 10 of *rank collapse*: directions of gradients of single samples.

    If the representations a_i of all samples in the last layer are collinear, then so are the
    gradients of the samples' losses with respect to the weights of a neuron of the readout (Prop.
    19): they are multiples of a_i.  Fig. 10 shows this while a VGG19 network trains.  Here the
    networks are random: width 32, batch 10 with 10 classes, cross-entropy, 256 layers, 50 networks
    (`full`: width 128, 1024 layers, 200 networks), linear and relu, with batch normalization and
    without it (with gain √2 for relu, which keeps the size of representations).

    The left pictures show the mean over pairs of samples of \|cos(a_i, a_j)\| in layer ℓ: for the
    readout of a network of ℓ layers.  The right pictures show it for the parts of samples of the
    gradient with respect to the hidden weights W_ℓ of the whole network, which is
    :math:`|\cos(δ_i, δ_j) \cos(a_i, a_j)|` (`Backpropagation.cosines`).

    Expected: without normalization the cosines of the readout tend to 1.  For linear networks, this
    takes a number of layers of the order of the width.  With it they stay near those of the mean
    field: .265 in relu networks of batch 10, and 1/9 in linear networks, where fluctuations of the
    size √(batch/width) are larger.  For hidden weights without normalization, gradients align in
    the middle layers, far from the input, where samples differ, and from the loss, where errors
    differ.

    Returns
    -------
    Experiment

    Examples
    --------
    >>> from bnmc.experiments import gradients
    >>> found = gradients.directions()  # doctest: +SKIP
    """
    call = Call("gradients-directions", full, rng, progress, threads, store)
    return experiment(chosen(DEFAULT, FULL, full), call)


def experiment(sizes: Sizes, call: Call) -> Experiment:
    """Run the experiment with these sizes."""
    readout, hidden = _measure(sizes, call)
    data = _data(sizes, call, readout, hidden)
    middle = sizes.depth // 2
    rows = tuple(
        (
            name, network, mean_of_band(readout[a, b, -1], sizes.chains),
            mean_of_band(hidden[a, b, middle - 1], sizes.chains),
        )
        for a, name in enumerate(sizes.activations)
        for b, network in enumerate(_NETWORKS)
    )  # fmt: skip
    table = Table(
        ("activation", "network", f"readout after {sizes.depth} layers", f"weights {middle}"), rows
    )
    findings = tuple(
        f"{name}, {network}: the mean modulus of the cosine between gradients of samples is "
        f"{short_interval(readout[a, b, -1])} for the readout after {sizes.depth} layers, and "
        f"{short_interval(hidden[a, b, middle - 1])} for the weights of layer {middle}."
        for a, name in enumerate(sizes.activations)
        for b, network in enumerate(_NETWORKS)
    )
    title = f"Directions of gradients, width {sizes.width}, batch {sizes.batch}"
    return Experiment(call.name, title, data, table, findings, _draw)


def _measure(sizes: Sizes, call: Call) -> tuple[Float64Array, Float64Array]:
    """Return mean moduli with intervals of readout and hidden weights.

    The shapes are (activations, networks, layers, 3): of layers 1, …, depth of the readout, and of
    weights 1, …, depth − 1.
    """
    readout, hidden = [], []
    with call.parts([1.0] * (len(_NETWORKS) * len(sizes.activations))) as parts:
        for name in sizes.activations:
            for norm in _NETWORKS.values():
                gain = _GAINS.get(name, 1.0) if norm == "none" else 1.0
                chain = Chain(sizes.width, sizes.batch, name, norm=norm, gain=gain)
                found = parts.run(
                    _moduli, chain, sizes.depth, chains=sizes.chains, rng=call.generator,
                    threads=call.threads,
                )  # fmt: skip
                readout.append(banded(found[0]))
                hidden.append(banded(found[1]))
    shape = len(sizes.activations), len(_NETWORKS)
    return (
        np.reshape(readout, (*shape, sizes.depth, 3)),
        np.reshape(hidden, (*shape, sizes.depth - 1, 3)),
    )


def _moduli(chain: Chain, depth: int, **options: Any) -> tuple[Float64Array, Float64Array]:
    """Return mean moduli of cosines, (networks, layers), of readout and of hidden weights."""
    run = backpropagate(
        chain, depth, loss="cross-entropy", labels=np.arange(chain.batch),
        observables=("gram", "delta_gram"), **options,
    )  # fmt: skip
    grams = run["gram"]
    lengths = np.sqrt(np.diagonal(grams, axis1=-2, axis2=-1))
    with np.errstate(invalid="ignore"):
        cosines = grams / lengths[..., :, None] / lengths[..., None, :]
    return _mean_of_pairs(cosines), _mean_of_pairs(run.cosines())


def _mean_of_pairs(cosines: Float64Array) -> Float64Array:
    """Return the mean modulus over pairs of samples, (networks, layers).

    A sample whose activations or errors vanish has no direction and is left out.
    """
    first, second = np.triu_indices(cosines.shape[-1], 1)
    means: Float64Array = np.nanmean(np.abs(cosines[..., first, second]), axis=-1)
    return means


def _data(sizes: Sizes, call: Call, readout: Float64Array, hidden: Float64Array) -> xarray.Dataset:
    over = ("activation", "network")
    return dataset(
        {
            **with_ends(
                "readout", (*over, "layer"), readout,
                "mean modulus of the cosine of gradients of two samples, readout",
            ),
            **with_ends(
                "hidden", (*over, "weight_layer"), hidden, "the same, hidden weights",
            ),
        },
        {
            "activation": Variable(("activation",), list(sizes.activations), "activation", ""),
            "network": Variable(("network",), list(_NETWORKS), "network", ""),
            "layer": Variable(("layer",), np.arange(1, sizes.depth + 1), "layer"),
            "weight_layer": Variable(("weight_layer",), np.arange(1, sizes.depth), "layer"),
        },
        call,
        {
            "width": sizes.width, "batch": sizes.batch, "depth": sizes.depth,
            "chains": sizes.chains, "loss": "cross-entropy",
        },
    )  # fmt: skip


def _draw(data: xarray.Dataset, figure: Figure) -> None:
    names = data["activation"].values
    axes = axes_of(figure, 2, len(names), height=3.4)
    for row, name in enumerate(names):
        for column, (kind, layers) in enumerate((("readout", "layer"), ("hidden", "weight_layer"))):
            ax = axes[row, column]
            for index, network in enumerate(data["network"].values):
                draw_band(
                    ax, data[layers].values, curve(data, kind)[row, index], COLOURS[index],
                    str(network),
                )  # fmt: skip
            of = "readout after layer" if kind == "readout" else "hidden weights"
            ax.set_title(f"{name}: {of} $\\ell$", loc="left")
            ax.set(ylim=(0.0, 1.02), xlabel=r"layer $\ell$", ylabel="mean |cosine|")
        axes[row, 0].legend(fontsize="small")
    attrs = data.attrs
    figure.suptitle(
        f"Cosines between gradients of samples, width {attrs['width']}: "
        f"mean of {attrs['chains']} networks, 95 % interval"
    )
