"""Convolutions with circular padding: which columns a tap sees, and what that does to covariances.

The representation of a convolutional chain has one row per channel, and one column per sample and
position, with the sample as the slower index.  A convolution multiplies the activations that all
its taps see by a matrix of shape (channels, taps * channels).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from bnmc._support.arguments import integer
from bnmc.errors import ArgumentError, ArgumentTypeError


@dataclass(frozen=True, init=False)
class Convolution:
    r"""A convolution of images with circular padding, as an argument of `bnmc.Chain`.

    With input channels c and taps δ, it takes activations a to

    .. math:: h_{o,s,p} = \sum_{c, \delta} W_{o,c,\delta}\, a_{c,s,p+\delta},

    where p + δ is modulo the shape of the image.  Given a, the rows of h are i.i.d. N(0, C(G)) for
    weights N(0, 1/(channels · taps)), with the Gram matrix G of a over samples and positions, and

    .. math:: C(G)_{(s,p),(t,q)} = \frac{1}{k} \sum_\delta G_{(s,p+\delta),(t,q+\delta)},

    the average over the k taps (Xiao et al., arXiv:1806.05393, eq. (2.5)).

    Parameters
    ----------
    shape : (int, int), default (8, 8)
        Height and width of the images, in pixels, >= 1.
    kernel : (int, int), default (3, 3)
        Height and width of the kernel, from 1 to those of the images.  Along an axis with k taps,
        tap j sees the pixel at the distance j − (k−1)//2, so a kernel of even size has one more
        tap behind the pixel than before it, as in PyTorch with ``padding="same"``.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If a size is not allowed.

    Examples
    --------
    >>> import numpy as np
    >>> from bnmc import Convolution
    >>> pair = Convolution(shape=(1, 3), kernel=(1, 2))
    >>> pair.covariance(np.diag([2.0, 4.0, 6.0]))  # each pixel and the one behind it
    array([[3., 0., 0.],
           [0., 5., 0.],
           [0., 0., 4.]])
    """

    shape: tuple[int, int]
    kernel: tuple[int, int]

    def __init__(self, shape: tuple[int, int] = (8, 8), kernel: tuple[int, int] = (3, 3)) -> None:
        sizes = _pair("shape", shape)
        taps = _pair("kernel", kernel)
        if taps[0] > sizes[0] or taps[1] > sizes[1]:
            raise ArgumentError("kernel", kernel, f"at most the shape of the images, {sizes}")
        object.__setattr__(self, "shape", sizes)
        object.__setattr__(self, "kernel", taps)

    @property
    def positions(self) -> int:
        """Number of pixels of an image."""
        return self.shape[0] * self.shape[1]

    @property
    def taps(self) -> int:
        """Number of weights of a pair of channels."""
        return self.kernel[0] * self.kernel[1]

    def neighbours(self, columns: int) -> NDArray[np.int64]:
        """Return the column that each tap sees from each column, (taps, columns)."""
        return _neighbours(self.shape, self.kernel, columns)

    def unfold(self, a: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return what the taps see, one tap after the other.

        Activations (..., channels, columns) give (..., taps * channels, columns).
        """
        if self.taps == 1:
            return a
        *leading, channels, columns = a.shape
        seen = np.moveaxis(a[..., self.neighbours(columns)], -2, -3)
        return seen.reshape(*leading, self.taps * channels, columns)

    def fold(self, seen: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the transpose of `unfold`: sums over the taps that see a column.

        Gradients (..., taps * channels, columns) give (..., channels, columns).
        """
        if self.taps == 1:
            return seen
        *leading, length, columns = seen.shape
        parts = seen.reshape(*leading, self.taps, length // self.taps, columns)
        total = np.zeros((*leading, length // self.taps, columns))
        for tap, places in enumerate(self.neighbours(columns)):
            # No two columns see the same one through a tap.
            total[..., places] += parts[..., tap, :, :]
        return total

    def covariance(self, gram: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return C(G) for Gram matrices, (..., columns, columns)."""
        if self.taps == 1:
            return gram
        from bnmc._kernels.cpu.sources import average_taps  # Numba takes long to import

        stack = np.ascontiguousarray(gram, np.float64).reshape(-1, *gram.shape[-2:])
        for neighbours in self.axes(gram.shape[-1]):
            if len(neighbours):
                means = np.empty_like(stack)
                for matrix, mean in zip(stack, means, strict=True):
                    average_taps(matrix, neighbours, mean)
                stack = means
        return stack.reshape(gram.shape)

    def axes(self, columns: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return what the taps along each axis see; no taps along an axis with one.

        The taps are all pairs of a row and a column, so means over them are means over one axis
        after the other.  If only one axis has several taps, it comes second.
        """
        down, across = (
            _neighbours(self.shape, kernel, columns) if kernel != (1, 1) else _NO_TAPS
            for kernel in ((self.kernel[0], 1), (1, self.kernel[1]))
        )
        return (down, across) if len(across) else (across, down)


#: Columns that the taps of an axis see which has one tap.
_NO_TAPS = np.zeros((0, 0), np.int64)
_NO_TAPS.setflags(write=False)


def _pair(name: str, value: object) -> tuple[int, int]:
    """Return two integers >= 1, or raise."""
    allowed = "a pair of integers >= 1: height and width in pixels"
    if not isinstance(value, (tuple, list)):
        raise ArgumentTypeError(name, value, allowed)
    if len(value) != 2:
        raise ArgumentError(name, value, allowed)
    height, width = (integer(name, size, low=1) for size in value)
    return height, width


#: The patches of a layer without a convolution: each column sees itself.
NO_CONVOLUTION = Convolution((1, 1), (1, 1))


@lru_cache(maxsize=32)
def _neighbours(shape: tuple[int, int], kernel: tuple[int, int], columns: int) -> NDArray[np.int64]:
    places = np.arange(columns).reshape(-1, *shape)
    before = [(size - 1) // 2 for size in kernel]
    # The pixel p sees p + δ, so the image moves by -δ.
    moved = [
        np.roll(places, (before[0] - i, before[1] - j), axis=(1, 2)).ravel()
        for i, j in np.ndindex(*kernel)
    ]
    table = np.array(moved, np.int64)
    table.setflags(write=False)
    return table
