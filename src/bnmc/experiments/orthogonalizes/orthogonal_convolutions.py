"""Fig. 7: training convolutional networks from orthogonal representations."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bnmc.experiments import kit
from bnmc.experiments.experiment import Experiment
from bnmc.experiments.orthogonalizes.common import STARTS, orthogonal_start
from bnmc.experiments.runs import Run
from bnmc.experiments.sizes import Several
from bnmc.experiments.training.comparison import compare
from bnmc.experiments.training.images import Images
from bnmc.experiments.training.networks import convolutions_of, xavier_
from bnmc.experiments.training.runs import Training

if TYPE_CHECKING:
    import torch


class Sizes(NamedTuple):
    """Sizes of the figure.

    further: numbers of further convolutions, which follow the last of the stages
    orthogonalized: images that the orthogonal start sees
    """

    stages: tuple[tuple[int, ...], ...] = ((8,), (8,))
    further: tuple[int, ...] = (4, 14)
    images: int = 384
    batch: Several = 64
    orthogonalized: int = 256
    epochs: int = 8
    every: int = 2
    rates: tuple[float, ...] = (0.03,)
    networks: Several = 5


@kit.figure(
    "orthogonalizes-7", Sizes(), trains=True, stages=((64,), (192,), (192, 256, 256)),
    further=(15, 75), images=50_000, batch=30, epochs=20, every=1, rates=(0.001,), networks=4,
)  # fmt: skip
def fig_7(run: Run, sizes: Sizes) -> Experiment:
    """Fig. 7: training convolutional networks from orthogonal representations.

    ReLU networks of 3 × 3 convolutions are trained from Xavier's weights, from weights that make
    the patches of some images orthogonal layer by layer (`bnmc.torch.orthogonalize_`), and from
    Xavier's weights with batch normalization.  The paper uses CIFAR-10 (``data=``) and an
    AlexNet-like network with 15 or 75 further convolutions of 256 channels, batch size 30, 20
    epochs and learning rate .001; `full` has these sizes, with one linear layer as classifier and
    no dropout.

    Recorded by the authors, loss after 20 epochs: for 75 further convolutions 1.91 from Xavier's
    weights and 1.30 from orthogonal ones; for 15 of them .92 and 1.17.  So the orthogonal start is
    the worse one for the shallower network, which the paper does not say.

    The orthogonal start makes the channels orthogonal over all positions of all samples.  Whole
    samples, over channels and positions, remain aligned: after ReLU all entries are positive.  So
    the gap of the last layer, which classifies, is not smaller than from Xavier's weights.

    The authors change the layers with equal numbers of input and output channels.  Here all
    convolutions after the first change.

    Returns
    -------
    Experiment

    Examples
    --------
    >>> from bnmc.experiments import orthogonalizes
    >>> found = orthogonalizes.fig_7()  # doctest: +SKIP
    >>> found.data["loss"].dims  # doctest: +SKIP
    ('start', 'depth', 'epoch')
    """
    training = Training(run, sizes, sizes.rates, sizes.every)
    return compare(
        training, partial(_network, training.images, sizes.stages), STARTS,
        orthogonal_start(sizes.orthogonalized, -0.5),
        kit.Axis(sizes.further, "further convolutions"), "orthogonality_gap",
        channels=sizes.stages[-1][-1],
    )  # fmt: skip


def _network(
    images: Images, stages: tuple[tuple[int, ...], ...], further: int, norm: str = "none"
) -> torch.nn.Module:
    """Return a network with further convolutions in its last stage."""
    *others, last = stages
    longer = (*others, last + last[-1:] * further)
    return xavier_(convolutions_of(images, longer)(norm=norm), gain=np.sqrt(2.0))
