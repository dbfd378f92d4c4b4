"""Losses, and the gradients of a loss: their norms, and the cosines between samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from bnmc import gram
from bnmc._support.arguments import choice, host_array
from bnmc._support.machine import require_memory
from bnmc.errors import (
    ArgumentError,
    ArgumentTypeError,
    BnmcError,
    NonFiniteError,
    UnknownNameError,
)
from bnmc.torch.facts import are_probabilities
from bnmc.torch.models import tensor_of, torch
from bnmc.torch.representations import FloatArray

#: The losses by name.
_LOSSES = ("cross-entropy", "squared")

#: Other names of them.
_OTHER_NAMES = {"ce": "cross-entropy", "l2": "squared", "mse": "squared"}

#: The label of positions that count for nothing.
_IGNORED = -100

#: Cosines are computed by default if samples × parameters is at most this.
MOST_NUMBERS = 1 << 24


#: Factors of the loss for gradients in float16, whose smallest positive number is 6e-8.
_SCALES = tuple(2.0**power for power in range(24, -1, -4))


@dataclass(frozen=True)
class Loss:
    """A loss of the output of a model: one number per sample, or one of the batch."""

    name: str
    function: Callable[..., Any]
    labels: torch.Tensor | None

    def chance(self, output: torch.Tensor) -> tuple[float, float]:
        """Return the loss of the best constant output, and the parts of it that still train.

        The chance is NaN for a loss of the user's, and if it is 0.
        """
        if self.function is _squared and self.labels is not None:
            targets = self.labels.double().reshape(len(self.labels), -1)
            variance = float(targets.var(dim=0, correction=0).sum())
            return 0.5 * variance or math.nan, 30.0
        means_of_classes = (torch.nn.functional.cross_entropy, _cross_entropy)
        module = isinstance(self.function, torch.nn.CrossEntropyLoss)
        if (module or self.function in means_of_classes) and output.ndim > 1:
            axis = -1 if _classes_last(output, self.labels) else 1
            return math.log(output.shape[axis]) or math.nan, 100.0
        return math.nan, 100.0

    def mean(self, output: Any) -> torch.Tensor:
        """Return the mean loss, which may be infinite or NaN."""
        labels = () if self.labels is None else (self.labels,)
        values: torch.Tensor = self.function(self._argument(output), *labels).mean()
        return values

    @property
    def note(self) -> str:
        """A remark on labels that the squared loss takes as numbers; "" if there is none."""
        if self.function is not _squared or not are_probabilities(self.labels):
            return ""
        return (
            "the loss is half the squared distance from labels that look like probabilities; "
            "torch.nn.functional.cross_entropy as loss= takes them as such"
        )

    @property
    def takes_logits(self) -> bool:
        """Whether the loss takes the logarithms of probabilities, up to a constant."""
        return self.function in (torch.nn.functional.cross_entropy, _cross_entropy) or isinstance(
            self.function, torch.nn.CrossEntropyLoss
        )

    def _argument(self, output: Any) -> Any:
        """Return the whole output for a function of the user's, otherwise its first tensor."""
        return _tensor(output) if self.function in (_cross_entropy, _squared) else output

    def __call__(self, output: Any) -> torch.Tensor:
        """Return the finite losses of the samples, (samples,), or that of the batch, ()."""
        labels = () if self.labels is None else (self.labels,)
        tensor = _tensor(output)
        try:
            values: Any = self.function(self._argument(output), *labels)
        except (BnmcError, MemoryError):
            raise
        except Exception as error:  # a loss of the user's raises anything
            about, value = "loss", self.name
            if self.labels is not None:
                about, value = "labels", f"shape {tuple(self.labels.shape)} for {self.name}"
            hint = f"{type(error).__name__}: {error}"
            allowed = f"labels for an output of shape {tuple(tensor.shape)}"
            if self.function is _cross_entropy and tensor.ndim > 1 and self.labels is not None:
                given = tuple(self.labels.shape)
                value = f"classes {self.labels.min()} to {self.labels.max()} of shape {given}"
                count, *others = tensor.shape[1:]
                allowed = f"classes 0 to {count - 1} of shape {(len(tensor), *others)}"
                if given == tuple(tensor.shape):
                    hint = "labels.argmax(1) makes classes of one-hot labels"
            raise ArgumentError(about, value, allowed, hint) from error
        if not isinstance(values, torch.Tensor) or tuple(values.shape) not in ((), (len(tensor),)):
            shape = tuple(values.shape) if isinstance(values, torch.Tensor) else type(values)
            allowed = "a function that returns one number per sample, or one of the batch"
            raise ArgumentError("loss", f"{self.name}: {shape}", allowed)
        if not bool(torch.isfinite(values).all()):
            raise NonFiniteError(None, None, "loss")
        return values


