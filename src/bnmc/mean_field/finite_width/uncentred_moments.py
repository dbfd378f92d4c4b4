"""Joint moments and the Jacobian under a norm that does not centre, if the activation is not odd.

The normalized row of w ~ N(0, G*) is (see `bnmc.mean_field.fixed_point.uncentred`)

    φ_i = sin ψ + cos ψ x_i,    tan ψ = √(g₀/g₁) tan ψ′,

with x uniform on the centred sphere and independent of ψ.  Given ψ, the joint moments are those of
the function σ(sin ψ + cos ψ x) on the centred sphere, so one more angle is integrated outside of
the nested rules of `joint_moments`.

The Jacobian is DF(G*)[Δ] = ½ Cov(σσᵀ, qᵀΔq), q = √n G*^(−½) u with u = z/|z|, z = G*^(−½) w.
With b the diagonal of G*, g₀ = 1 + (n−1)c and g₁ = 1 − c,

    q_i = f + h x_i,    f = sin ψ′/√(b g₀),    h = cos ψ′/√(b g₁).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import numpy as np

from bnmc.chain.activations import Activation
from bnmc.mean_field.finite_width.joint_moments import (
    CUT,
    MOST_EVALUATIONS,
    JointMoments,
    nested_moments,
    nested_size,
    pair_products,
    raw_moments,
)
from bnmc.mean_field.finite_width.sectors import noises
from bnmc.mean_field.finite_width.transforms import (
    LEAST_BATCH,
    TRANSFORM_ORDERS,
    transformed_pairs,
)
from bnmc.mean_field.fixed_point.expectations import (
    AngleNodes,
    angle_nodes,
    resolved,
    singular_angles,
)
from bnmc.mean_field.fixed_point.results import SymmetricFixedPoint
from bnmc.mean_field.float64 import FloatArray
from bnmc.mean_field.quadrature.panels import subdivided
from bnmc.mean_field.quadrature.resolution import evaluate, jumps
from bnmc.mean_field.quadrature.sphere import moments, reach, sphere_rule

__all__ = ["UncentredMoments", "angle_rule", "uncentred_moments"]

# Nodes per panel of one and two coordinates given ψ, and widest panel of these.
_PAIR_ORDER, _WIDEST_PANEL = 24, 3.0

# Nodes per panel of ψ, that many more for each finer nested rule, and widest panel of √n ψ′.
_ANGLE_ORDER, _MORE_ANGLES, _WIDEST_ANGLE = 7, 1, 3.0

# Nodes per angle of the nested rules, if σ is smooth, and per panel of an angle, if σ has kinks.
_SMOOTH_ORDERS, _PANEL_ORDERS = (8, 12, 17, 24, 34), (8, 12, 17, 24)

# For batches up to this, the nested rules have at most one angle.
_FEW = 3

# Evaluations of the activation by the rules of all angles, in units of those that one nested rule
# is allowed.
_MORE = 20.0


@dataclass(frozen=True, kw_only=True)
class UncentredMoments:
    """Joint moments of σ_i = σ(φ_i), and the Jacobian in two sectors.

    Attributes
    ----------
    joint : JointMoments
        The moments of φ.  Its `own` and `pair` are averages over ψ of those of x.
    trivial, standard : ndarray of shape (2, 2)
        The Jacobian in these sectors, in the basis of `Sector`.  For n = 2, `standard` has shape
        (1, 1).
    """

    joint: JointMoments
    trivial: FloatArray
    standard: FloatArray


def uncentred_moments(
    activation: Activation, batch: int, point: SymmetricFixedPoint, rtol: float
) -> tuple[UncentredMoments, UncentredMoments]:
    """Return the moments by the first rule that agrees with the one before it, and by that one.

    If no affordable rule agrees, the results are those of the last two.

    Parameters
    ----------
    activation : Activation
        The activation σ, not odd.
    batch : int
        n ≥ 2.
    point : SymmetricFixedPoint
        The fixed point, with c < 1.
    rtol : float
        Two rules agree if the noise differs by at most this, relative to its trace in each sector,
        and so do the Jacobians. For large batches and up to 3 samples, `rtol` is multiplied by
        1 − rate².

    Raises
    ------
    UnresolvedError
        If the activation cannot be resolved.
    """
    known = resolved(activation, batch, wider=True)
    kinks = jumps(activation, known.breaks)
    large = batch >= LEAST_BATCH
    orders = TRANSFORM_ORDERS if large else _PANEL_ORDERS if kinks.size else _SMOOTH_ORDERS
    # S is larger than the noise by up to 1/(1 − rate²), and so are its errors.  If an angle ψ costs
    # milliseconds, the rules are as accurate as that requires.
    cheap = large or batch <= _FEW
    agreed = rtol * (1.0 - point.rate**2) if cheap else rtol
    found: list[UncentredMoments] = []
    for more, order in enumerate(orders):
        per_panel = order if cheap else _ANGLE_ORDER + _MORE_ANGLES * more
        nodes = angle_rule(batch, point, kinks, known.edge, per_panel)
        size = nodes.weight.size * nested_size(batch, kinks.size, order)
        if len(found) > 1 and not large and size > _MORE * MOST_EVALUATIONS:
            break
        given = [
            _given_angle(activation, batch, float(angle), known.edge, known.breaks, kinks, order)
            for angle in nodes.angle
        ]
        found.append(_averaged(given, nodes, batch, point))
        if len(found) > 1 and _difference(found[-1], found[-2], batch) <= agreed:
            break
    return found[-1], found[-2]


def angle_rule(
    batch: int, point: SymmetricFixedPoint, kinks: FloatArray, edge: float, order: int
) -> AngleNodes:
    """Return the rule for ψ."""
    stretch = math.sqrt((1.0 / (1.0 - point.c) - 1.0) + 1.0 / batch)
    if edge > reach(batch - 1) * (1.0 + 1e-9) or batch <= 3:
        limit = reach(batch)
    else:
        limit = math.sqrt(-batch * math.expm1(-2.0 * CUT / (batch - 2)))
    ends = singular_angles(kinks, batch)
    return angle_nodes(ends, batch, stretch, limit, order=order, widest=_WIDEST_ANGLE)


def _given_angle(
    activation: Activation,
    batch: int,
    angle: float,
    edge: float,
    breaks: FloatArray,
    kinks: FloatArray,
    order: int,
) -> tuple[JointMoments, FloatArray]:
    """Return the joint moments given ψ, and the four moments of the Jacobian.

    The four are E σ₁²x₁, E σ₁²(x₁²−1), E σ₁σ₂x₁ and E σ₁σ₂(x₁²−1).
    """
    sine, cosine = math.sin(angle), math.cos(angle)

    def function(x: FloatArray) -> FloatArray:
        return np.asarray(evaluate(activation, sine + cosine * x))

    def inside(points: FloatArray) -> FloatArray:
        moved = (points - sine) / cosine
        return np.asarray(moved[np.abs(moved) < edge])

    m = batch - 1
    panels = subdivided(np.array([-edge, *inside(breaks), edge]), _WIDEST_PANEL)
    if batch >= LEAST_BATCH:
        known, products, nested = transformed_pairs(function, batch, panels, order)
    else:
        rule = sphere_rule(function, m, -1.0 / m, panels, _PAIR_ORDER)
        known = moments(rule, batch)

        def centred(x: FloatArray) -> FloatArray:
            return np.asarray(function(x) - known.mean)

        def centred_square(x: FloatArray) -> FloatArray:
            return np.asarray(centred(x) ** 2)

        squares = sphere_rule(centred_square, m, -1.0 / m, panels, _PAIR_ORDER)
        products = pair_products(rule, squares, known.mean)
        nested = np.zeros(3)
        if batch > 2:
            nested = nested_moments(centred, batch, inside(kinks), edge, order)
    mean = known.mean
    own = [known.own[0] + 2.0 * mean * known.first, known.own[1] + 2.0 * mean * known.second]
    # Given x₁, x₂ has mean −x₁/(n−1).
    pair = [
        cross + mean * single * (1.0 - 1.0 / m)
        for cross, single in zip(known.cross, (known.first, known.second), strict=True)
    ]
    return raw_moments(known, products, nested, batch), np.array([*own, *pair])


def _averaged(
    given: list[tuple[JointMoments, FloatArray]],
    nodes: AngleNodes,
    batch: int,
    point: SymmetricFixedPoint,
) -> UncentredMoments:
    """Return the averages over ψ."""
    n = batch
    joint = JointMoments(
        **{
            entry.name: float(nodes.weight @ [getattr(one, entry.name) for one, _ in given])
            for entry in fields(JointMoments)
        }
    )
    g0, g1 = 1.0 + (n - 1.0) * point.c, 1.0 - point.c
    f = nodes.zeta / math.sqrt(n * point.b * g0)
    h = nodes.cosine / math.sqrt(point.b * g1)
    # The trivial sector sees ψ only: Σq = n f and Σq² = n (f² + h²).
    to = [math.sqrt(n) * (f**2 + h**2), ((n - 1.0) * f**2 - h**2) * math.sqrt(n / (n - 1.0))]
    m2, m11 = (np.array([getattr(one, name) for one, _ in given]) for name in ("m2", "m11"))
    of = [math.sqrt(n) * m2, math.sqrt(n * (n - 1.0)) * m11]
    trivial = np.array([[0.5 * _covariance(nodes, a, b) for b in to] for a in of])

    own, own2, pair, pair2 = np.stack([moment for _, moment in given], axis=1)
    share = 0.5 * n / (n - 1.0)

    def entry(first: FloatArray, second: FloatArray) -> float:
        return share * float(nodes.weight @ (first + second))

    # ⟨diag(e), qqᵀ⟩ sees 2fh x_i + h² x_i², and ⟨offdiag(e1ᵀ + 1eᵀ), qqᵀ⟩ twice
    # (n−2)fh x_i − h² x_i².
    if n == 2:
        return UncentredMoments(
            joint=joint,
            trivial=trivial,
            standard=np.array([[entry(2.0 * f * h * own, h**2 * own2)]]),
        )
    root = 2.0 / math.sqrt(2.0 * (n - 2.0))
    rows = ((1.0, own, own2), (root * (n - 1.0), pair, pair2))
    standard = np.array(
        [
            [
                size * entry(2.0 * f * h * by, h**2 * by2),
                size * root * entry((n - 2.0) * f * h * by, -(h**2) * by2),
            ]
            for size, by, by2 in rows
        ]
    )
    return UncentredMoments(joint=joint, trivial=trivial, standard=standard)


def _covariance(nodes: AngleNodes, first: FloatArray, second: FloatArray) -> float:
    """Return the covariance of two functions of ψ."""
    centred = first - nodes.weight @ first
    return float(nodes.weight @ (centred * (second - nodes.weight @ second)))


def _difference(first: UncentredMoments, second: UncentredMoments, batch: int) -> float:
    """Return the largest difference of the Jacobians, and of the noise relative to its trace."""
    noise = zip(*(noises(one.joint.covariance, batch) for one in (first, second)), strict=True)
    found = [float(np.abs(a - b).max() / np.trace(a)) for a, b in noise]
    found += [float(np.abs(first.trivial - second.trivial).max())]
    found += [float(np.abs(first.standard - second.standard).max())]
    return max(found)
