"""Reading a batch of inputs, or states of another program, from a file.

Nothing here unpickles: a damaged or malicious file raises an error, and runs no code.
"""

from __future__ import annotations

import contextlib
import csv
import os
import warnings
import zipfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnmc._support.archives import read_npy
from bnmc._support.arguments import choice, finite_array
from bnmc._support.files import as_path
from bnmc._support.machine import require_memory
from bnmc.errors import ArgumentError, UnknownNameError

# Suffixes of files of inputs.
_INPUT_FORMATS = (".npy", ".npz", ".csv")

# Bytes of memory per byte of a .csv file: its lines, and numbers of two characters each.
_CSV_MEMORY = 8


def read_input(
    path: str | os.PathLike[str], *, array: str | None = None, samples_first: bool = False
) -> NDArray[np.float64]:
    """Read a batch of inputs.

    Parameters
    ----------
    path : path
        An existing ``.npy``, ``.npz`` or ``.csv`` file, with one row per feature and one column per
        sample. In a .csv file, a first line of names and lines that begin with # are skipped.
    array : str, optional
        Name of an array of an .npz file; needed if the file has several.
    samples_first : bool, default False
        Whether the file has one row per sample and one column per feature.

    Returns
    -------
    ndarray of float64, shape (features, samples)

    Raises
    ------
    OSError
        If the file cannot be opened.
    ArgumentError, ArgumentTypeError
        If the file is damaged, or contains no matrix of finite real numbers.
    ResultTooLargeError
        If the array does not fit in memory, before it is read: a small archive may unpack to any
        size.

    Examples
    --------
    >>> from bnmc.cli.inputs import read_input
    >>> import numpy as np, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.save(f"{folder}/x.npy", [[1.0, 2.0], [0.5, -1.0], [3.0, 0.0]])
    ...     read_input(f"{folder}/x.npy", samples_first=True).shape
    (2, 3)
    """
    values = _read("input", as_path("input", path), array, _INPUT_FORMATS)
    layout = ("samples", "features") if samples_first else ("features", "samples")
    matrix = finite_array("input", values, shape=layout).astype(np.float64)
    return np.ascontiguousarray(matrix.T if samples_first else matrix)


def read_states(path: str | os.PathLike[str], name: str = "samples") -> NDArray[Any]:
    """Read the states of another program, or any other array, from a file.

    Parameters
    ----------
    path : path
        An existing .npy file, or an .npz file with one array.
    name : str, default "samples"
        Name of the argument, for messages.

    Returns
    -------
    ndarray
        The array, of any shape and any dtype but objects.

    Raises
    ------
    OSError
        If the file cannot be opened.
    ArgumentError
        If the file is damaged or has another suffix.
    ResultTooLargeError
        If the array does not fit in memory, before it is read.
    """
    return _read(name, as_path(name, path), None, (".npy", ".npz"))


def _read(name: str, path: Path, array: str | None, formats: Collection[str]) -> NDArray[Any]:
    """Read an array of a file, the argument `name`, or raise an error about that argument."""
    suffix = choice(f"{name} (by its suffix)", path.suffix.lower(), formats)
    if array is not None and suffix != ".npz":
        raise ArgumentError("array", array, "no array, because only .npz files have named arrays")
    if path.exists() and not path.is_file():
        raise ArgumentError(name, str(path), "a regular file")
    with path.open("rb"):
        pass  # so that an error of the operating system is not reported as damage
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _READERS[suffix](name, path, array)
    except (ArgumentError, MemoryError):
        raise
    except Exception as error:  # the readers raise many types for damaged files
        reason = str(error) or type(error).__name__
        raise ArgumentError(name, str(path), f"an undamaged {suffix} file", reason) from error


def _read_npy(name: str, path: Path, array: str | None) -> NDArray[Any]:
    with path.open("rb") as file:
        return read_npy(name, file, path.stat().st_size)


def _read_npz(name: str, path: Path, array: str | None) -> NDArray[Any]:
    with zipfile.ZipFile(path) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        if array is None and len(members) != 1:
            listed = ", ".join(members) or "none"
            raise ArgumentError("array", array, f"the name of one of its arrays: {listed}")
        if array is not None and array not in members:
            raise UnknownNameError("array", array, members)
        member = members[next(iter(members)) if array is None else array]
        with archive.open(member) as file:
            return read_npy(name, file, member.file_size)


def _read_csv(name: str, path: Path, array: str | None) -> NDArray[Any]:
    require_memory(name, _CSV_MEMORY * path.stat().st_size)
    with path.open(encoding="utf-8-sig", newline="") as lines:
        content = [line for line in lines if line.strip() and not line.lstrip().startswith("#")]
    if content and _is_header(content[0]):
        del content[0]
    if not content:
        raise ValueError("it has no numbers")
    return np.loadtxt(content, delimiter=",", ndmin=2, dtype=np.float64)


def _is_header(line: str) -> bool:
    """Whether no field of a line is a number."""
    fields = next(csv.reader([line]))
    for field in fields:
        with contextlib.suppress(ValueError):
            float(field)
            return False
    return True


_READERS = {".npy": _read_npy, ".npz": _read_npz, ".csv": _read_csv}
