"""The array type of this package, and the rounding unit of its numbers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

#: The distance from 1 to the next float64 number, 2.2e-16.
EPSILON = float(np.finfo(np.float64).eps)

#: The smallest positive normal float64 number.
TINY = float(np.finfo(np.float64).tiny)
