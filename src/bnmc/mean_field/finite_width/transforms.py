"""Joint moments of up to four coordinates of the centred sphere for large batches.

Let x be uniform on the centred sphere: |x| = √n, x orthogonal to (1, …, 1), with n the batch size.
It has the law of n independent standard normal numbers z_i given Σz_i = 0 and Σz_i² = n.  With
f̂(s, t) = E f(z) exp(isz + itz²), and D the joint density of Σz_i and Σz_i² at (0, n),

    E f_1(x_1) ⋯ f_k(x_k) = 1/(4π² D) ∫∫ f̂_1 ⋯ f̂_k r^(−(n−k)/2) exp(−(n−k)s²/(2r) − itn) ds dt,

where r = 1 − 2it.  The integrand decreases like |r|^(−(n−k)/2), and the trapezoidal rule converges
geometrically: some 10⁴ nodes suffice for 24 samples, and fewer for more.  A coordinate is at most
√(n−1), so f may be 0 beyond.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from bnmc.mean_field.float64 import EPSILON, FloatArray
from bnmc.mean_field.quadrature.panels import gauss_legendre, panel_points, subdivided
from bnmc.mean_field.quadrature.resolution import Function, evaluate

_ComplexArray = NDArray[np.complex128]

#: For batches of at least this size, the rule costs less than nested ones.
LEAST_BATCH = 24

#: Nodes per panel of z.  The rules are tried in turn until two agree.
ORDERS = (13, 16, 20, 24)

# Relative size e^(−L) of what a rule neglects: L is this times the nodes per panel.
_DIGITS = 1.3

# The phase of exp(isz + itz²) changes by this times the nodes, at most, over half a panel.  Beyond
# _FAR, the normal density is so small that panels may be wider.
_PHASE, _FAR = 0.35, 5.0

# The period of the trapezoidal rule contains the law of the sums of the coordinates times this.
_MARGIN = 1.15


def transformed_moments(
    function: Function, batch: int, panels: FloatArray, order: int
) -> FloatArray:
    """Return E σ̃₁σ̃₂σ̃₃, E σ̃₁²σ̃₂σ̃₃ and E σ̃₁σ̃₂σ̃₃σ̃₄.

    Parameters
    ----------
    function : callable
        σ̃, whose mean on the sphere is 0; it maps a float64 array elementwise.
    batch : int
        n ≥ `LEAST_BATCH`.
    panels : ndarray of float64
        Panels on which σ̃ is smooth, from −r to r, with r the end of the range of a coordinate.
    order : int
        Nodes per panel, which determines the other errors, too.
    """
    rule = _Rule(batch, panels, order)
    value = evaluate(function, rule.z)
    return _nested(rule, *rule.transforms([value, value * value]))


def transformed_pairs(
    function: Function, batch: int, panels: FloatArray, order: int
) -> tuple[float, FloatArray, FloatArray]:
    """Return all moments of σ that `joint_moments` needs.

    Parameters
    ----------
    function : callable
        σ, of any mean.
    batch, panels, order
        As those of `transformed_moments`.

    Returns
    -------
    mean : float
    products : ndarray of shape (7,)
        E σ̃₁², E σ̃₁σ̃₂, E σ̃₁³, E σ̃₁⁴, E σ̃₁²σ̃₂, E σ̃₁³σ̃₂ and E σ̃₁²σ̃₂², with σ̃ = σ − E σ.
    nested : ndarray of shape (3,)
        As `transformed_moments`.
    """
    rule = _Rule(batch, panels, order)
    raw = evaluate(function, rule.z)
    mean = float(rule.law @ raw)
    value = raw - mean
    transforms = rule.transforms([value, value**2, value**3])
    single, square, _ = transforms
    weight = rule.weights(2)
    variance, third, fourth = (float(rule.law @ value**power) for power in (2, 3, 4))
    pair, *pairs = (_sum(weight * single * other) for other in transforms)
    squares = _sum(weight * square * square)
    products = np.array([variance, pair, third, fourth, *pairs, squares])
    return mean, products, _nested(rule, single, square)


def _nested(rule: _Rule, single: _ComplexArray, square: _ComplexArray) -> FloatArray:
    """Return the moments of three and four coordinates from the transforms of σ̃ and σ̃²."""
    three, four = (rule.weights(k) * single * single for k in (3, 4))
    return np.array([_sum(three * single), _sum(three * square), _sum(four * single * single)])


class _Rule:
    """Nodes of z, s and t ≥ 0.

    Attributes
    ----------
    z, law : ndarray of shape (nodes,)
        Nodes, and weights of the law of a coordinate of the sphere, which sum to 1.
    """

    def __init__(self, batch: int, panels: FloatArray, order: int) -> None:
        self._batch = batch
        self._s, self._t, self._weight = _grid(batch, _DIGITS * order)
        phase = float(self._s[-1]) + 2.0 * float(self._t[-1]) * min(float(panels[-1]), _FAR)
        nodes, gauss, _, _ = gauss_legendre(order)
        points, half = panel_points(subdivided(panels, 2.0 * _PHASE * order / phase), nodes)
        self.z, length = points.ravel(), (half * gauss).ravel()
        square = np.minimum(self.z**2 / (batch - 1.0), 1.0 - EPSILON)
        law = length * np.exp(0.5 * (batch - 4.0) * np.log1p(-square))
        self.law = law / law.sum()
        self._density = length * np.exp(-0.5 * self.z**2) / math.sqrt(2.0 * math.pi)

    def transforms(self, functions: list[FloatArray]) -> list[_ComplexArray]:
        """Return f̂(s, t) for values of f at the nodes z, each of shape (len(s), len(t))."""
        of_s = np.exp(1j * self._s[:, None] * self.z) * self._density
        of_t = np.exp(1j * self._t * (self.z**2)[:, None])
        return [of_s @ (values[:, None] * of_t) for values in functions]

    def weights(self, coordinates: int) -> _ComplexArray:
        """Return what the transforms of k functions are multiplied by."""
        n, r = self._batch, 1.0 - 2.0j * self._t
        log_rest = -0.5 * np.log(r) - (self._s**2)[:, None] / (2.0 * r)
        weights = np.exp((n - coordinates) * log_rest - 1j * n * self._t) * self._weight
        return np.asarray(weights)


def _sum(values: _ComplexArray) -> float:
    return float(values.sum().real)


def _grid(batch: int, size: float) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return s, t ≥ 0 and weights over 4π² D, which count t and −t; `size` is L."""
    n, rest = batch, batch - 4.0
    # |r| at which the integrand is e^(−L), and s there, where it decreases most slowly.
    modulus = math.exp(2.0 * size / rest)
    last_t = 0.5 * math.sqrt(modulus**2 - 1.0)
    last_s = modulus * math.sqrt(2.0 * size / rest)
    # P(Σz² ≥ n + y) < e^(−L) for y = 2√(nL) + 2L, and P(|Σz| ≥ y) < 2 e^(−L) for y = √(2nL).
    period_t = _MARGIN * 2.0 * (math.sqrt(n * size) + size)
    period_s = _MARGIN * math.sqrt(2.0 * n * size)
    count_s = math.ceil(last_s * period_s / (2.0 * math.pi))
    count_t = math.ceil(last_t * period_t / (2.0 * math.pi))
    s = np.linspace(-last_s, last_s, 2 * count_s + 1)
    t = np.linspace(0.0, last_t, count_t + 1)
    log_density = -0.5 * math.log(2.0 * math.pi * n) + 0.5 * (n - 3.0) * math.log(n) - 0.5 * n
    log_density -= 0.5 * (n - 1.0) * math.log(2.0) + math.lgamma(0.5 * (n - 1.0))
    scale = (s[1] - s[0]) * (t[1] - t[0]) * math.exp(-log_density) / (4.0 * math.pi**2)
    return s, t, scale * np.where(t > 0.0, 2.0, 1.0)
