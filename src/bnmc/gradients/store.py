"""Finished parts of a backward pass in a folder, so that an interrupted run can continue.

The folder has a header, which identifies the run, and one archive of arrays per finished part.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnmc._kernels.processor import host_cpu
from bnmc._support.archives import Damaged
from bnmc._support.machine import blas_kernel
from bnmc._support.version import __version__
from bnmc.chain.start import Covariance, Representation
from bnmc.errors import StoreError
from bnmc.gradients.network_pass import NetworkTask
from bnmc.gradients.parts import Part, Task
from bnmc.simulation.store import parts

#: File that identifies the run.
_HEADER = "gradients.json"

_VALUES = "value_"


def stored_key(folder: Path) -> int | None:
    """Return the key of the run in a folder, or None if there is none.

    Raises
    ------
    StoreError
        If the header is damaged, or cannot be read.
    """
    if not (folder / _HEADER).exists():
        return None
    try:
        return int(parts.header_of(folder, _HEADER)["key"])
    except (KeyError, ValueError):
        raise StoreError(str(folder), f"{_HEADER} is damaged") from None


class ChainStore(parts.PartStore):
    """The folder of a run.

    Parameters
    ----------
    folder : Path
        Made if it does not exist.
    task : Task
    start : Covariance or Representation
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
        If it holds another run; the error names a difference.
    StoreInUseError, StoreLockError
        If another process writes it, or the file system has no locks.
    StoreError
        If it cannot be read or written.
    """

    header, what = _HEADER, "an earlier call of backpropagate"

    def __init__(
        self, folder: Path, task: Task, start: Covariance | Representation, size: int
    ) -> None:
        self._task = task
        super().__init__(folder, _facts(task, start), {"part": size})
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
        arrays = self.content(number, parts.without_facts)
        try:
            return None if arrays is None else self._part(number, arrays)
        except (Damaged, KeyError):
            return None

    def put(self, number: int, part: Part) -> None:
        """Write a finished part.

        Raises
        ------
        StoreError
            If it cannot be written.
        """
        arrays: dict[str, NDArray[Any]] = {
            "log_norms": part.log_norms,
            "log_scale": part.log_scale,
            "widened": np.asarray(part.widened, np.int64),
        }
        arrays |= {_VALUES + name: values for name, values in part.values.items()}
        self.write(number, parts.with_facts(arrays, self.facts_of(number)))

    def _part(self, number: int, arrays: dict[str, NDArray[Any]]) -> Part:
        """Return a part, or raise `Damaged` if its arrays are not those of this run."""
        first = number * self.size
        run = self._task.run.part(first, min(first + self.size, self._task.run.chains))
        empty = Part.empty(run, self._task.observables)
        values = {_VALUES + name: array for name, array in empty.values.items()}
        for name, array in {
            "log_norms": empty.log_norms, "log_scale": empty.log_scale, **values
        }.items():  # fmt: skip
            if arrays[name].shape != array.shape or arrays[name].dtype != np.float64:
                raise Damaged(f"{name} has another shape or dtype")
        return Part(
            first, arrays["log_norms"], {name: arrays[_VALUES + name] for name in empty.values},
            arrays["log_scale"], arrays["widened"].tolist(),
        )  # fmt: skip


def _facts(task: Task, start: Covariance | Representation) -> dict[str, str]:
    """Return everything that determines the values of a run."""
    run, direction, derivative = task.run, task.direction, task.run.chain.activation.derivative
    facts = {
        "bnmc_version": __version__, "cpu": host_cpu(), "chain": repr(run.chain),
        "key": str(run.key), "sampler": run.path, "dtype": run.dtype, "chains": str(run.chains),
        "inputs": str(run.inputs), "depth": str(run.depth), "every": str(run.recorded.every),
    }  # fmt: skip
    if isinstance(task, NetworkTask):
        facts["blas"] = blas_kernel()
    if run.backend != "cpu":
        # An additional fact would not differ from the facts of a folder that lacks it.
        facts["sampler"] = f"{run.path} on {run.backend}"
    digest = parts.argument_digest
    return facts | parts.chain_facts(run.chain) | {
        "derivative_digest": "built in" if derivative is None else derivative.digest,
        "start": parts.start_digest(start),
        "loss": f"{direction.name} ({digest('loss', direction.name, direction)[:32]})",
        "observables": ", ".join(
            f"{each.name} ({digest('observables', each.name, each)[:32]})"
            for each in task.observables
        ),
    }  # fmt: skip
