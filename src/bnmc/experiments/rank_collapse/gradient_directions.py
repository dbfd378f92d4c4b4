"""Fig. 10: directional gradient vanishing of networks without batch normalization."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bnmc._support.progress import Progress
from bnmc.experiments.data import curve
from bnmc.experiments.experiment import Experiment, with_parameters
from bnmc.experiments.parts import Call, Store, chosen
from bnmc.experiments.rank_collapse.trained_cases import Training, train_cases
from bnmc.experiments.statistics import overlap_note, short_interval
from bnmc.experiments.training.networks import convolutional
from bnmc.experiments.training.runs import Case, images_of
from bnmc.experiments.training.trainer import Plan

if TYPE_CHECKING:
    import xarray

__all__ = ["DEFAULT", "FULL", "Sizes", "experiment", "fig_10"]


class Sizes(NamedTuple):
    """Channels of each stage, batch, images, epochs, learning rate, networks."""

    stages: tuple[tuple[int, ...], ...]
    batch: int
    images: int
    epochs: int
    rate: float
    networks: int


DEFAULT = Sizes(((8,) * 3, (8,) * 3, (16,) * 3), 32, 320, 5, 0.01, 5)
FULL = Sizes(((64,) * 2, (128,) * 2, (256,) * 4, (512,) * 4, (512,) * 4), 64, 50_000, 75, 0.01, 5)


@with_parameters
def fig_10(
    *,
    full: bool = False,
    rng: Any = 0,
    progress: bool | Progress = False,
    threads: int | None = None,
    store: Store = None,
    data: Store = None,
) -> Experiment:
    """Fig. 10: directional gradient vanishing of networks without batch normalization.

    A convolutional network like VGG is trained by SGD with batch normalization, without it, without
    it at the 100-fold learning rate, and without it on random images (uniform grey values, with the
    labels of the images).  The paper uses VGG19 on CIFAR-10 (``data=``); `full` has its
    convolutions, with one linear layer as classifier.  The training of this figure has no public
    code.  The default has nine convolutions, 320 digits, batch size 32 and 5 epochs.

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
    call = Call("rank-collapse-10", full, rng, progress, threads, store, data)
    return experiment(chosen(DEFAULT, FULL, full), call)


def experiment(sizes: Sizes, call: Call) -> Experiment:
    """Run the experiment with these sizes."""
    images = images_of(call, sizes.images, sizes.batch)
    channels, side = images.pixels.shape[1:3]
    build = partial(convolutional, channels, side, sizes.stages)
    rate = (sizes.rate,)
    cases = {
        "batch norm": Case(partial(build, norm="batch"), rate, cost=2.0),
        "without norm": Case(build, rate),
        "without norm, 100 × rate": Case(build, (100 * sizes.rate,)),
        "without norm, random images": Case(build, rate, noise=True),
    }
    plan = Plan(sizes.epochs, sizes.batch, sizes.rate)
    training = Training(cases, plan, sizes.networks, ("loss", "mean_correlation"))
    settings = {"convolutions": sum(map(len, sizes.stages))}
    title = "Directions of gradients in training"
    return train_cases(call, training, images, settings, _findings, title)


def _findings(data: xarray.Dataset) -> tuple[str, ...]:
    cosine, accuracy, loss = (
        curve(data, name) for name in ("mean_correlation", "accuracy", "loss")
    )
    normed, plain, faster, noise = range(4)
    difference = np.abs(loss[plain, :, 0] - loss[noise, :, 0]).max()
    return (
        f"Before training the mean cosine is {short_interval(cosine[normed, 0])} with batch norm, "
        f"and 1 minus {1 - cosine[plain, 0, 0]:.2g} without.",
        f"Accuracy after training with batch norm: {short_interval(accuracy[normed, -1])}; "
        f"without: {short_interval(accuracy[plain, -1])}"
        f"{overlap_note(accuracy[normed, -1], accuracy[plain, -1])}; "
        "without, at the 100-fold learning rate: "
        f"{short_interval(accuracy[faster, -1])}.",
        f"Without batch norm the mean losses on images and on random images differ by at most "
        f"{difference:.2g} at all records.",
    )
