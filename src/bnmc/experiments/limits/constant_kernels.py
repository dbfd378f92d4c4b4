"""Table 1 of the lectures: trained convolutional networks beside their constant kernels."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnmc._support.machine import one_blas_thread
from bnmc.errors import ArgumentError
from bnmc.experiments import kit, pictures
from bnmc.experiments.kit import Dataset, Drawing, Experiment, Float64Array, Progress, Run
from bnmc.experiments.limits.convolutional_kernels import tangent_kernels
from bnmc.experiments.sizes import Several
from bnmc.experiments.statistics import short_interval
from bnmc.experiments.training import runs
from bnmc.experiments.training.networks import pooled
from bnmc.experiments.training.trainer import square_loss
from bnmc.plot.axes import COLOURS

#: Records of the networks.
_NAMES = {
    "accuracy": "accuracy of networks on the training images",
    "test_accuracy": "accuracy of networks on the test images",
}


class _Sizes(NamedTuple):
    """Sizes of the figure.

    width: output channels of the convolutions
    depths: numbers of convolutions
    tests: further images, on which networks and kernels are tested
    """

    width: int = 16
    depths: tuple[int, ...] = (1, 2, 4)
    batch: Several = 8
    images: int = 128
    tests: int = 192
    epochs: int = 100
    every: int = 20
    rate: float = 0.1
    chains: Several = 5


@kit.figure(
    "limits-constant-kernel", _Sizes(), trains=True, torch=True,
    width=128, depths=(3, 4, 6, 11, 21), batch=32,
    images=1024, tests=704, chains=10,
)  # fmt: skip
def constant_kernel(run: Run, sizes: _Sizes) -> Experiment:
    """Table 1: convolutional networks trained with square loss beside their constant kernels.

    A network has 3 × 3 convolutions with zero padding, ReLU after each, the mean over all
    positions, and a readout of 10 classes.  It is trained by SGD from normal weights of variance
    2/fan-in on the square distance from the unit vectors of the labels less 1/10.  Its constant
    kernel is the tangent kernel of infinitely many channels.  Gradient flow with this kernel from
    outputs 0 ends at Θ(x, X) Θ(X, X)⁻¹ Y.  The picture shows the share of test images that are
    classified correctly.

    Intervals are over networks; neither they nor the kernels contain the choice of the images.
    The lectures show Table 1 of Arora et al. (arXiv 1904.11955), with CIFAR-10: "if we fix the
    kernel, performance gets worse".  With ``data=`` the figure takes the first images of CIFAR-10;
    the kernel needs the fourth power of the side of an image in time.

    Expected: with the 50 000 images of CIFAR-10 networks with 4 and more layers are better than
    their kernels, and with 3 layers worse.  With few images kernels are at least as good (Arora et
    al., arXiv 1910.01663).

    Returns
    -------
    Experiment
        Variables by ``depth``, those of the networks also by ``epoch``.

    Examples
    --------
    >>> from bnmc.experiments import limits
    >>> found = limits.constant_kernel()  # doctest: +SKIP
    >>> found.data["kernel"].dims  # doctest: +SKIP
    ('depth',)
    """
    training = runs.Training(
        run, sizes, (sizes.rate,), sizes.every, tests=sizes.tests, criterion=square_loss
    )
    if not training.tests:
        raise ArgumentError("tests", sizes.tests, f"at least {sizes.batch}, one batch")
    pixels, labels = training.images.pixels, training.images.labels
    split = len(labels) - training.tests

    def network(depth: int, _: int, progress: Progress) -> dict[str, Float64Array]:
        """Return the records of a trained network."""
        case = runs.Case(partial(pooled, pixels.shape[1], sizes.width, depth))
        return training.network(case, sizes.rate, progress)

    def kernels(depth: int, progress: Progress) -> Float64Array:
        """Return the kernels of all depths up to this one, row by row."""
        rows = []
        for row in range(split):
            rows.append(tangent_kernels(pixels[row : row + 1], pixels, depth))
            progress(row + 1, split)
        return np.concatenate(rows, axis=1)

    makers: dict[str, Callable[..., Any]] = {"network": network, "kernels": kernels}

    def part(what: str, *point: Any) -> Any:
        return makers[what](*point)

    deepest = "kernels", max(sizes.depths)
    networks_at = itertools.product(["network"], sizes.depths, range(sizes.chains))
    points: list[tuple[Any, ...]] = [*networks_at, deepest]
    costs = [depth + 1.0 for _, depth, *_ in points]
    made = run.parts(part, points, costs, training.facts())
    results = kit.Results(
        run, depth=kit.Axis(sizes.depths, "convolutions"), epoch=training.plan.records
    )
    per = ("depth", "epoch")
    networks = {
        name: results.add_means(
            name, per,
            {
                (depth,): np.stack([made["network", depth, k][name] for k in range(sizes.chains)])
                for depth in sizes.depths
            },
            text,
        ).at(epoch=-1)
        for name, text in _NAMES.items()
    }  # fmt: skip
    with one_blas_thread():
        right = {(depth,): _share(made[deepest][depth - 1], labels) for depth in sizes.depths}
    of_kernel = results.add("kernel", ("depth",), right, "accuracy of the kernel on test images")
    columns = {
        "training images, network": networks["accuracy"],
        "test images, network": networks["test_accuracy"],
        "test images, kernel": of_kernel,
    }
    return results.experiment(
        f"Convolutional networks and their constant kernels, {training.images.name}",
        kit.table_of(columns, heads=("convolutions",)),
        _findings(networks["test_accuracy"], of_kernel), _draw,
        **training.attributes(), width=sizes.width, tests=training.tests,
    )  # fmt: skip


def _share(kernel: Float64Array, labels: NDArray[np.int64]) -> float:
    """Return the share of test images that are classified by Θ(x, X) Θ(X, X)⁻¹ Y correctly."""
    split = len(kernel)
    targets = np.eye(10)[labels[:split]] - 0.1
    outputs = kernel[:, split:].T @ np.linalg.solve(kernel[:, :split], targets)
    return float(np.mean(outputs.argmax(axis=1) == labels[split:]))


def _findings(network: kit.Column, kernel: kit.Column) -> Iterator[str]:
    for depth, band, share in zip(
        network.axes["depth"], network.values, kernel.values, strict=True
    ):
        low, high = band[1:]
        verdict = "larger" if high < share else "smaller" if low > share else "undecided"
        yield (
            f"With {depth} convolution{'s' * (depth > 1)} the accuracy on test images is "
            f"{short_interval(band)} for networks, and {share:.3g} for their constant kernel "
            f"({verdict})."
        )


def _draw(data: Dataset, figure: Drawing) -> None:
    (ax,) = pictures.axes_of(figure, 1, width=6.4, height=4.6)[0]
    depths = data["depth"].values
    for colour, name, images in zip(COLOURS, _NAMES, ("training", "test"), strict=False):
        values = pictures.curve(data.isel(epoch=-1), name)
        pictures.draw_band(ax, depths, values, colour, f"networks, {images} images", marker="o")
    ax.plot(depths, data["kernel"], "k--s", linewidth=1.0, label="constant kernels, test images")
    ax.set_xticks(depths)
    title = "{images} for training, {tests} for testing"
    pictures.finish(ax, title.format(**data.attrs), "convolutions", "accuracy", legend=True)
    figure.suptitle(pictures.about(data, "Width {width}"))
