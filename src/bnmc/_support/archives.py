"""NumPy arrays as bytes and back, with a digest that shows damage.  Reading runs no code."""

from __future__ import annotations

import hashlib
import io
import math
import zipfile
from collections.abc import Mapping
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from bnmc._support.machine import available_memory, require_memory
from bnmc.errors import ResultTooLargeError

#: Bytes that are read at a time.
_PART_BYTES = 1 << 22

#: The entry of the archive with the digest of all others.
_DIGEST = "digest"


class Damaged(ValueError):
    """The bytes are not those that were written."""


class Foreign(ValueError):
    """The arrays are nothing that a reader takes."""


class TooLarge(ValueError):
    """The arrays of an archive do not fit in memory."""


def archived(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Return arrays as an archive in NumPy's format ``npz``, with their digest.

    Examples
    --------
    >>> import numpy as np
    >>> from bnmc._support.archives import archived, arrays_of
    >>> arrays_of(archived({"x": np.arange(3)}))
    {'x': array([0, 1, 2])}
    """
    digest = np.frombuffer(_digest_of_arrays(arrays), np.uint8)
    file = io.BytesIO()
    np.savez(file, **{**arrays, _DIGEST: digest})  # type: ignore[arg-type]
    return file.getvalue()


def arrays_of(content: bytes) -> dict[str, NDArray[Any]]:
    """Return the arrays of an archive after a check of its size and digest.

    Raises
    ------
    Damaged
        If the bytes are no such archive, or changed since.  Its arrays are not compressed, so they
        are not larger than it.
    TooLarge
        If the arrays do not fit in memory.
    """
    arrays = {}
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
            if size > available_memory():
                raise TooLarge(f"its arrays have {size} bytes, more than the available memory")
            if size > len(content):
                raise Damaged("it is compressed")
            for entry in archive.infolist():
                with archive.open(entry) as file:
                    name = entry.filename.removesuffix(".npy")
                    arrays[name] = read_npy(name, file, entry.file_size)
    except (Damaged, TooLarge):
        raise
    except ResultTooLargeError as error:
        raise TooLarge(str(error)) from error
    except Exception as error:  # a damaged archive raises many errors
        raise Damaged(str(error)) from error
    digest = arrays.pop(_DIGEST, None)
    if digest is None or digest.tobytes() != _digest_of_arrays(arrays):
        raise Damaged("another digest")
    return arrays


def _digest_of_arrays(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Return the SHA-256 of names, dtypes, shapes and values."""
    state = hashlib.sha256()
    for name in sorted(arrays):
        array = arrays[name]
        state.update(f"{name} {array.dtype.str} {array.shape} ".encode())
        state.update(array.tobytes())
    return state.digest()


def read_npy(name: str, file: IO[bytes], size: int) -> NDArray[Any]:
    """Read an array in NumPy's format ``npy``, after a comparison of its size with the memory.

    Parameters
    ----------
    name : str
        Name of the argument, for the message.
    file : binary file
        At the beginning of the array: a file, or a member of an archive.
    size : int
        Bytes of the array with its header, unpacked.  A sparse file and a member of an archive may
        take much less on disk.

    Returns
    -------
    ndarray
        Of any dtype but objects.

    Raises
    ------
    ResultTooLargeError
        If the array and a copy in float64 do not fit in memory.
    ValueError
        If the file is damaged, or contains objects.

    Examples
    --------
    >>> import numpy as np
    >>> from bnmc._support.archives import read_npy
    >>> import io
    >>> file = io.BytesIO()
    >>> np.save(file, np.eye(2))
    >>> size = file.tell()
    >>> file.seek(0)
    0
    >>> read_npy("x", file, size).shape
    (2, 2)
    """
    version = np.lib.format.read_magic(file)
    read = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }.get(version)
    if read is None:
        raise ValueError(f"its version is {version}")
    shape, by_columns, dtype = read(file)
    if dtype.hasobject:
        raise ValueError("it contains objects, which only unpickling could read")
    count = math.prod(shape)
    wanted = count * dtype.itemsize
    if file.tell() + wanted != size:
        raise ValueError(f"its header states {wanted} bytes, and it has {size - file.tell()}")
    require_memory(name, wanted + 8 * count)
    content = np.empty(wanted, np.uint8)
    left = content.data
    while left.nbytes:
        part = file.read(min(left.nbytes, _PART_BYTES))
        if not part:
            raise ValueError("it ends too early")
        left[: len(part)] = part
        left = left[len(part) :]
    return content.view(dtype).reshape(shape, order="F" if by_columns else "C")
