"""`train`: stochastic gradient descent, and the numbers of the layers between its epochs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnmc._support.extras import import_extra
from bnmc._support.progress import Progress
from bnmc.errors import NonFiniteError
from bnmc.torch.hidden import weight_matrices
from bnmc.torch.layers import chosen_layers, forward
from bnmc.torch.representations import Numbers, measured

if TYPE_CHECKING:
    import torch

__all__ = ["LAYER_NUMBERS", "Plan", "train"]

Float64Array = NDArray[np.float64]

#: Numbers of each representation, by the names that `bnmc.torch.measure` gives them.
LAYER_NUMBERS = ("rank", "rank_bound", "orthogonality_gap", "mean_correlation", "scale")


class Plan(NamedTuple):
    """How a network is trained.

    Attributes
    ----------
    epochs : int
        Passes over the images; 0 only measures.
    batch : int
        Images per step.  It divides the number of images.
    rate : float
        Learning rate.
    every : int
        Epochs between records.  There is a record before the first and after the last epoch.
    all_layers : bool
        Whether records contain all hidden layers.  Otherwise they contain the last one.
    """

    epochs: int
    batch: int
    rate: float
    every: int = 1
    all_layers: bool = False


def train(
    model: torch.nn.Module,
    images: torch.Tensor,
    labels: torch.Tensor,
    plan: Plan,
    rng: np.random.Generator,
    progress: Progress | None = None,
) -> dict[str, Float64Array]:
    """Train a network by plain stochastic gradient descent on the cross-entropy, in place.

    Each epoch takes the images in a new random order.  On one thread, equal arguments give equal
    bits (`seeded` of `networks.py`).

    Parameters
    ----------
    model : torch.nn.Module
    images : (n, ...) torch.Tensor
        n is a multiple of ``plan.batch``.
    labels : (n,) torch.Tensor of int64
    plan : Plan
    rng : numpy.random.Generator
        Draws the orders.
    progress : callable, optional
        Called with (done, total) epochs.

    Returns
    -------
    dict of str to ndarray of float64
        One row for each record.

        - ``epoch``, ``loss``, ``accuracy``, shape (records,): mean cross-entropy and share of right
          answers over all images, in batches of the given order.
        - ``rank``, ``rank_bound``, ``orthogonality_gap``, ``mean_correlation``, ``scale``, shape
          (records, layers): numbers of the hidden representations of the first batch.  The rank
          counts singular values above ``max(batch, width) 2⁻²³`` of the largest, the threshold of
          ``matrix_rank`` for float32.  The others are those of `bnmc.torch.Measurement`.
        - ``gradient_norm``, shape (records, weight layers): Frobenius norm of the gradient of the
          loss of the first batch by the weights of each layer, the readout included.

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
    ...     found = train(model, inputs, labels, Plan(4, 32, 0.1), np.random.default_rng(0))
    >>> bool(found["accuracy"][-1] > 0.8), found["rank"].shape
    (True, (5, 1))
    """
    torch: Any = import_extra("torch", "torch")
    given: Any = model
    weights = list(given.parameters())
    first = _record(given, images, labels, plan)
    if first is None:
        raise NonFiniteError(None, None, "loss before training")
    nothing = {name: np.full_like(one, math.nan) for name, one in first.items()}
    records, epochs = [first], [0]
    finite = True
    for epoch in range(1, plan.epochs + 1):
        order = torch.from_numpy(rng.permutation(len(labels)))
        for chosen in order.split(plan.batch):
            finite = finite and _step(given, weights, images[chosen], labels[chosen], plan.rate)
        if epoch % plan.every == 0 or epoch == plan.epochs:
            found = _record(given, images, labels, plan) if finite else None
            finite = found is not None
            epochs.append(epoch)
            records.append(nothing if found is None else found)
        if progress is not None:
            progress(epoch, plan.epochs)
    kept = {name: np.stack([one[name] for one in records]) for name in first}
    return {"epoch": np.array(epochs, dtype=np.float64), **kept}


def _step(model: Any, weights: list[Any], images: Any, labels: Any, rate: float) -> bool:
    """Do one step of gradient descent if the loss is finite; return whether it is."""
    torch: Any = import_extra("torch", "torch")
    loss = torch.nn.functional.cross_entropy(model(images), labels)
    if not math.isfinite(loss.item()):
        return False
    gradients = torch.autograd.grad(loss, weights)
    with torch.no_grad():
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.sub_(gradient, alpha=rate)
    return True


def _record(model: Any, images: Any, labels: Any, plan: Plan) -> dict[str, Any] | None:
    """Return the numbers of one record; None if the network has become infinite or NaN."""
    torch: Any = import_extra("torch", "torch")
    losses, right = [], 0
    with torch.no_grad():
        for begin in range(0, len(labels), plan.batch):
            some = slice(begin, begin + plan.batch)
            output = model(images[some])
            losses.append(float(torch.nn.functional.cross_entropy(output, labels[some])))
            right += int((output.argmax(dim=1) == labels[some]).sum())
    if not math.isfinite(sum(losses)):
        return None
    outputs: list[tuple[str, Any]] = []
    probe = images[: plan.batch]
    output = forward(
        model, probe, chosen_layers(model),
        lambda name, _, tensor: outputs.append((name, tensor.detach())),
    )  # fmt: skip
    loss = torch.nn.functional.cross_entropy(output, labels[: plan.batch])
    matrices = [module.weight for module in weight_matrices(model).values()]
    norms = [float(one.norm()) for one in torch.autograd.grad(loss, matrices)]
    found: dict[str, Any] = {
        "loss": np.float64(np.mean(losses)),
        "accuracy": np.float64(right / len(labels)),
        "gradient_norm": np.array(norms),
    }
    layers = outputs if plan.all_layers else outputs[-1:]
    numbers = [measured(name, one, len(one), "sample", False) for name, one in layers]
    found |= {
        name: np.array([float(getattr(one, name)) for one in numbers])
        for name in LAYER_NUMBERS
        if name != "rank"
    }
    sizes = [one[0].numel() for _, one in layers]
    found["rank"] = np.array(
        [_rank(one, plan.batch, size) for one, size in zip(numbers, sizes, strict=True)]
    )
    return found


def _rank(numbers: Numbers, samples: int, size: int) -> float:
    """Return the number of singular values that ``matrix_rank`` counts in float32."""
    values = np.sqrt(np.maximum(numbers.spectrum, 0.0))
    threshold = max(samples, size) * 2.0**-23 * values.max()
    return float(np.count_nonzero(values > threshold))
