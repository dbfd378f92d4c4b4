"""One network through its training, as a task of a worker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnmc._support.arguments import Float64Array, generator
from bnmc._support.interruption import Stop
from bnmc._support.machine import sharing_products
from bnmc.errors import NonFiniteError
from bnmc.training.architecture import Architecture
from bnmc.training.observables import Moment, OfLayers, Recorded
from bnmc.training.passes import Model, Tape
from bnmc.training.scalings import HIDDEN
from bnmc.training.steps import LOSSES, Descent

#: Results of some networks by name, each with an axis of networks first.  Those with a blank in
#: their names are no observables.
Part = dict[str, NDArray[Any]]
BATCH_LOSS, DIVERGED, DONE, ASKED = "batch loss", "diverged at", "finished states", "was asked"


class Watch:
    """What a network in training tells, and is told: how far it is, and whether to stop.

    Parameters
    ----------
    stop : Stop
    chains : int
    """

    def __init__(self, stop: Stop, chains: int) -> None:
        self.stop, self.steps = stop, np.zeros(chains, np.int64)
        #: The results of networks that have begun, which are written as they come.
        self.parts: dict[int, Part] = {}


@dataclass(frozen=True)
class Course:
    """What the networks of a training have in common.

    Attributes
    ----------
    architecture : Architecture
    inputs : (features, samples) ndarray
    targets : (samples, outputs) ndarray
    tests : (features, tests) ndarray
    batches : None, "epochs" or (steps, batch) ndarray of int
        The samples of each step: all, or new ones until each had its turn, or given ones.
    loss, optimizer : str
    descent : Descent
    steps : int
    times : (times,) ndarray of int
        The recorded steps.
    observables : tuple
    key : int
    """

    architecture: Architecture
    inputs: Float64Array
    targets: Float64Array
    tests: Float64Array
    batches: str | NDArray[np.int64] | None
    loss: str
    optimizer: str
    descent: Descent
    steps: int
    times: NDArray[np.int64]
    observables: tuple[Recorded | OfLayers, ...]
    key: int = field(compare=False)

    def __call__(self, chain: int, watch: Watch | None = None, threads: int = 1) -> Part | None:
        """Return the results of a network, made by so many threads, or None if told to stop."""
        watch = watch or Watch(Stop(None), chain + 1)
        part = watch.parts[chain] = self.empty_part()
        with sharing_products(threads), np.errstate(over="ignore", invalid="ignore"):
            try:
                self._train(part, chain, watch)
            except NonFiniteError:
                part[DIVERGED][0] = part[DONE][0]
        return None if watch.stop.is_set() else part

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the results of a network, of float64."""
        samples, times = len(self.targets), len(self.times)
        shapes: dict[str, tuple[int, ...]] = {
            BATCH_LOSS: (self.steps,),
            "loss": (times,),
            "outputs": (times, samples, self.architecture.outputs),
            "test_outputs": (times, self.tests.shape[1], self.architecture.outputs),
        }
        lengths = self.lengths
        for each in self.observables:
            shapes[each.name] = (times, *(lengths(each)[axis] for axis in each.axes))
        return shapes

    def empty_part(self) -> Part:
        """Return the results of a network that has not begun."""
        return {
            **{name: np.full((1, *shape), np.nan) for name, shape in self.shapes.items()},
            DIVERGED: np.full(1, -1),
            DONE: np.zeros(1, np.int64),
            ASKED: np.zeros((1, len(self.architecture.matrices), 2), np.int64),
        }

    def lengths(self, observable: Recorded | OfLayers) -> dict[str, int]:
        """Return the lengths of the axes of an observable by name."""
        samples, outputs = len(self.targets), self.architecture.outputs
        lengths = {
            "matrix": len(self.architecture.matrices), "to_sign": 2,
            "hidden_layer": len(self.architecture.layers) - 1,
            "layer_or_output": len(self.architecture.layers), "sample": samples, "output": outputs,
            "sample_output": samples * outputs, "sample_output_j": samples * outputs,
        }  # fmt: skip
        if isinstance(observable, OfLayers):
            lengths["layer"] = len(observable.layers)
            lengths |= observable.observable.lengths(samples, None)
        return lengths

    def samples_of_steps(self, chain: int) -> NDArray[np.int64] | None:
        """Return the samples of each step of a network, (steps, batch), or None for all."""
        if not isinstance(self.batches, str):
            return self.batches
        count, size = len(self.targets), self.architecture.network.batch
        random = generator((int(self.key), chain))
        epochs = -(-self.steps // (count // size))
        orders = [random.permutation(count)[: count // size * size] for _ in range(epochs)]
        return np.concatenate(orders).reshape(-1, size)[: self.steps]

    def _train(self, part: Part, chain: int, watch: Watch) -> None:
        """Train a network, and write its results to a part."""
        model, batches = (
            Model(self.architecture, self.key, chain, self.inputs),
            self.samples_of_steps(chain),
        )
        loss = LOSSES[self.loss]
        rules: list[Callable[..., tuple[Float64Array, Float64Array]]] = [
            self.descent.muon
            if self.optimizer == "muon" and matrix.place == HIDDEN
            else self.descent.sgd
            for matrix in self.architecture.matrices
        ]
        velocities = [np.zeros((1, 1), value.dtype) for value in model.values]
        start: Tape | None = None
        slot = 0
        for step in range(self.steps + 1):
            if watch.stop.is_set():
                return
            is_recorded = slot < len(self.times) and self.times[slot] == step
            if is_recorded or batches is None or step == 0:
                tape = model.forward(self.inputs)
                value, gradient = loss(tape.outputs, self.targets)
                if step == 0:
                    start = tape._replace(rows=[], located=[])
            if is_recorded:
                assert start is not None
                moment = Moment(model, tape, gradient, self.targets, start)
                self._record(part, slot, moment, value)
                slot += 1
            part[ASKED][0] = model.asked()
            part[DONE][0] = watch.steps[chain] = step + 1
            if step == self.steps:
                return
            if batches is not None:
                at = batches[step]
                tape = model.forward(self.inputs[:, at])
                value, gradient = loss(tape.outputs, self.targets[at])
            if not np.isfinite(value):
                raise NonFiniteError(chain, None, "loss")
            part[BATCH_LOSS][0, step] = value
            gradients = model.gradients(tape, gradient)
            for number, rule in enumerate(rules):
                weights, factor = model.weights[number], self.architecture.matrices[number].factor
                weights.value, velocities[number] = rule(
                    weights.value, velocities[number], gradients[number], factor
                )

    def _record(self, part: Part, slot: int, moment: Moment, value: float) -> None:
        """Write what is recorded at a step."""
        if not np.isfinite(value):
            raise NonFiniteError(moment.model.chain, None, "loss")
        row = {"loss": np.asarray(value), "outputs": moment.tape.outputs}
        if self.tests.shape[1]:
            row["test_outputs"] = moment.model.forward(self.tests).outputs
        row |= {each.name: each.of(moment) for each in self.observables}
        for name, values in row.items():
            part[name][0, slot] = values
