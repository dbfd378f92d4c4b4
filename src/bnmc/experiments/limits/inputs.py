"""Images of two classes as columns of numbers, for training and for testing."""

from __future__ import annotations

from os import PathLike
from typing import Annotated, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bnmc.errors import ArgumentError
from bnmc.experiments.kit import Float64Array
from bnmc.experiments.training.images import images

#: A number of images.
Count: TypeAlias = Annotated[int, {"low": 4}]

_Class: TypeAlias = Annotated[int, {"low": 0, "high": 9}]

#: Two classes.
Classes: TypeAlias = tuple[_Class, _Class]

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
    digest : str
        Identifies the images that were read.
    """

    name: str
    classes: tuple[int, int]
    train: Float64Array
    labels: NDArray[np.bool_]
    test: Float64Array
    test_labels: NDArray[np.bool_]
    digest: str

    def describe(self) -> str:
        """Return data set, classes and numbers of images as text."""
        first, second = self.classes
        return (
            f"{self.name}, classes {first} and {second}, {self.train.shape[1]} images for "
            f"training and {self.test.shape[1]} for testing"
        )


def two_classes(
    data: str | PathLike[str] | None, train: int, test: int, classes: tuple[int, int]
) -> TwoClasses:
    """Return images of two classes.

    Parameters
    ----------
    data : path or None
        The folder with the images; see `images`.
    train, test : int
        Largest numbers of images, >= 4; `test` may be 0.  If there are fewer images, both numbers
        are reduced in proportion.
    classes : (int, int)
        Two different classes, 0 to 9.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        As for `images`; if the classes are equal, or a class has fewer than 2 images for training
        or for testing.
    """
    if classes[0] == classes[1]:
        raise ArgumentError("classes", classes, "two different classes")
    read = images(data, _READ * (train + test), 2)
    chosen = np.flatnonzero(np.isin(read.labels, classes))[: train + test]
    if chosen.size < train + test:
        train = chosen.size * train // (train + test)
    second = read.labels[chosen] == classes[1]
    for use, labels in (("training", second[:train]), ("testing", second[train:])):
        if use == "testing" and test == 0:
            continue
        rarest = min(int(labels.sum()), int((~labels).sum()))
        if rarest < _LEAST:
            raise ArgumentError(
                "data", f"{rarest} images of class {classes[0]} or {classes[1]} for {use}",
                f"at least {_LEAST} among the first {len(read.labels)} images",
            )  # fmt: skip
    columns = read.pixels[chosen].reshape(chosen.size, -1).T.copy()
    return TwoClasses(
        read.name, classes, columns[:, :train], second[:train], columns[:, train:], second[train:],
        read.digest(),
    )  # fmt: skip


def standardized(inputs: TwoClasses) -> TwoClasses:
    """Return the images with pixels of mean about 0 and mean square about 1/features.

    Columns have length about 1.  CIFAR-10 has the published mean and standard deviation of its
    pixels, other images those of their training images.
    """
    centre, spread = float(inputs.train.mean()), float(inputs.train.std())
    if inputs.name == "CIFAR-10":
        centre, spread = _OF_CIFAR
    scale = spread * np.sqrt(len(inputs.train))
    return inputs._replace(
        train=(inputs.train - centre) / scale, test=(inputs.test - centre) / scale
    )  # fmt: skip


def unit_length(inputs: TwoClasses) -> TwoClasses:
    """Return the images as columns of length 1.

    Raises
    ------
    ArgumentError
        If all pixels of an image are 0.
    """
    lengths = [np.linalg.norm(columns, axis=0) for columns in (inputs.train, inputs.test)]
    if min(float(length.min()) for length in lengths) == 0.0:
        raise ArgumentError("data", "an image without a pixel above 0", "images with such pixels")
    return inputs._replace(train=inputs.train / lengths[0], test=inputs.test / lengths[1])
