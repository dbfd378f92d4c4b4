"""The symmetric fixed point if normalized rows are uniform on a sphere.

Let w ~ N(0, G*) be a row and φ = N(w) its normalization, n the batch size, σ the activation and
σ_i = σ(φ_i).  φ is uniform on a sphere of radius √n in two cases: under a centring norm, on the
sphere of the space orthogonal to (1, …, 1); under a norm that does not centre, if σ is odd, on the
sphere of the whole space, as G* is then a multiple of I.  `MeanField.fixed_point` has the formulas.
"""

from __future__ import annotations

import math

import numpy as np

from bnmc.chain.activations import Activation
from bnmc.errors import ArgumentError
from bnmc.mean_field.fixed_point.accuracy import Gradient
from bnmc.mean_field.fixed_point.results import SymmetricFixedPoint
from bnmc.mean_field.float64 import EPSILON, FloatArray
from bnmc.mean_field.quadrature.panels import gauss_legendre, panel_points
from bnmc.mean_field.quadrature.resolution import Function
from bnmc.mean_field.quadrature.sphere import SphereRule, moments

__all__ = ["centred", "is_odd", "odd", "rounding_error"]

# If the standard deviation of σ on the sphere, relative to its root mean square, is at most this,
# σ is constant to rounding and G* has rank one.
_CONSTANT = 1e-12


def is_odd(function: Function, breaks: FloatArray) -> bool:
    """Return whether a function is odd, to rounding, at 512 points and on its panels `breaks`."""
    nodes = panel_points(breaks, gauss_legendre(8).nodes)[0].ravel()
    points = np.concatenate([np.linspace(0.0, breaks[-1], 513)[1:], np.abs(nodes[nodes != 0.0])])
    plus, minus = function(points), function(-points)
    return bool(np.all(np.abs(plus + minus) <= 4.0 * np.finfo(np.float64).eps * np.abs(plus)))


def centred(
    activation: Activation, batch: float, rule: SphereRule, gradient: Gradient
) -> SymmetricFixedPoint:
    """Return the fixed point under a centring norm.

    Parameters
    ----------
    activation : Activation
        The activation σ.
    batch : float
        n ≥ 2, an integer or ``inf``.
    rule : SphereRule
        Rule for two coordinates of φ, with values of σ.
    gradient : Gradient
        What is known about E σ′².

    Raises
    ------
    ArgumentError
        If σ is constant on the sphere.
    """
    e, x = 1.0 / batch, rule.x
    m = moments(rule, batch)
    b, mu = rule.mean(rule.value**2), m.spread
    _require_spread(activation, batch, mu, b)
    eigenvalues = []
    if batch > 2:
        eigenvalues.append((1.0 - e) * m.diagonal[1] / (2.0 * (1.0 - 2.0 * e) * mu))
    if batch > 3:
        eigenvalues.append((1.0 - e) * m.mixed / mu)
    # For gradients on the sphere of radius √n, n ∇x·∇x = n − 1 − x² and n ∇x·∇y = −1 − xy.
    own = gradient.energy(rule, 1.0 - e - e * x * x)
    pair = rule.mean(rule.slope * (rule.slope_given[0] + x * rule.slope_given[1]))
    return SymmetricFixedPoint(
        b=b,
        c=(m.covariance + m.mean**2) / b,
        eigenvalues=tuple(eigenvalues),
        rate=max(map(abs, eigenvalues), default=0.0),
        backward_rate=math.inf if gradient.explodes else (own + e * pair) / (mu * (1.0 - 3.0 * e)),
        cross_batch=m.mean**2,
        cross_batch_rate=(m.first * _mean_length(batch - 1)) ** 2 / ((1.0 - e) * mu),
        error=rounding_error(mu, b),
    )


def odd(
    activation: Activation, batch: float, rule: SphereRule, gradient: Gradient
) -> SymmetricFixedPoint:
    """Return the fixed point of an odd σ under a norm that does not centre.

    The parameters are those of `centred`.
    """
    e, x, value = 1.0 / batch, rule.x, rule.value
    b = rule.mean(value**2)
    _require_spread(activation, batch, b, b)
    eigenvalues = (
        rule.mean(value**2 * (x * x - 1.0)) / (2.0 * b * (1.0 - e)),
        rule.mean(value * x * rule.given[1]) / b,
    )
    slopes = gradient.energy(rule, 1.0 - e * x * x)
    return SymmetricFixedPoint(
        b=b,
        c=0.0,
        eigenvalues=eigenvalues,
        rate=max(map(abs, eigenvalues)),
        backward_rate=math.inf if gradient.explodes else slopes / (b * (1.0 - 2.0 * e)),
        cross_batch=0.0,
        cross_batch_rate=(rule.mean(value * x) * _mean_length(batch)) ** 2 / b,
        error=rounding_error(b, b),
    )


def rounding_error(mu: float, b: float) -> float:
    """Return the rounding error of the Jacobian, relative to its eigenvalues.

    Values of σ have the size √b and are rounded to that; the Jacobian depends on their fluctuations
    only, of size √μ, μ = b(1−c).
    """
    return 8.0 * EPSILON * math.sqrt(b / mu)


def _require_spread(activation: Activation, batch: float, mu: float, b: float) -> None:
    """Raise `ArgumentError` if σ is constant on the sphere, so that G* has rank one."""
    if not mu > _CONSTANT**2 * b:
        raise ArgumentError(
            "activation",
            activation.name,
            f"a function that is not constant on the sphere of a batch of {batch}",
            "G* has rank one and the Jacobian does not exist",
        )


def _mean_length(dimension: float) -> float:
    """Return √(2/m) Γ((m+1)/2)/Γ(m/2): E|z|/√m for a standard normal z in m dimensions."""
    if dimension < 300:
        return (
            math.sqrt(2 / dimension) * math.gamma((dimension + 1) / 2) / math.gamma(dimension / 2)
        )
    # Stirling's series: the Gamma function would overflow.
    y = 2.0 / dimension
    terms = (1.0, -1 / 8, 1 / 128, 5 / 1024, -21 / 32768, -399 / 262144)
    return sum(term * y**power for power, term in enumerate(terms))
