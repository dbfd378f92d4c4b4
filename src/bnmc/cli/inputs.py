"""TODO-DOC bnmc.cli.app.inputs."""

from __future__ import annotations

import contextlib
import csv
import os
import warnings
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnmc._support.arguments import choice, finite_array
from bnmc._support.files import as_path
from bnmc.errors import ArgumentError, UnknownNameError

__all__ = ["INPUT_FORMATS", "read_input"]
INPUT_FORMATS = (".npy", ".npz", ".csv")

#: Of the members of an archive that are read: a few compressed bytes may claim to be any number.
MOST_BYTES = 1 << 33


def read_input(
    path: str | os.PathLike[str], *, array: str | None = None, samples_first: bool = False
) -> NDArray[np.float64]:
    """Read a batch of inputs.

    Parameters
    ----------
    path : path
        An existing ``.npy``, ``.npz`` or ``.csv`` file with one row a feature and one column a
        sample.  A line of names at the top of a .csv is skipped, as are lines that begin with #.
    array : str, optional
        Which array of an .npz; not needed if it has one.
    samples_first : bool, default False
        Whether the file has one row a sample instead.

    Returns
    -------
    (features, samples) ndarray of float64

    Raises
    ------
    OSError
        If the file cannot be opened.
    ArgumentError, ArgumentTypeError
        If it is damaged, or holds no matrix of finite real numbers.

    Examples
    --------
    >>> import numpy as np, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.save(f"{folder}/x.npy", [[1.0, 2.0], [0.5, -1.0], [3.0, 0.0]])
    ...     read_input(f"{folder}/x.npy", samples_first=True).shape
    (2, 3)
    """
    values = _read("input", as_path("input", path), array, INPUT_FORMATS)
    layout = ("samples", "features") if samples_first else ("features", "samples")
    matrix = finite_array("input", values, shape=layout).astype(np.float64)
    return np.ascontiguousarray(matrix.T if samples_first else matrix)


def read_states(path: str | os.PathLike[str]) -> NDArray[Any]:
    """Read the array of a .npy file, or of an .npz file that has one.

    Parameters
    ----------
    path : path

    Returns
    -------
    ndarray
        Of any shape and dtype; nothing is unpickled.

    Raises
    ------
    OSError
        If the file cannot be opened.
    ArgumentError
        If it is damaged or of another kind.
    """
    return _read("samples", as_path("samples", path), None, (".npy", ".npz"))


def _read(name: str, path: Path, array: str | None, formats: Collection[str]) -> NDArray[Any]:
    """Read an array, or say what is wrong with the file that is the argument `name`."""
    suffix = choice(f"{name} (by its suffix)", path.suffix.lower(), formats)
    if array is not None and suffix != ".npz":
        raise ArgumentError("array", array, "nothing, as only an .npz file has named arrays")
    if path.exists() and not path.is_file():
        raise ArgumentError(name, str(path), "a regular file")
    with path.open("rb"):
        pass  # an error of the operating system is reported as such, not as damage
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _READERS[suffix](path, array)
    except ArgumentError:
        raise
    except Exception as error:  # readers raise a dozen types on files that are damaged on purpose
        reason = str(error) or type(error).__name__
        raise ArgumentError(name, str(path), f"a sound {suffix} file", reason) from error


def _read_npy(path: Path, array: str | None) -> NDArray[Any]:
    with path.open("rb") as file:
        if file.read(6) != b"\x93NUMPY":  # NumPy would try other formats, and leave the file open
            raise ValueError("it does not begin as .npy files do")
    # A map, unlike a read, compares the shape in the header with the length of the file first.
    return np.array(np.load(path, mmap_mode="r", allow_pickle=False))


def _read_npz(path: Path, array: str | None) -> NDArray[Any]:
    with path.open("rb") as file:
        archive = np.load(file, allow_pickle=False)
        if isinstance(archive, np.ndarray):
            raise ValueError("it holds a single array, as .npy files do")
        names = archive.files
        if array is None and len(names) != 1:
            listed = ", ".join(names) or "none"
            raise ArgumentError("array", array, f"the name of one of its arrays: {listed}")
        name = names[0] if array is None else array
        if name not in names:
            raise UnknownNameError("array", name, names)
        for member in archive.zip.infolist():
            if member.filename in (name, f"{name}.npy") and member.file_size > MOST_BYTES:
                raise ValueError(f"the array {name} unpacks to {member.file_size} bytes")
        values: Any = archive[name]
        if not isinstance(values, np.ndarray):  # another file in the archive
            raise ValueError(f"{name} is no array")
        return values


def _read_csv(path: Path, array: str | None) -> NDArray[Any]:
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
