"""The 64-bit key of all random numbers of a run."""

from __future__ import annotations

from typing import Any

import numpy as np

from bnmc._support.arguments import generator

__all__ = ["draw_key"]


def draw_key(rng: Any) -> int:
    """Draw the 64-bit key of a run from anything `numpy.random.default_rng` takes."""
    return int(generator(rng).integers(0, 2**64, dtype=np.uint64))