def as_loss(loss: object, labels: object, samples: int, device: object) -> Loss | None:
    """Return the loss of the arguments `loss` and `labels`; None if both are None.

    If only labels are given, the loss is cross-entropy for integers and squared for other numbers.
    """
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
    if isinstance(loss, type):
        allowed = f"{', '.join(_LOSSES)} or a function, such as {loss.__name__}()"
        raise ArgumentTypeError("loss", loss, allowed)
    if callable(loss):
        return Loss(getattr(loss, "__name__", type(loss).__name__), loss, targets)
    if not isinstance(loss, str):
        raise ArgumentTypeError("loss", loss, f"{', '.join(_LOSSES)} or a function")
    if (other := _OTHER_NAMES.get(loss.lower())) is not None:
        raise UnknownNameError("loss", loss, _LOSSES, f"did you mean {other!r}?")
    name = choice("loss", loss, _LOSSES)
    if targets is None:
        raise ArgumentError("labels", None, f"one for each of {samples} samples, for {name!r}")
    return Loss(name, _cross_entropy if name == "cross-entropy" else _squared, targets)


class Gradients(NamedTuple):
    """The gradients of a number; None if it does not depend on a parameter or a state.

    parameters : dict of str to torch.Tensor or None
        Finite. Gradients in float16 come from a loss that was scaled, and are in float32.
    states : list of torch.Tensor or None
    lost : float
        Share of the entries that are zero in float16 without a scale of the loss, of those that are
        not zero.
    """

    parameters: dict[str, Any]
    states: list[Any]
    lost: float


def gradients_of(
    loss: torch.Tensor, parameters: dict[str, torch.Tensor], states: Sequence[torch.Tensor]
) -> Gradients:
    """Return the gradients of a number by parameters and states. The graph is kept."""
    count, parts = len(parameters), [*parameters.values(), *states]
    plain = gradients = _unscaled_gradients(loss, parts)
    for name, gradient in zip(parameters, plain, strict=False):
        if gradient is not None and not bool(torch.isfinite(gradient).all()):
            raise NonFiniteError(None, None, f"gradient of {name!r}")
    lost = 0.0
    if _is_half(loss, parts):
        gradients = _gradients(loss, parts)
        pairs = [pair for pair in zip(plain, gradients, strict=True) if pair[1] is not None]
        present = sum(int((exact != 0.0).sum()) for _, exact in pairs[:count])
        zeros = (((half == 0.0) & (exact != 0.0)).sum() for half, exact in pairs[:count])
        lost = sum(map(int, zeros)) / max(present, 1)
    by_name = dict(zip(parameters, gradients, strict=False))
    return Gradients(by_name, list(gradients[count:]), lost)


def gradient_norms(loss: torch.Tensor, weights: Sequence[Sequence[Any]]) -> list[float]:
    """Return the norms of the gradients by the weights of each layer, NaN without weights."""
    parts = {id(weight): weight for layer in weights for weight in layer}
    gradients = _gradients(loss, list(parts.values())) if parts else ()
    norms = {
        key: 0.0 if gradient is None else float(gradient.double().norm())
        for key, gradient in zip(parts, gradients, strict=True)
    }
    return [
        math.hypot(*(norms[id(weight)] for weight in layer)) if layer else math.nan
        for layer in weights
    ]


def gradient_of_outputs(goal: Loss, output: torch.Tensor) -> Callable[[FloatArray], FloatArray]:
    """Return the gradient of the mean loss by outputs like `output`, (samples, outputs)."""
    device, dtype = output.device, output.dtype

    def gradient(outputs: FloatArray) -> FloatArray:
        with torch.inference_mode(False), torch.enable_grad():
            given = torch.tensor(outputs, device=device, dtype=dtype, requires_grad=True)
            (result,) = torch.autograd.grad(goal(given).mean(), given)
            values: FloatArray = result.to("cpu", torch.float64).numpy()
        return values

    return gradient


