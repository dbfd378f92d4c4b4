"""Handwritten digits as inputs of networks.

The file `digits.npz` has 1740 of the 1797 images of "Optical Recognition of Handwritten Digits" (E.
Alpaydin and C. Kaynak, UCI Machine Learning Repository, 1998, CC BY 4.0), 174 of each digit, in the
order in which scikit-learn's ``load_digits`` has them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bnmc._support.arguments import integer

__all__ = ["digits"]


def digits(count: int) -> NDArray[np.float64]:
    """Return handwritten digits.

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
    >>> from bnmc.experiments.digits import digits
    >>> digits(10).shape
    (64, 10)
    """
    with np.load(Path(__file__).with_name("digits.npz")) as stored:
        images = stored["images"]
    count = integer("batch", count, low=1, high=len(images))
    return np.ascontiguousarray(images[:count].T / 16.0)
