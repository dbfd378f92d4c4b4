"""A line with narrow bumps, whose dual activations have closed forms."""

import itertools

import numpy as np

from bnmc import Activation


def line_and_bumps(*bumps):
    """Return x + Σ exp(−((x − place)/width)²), with its derivative."""
    (a, v), (b, w) = bumps

    def value(x):
        return x + np.exp(-(((x - a) / v) ** 2)) + np.exp(-(((x - b) / w) ** 2))

    def slope(x):
        return (
            1.0
            - 2.0 * (x - a) / v**2 * np.exp(-(((x - a) / v) ** 2))
            - 2.0 * (x - b) / w**2 * np.exp(-(((x - b) / w) ** 2))
        )

    return Activation(value, derivative=slope)


def dual(bumps, p, q, c):
    """Return V and V′ of a line and bumps by closed forms.

    For u ~ N(0, C) and A = diag(w²) + 2C, E Π exp(−(u_i − a_i)²/w_i²) is Π w_i det(A)^(−1/2)
    exp(−aᵀA⁻¹a).  By Stein's lemma E u b(v) = c E b′(v), and E b′(u)b′(v) is the derivative of
    E b(u)b(v) by c.
    """

    def pairs(c):
        total = 0.0
        for (a, v), (b, w) in itertools.product(bumps, bumps):
            first, second = v**2 + 2.0 * p, w**2 + 2.0 * q
            determinant = first * second - 4.0 * c * c
            exponent = (a * a * second + b * b * first - 4.0 * a * b * c) / determinant
            total += v * w / np.sqrt(determinant) * np.exp(-exponent)
        return total

    slopes = sum(
        2.0 * a * w * (w**2 + 2.0 * r) ** -1.5 * np.exp(-(a**2) / (w**2 + 2.0 * r))
        for (a, w), r in itertools.product(bumps, (p, q))
    )
    change = pairs(c + 1e-30j).imag / 1e-30
    return c + c * slopes + pairs(c).real, 1.0 + slopes + change
