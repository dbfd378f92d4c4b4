"""Fig. 4: pre-training for the rank beside batch normalization."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bnmc.experiments import kit
from bnmc.experiments.experiment import Experiment
from bnmc.experiments.runs import Run
from bnmc.experiments.sizes import Several
from bnmc.experiments.training.comparison import compare
from bnmc.experiments.training.networks import mlp, xavier_
from bnmc.experiments.training.runs import Training
from bnmc.torch.ranks import maximize_rank_

if TYPE_CHECKING:
    import torch


class Sizes(NamedTuple):
    """Sizes of the figure.

    batches: batches of the pre-training
    steps: steps of the pre-training for each batch
    pretraining_rate: learning rate of the pre-training
    scale: factor of the grey values
    """

    width: int = 48
    depths: tuple[int, ...] = (4, 16)
    batch: Several = 32
    images: int = 320
    epochs: int = 10
    every: int = 2
    batches: int = 5
    steps: int = 40
    pretraining_rate: float = 0.03
    rates: tuple[float, ...] = (0.003, 0.01)
    scale: float = 255.0
    networks: Several = 5


@kit.figure(
    "rank-collapse-4", Sizes(), trains=True, width=128, depths=(4, 8, 16, 32), batch=64,
    images=50_000, epochs=100, every=1, batches=1000, pretraining_rate=0.001, rates=(0.001, 0.01),
)  # fmt: skip
def fig_4(run: Run, sizes: Sizes) -> Experiment:
    """Fig. 4: pre-training for the rank beside batch normalization.

    ReLU networks of several depths are trained by SGD: without batch normalization, from weights of
    variance 2/(fan_in + fan_out); from the same after a pre-training without labels that increases
    the rank of the last hidden layer (Algorithm 1, `bnmc.torch.maximize_rank_`); and with batch
    normalization.  The paper uses CIFAR-10 (``data=``) with grey values from 0 to 255, width 128,
    batch size 64, 1000 batches of 40 steps of pre-training with learning rate .001, and then 100
    epochs; `full` has these sizes, and the better one of the learning rates .001 and .01.

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
    training = Training(run, sizes, sizes.rates, sizes.every, (sizes.scale, 0.0))

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
