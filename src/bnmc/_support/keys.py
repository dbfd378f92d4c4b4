"""The key of a run: the 64 bits that, with a counter, determine all of its random numbers."""

from __future__ import annotations

import secrets
from typing import Any

import numpy as np

from bnmc._support.arguments import generator


def draw_key(rng: Any) -> int:
    """Draw a 64-bit key.

    Parameters
    ----------
    rng : None, int, sequence of int, SeedSequence, BitGenerator or Generator
        Any argument of `numpy.random.default_rng` (SPEC 7). A generator advances by one draw.
        For None the key comes from the operating system, as the seed of NumPy's generator would.

    Returns
    -------
    int
        Uniform on 0, …, 2**64 − 1.

    Raises
    ------
    ArgumentTypeError
        If `rng` is of another type.

    Examples
    --------
    >>> import numpy as np
    >>> from bnmc._support.keys import draw_key
    >>> draw_key(0) == draw_key(np.random.default_rng(0))
    True
    """
    if rng is None:
        return secrets.randbits(64)
    return int(generator(rng).integers(0, 2**64, dtype=np.uint64))
