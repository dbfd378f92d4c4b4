"""Uniforms and Box-Muller normals from 32-bit words.

The float64 functions take two words, of which the first is the word that the float32 function
takes: a float32 normal is the float64 normal of the same counter to a few ulp, but for the far
tail (|z| > 4), where 32 bits say less.  On a GPU the root in a float32 radius is one instruction,
of a relative error up to 2^-23, twice that of the CPU's.  Runs of both precisions therefore follow
one path.  Sine and cosine are Cephes' polynomials (S. Moshier) on an eighth of a turn.
"""

from __future__ import annotations

import numpy as np

from bnmc._kernels.scalar.elementary import log32, log64

f32, f64 = np.float32, np.float64


i32, i64 = np.int32, np.int64


u32, u64 = np.uint32, np.uint64


# The largest floats below 2^32 and 2^64: a uniform rounded up to 1 would give a radius of 0.
LAST_BELOW_2_32 = f32(4294967040.0)
LAST_BELOW_2_64 = f64(18446744073709549568.0)


def word64(high, low):
    """Join two 32-bit words."""
    return u64((u64(high) << u64(32)) | u64(low))


def uniform32(word):
    """Return a float32 in the open interval (0, 1): (word + 1/2) / 2^32, rounded."""
    return f32(min(f32(f32(word) + f32(0.5)), LAST_BELOW_2_32) * f32(2.0**-32))


def uniform64(high, low):
    """Return a float64 in the open interval (0, 1): (64-bit word + 1/2) / 2^64, rounded."""
    return f64(min(f64(f64(word64(high, low)) + f64(0.5)), LAST_BELOW_2_64) * f64(2.0**-64))


def root32(x):
    """Return the square root of a positive normal float32; on a GPU within 2^-23 of it."""
    return f32(np.sqrt(x))


def radius32(word):
    """Return sqrt(-2 log u) for u = uniform32(word)."""
    return root32(f32(f32(-2.0) * log32(uniform32(word))))


def radius64(high, low):
    """Return sqrt(-2 log u) for u = uniform64(high, low)."""
    return f64(np.sqrt(f64(-2.0 * log64(uniform64(high, low)))))


def sincos32(word):
    """Return (sin, cos) of the angle 2 pi (word + 1/2) / 2^32, as float32."""
    # Shifted by an eighth of a turn, the two top bits are the quadrant and the others the
    # angle within it, an integer in [-2^29, 2^29).
    shifted = u32((u64(word) + u64(0x20000000)) & u64(0xFFFFFFFF))
    quadrant = u32(shifted >> u32(30))
    offset = i32(i32(shifted & u32(0x3FFFFFFF)) - i32(0x20000000))
    t = f32((f32(offset) + f32(0.5)) * f32(1.5707963267948966 / 2**30))
    z = f32(t * t)
    s = f32(f32(-1.9515295891e-4) * z + f32(8.3321608736e-3))
    s = f32(s * z + f32(-1.6666654611e-1))
    s = f32(f32(s * z) * t + t)
    c = f32(f32(2.443315711809948e-5) * z + f32(-1.388731625493765e-3))
    c = f32(c * z + f32(4.166664568298827e-2))
    c = f32(f32(c * z) * z + f32(f32(-0.5) * z + f32(1.0)))
    swap = (quadrant & u32(1)) != u32(0)
    sine = f32(c if swap else s)
    cosine = f32(s if swap else c)
    sign_of_sine = u32((quadrant & u32(2)) << u32(30))
    sign_of_cosine = u32(((quadrant ^ u32(quadrant << u32(1))) & u32(2)) << u32(30))
    return (
        u32(sine.view(u32) ^ sign_of_sine).view(f32),
        u32(cosine.view(u32) ^ sign_of_cosine).view(f32),
    )


def sincos64(high, low):
    """Return (sin, cos) of the angle 2 pi (64-bit word + 1/2) / 2^64, as float64."""
    eighth = u64(0x2000000000000000)
    # The shift by an eighth of a turn wraps in its top bits alone, which are in `high`.
    shifted = word64(u32((u64(high) + u64(0x20000000)) & u64(0xFFFFFFFF)), low)
    quadrant = u64(shifted >> u64(62))
    offset = i64(i64(shifted & u64(0x3FFFFFFFFFFFFFFF)) - i64(eighth))
    t = f64((f64(offset) + f64(0.5)) * f64(1.5707963267948966 / 2**62))
    z = f64(t * t)
    s = f64(1.58962301576546568060e-10 * z - 2.50507477628578072866e-8)
    s = f64(s * z + 2.75573136213857245213e-6)
    s = f64(s * z - 1.98412698295895385996e-4)
    s = f64(s * z + 8.33333333332211858878e-3)
    s = f64(s * z - 1.66666666666666307295e-1)
    s = f64((s * z) * t + t)
    c = f64(-1.13585365213876817300e-11 * z + 2.08757008419747316778e-9)
    c = f64(c * z - 2.75573141792967388112e-7)
    c = f64(c * z + 2.48015872888517045348e-5)
    c = f64(c * z - 1.38888888888730564116e-3)
    c = f64(c * z + 4.16666666666665929218e-2)
    c = f64((c * z) * z + (-0.5 * z + 1.0))
    swap = (quadrant & u64(1)) != u64(0)
    sine = f64(c if swap else s)
    cosine = f64(s if swap else c)
    sign_of_sine = u64((quadrant & u64(2)) << u64(62))
    sign_of_cosine = u64(((quadrant ^ u64(quadrant << u64(1))) & u64(2)) << u64(62))
    return (
        u64(sine.view(u64) ^ sign_of_sine).view(f64),
        u64(cosine.view(u64) ^ sign_of_cosine).view(f64),
    )
