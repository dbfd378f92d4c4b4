"""Exponential, logarithm, hyperbolic tangent, sine and error function of scalars, without branches.

Calls to a mathematical library do not vectorise, so these are written out: the argument is
reduced by Cody and Waite's method, with constants in parts whose products are exact, and what is
left goes through one polynomial.  Unless a function says otherwise it takes every float of its
dtype, is within 3 ulp of the true value down to subnormal results, overflows to infinity where
the true value does, has the right limit at infinity, and is NaN at NaN alone.

Polynomials are minimax, by the Remez exchange in 60-digit arithmetic (mpmath), with the weights
that make the relative error of the function level; the coefficients were rounded once, at the
end.  The comment at each gives the function approximated, its range and the error for float32 and
for float64.  The logarithms are older: Cephes by S. Moshier, and for float64 FreeBSD's msun.

A product that would overflow or underflow on the way is returned as a pair (value, power of two)
for the caller to multiply last: so even a subnormal result is rounded once.

Of constants and ranges in brackets the second one is that of float64; see `precisions.py`.
"""

from __future__ import annotations

import numpy as np

from bnmc._kernels.scalar.precisions import Both, both, coefficients, f, floats, u, words

f32, f64 = np.float32, np.float64


_i32, _i64 = np.int32, np.int64


# Adding 1.5 * 2^23 (2^52) to a smaller number rounds it to an integer, which then is the low bits.
_ROUND = floats(12582912.0, 6755399441055744.0)
_SIGN = words(0x80000000, 0x8000000000000000)
_LAST = words(31, 63)
#: Bits of a mantissa; the bias of exponents less 1, and twice the bias; a mask for their sums.
_SHIFT = words(23, 52)
_HALF_BIAS, _TWO_BIASES, _EXPONENTS = words(126, 1022), words(254, 2046), words(0x3FF, 0xFFF)
_LN2_32 = f32(0.6931471805599453)
_LN2_HI = floats(0.693359375, 6.93147180369123816490e-01)
_LN2_LO = floats(-2.12194440e-4, 1.90821492927058770002e-10)
_LN2_HI_64, _LN2_LO_64 = _LN2_HI.double, _LN2_LO.double
_INVERSE_LN2 = floats(1.4426950408889634, 1.4426950408889634)

# Pi in parts of 12 (35) bits and a rest: multiples by integers up to 12 (18) bits are exact.
_PI_1 = floats(3.140625, 3.1415926535846666)
_PI_2 = floats(9.675025939941406e-04, 5.1266883031679116e-12)
_PI_3 = floats(1.5099067240953445e-07, 2.1125998133974855e-23)
_PI_4_32 = f32(5.126688303189038e-12)
_INVERSE_PI = floats(0.3183098861837907, 0.3183098861837907)

# Mantissas are taken from [sqrt(1/2), sqrt(2)), so that the exponent is 0 around 1 and the
# logarithm of a number near 1 keeps its relative precision.
SQRT_HALF_BITS_32 = _i32(0x3F3504F3)
_SQRT_HALF_BITS_64 = _i64(0x3FE6A09E667F3BCD)

_LOG_TAIL_32 = coefficients(
    f32, 7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1,
    -1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1,
)  # fmt: skip
_LOG_TAIL_64 = coefficients(
    f64, 1.479819860511658591e-01, 1.531383769920937332e-01, 1.818357216161805012e-01,
    2.222219843214978396e-01, 2.857142874366239149e-01, 3.999999999940941908e-01,
    6.666666666666735130e-01,
)  # fmt: skip

