"""Rank collapse, Prop. 19: without batch norm the gradients of all samples become parallel."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from bnmc.chain.chain import Chain
from bnmc.experiments import kit, pictures
from bnmc.experiments.kit import Dataset, Drawing, Experiment, Float64Array, Progress, Run
from bnmc.experiments.sizes import Builtin
from bnmc.experiments.statistics import short_interval
from bnmc.gradients import backpropagate

#: The networks, with their norms.
_NETWORKS = {"vanilla": "none", "batch norm": "batch"}

#: Gains that keep the size of representations without a norm.
_GAINS = {"relu": math.sqrt(2.0)}


class Sizes(NamedTuple):
    """Sizes of the figure.

    batch: batch size, and number of classes
    """

    width: int = 32
    batch: int = 10
    depth: int = 256
    networks: int = 50
    activations: tuple[Builtin, ...] = ("linear", "relu")


@kit.figure("gradients-directions", Sizes(), width=128, depth=1024, networks=200)
def directions(run: Run, sizes: Sizes) -> Experiment:
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
    depth, middle = sizes.depth, sizes.depth // 2

    def moduli(name: str, network: str, progress: Progress) -> tuple[Float64Array, Float64Array]:
        """Return mean moduli of cosines, (networks, layers), of readout and of hidden weights."""
        norm = _NETWORKS[network]
        gain = _GAINS.get(name, 1.0) if norm == "none" else 1.0
        chain = Chain(sizes.width, sizes.batch, name, norm=norm, gain=gain)
        passed = backpropagate(
            chain, depth, chains=sizes.networks, loss="cross-entropy",
            labels=np.arange(chain.batch), observables=("gram", "delta_gram"),
            **run.options(progress),
        )  # fmt: skip
        grams = passed["gram"]
        lengths = np.sqrt(np.diagonal(grams, axis1=-2, axis2=-1))
        with np.errstate(invalid="ignore"):
            cosines = grams / lengths[..., :, None] / lengths[..., None, :]
        return _mean_of_pairs(cosines), _mean_of_pairs(passed.cosines())

    results = kit.Results(
        run, activation=sizes.activations, network=_NETWORKS, layer=np.arange(1, depth + 1),
        weight_layer=np.arange(1, depth),
    )  # fmt: skip
    per = ("activation", "network")
    parts = run.parts(moduli, results.points(*per))
    readout = results.add_means(
        "readout", (*per, "layer"), kit.entry(parts, 0),
        "mean modulus of the cosine of gradients of two samples, readout",
    )  # fmt: skip
    hidden = results.add_means(
        "hidden", (*per, "weight_layer"), kit.entry(parts, 1), "the same, hidden weights"
    )
    table = kit.table_of({
        f"readout after {depth} layers": readout.at(layer=-1),
        f"weights {middle}": hidden.at(weight_layer=middle - 1),
    })  # fmt: skip
    findings = (
        f"{name}, {network}: the mean modulus of the cosine between gradients of samples is "
        f"{short_interval(last)} for the readout after {depth} layers, and "
        f"{short_interval(inner)} for the weights of layer {middle}."
        for name, network, last, inner in table.rows
    )
    return results.experiment(
        f"Directions of gradients, width {sizes.width}, batch {sizes.batch}", table, findings,
        _draw, width=sizes.width, batch=sizes.batch, depth=depth, chains=sizes.networks,
        loss="cross-entropy",
    )  # fmt: skip


def _mean_of_pairs(cosines: Float64Array) -> Float64Array:
    """Return the mean modulus over pairs of samples, (networks, layers).

    A sample whose activations or errors vanish has no direction and is left out.
    """
    first, second = np.triu_indices(cosines.shape[-1], 1)
    means: Float64Array = np.nanmean(np.abs(cosines[..., first, second]), axis=-1)
    return means


def _draw(data: Dataset, figure: Drawing) -> None:
    names = data["activation"].values
    axes = pictures.axes_of(figure, 2, len(names), height=3.4)
    layers = {"readout": "layer", "hidden": "weight_layer"}
    for row, name in zip(axes, names, strict=True):
        for ax, (kind, axis) in zip(row, layers.items(), strict=True):
            pictures.lines(ax, data.sel(activation=name), kind, axis, by="network")
            of = "readout after layer" if kind == "readout" else "hidden weights"
            title = f"{name}: {of} $\\ell$"
            pictures.finish(ax, title, r"layer $\ell$", "mean |cosine|", ylim=(0.0, 1.02))
        row[0].legend(fontsize="small")
    text = "Cosines between gradients of samples, width {width}"
    figure.suptitle(pictures.about(data, text))
