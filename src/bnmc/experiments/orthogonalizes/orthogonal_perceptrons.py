"""Fig. 4: training from orthogonal representations, without batch normalization, and with it."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

from bnmc._support.progress import Progress
from bnmc.experiments.experiment import Experiment, with_parameters
from bnmc.experiments.orthogonalizes.gap_and_training import xavier
from bnmc.experiments.orthogonalizes.starts import ORTHOGONAL, orthogonal_start
from bnmc.experiments.parts import Call, Store, chosen
from bnmc.experiments.training.comparison import Comparison, compare
from bnmc.experiments.training.runs import images_of
from bnmc.experiments.training.trainer import Plan

__all__ = ["DEFAULT", "FULL", "Sizes", "experiment", "fig_4"]


class Sizes(NamedTuple):
    """Width, hidden layers, batch, images, epochs, records, power, rates, networks."""

    width: int
    depths: tuple[int, ...]
    batch: int
    images: int
    epochs: int
    every: int
    power: float
    rates: tuple[float, ...]
    networks: int


DEFAULT = Sizes(48, (4, 8, 16), 64, 640, 8, 2, -0.5, (0.01, 0.1), 5)
FULL = Sizes(800, (14, 29, 44, 59, 74), 500, 50_000, 30, 1, -0.5, (0.01,), 4)


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
    """Fig. 4: training from orthogonal representations, without batch normalization, and with it.

    ReLU networks of several depths are trained by SGD from Xavier's weights, from weights that make
    the representations of 3 × width images orthogonal layer by layer (`bnmc.torch.orthogonalize_`),
    and from Xavier's weights with batch normalization.  The paper uses CIFAR-10 (``data=``), width
    800, batch size 500, 15 to 75 layers with the readout, 30 epochs, learning rate .01 and 4
    networks; `full` has these sizes.  The default has 640 digits, width 48, batch size 64, 8
    epochs, 5 networks, and the better one of the learning rates .01 and .1.

    Expected by the paper: the loss after the orthogonal start does not depend on the depth, so
    batch normalization is not needed.

    Three powers p of the singular values are in print: −½ (eq. 6 and the code for convolutions), −1
    (the code for perceptrons) and +½ (the text of a notebook); here p is −½.  The authors' matrices
    are slices of orthogonal ones, and only nearly orthogonal; here they are orthogonal.  As theirs,
    the orthogonal start has outputs near 0.

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
    call = Call("orthogonalizes-4", full, rng, progress, threads, store, data)
    return experiment(chosen(DEFAULT, FULL, full), call)


def experiment(sizes: Sizes, call: Call) -> Experiment:
    """Run the experiment with these sizes."""
    images = images_of(call, sizes.images, sizes.batch)
    plain = partial(xavier, images.features, sizes.width)
    starts = {
        "Xavier": (plain, None),
        ORTHOGONAL: (plain, orthogonal_start(3 * sizes.width, sizes.power)),
        "batch norm": (partial(plain, norm="batch"), None),
    }
    compared = Comparison(
        starts,
        sizes.depths,
        "hidden layers",
        sizes.rates,
        sizes.networks,
        (2.0, -1.0),
        ORTHOGONAL,
    )
    plan = Plan(sizes.epochs, sizes.batch, sizes.rates[0], sizes.every)
    return compare(call, compared, images, plan, {"width": sizes.width, "power": sizes.power})
