"""The bias of the stationary mean of the Gram matrix, of order 1/width.

With S/d the stationary covariance at width d, J the Jacobian and F″ the second derivative of the
mean-field map at G*, to leading order

    E G − G* = (I − J)⁻¹ ½ F″[S] / d.

Let m be the dimension of the sphere's space, A the traceless deviation in units of G* in that
space, and φ = √n u the normalized row.  The second derivative of the Gaussian density gives
D²F[Δ, Δ] = Cov(σσᵀ, Q), where the mean of Q over Δ is, up to a constant,

    Q = ¼ m(m+2) E_Δ (uᵀAu)².

Permutations leave two variances of A: s₁ of P diag(e) P and s₂ of the rest, with P the projector to
the space.  |u|⁴ is constant, so only the part of uuᵀ in P diag(e) P counts, whose square is
Σu_i⁴ up to a constant and a factor k:

    E G − G* = ⅛ m(m+2) k (s₁ − s₂) Cov(σσᵀ, Σu_i⁴) / d,

k = 1/(1 − 2/n) on the centred sphere and 1 on the whole one.  J is 0 on this matrix in both cases.
"""

from __future__ import annotations

import math

import numpy as np

from bnmc.chain.activations import Activation
from bnmc.mean_field.finite_width.sectors import Sector
from bnmc.mean_field.fixed_point.results import FixedPoint
from bnmc.mean_field.float64 import FloatArray
from bnmc.mean_field.quadrature.deviation import range_of
from bnmc.mean_field.quadrature.resolution import evaluate, panels_of
from bnmc.mean_field.quadrature.sphere import reach, sphere_rule

__all__ = ["mean_bias"]

# Nodes per panel.
_ORDER = 24

# A polynomial of degree 4 is known from its values here.
_FIVE = np.arange(-2.0, 3.0)


def mean_bias(
    activation: Activation, point: FixedPoint, sectors: tuple[Sector, ...], centred: bool
) -> tuple[float, float]:
    """Return the diagonal and the other entries of E G − G*, times the width.

    Parameters
    ----------
    activation : Activation
        The activation; odd, if the norm does not centre.
    point : FixedPoint
        The fixed point.
    sectors : tuple of Sector
        The stationary covariance.
    centred : bool
        Whether the norm centres.
    """
    n = point.batch
    if n <= (3 if centred else 1):  # Σu_i⁴ is constant
        return 0.0, 0.0
    mu = point.b * (1.0 - point.c)
    m, k = (n - 1, 1.0 / (1.0 - 2.0 / n)) if centred else (n, 1.0)
    if centred:
        seen = np.array([1.0, -math.sqrt(2.0 / (n - 2.0))])
        first = float(seen @ sectors[1].variance @ seen) / k
        second = float(sectors[2].variance[0, 0])
    else:
        first = float(sectors[1].variance[0, 0])
        second = float(sectors[0].variance[1, 1])
    own, pair = _covariances(activation, n, m)
    factor = m * (m + 2) * k * (first - second) / (8.0 * mu**2)
    return factor * own, factor * pair if centred else 0.0


def _covariances(activation: Activation, batch: int, dimension: int) -> tuple[float, float]:
    """Return the covariances of σ₁² and of σ₁σ₂ with Σu_i⁴; the latter only if m is n − 1."""
    n, m = batch, dimension
    centred = m < n

    def value(x: FloatArray) -> FloatArray:
        return np.asarray(evaluate(activation, x))

    def square(x: FloatArray) -> FloatArray:
        return np.asarray(value(x) ** 2)

    def value_times_square(x: FloatArray) -> FloatArray:
        return np.asarray(value(x) * x * x)

    breaks = panels_of(activation, max(reach(m), range_of(square, m).limit))
    correlation = -1.0 / m if centred else 0.0
    rule = sphere_rule(value, m, correlation, breaks, _ORDER)
    x = rule.x
    fourth = 3.0 * n * m / (m + 2.0) if centred else 3.0 * n * n / (n + 2.0)
    one = _sum_of_fourths(x, x * x, n - 1, n, centred) + x**4 - fourth
    own = rule.mean(rule.value**2 * one) / n**2
    if not centred:
        return own, 0.0
    more = sphere_rule(value_times_square, m, correlation, breaks, _ORDER)
    given = np.concatenate([rule.given, more.given[1:]])
    y = _FIVE[:, None]
    sums = _sum_of_fourths(x + y, x * x + y * y, n - 2, n, centred) + x**4 + y**4 - fourth
    coefficients = np.linalg.solve(np.vander(_FIVE, increasing=True), sums)
    pair = rule.mean(rule.value * np.sum(coefficients * given, axis=0)) / n**2
    return own, pair


def _sum_of_fourths(
    sums: FloatArray, squares: FloatArray, left: int, batch: int, centred: bool
) -> FloatArray:
    """Return the expected sum of fourth powers of the other N = `left` coordinates.

    They are uniform on a sphere, given the sum and the sum of squares of the others.
    """
    if not centred:
        return np.asarray(3.0 * (batch - squares) ** 2 / (left + 2.0))
    centre = -sums / left
    variance = (batch - squares - sums**2 / left) / left
    fourth = 3.0 * variance**2 * (left - 1.0) / (left + 1.0)
    return np.asarray(left * (centre**4 + 6.0 * centre**2 * variance + fourth))
