"""Figs. 3, 4 and 7: orthogonality in training, and training from orthogonal representations."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np

from bnmc._support.extras import import_extra
from bnmc.errors import ArgumentError
from bnmc.experiments import kit, pictures
from bnmc.experiments.kit import Dataset, Drawing, Experiment, Float64Array, Run
from bnmc.experiments.sizes import Several
from bnmc.experiments.statistics import banded, short_interval
from bnmc.experiments.training.comparison import compare
from bnmc.experiments.training.images import Images
from bnmc.experiments.training.networks import convolutions_of, mlp, xavier_
from bnmc.experiments.training.runs import Case, Curves, Preparation, Training, or_diverged
from bnmc.torch.orthogonalizing import POWERS, orthogonalize_

if TYPE_CHECKING:
    import torch

#: Labels of the starts of training without batch normalization, in Figs. 4 and 7.
_STARTS = ("Xavier", "orthogonal start")


# --- Fig. 3


class _DepthSizes(NamedTuple):
    """Sizes of the figure."""

    width: int = 48
    depths: tuple[int, ...] = (4, 8, 16, 24)
    batch: Several = 64
    images: int = 640
    epochs: int = 16
    every: int = 2
    rate: float = 0.03
    chains: Several = 5


@kit.figure(
    "orthogonalizes-3", _DepthSizes(), trains=True, torch=True,
    width=800, depths=(14, 29, 44, 59, 74),
    batch=500, images=50_000, epochs=30, every=1, rate=0.01,
)  # fmt: skip
def fig_3(run: Run, sizes: _DepthSizes) -> Experiment:
    """Fig. 3: loss and orthogonality gap while networks of several depths are trained.

    ReLU networks without batch normalization and without biases start from Xavier's weights with
    gain √2, and SGD trains them.  The paper uses CIFAR-10 (``data=``), width 800, batch size 500,
    15 to 75 layers with the readout, 30 epochs, and learning rate .01; `full` has these sizes.
    Grey values are scaled to [−1, 1].

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
    training = Training(run, sizes, (sizes.rate,), sizes.every, (2.0, -1.0))
    features = training.images.features
    cases = {
        (depth,): Case(partial(_xavier, features, sizes.width, depth), cost=depth + 1.0)
        for depth in sizes.depths
    }
    names = ("loss", "accuracy", "orthogonality_gap")
    curves = Curves(training, cases, names, depth=sizes.depths)
    columns = {
        f"{text} {when}": or_diverged(curves.results, column)
        for text, name in (("gap", "orthogonality_gap"), ("loss", "loss"))
        for when, column in (("before", curves.before(name)), ("after", curves.after(name)))
    }
    gaps = [curves.samples[case]["orthogonality_gap"] for case in cases]
    return curves.results.experiment(
        f"Loss and orthogonality gap in training, width {sizes.width}, {training.images.name}",
        kit.table_of(columns, heads=("hidden layers",)),
        _findings(curves, np.stack([banded(gap[:, 1] - gap[:, 0]) for gap in gaps]), sizes.batch),
        _draw, **training.attributes(), width=sizes.width,
    )  # fmt: skip


def _findings(curves: Curves, changes: Float64Array, batch: int) -> tuple[str, ...]:
    """Compare depths; `changes` are those of the gap of each network until the second record."""
    gap, loss = (curves.columns[name].values for name in ("orthogonality_gap", "loss"))
    depths, epochs = curves.results.axes["depth"], curves.results.axes["epoch"]
    most = np.sqrt(1 - 1 / batch)
    return (
        f"Before training the gap is {short_interval(gap[0, 0])} at {depths[0]} hidden layers and "
        f"{short_interval(gap[-1, 0])} at {depths[-1]}; at most it is {most:.3g}.",
        f"After {epochs[-1]:.0f} epochs the loss is {short_interval(loss[0, -1])} at {depths[0]} "
        f"hidden layers and {short_interval(loss[-1, -1])} at {depths[-1]}.",
        f"In the first {epochs[1]:.0f} epochs the gap falls, with a 95 % interval of the change "
        f"below 0, at these numbers of hidden layers: {_where_it_falls(depths, changes)}.",
        f"After {epochs[-1]:.0f} epochs the gap is {short_interval(gap[0, -1])} at {depths[0]} "
        f"hidden layers and {short_interval(gap[-1, -1])} at {depths[-1]}.",
    )


