"""Mean and variance of a sample over its features, put together from those of parts.

The mean and the sum of squared deviations of two parts give those of both (Chan, Golub and LeVeque,
1979), so a large mean cancels nothing.
"""

from __future__ import annotations

#: A standard deviation below so many units in the last place of the mean is zero: that is the
#: rounding error of the sum of a block.
_ROUNDING_UNITS = 64.0


def merged_mean(mean, count, other, length):
    """Return the mean of `count` numbers of mean `mean` and `length` ones of mean `other`."""
    difference = other - mean
    return mean + difference * length / (count + length)


def squares_between(mean, count, other, length):
    """Return what the squared deviations of two parts have in common beyond those of each."""
    difference = other - mean
    weight = count * (length / (count + length))
    return difference * difference * weight


def variance_of(mean, squares, size, centred):
    """Return the variance of `size` numbers, or their mean square if the norm subtracts no mean."""
    variance = squares / size
    if not centred:
        variance += mean * mean
    return variance


def is_flat(variance, mean, unit):
    """Whether a variance is zero up to the rounding of numbers with this unit."""
    rounding = _ROUNDING_UNITS * unit * mean
    return not variance > rounding * rounding
