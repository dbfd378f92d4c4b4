"""Fig. 5: batch normalization that is broken by asymmetric initial weights."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from bnmc.experiments import kit
from bnmc.experiments.experiment import Experiment
from bnmc.experiments.rank_collapse.trained_cases import broken, train_cases
from bnmc.experiments.runs import Run
from bnmc.experiments.sizes import Several
from bnmc.experiments.statistics import overlap_note, short_interval
from bnmc.experiments.training.networks import VGG19, convolutions_of, mlp
from bnmc.experiments.training.runs import Case, Curves, Training, mean_at

#: Starts: the normalization, and whether the weights are made positive.
_STARTS = {
    "batch norm": ("batch", False),
    "batch norm, not centred": ("batch-uncentred", False),
    "batch norm, positive weights": ("batch", True),
}

#: The two kinds of networks.
_KINDS = ("perceptron", "convolutions")


class Sizes(NamedTuple):
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
    networks: Several = 5


@kit.figure(
    "rank-collapse-5", Sizes(), trains=True, width=128, depth=32, stages=VGG19, batch=64,
    images=50_000, epochs=75, rate=0.01,
)  # fmt: skip
def fig_5(run: Run, sizes: Sizes) -> Experiment:
    """Fig. 5: batch normalization that is broken by asymmetric initial weights.

    A perceptron and a convolutional network like VGG, both with batch normalization, are trained by
    SGD from PyTorch's default weights, and from uniform positive weights of the same variance.  A
    third network has batch normalization without centring.  The paper uses VGG19 on CIFAR-10
    (``data=``), and a perceptron in the text; `full` has the convolutions of VGG19, with one linear
    layer as classifier.  The training of this figure has no public code, so epochs and learning
    rate of `full` are those of the perceptrons.

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
    training = Training(run, sizes, (sizes.rate,))
    builds = (
        partial(mlp, training.images.features, sizes.width, sizes.depth),
        convolutions_of(training.images, sizes.stages),
    )
    cases = {
        f"{kind}: {start}": Case(partial(build, norm=norm), broken("uniform") if positive else None)
        for kind, build in zip(_KINDS, builds, strict=True)
        for start, (norm, positive) in _STARTS.items()
    }
    return train_cases(
        training, cases, ("rank", "rank_bound"), _findings, "Broken batch normalization",
        width=sizes.width, depth=sizes.depth,
    )  # fmt: skip


def _findings(curves: Curves) -> Iterator[str]:
    for kind in _KINDS:
        usual, uncentred, positive = (f"{kind}: {start}" for start in _STARTS)
        rank, bound = (
            {
                label: f"{mean_at(curves.before(name), label)[0]:.3g}"
                for label in (usual, uncentred, positive)
            }
            for name in ("rank", "rank_bound")
        )
        accuracy = partial(mean_at, curves.after("accuracy"))
        yield (
            f"{kind.capitalize()}: positive weights change the rank before training from "
            f"{rank[usual]} to {rank[positive]}, r from {bound[usual]} to {bound[positive]}, and "
            f"the accuracy after it from {short_interval(accuracy(usual))} to "
            f"{short_interval(accuracy(positive))}"
            f"{overlap_note(accuracy(usual), accuracy(positive))}."
        )
        yield (
            f"{kind.capitalize()}: without centring the rank is {rank[uncentred]}, r "
            f"{bound[uncentred]}, and the accuracy {short_interval(accuracy(uncentred))}"
            f"{overlap_note(accuracy(usual), accuracy(uncentred))}."
        )
