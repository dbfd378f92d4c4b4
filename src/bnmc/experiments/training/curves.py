"""Means over trained networks, over the axes of their cases and the epochs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bnmc.experiments import kit
from bnmc.experiments.kit import Float64Array
from bnmc.experiments.runs import Point
from bnmc.experiments.training.runs import Case, Training

#: Accuracy of a network that has learnt nothing, with ten classes of equal size.
CHANCE = 0.1

#: Records of a training, by the names of `train`.
_TEXTS = {
    "loss": "cross-entropy of the training images",
    "accuracy": "accuracy on the training images",
    "rank": "rank of the last hidden layer",
    "rank_bound": "r of the last hidden layer",
    "orthogonality_gap": "orthogonality gap of the last hidden layer",
    "mean_correlation": "mean cosine in the last hidden layer",
    "gradient_norm": "norm of the gradient by the first weights",
}


class Curves:
    """Trained networks of several cases, and the means of their records.

    Parameters
    ----------
    training : Training
    cases : mapping of tuple to Case
        By labels along `axes`, in C order.
    names : iterable of str
        Records of `train`.
    **axes : kit.Axis or iterable

    Attributes
    ----------
    results : kit.Results
        With the learning rates, and a column for each of `names`.
    samples : dict of tuple to dict
        As `Training.records` returns them.
    rate : kit.Column
    columns : dict of str to kit.Column
        Means with intervals by name, over `axes` and the epochs.
    """

    def __init__(
        self,
        training: Training,
        cases: Mapping[Point, Case],
        names: Iterable[str],
        **axes: kit.Axis | Iterable[Any],
    ) -> None:
        self.samples = training.records(cases)
        self.results = kit.Results(training.run, **axes, epoch=training.plan.records)
        dims = tuple(axes)
        self.rate = self.results.add("rate", dims, kit.entry(self.samples, "rate"), "learning rate")
        self.columns = {
            name: self.results.add_means(
                name, (*dims, "epoch"), kit.entry(self.samples, name), _TEXTS[name]
            )
            for name in names
        }

    def before(self, name: str) -> kit.Column:
        """Return the means before training."""
        return self.columns[name].at(epoch=0)

    def after(self, name: str) -> kit.Column:
        """Return the means after training."""
        return self.columns[name].at(epoch=-1)


def or_diverged(results: kit.Results, column: kit.Column) -> kit.Column:
    """Return a column for a table, with "diverged" instead of means that are infinite or NaN."""
    cells = {at: "diverged" if cell is None else cell for at, cell in column.cells().items()}
    return results.column(tuple(column.axes), cells)


def mean_at(column: kit.Column, *labels: Any) -> Float64Array:
    """Return a mean of a column and the ends of its interval; NaN if a network diverged."""
    axes = column.axes.values()
    band: Float64Array = column.values[
        tuple(axis.index(label) for axis, label in zip(axes, labels, strict=True))
    ]
    return band
