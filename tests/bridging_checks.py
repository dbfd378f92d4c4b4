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


#: Numbers of arguments.
SETTINGS = [
    dict(zip(
        ["depth", "width", "batch", "alpha", "t", "inverse_norm", "distortion", "constant"],
        numbers, strict=True,
    ))
    for numbers in [
        (0, 1e4, 5, 0.4, 2.0, 2.5, 1.0, 1.0),
        (7, 2000, 10, 0.2, 0.5, 2.7, 0.8, 3.0),
        (30, 1e6, 3, 1.0, 10.0, 55.0, 1.2, 0.5),
        (100, 50, 8, 0.01, 1.5, 1.0, 1.0, 2.0),
    ]
]  # fmt: skip


def wave(x):
    return math.sin(3 * x) + 0.3 * x


def bump(x):
    return math.exp(-8 * (x - 1.4) ** 2)
