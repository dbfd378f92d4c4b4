"""`train`: stochastic gradient descent, and the numbers of the layers between its epochs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnmc._support.extras import import_extra
from bnmc._support.progress import Progress
from bnmc.errors import NonFiniteError
from bnmc.torch.layers import chosen_layers, forward, weight_matrices
from bnmc.torch.representations import Numbers, measured

if TYPE_CHECKING:
    import torch

Float64Array = NDArray[np.float64]


def cross_entropy(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the mean cross-entropy of images, with outputs as logits."""
    torch: Any = import_extra("torch", "torch")
    loss: torch.Tensor = torch.nn.functional.cross_entropy(outputs, labels)
    return loss


def square_loss(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the mean square distance of outputs from the unit vectors of labels, less 1/classes.

    The targets have mean 0 over the classes.
    """
    torch: Any = import_extra("torch", "torch")
    classes = outputs.shape[1]
    targets = torch.nn.functional.one_hot(labels, classes).to(outputs.dtype) - 1.0 / classes
    loss: torch.Tensor = (outputs - targets).square().sum(dim=1).mean()
    return loss


class Plan(NamedTuple):
    """How a network is trained.

    Attributes
    ----------
    epochs : int
        Passes over the images; 0 only measures.
    batch : int
        Images per step.  It divides the number of images.
    every : int
        Epochs between records.
    criterion : callable
        Loss of outputs and labels, which is minimized.
    """

    epochs: int
    batch: int
    every: int = 1
    criterion: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = cross_entropy

    @property
    def records(self) -> list[float]:
        """Epochs after which the network is measured: 0, each `every`-th one, and the last one."""
        return [*map(float, range(0, self.epochs, self.every)), float(self.epochs)]


def train(
    model: torch.nn.Module,
    images: torch.Tensor,
    labels: torch.Tensor,
    plan: Plan,
    rate: float,
    rng: np.random.Generator,
    progress: Progress | None = None,
    test: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> dict[str, Float64Array]:
    """Train a network by plain stochastic gradient descent, in place.

    Each epoch takes the images in a new random order.  On one thread, equal arguments give equal
    bits (`seeded` of `networks.py`).

    Parameters
    ----------
    model : torch.nn.Module
    images : (n, ...) torch.Tensor
        n is a multiple of ``plan.batch``.
    labels : (n,) torch.Tensor of int64
    plan : Plan
    rate : float
        Learning rate.
    rng : numpy.random.Generator
        Draws the orders.
    progress : callable, optional
        Called with (done, total) epochs.
    test : pair of torch.Tensor, optional
        Images and labels that are not trained on.

    Returns
    -------
    dict of str to (records,) ndarray of float64
        Numbers after the epochs ``plan.records``.

        - ``loss``, ``accuracy``: mean loss and share of right answers over all images, in batches
          of the given order.  ``test_loss``, ``test_accuracy``: those of the test images.
        - ``rank``, ``rank_bound``, ``orthogonality_gap``, ``mean_correlation``: numbers of the last
          hidden representation of the first batch.  The rank counts singular values above
          ``max(batch, width) 2⁻²³`` of the largest, the threshold of ``matrix_rank`` for float32.
          The others are those of `bnmc.torch.Measurement`.
        - ``gradient_norm``: Frobenius norm of the gradient of the loss of the first batch by the
          weights of the first layer.

        If the loss becomes infinite or NaN, training ends, and the numbers of all later records are
        NaN.  Gap and correlation are NaN also for a representation that is zero.

    Raises
    ------
    NonFiniteError
        If the loss before training is infinite or NaN.

    Examples
    --------
    >>> import numpy as np, torch
    >>> from bnmc.experiments.training.images import images
    >>> from bnmc.experiments.training.networks import mlp, seeded
    >>> from bnmc.experiments.training.trainer import Plan, train
    >>> data = images(None, 320, 32)
    >>> inputs, labels = torch.from_numpy(data.pixels), torch.from_numpy(data.labels)
    >>> with seeded(0):
    ...     model = mlp(64, 16, 2, norm="batch")
    ...     records = train(model, inputs, labels, Plan(4, 32), 0.1, np.random.default_rng(0))
    >>> bool(records["accuracy"][-1] > 0.8), records["rank"].shape
    (True, (5,))
    """
    torch: Any = import_extra("torch", "torch")
    given: Any = model
    weights = list(given.parameters())
    first = _record(given, images, labels, plan, test)
    if first is None:
        raise NonFiniteError(None, None, "loss before training")
    records = [first]
    finite = True
    for epoch in range(1, plan.epochs + 1):
        order = torch.from_numpy(rng.permutation(len(labels)))
        for chosen in order.split(plan.batch):
            finite = finite and _step(
                given, weights, images[chosen], labels[chosen], rate, plan
            )  # fmt: skip
        if epoch in plan.records:
            record = _record(given, images, labels, plan, test) if finite else None
            finite = record is not None
            records.append(record or dict.fromkeys(first, math.nan))
        if progress is not None:
            progress(epoch, plan.epochs)
    return {name: np.array([record[name] for record in records]) for name in first}


def _step(
    model: Any, weights: list[Any], images: Any, labels: Any, rate: float, plan: Plan
) -> bool:
    """Do one step of gradient descent if the loss is finite; return whether it is."""
    torch: Any = import_extra("torch", "torch")
    loss = plan.criterion(model(images), labels)
    if not math.isfinite(loss.item()):
        return False
    gradients = torch.autograd.grad(loss, weights)
    with torch.no_grad():
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.sub_(gradient, alpha=rate)
    return True


def _evaluated(model: Any, images: Any, labels: Any, plan: Plan) -> tuple[float, float]:
    """Return the mean loss and the share of right answers, in batches of the given order."""
    torch: Any = import_extra("torch", "torch")
    losses, right = [], 0
    with torch.no_grad():
        for begin in range(0, len(labels), plan.batch):
            some = slice(begin, begin + plan.batch)
            output = model(images[some])
            losses.append(float(plan.criterion(output, labels[some])))
            right += int((output.argmax(dim=1) == labels[some]).sum())
    return float(np.mean(losses)), right / len(labels)


def _record(
    model: Any, images: Any, labels: Any, plan: Plan, test: tuple[Any, Any] | None
) -> dict[str, float] | None:
    """Return the numbers of one record; None if the network has become infinite or NaN."""
    torch: Any = import_extra("torch", "torch")
    evaluated = _evaluated(model, images, labels, plan)
    if not math.isfinite(evaluated[0]):
        return None
    tested = dict(
        zip(("test_loss", "test_accuracy"), _evaluated(model, *test, plan), strict=True)
        if test is not None
        else ()
    )
    hidden: list[tuple[str, Any]] = []
    output = forward(
        model, images[: plan.batch], chosen_layers(model),
        lambda name, _, tensor: hidden.append((name, tensor.detach())),
    )  # fmt: skip
    loss = plan.criterion(output, labels[: plan.batch])
    first, *_ = weight_matrices(model).values()
    (gradient,) = torch.autograd.grad(loss, first.weight)
    name, last = hidden[-1]
    numbers = measured(name, last, plan.batch, "sample", False)
    return {
        "loss": evaluated[0],
        "accuracy": evaluated[1],
        **tested,
        "rank": _rank(numbers, plan.batch, last[0].numel()),
        "rank_bound": numbers.rank_bound,
        "orthogonality_gap": numbers.orthogonality_gap,
        "mean_correlation": numbers.mean_correlation,
        "gradient_norm": float(gradient.norm()),
    }


def _rank(numbers: Numbers, samples: int, size: int) -> float:
    """Return the number of singular values that ``matrix_rank`` counts in float32."""
    values = np.sqrt(np.maximum(numbers.spectrum, 0.0))
    threshold = max(samples, size) * 2.0**-23 * values.max()
    return float(np.count_nonzero(values > threshold))
