"""Fig. 1: rank before and accuracy after training against depth, with and without batch norm."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from bnmc.experiments import kit, pictures
from bnmc.experiments.kit import Column, Dataset, Drawing, Experiment, Run
from bnmc.experiments.sizes import Several
from bnmc.experiments.statistics import short_interval
from bnmc.experiments.training.networks import mlp
from bnmc.experiments.training.runs import CHANCE, Case, Training, mean_at, or_diverged

#: Networks of the figure, by their normalization.
_NETWORKS = {"without norm": "none", "batch norm": "batch"}

#: Variables: record of `train`, its place, and what it is.
_SHOWN = {
    "rank": ("rank", 0, "rank of the last hidden layer before training"),
    "rank_bound": ("rank_bound", 0, "r of the last hidden layer before training"),
    "trained_rank": ("rank", -1, "rank of the last hidden layer after training"),
    "accuracy": ("accuracy", -1, "accuracy on the training images after training"),
    "loss": ("loss", -1, "cross-entropy after training"),
}


class Sizes(NamedTuple):
    """Sizes of the figure."""

    width: int = 64
    depths: tuple[int, ...] = (1, 3, 6, 10, 16)
    batch: Several = 64
    images: int = 1280
    epochs: int = 5
    rates: tuple[float, ...] = (0.1,)
    chains: Several = 5


@kit.figure(
    "rank-collapse-1", Sizes(), trains=True, torch=True,
    width=128, depths=tuple(range(1, 34, 2)), batch=128,
    images=60_000, epochs=75, rates=(0.001, 0.01, 0.1),
)  # fmt: skip
def fig_1(run: Run, sizes: Sizes) -> Experiment:
    """Fig. 1: rank before and accuracy after training against depth, with and without batch norm.

    ReLU networks with PyTorch's default initialization learn to classify images by SGD.  The paper
    has Fashion-MNIST (``data=``), width and batch size 128, 75 epochs, and 1 to 33 hidden layers;
    `full` has these sizes, and the best one of three learning rates.

    Expected: without batch normalization the rank of the last hidden layer falls to 1 within 16
    layers, and the accuracy to chance.  With batch normalization both stay.  The paper's code
    records these ranks at 1, 3, …, 15 hidden layers without batch normalization, at width and batch
    128: about 125, 100, 68, 55, 34, 15, 3, 1.

    The print and its code differ: networks with batch normalization use Adam there, and two of
    their accuracies are replaced by hand (.874 by .953, .849 by .925).  Here all networks use
    SGD.  The rank counts singular values above max(n, d) 2⁻²³ of the largest, as ``matrix_rank``
    does in float32.  Batch normalization has the statistics of the batch, also for accuracies.

    The figure also shows r, which needs no threshold.  PyTorch's default initialization
    has biases and shrinks the weights, so all samples approach one common vector: r is near 1 long
    before the rank is.

    Returns
    -------
    Experiment

    Examples
    --------
    >>> from bnmc.experiments import rank_collapse
    >>> found = rank_collapse.fig_1()  # doctest: +SKIP
    >>> float(found.data["rank"].sel(network="batch norm", depth=16))  # doctest: +SKIP
    64.0
    """
    training = Training(run, sizes, sizes.rates, every=sizes.epochs)
    results = kit.Results(run, network=_NETWORKS, depth=sizes.depths)
    per = ("network", "depth")
    build = partial(mlp, training.images.features, sizes.width)
    cases = {
        (network, depth): Case(partial(build, depth, norm=_NETWORKS[network]), cost=depth + 1.0)
        for network, depth in results.points(*per)
    }
    records = training.records(cases)
    results.add("rate", per, kit.entry(records, "rate"), "learning rate")
    columns = {}
    for name, (record, place, text) in _SHOWN.items():
        samples = {case: of_case[record][:, place] for case, of_case in records.items()}
        columns[name] = results.add_means(name, per, samples, text)
    rank, bound, accuracy = (columns[name] for name in ("rank", "rank_bound", "accuracy"))
    table = kit.table_of(
        {
            "rank": rank.means(), "r": bound.means(),
            "accuracy after training": or_diverged(results, accuracy),
        },
        heads=("network", "hidden layers"),
    )  # fmt: skip
    return results.experiment(
        f"Rank and accuracy against depth, width {sizes.width}, {training.images.name}", table,
        _findings(sizes, rank, bound, accuracy), _draw, **training.attributes(), width=sizes.width,
        epochs=sizes.epochs,
    )  # fmt: skip


def _findings(sizes: Sizes, rank: Column, bound: Column, accuracy: Column) -> Iterator[str]:
    """Compare the two networks, and rank with accuracy."""
    depths = sizes.depths
    ranks, normed_ranks = (dict(zip(depths, means, strict=True)) for means in rank.means().values)
    plain, normed = (dict(zip(depths, bands, strict=True)) for bands in accuracy.values)
    above = sum(normed[depth][1] > plain[depth][2] for depth in depths)
    below = sum(normed[depth][2] < plain[depth][1] for depth in depths)
    undecided = len(depths) - above - below
    others = (f", at {below} below" if below else "") + (
        f", at {undecided} undecided" if undecided else ""
    )
    first, last = depths[0], depths[-1]
    yield (
        f"Before training the rank, at most {min(sizes.batch, sizes.width)}, goes from "
        f"{ranks[first]:.3g} at {_layers(first)} to {ranks[last]:.3g} at {_layers(last)} without "
        f"batch norm.  With batch norm it is at least {min(normed_ranks.values()):.3g}."
    )
    yield (
        f"After training the accuracy at {_layers(last)} is {short_interval(plain[last])} without "
        f"batch norm and {short_interval(normed[last])} with it; chance is {CHANCE}."
    )
    yield (
        f"At {above} of {len(depths)} depths the interval of the accuracy with batch norm is above "
        f"that without{others}."
    )
    failed = [depth for depth in depths if plain[depth][2] < 2 * CHANCE]
    unclear = [depth for depth in depths if not plain[depth][1] >= 2 * CHANCE]  # or NaN
    if failed:
        depth = failed[0]
        least = mean_at(bound, "without norm", depth)[0]
        yield (
            f"Without batch norm the accuracy is below {2 * CHANCE} from {_layers(depth)} on, "
            f"where the rank is {ranks[depth]:.3g} and r is {least:.3g}."
        )
        if ranks[depth] > 2 > least:
            yield (
                "So training fails before the rank, at the threshold of float32, has collapsed; "
                "r has."
            )
    elif unclear:
        where = ", ".join(map(_layers, unclear))
        yield f"Whether the networks learn without batch norm is undecided at {where}."
    else:
        yield "Without batch norm the networks learn at each of these depths."


def _layers(depth: int) -> str:
    return f"{depth} hidden layer{'s' if depth > 1 else ''}"


def _draw(data: Dataset, figure: Drawing) -> None:
    axes = pictures.axes_of(figure, 3, width=4.4)[0]
    shown = {
        "rank": ("Before training", "rank of the last hidden layer"),
        "rank_bound": ("Before training", "$r$ of the last hidden layer"),
        "accuracy": (f"After {data.attrs['epochs']} epochs", "accuracy on the training images"),
    }
    for ax, (name, (title, label)) in zip(axes, shown.items(), strict=True):
        pictures.lines(ax, data, name, "depth", by="network", marker="o")
        pictures.finish(ax, title, "hidden layers", label, ylim=(0, None))
    axes[2].axhline(CHANCE, color="grey", linestyle=":", linewidth=1, label="chance")
    for ax in axes:
        ax.legend(fontsize="small")
    figure.suptitle(pictures.about(data, "ReLU networks of width {width}, {images}"))
