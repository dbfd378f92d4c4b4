"""Expectations over the part of a normalized row that does not depend on the correlation.

Under a norm that does not centre, a normalized row of the symmetric fixed point is (see
`bnmc.mean_field.fixed_point.uncentred`)

    φ_i = sin ψ + cos ψ x_i,

with x uniform on the centred sphere (|x| = √n, x orthogonal to (1, …, 1)) and independent of the
angle ψ.  Only the law of ψ depends on the correlation c of the samples.  So expectations over x
given ψ are tabulated once, as functions of ψ, for all c.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from bnmc.chain.activations import Activation
from bnmc.mean_field.fixed_point.accuracy import Resolved, resolved
from bnmc.mean_field.float64 import FloatArray
from bnmc.mean_field.quadrature.panels import Table, subdivided, tabulate
from bnmc.mean_field.quadrature.resolution import jumps
from bnmc.mean_field.quadrature.sphere import moments, normal_rule, sphere_rule

__all__ = ["AngleTables", "angle_tables", "singular_angles"]

# Nodes per panel of x and of ψ, for the fine and the coarse table.
_ORDER, _COARSE_ORDER = 24, 20

# With that many nodes, panels of x of this width resolve the normal density.
_WIDEST_PANEL = 3.0

# Relative to the largest value of its column, the table is resolved to this.  The last four columns
# depend on slopes, which are less accurate.  If the backward rate is infinite, the last four do not
# count.
_TOLERANCE = np.array([1e-12] * 9 + [1e-10] * 4)
_NO_GRADIENT = np.array([1e-12] * 9 + [1.0] * 4)

# Below this batch size, the table has square roots at the angles where kinks leave the sphere.  At
# larger ones the singularities are of so high an order that polynomials resolve them.
_MOST_SINGULAR = 32

# Angles closer than this are the same.
_SAME_ANGLE = 1e-9


class AngleTables(NamedTuple):
    """The table of expectations given ψ from two quadratures.

    Attributes
    ----------
    fine, coarse : Table
        Functions of ψ in [−π/2, π/2] with 13 columns; see `_given_angle`.
    known : Resolved
        The panels of σ, and what is known about its gradient and deviation.
    """

    fine: Table
    coarse: Table
    known: Resolved


def angle_tables(activation: Activation, batch: float) -> AngleTables:
    """Return the tables for an activation σ and a batch size n ≥ 2, an integer or ``inf``.

    Raises
    ------
    UnresolvedError
        If the activation cannot be resolved.
    """
    known = resolved(activation, batch, wider=True)
    breaks = known.breaks
    kinks = np.unique(np.concatenate([jumps(activation, breaks, order) for order in range(3)]))
    edges = np.linspace(-0.5 * math.pi, 0.5 * math.pi, 4)
    singular = singular_angles(kinks, batch)

    def columns(order: int) -> Callable[[float], FloatArray]:
        return lambda angle: _given_angle(activation, batch, angle, known.edge, breaks, order)

    tolerance = _NO_GRADIENT if known.gradient.explodes else _TOLERANCE
    fine = tabulate(columns(_ORDER), edges, singular, _ORDER, tolerance)
    coarse = fine.on_same_panels(columns(_COARSE_ORDER), _COARSE_ORDER)
    return AngleTables(fine, coarse, known)


def _given_angle(
    activation: Activation,
    batch: float,
    angle: float,
    edge: float,
    breaks: FloatArray,
    order: int,
) -> FloatArray:
    """Return the columns of the table at one angle ψ, shape (13,).

    Write σ_i for σ(sin ψ + cos ψ x_i), σ̄ for the mean of the σ_i over the batch, P for the
    projector orthogonal to 1 = (1, …, 1), σ′ for the derivatives of σ at φ, and I for the identity.
    The columns are

     0, 1     E σ₁ and E σ₁x₁;
     2, 3     E σ₁² and E|Pσ|²/(n−1);
     4, 5     n/(n−1) E σ̄σ₁x₁ and the same of x₁² − 1;
     6, 7     n/(n−1) E (Pσ)₁²x₁ and the same of x₁² − 1;
     8        E σ₁σ₂(x₁−x₃)(x₂−x₄);
     9, 10    1ᵀA1/n and tr A/(n−1) for A = cos²ψ E K diag(σ′)² K, K = I − φφᵀ/n;
    11, 12    the same for A = cos²ψ E Kσ′σ′ᵀK/n.
    """
    sine, cosine = math.sin(angle), math.cos(angle)

    def function(x: FloatArray) -> FloatArray:
        return np.asarray(activation(sine + cosine * x))

    inner = (breaks - sine) / cosine
    inner = subdivided(np.array([-edge, *inner[np.abs(inner) < edge], edge]), _WIDEST_PANEL)
    if batch == math.inf:
        rule = normal_rule(function, inner, order)
    else:
        n = int(batch)
        rule = sphere_rule(function, n - 1, -1.0 / (n - 1), inner, order)
    e, m = 1.0 / batch, moments(rule, batch)
    along = [
        (m.mean * by_mean + e * own) / (1.0 - e) + cross
        for by_mean, own, cross in zip((m.first, m.second), m.own, m.cross, strict=True)
    ]

    # tau is cos ψ σ′, the slope of `function`; y = 1 − φ sin ψ are the entries of K1.
    phi, tau, tau_given = sine + cosine * rule.x, rule.slope, rule.slope_given
    y = 1.0 - sine * phi
    y_tau_given = cosine**2 * tau_given[0] - sine * cosine * tau_given[1]
    phi_tau_given = sine * tau_given[0] + cosine * tau_given[1]
    one = rule.mean((tau * y) ** 2)
    trace = rule.mean(tau**2 * (1.0 - e * phi * phi))
    pair = rule.mean(tau * y * y_tau_given)
    trace_pair = trace - (1.0 - e) * rule.mean(tau * phi * phi_tau_given)
    columns = [m.mean, m.first, m.variance + m.mean**2, m.spread, *along, *m.diagonal, m.mixed]
    columns += [one, trace / (1.0 - e), e * one + (1.0 - e) * pair, trace_pair * e / (1.0 - e)]
    return np.array(columns)


def singular_angles(kinks: FloatArray, batch: float) -> FloatArray:
    """Return the angles ψ where a kink of one or two coordinates of φ leaves the sphere.

    If j coordinates are at kinks k_1, …, k_j, the others are equal there, and

        n sin ψ = Σ k_i ± √((n−j)(n − Σ k_i²)).
    """
    if batch >= _MOST_SINGULAR or kinks.size == 0:
        return np.empty(0)
    pairs = np.stack(np.meshgrid(kinks, kinks), axis=-1).reshape(-1, 2)
    sines = []
    for met in (kinks[:, None], pairs)[: int(batch) - 1]:
        inside = batch - np.sum(met**2, axis=1)
        middle = np.sum(met[inside >= 0.0], axis=1)
        root = np.sqrt((batch - met.shape[1]) * inside[inside >= 0.0])
        sines += [(middle - root) / batch, (middle + root) / batch]
    angles = np.sort(np.arcsin(np.clip(np.concatenate(sines), -1.0, 1.0)))
    angles = angles[np.abs(angles) < 0.5 * math.pi - _SAME_ANGLE]
    distinct: FloatArray = angles[np.diff(angles, prepend=-math.inf) > _SAME_ANGLE]
    return distinct
