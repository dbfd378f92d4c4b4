"""The bound of Arora et al. beside the test error, as labels are randomized."""

from __future__ import annotations

import math
from typing import Annotated, Any, NamedTuple, TypeAlias

import numpy as np

from bnmc._support.machine import one_blas_thread
from bnmc.bounds.limits import arora_error
from bnmc.estimate.estimate import Estimate
from bnmc.experiments import kit, pictures
from bnmc.experiments.kit import Dataset, Drawing, Experiment, Float64Array, Progress, Run
from bnmc.experiments.limits.ensembles import Classes, Count, two_classes, unit_length
from bnmc.experiments.sizes import Several
from bnmc.experiments.statistics import short_interval
from bnmc.infinite_width import complexity as complexity_of
from bnmc.infinite_width import nngp, ntk
from bnmc.plot.axes import COLOURS

#: Probability of failure, and the constant of the second term, which the theorem does not name.
_DELTA, _CONSTANT = 0.05, 1.0

_NAMES = {
    "complexity": "leading term of the bound, √(2 yᵀH⁻¹y/n)",
    "bound": "bound with the unnamed constant 1",
    "loss": "mean loss on test images with labels of the same law",
    "error": "share of test images with true labels that are classified wrongly",
}

_Share: TypeAlias = Annotated[float, {"low": 0.0, "high": 1.0}]

_HEADS = ("leading term", "bound", "loss", "error, true labels")


class Sizes(NamedTuple):
    """Sizes of the figure.

    train: largest number of images for training
    test: largest number of images for testing
    shares: shares of random labels
    splits: random splits of the images
    """

    train: Count = 200
    test: Count = 148
    shares: Annotated[tuple[_Share, ...], {"least": 2}] = (
        0.0, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0,
    )  # fmt: skip
    splits: Several = 20
    classes: Classes = (0, 1)


