"""Rank and orthogonality gap of convolutional networks over depth, with and without batch norm."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnmc._support.progress import Progress
from bnmc.chain.activations import Activation, as_activation
from bnmc.chain.chain import Chain
from bnmc.experiments.data import Variable, curve, dataset, with_ends
from bnmc.experiments.experiment import Experiment, Table, with_parameters
from bnmc.experiments.parts import Call, Store, chosen
from bnmc.experiments.pictures import axes_of, draw_band, logarithmic
from bnmc.experiments.statistics import banded, mean_of_band, short_interval
from bnmc.plot.axes import COLOURS
from bnmc.simulation.run import simulate

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

__all__ = ["DEFAULT", "FULL", "LAYERS", "NORMS", "Sizes", "conv", "experiment"]


class Sizes(NamedTuple):
    """Activations, channels, samples, pixels, depth and networks; every how many layers."""

    activations: tuple[str | Activation, ...]
    channels: int
    samples: int
    shape: tuple[int, int]
    depth: int
    networks: int
    every: int


DEFAULT = Sizes(("relu", "tanh"), 128, 2, (4, 4), 100, 10, 5)
FULL = Sizes(("relu", "tanh", "linear"), 256, 4, (8, 8), 1000, 20, 25)

KERNEL = (3, 3)
LAYERS = ("convolution", "fully connected")
NORMS = ("batch", "none")

#: What is measured of each Gram matrix.
MEASURES = ("rank_bound", "orthogonality_gap")


@with_parameters
def conv(
    *,
    full: bool = False,
    rng: Any = 0,
    progress: bool | Progress = False,
    threads: int | None = None,
    store: Store = None,
) -> Experiment:
    r"""Rank and orthogonality gap of convolutional networks, with and without batch norm.

    Daneshmand, Joudaki and Bach, *Batch normalization orthogonalizes representations in deep random
    networks* (arXiv 2106.03970), name convolutions as an open case.  Networks of 128 channels with
    circular 3 × 3 convolutions take 2 images of 4 × 4 independent pixels through 100 layers
    (``full``: 256 channels, 4 images of 8 × 8 pixels, 1000 layers).  Fully connected networks of
    the same width take as many samples as there are pixels in all images.  Weights have variance
    1/(channels · 9) and 1/width; without norm twice that for relu, which keeps the scale.

    The Gram matrix G is over all n pixels of all images.  The rank bound is
    :math:`(\mathrm{tr}\, G)^2 / \|G\|_F^2`, which is at most the rank, and the orthogonality gap is
    :math:`\|G / \mathrm{tr}\, G - I / n\|_F`.

    Expected: without norm, the pixels become equal with depth, and the rank bound of relu tends to
    1 in both kinds of networks.  Batch norm prevents this.  The mean field of both kinds has the
    same fixed point, as an average over taps does not change equal correlations.  The average
    reduces the fluctuations about it, so the rank bound of odd activations is larger than in fully
    connected networks, and the orthogonality gap smaller.

    Returns
    -------
    Experiment
        Variables by ``activation``, ``layers`` (the kind of layers), ``norm`` and ``layer``.
    """
    call = Call("conv", full, rng, progress, threads, store)
    return experiment(chosen(DEFAULT, FULL, full), call)


def experiment(sizes: Sizes, call: Call) -> Experiment:
    """Run the experiment with these sizes."""
    activations = [as_activation(one) for one in sizes.activations]
    bands = _run(sizes, call, activations)
    last = f"layer {sizes.depth}"
    heads = ("activation", "layers", "norm", "rank bound, layer 0", last, "gap, layer 0", last)
    rows = [
        (
            activation.name, layers, norm,
            *(
                mean_of_band(bands[measure, k, i, j, layer], sizes.networks)
                for measure in range(len(MEASURES))
                for layer in (0, -1)
            ),
        )
        for k, activation in enumerate(activations)
        for i, layers in enumerate(LAYERS)
        for j, norm in enumerate(NORMS)
    ]  # fmt: skip
    findings = tuple(
        _finding(activation.name, bands[:, k], sizes) for k, activation in enumerate(activations)
    )
    title = "Convolutions with and without batch norm: rank and orthogonality over depth"
    data = _data(sizes, call, activations, bands)
    return Experiment(call.name, title, data, Table(heads, tuple(rows)), findings, _draw)


def _run(sizes: Sizes, call: Call, activations: list[Activation]) -> NDArray[np.float64]:
    """Return (measures, activations, layers, norms, recorded layers, 3)."""
    kinds = len(activations), len(LAYERS), len(NORMS)
    bands = np.empty((len(MEASURES), *kinds, _recorded(sizes).size, 3))
    with call.parts([1.0] * math.prod(kinds)) as parts:
        for place in np.ndindex(*kinds):
            chain = _chain(sizes, activations[place[0]], LAYERS[place[1]], NORMS[place[2]])
            bands[:, *place] = parts.run(_measured, chain, sizes, call.generator, call.processors())
    return bands


def _chain(sizes: Sizes, activation: Activation, layers: str, norm: str) -> Chain:
    is_relu = activation.builtin and activation.name == "relu"
    gain = math.sqrt(2.0) if norm == "none" and is_relu else 1.0
    if layers == "convolution":
        return Chain.conv(
            sizes.channels, sizes.samples, activation, shape=sizes.shape, kernel=KERNEL, norm=norm,
            gain=gain,
        )  # fmt: skip
    return Chain(sizes.channels, _pixels(sizes), activation, norm=norm, gain=gain)


def _pixels(sizes: Sizes) -> int:
    """Return the number of pixels of all images."""
    return sizes.samples * math.prod(sizes.shape)


def _recorded(sizes: Sizes) -> NDArray[np.int64]:
    return np.append(np.arange(0, sizes.depth, sizes.every), sizes.depth)


def _measured(
    chain: Chain, sizes: Sizes, generator: np.random.Generator, threads: int, *, progress: Progress
) -> NDArray[np.float64]:
    """Return the bands of all measures, (measures, recorded layers, 3)."""
    run = simulate(
        chain, sizes.depth, chains=sizes.networks, rng=generator, observables=MEASURES,
        every=sizes.every, threads=threads, progress=progress,
    )  # fmt: skip
    return np.stack([banded(run[name]) for name in MEASURES])


def _finding(name: str, bands: NDArray[np.float64], sizes: Sizes) -> str:
    """Return a sentence about bands, (measures, layers, norms, recorded layers, 3)."""
    rank, gap = bands[:, :, :, -1]
    return (
        f"{name}: after {sizes.depth} layers of convolutions the rank bound of {_pixels(sizes)} "
        f"pixels is {short_interval(rank[0, 0])} with batch norm and "
        f"{short_interval(rank[0, 1])} without; fully connected, "
        f"{short_interval(rank[1, 0])} and {short_interval(rank[1, 1])}. With batch norm the "
        f"orthogonality gap of convolutions is {gap[0, 0, 0] / gap[1, 0, 0]:.2f} times that of "
        "fully connected layers."
    )


def _data(
    sizes: Sizes, call: Call, activations: list[Activation], bands: NDArray[np.float64]
) -> xarray.Dataset:
    per = ("activation", "layers", "norm", "layer")
    rank, gap = bands
    return dataset(
        {
            **with_ends("rank", per, rank, "rank bound"),
            **with_ends("gap", per, gap, "orthogonality gap"),
        },
        {
            "activation": Variable(
                ("activation",), [one.name for one in activations], "activation", ""
            ),
            "layers": Variable(("layers",), list(LAYERS), "kind of layers", ""),
            "norm": Variable(("norm",), list(NORMS), "normalization", ""),
            "layer": Variable(("layer",), _recorded(sizes), "layer", "layers"),
        },
        call,
        {
            "channels": sizes.channels, "samples": sizes.samples, "networks": sizes.networks,
            "height": sizes.shape[0], "width": sizes.shape[1],
        },
    )  # fmt: skip


def _draw(data: xarray.Dataset, figure: Figure) -> None:
    names, layers = data["activation"].values, data["layer"].values
    axes = axes_of(figure, len(names), 2, width=4.4, height=3.4)
    for column, name in enumerate(names):
        words = {"rank": "rank bound", "gap": "orthogonality gap"}
        for ax, (quantity, title) in zip(axes[:, column], words.items(), strict=True):
            for colour, kind in zip(COLOURS, data["layers"].values, strict=False):
                for norm, style in zip(data["norm"].values, ("-", "--"), strict=True):
                    one = data.sel(activation=name, layers=kind, norm=norm)
                    label = f"{kind}, {'batch norm' if norm == 'batch' else 'no norm'}"
                    draw_band(ax, layers, curve(one, quantity), colour, label, linestyle=style)
            ax.set(xlabel="layer")
            ax.set_title(f"{name}, {title}", loc="left")
            logarithmic(ax)
    axes[0, 0].set_ylabel("rank bound")
    axes[1, 0].set_ylabel("orthogonality gap")
    axes[0, 0].legend(loc="center right", fontsize="small")