# (exp(r) - 1 - r) / r^2 on |r| <= log(2) / 2, 2^-26.2 (2^-55.6) in exp(r) - 1.
_EXP_TAIL = Both(
    coefficients(f32, 1.3882519e-3, 8.3665475e-3, 4.16672e-2, 1.6666543e-1, 4.9999997e-1),
    coefficients(
        f64, 2.505377547559356e-08, 2.7626092795442284e-07, 2.7557407686246794e-06,
        2.4801505142786316e-05, 0.00019841269718711446, 0.001388888893166704, 0.008333333333389733,
        0.041666666666576466, 0.16666666666666588, 0.5000000000000006,
    ),
)  # fmt: skip
#: Below the first, exp(x) is 0; below the second, exp(x) - 1 is -1; from the third on, exp(x) is
#: infinite.
_EXP_LOW, _EXPM1_LOW, _EXP_HIGH = floats(-104, -746), floats(-20, -40), floats(89, 710)
#: Below this, exp(x) - 1 is x; from the next one on, tanh(x) is 1.
_EXPM1_TINY, _TANH_HIGH = floats(2.0**-26, 2.0**-55), floats(10, 22)
#: The largest -x of `logistic_pair`.
LOGISTIC_HIGH = floats(110, 760)

# (sin(r) - r) / r^3 in z = r^2, |r| <= pi / 2, 2^-27.3 (2^-61.6) in sin(r).
_SIN_TAIL = Both(
    coefficients(f32, 2.6056307e-6, -1.9809538e-4, 8.333066e-3, -1.666666e-1),
    coefficients(
        f64, 2.721084691406163e-15, -7.642983087385675e-13, 1.6058939389913231e-10,
        -2.5052106866659444e-08, 2.7557319211071838e-06, -0.00019841269841208847,
        0.008333333333333193, -0.16666666666666666,
    ),
)  # fmt: skip

# -log(1 - erf(m)) / m on [0, 4] ([0, 6]), 2^-27.9 (2^-55.4) in erf(m).  The constant term,
# 2 / sqrt(pi), is in two parts, of which the smaller ends the polynomial.
_ERF_HIGH = floats(4, 6)
_TWO_OVER_ROOT_PI = floats(1.1283792, 1.1283791670955126)
_ERF_TAIL = Both(
    coefficients(
        f32, -9.256263e-6, 1.17641255e-4, -6.3283683e-4, 1.6670274e-3, -1.6039601e-4, -1.9153064e-2,
        1.0277783e-1, 6.366194e-1, -5.4119614e-8,
    ),
    (
        coefficients(
            f64, -3.592566946763922e-15, -3.364647133048416e-12, -3.76099693519927e-10,
            -1.0774110944076825e-08, -6.574077353301203e-08, 5.706052443122556e-07,
            3.1329214417463795e-06, -2.9575689365299278e-05, 2.5904496145198694e-05,
            0.0016962076696936485, -0.019128446993096584, 0.6366197723675909,
        ),
        coefficients(
            f64, 1.61502559235863e-13, 4.3021371287126366e-11, 2.3606841617590414e-09,
            3.458749418922413e-08, -1.1692509989410383e-08, -2.0371509261155046e-06,
            3.169705978916472e-06, 6.442048233655074e-05, -0.0005901324292213559,
            -0.00020919485390062534, 0.10277260330131553, -9.057151553194356e-18,
        ),
    ),
)  # fmt: skip

# (y + 4) exp(y^2 / 2) P(N > y) in t = (y - 4) / (y + 4), 2^-26.8 (2^-55.5).
_TAIL_FACTOR = Both(
    coefficients(
        f32, -1.3150062e-4, 1.8036144e-4, 1.5702737e-3, -3.5130347e-3, -7.5255465e-3, 6.04039e-2,
        -1.865234e-1, 3.871369e-1, -6.0789657e-1, 7.5528514e-1,
    ),
    (
        coefficients(
            f64, -3.1211259542352495e-10, 1.5980662499594194e-08, -1.564671823856475e-07,
            1.0217584599728973e-06, -5.919963245880615e-06, 3.514455483910833e-05,
            -0.00023109490081870958, 0.0016308184529353067, -0.007540188966412273,
            -0.18652185795966614, -0.6078966419718921,
        ),
        coefficients(
            f64, -1.1842979230463689e-09, 1.4593560069484862e-08, -7.720179352878828e-08,
            2.641762163800123e-07, -6.252574726477798e-07, 7.14992232331569e-07,
            -1.9078493275731974e-06, 0.00013334424951669987, -0.0034796923617093434,
            0.06039657489067151, 0.38713740074221936, 0.7552851304157515,
        ),
    ),
)  # fmt: skip
#: Halves of a mantissa have exact squares.
_HIGH_HALF = words(0xFFFFF000, 0xFFFFFFFFF8000000)


