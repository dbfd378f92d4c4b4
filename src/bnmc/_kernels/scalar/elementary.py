"""Exponential, logarithm, hyperbolic tangent, sine and error function of scalars, without branches.

Calls to a mathematical library do not vectorise, so these are written out: the argument is
reduced by Cody and Waite's method, with constants in parts whose products are exact, and what is
left goes through one polynomial.  Unless a function says otherwise it takes every float of its
dtype, is within 3 ulp of the true value down to subnormal results, overflows to infinity where
the true value does, has the right limit at infinity, and is NaN at NaN alone.

Polynomials are minimax, by the Remez exchange in 60-digit arithmetic (mpmath), with the weights
that make the relative error of the function level; the coefficients were rounded once, at the
end.  The comment at each gives the function approximated, its range and that error.  The
logarithms are older: Cephes by S. Moshier, and for float64 FreeBSD's msun.

A product that would overflow or underflow on the way is returned as a pair (value, power of two)
for the caller to multiply last: so even a subnormal result is rounded once.
"""

from __future__ import annotations

import numpy as np

f32, f64 = np.float32, np.float64


i32, i64 = np.int32, np.int64


u32, u64 = np.uint32, np.uint64


# Adding 1.5 * 2^23 (2^52) to a smaller number rounds it to an integer, which then is the low bits.
ROUND_32 = f32(12582912.0)
ROUND_64 = f64(6755399441055744.0)
SIGN_32 = u32(0x80000000)
SIGN_64 = u64(0x8000000000000000)
LN2_32 = f32(0.6931471805599453)
LN2_HI_32 = f32(0.693359375)
LN2_LO_32 = f32(-2.12194440e-4)
LN2_HI_64 = f64(6.93147180369123816490e-01)
LN2_LO_64 = f64(1.90821492927058770002e-10)
INVERSE_LN2_32 = f32(1.4426950408889634)
INVERSE_LN2_64 = f64(1.4426950408889634)

# Pi in parts of 12 (35) bits and a rest: multiples by integers up to 12 (18) bits are exact.
PI_1_32 = f32(3.140625)
PI_2_32 = f32(9.675025939941406e-04)
PI_3_32 = f32(1.5099067240953445e-07)
PI_4_32 = f32(5.126688303189038e-12)
PI_1_64 = f64(3.1415926535846666)
PI_2_64 = f64(5.1266883031679116e-12)
PI_3_64 = f64(2.1125998133974855e-23)
INVERSE_PI_32 = f32(0.3183098861837907)
INVERSE_PI_64 = f64(0.3183098861837907)

# Mantissas are taken from [sqrt(1/2), sqrt(2)), so that the exponent is 0 around 1 and the
# logarithm of a number near 1 keeps its relative precision.
SQRT_HALF_BITS_32 = i32(0x3F3504F3)
SQRT_HALF_BITS_64 = i64(0x3FE6A09E667F3BCD)


def log32(x):
    """Return the natural logarithm of a positive normal float32."""
    bits = f32(x).view(i32)
    exponent = i32(i32(bits - SQRT_HALF_BITS_32) >> i32(23))
    y = f32(i32(bits - i32(exponent << i32(23))).view(f32) - f32(1.0))
    z = f32(y * y)
    p = f32(f32(7.0376836292e-2) * y + f32(-1.1514610310e-1))
    p = f32(p * y + f32(1.1676998740e-1))
    p = f32(p * y + f32(-1.2420140846e-1))
    p = f32(p * y + f32(1.4249322787e-1))
    p = f32(p * y + f32(-1.6668057665e-1))
    p = f32(p * y + f32(2.0000714765e-1))
    p = f32(p * y + f32(-2.4999993993e-1))
    p = f32(p * y + f32(3.3333331174e-1))
    tail = f32(f32(y * z) * p + f32(f32(exponent) * LN2_32 - f32(0.5) * z))
    return f32(y + tail)


def log64(x):
    """Return the natural logarithm of a positive normal float64."""
    bits = f64(x).view(i64)
    exponent = i64(i64(bits - SQRT_HALF_BITS_64) >> i64(52))
    y = f64(i64(bits - i64(exponent << i64(52))).view(f64) - f64(1.0))
    s = f64(y / (f64(2.0) + y))
    z = f64(s * s)
    p = f64(1.479819860511658591e-01 * z + 1.531383769920937332e-01)
    p = f64(p * z + 1.818357216161805012e-01)
    p = f64(p * z + 2.222219843214978396e-01)
    p = f64(p * z + 2.857142874366239149e-01)
    p = f64(p * z + 3.999999999940941908e-01)
    p = f64(p * z + 6.666666666666735130e-01)
    half_square = f64(0.5 * y * y)
    e = f64(exponent)
    return f64(e * LN2_HI_64 - ((half_square - (s * (half_square + p * z) + e * LN2_LO_64)) - y))