@kit.figure(
    "limits-complexity", Sizes(), trains=True, train=1000, test=1000, splits=50,
    shares=(0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
)  # fmt: skip
def complexity(run: Run, sizes: Sizes) -> Experiment:
    r"""The bound of the test error by Arora et al., as training labels are randomized.

    A ReLU network with one hidden layer, whose hidden weights are trained, has at infinite width
    the kernel :math:`H_{ij} = x_i^T x_j (π - \arccos x_i^T x_j)/(2π)` for inputs of length 1.
    Trained to the end from outputs 0 it predicts :math:`f(x) = H(x, X) H^{-1} y`.  Arora et al.
    (arXiv 1901.08584, Theorem 5.1) bound its expected loss, for a loss in [0, 1] that is
    1-Lipschitz and 0 at the label, by

    .. math:: \sqrt{2 y^T H^{-1} y / n} + O\Big(\sqrt{\ln(n/(λ_n δ))/n}\Big)

    with probability 1 − δ.  The theorem is for all labels of modulus at most 1.

    A share of the labels :math:`\pm 1` of two classes is replaced by independent random signs.  The
    picture shows the leading term, the bound with the constant 1 (the theorem names none) and
    δ = .05, the loss :math:`\min(|f(x) - y|, 1)` on test images whose labels have the same law, and
    the share of wrong signs on test images with true labels.  Bands are 95 % intervals of the mean
    over random splits of one set of images into 200 for training and 148 for testing; splits
    overlap, so intervals do not contain the choice of the images.

    Expected: leading term, loss and error grow with the share of random labels.  A bound of 1 or
    more is vacuous.

    Returns
    -------
    Experiment
        Variables by ``share``.
    """
    inputs = unit_length(two_classes(run.data, sizes.train, sizes.test, sizes.classes))
    train = inputs.train.shape[1]
    labels = np.where(np.hstack([inputs.labels, inputs.test_labels]), 1.0, -1.0)

    def split(number: int, progress: Progress) -> dict[str, Float64Array]:
        """Return the numbers of one random split, each by share.

        The images whose labels are replaced at one share are replaced at larger ones, too.
        """
        order = run.generator.permutation(len(labels))
        rank = run.generator.random(len(labels))
        signs = np.where(run.generator.random(len(labels)) < 0.5, 1.0, -1.0)
        inner, outer = order[:train], order[train:]
        within, across = kernel[np.ix_(inner, inner)], kernel[np.ix_(outer, inner)]
        least = float(np.linalg.eigvalsh(within)[0])
        numbers: dict[str, list[float]] = {name: [] for name in _NAMES}
        for done, share in enumerate(sizes.shares):
            progress(done, len(sizes.shares))
            given = np.where(rank < share, signs, labels)
            leading = complexity_of(within, given[inner])
            outputs = across @ np.linalg.solve(within, given[inner])
            loss = np.minimum(np.abs(outputs - given[outer]), 1.0).mean()
            numbers["complexity"].append(leading)
            numbers["bound"].append(float(arora_error(leading, train, least, _DELTA, _CONSTANT)))
            numbers["loss"].append(float(loss))
            numbers["error"].append(float(np.mean(np.sign(outputs) != labels[outer])))
        return {name: np.array(values) for name, values in numbers.items()}

    with one_blas_thread():
        x = np.hstack([inputs.train, inputs.test])
        scaled = math.sqrt(len(x)) * x  # `ntk` divides by the number of features
        kernel = np.asarray(ntk(scaled, 1) - nngp(scaled, 1))  # without the output weights
        points = [(number,) for number in range(sizes.splits)]
        parts = run.parts(split, points, facts={"images": inputs.digest})
    results = kit.Results(run, share=kit.Axis(sizes.shares, "share of random labels"))
    samples = {name: np.stack(list(kit.entry(parts, name).values())) for name in _NAMES}
    columns = {
        name: results.add_means(name, ("share",), {(): samples[name]}, text)
        for name, text in _NAMES.items()
    }
    table = kit.table_of(
        dict(zip(_HEADS, columns.values(), strict=True)), ("share of random labels",)
    )
    return results.experiment(
        "Bound of Arora et al. and test error, as labels are randomized", table,
        _findings(table.rows, samples), _draw, images=inputs.describe(), splits=sizes.splits,
        delta=_DELTA, constant=_CONSTANT,
    )  # fmt: skip


def _findings(
    rows: tuple[tuple[Any, ...], ...], samples: dict[str, Float64Array]
) -> tuple[str, ...]:
    vacuous, whole = (
        [f"{row[0]:g}" for row in rows if row[column].ci[0] >= 1.0] for column in (1, 2)
    )
    true, random = ([short_interval(row[1]), short_interval(row[3]), _or_none(row[4])]
                    for row in (rows[0], rows[-1]))  # fmt: skip
    grows = [
        np.mean(np.diff(samples[name], axis=1) > 0.0) for name in ("complexity", "loss", "error")
    ]
    below = float(np.mean(samples["loss"] <= samples["complexity"]))
    return (
        f"With true labels the leading term is {true[0]}, the test loss {true[1]} and the test "
        f"error {true[2]}.",
        f"With labels that are random for a share of {rows[-1][0]:g} they are {random[0]}, "
        f"{random[1]} and {random[2]}.",
        f"The test loss is at most the leading term in {100.0 * below:.3g} % of "
        f"{samples['loss'].size} cases.",
        "The leading term alone is vacuous, with a 95 % interval above 1, at these shares of "
        f"random labels: {', '.join(vacuous) or 'none'}; with the second term and its constant 1: "
        f"{', '.join(whole) or 'none'}.",
        "From one share to the next one, in all splits, the leading term grows in "
        f"{100 * grows[0]:.3g} % of cases, the test loss in {100 * grows[1]:.3g} % and the error "
        f"on true labels in {100 * grows[2]:.3g} %.",
    )


def _or_none(error: Estimate) -> str:
    """Return a share of errors as text; 0 in all splits has no interval from their spread."""
    return short_interval(error) if any((error.value, *error.ci)) else "0 in all splits"


def _draw(data: Dataset, figure: Drawing) -> None:
    ax = pictures.axes_of(figure, 1, width=6.6, height=4.6)[0, 0]
    labels = {
        "complexity": "leading term of the bound", "bound": "bound, constant 1",
        "loss": "test loss", "error": "test error, true labels",
    }  # fmt: skip
    for colour, (name, label) in zip(COLOURS, labels.items(), strict=False):
        pictures.draw_band(
            ax, data["share"].values, pictures.curve(data, name), colour, label, marker="o"
        )
    ax.axhline(1.0, color="black", linewidth=0.8, linestyle=":", label="vacuous above")
    title, share = "Infinitely wide ReLU network, one hidden layer", "share of random labels"
    pictures.finish(ax, title, share, "loss, error, or bound", ylim=(0, None), legend=True)
    figure.suptitle("{images}:\nmean of {splits} splits, 95 % interval".format(**data.attrs))
