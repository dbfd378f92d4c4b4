"""The direction of the gradient at the top: normal rows, an array, or a loss after a readout."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from bnmc._support.arguments import Float64Array, choice, finite_array, integer, returned
from bnmc._support.machine import require_memory
from bnmc.chain.chain import Chain
from bnmc.chain.start import as_columns
from bnmc.errors import ArgumentError, ArgumentTypeError, NonFiniteError

Gradient = Callable[[Float64Array], ArrayLike]

#: What `backpropagate` takes as `loss` besides arrays and functions.
_LOSSES = ("gaussian", "cross-entropy", "squared")


@dataclass(frozen=True)
class NormalRows:
    """∂L/∂h of the last layer has independent standard normal entries."""

    name: str = "gaussian"

    def of(self, number: int) -> Float64Array:
        """Return no rows: the kernels draw them."""
        return np.zeros((0, 1))


@dataclass(frozen=True)
class GivenRows:
    """∂L/∂h of the last layer is given: (chains or 1, columns, width)."""

    rows: Float64Array
    name: str = "given"

    def of(self, number: int) -> Float64Array:
        """Return the rows of a chain."""
        return self.rows[0 if len(self.rows) == 1 else number]


@dataclass(frozen=True)
class Readout:
    """A loss of outputs V a of the last layer, or of its states h.

    V has independent entries N(0, 1/width).

    Attributes
    ----------
    classes : int
        Number of outputs.
    gradient : callable
        ∂L/∂f (samples, classes) as a function of the outputs f.
    name : str
    pixels : int
        Columns of a sample, which the readout averages: 1 unless samples are images.
    of_states : bool
        Whether the outputs are the states h of the last layer, without V.
    """

    classes: int
    gradient: Gradient
    name: str
    pixels: int = 1
    of_states: bool = False

    def of_columns(self, outputs: Float64Array, chain: int, layer: int) -> Float64Array:
        """Return the gradient with respect to the outputs of each column, (classes, columns).

        `chain` and `layer` are for the error if outputs are not finite.
        """
        if not np.isfinite(outputs).all():
            raise NonFiniteError(chain, layer, "outputs")
        averages = outputs.reshape(self.classes, -1, self.pixels).mean(axis=-1).T
        what = "a function that returns"
        gradient = returned("loss_gradient", self.gradient(averages), averages.shape, what)
        if not np.isfinite(gradient).all():
            wrong = float(gradient[~np.isfinite(gradient)][0])
            raise ArgumentError("loss_gradient", wrong, "a function that returns finite numbers")
        return np.repeat(gradient.T, self.pixels, axis=1) / self.pixels


Direction = NormalRows | GivenRows | Readout


def direction_of(
    loss: Any,
    loss_gradient: Any,
    labels: Any,
    classes: int | None,
    chain: Chain,
    chains: int,
    inputs: int | None,
) -> Direction:
    """Return the direction that the arguments of `backpropagate` mean, or raise."""
    pixels = chain.layers[1].linear.patches.positions
    samples = chain.batch * (inputs or 1) // pixels
    if loss_gradient is not None:
        if not callable(loss_gradient):
            raise ArgumentTypeError("loss_gradient", loss_gradient, "a function of the outputs")
        if not (isinstance(loss, str) and loss == "gaussian"):
            raise ArgumentError("loss", loss, "no loss, with loss_gradient")
        if labels is not None:
            raise ArgumentError("labels", labels, "None with loss_gradient")
        count = chain.width if classes is None else integer("classes", classes, low=1)
        _require_memory(count, samples)
        return Readout(count, loss_gradient, "function", pixels, of_states=classes is None)
    if isinstance(loss, str):
        if choice("loss", loss, _LOSSES) == "gaussian":
            _require_none(loss, labels=labels, classes=classes)
            return NormalRows()
        targets = targets_of(loss, labels, classes, samples)
        gradient = _squared if loss == "squared" else _cross_entropy
        return Readout(targets.shape[1], partial(gradient, targets), loss, pixels)
    if loss is None or callable(loss):
        allowed = f"{', '.join(_LOSSES)} or an array"
        hint = "a function that returns the gradient of a loss is loss_gradient="
        raise ArgumentTypeError("loss", loss, allowed, hint)
    _require_none("an array", labels=labels, classes=classes)
    return GivenRows(_rows(loss, chain, chains, inputs))


def scaled(values: Float64Array) -> tuple[Float64Array, int]:
    """Return an array divided by a power of two, so that its largest entry is about 1.

    Zeros, and arrays that are not finite, stay as they are.
    """
    largest = float(np.abs(values).max())
    if largest == 0.0 or not math.isfinite(largest):
        return values, 0
    exponent = math.frexp(largest)[1]
    return np.ldexp(values, -exponent), exponent


def _require_memory(classes: int, samples: int) -> None:
    """Raise unless outputs, their gradient, their normals and targets fit in memory."""
    require_memory("classes", 8 * 5 * classes * samples, "take fewer classes")


def _require_none(loss: str, **arguments: object) -> None:
    for name, value in arguments.items():
        if value is not None:
            raise ArgumentError(name, value, f"None with loss={loss!r}")


def _rows(loss: Any, chain: Chain, chains: int, inputs: int | None) -> Float64Array:
    """Return δ as (chains or 1, columns, width)."""
    shape = (chain.width, chain.batch) if inputs is None else (inputs, chain.width, chain.batch)
    given = finite_array("loss", as_columns(chain, loss), shape=(...,))
    if given.shape not in (shape, (chains, *shape)):
        raise ArgumentError("loss", given.shape, f"an array of shape {shape} or {(chains, *shape)}")
    stacked = given.reshape(-1, inputs or 1, chain.width, chain.batch)
    return np.ascontiguousarray(stacked.swapaxes(2, 3).reshape(len(stacked), -1, chain.width))


def targets_of(loss: str, labels: Any, classes: int | None, samples: int) -> Float64Array:
    """Return targets of shape (samples, classes)."""
    if labels is None:
        raise ArgumentError("labels", None, f"the labels of the {samples} samples")
    given = finite_array("labels", labels, shape=(...,))
    if given.ndim == 1:
        numbers = given.astype(np.int64)
        if given.shape != (samples,):
            raise ArgumentError("labels", given.shape, f"an array of shape ({samples},)")
        if (numbers != given).any() or (numbers < 0).any():
            raise ArgumentError("labels", float(given.min()), "classes 0, 1, …, as whole numbers")
        count = int(numbers.max()) + 1
        if classes is not None:
            count = integer("classes", classes, low=max(2, count))
        if count < 2:
            raise ArgumentError("classes", count, "at least 2")
        _require_memory(count, samples)
        targets = np.zeros((samples, count))
        targets[np.arange(samples), numbers] = 1.0
        return targets
    if given.ndim != 2 or len(given) != samples:
        raise ArgumentError(
            "labels", given.shape, f"an array of shape ({samples},) or ({samples}, classes)"
        )
    least = 1 if loss == "squared" else 2
    if given.shape[1] < least or classes not in (None, given.shape[1]):
        raise ArgumentError(
            "classes", classes or given.shape[1], f"{given.shape[1]}, at least {least}"
        )
    if loss == "cross-entropy" and ((given < 0).any() or abs(given.sum(axis=1) - 1).max() > 1e-6):
        raise ArgumentError("labels", float(given.min()), "probabilities with the sum 1 per sample")
    return given.astype(np.float64)


def _cross_entropy(targets: Float64Array, outputs: Float64Array) -> Float64Array:
    """Return the gradient of -mean over samples of Σ_c target_c ln softmax(f)_c."""
    shifted = outputs - outputs.max(axis=1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return (np.exp(logs) - targets) / len(outputs)


def _squared(targets: Float64Array, outputs: Float64Array) -> Float64Array:
    """Return the gradient of the mean over samples of |f - target|² / 2."""
    return (outputs - targets) / len(outputs)