def with_sign32(x, y):
    """Return x >= 0 with the sign of y."""
    return u32(f32(x).view(u32) | u32(f32(y).view(u32) & SIGN_32)).view(f32)


def with_sign64(x, y):
    """Return x >= 0 with the sign of y."""
    return u64(f64(x).view(u64) | u64(f64(y).view(u64) & SIGN_64)).view(f64)


def reduced_exp32(x, correction):
    """Return (word, q) with exp(x + correction) = 2^n (1 + q); n is the low bits of `word`.

    For |x| below 2^8 and a correction that is small beside 1.
    """
    shifted = f32(x * INVERSE_LN2_32 + ROUND_32)
    n = f32(shifted - ROUND_32)
    r = f32(f32(x - f32(n * LN2_HI_32)) - f32(f32(n * LN2_LO_32) - correction))
    # (exp(r) - 1 - r) / r^2 on |r| <= log(2) / 2, 2^-26.2 in exp(r) - 1.
    p = f32(f32(1.3882519e-3) * r + f32(8.3665475e-3))
    p = f32(p * r + f32(4.16672e-2))
    p = f32(p * r + f32(1.6666543e-1))
    p = f32(p * r + f32(4.9999997e-1))
    return shifted.view(u32), f32(f32(r * r) * p + r)


def reduced_exp64(x, correction):
    """Return (word, q) with exp(x + correction) = 2^n (1 + q); n is the low bits of `word`.

    For |x| below 2^10 and a correction that is small beside 1.
    """
    shifted = f64(x * INVERSE_LN2_64 + ROUND_64)
    n = f64(shifted - ROUND_64)
    r = f64(f64(x - f64(n * LN2_HI_64)) - f64(f64(n * LN2_LO_64) - correction))
    # (exp(r) - 1 - r) / r^2 on |r| <= log(2) / 2, 2^-55.6 in exp(r) - 1.
    p = f64(2.505377547559356e-08 * r + 2.7626092795442284e-07)
    p = f64(p * r + 2.7557407686246794e-06)
    p = f64(p * r + 2.4801505142786316e-05)
    p = f64(p * r + 0.00019841269718711446)
    p = f64(p * r + 0.001388888893166704)
    p = f64(p * r + 0.008333333333389733)
    p = f64(p * r + 0.041666666666576466)
    p = f64(p * r + 0.16666666666666588)
    p = f64(p * r + 0.5000000000000006)
    return shifted.view(u64), f64(f64(r * r) * p + r)


def exp_pair32(x, correction):
    """Return (value, power of two) with the product exp(x + correction).

    For x in [-110, 89] and a correction that is small beside 1.
    """
    word, q = reduced_exp32(x, correction)
    # The exponents of two powers of two, which share n, with their biases.
    exponents = u32(u32(word + u32(254)) & u32(0x3FF))
    first = u32(exponents >> u32(1))
    second = u32(exponents - first)
    value = f32(f32(f32(1.0) + q) * u32(first << u32(23)).view(f32))
    return value, u32(second << u32(23)).view(f32)


def exp_pair64(x, correction):
    """Return (value, power of two) with the product exp(x + correction).

    For x in [-760, 710] and a correction that is small beside 1.
    """
    word, q = reduced_exp64(x, correction)
    # The exponents of two powers of two, which share n, with their biases.
    exponents = u64(u64(word + u64(2046)) & u64(0xFFF))
    first = u64(exponents >> u64(1))
    second = u64(exponents - first)
    value = f64(f64(1.0 + q) * u64(first << u64(52)).view(f64))
    return value, u64(second << u64(52)).view(f64)


def exp32(x):
    """Return the exponential of a float32."""
    x = f32(f32(-104.0) if x < f32(-104.0) else x)
    value, power = exp_pair32(f32(f32(89.0) if x > f32(89.0) else x), f32(0.0))
    return f32(value * power)


def exp64(x):
    """Return the exponential of a float64."""
    x = f64(f64(-746.0) if x < f64(-746.0) else x)
    value, power = exp_pair64(f64(f64(710.0) if x > f64(710.0) else x), f64(0.0))
    return f64(value * power)