def _where_it_falls(depths: Sequence[int], changes: Float64Array) -> str:
    """Return the depths at which the gap falls, those at which it rises, and the others."""
    at = dict(zip(map(str, depths), changes, strict=True))
    fell = [depth for depth, (_, _, high) in at.items() if high < 0]
    rose = [depth for depth, (_, low, _) in at.items() if low > 0]
    others = [depth for depth in at if depth not in (*fell, *rose)]
    words = {"it rises at": rose, "undecided at": others}
    return "; ".join([
        ", ".join(fell) or "none",
        *(f"{verb} {', '.join(where)}" for verb, where in words.items() if where),
    ])  # fmt: skip


def _draw(data: Dataset, figure: Drawing) -> None:
    titles = {"loss": "Training", "orthogonality_gap": "Orthogonality"}
    for ax, (name, title) in zip(pictures.axes_of(figure, 2)[0], titles.items(), strict=True):
        pictures.lines(ax, data, name, "epoch", by="depth", text="{} hidden layers")
        text = data[name].attrs["long_name"]
        pictures.finish(ax, title, "epoch", text, ylim=(0, None), legend=True)
    figure.suptitle(pictures.about(data, "ReLU networks without norm, width {width}, {images}"))


# --- Fig. 4


class _PerceptronSizes(NamedTuple):
    """Sizes of the figure.

    power: power p of the singular values, -1, -0.5 or 0.5
    """

    width: int = 48
    depths: tuple[Several, ...] = (4, 8, 12)
    batch: Several = 64
    images: int = 640
    epochs: int = 8
    every: int = 2
    power: Annotated[float, {"low": -1.0, "high": 0.5}] = -0.5
    rates: tuple[float, ...] = (0.01, 0.03, 0.1)
    chains: Several = 5


@kit.figure(
    "orthogonalizes-4", _PerceptronSizes(), trains=True, torch=True,
    width=800, depths=(14, 29, 44, 59, 74),
    batch=500, images=50_000, epochs=30, every=1, rates=(0.01,), chains=4,
)  # fmt: skip
def fig_4(run: Run, sizes: _PerceptronSizes) -> Experiment:
    """Fig. 4: training from orthogonal representations, without batch normalization, and with it.

    ReLU networks of several depths are trained by SGD from Xavier's weights, from weights that make
    the representations of 3 × width images orthogonal layer by layer (`bnmc.torch.orthogonalize_`),
    and from Xavier's weights with batch normalization.  The paper uses CIFAR-10 (``data=``), width
    800, batch size 500, 15 to 75 layers with the readout, 30 epochs, learning rate .01 and 4
    networks; `full` has these sizes.

    Expected by the paper: the loss after the orthogonal start does not depend on the depth, so
    batch normalization is not needed.

    Three powers p of the singular values are in print: −½ (eq. 6 and the code for convolutions), −1
    (the code for perceptrons) and +½ (the text of a notebook); here p is −½ by default.  The
    authors' matrices are slices of orthogonal ones, and only nearly orthogonal; here they are
    orthogonal.  As theirs, the orthogonal start has outputs near 0.

    Weights that undo the contraction of ReLU amplify gradients.  So the gradient by the first
    weights grows exponentially with depth, as with batch normalization, and deep networks need
    small learning rates.

    Returns
    -------
    Experiment

    Examples
    --------
    >>> from bnmc.experiments import orthogonalizes
    >>> found = orthogonalizes.fig_4()  # doctest: +SKIP
    >>> found.data["loss"].dims  # doctest: +SKIP
    ('start', 'depth', 'epoch')
    """
    training = Training(run, sizes, sizes.rates, sizes.every, (2.0, -1.0))
    return compare(
        training, partial(_xavier, training.images.features, sizes.width), _STARTS,
        _orthogonal_start(3 * sizes.width, sizes.power), kit.Axis(sizes.depths, "hidden layers"),
        "orthogonality_gap", width=sizes.width, power=sizes.power,
    )  # fmt: skip


# --- Fig. 7


class _ConvolutionSizes(NamedTuple):
    """Sizes of the figure.

    further: numbers of further convolutions, which follow the last of the stages
    orthogonalized: images that the orthogonal start sees
    """

    stages: tuple[tuple[int, ...], ...] = ((8,), (8,))
    further: tuple[int, ...] = (2, 6)
    images: int = 384
    batch: Several = 64
    orthogonalized: int = 256
    epochs: int = 8
    every: int = 2
    rates: tuple[float, ...] = (0.03, 0.1)
    chains: Several = 5


