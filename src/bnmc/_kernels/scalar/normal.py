"""Random numbers: uniforms and Box-Muller normals, of the four words of a counter; chi variables.

A word has 32 bits for float32 and 64 bits for float64, of which the upper 32 are the word for
float32: a float32 normal is the float64 normal of the same counter to a few ulp, but for the far
tail (|z| > 4), where 32 bits say less.  On a GPU the root in a float32 radius is one instruction,
of a relative error up to 2^-23, twice that of the CPU's.  Runs of both precisions therefore follow
one path.  Sine and cosine are Cephes' polynomials (S. Moshier) on an eighth of a turn.
"""

from __future__ import annotations

import numpy as np

from bnmc._kernels.scalar.codes import SECOND_WORD, SQRT3
from bnmc._kernels.scalar.elementary import log, polynomial, same_bits, smaller
from bnmc._kernels.scalar.philox import philox4x32
from bnmc._kernels.scalar.precisions import Both, both, coefficients, double, f, floats, i, u, words

f32, f64 = np.float32, np.float64
_u32, _u64 = np.uint32, np.uint64
_WORD = _u64(0xFFFFFFFF)

# The largest floats below 2^32 and 2^64: a uniform rounded up to 1 would give a radius of 0.
LAST_BELOW_2_32 = f32(4294967040.0)
_LAST = Both(LAST_BELOW_2_32, f64(18446744073709549568.0))
_UNIT = floats(2.0**-32, 2.0**-64)

# The bits of the root of 1/2 times 2^32 (2^64); -2 log 2; and -4 (atanh(s) / s - 1) / s^2 in s^2
# on |s| <= (sqrt 2 - 1) / (sqrt 2 + 1), 2^-30.2 (2^-59.5) in -4 atanh(s) / s.
_WHOLE = floats(2.0**32, 2.0**64)
_MANTISSA = Both(np.int32(23), np.int64(52))
_MIDDLE = Both(np.int32(0x4F3504F3), np.int64(0x43E6A09E667F3BCD))
_MINUS_2_LOG_2 = floats(-1.3862943611198906, -1.3862943611198906)
_LOG = Both(
    coefficients(f32, -5.974190071425841e-1, -7.995514722639432e-1, -1.3333355217367915, -4.0),
    coefficients(
        f64, -2.9590983300853047e-1, -3.0628194307219875e-1, -3.6367124943999120e-1,
        -4.4444397218968700e-1, -5.7142857484056180e-1, -7.9999999998832640e-1,
        -1.3333333333333468, -4.0,
    ),
)  # fmt: skip

# Angles are computed times four, as what remains of a word if its quadrant is shifted out: a
# quarter of the unit of an angle, and half the unit.
_ANGLE = floats(1.5707963267948966 / 2**32, 1.5707963267948966 / 2**64)
_HALF = floats(1.5707963267948966 / 2**31, 1.5707963267948966 / 2**63)
_EIGHTH, _QUADRANT = _u64(1 << 29), _u64(1 << 30)
_ODD, _SIGN = words(1 << 30, 1 << 62), words(1 << 31, 1 << 63)
# (sin(t) - t) / t^3, and cos(t), in t^2.
_SINE = Both(
    coefficients(f32, -1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1),
    coefficients(
        f64, 1.58962301576546568060e-10, -2.50507477628578072866e-8, 2.75573136213857245213e-6,
        -1.98412698295895385996e-4, 8.33333333332211858878e-3, -1.66666666666666307295e-1,
    ),
)  # fmt: skip
_COSINE = Both(
    coefficients(f32, 2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2, -0.5, 1.0),
    coefficients(
        f64, -1.13585365213876817300e-11, 2.08757008419747316778e-9, -2.75573141792967388112e-7,
        2.48015872888517045348e-5, -1.38888888888730564116e-3, 4.16666666666665929218e-2, -0.5, 1.0,
    ),
)  # fmt: skip


def joined(high, low):
    """Join two 32-bit words."""
    return _u64((_u64(high) << _u64(32)) | _u64(low))


def _words64(element, quad, layer, stream, k0, k1):
    """Return the four words of 64 bits; their lower halves have a stream of their own."""
    second = _u32(stream | SECOND_WORD)
    w0, w1, w2, w3 = philox4x32(element, quad, layer, stream, k0, k1)
    v0, v1, v2, v3 = philox4x32(element, quad, layer, second, k0, k1)
    return joined(w0, v0), joined(w1, v1), joined(w2, v2), joined(w3, v3)


#: The four words of a counter.
words_of = Both(philox4x32, _words64)


@both
def uniform(word):
    """Return a number in the open interval (0, 1): (word + 1/2) / 2^32 (2^64), rounded."""
    return f(smaller(f(f(word) + f(0.5)), _LAST) * _UNIT)


def root32(x):
    """Return the square root of a positive normal float32; on a GPU within 2^-23 of it."""
    return f32(np.sqrt(x))


def root64(x):
    """Return the square root of a float64."""
    return f64(np.sqrt(x))


