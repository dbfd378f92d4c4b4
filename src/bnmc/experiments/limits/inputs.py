"""Images of two classes as columns of numbers, for training and for testing."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnmc._support.arguments import integer
from bnmc.errors import ArgumentError
from bnmc.experiments.parts import Call
from bnmc.experiments.training.images import images

__all__ = ["TwoClasses", "standardized", "two_classes", "unit_length"]

Float64Array = NDArray[np.float64]

#: Mean and standard deviation of the pixels of CIFAR-10 in Golikov's code.
_OF_CIFAR = (0.4734, 0.2516)

#: Images that are read for each one that is wanted.  Two of ten classes are a fifth of the images.
_READ = 8

#: Fewest images of each class for training, and for testing.
_LEAST = 2


class TwoClasses(NamedTuple):
    """Images of two classes.

    Attributes
    ----------
    name : str
        "digits", "IDX files" or "CIFAR-10".
    classes : (int, int)
    train, test : (features, samples) ndarray of float64
        Grey values in [0, 1], an image per column.
    labels, test_labels : (samples,) ndarray of bool
        Whether an image is of the second class.
    """

    name: str
    classes: tuple[int, int]
    train: Float64Array
    labels: NDArray[np.bool_]
    test: Float64Array
    test_labels: NDArray[np.bool_]

    def describe(self) -> str:
        """Return data set, classes and numbers of images as text."""
        first, second = self.classes
        return (
            f"{self.name}, classes {first} and {second}, {self.train.shape[1]} images for "
            f"training and {self.test.shape[1]} for testing"
        )


def two_classes(call: Call, train: int, test: int, classes: tuple[int, int]) -> TwoClasses:
    """Return the images of a call, and make them part of the identity of its kept parts.

    Parameters
    ----------
    call : Call
        Its `data` is the folder with the images; see `images`.
    train, test : int
        Largest numbers of images, >= 4; `test` may be 0.  If there are fewer images, both numbers
        are reduced in proportion.
    classes : (int, int)
        Two different classes, 0 to 9.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        As for `images`; if a class or a number is not allowed, `threads` is invalid, or a class has
        fewer than 2 images for training or for testing.
    """
    call.processors()  # the work takes one thread; an invalid number raises nevertheless
    train, test = integer("train", train, low=4), integer("test", test, low=0)
    if 0 < test < 4:
        raise ArgumentError("test", test, "0, or an integer >= 4")
    pair = tuple(integer("classes", one, low=0, high=9) for one in classes)
    if len(pair) != 2 or pair[0] == pair[1]:
        raise ArgumentError("classes", classes, "two different classes, 0 to 9")
    found = images(call.data, _READ * (train + test), 2)
    chosen = np.flatnonzero(np.isin(found.labels, pair))[: train + test]
    if chosen.size < train + test:
        train = chosen.size * train // (train + test)
    second = found.labels[chosen] == pair[1]
    for use, labels in (("training", second[:train]), ("testing", second[train:])):
        if use == "testing" and test == 0:
            continue
        rarest = min(int(labels.sum()), int((~labels).sum()))
        if rarest < _LEAST:
            raise ArgumentError(
                "data", f"{rarest} images of class {pair[0]} or {pair[1]} for {use}",
                f"at least {_LEAST} among the first {len(found.labels)} images",
            )  # fmt: skip
    call.further["images"] = found.digest()
    columns = found.pixels[chosen].reshape(chosen.size, -1).T.copy()
    return TwoClasses(
        found.name, (pair[0], pair[1]),
        columns[:, :train], second[:train], columns[:, train:], second[train:],
    )  # fmt: skip


def standardized(found: TwoClasses) -> TwoClasses:
    """Return the images with pixels of mean about 0 and mean square about 1/features.

    Columns have length about 1.  CIFAR-10 has the published mean and standard deviation of its
    pixels, other images those of their training images.
    """
    centre, spread = float(found.train.mean()), float(found.train.std())
    if found.name == "CIFAR-10":
        centre, spread = _OF_CIFAR
    scale = spread * np.sqrt(len(found.train))
    return found._replace(
        train=(found.train - centre) / scale, test=(found.test - centre) / scale
    )  # fmt: skip


def unit_length(found: TwoClasses) -> TwoClasses:
    """Return the images as columns of length 1.

    Raises
    ------
    ArgumentError
        If all pixels of an image are 0.
    """
    lengths = [np.linalg.norm(one, axis=0) for one in (found.train, found.test)]
    if min(float(one.min()) for one in lengths) == 0.0:
        raise ArgumentError("data", "an image without a pixel above 0", "images with such pixels")
    return found._replace(train=found.train / lengths[0], test=found.test / lengths[1])
