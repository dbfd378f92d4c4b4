"""Losses, and the gradients of a loss: their norms, and the cosines between samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bnmc import gram
from bnmc._support.arguments import choice, host_array
from bnmc._support.extras import import_extra
from bnmc.errors import ArgumentError, ArgumentTypeError, BnmcError, NonFiniteError

if TYPE_CHECKING:
    import torch

__all__ = ["LOSSES", "MOST_NUMBERS", "Loss", "as_loss", "gradient_cosines", "gradient_norms"]

#: The losses by name.
LOSSES = ("cross-entropy", "squared")

#: Cosines are computed by default if samples × parameters is at most this.
MOST_NUMBERS = 1 << 24

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Loss:
    """A loss of the output of a model: one number per sample, or one of the batch."""

    name: str
    function: Callable[..., Any]
    labels: torch.Tensor | None

    def __call__(self, output: torch.Tensor) -> torch.Tensor:
        """Return the losses of the samples, shape (samples,), or that of the batch, shape ().

        Raises
        ------
        ArgumentError
            If output and labels do not fit, or the result has another shape.
        """
        try:
            given: Any = output
            values = self.function(given) if self.labels is None else self._with_labels(given)
        except (BnmcError, MemoryError):
            raise
        except Exception as error:  # a loss of the user's raises anything
            about, value = "loss", self.name
            if self.labels is not None:
                about, value = "labels", f"shape {tuple(self.labels.shape)} for {self.name}"
            hint = f"{type(error).__name__}: {error}"
            allowed = f"labels for an output of shape {tuple(output.shape)}"
            raise ArgumentError(about, value, allowed, hint) from error
        torch: Any = import_extra("torch", "torch")
        if not isinstance(values, torch.Tensor) or tuple(values.shape) not in ((), (len(output),)):
            shape = tuple(values.shape) if isinstance(values, torch.Tensor) else type(values)
            allowed = "a function that returns one number per sample, or one of the batch"
            raise ArgumentError("loss", f"{self.name}: {shape}", allowed)
        if not bool(torch.isfinite(values).all()):
            raise NonFiniteError(None, None, "loss")
        result: torch.Tensor = values
        return result

    def _with_labels(self, output: Any) -> Any:
        return self.function(output, self.labels)


def as_loss(loss: object, labels: object, samples: int, device: object) -> Loss | None:
    """Return the loss of the arguments `loss` and `labels`; None if both are None.

    If only labels are given, the loss is cross-entropy for integers and squared for other numbers.

    Raises
    ------
    ArgumentTypeError, ArgumentError, UnknownNameError
        If the labels are not one per sample, or the loss is neither a name nor a function, or needs
        labels.
    """
    torch: Any = import_extra("torch", "torch")
    if loss is None and labels is None:
        return None
    targets: Any = None
    if labels is not None:
        targets = labels
        if not isinstance(labels, torch.Tensor):
            targets = torch.from_numpy(np.array(host_array("labels", labels)))
        if targets.ndim == 0 or len(targets) != samples:
            allowed = f"one for each of {samples} samples"
            raise ArgumentError("labels", tuple(targets.shape), allowed)
        targets = targets.detach().to(device)
    if loss is None:
        loss = "squared" if targets.is_floating_point() else "cross-entropy"
    if callable(loss):
        return Loss(getattr(loss, "__name__", type(loss).__name__), loss, targets)
    if not isinstance(loss, str):
        raise ArgumentTypeError("loss", loss, f"{', '.join(LOSSES)} or a function")
    name = choice("loss", loss, LOSSES)
    if targets is None:
        raise ArgumentError("labels", None, f"one for each of {samples} samples, for {name!r}")
    return Loss(name, _cross_entropy if name == "cross-entropy" else _squared, targets)


def gradient_norms(loss: torch.Tensor, parameters: dict[str, torch.Tensor]) -> FloatArray:
    """Return the Frobenius norm of the gradient of a number by each parameter.

    It is 0 for parameters on which the number does not depend. The graph is kept.

    Raises
    ------
    NonFiniteError
        If a gradient is infinite or NaN.
    """
    norms = np.zeros(len(parameters))
    gradients = _gradients(loss, list(parameters.values()))
    for index, (name, gradient) in enumerate(zip(parameters, gradients, strict=True)):
        if gradient is not None:
            norms[index] = float(gradient.double().norm())
            if not np.isfinite(norms[index]):
                raise NonFiniteError(None, None, f"gradient of {name!r}")
    return norms


def gradient_cosines(losses: torch.Tensor, parameters: dict[str, torch.Tensor]) -> FloatArray:
    """Return the cosines between the gradients of the losses of the samples.

    The gradient of the loss of one sample goes backward through the whole batch, because batch
    normalization makes this loss depend on all samples.

    Parameters
    ----------
    losses : (samples,) torch.Tensor
    parameters : dict of str to torch.Tensor

    Returns
    -------
    (parameters, samples, samples) ndarray of float64
        NaN where a sample has no gradient.
    """
    samples = len(losses)
    # Keep the gradients of all samples, one stack for each parameter.
    stacks: list[FloatArray] = [np.zeros((samples, one.numel())) for one in parameters.values()]
    for sample in range(samples):
        gradients = _gradients(losses[sample], list(parameters.values()))
        for stack, gradient in zip(stacks, gradients, strict=True):
            if gradient is not None:
                stack[sample] = gradient.double().reshape(-1).cpu().numpy()
    return np.stack([_cosines(stack) for stack in stacks])


def _gradients(value: Any, parameters: list[Any]) -> Any:
    torch: Any = import_extra("torch", "torch")
    return torch.autograd.grad(value, parameters, retain_graph=True, allow_unused=True)


def _cosines(stack: FloatArray) -> FloatArray:
    """Return the cosines between rows."""
    largest = np.abs(stack).max(axis=1)
    present = np.flatnonzero(largest > 0.0)
    cosines = np.full((len(stack), len(stack)), np.nan)
    if present.size:
        units = stack[present] / largest[present, None]
        cosines[np.ix_(present, present)] = gram.correlation(gram.cross_gram(units.T, units.T))
    return cosines


def _cross_entropy(output: Any, labels: Any) -> Any:
    """Return the cross-entropy of each sample; of outputs with positions, its mean over them."""
    torch: Any = import_extra("torch", "torch")
    if labels.is_floating_point():
        raise ArgumentTypeError("labels", "floating-point numbers", "integers, for cross-entropy")
    found = torch.nn.functional.cross_entropy(output, labels.long(), reduction="none")
    return found.reshape(len(output), -1).mean(dim=1)


def _squared(output: Any, labels: Any) -> Any:
    """Return half the squared distance of each output from its label."""
    targets = labels.to(output.dtype).reshape(len(output), -1)
    values = output.reshape(len(output), -1)
    if targets.shape != values.shape:
        allowed = f"the shape of the output, {tuple(output.shape)}"
        raise ArgumentError("labels", tuple(labels.shape), allowed)
    return 0.5 * (values - targets).square().sum(dim=1)
