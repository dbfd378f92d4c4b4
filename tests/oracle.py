"""NumPy implementations of the kernels' formulas, and thresholds for statistical tests.

The implementations compute random numbers from their counters.  The normal of element k and row r
of a layer of a chain comes from the Philox block with the counter

    (k, 16 (r // 64) + r % 16, layer, stream | chain).

Within a group of 64 rows, the rows r, r + 16, r + 32 and r + 48 have the same counter, and the four
words of its block give their normals.  The first two words give a radius and an angle: the radius
times sine and cosine are the first two normals.  The last two words give the other two.  For a
float64, the block of the next stream supplies 32 more bits of each word.
"""

import math

import numpy as np
from scipy import special, stats

from bnmc._kernels.cpu import numbers
from bnmc._kernels.scalar import codes

#: Probability that a statistical test fails although the code is right: of the whole test, with all
#: its comparisons.  All thresholds derive from it.
FALSE_ALARM = 1e-6

LONG = np.longdouble
TURN = 2 * (LONG(np.pi) + LONG(1.2246467991473531772e-16))

FORMULAS = {
    "linear": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "tanh": np.tanh,
    "sigmoid": special.expit,
    "sin": np.sin,
    "selu": lambda x: (
        1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(np.minimum(x, 0)))
    ),
    "celu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "gelu": lambda x: x * special.ndtr(x),
    "silu": lambda x: x * special.expit(x),
    "erf": special.erf,
}

SLOPE = 0.3


def user_function(x):
    """Evaluate a user's activation, which uses a global variable and NumPy functions.

    Each function of a user compiles the kernels again, so all tests share this one.
    """
    return np.maximum(x, SLOPE * x) + np.exp(-x * x)


# --- random numbers


def philox(counter, key, rounds=10):
    """Return the four words of Philox4x32 as uint64 arrays; counters are arrays or integers."""
    mask, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    c = [np.asarray(word, np.uint64) for word in np.broadcast_arrays(*counter)]
    k = [int(word) for word in key]
    for _ in range(rounds):
        p, q = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [
            (q >> half) ^ c[1] ^ np.uint64(k[0]),
            q & mask,
            (p >> half) ^ c[3] ^ np.uint64(k[1]),
            p & mask,
        ]
        k = [(k[0] + 0x9E3779B9) % 2**32, (k[1] + 0xBB67AE85) % 2**32]
    return c