def expm1_32(x):
    """Return exp(x) - 1 of a float32, precise where that is small."""
    clipped = f32(f32(-20.0) if x < f32(-20.0) else x)
    word, q = reduced_exp32(f32(f32(89.0) if clipped > f32(89.0) else clipped), f32(0.0))
    # 2^n (1 + q) - 1, halved because 2^n may be too large for a float.
    half = u32(u32(word + u32(126)) << u32(23)).view(f32)
    y = f32(f32(f32(half * q) + f32(half - f32(0.5))) * f32(2.0))
    # Halving a subnormal number would round it, and -0 + 0 is +0.
    return f32(x if f32(abs(x)) < f32(2.0**-26) else y)


def expm1_64(x):
    """Return exp(x) - 1 of a float64, precise where that is small."""
    clipped = f64(f64(-40.0) if x < f64(-40.0) else x)
    word, q = reduced_exp64(f64(f64(710.0) if clipped > f64(710.0) else clipped), f64(0.0))
    # 2^n (1 + q) - 1, halved because 2^n may be too large for a float.
    half = u64(u64(word + u64(1022)) << u64(52)).view(f64)
    y = f64(f64(f64(half * q) + f64(half - 0.5)) * 2.0)
    # Halving a subnormal number would round it, and -0 + 0 is +0.
    return f64(x if f64(abs(x)) < f64(2.0**-55) else y)


def tanh32(x):
    """Return the hyperbolic tangent of a float32."""
    magnitude = f32(abs(x))
    magnitude = f32(f32(10.0) if magnitude > f32(10.0) else magnitude)
    t = expm1_32(f32(f32(-2.0) * magnitude))
    return with_sign32(f32(f32(-t) / f32(f32(2.0) + t)), x)


def tanh64(x):
    """Return the hyperbolic tangent of a float64."""
    magnitude = f64(abs(x))
    magnitude = f64(f64(22.0) if magnitude > f64(22.0) else magnitude)
    t = expm1_64(f64(-2.0 * magnitude))
    return with_sign64(f64(f64(-t) / f64(2.0 + t)), x)


def sin32(x):
    """Return the sine of a float32; NaN at infinity.

    Precise for |x| <= 1e4.  Beyond, the multiple of pi in x is known to ever fewer digits; from
    about 1e7 on the result is in [-1, 1] and no more than that.
    """
    magnitude = f32(abs(x))
    shifted = f32(magnitude * INVERSE_PI_32 + ROUND_32)
    n = f32(shifted - ROUND_32)
    r = f32(magnitude - f32(n * PI_1_32))
    r = f32(r - f32(n * PI_2_32))
    r = f32(r - f32(n * PI_3_32))
    r = f32(r - f32(n * PI_4_32))
    # No effect in the range of precision, where |r| is at most pi / 2.
    r = f32(f32(-1.6) if r < f32(-1.6) else r)
    r = f32(f32(1.6) if r > f32(1.6) else r)
    z = f32(r * r)
    # (sin(r) - r) / r^3 in z = r^2, |r| <= pi / 2, 2^-27.3 in sin(r).
    p = f32(f32(2.6056307e-6) * z + f32(-1.9809538e-4))
    p = f32(p * z + f32(8.333066e-3))
    p = f32(p * z + f32(-1.666666e-1))
    s = f32(f32(f32(r * z) * p) + r)
    odd = u32(shifted.view(u32) << u32(31))
    return u32(s.view(u32) ^ odd ^ u32(f32(x).view(u32) & SIGN_32)).view(f32)


def sin64(x):
    """Return the sine of a float64; NaN at infinity.

    Precise for |x| <= 1e5.  Beyond, the multiple of pi in x is known to ever fewer digits; from
    about 1e15 on the result is in [-1, 1] and no more than that.
    """
    magnitude = f64(abs(x))
    shifted = f64(magnitude * INVERSE_PI_64 + ROUND_64)
    n = f64(shifted - ROUND_64)
    r = f64(magnitude - f64(n * PI_1_64))
    r = f64(r - f64(n * PI_2_64))
    r = f64(r - f64(n * PI_3_64))
    # No effect in the range of precision, where |r| is at most pi / 2.
    r = f64(f64(-1.6) if r < f64(-1.6) else r)
    r = f64(f64(1.6) if r > f64(1.6) else r)
    z = f64(r * r)
    # (sin(r) - r) / r^3 in z = r^2, |r| <= pi / 2, 2^-61.6 in sin(r).
    p = f64(2.721084691406163e-15 * z - 7.642983087385675e-13)
    p = f64(p * z + 1.6058939389913231e-10)
    p = f64(p * z - 2.5052106866659444e-08)
    p = f64(p * z + 2.7557319211071838e-06)
    p = f64(p * z - 0.00019841269841208847)
    p = f64(p * z + 0.008333333333333193)
    p = f64(p * z - 0.16666666666666666)
    s = f64(f64(f64(r * z) * p) + r)
    odd = u64(shifted.view(u64) << u64(63))
    return u64(s.view(u64) ^ odd ^ u64(f64(x).view(u64) & SIGN_64)).view(f64)


