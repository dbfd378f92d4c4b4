"""What a training records of a network: functions of Gram matrices, and of its gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from bnmc._support.arguments import Float64Array, choice
from bnmc.errors import ArgumentError
from bnmc.simulation.engine.state import Frames
from bnmc.simulation.observables import (
    OBSERVABLES,
    Observable,
    View,
    as_observables,
    observables_of,
)
from bnmc.training.passes import Model, Tape


class Moment(NamedTuple):
    """A network at a recorded step, with the forward pass of all inputs.

    Attributes
    ----------
    model : Model
    tape : Tape
    gradient, targets : (samples, outputs) ndarray
        ∂L/∂f, and the targets of the loss.
    start : Tape
        The forward pass of all inputs at step 0, of which `hidden` and `outputs` are kept.
    """

    model: Model
    tape: Tape
    gradient: Float64Array
    targets: Float64Array
    start: Tape


def _gradient_norm(moment: Moment) -> Float64Array:
    gradients = moment.model.gradients(moment.tape, moment.gradient)
    return np.array([np.linalg.norm(gradient) for gradient in gradients])


def _movement(moment: Moment) -> Float64Array:
    now = [*moment.tape.hidden[1:], moment.tape.outputs]
    then = [*moment.start.hidden[1:], moment.start.outputs]
    return np.array([np.sqrt(np.square(a - b).mean()) for a, b in zip(now, then, strict=True)])


def _size(moment: Moment) -> Float64Array:
    now = [*moment.tape.hidden[1:], moment.tape.outputs]
    return np.array([np.sqrt(np.square(a).mean()) for a in now])


def _sign_changes(moment: Moment) -> Float64Array:
    pairs = zip(moment.tape.hidden[1:], moment.start.hidden[1:], strict=True)
    return np.array([[((now > 0) & ~(then > 0)).mean(), ((then > 0) & ~(now > 0)).mean()]
                     for now, then in pairs])  # fmt: skip


class Recorded(NamedTuple):
    """An observable of a network in training.

    Attributes
    ----------
    name : str
    axes : tuple of str
        Names of the axes after chain and step.
    of : callable
        The values at a `Moment`.
    """

    name: str
    axes: tuple[str, ...]
    of: Callable[[Moment], Float64Array]


_MATRIX, _LAYERS = ("matrix",), ("layer_or_output",)

#: Observables of gradients, and of the change of layers.
BUILTIN = {
    each.name: each
    for each in (
        Recorded("gradient_norm", _MATRIX, _gradient_norm),
        Recorded("size", _LAYERS, _size),
        Recorded("movement", _LAYERS, _movement),
        Recorded("sign_changes", ("hidden_layer", "to_sign"), _sign_changes),
        Recorded(
            "kernel",
            ("sample_output", "sample_output_j"),
            lambda moment: moment.model.kernel(moment.tape),
        ),
        Recorded(
            "kernel_on_targets",
            ("sample", "output"),
            lambda moment: moment.model.kernel_times(moment.tape, moment.targets),
        ),
    )
}

#: Observables of `simulate` that are functions of the Gram matrices of single layers.
_OF_GRAM = ("gram", "eigenvalues", "orthogonality_gap", "rank_bound", "soft_rank")

_ALLOWED = "names, Observables or functions of G"


class OfLayers(NamedTuple):
    """An observable of the Gram matrices of the activations of some layers.

    Attributes
    ----------
    observable : Observable
    layers : tuple of int
        Numbers of layers of the network.
    """

    observable: Observable
    layers: tuple[int, ...]

    @property
    def name(self) -> str:
        """Name of the result."""
        return self.observable.name

    @property
    def axes(self) -> tuple[str, ...]:
        """Names of the axes after chain and step."""
        return ("layer", *(axis for axis in self.observable.axes if axis != "input"))

    def of(self, moment: Moment) -> Float64Array:
        """Return the values at a moment, with an axis of layers first."""
        architecture = moment.model.architecture
        activations = [
            moment.tape.rows[layer + architecture.first].outputs() for layer in self.layers
        ]
        gram = np.stack([a.T @ a / len(a) for a in activations])[None]
        shape = gram.shape[:2]
        view = View(
            architecture.network,
            Frames(gram, np.zeros(shape), np.zeros((*shape, 0))),
            first_chain=moment.model.chain,
            layer_of=self.layers.__getitem__,
        )
        values = self.observable.evaluate(view)[0]
        return values[:, 0] if "input" in self.observable.axes else values


def as_training_observables(
    observables: Any, layers: tuple[int, ...]
) -> tuple[Recorded | OfLayers, ...]:
    """Return the observables that an argument means, each name once, or raise."""

    def of(name: str | None, value: Any) -> Any:
        if name is None and isinstance(value, str):
            chosen = choice("observables", value, [*BUILTIN, *_OF_GRAM])
            return BUILTIN[chosen] if chosen in BUILTIN else OfLayers(OBSERVABLES[chosen], layers)
        (observable,) = as_observables(value if name is None else {name: value}, False)
        if observable.name in (*OBSERVABLES, *BUILTIN) and observable.name not in _OF_GRAM:
            raise ArgumentError("observables", observable.name, f"a name besides {[*BUILTIN]}")
        return OfLayers(observable, layers)

    return observables_of(observables, _ALLOWED, of)