@kit.figure(
    "orthogonalizes-7", _ConvolutionSizes(), trains=True, torch=True,
    stages=((64,), (192,), (192, 256, 256)),
    further=(15, 75), images=50_000, batch=30, epochs=20, every=1, rates=(0.001,), chains=4,
)  # fmt: skip
def fig_7(run: Run, sizes: _ConvolutionSizes) -> Experiment:
    """Fig. 7: training convolutional networks from orthogonal representations.

    ReLU networks of 3 × 3 convolutions are trained from Xavier's weights, from weights that make
    the patches of some images orthogonal layer by layer (`bnmc.torch.orthogonalize_`), and from
    Xavier's weights with batch normalization.  The paper uses CIFAR-10 (``data=``) and an
    AlexNet-like network with 15 or 75 further convolutions of 256 channels, batch size 30, 20
    epochs and learning rate .001; `full` has these sizes, with one linear layer as classifier and
    no dropout.

    Recorded by the authors, loss after 20 epochs: for 75 further convolutions 1.91 from Xavier's
    weights and 1.30 from orthogonal ones; for 15 of them .92 and 1.17.  So the orthogonal start is
    the worse one for the shallower network, which the paper does not say.

    The orthogonal start makes the channels orthogonal over all positions of all samples.  Whole
    samples, over channels and positions, remain aligned: after ReLU all entries are positive.  So
    the gap of the last layer, which classifies, is not smaller than from Xavier's weights, and the
    claim is not tested at the default sizes.

    The authors change the layers with equal numbers of input and output channels.  Here all
    convolutions after the first change.

    Returns
    -------
    Experiment

    Examples
    --------
    >>> from bnmc.experiments import orthogonalizes
    >>> found = orthogonalizes.fig_7()  # doctest: +SKIP
    >>> found.data["loss"].dims  # doctest: +SKIP
    ('start', 'depth', 'epoch')
    """
    training = Training(run, sizes, sizes.rates, sizes.every)
    return compare(
        training, partial(_network, training.images, sizes.stages), _STARTS,
        _orthogonal_start(sizes.orthogonalized, -0.5),
        kit.Axis(sizes.further, "further convolutions"), "orthogonality_gap",
        channels=sizes.stages[-1][-1],
    )  # fmt: skip


def _network(
    images: Images, stages: tuple[tuple[int, ...], ...], further: int, norm: str = "none"
) -> torch.nn.Module:
    """Return a network with further convolutions in its last stage."""
    *others, last = stages
    longer = (*others, last + last[-1:] * further)
    return xavier_(convolutions_of(images, longer)(norm=norm), gain=np.sqrt(2.0))


# --- networks and starts


def _xavier(features: int, width: int, depth: int, norm: str = "none") -> torch.nn.Module:
    """Return a ReLU network without biases, with Xavier's weights and gain √2."""
    return xavier_(mlp(features, width, depth, norm=norm, bias=False), gain=np.sqrt(2.0))


def _orthogonal_start(samples: int, power: float) -> Preparation:
    """Return a preparation: orthogonal representations of some images, with small outputs.

    The weights of the hidden layers after the first become those of `bnmc.torch.orthogonalize_`.
    The authors scale each of these layers such that its output has the norm 1 over all `samples`
    and neurons, not the root mean square 1.  For ReLU networks without biases this is one factor of
    all later layers, so it is applied to the second weight layer.

    Parameters
    ----------
    samples : int
        Number of images that are orthogonalized.
    power : {-1, -0.5, 0.5}

    Raises
    ------
    ArgumentError
        If it is another power.
    """
    if power not in POWERS:
        raise ArgumentError("power", power, ", ".join(f"{allowed:g}" for allowed in POWERS))

    def prepare(model: Any, inputs: Any, rng: np.random.Generator) -> None:
        torch: Any = import_extra("torch", "torch")
        some = inputs[:samples]
        orthogonalize_(model, some, power=power, shrinkage=0.0, rng=rng)
        kinds = torch.nn.Linear, torch.nn.Conv2d
        _, second, *_ = (module for module in model if isinstance(module, kinds))
        with torch.no_grad():
            sizes: list[int] = []
            hook = second.register_forward_hook(lambda *given: sizes.append(given[2].numel()))
            model(some)
            hook.remove()
            second.weight.div_(np.sqrt(sizes[0]))

    return prepare
