"""Moments of an activation at one normal variable, with their numerical errors.

Integrals over z ~ N(0, 1) of functions of σ(√q z) are evaluated by Gauss-Legendre rules on panels
of [−13, 13], or of a longer interval if σ grows fast.  Kinks are ends of panels.  The
width of a panel is at most w in z.  It is also at most 2w in x = √q z if |x| ≤ 16; for larger |x|
this limit increases with |x|.  So a σ that changes within a distance of 1 from x = 0 is resolved,
however large q is.

The error of a moment is four times its largest difference between the rule with w = 1/4 and two
coarser ones, plus rounding.  Panels that resolve a narrow feature of σ are part of all three rules.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from bnmc.errors import ArgumentError
from bnmc.mean_field.duals.duals import Dual
from bnmc.mean_field.float64 import EPSILON, FloatArray
from bnmc.mean_field.quadrature.panels import gauss_legendre, panel_points, subdivided
from bnmc.mean_field.quadrature.profile import Profile

# Half lengths of the interval, one tried after the other.  The normal density at 13 is 8e-38; at 38
# it is the smallest that float64 numbers have.
_ENDS, _ORDER = (13.0, 22.0, 38.0), 16
_WIDTHS = (0.25, 0.4, 0.5)

# Panels in x = √q z: up to _NEAR of width 2w, beyond it growing by the factor _GROWTH.
_NEAR, _GROWTH = 16.0, 1.25

# Edges of panels that are closer than this are one.
_SAME = 1e-12

# The integrand at the ends may be this part of its integral; else the mean square is infinite.
_TAIL = 1e-14

# Panels of σ(√q z) shorter than this, in z and in x/2, are those of a narrow feature.
_NARROW = 0.15

_SAFETY, _ROUNDING = 4.0, 64.0 * EPSILON
# What the sums lose below the range of float64: 2000 terms, each to half of 4.9e-324.
_UNDERFLOW = 5e-321


class Moments(NamedTuple):
    """Expectations for u = √q z, z ~ N(0, 1).

    Attributes
    ----------
    variance : float
        q.
    mean, first : float
        E σ(u) and E σ(u) z.
    square, mirror : float
        E σ(u)² and E σ(u)σ(−u).
    mean_slope, square_slope : float
        The derivatives of E σ(u) and E σ(u)² with respect to q.
    gradient : float
        E σ′(u)²; ``inf`` if σ jumps.
    error, gradient_error : float
        Relative error of the least accurate of the others, and of `gradient`.
    """

    variance: float
    mean: float
    first: float
    square: float
    mirror: float
    mean_slope: float
    square_slope: float
    gradient: float
    error: float = 0.0
    gradient_error: float = 0.0


def moments(sigma: Dual, variance: float) -> Moments:
    """Return the moments at a variance q > 0.

    Raises
    ------
    ArgumentError
        If σ is not finite, or its mean square is infinite or lies beyond 38 standard deviations.
    """
    rules = [_on_panels(sigma, variance, width) for width in _WIDTHS]
    fine, scales = rules[0]
    if not math.isfinite(fine.square):
        allowed = "a function that is finite and has a finite mean square"
        hint = f"within 38 standard deviations of a normal variable of variance {variance:.6g}"
        raise ArgumentError("activation", sigma.name, allowed, hint)
    shares = [
        abs(a - b) / scale
        for other, _ in rules[1:]
        for a, b, scale in zip(fine[1:7], other[1:7], scales, strict=True)
        if scale > 0.0
    ]
    error, gradient_error = max(shares, default=0.0), 0.0
    if fine.gradient not in (0.0, math.inf):
        gradient_error = max(abs(rule.gradient / fine.gradient - 1.0) for rule, _ in rules)
    underflow = _UNDERFLOW / max(fine.square, _UNDERFLOW) if any(fine[1:7]) else 0.0
    return fine._replace(
        error=_SAFETY * error + _ROUNDING + underflow,
        gradient_error=_SAFETY * gradient_error + fine.gradient_error + _ROUNDING,
    )


@lru_cache(maxsize=8192)
def rough_moments(sigma: Dual, variance: float) -> Moments:
    """Return the moments from one rule; ``inf`` if the mean square is not finite."""
    return _on_panels(sigma, variance, _WIDTHS[0])[0]


@np.errstate(all="ignore")
def _on_panels(sigma: Dual, variance: float, width: float) -> tuple[Moments, tuple[float, ...]]:
    """Return the moments from panels of a width, and the scales of `Moments.error`."""
    root = math.sqrt(variance)
    rule = gauss_legendre(_ORDER)
    for end in _ENDS:
        z, half = panel_points(normal_panels(sigma.function, root, width, end), rule.nodes)
        weight = half * rule.weights * np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
        value = sigma.function(root * z)
        counted = value * value * weight
        total = float(counted.sum())
        rim = max(counted[0].sum(), counted[-1].sum())
        if not rim > _TAIL * total:
            break
    if not math.isfinite(total) or rim > _TAIL * total:
        return Moments(variance, 0.0, 0.0, math.inf, 0.0, 0.0, math.inf, math.inf), (1.0,) * 6
    centre = float(sigma.function(np.zeros(1))[0])
    centre = centre if math.isfinite(centre) else 0.0
    score = (z * z - 1.0) * weight / (2.0 * variance)
    # Constants have no part in the derivatives, and would cancel for small q.
    lift, spread = value - centre, value * value - centre * centre
    mirrored = sigma.function(-root * z)
    size = math.sqrt(total)
    gradient, missing = _gradient(sigma, value, root, z, half, weight)
    result = Moments(
        variance=variance,
        mean=float((value * weight).sum()),
        first=float((value * z * weight).sum()),
        square=total,
        mirror=float((value * mirrored * weight).sum()),
        mean_slope=float((lift * score).sum()),
        square_slope=float((spread * score).sum()),
        gradient=gradient,
        gradient_error=missing / gradient if gradient > 0.0 else 0.0,
    )
    scales = (
        size, size, total, total,
        float((np.abs(lift) * np.abs(score)).sum()), float((np.abs(spread) * np.abs(score)).sum()),
    )  # fmt: skip
    return result, scales


def normal_panels(sigma: Profile, root: float, width: float, end: float) -> FloatArray:
    """Return the ends of panels of [−end, end] for functions of σ(root z) and σ(−root z)."""
    # E σ(u)σ(−u) sees the kinks on both sides.
    kinks = sigma.ends(_NARROW * min(root, 2.0)) / root
    bends = np.concatenate([kinks, -kinks])
    points = [np.array([-end, 0.0, end]), bends]
    if root > 2.0:
        near = np.linspace(0.0, _NEAR, round(_NEAR / (2.0 * width)) + 1)
        count = max(math.ceil(math.log(max(root / _NEAR, 1.0)) / math.log(_GROWTH)), 0)
        far = _NEAR * _GROWTH ** np.arange(1.0, count + 1.0)
        inner = np.concatenate([near, far]) / root
        points += [inner, -inner]
    merged = np.unique(np.clip(np.concatenate(points), -end, end))
    edges = merged[np.concatenate([[True], np.diff(merged) > _SAME * end])]
    edges[-1] = end
    # Kinks stay where they are: an edge next to one gives way.
    kinks = sigma.ends(0.0) / root
    for kink in (*kinks, *-kinks):
        if abs(kink) < end:
            edges[np.argmin(np.abs(edges - kink))] = kink
    return subdivided(edges, width)


def _gradient(
    sigma: Dual, value: FloatArray, root: float, z: FloatArray, half: FloatArray, weight: FloatArray
) -> tuple[float, float]:
    """Return E σ′(u)², and its error next to singular points.

    Away from these it is that of the derivative, or of polynomials on panels if σ′ is not known.
    """
    low, end = z[0, 0], z[-1, -1]
    steep = sigma.function.steep / root
    if ((low < steep) & (steep < end)).any():
        return math.inf, 0.0
    if sigma.function.derivative is not None:
        slope = np.asarray(sigma.function.derivative(root * z), dtype=np.float64)
    else:
        slope = value @ gauss_legendre(_ORDER).differentiate.T / (half * root)
    parts, error = (slope * slope * weight).sum(axis=1), 0.0
    edges = np.append(z.mean(axis=1) - half[:, 0], z[-1].mean() + half[-1, 0])
    for spot in sigma.function.singular:
        place = spot.point / root
        if low < place < end:
            right = int(np.argmin(np.abs(edges - place)))
            energy, _ = sigma.function.energy(spot.point, *(root * edges[[right - 1, right + 1]]))
            density = math.exp(-0.5 * place * place) / math.sqrt(2.0 * math.pi) / root
            parts[right - 1 : right + 1] = density * energy, 0.0
            error += density * spot.error
    return float(parts.sum()), error
