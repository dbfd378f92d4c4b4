"""Fig. 4: training from orthogonal representations, without batch normalization, and with it."""

from __future__ import annotations

from functools import partial
from typing import Annotated, NamedTuple

from bnmc.experiments import kit
from bnmc.experiments.experiment import Experiment
from bnmc.experiments.orthogonalizes.common import STARTS, orthogonal_start, xavier
from bnmc.experiments.runs import Run
from bnmc.experiments.sizes import Several
from bnmc.experiments.training.comparison import compare
from bnmc.experiments.training.runs import Training


class Sizes(NamedTuple):
    """Sizes of the figure.

    power: power p of the singular values, -1, -0.5 or 0.5
    """

    width: int = 48
    depths: tuple[Several, ...] = (4, 8, 16)
    batch: Several = 64
    images: int = 640
    epochs: int = 8
    every: int = 2
    power: Annotated[float, {"low": -1.0, "high": 0.5}] = -0.5
    rates: tuple[float, ...] = (0.01, 0.1)
    networks: Several = 5


@kit.figure(
    "orthogonalizes-4", Sizes(), trains=True, width=800, depths=(14, 29, 44, 59, 74), batch=500,
    images=50_000, epochs=30, every=1, rates=(0.01,), networks=4,
)  # fmt: skip
def fig_4(run: Run, sizes: Sizes) -> Experiment:
    """Fig. 4: training from orthogonal representations, without batch normalization, and with it.

    ReLU networks of several depths are trained by SGD from Xavier's weights, from weights that make
    the representations of 3 × width images orthogonal layer by layer (`bnmc.torch.orthogonalize_`),
    and from Xavier's weights with batch normalization.  The paper uses CIFAR-10 (``data=``), width
    800, batch size 500, 15 to 75 layers with the readout, 30 epochs, learning rate .01 and 4
    networks; `full` has these sizes.

    Expected by the paper: the loss after the orthogonal start does not depend on the depth, so
    batch normalization is not needed.

    Three powers p of the singular values are in print: −½ (eq. 6 and the code for convolutions), −1
    (the code for perceptrons) and +½ (the text of a notebook); here p is −½ by default.  The
    authors' matrices are slices of orthogonal ones, and only nearly orthogonal; here they are
    orthogonal.  As theirs, the orthogonal start has outputs near 0.

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
    training = Training(run, sizes, sizes.rates, sizes.every, (2.0, -1.0))
    return compare(
        training, partial(xavier, training.images.features, sizes.width), STARTS,
        orthogonal_start(3 * sizes.width, sizes.power), kit.Axis(sizes.depths, "hidden layers"),
        "orthogonality_gap", width=sizes.width, power=sizes.power,
    )  # fmt: skip
