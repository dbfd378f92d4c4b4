"""Fig. 4: pre-training for the rank beside batch normalization."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bnmc._support.progress import Progress
from bnmc.experiments.experiment import Experiment, with_parameters
from bnmc.experiments.parts import Call, Store, chosen
from bnmc.experiments.training.comparison import Comparison, compare
from bnmc.experiments.training.networks import mlp, xavier_
from bnmc.experiments.training.runs import images_of
from bnmc.experiments.training.trainer import Plan
from bnmc.torch.ranks import maximize_rank_

if TYPE_CHECKING:
    import torch

__all__ = ["DEFAULT", "FULL", "Sizes", "experiment", "fig_4"]


class Sizes(NamedTuple):
    """What the networks are.

    Attributes
    ----------
    width : int
    depths : tuple of int
        Hidden layers.
    batch, images, epochs, every : int
    batches, steps : int
        Batches of the pre-training, and its steps for each batch.
    pretraining_rate : float
        Its learning rate.
    rates : tuple of float
        Learning rates of the training.
    scale : float
        Factor of the grey values.
    networks : int
        Networks of each kind.
    """

    width: int
    depths: tuple[int, ...]
    batch: int
    images: int
    epochs: int
    every: int
    batches: int
    steps: int
    pretraining_rate: float
    rates: tuple[float, ...]
    scale: float
    networks: int


DEFAULT = Sizes(48, (4, 16), 32, 320, 10, 2, 5, 40, 0.03, (0.003, 0.01), 255.0, 5)
FULL = Sizes(128, (4, 8, 16, 32), 64, 50_000, 100, 1, 1000, 40, 0.001, (0.001, 0.01), 255.0, 5)


@with_parameters
def fig_4(
    *,
    full: bool = False,
    rng: Any = 0,
    progress: bool | Progress = False,
    threads: int | None = None,
    store: Store = None,
    data: Store = None,
) -> Experiment:
    """Fig. 4: pre-training for the rank beside batch normalization.

    ReLU networks of several depths are trained by SGD: without batch normalization, from weights of
    variance 2/(fan_in + fan_out); from the same after a pre-training without labels that increases
    the rank of the last hidden layer (Algorithm 1, `bnmc.torch.maximize_rank_`); and with batch
    normalization.  The paper uses CIFAR-10 (``data=``) with grey values from 0 to 255, width 128,
    batch size 64, 1000 batches of 40 steps of pre-training with learning rate .001, and then 100
    epochs; `full` has these sizes, and the better one of the learning rates .001 and .01.  The
    default has 320 digits, width 48, batch size 32, 5 batches of 40 steps with learning rate .03,
    and 10 epochs with the better one of the learning rates .003 and .01.

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
    call = Call("rank-collapse-4", full, rng, progress, threads, store, data)
    return experiment(chosen(DEFAULT, FULL, full), call)


def experiment(sizes: Sizes, call: Call) -> Experiment:
    """Run the experiment with these sizes."""
    images = images_of(call, sizes.images, sizes.batch)
    plain = partial(_network, images.features, sizes.width)

    def prepare(model: Any, inputs: Any, rng: np.random.Generator) -> None:
        some = [
            inputs[rng.choice(len(inputs), sizes.batch, replace=False)]
            for _ in range(sizes.batches)
        ]
        maximize_rank_(model, some, steps=sizes.steps, learning_rate=sizes.pretraining_rate)

    starts = {
        "plain": (plain, None),
        "pre-training": (plain, prepare),
        "batch norm": (partial(plain, norm="batch"), None),
    }
    compared = Comparison(
        starts, sizes.depths, "hidden layers", sizes.rates, sizes.networks, (sizes.scale, 0.0),
        "pre-training", "rank_bound",
    )  # fmt: skip
    plan = Plan(sizes.epochs, sizes.batch, sizes.rates[0], sizes.every)
    return compare(call, compared, images, plan, {"width": sizes.width})


def _network(features: int, width: int, depth: int, norm: str = "none") -> torch.nn.Module:
    """Return a network with normal weights of variance 2/(fan_in + fan_out)."""
    return xavier_(mlp(features, width, depth, norm=norm), normal=True)
