"""Labelled images: handwritten digits, or the files of MNIST, Fashion-MNIST and CIFAR-10."""

from __future__ import annotations

import gzip
import hashlib
import math
import os
import zlib
from importlib import resources
from io import BytesIO
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnmc._support.arguments import integer
from bnmc._support.files import as_path
from bnmc._support.machine import require_memory
from bnmc.errors import ArgumentError

#: Names of the files with images and labels (MNIST and Fashion-MNIST); ".gz" may follow.
_IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
_IDX_OTHER = ("train-images.idx3-ubyte", "train-labels.idx1-ubyte")

#: The files of CIFAR-10's binary version, each with 10 000 images.
_CIFAR = tuple(f"data_batch_{number}.bin" for number in range(1, 6))

#: Bytes of one image of CIFAR-10: a label, and three channels of 32 x 32 pixels.
_CIFAR_BYTES = 1 + 3 * 32 * 32

_MOST_DIGITS = 1740

#: Most bytes that one byte of a .gz file unpacks to.
_MOST_PACKED = 1032


class Images(NamedTuple):
    """Labelled images.

    Attributes
    ----------
    name : str
        "digits", "IDX files" or "CIFAR-10".
    pixels : (n, channels, side, side) ndarray of float64
        Grey values in [0, 1].
    labels : (n,) ndarray of int64
        Classes 0 to 9.
    """

    name: str
    pixels: NDArray[np.float64]
    labels: NDArray[np.int64]

    @property
    def features(self) -> int:
        """Number of pixels of an image, over all channels."""
        return int(np.prod(self.pixels.shape[1:]))

    def digest(self) -> str:
        """Return 16 hexadecimal digits that identify pixels and labels."""
        state = hashlib.sha256(repr(self.pixels.shape).encode())
        state.update(self.pixels.tobytes())
        state.update(self.labels.tobytes())
        return state.hexdigest()[:16]


def images(data: str | os.PathLike[str] | None, count: int, batch: int) -> Images:
    """Return the first images of a data set.

    Parameters
    ----------
    data : path or None
        Folder with the training files of MNIST or Fashion-MNIST (IDX format, also compressed as
        .gz) or of CIFAR-10 (binary version).  None: the 1740
        digits of this package, with equal counts of all classes.
    count : int
        Largest number of images, >= `batch`.
    batch : int
        Their number is the largest multiple of `batch` up to `count`.

    Returns
    -------
    Images

    Raises
    ------
    ArgumentTypeError, ArgumentError
        If `data` is no path, or its files are missing, damaged, pickled, or too few for one batch.

    Examples
    --------
    >>> from bnmc.experiments.training.images import images
    >>> some = images(None, 100, 32)
    >>> some.name, some.pixels.shape, some.labels[:12].tolist()
    ('digits', (96, 1, 8, 8), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1])
    """
    batch = integer("batch", batch, low=2)
    count = integer("images", count, low=batch)
    if data is None:
        count = min(count, _MOST_DIGITS) // batch * batch
        if count == 0:
            raise ArgumentError("batch", batch, f"at most {_MOST_DIGITS}, the number of digits")
        pixels = np.ascontiguousarray(digits(count).T).reshape(count, 1, 8, 8)
        return Images("digits", pixels, np.arange(count, dtype=np.int64) % 10)
    name, whole, labels = _read(as_path("data", data), count)
    count = min(count, len(labels)) // batch * batch
    if count == 0:
        raise ArgumentError("data", f"{len(labels)} images", f"at least {batch}, one batch")
    return Images(name, whole[:count] / 255.0, labels[:count].astype(np.int64))


def digits(count: int) -> NDArray[np.float64]:
    """Return handwritten digits.

    The file `digits.npz` has 1740 of the 1797 images of "Optical Recognition of Handwritten Digits"
    (E. Alpaydin and C. Kaynak, UCI Machine Learning Repository, 1998, CC BY 4.0), 174 of each
    digit, in the order in which scikit-learn's ``load_digits`` has them.

    Parameters
    ----------
    count : int
        Number of images, in 1 to 1740.  Images come in rounds: the first image of each digit 0, 1,
        …, 9, then the second image of each, and so on.  The limit keeps each round complete.

    Returns
    -------
    (64, count) ndarray of float64
        Grey values of 8 × 8 pixels in [0, 1].

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If `count` is not such an integer; the message calls it "batch".

    Examples
    --------
    >>> from bnmc.experiments.training.images import digits
    >>> digits(10).shape
    (64, 10)
    """
    content = resources.files("bnmc.experiments.training").joinpath("digits.npz").read_bytes()
    with np.load(BytesIO(content)) as stored:
        images = stored["images"]
    hint = f"there are {len(images)} digits"
    count = integer("batch", count, low=1, high=len(images), hint=hint)
    return np.ascontiguousarray(images[:count].T / 16.0)


