"""Several trained networks of each case of a figure, and their means over the epochs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from bnmc._support.extras import import_extra
from bnmc.experiments import kit
from bnmc.experiments.kit import Float64Array, Point, Progress, Run
from bnmc.experiments.training.images import images
from bnmc.experiments.training.networks import seeded
from bnmc.experiments.training.trainer import Plan, cross_entropy, train

if TYPE_CHECKING:
    import torch

#: Changes a network in place before its training; takes the network, the images and a generator.
Preparation: TypeAlias = Callable[[Any, Any, np.random.Generator], object]

#: Accuracy of a network that has learnt nothing, with ten classes of equal size.
CHANCE = 0.1

#: Records of a training, by the names of `train`.
_TEXTS = {
    "loss": "cross-entropy of the training images",
    "accuracy": "accuracy on the training images",
    "test_loss": "cross-entropy of the test images",
    "test_accuracy": "accuracy on the test images",
    "rank": "rank of the last hidden layer",
    "rank_bound": "r of the last hidden layer",
    "orthogonality_gap": "orthogonality gap of the last hidden layer",
    "mean_correlation": "mean cosine in the last hidden layer",
    "gradient_norm": "norm of the gradient by the first weights",
}


class Case(NamedTuple):
    """One kind of network.

    Attributes
    ----------
    build : callable
        Returns a new network; draws from PyTorch's random state.
    prepare : callable, optional
        A `Preparation`.
    cost : float
        Relative run time.
    noise : bool
        Whether the images are replaced by independent uniform grey values in [0, 1].
    faster : float
        Factor of the learning rates.
    """

    build: Callable[[], torch.nn.Module]
    prepare: Preparation | None = None
    cost: float = 1.0
    noise: bool = False
    faster: float = 1.0


class Training:
    """What all trainings of a figure share.

    Parameters
    ----------
    run : Run
    sizes : NamedTuple
        Sizes of the figure, with `images`, `batch`, `epochs` and `chains` (>= 2).  The networks
        of a case differ in weights and in the order of the images.
    rates : tuple of float
        Learning rates.  The records of a case are those of the rate with the smallest mean final
        loss.
    every : int, default 1
        Epochs between records.
    scale : (float, float)
        Factor of the grey values, and the constant added to them.
    tests : int, default 0
        Further images, of which the networks have a loss and an accuracy, too.  If there are too
        few images, both numbers are smaller.
    criterion : callable, default `cross_entropy`
        Loss of outputs and labels, which is minimized.

    Raises
    ------
    MissingExtraError
        If PyTorch (extra ``torch``) is not installed.
    ArgumentError, ArgumentTypeError
        As for `images`.
    """

    def __init__(
        self,
        run: Run,
        sizes: Any,
        rates: tuple[float, ...],
        every: int = 1,
        scale: tuple[float, float] = (1.0, 0.0),
        *,
        tests: int = 0,
        criterion: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = cross_entropy,
    ) -> None:
        import_extra("torch", "torch")
        self.run, self.chains = run, sizes.chains
        self.images = images(run.data, sizes.images + tests, sizes.batch)
        share = len(self.images.labels) * tests // (sizes.images + tests)
        self.tests = share - share % sizes.batch
        self.plan = Plan(sizes.epochs, sizes.batch, every, criterion)
        self._rates, self._scale = rates, scale

    def attributes(self) -> dict[str, Any]:
        """Return attributes of the data."""
        return {
            "batch": self.plan.batch, "chains": self.chains,
            "images": f"{self.images.name}, {len(self.images.labels) - self.tests} images",
        }  # fmt: skip

    def facts(self) -> dict[str, str]:
        """Return facts on which trained networks depend."""
        torch: Any = import_extra("torch", "torch")
        return {"images": self.images.digest(), "torch": torch.__version__}

    def network(self, case: Case, rate: float, progress: Progress) -> dict[str, Float64Array]:
        """Return the records of a trained network; the run draws its seeds."""
        torch: Any = import_extra("torch", "torch")
        pixels, labels = map(torch.from_numpy, self.images[1:])
        factor, constant = self._scale
        weights, order = map(int, self.run.generator.integers(2**63, size=2))
        rng = np.random.default_rng(order)
        with seeded(weights):
            model = case.build()
            grey = torch.rand(pixels.shape, dtype=pixels.dtype) if case.noise else pixels
            inputs = grey * factor + constant
            split = len(labels) - self.tests
            test = (inputs[split:], labels[split:]) if self.tests else None
            inputs = inputs[:split]
            if case.prepare is not None:
                case.prepare(model, inputs, rng)
            return train(
                model, inputs, labels[:split], self.plan, rate * case.faster, rng, progress, test
            )

    def records(self, cases: Mapping[Point, Case]) -> dict[Point, dict[str, Float64Array]]:
        """Train networks of each case; each network and learning rate is one part of the run.

        Returns
        -------
        dict of tuple to dict of str to ndarray
            By case the records of `train`, (networks, records), and the learning rate as ``rate``.
        """

        def network(at: Point, rate: float, _: int, progress: Progress) -> dict[str, Float64Array]:
            return self.network(cases[at], rate, progress)

        points = list(itertools.product(cases, self._rates, range(self.chains)))
        costs = [cases[at].cost for at, _, _ in points]
        parts = self.run.parts(network, points, costs, self.facts())

        def stacked(at: Point, rate: float) -> dict[str, Float64Array]:
            records = [parts[at, rate, k] for k in range(self.chains)]
            arrays = {name: np.stack([record[name] for record in records]) for name in records[0]}
            return {**arrays, "rate": np.array(rate * cases[at].faster)}

        return {
            at: min((stacked(at, rate) for rate in self._rates), key=_final_loss) for at in cases
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


def _final_loss(records: Mapping[str, Float64Array]) -> float:
    mean = float(records["loss"][:, -1].mean())
    return mean if np.isfinite(mean) else np.inf
