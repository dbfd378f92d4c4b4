"""Known mistakes in convolutions: the covariances and the norms that they lead to."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from bnmc.chain.chain import Chain
from bnmc.chain.convolution import Convolution

__all__ = ["wrong_covariances", "wrong_norms_of_images"]

FloatArray = NDArray[np.float64]

#: Sizes of other kernels that are tried along an axis.
_SIZES = (1, 2, 3, 5, 7)


def wrong_covariances(chain: Chain) -> Iterator[tuple[str, Callable[[FloatArray], FloatArray]]]:
    """Yield texts, and maps from Gram matrices to the covariances of rows that mistakes lead to.

    Nothing is yielded for chains without convolution.
    """
    right = chain.convolution
    if right is None:
        return
    n, (height, width) = chain.batch, right.shape
    if right.taps > 1:
        yield "the padding is zero, not circular", lambda g: _with_zeros(right, g)
    places = np.arange(n).reshape(-1, right.positions)
    if len(places) > 1 and right.taps > 1:
        text = (
            "samples and pixels are transposed: a column is pixel p of sample s at "
            "s * pixels + p, not at p * samples + s"
        )
        yield text, _reordered(right, places.reshape(right.positions, -1).T.ravel())
    if height > 1 and width > 1:
        text = "height and width of the images are transposed"
        order = np.arange(n).reshape(-1, width, height).swapaxes(1, 2).ravel()
        yield text, _reordered(right, order)
    for axis, size in enumerate(right.kernel):
        if size > 1:
            for by in (-1, 1):
                text = f"images are shifted by {by} pixel along axis {axis}: another padding?"
                yield text, _shifted(right, axis, by)
    sizes = {(i, j) for i in _SIZES for j in _SIZES if i == j or i == 1 or j == 1}
    for kernel in sorted(sizes | {right.kernel[::-1]}):
        if kernel != right.kernel and kernel[0] <= height and kernel[1] <= width:
            text = "the kernel has {} x {} taps, not {} x {}".format(*kernel, *right.kernel)
            yield text, Convolution(right.shape, kernel).covariance


def wrong_norms_of_images(chain: Chain) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield texts, and the axes of (channels, samples, pixels) over which wrong norms act."""
    if chain.convolution is None:
        return
    samples = chain.batch // chain.convolution.positions
    if samples > 1 and chain.convolution.positions > 1:
        yield "the norm acts on each pixel, over the samples alone, not over both", (1,)
        yield "the norm acts on each sample, over its pixels alone: instance normalization", (2,)
    text = "the norm acts on each sample, over channels and pixels: layer normalization of images"
    yield text, (0, 2)


def _with_zeros(convolution: Convolution, gram: FloatArray) -> FloatArray:
    """Return the covariance if taps see zeros outside of the images."""
    (height, width), out = convolution.shape, np.zeros_like(gram)
    rows, columns = np.divmod(np.arange(len(gram)) % convolution.positions, width)
    taps = np.ndindex(*convolution.kernel)
    for (i, j), seen in zip(taps, convolution.neighbours(len(gram)), strict=True):
        y = rows + i - (convolution.kernel[0] - 1) // 2
        x = columns + j - (convolution.kernel[1] - 1) // 2
        inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)
        out += gram[np.ix_(seen, seen)] * np.outer(inside, inside)
    return out / convolution.taps


def _reordered(
    convolution: Convolution, order: NDArray[np.int64]
) -> Callable[[FloatArray], FloatArray]:
    """Return the covariance if the convolution takes the columns in another order, and back."""
    back = np.argsort(order)
    return lambda g: convolution.covariance(g[np.ix_(order, order)])[np.ix_(back, back)]


def _shifted(convolution: Convolution, axis: int, by: int) -> Callable[[FloatArray], FloatArray]:
    """Return the covariance of images that are moved by some pixels."""

    def moved(gram: FloatArray) -> FloatArray:
        places = np.arange(len(gram)).reshape(-1, *convolution.shape)
        order = np.roll(places, by, axis=axis + 1).ravel()
        return convolution.covariance(gram)[np.ix_(order, order)]

    return moved
