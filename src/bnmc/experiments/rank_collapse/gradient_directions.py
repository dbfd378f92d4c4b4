"""Fig. 10: directional gradient vanishing of networks without batch normalization."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np

from bnmc.experiments import kit
from bnmc.experiments.experiment import Experiment
from bnmc.experiments.rank_collapse.trained_cases import train_cases
from bnmc.experiments.runs import Run
from bnmc.experiments.sizes import Several
from bnmc.experiments.statistics import overlap_note, short_interval
from bnmc.experiments.training.networks import VGG19, convolutions_of
from bnmc.experiments.training.runs import Case, Curves, Training


class Sizes(NamedTuple):
    """Sizes of the figure."""

    stages: tuple[tuple[int, ...], ...] = ((8, 8, 8), (8, 8, 8), (16, 16, 16))
    batch: Several = 32
    images: int = 320
    epochs: int = 5
    rate: float = 0.01
    networks: Several = 5


@kit.figure(
    "rank-collapse-10", Sizes(), trains=True, stages=VGG19, batch=64, images=50_000, epochs=75
)
def fig_10(run: Run, sizes: Sizes) -> Experiment:
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
    training = Training(run, sizes, (sizes.rate,))
    build = convolutions_of(training.images, sizes.stages)
    cases = {
        "batch norm": Case(partial(build, norm="batch"), cost=2.0),
        "without norm": Case(build),
        "without norm, 100 × rate": Case(build, faster=100.0),
        "without norm, random images": Case(build, noise=True),
    }
    return train_cases(
        training, cases, ("loss", "mean_correlation"), _findings,
        "Directions of gradients in training", convolutions=sum(map(len, sizes.stages)),
    )  # fmt: skip


def _findings(curves: Curves) -> tuple[str, ...]:
    normed, plain, _, _ = curves.before("mean_correlation").values
    accuracy, without, faster, _ = curves.after("accuracy").values
    _, images, _, noise = curves.columns["loss"].means().values
    return (
        f"Before training the mean cosine is {short_interval(normed)} with batch norm, "
        f"and 1 minus {1 - plain[0]:.2g} without.",
        f"Accuracy after training with batch norm: {short_interval(accuracy)}; "
        f"without: {short_interval(without)}{overlap_note(accuracy, without)}; "
        f"without, at the 100-fold learning rate: {short_interval(faster)}.",
        f"Without batch norm the mean losses on images and on random images differ by at most "
        f"{np.abs(images - noise).max():.2g} at all records.",
    )