def _read(folder: Path, count: int) -> tuple[str, NDArray[np.uint8], NDArray[np.uint8]]:
    """Return name, pixels (n, channels, side, side) and labels of the files of a folder."""
    for names in (_IDX, _IDX_OTHER):
        for suffix in ("", ".gz"):
            files = [folder / f"{name}{suffix}" for name in names]
            if all(file.is_file() for file in files):
                pixels, labels = _idx(files[0], 3, count), _idx(files[1], 1, count)
                if len(pixels) != len(labels):
                    raise ArgumentError(
                        "data", f"{len(pixels)} images and {len(labels)} labels", "equal numbers"
                    )
                return "IDX files", pixels[:, None], _checked(files[1], labels)
    binary = [folder / name for name in _CIFAR if (folder / name).is_file()]
    if binary:
        return "CIFAR-10", *_cifar(binary, count)
    hint = ""
    if (folder / "data_batch_1").exists():
        hint = "the folder has the pickled version, which is not read because it may run code"
    allowed = (
        f"a folder with {_IDX[0]} and {_IDX[1]} (or these with .gz), or with {_CIFAR[0]} to "
        f"{_CIFAR[-1]}"
    )
    raise ArgumentError("data", str(folder), allowed, hint)


def _idx(file: Path, axes: int, count: int) -> NDArray[np.uint8]:
    """Return the first entries of a file in IDX format with bytes along so many axes.

    The format is: two zero bytes, 8 for the type byte, the number of axes, the length of each axis
    as four bytes with the highest first, and then the bytes.
    """
    header = 4 * (1 + axes)
    try:
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as stream:
            begin = stream.read(header)
            is_idx = begin[:4] == bytes([0, 0, 8, axes]) and len(begin) == header
            lengths = np.frombuffer(begin[4:], ">u4").tolist() if is_idx else [0]
            if min(lengths) == 0 or math.prod(lengths[1:]) > 2**24:
                raise ArgumentError("data", str(file), f"a file in IDX format with {axes} axes")
            shape = (min(lengths[0], count), *lengths[1:])
            wanted, whole = math.prod(shape), math.prod(lengths)
            size = file.stat().st_size * (_MOST_PACKED if file.suffix == ".gz" else 1)
            if whole <= size:
                require_memory("data", 9 * wanted)
                content = stream.read(wanted)
                whole -= len(content) + _bytes_left(stream, whole - wanted + 1)
    except (OSError, EOFError, zlib.error) as error:  # a cut archive raises EOFError
        raise ArgumentError("data", str(file), "a file that can be read", str(error)) from error
    if whole:
        raise ArgumentError("data", str(file), f"{math.prod(lengths)} bytes after the header")
    return np.frombuffer(content, np.uint8).reshape(shape)


def _bytes_left(stream: IO[bytes] | gzip.GzipFile, most: int) -> int:
    """Return the number of bytes to the end of a file, or `most` if they are more."""
    count = 0
    while part := stream.read(min(most - count, 1 << 22)):
        count += len(part)
    return count


def _cifar(files: list[Path], count: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return pixels and labels of files of CIFAR-10's binary version."""
    rows: list[NDArray[np.uint8]] = []
    missing = count
    for file in files:
        if missing <= 0:
            break
        try:
            size = file.stat().st_size
            content = np.fromfile(file, np.uint8, min(size, missing * _CIFAR_BYTES))
        except OSError as error:
            raise ArgumentError("data", str(file), "a file that can be read", str(error)) from error
        if size == 0 or size % _CIFAR_BYTES:
            allowed = f"a multiple of {_CIFAR_BYTES} bytes, one label and 3072 pixels per image"
            raise ArgumentError("data", f"{size} bytes in {file.name}", allowed)
        rows.append(content.reshape(-1, _CIFAR_BYTES))
        missing -= len(rows[-1])
    whole = np.concatenate(rows)
    return whole[:, 1:].reshape(-1, 3, 32, 32), _checked(files[0], whole[:, 0])


def _checked(file: Path, labels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    if labels.max() > 9:
        raise ArgumentError("data", f"label {labels.max()} in {file.name}", "labels 0 to 9")
    return labels
