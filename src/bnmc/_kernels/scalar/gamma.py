"""Chi variables, the diagonal of the triangular factor of a Wishart matrix."""

from __future__ import annotations

import numpy as np

from bnmc._kernels.scalar.elementary import log64
from bnmc._kernels.scalar.normal import radius64, sincos64, uniform64
from bnmc._kernels.scalar.philox import philox4x32

SECOND_WORD = np.uint32(0x10000000)


def chi(degrees, row, layer, stream, k0, k1):
    """Return a chi variable with `degrees` >= 1 degrees of freedom, a float64.

    Marsaglia and Tsang, *A simple method for generating gamma variables* (ACM TOMS 26, 2000), for
    the shape degrees / 2; exact, by rejection.  The attempt is the counter's element.
    """
    shape = 0.5 * degrees - 1.0 / 3.0
    spread = 1.0 / np.sqrt(9.0 * shape)
    attempt = 0
    while True:
        w0, w1, w2, _ = philox4x32(attempt, row, layer, stream, k0, k1)
        v0, v1, v2, _ = philox4x32(attempt, row, layer, np.uint32(stream | SECOND_WORD), k0, k1)
        sine, _ = sincos64(w1, v1)
        x = radius64(w0, v0) * sine
        if degrees == 1:
            return abs(x)
        root = 1.0 + spread * x
        if root > 0.0:
            v = root * root * root
            if log64(uniform64(w2, v2)) < 0.5 * x * x + shape * (1.0 - v + log64(v)):
                return np.sqrt(2.0 * shape * v)
        attempt += 1
