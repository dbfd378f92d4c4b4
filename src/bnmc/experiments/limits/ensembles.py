"""Images of two classes, and ensembles of networks that learn them, on several threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from os import PathLike
from typing import Annotated, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bnmc._support.arguments import draw_key
from bnmc._support.machine import available_memory, one_blas_thread
from bnmc.errors import ArgumentError
from bnmc.experiments.kit import Float64Array, Progress
from bnmc.experiments.training.images import images
from bnmc.infinite_width import NetworkTraining, train_networks

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


#: Rows of weights of a group of networks, which one thread trains.
_ROWS = 1024

_OF_NETWORKS = [field.name for field in fields(NetworkTraining) if field.name != "steps"]


def require_start(steps: tuple[int, ...]) -> None:
    """Require that the first of the recorded steps is 0."""
    if steps[0] != 0:
        raise ArgumentError("steps", steps, "steps, the first of which is 0")


def train_ensemble(
    scaling: str,
    x: NDArray[np.float64],
    labels: NDArray[Any],
    steps: tuple[int, ...],
    *,
    chains: int,
    rng: np.random.Generator,
    threads: int,
    progress: Progress,
    **options: Any,
) -> NetworkTraining:
    """Return networks that are trained in groups; their bits do not depend on `threads`.

    Parameters
    ----------
    scaling, x, steps
        As `train_networks` takes them.
    labels : (samples,) or (networks, samples) ndarray
        Labels of all networks, or of each.
    chains : int
    rng : numpy.random.Generator
        Advances by one draw.
    threads : int
        Fewer are used if their networks would not fit in memory.
    progress : callable
        Called with (done, chains).
    **options
        Further arguments of `train_networks`.

    Returns
    -------
    NetworkTraining
        Of all networks.
    """
    # The number of children that a generator has spawned is no part of its state, so the children
    # of `rng` itself would depend on which parts of a figure were stored.
    seeds = np.random.SeedSequence(draw_key(rng)).spawn(chains)
    children = [np.random.default_rng(seed).spawn(1)[0] for seed in seeds]
    each = np.broadcast_to(labels, (chains, x.shape[1]))
    size = max(1, min(_ROWS // options["width"], -(-chains // threads)))
    groups = [slice(first, first + size) for first in range(0, chains, size)]

    def trained(at: slice) -> NetworkTraining:
        return train_networks(
            scaling, x, each[at], steps, chains=len(each[at]), rng=children[at], **options
        )

    results: list[NetworkTraining] = []
    # Weights with their start, gradient and change, and activations; a thread has one group.
    columns = x.shape[1] + (0 if options.get("test") is None else options["test"].shape[1])
    needed = 8 * size * options["width"] * (4 * len(x) + 6 * columns)
    workers = max(1, min(threads, len(groups), available_memory() // needed))
    # If the loop ends early, by Ctrl-C for example, `map` cancels the networks that wait.
    with one_blas_thread(), ThreadPoolExecutor(workers) as pool:
        for at, result in zip(groups, pool.map(trained, groups), strict=True):
            results.append(result)
            progress(min(at.stop, chains), chains)
    parts = ([getattr(result, name) for result in results] for name in _OF_NETWORKS)
    joined: list[Any] = [None if part[0] is None else np.concatenate(part) for part in parts]
    return NetworkTraining(results[0].steps, *joined)
