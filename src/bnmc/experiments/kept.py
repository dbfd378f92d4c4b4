"""Finished parts of an experiment, kept in a folder, so that an interrupted run can continue.

The folder has a header, which identifies the experiment, and one file per finished part.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from bnmc._kernels.processor import host_cpu
from bnmc._support.version import __version__
from bnmc.chain.activations import Activation
from bnmc.experiments.part_files import packed, unpacked
from bnmc.simulation.store.parts import PartStore, as_folder

__all__ = ["KeptParts", "opened"]


def opened(
    store: str | os.PathLike[str] | None,
    name: str,
    full: bool,
    seed: int,
    further: Mapping[str, str] | None = None,
) -> KeptParts | None:
    """Open or make the folder of an experiment.

    Parameters
    ----------
    store : path or None
    name : str
        Name of the experiment.
    full : bool
    seed : int
    further : mapping of str to str, optional
        Everything else that the parts depend on, such as a digest of the images.

    Returns
    -------
    KeptParts or None
        None if `store` is None.

    Raises
    ------
    ArgumentTypeError, ArgumentError
        If `store` is no path, or holds other files.
    StoreMismatchError
        If it holds another experiment, or the same with another seed, version of bnmc, kind of
        processor or further property.
    StoreError
        If it cannot be read or written.
    """
    folder = as_folder(store)
    if folder is None:
        return None
    wanted = {
        "experiment": name, "full": str(bool(full)), "seed": str(seed), "version": __version__,
        "cpu": host_cpu(), **(further or {}),
    }  # fmt: skip
    return KeptParts(folder, wanted)


class KeptParts(PartStore):
    """A folder with one file for each finished part; see `part_files.py`.

    Parameters
    ----------
    folder : Path
        Made if it does not exist.
    facts : mapping of str to str
        Everything that the parts depend on.

    Raises
    ------
    ArgumentError, StoreMismatchError, StoreError
        As for `opened`.
    """

    header, what = "experiment.json", "an earlier run of the experiment"

    def get(self, number: int, activations: Iterable[Activation] = ()) -> Any:
        """Return a finished part, or None if its file is missing or damaged.

        Parameters
        ----------
        number : int
            Number of the part.
        activations : iterable of Activation
            Activations that the part may use, besides the named ones.

        Raises
        ------
        StoreMismatchError
            If the file is that of another experiment, seed or part.
        StoreError
            If the file cannot be read, or contains anything else than results.
        """
        return self.content(number, lambda content: unpacked(content, activations))

    def put(self, number: int, part: Any) -> None:
        """Write a finished part.  Its file appears complete or not at all."""
        self.write(number, packed(part, self.facts_of(number)))