_root = Both(root32, root64)


@both
def radius(word):
    """Return sqrt(-2 log u) for u = uniform(word).

    The uniform times 2^32 (2^64) is 2^e m with m / 2^32 (2^64) in [sqrt(1/2), sqrt 2), whose
    logarithm is 2 atanh(s).
    """
    bits = same_bits(smaller(f(f(word) + f(0.5)), _LAST), i)
    exponent = i(i(bits - _MIDDLE) >> _MANTISSA)
    m = same_bits(i(bits - i(exponent << _MANTISSA)), f)
    s = f(f(m - _WHOLE) / f(m + _WHOLE))
    return _root(f(s * polynomial(_LOG, f(s * s)) + f(f(exponent) * _MINUS_2_LOG_2)))


def _turned32(word, angle):
    """Return the word of the sum of two angles, both of 32 bits."""
    return _u32((_u64(word) + angle) & _WORD)


def _turned64(word, angle):
    """Return the word of the sum of two angles, of 64 and 32 bits: the upper half wraps alone."""
    return joined(_turned32(word >> _u64(32), angle), word & _WORD)


_turned = Both(_turned32, _turned64)


@both
def sincos(word):
    """Return (sin, cos) of the angle 2 pi (word + 1/2) / 2^32 (2^64)."""
    t = f(f(same_bits(u(word << u(2)), i)) * _ANGLE + _HALF)
    z = f(t * t)
    s = f(f(polynomial(_SINE, z) * z) * t + t)
    c = polynomial(_COSINE, z)
    # An eighth of a turn further, the two top bits are the quadrant: the sine is negative in the
    # last two, the cosine in the middle two.
    turned = _turned(word, _EIGHTH)
    swap = u(turned & _ODD) != u(0)
    sine = f(c if swap else s)
    cosine = f(s if swap else c)
    sine = same_bits(u(same_bits(sine, u) ^ u(turned & _SIGN)), f)
    turned = _turned(turned, _QUADRANT)
    return sine, same_bits(u(same_bits(cosine, u) ^ u(turned & _SIGN)), f)


@both
def normals_of(w0, w1, w2, w3):
    """Return the four normals of four words."""
    radius_a, radius_b = radius(w0), radius(w2)
    sine_a, cosine_a = sincos(w1)
    sine_b, cosine_b = sincos(w3)
    return radius_a * sine_a, radius_a * cosine_a, radius_b * sine_b, radius_b * cosine_b


@both
def normals(element, quad, layer, stream, k0, k1):
    """Return the normals of one element of the four rows of a quad."""
    w0, w1, w2, w3 = words_of(element, quad, layer, stream, k0, k1)
    return normals_of(w0, w1, w2, w3)


@both
def uniforms(element, quad, layer, stream, k0, k1):
    """Return numbers like `normals`, uniform on (0, 1)."""
    w0, w1, w2, w3 = words_of(element, quad, layer, stream, k0, k1)
    return uniform(w0), uniform(w1), uniform(w2), uniform(w3)


@both
def centred_uniforms(element, quad, layer, stream, k0, k1):
    """Return numbers like `normals`, uniform on (-sqrt 3, sqrt 3)."""
    u0, u1, u2, u3 = uniforms(element, quad, layer, stream, k0, k1)
    width, half = f(2.0 * SQRT3), f(0.5)
    return width * (u0 - half), width * (u1 - half), width * (u2 - half), width * (u3 - half)


@both
def signs(element, quad, layer, stream, k0, k1):
    """Return numbers like `normals`, -1 or 1 with probability 1/2 each."""
    half = _u32(0x80000000)
    w0, w1, w2, w3 = philox4x32(element, quad, layer, stream, k0, k1)
    return (
        f(1.0 if w0 < half else -1.0),
        f(1.0 if w1 < half else -1.0),
        f(1.0 if w2 < half else -1.0),
        f(1.0 if w3 < half else -1.0),
    )


@double
def chi(degrees, row, layer, stream, k0, k1):
    """Return a chi variable with `degrees` >= 1 degrees of freedom, a float64.

    Marsaglia and Tsang, *A simple method for generating gamma variables* (ACM TOMS 26, 2000), for
    the shape degrees / 2; exact, by rejection.  The attempt is the counter's element.
    """
    shape = 0.5 * degrees - 1.0 / 3.0
    spread = 1.0 / np.sqrt(9.0 * shape)
    attempt = 0
    while True:
        w0, w1, w2, _ = words_of(attempt, row, layer, stream, k0, k1)
        sine, _ = sincos(w1)
        x = radius(w0) * sine
        if degrees == 1:
            return abs(x)
        root = 1.0 + spread * x
        if root > 0.0:
            v = root * root * root
            if log(uniform(w2)) < 0.5 * x * x + shape * (1.0 - v + log(v)):
                return np.sqrt(2.0 * shape * v)
        attempt += 1


def uniform64(high, low):
    """Return `uniform` of two words."""
    return _uniform64(joined(high, low))


_uniform64 = uniform.double
