"""What the figures of this package share."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["Float64Array"]

Float64Array = NDArray[np.float64]


def _interval(found: Float64Array) -> str:
    mean, low, high = found
    return f"{mean:.3g} [{low:.3g}, {high:.3g}]"
