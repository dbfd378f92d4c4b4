"""Fig. 3: loss and orthogonality gap while networks of several depths are trained."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from bnmc.experiments import kit, pictures
from bnmc.experiments.experiment import Dataset, Drawing, Experiment
from bnmc.experiments.kit import Float64Array
from bnmc.experiments.orthogonalizes.common import xavier
from bnmc.experiments.runs import Run
from bnmc.experiments.sizes import Several
from bnmc.experiments.statistics import banded, short_interval
from bnmc.experiments.training.runs import Case, Curves, Training, or_diverged


class Sizes(NamedTuple):
    """Sizes of the figure."""

    width: int = 48
    depths: tuple[int, ...] = (4, 8, 16, 24)
    batch: Several = 64
    images: int = 640
    epochs: int = 16
    every: int = 2
    rate: float = 0.03
    networks: Several = 5


@kit.figure(
    "orthogonalizes-3", Sizes(), trains=True, width=800, depths=(14, 29, 44, 59, 74), batch=500,
    images=50_000, epochs=30, every=1, rate=0.01,
)  # fmt: skip
def fig_3(run: Run, sizes: Sizes) -> Experiment:
    """Fig. 3: loss and orthogonality gap while networks of several depths are trained.

    ReLU networks without batch normalization and without biases start from Xavier's weights with
    gain √2, and SGD trains them.  The paper uses CIFAR-10 (``data=``), width 800, batch size 500,
    15 to 75 layers with the readout, 30 epochs, and learning rate .01; `full` has these sizes.
    Grey values are scaled to [−1, 1].

    Expected: the deeper the network, the larger the orthogonality gap of its last hidden layer
    before training, and the slower the training.  The paper states that SGD first makes the
    representations more orthogonal: the gap falls in the first epochs.

    The gap is ``‖G/Tr G − I/n‖`` of the Gram matrix of the last hidden layer for one batch of n
    samples, as the paper defines it; it is at most √(1 − 1/n).  The published code computes another
    number, from the singular values of the 10 logits of each batch.

    Returns
    -------
    Experiment

    Examples
    --------
    >>> from bnmc.experiments import orthogonalizes
    >>> found = orthogonalizes.fig_3()  # doctest: +SKIP
    >>> found.data["loss"].dims  # doctest: +SKIP
    ('depth', 'epoch')
    """
    training = Training(run, sizes, (sizes.rate,), sizes.every, (2.0, -1.0))
    features = training.images.features
    cases = {
        (depth,): Case(partial(xavier, features, sizes.width, depth), cost=depth + 1.0)
        for depth in sizes.depths
    }
    names = ("loss", "accuracy", "orthogonality_gap")
    curves = Curves(training, cases, names, depth=sizes.depths)
    columns = {
        f"{text} {when}": or_diverged(curves.results, column)
        for text, name in (("gap", "orthogonality_gap"), ("loss", "loss"))
        for when, column in (("before", curves.before(name)), ("after", curves.after(name)))
    }
    gaps = [curves.samples[case]["orthogonality_gap"] for case in cases]
    return curves.results.experiment(
        f"Loss and orthogonality gap in training, width {sizes.width}, {training.images.name}",
        kit.table_of(columns, heads=("hidden layers",)),
        _findings(curves, np.stack([banded(gap[:, 1] - gap[:, 0]) for gap in gaps]), sizes.batch),
        _draw, **training.attributes(), width=sizes.width,
    )  # fmt: skip


def _findings(curves: Curves, changes: Float64Array, batch: int) -> tuple[str, ...]:
    """Compare depths; `changes` are those of the gap of each network until the second record."""
    gap, loss = (curves.columns[name].values for name in ("orthogonality_gap", "loss"))
    depths, epochs = curves.results.axes["depth"], curves.results.axes["epoch"]
    most = np.sqrt(1 - 1 / batch)
    return (
        f"Before training the gap is {short_interval(gap[0, 0])} at {depths[0]} hidden layers and "
        f"{short_interval(gap[-1, 0])} at {depths[-1]}; at most it is {most:.3g}.",
        f"After {epochs[-1]:.0f} epochs the loss is {short_interval(loss[0, -1])} at {depths[0]} "
        f"hidden layers and {short_interval(loss[-1, -1])} at {depths[-1]}.",
        f"In the first {epochs[1]:.0f} epochs the gap falls, with a 95 % interval of the change "
        f"below 0, at these numbers of hidden layers: {_where_it_falls(depths, changes)}.",
        f"After {epochs[-1]:.0f} epochs the gap is {short_interval(gap[0, -1])} at {depths[0]} "
        f"hidden layers and {short_interval(gap[-1, -1])} at {depths[-1]}.",
    )


def _where_it_falls(depths: Sequence[int], changes: Float64Array) -> str:
    """Return the depths at which the gap falls, those at which it rises, and the others."""
    at = dict(zip(map(str, depths), changes, strict=True))
    fell = [depth for depth, (_, _, high) in at.items() if high < 0]
    rose = [depth for depth, (_, low, _) in at.items() if low > 0]
    others = [depth for depth in at if depth not in (*fell, *rose)]
    words = {"it rises at": rose, "undecided at": others}
    return "; ".join([
        ", ".join(fell) or "none",
        *(f"{verb} {', '.join(where)}" for verb, where in words.items() if where),
    ])  # fmt: skip


def _draw(data: Dataset, figure: Drawing) -> None:
    titles = {"loss": "Training", "orthogonality_gap": "Orthogonality"}
    for ax, (name, title) in zip(pictures.axes_of(figure, 2)[0], titles.items(), strict=True):
        pictures.lines(ax, data, name, "epoch", by="depth", text="{} hidden layers")
        ax.set(xlabel="epoch", ylabel=data[name].attrs["long_name"], ylim=(0, None))
        ax.set_title(title, loc="left")
        ax.legend(fontsize="small")
    figure.suptitle(
        f"ReLU networks without norm, width {data.attrs['width']}, {data.attrs['images']}: mean of "
        f"{data.attrs['networks']} networks, 95 % interval"
    )
