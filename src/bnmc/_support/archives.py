"""NumPy arrays as bytes and back, with a digest that shows damage.  Reading runs no code."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnmc._support.files import read_npy
from bnmc._support.machine import available_memory
from bnmc.errors import ResultTooLargeError

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
