"""Finished networks of a training in a folder, so that an interrupted training can continue."""

from __future__ import annotations

from pathlib import Path

from bnmc._support.environment import environment
from bnmc.chain.chain import shown_of
from bnmc.simulation.store import parts
from bnmc.training.course import Course, Part


class TrainingStore(parts.PartStore):
    """The folder of a training, with one file for each network.

    Parameters
    ----------
    folder : Path
        Made if it does not exist.
    course : Course
    chains : int

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If the folder holds other files, or a function cannot be compared with that of another
        process.
    StoreError
        If the folder holds another training, another process writes it, or it cannot be read or
        written.
    """

    header, what = "training.json", "an earlier call of train"

    def __init__(self, folder: Path, course: Course, chains: int) -> None:
        self._course = course
        super().__init__(folder, _facts(course), {}, {"chains": chains})

    def get(self, number: int) -> Part | None:
        """Return the results of a network, or None if its file is missing or damaged."""
        part = self.content(number, parts.without_facts)
        return part if part is None or _forms(part) == _forms(self._course.empty_part()) else None

    def put(self, number: int, part: Part) -> None:
        """Write the results of a network."""
        self.write(number, parts.with_facts(part, self.facts_of(number)))


def _forms(part: Part) -> dict[str, object]:
    return {name: (array.shape, array.dtype) for name, array in part.items()}


def _facts(course: Course) -> dict[str, str]:
    """Return everything that determines the results but the number of networks."""
    architecture, digest = course.architecture, parts.argument_digest
    network = architecture.network
    derivatives = [chain.activation.derivative for chain in network.chains]
    contents = {
        "inputs": course.inputs, "targets": course.targets, "test": course.tests,
        "batches": course.batches, "record": course.times,
    }  # fmt: skip
    return {
        "network": repr(shown_of(network)), "key": str(course.key), "dtype": architecture.dtype,
        "steps": str(course.steps), "loss": course.loss, "optimizer": course.optimizer,
        "descent": repr(course.descent), "matrices": repr(architecture.matrices),
        **parts.network_facts(network),
        "derivative_digest": ", ".join(
            "built in" if derivative is None else derivative.digest for derivative in derivatives
        ),
        **{name: digest(name, name, (name, value))[:32] for name, value in contents.items()},
        "observables": ", ".join(
            f"{each.name} ({digest('observables', each.name, each)[:32]})"
            for each in course.observables
        ),
        **environment(blas=True),
    }  # fmt: skip