# Instructions of the CPU, for which Numba would compile functions: see `compiling`.


def smaller(a, b):
    """Return the smaller of two numbers."""
    return min(a, b)


def larger(a, b):
    """Return the larger of two numbers."""
    return max(a, b)


def same_bits(x, kind):
    """Return the number of another type that has the bits of x."""
    return x.view(kind)


@both
def polynomial(values, x):
    """Return the polynomial of x with the coefficients `values`."""
    p = values[0]
    for k in range(1, len(values)):
        p = f(p * x + values[k])
    return p


_polynomial32, _polynomial64 = polynomial


def _split_polynomial64(parts, x):
    """Return the polynomial of x whose odd and even parts have the coefficients `parts`."""
    odd, even = parts
    z = f64(x * x)
    return f64(f64(_polynomial64(odd, z) * x) + _polynomial64(even, z))


_split_polynomial = Both(_polynomial32, _split_polynomial64)


def _log32(x):
    """Return the natural logarithm of a positive normal float32."""
    bits = same_bits(f32(x), _i32)
    exponent = _i32(_i32(bits - SQRT_HALF_BITS_32) >> _i32(23))
    y = f32(same_bits(_i32(bits - _i32(exponent << _i32(23))), f32) - f32(1.0))
    z = f32(y * y)
    p = _polynomial32(_LOG_TAIL_32, y)
    return f32(y + f32(f32(y * z) * p + f32(f32(exponent) * _LN2_32 - f32(0.5) * z)))


def _log64(x):
    """Return the natural logarithm of a positive normal float64."""
    bits = same_bits(f64(x), _i64)
    exponent = _i64(_i64(bits - _SQRT_HALF_BITS_64) >> _i64(52))
    y = f64(same_bits(_i64(bits - _i64(exponent << _i64(52))), f64) - f64(1.0))
    s = f64(y / (f64(2.0) + y))
    z = f64(s * s)
    p = _polynomial64(_LOG_TAIL_64, z)
    half_square = f64(0.5 * y * y)
    e = f64(exponent)
    return f64(e * _LN2_HI_64 - ((half_square - (s * (half_square + p * z) + e * _LN2_LO_64)) - y))


log = Both(_log32, _log64)


@both
def _with_sign(x, y):
    """Return x >= 0 with the sign of y."""
    return same_bits(u(same_bits(f(x), u) | u(same_bits(f(y), u) & _SIGN)), f)


@both
def _reduced_exp(x, correction):
    """Return (word, q) with exp(x + correction) = 2^n (1 + q); n is the low bits of `word`.

    For |x| below 2^8 (2^10) and a correction that is small beside 1.
    """
    shifted = f(x * _INVERSE_LN2 + _ROUND)
    n = f(shifted - _ROUND)
    r = f(f(x - f(n * _LN2_HI)) - f(f(n * _LN2_LO) - correction))
    return same_bits(shifted, u), f(f(r * r) * polynomial(_EXP_TAIL, r) + r)


@both
def _exp_pair(x, correction):
    """Return (value, power of two) with the product exp(x + correction).

    For x in [-110, 89] ([-760, 710]) and a correction that is small beside 1.
    """
    word, q = _reduced_exp(x, correction)
    # The exponents of two powers of two, which share n, with their biases.
    exponents = u(u(word + _TWO_BIASES) & _EXPONENTS)
    first = u(exponents >> u(1))
    second = u(exponents - first)
    value = f(f(f(1.0) + q) * same_bits(u(first << _SHIFT), f))
    return value, same_bits(u(second << _SHIFT), f)


@both
def exp(x):
    """Return the exponential."""
    x = f(_EXP_LOW if x < _EXP_LOW else x)
    value, power = _exp_pair(f(_EXP_HIGH if x > _EXP_HIGH else x), f(0.0))
    return f(value * power)


