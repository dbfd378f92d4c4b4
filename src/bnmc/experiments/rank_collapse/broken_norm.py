"""Fig. 5: batch normalization that is broken by asymmetric initial weights."""

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
from bnmc.experiments.training.networks import convolutional, mlp
from bnmc.experiments.training.runs import Case, images_of
from bnmc.experiments.training.trainer import Plan
from bnmc.torch.initializing import break_

if TYPE_CHECKING:
    import xarray

__all__ = ["DEFAULT", "FULL", "Sizes", "broken", "experiment", "fig_5"]

#: Starts: the normalization, and whether the weights are made positive.
STARTS = {
    "batch norm": ("batch", False),
    "batch norm, not centred": ("batch-uncentred", False),
    "batch norm, positive weights": ("batch", True),
}


class Sizes(NamedTuple):
    """What the networks are.

    Attributes
    ----------
    width, depth : int
        Of the perceptron; `depth` counts hidden layers.
    stages : tuple of tuples of int
        Channels of the convolutions of each stage.
    batch, images, epochs : int
    rate : float
        Learning rate.
    networks : int
        Networks of each kind.
    """

    width: int
    depth: int
    stages: tuple[tuple[int, ...], ...]
    batch: int
    images: int
    epochs: int
    rate: float
    networks: int


DEFAULT = Sizes(48, 12, ((8, 8), (8, 8), (16, 16)), 32, 320, 5, 0.05, 5)
VGG19 = ((64,) * 2, (128,) * 2, (256,) * 4, (512,) * 4, (512,) * 4)
FULL = Sizes(128, 32, VGG19, 64, 50_000, 75, 0.01, 5)


@with_parameters
def fig_5(
    *,
    full: bool = False,
    rng: Any = 0,
    progress: bool | Progress = False,
    threads: int | None = None,
    store: Store = None,
    data: Store = None,
) -> Experiment:
    """Fig. 5: batch normalization that is broken by asymmetric initial weights.

    A perceptron and a convolutional network like VGG, both with batch normalization, are trained by
    SGD from PyTorch's default weights, and from uniform positive weights of the same variance.  A
    third network has batch normalization without centring.  The paper uses VGG19 on CIFAR-10
    (``data=``), and a perceptron in the text; `full` has the convolutions of VGG19, with one linear
    layer as classifier.  The training of this figure has no public code, so epochs and learning
    rate of `full` are those of the perceptrons.  The default has 320 digits, width 48, 12 hidden
    layers, six convolutions, batch size 32 and 5 epochs.

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
    call = Call("rank-collapse-5", full, rng, progress, threads, store, data)
    return experiment(chosen(DEFAULT, FULL, full), call)


def experiment(sizes: Sizes, call: Call) -> Experiment:
    """Run the experiment with these sizes."""
    images = images_of(call, sizes.images, sizes.batch)
    channels, side = images.pixels.shape[1:3]
    kinds = {
        "perceptron": partial(mlp, images.features, sizes.width, sizes.depth),
        "convolutions": partial(convolutional, channels, side, sizes.stages),
    }
    cases = {
        f"{kind}: {start}": Case(
            partial(build, norm=norm), (sizes.rate,), broken("uniform") if positive else None
        )
        for kind, build in kinds.items()
        for start, (norm, positive) in STARTS.items()
    }
    plan = Plan(sizes.epochs, sizes.batch, sizes.rate)
    training = Training(cases, plan, sizes.networks, ("rank", "rank_bound"))
    settings = {"width": sizes.width, "depth": sizes.depth}
    return train_cases(call, training, images, settings, _findings, "Broken batch normalization")


def broken(how: str) -> Any:
    """Return a preparation that breaks the network (`bnmc.torch.break_`)."""

    def prepare(model: Any, inputs: Any, rng: np.random.Generator) -> None:
        break_(model, how=how, rng=rng)

    return prepare


def _findings(data: xarray.Dataset) -> tuple[str, ...]:
    labels = [str(one) for one in data.case.values]
    rank, bound, accuracy = (curve(data, name) for name in ("rank", "rank_bound", "accuracy"))
    found = []
    for kind in dict.fromkeys(label.partition(": ")[0] for label in labels):
        usual, uncentred, positive = (labels.index(f"{kind}: {start}") for start in STARTS)
        found.append(
            f"{kind.capitalize()}: positive weights change the rank before training from "
            f"{rank[usual, 0, 0]:.3g} to {rank[positive, 0, 0]:.3g}, r from "
            f"{bound[usual, 0, 0]:.3g} to {bound[positive, 0, 0]:.3g}, and the accuracy after it "
            f"from {short_interval(accuracy[usual, -1])} to "
            f"{short_interval(accuracy[positive, -1])}"
            f"{overlap_note(accuracy[usual, -1], accuracy[positive, -1])}."
        )
        found.append(
            f"{kind.capitalize()}: without centring the rank is {rank[uncentred, 0, 0]:.3g}, r "
            f"{bound[uncentred, 0, 0]:.3g}, and the accuracy "
            f"{short_interval(accuracy[uncentred, -1])}"
            f"{overlap_note(accuracy[usual, -1], accuracy[uncentred, -1])}."
        )
    return tuple(found)
