"""The bound of Arora et al. beside the test error, as labels are randomized."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnmc._support.machine import one_blas_thread
from bnmc._support.progress import Progress
from bnmc.bounds.limits import arora_error
from bnmc.experiments.data import Variable, curve, dataset, with_ends
from bnmc.experiments.experiment import Experiment, Table, with_parameters
from bnmc.experiments.limits.inputs import TwoClasses, two_classes, unit_length
from bnmc.experiments.parts import Call, Store, chosen
from bnmc.experiments.pictures import axes_of, draw_band
from bnmc.experiments.statistics import banded, mean_of_band, short_interval
from bnmc.infinite_width import complexity as complexity_of
from bnmc.infinite_width import nngp, ntk
from bnmc.plot.axes import COLOURS

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

__all__ = ["DEFAULT", "FULL", "Sizes", "complexity", "experiment"]

Float64Array = NDArray[np.float64]


class Sizes(NamedTuple):
    """Images for training and testing, shares of random labels, splits, and classes."""

    train: int
    test: int
    shares: tuple[float, ...]
    splits: int
    classes: tuple[int, int] = (0, 1)


DEFAULT = Sizes(200, 148, (0.0, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0), 20)
FULL = Sizes(1000, 1000, (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0), 50)

#: Probability of failure, and the constant of the second term, which the theorem does not name.
_DELTA, _CONSTANT = 0.05, 1.0

_NAMES = {
    "complexity": "leading term of the bound, √(2 yᵀH⁻¹y/n)",
    "bound": "bound with the unnamed constant 1",
    "loss": "mean loss on test images with labels of the same law",
    "error": "share of test images with true labels that are classified wrongly",
}


@with_parameters
def complexity(
    *,
    full: bool = False,
    rng: Any = 0,
    progress: bool | Progress = False,
    threads: int | None = None,
    store: Store = None,
    data: Store = None,
) -> Experiment:
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
    call = Call("limits-complexity", full, rng, progress, threads, store, data)
    return experiment(chosen(DEFAULT, FULL, full), call)


def experiment(sizes: Sizes, call: Call) -> Experiment:
    """Run the experiment with these sizes."""
    inputs = unit_length(two_classes(call, sizes.train, sizes.test, sizes.classes))
    with one_blas_thread():
        found = _measure(sizes, call, inputs)
    bands = {name: banded(values) for name, values in found.items()}
    rows = tuple(
        (share, *(mean_of_band(bands[name][row], sizes.splits) for name in _NAMES))
        for row, share in enumerate(sizes.shares)
    )
    columns = ("share of random labels", "leading term", "bound", "loss", "error, true labels")
    title = "Bound of Arora et al. and test error, as labels are randomized"
    data = dataset(
        {
            name: variable
            for key, text in _NAMES.items()
            for name, variable in with_ends(key, ("share",), bands[key], text).items()
        },
        {"share": Variable(("share",), list(sizes.shares), "share of random labels")},
        call,
        {
            "images": inputs.describe(), "splits": sizes.splits, "delta": _DELTA,
            "constant": _CONSTANT,
        },
    )  # fmt: skip
    findings = _findings(sizes, data, found)
    return Experiment(call.name, title, data, Table(columns, rows), findings, _draw)


def _measure(sizes: Sizes, call: Call, inputs: TwoClasses) -> dict[str, Float64Array]:
    """Return numbers by name, (splits, shares)."""
    x = np.hstack([inputs.train, inputs.test])
    scaled = math.sqrt(len(x)) * x  # `ntk` divides by the number of features
    kernel = np.asarray(ntk(scaled, 1) - nngp(scaled, 1))  # without the output weights
    labels = np.where(np.hstack([inputs.labels, inputs.test_labels]), 1.0, -1.0)
    train = inputs.train.shape[1]
    with call.parts([1.0] * sizes.splits) as parts:
        ones = [
            parts.run(_split, kernel, labels, train, sizes.shares, call.generator)
            for _ in range(sizes.splits)
        ]
    return {name: np.stack([one[name] for one in ones]) for name in _NAMES}


def _split(
    kernel: Float64Array,
    labels: Float64Array,
    train: int,
    shares: tuple[float, ...],
    rng: np.random.Generator,
    progress: Progress,
) -> dict[str, Float64Array]:
    """Return all numbers of one random split.

    The images whose labels are replaced at one share are replaced at larger ones, too.
    """
    order = rng.permutation(len(labels))
    rank, signs = rng.random(len(labels)), np.where(rng.random(len(labels)) < 0.5, 1.0, -1.0)
    inner, outer = order[:train], order[train:]
    own, across = kernel[np.ix_(inner, inner)], kernel[np.ix_(outer, inner)]
    least = float(np.linalg.eigvalsh(own)[0])
    found: dict[str, list[float]] = {name: [] for name in _NAMES}
    for done, share in enumerate(shares):
        progress(done, len(shares))
        given = np.where(rank < share, signs, labels)
        leading = complexity_of(own, given[inner])
        outputs = across @ np.linalg.solve(own, given[inner])
        found["complexity"].append(leading)
        found["bound"].append(float(arora_error(leading, train, least, _DELTA, _CONSTANT)))
        found["loss"].append(float(np.minimum(np.abs(outputs - given[outer]), 1.0).mean()))
        found["error"].append(float(np.mean(np.sign(outputs) != labels[outer])))
    return {name: np.array(values) for name, values in found.items()}


def _findings(
    sizes: Sizes, data: xarray.Dataset, found: dict[str, Float64Array]
) -> tuple[str, ...]:
    shares = data["share"].values
    leading, loss, error = (curve(data, name) for name in ("complexity", "loss", "error"))
    vacuous = [f"{share:g}" for share, band in zip(shares, leading, strict=True) if band[1] >= 1.0]
    whole = [f"{one:g}" for one, band in zip(shares, curve(data, "bound"), strict=True)
             if band[1] >= 1.0]  # fmt: skip
    grows = [
        np.mean(np.diff(found[name], axis=1) > 0.0) for name in ("complexity", "loss", "error")
    ]
    below = float(np.mean(found["loss"] <= found["complexity"]))
    return (
        f"With true labels the leading term is {short_interval(leading[0])}, the test loss "
        f"{short_interval(loss[0])} and the test error {_or_none(error[0])}.",
        f"With labels that are random for a share of {shares[-1]:g} they are "
        f"{short_interval(leading[-1])}, {short_interval(loss[-1])} and "
        f"{_or_none(error[-1])}.",
        f"The test loss is at most the leading term in {100.0 * below:.3g} % of "
        f"{found['loss'].size} cases.",
        "The leading term alone is vacuous, with a 95 % interval above 1, at these shares of "
        f"random labels: {', '.join(vacuous) or 'none'}; with the second term and its constant 1: "
        f"{', '.join(whole) or 'none'}.",
        "From one share to the next one, in all splits, the leading term grows in "
        f"{100 * grows[0]:.3g} % of cases, the test loss in {100 * grows[1]:.3g} % and the error "
        f"on true labels in {100 * grows[2]:.3g} %.",
    )


def _or_none(band: Float64Array) -> str:
    """Return a share of errors as text; 0 in all splits has no interval from their spread."""
    return short_interval(band) if band.any() else "0 in all splits"


def _draw(data: xarray.Dataset, figure: Figure) -> None:
    ax = axes_of(figure, 1, width=6.6, height=4.6)[0, 0]
    labels = {
        "complexity": "leading term of the bound", "bound": "bound, constant 1",
        "loss": "test loss", "error": "test error, true labels",
    }  # fmt: skip
    for index, (name, label) in enumerate(labels.items()):
        draw_band(ax, data["share"].values, curve(data, name), COLOURS[index], label, marker="o")
    ax.axhline(1.0, color="black", linewidth=0.8, linestyle=":", label="vacuous above")
    ax.set(xlabel="share of random labels", ylabel="loss, error, or bound", ylim=(0, None))
    ax.set_title("Infinitely wide ReLU network, one hidden layer", loc="left")
    ax.legend(fontsize="small")
    figure.suptitle(
        f"{data.attrs['images']}:\nmean of {data.attrs['splits']} splits, 95 % interval"
    )