def erf32(x):
    """Return the error function, 2 / sqrt(pi) times the integral of exp(-t^2) from 0 to x."""
    m = f32(abs(x))
    m = f32(f32(4.0) if m > f32(4.0) else m)
    # -log(1 - erf(m)) / m on [0, 4], 2^-27.9 in erf(m).
    p = f32(f32(-9.256263e-6) * m + f32(1.17641255e-4))
    p = f32(p * m + f32(-6.3283683e-4))
    p = f32(p * m + f32(1.6670274e-3))
    p = f32(p * m + f32(-1.6039601e-4))
    p = f32(p * m + f32(-1.9153064e-2))
    p = f32(p * m + f32(1.0277783e-1))
    p = f32(p * m + f32(6.366194e-1))
    p = f32(p * m + f32(-5.4119614e-8))
    # Its constant term, 2 / sqrt(pi), is in two parts, of which the smaller ends the polynomial.
    exponent = f32(f32(m * f32(1.1283792)) + f32(m * p))
    return with_sign32(f32(-expm1_32(f32(-exponent))), x)


def erf64(x):
    """Return the error function, 2 / sqrt(pi) times the integral of exp(-t^2) from 0 to x."""
    m = f64(abs(x))
    m = f64(f64(6.0) if m > f64(6.0) else m)
    # -log(1 - erf(m)) / m on [0, 6], 2^-55.4 in erf(m).
    z = f64(m * m)
    odd = f64(-3.592566946763922e-15 * z - 3.364647133048416e-12)
    odd = f64(odd * z - 3.76099693519927e-10)
    odd = f64(odd * z - 1.0774110944076825e-08)
    odd = f64(odd * z - 6.574077353301203e-08)
    odd = f64(odd * z + 5.706052443122556e-07)
    odd = f64(odd * z + 3.1329214417463795e-06)
    odd = f64(odd * z - 2.9575689365299278e-05)
    odd = f64(odd * z + 2.5904496145198694e-05)
    odd = f64(odd * z + 0.0016962076696936485)
    odd = f64(odd * z - 0.019128446993096584)
    odd = f64(odd * z + 0.6366197723675909)
    even = f64(1.61502559235863e-13 * z + 4.3021371287126366e-11)
    even = f64(even * z + 2.3606841617590414e-09)
    even = f64(even * z + 3.458749418922413e-08)
    even = f64(even * z - 1.1692509989410383e-08)
    even = f64(even * z - 2.0371509261155046e-06)
    even = f64(even * z + 3.169705978916472e-06)
    even = f64(even * z + 6.442048233655074e-05)
    even = f64(even * z - 0.0005901324292213559)
    even = f64(even * z - 0.00020919485390062534)
    even = f64(even * z + 0.10277260330131553)
    even = f64(even * z - 9.057151553194356e-18)
    p = f64(f64(odd * m) + even)
    # Its constant term, 2 / sqrt(pi), is in two parts, of which the smaller ends the polynomial.
    exponent = f64(f64(m * 1.1283791670955126) + f64(m * p))
    return with_sign64(f64(-expm1_64(f64(-exponent))), x)


