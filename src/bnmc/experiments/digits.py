"""Handwritten digits as inputs of networks, from the data sets that scikit-learn includes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bnmc._support.arguments import integer
from bnmc._support.extras import import_extra

__all__ = ["digits"]


def digits(count: int) -> NDArray[np.float64]:
    """Return handwritten digits; needs the extra ``demo`` (scikit-learn).

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
    MissingExtraError
        If scikit-learn is not installed.

    Examples
    --------
    >>> from bnmc.experiments.digits import digits
    >>> digits(10).shape
    (64, 10)
    """
    bundled = import_extra("sklearn.datasets", "demo").load_digits()
    images = [bundled.data[bundled.target == digit] for digit in range(10)]
    rounds = min(map(len, images))
    count = integer("batch", count, low=1, high=10 * rounds)
    ordered = np.stack([one[:rounds] for one in images], axis=1).reshape(10 * rounds, -1)
    return np.ascontiguousarray(ordered[:count].T / 16.0)
