"""Radius and angle of float32 normals in few instructions of a GPU.

The formulas, the polynomials and so the numbers are those of `scalar.normal`, up to a rounding or
two: products with powers of two are part of the constants, sums and products are written such that
the device fuses them, and quadrants are read from the bits of the word where they are.
"""

from __future__ import annotations

import math

import numpy as np

from bnmc._kernels.scalar.elementary import SQRT_HALF_BITS_32
from bnmc._kernels.scalar.normal import LAST_BELOW_2_32, root32

f32, _i32, u32, _u64 = np.float32, np.int32, np.uint32, np.uint64

_MASK = _u64(0xFFFFFFFF)
#: The bits of the square root of 2^63 as a float32, the exponent of 2^32, and a mask of exponents.
_MIDDLE = _i32(int(SQRT_HALF_BITS_32) + (32 << 23))
_EXPONENT_OF_2_32 = _i32(32 << 23)
_EXPONENTS = _i32(-(1 << 23))
# -2 log 2 times the unit of the exponent in the bits of a float32.
_LOG = f32(-2.0 * math.log(2.0) * 2.0**-23)
# -2 times the polynomial of `elementary.log`; doubling is exact.
_P8, _P7, _P6 = f32(-2 * 7.0376836292e-2), f32(2 * 1.1514610310e-1), f32(-2 * 1.1676998740e-1)
_P5, _P4, _P3 = f32(2 * 1.2420140846e-1), f32(-2 * 1.4249322787e-1), f32(2 * 1.6668057665e-1)
_P2, _P1, _P0 = f32(-2 * 2.0000714765e-1), f32(2 * 2.4999993993e-1), f32(-2 * 3.3333331174e-1)

_EIGHTH, _QUADRANT, _SIGN = _u64(0x20000000), _u64(0x40000000), u32(0x80000000)
# A quarter of the unit of the angle, because angles are computed times four; then half the unit.
_ANGLE, HALF = f32(1.5707963267948966 / 2**32), f32(1.5707963267948966 / 2**31)
S2, S1, _S0 = f32(-1.9515295891e-4), f32(8.3321608736e-3), f32(-1.6666654611e-1)
C2, C1, _C0 = f32(2.443315711809948e-5), f32(-1.388731625493765e-3), f32(4.166664568298827e-2)


def radius32(word):
    """Return sqrt(-2 log u) for u = uniform32(word); see `scalar.normal.radius32`."""
    # The uniform times 2^32: its exponent is subtracted with that of the mantissa.
    bits = f32(min(f32(f32(word) + f32(0.5)), LAST_BELOW_2_32)).view(_i32)
    exponent = _i32(_i32(bits - _MIDDLE) & _EXPONENTS)
    y = f32(_i32(_i32(bits - exponent) - _EXPONENT_OF_2_32).view(f32) - f32(1.0))
    p = f32(_P8 * y + _P7)
    p = f32(p * y + _P6)
    p = f32(p * y + _P5)
    p = f32(p * y + _P4)
    p = f32(p * y + _P3)
    p = f32(p * y + _P2)
    p = f32(p * y + _P1)
    p = f32(p * y + _P0)
    # -2 log(1 + y) = -2 y + y^2 + p y^3
    p = f32(p * y + f32(1.0))
    p = f32(p * y + f32(-2.0))
    return root32(f32(p * y + f32(f32(exponent) * _LOG)))


def sincos32(word):
    """Return (sin, cos) of the angle 2 pi (word + 1/2) / 2^32; see `scalar.normal.sincos32`."""
    # The angle within its quadrant, times four, is what remains if the quadrant is shifted out.
    offset = u32((_u64(word) << _u64(2)) & _MASK).view(_i32)
    t = f32(f32(offset) * _ANGLE + HALF)
    z = f32(t * t)
    s = f32(S2 * z + S1)
    s = f32(s * z + _S0)
    s = f32(f32(s * z) * t + t)
    c = f32(C2 * z + C1)
    c = f32(c * z + _C0)
    c = f32(c * z + f32(-0.5))
    c = f32(c * z + f32(1.0))
    # Shifted by an eighth of a turn, the two top bits are the quadrant: the sine is negative in
    # the last two, the cosine in the middle two.
    shifted = u32((_u64(word) + _EIGHTH) & _MASK)
    turned = u32((_u64(shifted) + _QUADRANT) & _MASK)
    # The quadrant is odd if the signs differ.
    swap = u32(shifted ^ turned).view(_i32) < _i32(0)
    sine = f32(c if swap else s)
    cosine = f32(s if swap else c)
    return (
        u32(sine.view(u32) ^ u32(shifted & _SIGN)).view(f32),
        u32(cosine.view(u32) ^ u32(turned & _SIGN)).view(f32),
    )