@both
def expm1(x):
    """Return exp(x) - 1, precise where that is small."""
    clipped = f(_EXPM1_LOW if x < _EXPM1_LOW else x)
    word, q = _reduced_exp(f(_EXP_HIGH if clipped > _EXP_HIGH else clipped), f(0.0))
    # 2^n (1 + q) - 1, halved because 2^n may be too large for a float.
    half = same_bits(u(u(word + _HALF_BIAS) << _SHIFT), f)
    y = f(f(f(half * q) + f(half - f(0.5))) * f(2.0))
    # Halving a subnormal number would round it, and -0 + 0 is +0.
    return f(x if f(abs(x)) < _EXPM1_TINY else y)


@both
def tanh(x):
    """Return the hyperbolic tangent."""
    magnitude = f(abs(x))
    magnitude = f(_TANH_HIGH if magnitude > _TANH_HIGH else magnitude)
    t = expm1(f(f(-2.0) * magnitude))
    return _with_sign(f(f(-t) / f(f(2.0) + t)), x)


def _less_rest32(r, n):
    """Return r - n times the fourth part of pi."""
    return f32(r - f32(n * _PI_4_32))


def _less_rest64(r, n):
    """Return r, because three parts of pi are enough."""
    return r


_less_rest = Both(_less_rest32, _less_rest64)


@both
def sin(x):
    """Return the sine; NaN at infinity.

    Precise for |x| <= 1e4 (1e5).  Beyond, the multiple of pi in x is known to ever fewer digits;
    from about 1e7 (1e15) on the result is in [-1, 1] and no more than that.
    """
    magnitude = f(abs(x))
    shifted = f(magnitude * _INVERSE_PI + _ROUND)
    n = f(shifted - _ROUND)
    r = f(magnitude - f(n * _PI_1))
    r = f(r - f(n * _PI_2))
    r = _less_rest(f(r - f(n * _PI_3)), n)
    # No effect in the range of precision, where |r| is at most pi / 2.
    r = f(f(-1.6) if r < f(-1.6) else r)
    r = f(f(1.6) if r > f(1.6) else r)
    z = f(r * r)
    s = f(f(f(r * z) * polynomial(_SIN_TAIL, z)) + r)
    odd = u(same_bits(shifted, u) << _LAST)
    return same_bits(u(same_bits(s, u) ^ odd ^ u(same_bits(f(x), u) & _SIGN)), f)


@both
def erf(x):
    """Return the error function, 2 / sqrt(pi) times the integral of exp(-t^2) from 0 to x."""
    m = f(abs(x))
    m = f(_ERF_HIGH if m > _ERF_HIGH else m)
    exponent = f(f(m * _TWO_OVER_ROOT_PI) + f(m * _split_polynomial(_ERF_TAIL, m)))
    return _with_sign(f(-expm1(f(-exponent))), x)


@both
def normal_tail_pair(y):
    """Return (value, power of two) with the product P(N > y), N standard normal.

    For y in [0, 14.4] ([0, 38.6]), after Shepherd and Laframboise, Math. Comp. 36 (1981):
    exp(-y^2 / 2) times a smooth function, which is a polynomial in t = (y - 4) / (y + 4) over
    y + 4.
    """
    # The square in two parts, of which the first is exact, because the exponential multiplies
    # the absolute error of its argument into a relative one.
    high = same_bits(u(same_bits(f(y), u) & _HIGH_HALF), f)
    low = f(f(y - high) * f(y + high))
    value, power = _exp_pair(f(f(f(-0.5) * high) * high), f(f(-0.5) * low))
    q = f(f(1.0) / f(y + f(4.0)))
    t = f(f(f(y + y) * q) - f(1.0))
    return f(f(_split_polynomial(_TAIL_FACTOR, t) * q) * value), power


@both
def logistic_pair(x):
    """Return (value, power of two) with the product 1 / (1 + exp(-x)), x >= -110 (-760) or NaN."""
    # With exp(-|x|) nothing overflows, and small results keep their relative precision.
    magnitude = f(abs(x))
    magnitude = f(LOGISTIC_HIGH if magnitude > LOGISTIC_HIGH else magnitude)
    value, power = _exp_pair(f(-magnitude), f(0.0))
    denominator = f(f(1.0) + f(value * power))
    positive = x > f(0.0)
    value = f(f(f(1.0) if positive else value) / denominator)
    return value, f(f(1.0) if positive else power)
