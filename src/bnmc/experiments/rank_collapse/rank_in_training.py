"""Fig. 6: the rank while networks are trained, from several initial ranks."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bnmc._support.progress import Progress
from bnmc.experiments.data import curve
from bnmc.experiments.experiment import Experiment, with_parameters
from bnmc.experiments.parts import Call, Store, chosen
from bnmc.experiments.rank_collapse.broken_norm import broken
from bnmc.experiments.rank_collapse.trained_cases import Training, train_cases
from bnmc.experiments.statistics import overlap_note, short_interval
from bnmc.experiments.training.networks import mlp
from bnmc.experiments.training.runs import Case, images_of
from bnmc.experiments.training.trainer import Plan
from bnmc.torch.hidden import weight_matrices
from bnmc.torch.ranks import maximize_rank_

if TYPE_CHECKING:
    import xarray

__all__ = ["DEFAULT", "FULL", "Sizes", "experiment", "fig_6"]


class Sizes(NamedTuple):
    """What the networks are.

    Attributes
    ----------
    width, depth, batch, images, epochs : int
    steps : tuple of int
        Steps of the pre-training for each of its layers: one kind of network for each number.
    every : int
        The pre-training has each `every`-th hidden layer in turn.
    pretraining_rate : float
        Its learning rate.
    rate : float
        Learning rate of the training.
    networks : int
        Networks of each kind.
    """

    width: int
    depth: int
    batch: int
    images: int
    epochs: int
    steps: tuple[int, ...]
    every: int
    pretraining_rate: float
    rate: float
    networks: int


DEFAULT = Sizes(48, 12, 32, 320, 8, (25, 150), 4, 1.0, 0.1, 5)
FULL = Sizes(128, 32, 32, 60_000, 15, (5, 75), 4, 0.1, 0.01, 5)


@with_parameters
def fig_6(
    *,
    full: bool = False,
    rng: Any = 0,
    progress: bool | Progress = False,
    threads: int | None = None,
    store: Store = None,
    data: Store = None,
) -> Experiment:
    """Fig. 6: the rank while networks are trained, from several initial ranks.

    ReLU networks are trained by SGD: without batch normalization, from PyTorch's default weights
    and after a pre-training that increases the rank layer by layer on one batch
    (`bnmc.torch.maximize_rank_`), and with batch normalization, from default and from asymmetric
    parameters.  The paper uses Fashion-MNIST (``data=``), width 128, 32 hidden layers and 15
    epochs; `full` has these sizes.  The default has 320 digits, width 48, 12 hidden layers, 8
    epochs, and 25 and 150 steps of pre-training with learning rate 1; 5 steps change nothing there.

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
    call = Call("rank-collapse-6", full, rng, progress, threads, store, data)
    return experiment(chosen(DEFAULT, FULL, full), call)


def experiment(sizes: Sizes, call: Call) -> Experiment:
    """Run the experiment with these sizes."""
    images = images_of(call, sizes.images, sizes.batch)
    build = partial(mlp, images.features, sizes.width, sizes.depth)
    rates = (sizes.rate,)
    cases = {
        "without norm": Case(build, rates),
        **{
            f"pre-trained, {steps} steps": Case(build, rates, _pretrained(sizes, steps), 3.0)
            for steps in sizes.steps
        },
        "batch norm": Case(partial(build, norm="batch"), rates, cost=2.0),
        "batch norm, asymmetric": Case(partial(build, norm="batch"), rates, broken("small"), 2.0),
    }
    plan = Plan(sizes.epochs, sizes.batch, sizes.rate)
    training = Training(cases, plan, sizes.networks, ("rank_bound",))
    settings = {"width": sizes.width, "depth": sizes.depth}
    return train_cases(call, training, images, settings, _findings, "Rank in training")


def _pretrained(sizes: Sizes, steps: int) -> Any:
    """Return a preparation that increases the rank of some layers in turn on the first batch."""

    def prepare(model: Any, inputs: Any, rng: np.random.Generator) -> None:
        layers = list(weight_matrices(model))[sizes.every - 1 : -1 : sizes.every]
        batch = inputs[: sizes.batch]
        maximize_rank_(
            model, batch, steps=steps, learning_rate=sizes.pretraining_rate, layers=layers
        )

    return prepare


def _findings(data: xarray.Dataset) -> tuple[str, ...]:
    labels = [str(one) for one in data.case.values]
    bound, accuracy = curve(data, "rank_bound"), curve(data, "accuracy")
    before, after = np.argsort(bound[:, 0, 0]), np.argsort(bound[:, -1, 0])
    learnt = np.argsort(accuracy[:, -1, 0])
    found = [
        f"Order of r before training: {_order(labels, before, bound[:, 0, 0])}.",
        f"Order of r after training: {_order(labels, after, bound[:, -1, 0])}.",
        f"Order of the accuracy after training: {_order(labels, learnt, accuracy[:, -1, 0])}.",
    ]
    plain = labels.index("without norm")
    for row, label in enumerate(labels):
        if label.startswith("pre-trained"):
            found.append(
                f"{label[0].upper()}{label[1:]}: r before training is "
                f"{short_interval(bound[row, 0])}, without pre-training "
                f"{short_interval(bound[plain, 0])}{overlap_note(bound[row, 0], bound[plain, 0])}; "
                f"the accuracy after it is {short_interval(accuracy[row, -1])} and "
                f"{short_interval(accuracy[plain, -1])}"
                f"{overlap_note(accuracy[row, -1], accuracy[plain, -1])}."
            )
    return tuple(found)


def _order(labels: list[str], order: Any, values: Any) -> str:
    return "; ".join(f"{labels[row]} ({values[row]:.3g})" for row in order)