def gradient_by(loss: torch.Tensor, output: torch.Tensor) -> FloatArray | None:
    """Return the gradient of a number by an output (samples, width), as (width, samples).

    Return None if the output has other axes, or the number does not depend on it.
    """
    (gradient,) = _gradients(loss, [output])
    if gradient is None or gradient.ndim != 2:
        return None
    values: FloatArray = gradient.to("cpu", torch.float64).numpy().T
    return values


def gradient_cosines(losses: torch.Tensor, parameters: dict[str, torch.Tensor]) -> FloatArray:
    """Return the cosines between the gradients of samples, (parameters, samples, samples).

    They are NaN where a sample has no gradient. The gradient of the loss
    of one sample goes backward through the whole batch, because batch normalization makes this loss
    depend on all samples.
    """
    samples, sizes = len(losses), [weight.numel() for weight in parameters.values()]
    # The stacks, unit vectors of the largest one, and the products.
    numbers = samples * (sum(sizes) + 2 * max(sizes)) + (2 * len(sizes) + 4) * samples**2
    require_memory("cosines", 8 * numbers, "take cosines=False, or fewer samples")
    # Keep the gradients of all samples, one stack for each parameter.
    stacks = [np.zeros((samples, size)) for size in sizes]
    for sample in range(samples):
        gradients = _gradients(losses[sample], list(parameters.values()))
        for stack, gradient in zip(stacks, gradients, strict=True):
            if gradient is not None:
                stack[sample] = gradient.double().reshape(-1).cpu().numpy()
    return np.stack([_cosines(stack) for stack in stacks])


def _gradients(value: Any, parameters: list[Any]) -> Any:
    """Return gradients; if some are in float16, those of a scaled value, over the scale."""
    if not _is_half(value, parameters):
        return _unscaled_gradients(value, parameters)
    for scale in _SCALES:
        gradients = _unscaled_gradients(value.float() * scale, parameters)
        if all(each is None or bool(torch.isfinite(each).all()) for each in gradients):
            break
    return [None if each is None else each.float() / scale for each in gradients]


def _is_half(value: Any, parameters: list[Any]) -> bool:
    """Whether a gradient is computed in float16."""
    return any(part.dtype == torch.float16 for part in (value, *parameters))


def _unscaled_gradients(value: Any, parameters: list[Any]) -> Any:
    try:
        return torch.autograd.grad(value, parameters, retain_graph=True, allow_unused=True)
    except RuntimeError as error:
        if "heckpoint" not in str(error):
            raise
        allowed = "checkpoints with use_reentrant=False, or none, in the measurement"
        raise ArgumentError("model", "reentrant checkpoints", allowed) from error


def _tensor(output: Any) -> torch.Tensor:
    tensor = tensor_of(output)
    assert tensor is not None  # `called` has looked for one
    return tensor


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
    """Return the cross-entropy of each sample; of outputs with positions, its mean over them.

    Positions with the label −100 are left out.
    """
    if labels.is_floating_point():
        raise ArgumentTypeError("labels", "floating-point numbers", "integers, for cross-entropy")
    if _classes_last(output, labels):
        output = output.movedim(-1, 1)
    losses = torch.nn.functional.cross_entropy(output, labels.long(), reduction="none")
    losses, counted = losses.reshape(len(output), -1), (labels != _IGNORED).reshape(len(output), -1)
    return losses.sum(dim=1) / counted.sum(dim=1).clamp_min(1)


def _classes_last(output: Any, labels: Any) -> bool:
    """Whether outputs of positions have the classes on the last axis, as those of transformers."""
    if labels is None or output.ndim < 3 or labels.ndim != output.ndim - 1:
        return False
    shape = tuple(output.shape)
    return tuple(labels.shape) == shape[:-1] != (shape[0], *shape[2:])


def _squared(output: Any, labels: Any) -> Any:
    """Return half the squared distance of each output from its label."""
    targets = labels.to(output.dtype).reshape(len(output), -1)
    values = output.reshape(len(output), -1)
    if targets.shape != values.shape:
        allowed = f"the shape of the output, {tuple(output.shape)}"
        hint = "floating-point labels select the squared loss; labels.long() are classes"
        raise ArgumentError("labels", tuple(labels.shape), allowed, hint)
    return 0.5 * (values - targets).square().sum(dim=1)
