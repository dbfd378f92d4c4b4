"""Tangent kernels of infinitely wide convolutional networks with global average pooling."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from bnmc.experiments.kit import Float64Array

#: Positions of a window of the convolutions, and the variance of the weights times their number.
_WINDOW, _VARIANCE = 9, 2.0

#: Pairs of positions that are computed at once, so that they stay in the cache.
_AT_ONCE = 2**16


def tangent_kernels(rows: Float64Array, columns: Float64Array, depth: int) -> Float64Array:
    """Return the tangent kernels of networks with 1, 2, …, `depth` convolutions.

    The networks have 3 × 3 convolutions with zero padding, ReLU after each, then the mean over all
    positions, and a linear readout.  Weights have variance 2/fan-in, those of the readout 1/fan-in;
    there are no biases.  The kernels are those of infinitely many channels, without error (Arora et
    al., arXiv 1904.11955).

    Parameters
    ----------
    rows, columns : (images, channels, side, side) ndarray of float64
    depth : int

    Returns
    -------
    (depth, rows, columns) ndarray of float64
    """
    step = max(1, _AT_ONCE // rows[0, 0].size ** 2)
    squares = list(zip(_squares(rows, depth), _squares(columns, depth), strict=True))
    kernels = np.empty((depth, len(rows), len(columns)))
    for row, image in enumerate(rows):
        for begin in range(0, len(columns), step):
            some = slice(begin, begin + step)
            # The images of the columns come last, so that sums over windows are of long rows.
            covariance = np.einsum("cij,ackl->ijkla", image, columns[some]) / len(image)
            tangent = np.zeros_like(covariance)
            for layer, (first, second) in enumerate(squares):
                covariance = _windows(covariance, (0, 2), (1, 3))
                tangent = _windows(tangent, (0, 2), (1, 3)) + covariance
                scale = np.sqrt(first[..., row, None, None, None] * second[..., some])
                # A window of zeros has no angle; there covariance and tangent are 0.
                cosine = np.divide(covariance, scale, out=np.zeros_like(scale), where=scale > 0.0)
                slope = 0.5 - np.arccos(np.clip(cosine, -1.0, 1.0)) / (2.0 * np.pi)
                sine = np.sqrt(np.maximum(1.0 - cosine**2, 0.0))
                covariance = slope * covariance + scale * sine / (2.0 * np.pi)
                tangent *= slope
                kernels[layer, row, some] = (tangent + covariance).mean(axis=(0, 1, 2, 3))
    return kernels


def _squares(images: Float64Array, depth: int) -> Iterator[Float64Array]:
    """Yield the variance at each position after each convolution, (side, side, images)."""
    variance = np.moveaxis(np.square(images).mean(axis=1), 0, -1)
    for _ in range(depth):
        variance = _windows(variance, (0,), (1,))
        yield variance
        variance = variance / 2.0  # E σ(u)² is E u²/2 for ReLU


def _windows(values: Float64Array, *directions: Sequence[int]) -> Float64Array:
    """Return sums over windows times the variance of weights; the axes of a direction move as one.

    Positions outside of the image are zero.
    """
    for axes in directions:
        before, after = (
            tuple(part if axis in axes else slice(None) for axis in range(values.ndim))
            for part in (slice(None, -1), slice(1, None))
        )
        total = values.copy()
        total[before] += values[after]
        total[after] += values[before]
        values = total
    return values * (_VARIANCE / _WINDOW)