def addressed_words(elements, rows, draw):
    """Return (first words, second words, place of the row in its block), (elements, rows) each."""
    k, r = np.meshgrid(np.asarray(elements), np.asarray(rows), indexing="ij")
    key = (draw.key0, draw.key1)
    first = philox((k, r // 64 * 16 + r % 16, draw.layer, int(draw.stream)), key)
    second = philox((k, r // 64 * 16 + r % 16, draw.layer, int(draw.stream) + 2**28), key)
    return first, second, r % 64 // 16


def uniform(high, low, dtype):
    """Return (word + 1/2) / (number of words), rounded as the kernels round it, and below 1."""
    if dtype == np.float32:
        shifted = high.astype(np.float32) + np.float32(0.5)
        return np.minimum(shifted, np.nextafter(np.float32(2**32), np.float32(0))) / 2.0**32
    word = (high << np.uint64(32)) | low
    shifted = word.astype(np.float64) + 0.5
    return np.minimum(shifted, np.nextafter(2.0**64, 0.0)) / 2.0**64


def angle(high, low, dtype):
    """Return 2π (word + 1/2) / (number of words), in long double."""
    if dtype == np.float32:
        return TURN * ((high.astype(LONG) + LONG(0.5)) / LONG(2.0**32))
    word = (high << np.uint64(32)) | low
    return TURN * ((word.astype(LONG) + LONG(0.5)) / LONG(2.0**64))


def polar(elements, rows, draw, dtype):
    """Return radius and angle of the normals, (elements, rows).

    A normal is the radius times the sine of the angle.  Every other one is a cosine, so its angle
    has a quarter of a turn added.
    """
    w, v, place = addressed_words(elements, rows, draw)
    upper = place >= 2
    u = uniform(np.where(upper, w[2], w[0]), np.where(upper, v[2], v[0]), dtype)
    theta = angle(np.where(upper, w[3], w[1]), np.where(upper, v[3], v[1]), dtype)
    return np.sqrt(-2 * np.log(u.astype(LONG))), theta + TURN / 4 * (place % 2)


def normals(elements, rows, draw, dtype):
    """Return the standard normals, (elements, rows), in long double."""
    radius, theta = polar(elements, rows, draw, dtype)
    return radius * np.sin(theta)


def words_in_place(elements, rows, draw):
    """Return the first and second words of the weights of laws other than the Gaussian."""
    w, v, place = addressed_words(elements, rows, draw)
    return np.choose(place, w), np.choose(place, v)


def weights(law, elements, rows, draw, dtype):
    """Return weights of variance 1, (elements, rows)."""
    if law == codes.GAUSSIAN:
        return normals(elements, rows, draw, dtype)
    high, low = words_in_place(elements, rows, draw)
    if law == codes.UNIFORM:
        return 2 * np.sqrt(LONG(3)) * (uniform(high, low, dtype).astype(LONG) - LONG(0.5))
    return np.where(high < 2**31, 1.0, -1.0)


# --- a layer; rows of networks are (..., width, columns)


def projector(batch, inputs=1):
    """Return the projector that subtracts the mean of each input batch."""
    return np.kron(np.eye(inputs), np.eye(batch) - 1.0 / batch)


def normalise(h, norm, batch, eps=0.0):
    """Normalize each row of h, (..., width, columns), within each group of `batch` columns."""
    if norm in (codes.NORM_NONE, "none"):
        return h
    groups = h.reshape(*h.shape[:-1], -1, batch)
    if norm in (codes.NORM_CENTRED, "batch"):
        groups = groups - groups.mean(axis=-1, keepdims=True)
    return (groups / np.sqrt((groups**2).mean(axis=-1, keepdims=True) + eps)).reshape(h.shape)


def gram(a):
    """Return the Gram matrix aᵀa / width of a, (..., width, columns)."""
    return np.swapaxes(a, -1, -2) @ a / a.shape[-2]


def semidefinite_cholesky(matrix, tolerance=1e-10):
    """Return the lower triangular factor; a column is zero if its pivot is zero to `tolerance`."""
    rest = np.array(matrix, dtype=np.float64)
    scale = np.diag(rest).copy()
    factor = np.zeros_like(rest)
    for k in range(len(rest)):
        if rest[k, k] > tolerance * scale[k]:
            factor[k:, k] = rest[k:, k] / math.sqrt(rest[k, k])
            rest = rest - np.outer(factor[:, k], factor[:, k])
    return factor


# --- statistics
#
# If the code is right, the probability that any of so many comparisons exceeds its threshold is at
# most FALSE_ALARM.


def normal_threshold(comparisons=1):
    """Return the threshold of |z| for a standard normal variable z."""
    return stats.norm.isf(FALSE_ALARM / comparisons / 2)


def ks_threshold(samples, comparisons=1):
    """Return the threshold of the distance of an empirical from its true distribution function.

    Massart, *The tight constant in the Dvoretzky-Kiefer-Wolfowitz inequality* (Ann. Probab. 18,
    1990): P(D >= t) <= 2 exp(-2 samples t²).
    """
    return math.sqrt(math.log(2 * comparisons / FALSE_ALARM) / (2 * samples))


def two_sample_threshold(samples, comparisons=1):
    """Return the threshold of the distance of two empirical distribution functions of one law.

    Each has `samples` >= 458 samples.  Wei and Dudley, *Two-sample Dvoretzky-Kiefer-Wolfowitz
    inequalities* (Statist. Probab. Lett. 82, 2012): P(sqrt(samples / 2) D >= t) <= 2 exp(-2 t²).
    Ties only decrease D.
    """
    assert samples >= 458
    return math.sqrt(math.log(2 * comparisons / FALSE_ALARM) / samples)


def ks_distance(a, b):
    """Return the largest difference of the empirical distribution functions of two samples."""
    a, b = np.sort(a), np.sort(b)
    points = np.concatenate([a, b])
    below_a = np.searchsorted(a, points, side="right") / len(a)
    return np.abs(below_a - np.searchsorted(b, points, side="right") / len(b)).max()


def binomial_range(trials, probability, comparisons=1):
    """Return the smallest and the largest count of a binomial variable."""
    tail = FALSE_ALARM / comparisons / 2
    law = stats.binom(trials, probability)
    # ppf(q) is the least k with P(X <= k) >= q, so P(X < ppf(tail)) < tail.
    return law.ppf(tail), law.isf(tail)


def layer_spec(
    width, batch, inputs=1, norm=codes.NORM_CENTRED, skip=0.0, gain=1.0, eps=0.0, **other
):
    """What kernels know of a layer that is row by row, or of another one with `other` fields."""
    hides_scale = norm != codes.NORM_NONE and skip == 0.0 and eps == 0.0
    spec = codes.LayerSpec(
        width, batch, batch * inputs, width, numbers.BLOCK, codes.GAUSSIAN, gain, skip, 0.0, False,
        0.0, codes.NORM_FIRST, norm, 0, False, eps, norm == codes.NORM_CENTRED, hides_scale,
    )  # fmt: skip
    return spec._replace(**other)
