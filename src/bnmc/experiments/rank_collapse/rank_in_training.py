"""Fig. 6: the rank while networks are trained, from several initial ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from bnmc.errors import ArgumentError
from bnmc.experiments import kit
from bnmc.experiments.experiment import Experiment
from bnmc.experiments.rank_collapse.trained_cases import broken, train_cases
from bnmc.experiments.runs import Run
from bnmc.experiments.sizes import Several
from bnmc.experiments.statistics import overlap_note, short_interval
from bnmc.experiments.training.networks import mlp
from bnmc.experiments.training.runs import Case, Curves, Training, mean_at
from bnmc.torch.layers import weight_matrices
from bnmc.torch.ranks import maximize_rank_


class Sizes(NamedTuple):
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
    networks: Several = 5


@kit.figure(
    "rank-collapse-6", Sizes(), trains=True, width=128, depth=32, images=60_000, epochs=15,
    steps=(5, 75), pretraining_rate=0.1, rate=0.01,
)  # fmt: skip
def fig_6(run: Run, sizes: Sizes) -> Experiment:
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
    training = Training(run, sizes, (sizes.rate,))
    build = partial(mlp, training.images.features, sizes.width, sizes.depth)
    cases = {
        "without norm": Case(build),
        **{
            f"pre-trained, {steps} steps": Case(build, _pretrained(sizes, steps), 3.0)
            for steps in sizes.steps
        },
        "batch norm": Case(partial(build, norm="batch"), cost=2.0),
        "batch norm, asymmetric": Case(partial(build, norm="batch"), broken("small"), 2.0),
    }
    return train_cases(
        training, cases, ("rank_bound",), _findings, "Rank in training", width=sizes.width,
        depth=sizes.depth,
    )  # fmt: skip


def _pretrained(sizes: Sizes, steps: int) -> Callable[[Any, Any, np.random.Generator], None]:
    """Return a preparation that increases the rank of some layers in turn on the first batch."""

    def prepare(model: Any, inputs: Any, rng: np.random.Generator) -> None:
        layers = list(weight_matrices(model))[sizes.every - 1 : -1 : sizes.every]
        batch = inputs[: sizes.batch]
        maximize_rank_(
            model, batch, steps=steps, learning_rate=sizes.pretraining_rate, layers=layers
        )

    return prepare


def _findings(curves: Curves) -> Iterator[str]:
    before, after, accuracy = (
        curves.before("rank_bound"), curves.after("rank_bound"), curves.after("accuracy")
    )  # fmt: skip
    yield f"Order of r before training: {_order(before)}."
    yield f"Order of r after training: {_order(after)}."
    yield f"Order of the accuracy after training: {_order(accuracy)}."
    bound, learnt = (mean_at(column, "without norm") for column in (before, accuracy))
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
