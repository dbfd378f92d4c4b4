"""Numbers that kernels compute: random numbers for the four rows of a quad, and scaling by 2**k."""

from __future__ import annotations

from math import ldexp

import numpy as np

from bnmc._kernels.gpu.box_muller import radius32, sincos32
from bnmc._kernels.scalar.codes import SECOND_WORD, SQRT3
from bnmc._kernels.scalar.normal import radius64, sincos64, uniform64
from bnmc._kernels.scalar.normal import uniform_32 as uniform32
from bnmc._kernels.scalar.philox import philox4x32


def normals32_of(w0, w1, w2, w3):
    """Return the four float32 normals of four words."""
    radius_a, radius_b = radius32(w0), radius32(w2)
    sine_a, cosine_a = sincos32(w1)
    sine_b, cosine_b = sincos32(w3)
    return radius_a * sine_a, radius_a * cosine_a, radius_b * sine_b, radius_b * cosine_b


def normals64_of(w0, w1, w2, w3, v0, v1, v2, v3):
    """Return the four float64 normals of four words and four further ones."""
    radius_a, radius_b = radius64(w0, v0), radius64(w2, v2)
    sine_a, cosine_a = sincos64(w1, v1)
    sine_b, cosine_b = sincos64(w3, v3)
    return radius_a * sine_a, radius_a * cosine_a, radius_b * sine_b, radius_b * cosine_b


def normals32(element, quad, layer, stream, k0, k1):
    """Return the float32 normals of one element of the four rows of a quad."""
    w0, w1, w2, w3 = philox4x32(element, quad, layer, stream, k0, k1)
    return normals32_of(w0, w1, w2, w3)


def normals64(element, quad, layer, stream, k0, k1):
    """Return the float64 normals of one element of the four rows of a quad."""
    second = np.uint32(stream | SECOND_WORD)
    w0, w1, w2, w3 = philox4x32(element, quad, layer, stream, k0, k1)
    v0, v1, v2, v3 = philox4x32(element, quad, layer, second, k0, k1)
    return normals64_of(w0, w1, w2, w3, v0, v1, v2, v3)


def uniforms32(element, quad, layer, stream, k0, k1):
    """Return float32 numbers like `normals32`, uniform on (-sqrt 3, sqrt 3)."""
    width, half = np.float32(2.0 * SQRT3), np.float32(0.5)
    w0, w1, w2, w3 = philox4x32(element, quad, layer, stream, k0, k1)
    return (
        width * (uniform32(w0) - half),
        width * (uniform32(w1) - half),
        width * (uniform32(w2) - half),
        width * (uniform32(w3) - half),
    )


def uniforms64(element, quad, layer, stream, k0, k1):
    """Return float64 numbers like `normals64`, uniform on (-sqrt 3, sqrt 3)."""
    width = 2.0 * SQRT3
    second = np.uint32(stream | SECOND_WORD)
    w0, w1, w2, w3 = philox4x32(element, quad, layer, stream, k0, k1)
    v0, v1, v2, v3 = philox4x32(element, quad, layer, second, k0, k1)
    return (
        width * (uniform64(w0, v0) - 0.5),
        width * (uniform64(w1, v1) - 0.5),
        width * (uniform64(w2, v2) - 0.5),
        width * (uniform64(w3, v3) - 0.5),
    )


def signs(element, quad, layer, stream, k0, k1):
    """Return float32 numbers like `normals32`, -1 or 1 with probability 1/2 each."""
    half = np.uint32(0x80000000)
    w0, w1, w2, w3 = philox4x32(element, quad, layer, stream, k0, k1)
    return (
        np.float32(1.0 if w0 < half else -1.0),
        np.float32(1.0 if w1 < half else -1.0),
        np.float32(1.0 if w2 < half else -1.0),
        np.float32(1.0 if w3 < half else -1.0),
    )


def times_power(value, exponent):
    """Return value * 2**exponent: infinity on overflow, zero on underflow."""
    while exponent > 1000:
        value *= 2.0**1000
        exponent -= 1000
    while exponent < -1000:
        value *= 2.0**-1000
        exponent += 1000
    return value * ldexp(1.0, int(exponent))