def normal_tail_pair32(y):
    """Return (value, power of two) with the product P(N > y), N standard normal.

    For y in [0, 14.4], after Shepherd and Laframboise, Math. Comp. 36 (1981): exp(-y^2 / 2)
    times a smooth function, which is a polynomial in t = (y - 4) / (y + 4) over y + 4.
    """
    # The square in two parts, of which the first is exact, because the exponential multiplies
    # the absolute error of its argument into a relative one.
    high = u32(f32(y).view(u32) & u32(0xFFFFF000)).view(f32)
    low = f32(f32(y - high) * f32(y + high))
    value, power = exp_pair32(f32(f32(f32(-0.5) * high) * high), f32(f32(-0.5) * low))
    q = f32(f32(1.0) / f32(y + f32(4.0)))
    t = f32(f32(f32(y + y) * q) - f32(1.0))
    # (y + 4) exp(y^2 / 2) P(N > y), 2^-26.8.
    p = f32(f32(-1.3150062e-4) * t + f32(1.8036144e-4))
    p = f32(p * t + f32(1.5702737e-3))
    p = f32(p * t + f32(-3.5130347e-3))
    p = f32(p * t + f32(-7.5255465e-3))
    p = f32(p * t + f32(6.04039e-2))
    p = f32(p * t + f32(-1.865234e-1))
    p = f32(p * t + f32(3.871369e-1))
    p = f32(p * t + f32(-6.0789657e-1))
    p = f32(p * t + f32(7.5528514e-1))
    return f32(f32(p * q) * value), power


def normal_tail_pair64(y):
    """Return (value, power of two) with the product P(N > y), N standard normal.

    For y in [0, 38.6], after Shepherd and Laframboise, Math. Comp. 36 (1981): exp(-y^2 / 2)
    times a smooth function, which is a polynomial in t = (y - 4) / (y + 4) over y + 4.
    """
    # The square in two parts, of which the first is exact, because the exponential multiplies
    # the absolute error of its argument into a relative one.
    high = u64(f64(y).view(u64) & u64(0xFFFFFFFFF8000000)).view(f64)
    low = f64(f64(y - high) * f64(y + high))
    value, power = exp_pair64(f64(f64(-0.5 * high) * high), f64(-0.5 * low))
    q = f64(1.0 / f64(y + 4.0))
    t = f64(f64(f64(y + y) * q) - 1.0)
    # (y + 4) exp(y^2 / 2) P(N > y), 2^-55.5.
    z = f64(t * t)
    odd = f64(-3.1211259542352495e-10 * z + 1.5980662499594194e-08)
    odd = f64(odd * z - 1.564671823856475e-07)
    odd = f64(odd * z + 1.0217584599728973e-06)
    odd = f64(odd * z - 5.919963245880615e-06)
    odd = f64(odd * z + 3.514455483910833e-05)
    odd = f64(odd * z - 0.00023109490081870958)
    odd = f64(odd * z + 0.0016308184529353067)
    odd = f64(odd * z - 0.007540188966412273)
    odd = f64(odd * z - 0.18652185795966614)
    odd = f64(odd * z - 0.6078966419718921)
    even = f64(-1.1842979230463689e-09 * z + 1.4593560069484862e-08)
    even = f64(even * z - 7.720179352878828e-08)
    even = f64(even * z + 2.641762163800123e-07)
    even = f64(even * z - 6.252574726477798e-07)
    even = f64(even * z + 7.14992232331569e-07)
    even = f64(even * z - 1.9078493275731974e-06)
    even = f64(even * z + 0.00013334424951669987)
    even = f64(even * z - 0.0034796923617093434)
    even = f64(even * z + 0.06039657489067151)
    even = f64(even * z + 0.38713740074221936)
    even = f64(even * z + 0.7552851304157515)
    p = f64(f64(odd * t) + even)
    return f64(f64(p * q) * value), power


def logistic_pair32(x):
    """Return (value, power of two) with the product 1 / (1 + exp(-x)), x >= -110 or NaN."""
    # With exp(-|x|) nothing overflows, and small results keep their relative precision.
    magnitude = f32(abs(x))
    magnitude = f32(f32(110.0) if magnitude > f32(110.0) else magnitude)
    value, power = exp_pair32(f32(-magnitude), f32(0.0))
    denominator = f32(f32(1.0) + f32(value * power))
    positive = x > f32(0.0)
    value = f32(f32(f32(1.0) if positive else value) / denominator)
    return value, f32(f32(1.0) if positive else power)


def logistic_pair64(x):
    """Return (value, power of two) with the product 1 / (1 + exp(-x)), x >= -760 or NaN."""
    # With exp(-|x|) nothing overflows, and small results keep their relative precision.
    magnitude = f64(abs(x))
    magnitude = f64(f64(760.0) if magnitude > f64(760.0) else magnitude)
    value, power = exp_pair64(f64(-magnitude), f64(0.0))
    denominator = f64(1.0 + f64(value * power))
    positive = x > f64(0.0)
    value = f64(f64(f64(1.0) if positive else value) / denominator)
    return value, f64(f64(1.0) if positive else power)
