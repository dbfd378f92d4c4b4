"""TODO-DOC bnmc.experiments.digits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bnmc._support.arguments import integer
from bnmc._support.extras import import_extra

__all__ = ["digits"]


def digits(count: int) -> NDArray[np.float64]:
    """Return handwritten digits that scikit-learn brings along; needs the extra ``demo``.

    Parameters
    ----------
    count : int
        How many images: the first 0, 1, …, 9 of the set, the second of each, and so on.  In 1
        to 1740, so that each round is complete.

    Returns
    -------
    (64, count) ndarray of float64
        Grey values of 8 × 8 pixels in [0, 1].

    Examples
    --------
    >>> digits(10).shape
    (64, 10)
    """
    bundled = import_extra("sklearn.datasets", "demo").load_digits()
    images = [bundled.data[bundled.target == digit] for digit in range(10)]
    rounds = min(map(len, images))
    count = integer("batch", count, low=1, high=10 * rounds)
    ordered = np.stack([one[:rounds] for one in images], axis=1).reshape(10 * rounds, -1)
    return np.ascontiguousarray(ordered[:count].T / 16.0)
