"""Networks, settings and tests of counts that the tests of `bnmc.bounds.bridging` share.

α is not known. 1 − rate of the fixed point, its limit at large width, takes its place.
"""

import math

from oracle import FALSE_ALARM
from scipy import stats

import bnmc


def fixed_point(activation, n):
    return bnmc.MeanField(bnmc.Chain(100, n, activation)).fixed_point()


def contradicts(count, trials, probability, comparisons=1):
    """Tell whether a count of exceedances contradicts an upper bound of their probability.

    It does if a binomial variable of that probability is as large with a probability below
    `oracle.FALSE_ALARM` over the number of comparisons.
    """
    return stats.binom.sf(count - 1, trials, probability) < FALSE_ALARM / comparisons


SETTINGS = [
    {"l": 0, "d": 1e4, "n": 5, "a": 0.4, "t": 2.0, "v": 2.5, "g": 1.0, "C": 1.0},
    {"l": 7, "d": 2000, "n": 10, "a": 0.2, "t": 0.5, "v": 2.7, "g": 0.8, "C": 3.0},
    {"l": 30, "d": 1e6, "n": 3, "a": 1.0, "t": 10.0, "v": 55.0, "g": 1.2, "C": 0.5},
    {"l": 100, "d": 50, "n": 8, "a": 0.01, "t": 1.5, "v": 1.0, "g": 1.0, "C": 2.0},
]


def wave(x):
    return math.sin(3 * x) + 0.3 * x


def bump(x):
    return math.exp(-8 * (x - 1.4) ** 2)
