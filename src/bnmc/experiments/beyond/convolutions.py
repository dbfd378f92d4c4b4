"""Rank and orthogonality gap of convolutional networks over depth, with and without batch norm."""

from __future__ import annotations

import math
from typing import Annotated, NamedTuple, TypeAlias

import numpy as np

from bnmc.chain.activations import as_activation
from bnmc.chain.chain import Chain
from bnmc.experiments import kit, pictures
from bnmc.experiments.kit import Dataset, Drawing, Experiment, Float64Array, Progress, Run
from bnmc.experiments.sizes import Named, Several
from bnmc.experiments.statistics import short_interval
from bnmc.plot.axes import COLOURS, logarithmic
from bnmc.simulation.run import simulate

_KERNEL = (3, 3)

#: Pixels along an axis of an image: at least those of the kernel.
_Pixels: TypeAlias = Annotated[int, {"low": 3}]

_LAYERS = ("convolution", "fully connected")
_NORMS = ("batch", "none")

#: What is measured of each Gram matrix.
_MEASURES = ("rank_bound", "orthogonality_gap")


class Sizes(NamedTuple):
    """Sizes of the figure.

    channels: channels of the convolutions, and width of the fully connected layers
    samples: images
    shape: height and width of an image in pixels
    every: layers between records
    """

    activations: tuple[Named, ...] = ("relu", "tanh")
    channels: int = 128
    samples: int = 2
    shape: tuple[_Pixels, _Pixels] = (4, 4)
    depth: int = 100
    chains: Several = 10
    every: int = 5


@kit.figure(
    "conv", Sizes(), activations=("relu", "tanh", "linear"), channels=256, samples=4, shape=(8, 8),
    depth=1000, chains=20, every=25,
)  # fmt: skip
def conv(run: Run, sizes: Sizes) -> Experiment:
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
    results = kit.Results(
        run, activation=sizes.activations, layers=kit.Axis(_LAYERS, "kind of layers", ""),
        norm=_NORMS, layer=np.append(np.arange(0, sizes.depth, sizes.every), sizes.depth),
    )  # fmt: skip
    per = ("activation", "layers", "norm")
    chains = {case: _chain(sizes, *case) for case in results.points(*per)}

    def measures(
        activation: Named, layers: str, norm: str, progress: Progress
    ) -> tuple[Float64Array, ...]:
        """Return all measures, each (networks, recorded layers)."""
        trajectory = simulate(
            chains[activation, layers, norm], sizes.depth, chains=sizes.chains,
            observables=_MEASURES, every=sizes.every, **run.options(progress),
        )  # fmt: skip
        return tuple(trajectory[name] for name in _MEASURES)

    parts = run.parts(measures, list(chains))
    over = (*per, "layer")
    rank = results.add_means("rank", over, kit.entry(parts, 0), "rank bound")
    gap = results.add_means("gap", over, kit.entry(parts, 1), "orthogonality gap")
    table = kit.table_of({
        "rank bound, layer 0": rank.at(layer=0),
        f"rank bound, layer {sizes.depth}": rank.at(layer=-1),
        "gap, layer 0": gap.at(layer=0), f"gap, layer {sizes.depth}": gap.at(layer=-1),
    })  # fmt: skip
    cells = {row[:3]: (row[4], row[6]) for row in table.rows}
    findings = []
    for activation in sizes.activations:
        name = as_activation(activation).name
        (conv_rank, conv_gap), (bare, _), (full_rank, full_gap), (full_bare, _) = (
            cells[name, layers, norm] for layers in _LAYERS for norm in _NORMS
        )
        findings.append(
            f"{name}: after {sizes.depth} layers of convolutions the rank bound of "
            f"{_pixels(sizes)} pixels is {short_interval(conv_rank)} with batch norm and "
            f"{short_interval(bare)} without; fully connected, {short_interval(full_rank)} and "
            f"{short_interval(full_bare)}. With batch norm the orthogonality gap of convolutions "
            f"is {conv_gap.value / full_gap.value:.2f} times that of fully connected layers."
        )
    height, width = sizes.shape
    return results.experiment(
        "Convolutions with and without batch norm: rank and orthogonality over depth", table,
        findings, _draw, channels=sizes.channels, samples=sizes.samples, chains=sizes.chains,
        height=height, width=width,
    )  # fmt: skip


def _chain(sizes: Sizes, named: Named, layers: str, norm: str) -> Chain:
    activation = as_activation(named)
    is_relu = activation.builtin and activation.name == "relu"
    gain = math.sqrt(2.0) if norm == "none" and is_relu else 1.0
    if layers == "convolution":
        return Chain.conv(
            sizes.channels, sizes.samples, activation, shape=sizes.shape, kernel=_KERNEL, norm=norm,
            gain=gain,
        )  # fmt: skip
    return Chain(sizes.channels, _pixels(sizes), activation, norm=norm, gain=gain)


def _pixels(sizes: Sizes) -> int:
    """Return the number of pixels of all images."""
    return sizes.samples * math.prod(sizes.shape)


def _draw(data: Dataset, figure: Drawing) -> None:
    names, layers = data["activation"].values, data["layer"].values
    axes = pictures.axes_of(figure, len(names), 2, width=4.4, height=3.4)
    for column, name in enumerate(names):
        words = {"rank": "rank bound", "gap": "orthogonality gap"}
        for ax, (quantity, title) in zip(axes[:, column], words.items(), strict=True):
            for colour, kind in zip(COLOURS, data["layers"].values, strict=False):
                for norm, style in zip(data["norm"].values, ("-", "--"), strict=True):
                    values = pictures.curve(
                        data.sel(activation=name, layers=kind, norm=norm), quantity
                    )
                    label = f"{kind}, {'batch norm' if norm == 'batch' else 'no norm'}"
                    pictures.draw_band(ax, layers, values, colour, label, linestyle=style)
            pictures.finish(ax, str(name), "layer", title)
            logarithmic(ax)
    axes[0, 0].legend(loc="center right", fontsize="small")
    figure.suptitle(pictures.about(data, "Convolutions and fully connected layers"))
