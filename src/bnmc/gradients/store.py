"""Finished parts of a backward pass in a folder, so that an interrupted run can continue.

The folder has a header, which identifies the run, and one archive of arrays per finished part.
"""

from __future__ import annotations

from pathlib import Path

from bnmc._support.environment import environment
from bnmc.chain.chain import shown_of
from bnmc.chain.start import Start
from bnmc.errors import StoreMismatchError
from bnmc.gradients.parts import CPU, VERSIONS, Part, Task, empty_part, made_here
from bnmc.simulation.store import parts


class ChainStore(parts.PartStore):
    """The folder of a run.

    Parameters
    ----------
    folder : Path
        Made if it does not exist.
    task : Task
    start : Start
        Of all chains.
    size : int
        Chains of a part, for a new folder.

    Attributes
    ----------
    size : int
        Chains of a part in this folder.

    Raises
    ------
    ArgumentError
        If the folder holds other files.
    ArgumentTypeError
        If a function of the run cannot be compared with that of another process.
    StoreMismatchError
        If it holds another run, or one of more chains; the error names a difference.
    StoreInUseError, StoreLockError
        If another process writes it, or the file system has no locks.
    StoreError
        If it cannot be read or written.
    """

    header, what = "gradients.json", "an earlier call of backpropagate"

    def __init__(self, folder: Path, task: Task, start: Start, size: int) -> None:
        self._task = task
        chains = {"chains": task.run.chains}
        super().__init__(folder, _facts(task, start), {"part": size}, chains)
        self.size = int(self.stored["part"])

    def get(self, number: int) -> Part | None:
        """Return a finished part, or None if its file is missing or damaged.

        Raises
        ------
        StoreMismatchError
            If the file is that of another run or part.
        StoreError
            If the file cannot be read, or does not fit in memory.
        """
        run = self._task.run.part(*self._chains_of(number))
        part = self.content(number, parts.without_facts)
        if part is None or _forms(part) != _forms(empty_part(run, self._task.observables)):
            return None
        return part | made_here()  # as the facts of the folder say

    def extents_of(self, part: int | str) -> dict[str, str]:
        """Return the first and the last chain of a part."""
        first, last = self._chains_of(int(part))
        return {"of_chains": f"{first} to {last - 1}"}

    def _chains_of(self, number: int) -> tuple[int, int]:
        """Return the first chain of a part, and the chain after its last one."""
        first = number * self.size
        return first, min(first + self.size, self._task.run.chains)

    def put(self, number: int, part: Part) -> None:
        """Write a finished part.

        Raises
        ------
        StoreMismatchError
            If a worker of another kind made it.
        StoreError
            If it cannot be written.
        """
        results = dict(part)
        for fact, name in (("cpu", CPU), ("versions", VERSIONS)):
            (want,), (have,) = made_here()[name].tolist(), results.pop(name).tolist()
            if have != want:
                raise StoreMismatchError(str(self.path), fact, want, have)
        self.write(number, parts.with_facts(results, self.facts_of(number)))


def _forms(part: Part) -> dict[str, object]:
    return {name: (array.shape, array.dtype) for name, array in part.items()}


def _facts(task: Task, start: Start) -> dict[str, str]:
    """Return everything that determines the values of a run but the number of its chains."""
    run, direction = task.run, task.direction
    derivatives = [chain.activation.derivative for chain in run.network.chains]
    facts = {
        "chain": repr(shown_of(run.network)), "key": str(run.key), "sampler": run.path,
        "dtype": run.dtype,
        "inputs": str(run.inputs), "depth": str(run.depth),
        "every": str(run.recorded.every),
    }  # fmt: skip
    if run.backend != "cpu":
        # An additional fact would not differ from the facts of a folder that lacks it.
        facts["sampler"] = f"{run.path} on {run.backend}"
    digest = parts.argument_digest
    return facts | parts.network_facts(run.network) | {
        "derivative_digest": ", ".join(
            "built in" if derivative is None else derivative.digest for derivative in derivatives
        ),
        "start": parts.start_digest(start, run.chains),
        "loss": f"{direction.name} ({digest('loss', direction.name, direction)[:32]})",
        "observables": ", ".join(
            f"{each.name} ({digest('observables', each.name, each)[:32]})"
            for each in task.observables
        ),
        **environment(blas=task.uses_blas),
    }  # fmt: skip
