"""Figs. 4, 5, 6 and 10: the ranks of networks, and the directions of gradients, in training."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bnmc.errors import ArgumentError
from bnmc.experiments import kit, pictures
from bnmc.experiments.kit import Dataset, Drawing, Experiment, Run
from bnmc.experiments.sizes import Natural, Several
from bnmc.experiments.statistics import overlap_note, short_interval
from bnmc.experiments.training import runs
from bnmc.experiments.training.comparison import compare
from bnmc.experiments.training.networks import (
    VGG19,
    convolutions_of,
    mlp,
    residual,
    xavier_,
)
from bnmc.plot.axes import COLOURS
from bnmc.torch.initializing import break_
from bnmc.torch.layers import weight_matrices
from bnmc.torch.ranks import maximize_rank_

if TYPE_CHECKING:
    import torch

#: Line styles in turn, which show curves that coincide.
_STYLES = ("-", "-", "--", ":")


# --- Fig. 4


class _PretrainedSizes(NamedTuple):
    """Sizes of the figure.

    tests: further images, on which the networks are tested
    batches: batches of the pre-training
    steps: steps of the pre-training for each batch
    pretraining_rate: learning rate of the pre-training
    scale: factor of the grey values
    """

    width: int = 48
    depths: tuple[int, ...] = (4, 14)
    batch: Several = 32
    images: int = 640
    tests: Natural = 320
    epochs: int = 16
    every: int = 2
    batches: int = 5
    steps: int = 40
    pretraining_rate: float = 0.1
    rates: tuple[float, ...] = (0.03, 0.1)
    scale: float = 4.0
    chains: Several = 6


@kit.figure(
    "rank-collapse-4", _PretrainedSizes(), trains=True, torch=True,
    width=128, depths=(4, 8, 16, 32), batch=64,
    images=45_000, tests=5000, epochs=100, every=1, batches=1000, pretraining_rate=0.001,
    rates=(0.001, 0.01), scale=255.0, chains=5,
)  # fmt: skip
def fig_4(run: Run, sizes: _PretrainedSizes) -> Experiment:
    """Figs. 4, 11 and 12: pre-training for the rank beside batch normalization.

    ReLU networks of several depths are trained by SGD: without batch normalization, from weights of
    variance 2/(fan_in + fan_out); from the same after a pre-training without labels that increases
    the rank of the last hidden layer (Algorithm 1, `bnmc.torch.maximize_rank_`); and with batch
    normalization.  The paper uses CIFAR-10 (``data=``) with grey values from 0 to 255, width 128,
    batch size 64, 1000 batches of 40 steps of pre-training with learning rate .001, and then 100
    epochs; `full` has these sizes, and the better one of the learning rates .001 and .01.  Fig. 11
    shows the loss on test images, here dashed: images of the training files that are left out.
    Fig. 12 repeats Fig. 4 with Fashion-MNIST (``data=``).

    Expected by the paper: networks with pre-training learn faster than those with batch
    normalization, the more so the deeper they are.

    Returns
    -------
    Experiment

    Examples
    --------
    >>> from bnmc.experiments import rank_collapse
    >>> found = rank_collapse.fig_4()  # doctest: +SKIP
    >>> found.data["loss"].dims  # doctest: +SKIP
    ('start', 'depth', 'epoch')
    """
    training = runs.Training(
        run, sizes, sizes.rates, sizes.every, (sizes.scale, 0.0), tests=sizes.tests
    )

    def pretrain(model: Any, inputs: Any, rng: np.random.Generator) -> None:
        batches = [
            inputs[rng.choice(len(inputs), sizes.batch, replace=False)]
            for _ in range(sizes.batches)
        ]
        maximize_rank_(model, batches, steps=sizes.steps, learning_rate=sizes.pretraining_rate)

    return compare(
        training, partial(_network, training.images.features, sizes.width),
        ("plain", "pre-training"), pretrain, kit.Axis(sizes.depths, "hidden layers"), "rank_bound",
        width=sizes.width,
    )  # fmt: skip


def _network(features: int, width: int, depth: int, norm: str = "none") -> torch.nn.Module:
    """Return a network with normal weights of variance 2/(fan_in + fan_out)."""
    return xavier_(mlp(features, width, depth, norm=norm), normal=True)


# --- Fig. 5


def _broken(how: str) -> runs.Preparation:
    """Return a preparation that breaks the network (`bnmc.torch.break_`)."""
    return lambda model, inputs, rng: break_(model, how=how, rng=rng)


#: Starts: the normalization, and the preparation, which makes weights positive.
_STARTS: dict[str, tuple[str, runs.Preparation | None]] = {
    "batch norm": ("batch", None),
    "batch norm, not centred": ("batch-uncentred", None),
    "batch norm, positive weights": ("batch", _broken("uniform")),
}

#: The kinds of networks.
_KINDS = ("perceptron", "convolutions", "residual convolutions")


class _BrokenSizes(NamedTuple):
    """Sizes of the figure.

    width: width of the perceptron
    depth: hidden layers of the perceptron
    """

    width: int = 48
    depth: int = 12
    stages: tuple[tuple[int, ...], ...] = ((8, 8), (8, 8), (16, 16))
    batch: Several = 32
    images: int = 320
    epochs: int = 5
    rate: float = 0.05
    chains: Several = 5


@kit.figure(
    "rank-collapse-5", _BrokenSizes(), trains=True, torch=True,
    width=128, depth=32, stages=VGG19, batch=64,
    images=50_000, epochs=75, rate=0.01,
)  # fmt: skip
def fig_5(run: Run, sizes: _BrokenSizes) -> Experiment:
    """Figs. 5, 7 and 13: batch normalization that is broken by asymmetric weights, or not centred.

    A perceptron, a convolutional network like VGG, and one with skip paths like a ResNet, all with
    batch normalization, are trained by SGD from PyTorch's default weights, and from uniform
    positive weights of the same variance.  A third start has batch normalization without centring.
    The paper uses VGG19 (Figs. 5 and 7) and ResNet-50 (Fig. 13) on CIFAR-10 (``data=``), and a
    perceptron in the text; `full` has the convolutions of VGG19, without and with skip paths, and
    one linear layer as classifier.  The training of these figures has no public code, so epochs and
    learning rate of `full` are those of the perceptrons.

    Expected by the paper: positive weights reduce the rank of the last hidden layer and the
    accuracy, although there is batch normalization; centring makes no difference.  For depth 32 the
    authors' code records a rank of 16 in place of 128, and an accuracy of .34 in place of .97.

    The code makes all parameters 2|w|; the paper draws uniform positive weights of the same
    variance (`bnmc.torch.break_` with "uniform"), as here.

    Returns
    -------
    Experiment

    Examples
    --------
    >>> from bnmc.experiments import rank_collapse
    >>> found = rank_collapse.fig_5()  # doctest: +SKIP
    >>> found.data["accuracy"].dims  # doctest: +SKIP
    ('case', 'epoch')
    """
    training = runs.Training(run, sizes, (sizes.rate,))
    builds = (
        partial(mlp, training.images.features, sizes.width, sizes.depth),
        convolutions_of(training.images, sizes.stages),
        convolutions_of(training.images, sizes.stages, residual),
    )
    cases = {
        f"{kind}: {start}": runs.Case(partial(build, norm=norm), prepare)
        for kind, build in zip(_KINDS, builds, strict=True)
        for start, (norm, prepare) in _STARTS.items()
    }
    return _train_cases(
        training, cases, ("rank", "rank_bound"), _findings_broken, "Broken batch normalization",
        width=sizes.width, depth=sizes.depth,
    )  # fmt: skip


def _findings_broken(curves: runs.Curves) -> Iterator[str]:
    ranks, bounds = (
        curves.before(name).means().values.reshape(-1, 3) for name in ("rank", "rank_bound")
    )
    accuracies = curves.after("accuracy").values.reshape(-1, 3, 3)
    for kind, rank, bound, accuracy in zip(_KINDS, ranks, bounds, accuracies, strict=True):
        usual, uncentred, positive = accuracy
        yield (
            f"{kind.capitalize()}: positive weights change the rank before training from "
            f"{rank[0]:.3g} to {rank[2]:.3g}, r from {bound[0]:.3g} to {bound[2]:.3g}, and "
            f"the accuracy after it from {short_interval(usual)} to {short_interval(positive)}"
            f"{overlap_note(usual, positive)}."
        )
        yield (
            f"{kind.capitalize()}: without centring the rank is {rank[1]:.3g}, r {bound[1]:.3g}, "
            f"and the accuracy {short_interval(uncentred)}{overlap_note(usual, uncentred)}."
        )


# --- Fig. 6


class _RankSizes(NamedTuple):
    """Sizes of the figure.

    depth: hidden layers
    steps: steps of the pre-training for each of its layers, one kind of network for each number
    every: the pre-training has each `every`-th hidden layer in turn
    pretraining_rate: learning rate of the pre-training
    """

    width: int = 48
    depth: int = 12
    batch: Several = 32
    images: int = 320
    epochs: int = 8
    steps: tuple[int, ...] = (25, 150)
    every: int = 4
    pretraining_rate: float = 1.0
    rate: float = 0.1
    chains: Several = 5


@kit.figure(
    "rank-collapse-6", _RankSizes(), trains=True, torch=True,
    width=128, depth=32, images=60_000, epochs=15,
    steps=(5, 75), pretraining_rate=0.1, rate=0.01,
)  # fmt: skip
def fig_6(run: Run, sizes: _RankSizes) -> Experiment:
    """Fig. 6: the rank while networks are trained, from several initial ranks.

    ReLU networks are trained by SGD: without batch normalization, from PyTorch's default weights
    and after a pre-training that increases the rank layer by layer on one batch
    (`bnmc.torch.maximize_rank_`), and with batch normalization, from default and from asymmetric
    parameters.  The paper uses Fashion-MNIST (``data=``), width 128, 32 hidden layers and 15
    epochs; `full` has these sizes.  At the default sizes, 5 steps of pre-training change nothing.

    Expected by the paper: SGD keeps the order of the initial ranks, and networks with a larger
    initial rank learn faster.

    The code pre-trains layers 4, 8, … with 5 and 75 steps; the caption has 25 and 75.  Asymmetric
    parameters are uniform on [0, 0.1], those of batch normalization included.  The rank is its
    lower bound r.  The code descends 1/r; `maximize_rank_` descends 1/√r.

    Returns
    -------
    Experiment

    Examples
    --------
    >>> from bnmc.experiments import rank_collapse
    >>> found = rank_collapse.fig_6()  # doctest: +SKIP
    >>> found.data["rank_bound"].dims  # doctest: +SKIP
    ('case', 'epoch')
    """
    if sizes.every > sizes.depth:
        raise ArgumentError("every", sizes.every, f"at most depth, {sizes.depth}")
    training = runs.Training(run, sizes, (sizes.rate,))
    build = partial(mlp, training.images.features, sizes.width, sizes.depth)
    cases = {
        "without norm": runs.Case(build),
        **{
            f"pre-trained, {steps} steps": runs.Case(build, _pretrained(sizes, steps), 3.0)
            for steps in sizes.steps
        },
        "batch norm": runs.Case(partial(build, norm="batch"), cost=2.0),
        "batch norm, asymmetric": runs.Case(partial(build, norm="batch"), _broken("small"), 2.0),
    }
    return _train_cases(
        training, cases, ("rank_bound",), _findings_ranks, "Rank in training", width=sizes.width,
        depth=sizes.depth,
    )  # fmt: skip


def _pretrained(sizes: _RankSizes, steps: int) -> runs.Preparation:
    """Return a preparation that increases the rank of some layers in turn on the first batch."""

    def prepare(model: Any, inputs: Any, rng: np.random.Generator) -> None:
        layers = list(weight_matrices(model))[sizes.every - 1 : -1 : sizes.every]
        batch = inputs[: sizes.batch]
        maximize_rank_(
            model, batch, steps=steps, learning_rate=sizes.pretraining_rate, layers=layers
        )

    return prepare


def _findings_ranks(curves: runs.Curves) -> Iterator[str]:
    before, after, accuracy = (
        curves.before("rank_bound"), curves.after("rank_bound"), curves.after("accuracy")
    )  # fmt: skip
    yield f"Order of r before training: {_order(before)}."
    yield f"Order of r after training: {_order(after)}."
    yield f"Order of the accuracy after training: {_order(accuracy)}."
    bound, learnt = (runs.mean_at(column, "without norm") for column in (before, accuracy))
    for label, larger, other in zip(
        before.axes["case"], before.values, accuracy.values, strict=True
    ):
        if label.startswith("pre-trained"):
            yield (
                f"{label[0].upper()}{label[1:]}: r before training is {short_interval(larger)}, "
                f"without pre-training {short_interval(bound)}{overlap_note(larger, bound)}; "
                f"the accuracy after it is {short_interval(other)} and {short_interval(learnt)}"
                f"{overlap_note(other, learnt)}."
            )


def _order(column: kit.Column) -> str:
    labels, means = column.axes["case"], column.means().values
    return "; ".join(f"{labels[row]} ({means[row]:.3g})" for row in np.argsort(means))


# --- Fig. 10


class _DirectionSizes(NamedTuple):
    """Sizes of the figure."""

    stages: tuple[tuple[int, ...], ...] = ((8, 8, 8), (8, 8, 8), (16, 16, 16))
    batch: Several = 32
    images: int = 320
    epochs: int = 5
    rate: float = 0.01
    chains: Several = 5


@kit.figure(
    "rank-collapse-10", _DirectionSizes(), trains=True, torch=True,
    stages=VGG19, batch=64, images=50_000,
    epochs=75,
)  # fmt: skip
def fig_10(run: Run, sizes: _DirectionSizes) -> Experiment:
    """Fig. 10: directional gradient vanishing of networks without batch normalization.

    A convolutional network like VGG is trained by SGD with batch normalization, without it, without
    it at the 100-fold learning rate, and without it on random images (uniform grey values, with the
    labels of the images).  The paper uses VGG19 on CIFAR-10 (``data=``); `full` has its
    convolutions, with one linear layer as classifier.  The training of this figure has no public
    code.

    Expected by the paper: without batch normalization the gradients of all samples by the weights
    of a neuron of the last layer are parallel, SGD takes nearly the same path on random images, and
    a larger learning rate does not help.

    The gradient of the loss of sample i by the weights of neuron k of the last layer is the last
    hidden representation h_i times a number.  So the absolute cosine between the gradients of two
    samples is that of h_i and h_j, for each neuron (Proposition 19).  Its mean over pairs of a
    batch is shown; after ReLU no cosine is negative.

    Returns
    -------
    Experiment

    Examples
    --------
    >>> from bnmc.experiments import rank_collapse
    >>> found = rank_collapse.fig_10()  # doctest: +SKIP
    >>> found.data["mean_correlation"].dims  # doctest: +SKIP
    ('case', 'epoch')
    """
    training = runs.Training(run, sizes, (sizes.rate,))
    build = convolutions_of(training.images, sizes.stages)
    cases = {
        "batch norm": runs.Case(partial(build, norm="batch"), cost=2.0),
        "without norm": runs.Case(build),
        "without norm, 100 × rate": runs.Case(build, faster=100.0),
        "without norm, random images": runs.Case(build, noise=True),
    }
    return _train_cases(
        training, cases, ("loss", "mean_correlation"), _findings_directions,
        "Directions of gradients in training", convolutions=sum(map(len, sizes.stages)),
    )  # fmt: skip


def _findings_directions(curves: runs.Curves) -> tuple[str, ...]:
    normed, plain, _, _ = curves.before("mean_correlation").values
    parallel = f"1 minus {1 - plain[0]:.2g}" if np.isfinite(plain[0]) else "undefined"
    accuracy, without, faster, _ = curves.after("accuracy").values
    _, images, _, noise = curves.columns["loss"].means().values
    gaps = np.abs(images - noise)
    finite = gaps[np.isfinite(gaps)]
    where = "all records" if len(finite) == len(gaps) else "the records before one diverges"
    return (
        f"Before training the mean cosine is {short_interval(normed)} with batch norm, "
        f"and {parallel} without.",
        f"Accuracy after training with batch norm: {short_interval(accuracy)}; "
        f"without: {short_interval(without)}{overlap_note(accuracy, without)}; "
        f"without, at the 100-fold learning rate: {short_interval(faster)}.",
        f"Without batch norm the mean losses on images and on random images differ by at most "
        f"{finite.max():.2g} at {where}.",
    )


# --- Figs 5, 6 and 10


def _train_cases(
    training: runs.Training,
    cases: Mapping[str, runs.Case],
    shown: tuple[str, ...],
    findings: Callable[[runs.Curves], Iterable[str]],
    title: str,
    **attributes: Any,
) -> Experiment:
    """Train all cases, and return the experiment.

    Parameters
    ----------
    training : Training
    cases : mapping of str to Case
        By label.  If labels have the form "NETWORK: START", each network has a row of panels.
    shown : tuple of str
        Records of `train`, one panel each, besides the accuracy.
    findings : callable
    title : str
    **attributes
        Further attributes of the data.
    """
    curves = runs.Curves(
        training, {(label,): case for label, case in cases.items()},
        dict.fromkeys(("accuracy", "loss", *shown)), case=kit.Axis(cases, "network", ""),
    )  # fmt: skip
    columns = {
        "learning rate": curves.rate,
        **{f"{_plain(name)}, before": curves.before(name).means() for name in shown},
        "accuracy, after": runs.or_diverged(curves.results, curves.after("accuracy")),
    }
    return curves.results.experiment(
        f"{title}, {training.images.name}", kit.table_of(columns, heads=("network",)),
        findings(curves), _draw, **training.attributes(), shown=list(shown), **attributes,
    )  # fmt: skip


def _plain(name: str) -> str:
    return {"rank_bound": "r", "mean_correlation": "mean cosine"}.get(name, name)


def _draw(data: Dataset, figure: Drawing) -> None:
    rows: dict[str, list[str]] = {}
    for label in map(str, data.case.values):
        rows.setdefault(label.rpartition(": ")[0], []).append(label)
    shown = ("accuracy", *data.attrs["shown"])
    axes = pictures.axes_of(figure, len(shown), len(rows), width=5.0, height=4.2)
    for row, (network, labels) in zip(axes, rows.items(), strict=True):
        for ax, name in zip(row, shown, strict=True):
            for order, label in enumerate(labels):
                pictures.draw_band(
                    ax, data.epoch.values, pictures.curve(data.sel(case=label), name),
                    COLOURS[order % len(COLOURS)], label.rpartition(": ")[2],
                    linestyle=_STYLES[order % len(_STYLES)], marker="o",
                )  # fmt: skip
            text = data[name].attrs["long_name"]
            pictures.finish(ax, network, "epoch", text, ylim=(0, None))
        row[0].axhline(runs.CHANCE, color="grey", linestyle=":", linewidth=1, label="chance")
    pictures.legend_below(figure, axes[0, 0])
    figure.suptitle(pictures.about(data, "{images}"))
