"""Dual activations that have a closed form.

Let u, v be centred normal variables with variances p, q and covariance c.  A pair maps (p, q, c)
to V = E σ(u)σ(v) and V′ = E σ′(u)σ′(v).  Arrays broadcast; c is clipped to |c| ≤ √(pq).

At a jump of σ or σ′, the value counts as the mean of the two one-sided limits.  So V and V′ are
also defined for variance 0, where u is at a kink with probability 1.

Sources: Cho and Saul, *Kernel methods for deep learning* (2009), for powers of relu; Williams,
*Computing with infinite networks* (1997), for erf.  The formula of gelu follows by three partial
integrations: with D = E φ(u)φ(v) = 1 / (2π √((1+p)(1+q) − c²)), φ the standard normal density,

    E uΦ(u) vΦ(v) = c E Φ(u)Φ(v) + D (pq − c² + c² / (1+p) + c² / (1+q)).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from bnmc.mean_field.float64 import FloatArray

_Pair = Callable[[FloatArray, FloatArray, FloatArray], tuple[FloatArray, FloatArray]]

# Products of variances between these bounds neither overflow nor lose digits.
_LEAST, _LARGEST = 1e-140, 1e140


class ClosedForm(NamedTuple):
    """V and V′ of one σ, and its mean E σ(u) as a function of the variance."""

    pair: _Pair
    mean: Callable[[FloatArray], FloatArray]


def scale_and_correlation(
    p: FloatArray, q: FloatArray, c: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return √(pq) and the correlation c / √(pq), clipped to [−1, 1]; 0 if pq = 0."""
    scale = _scale(p, q)
    least = min(p.min(initial=1.0), q.min(initial=1.0))
    divisor = scale if least > 0.0 else np.where(scale > 0.0, scale, 1.0)
    cosine = np.asarray(c / divisor)
    np.minimum(cosine, 1.0, out=cosine)
    np.maximum(cosine, -1.0, out=cosine)
    return scale, cosine if least > 0.0 else np.where(scale > 0.0, cosine, 0.0)


def _scale(p: FloatArray, q: FloatArray) -> FloatArray:
    """Return √(pq); exactly p if p = q, so that ρ = 1 if c = p = q."""
    for variances in (p, q):
        small = variances.min(initial=1.0)
        if not (small >= _LEAST and variances.max(initial=1.0) <= _LARGEST):
            return np.where(p == q, p, np.sqrt(p) * np.sqrt(q))
    # The root of a square is exact.
    return np.asarray(np.sqrt(p * q))


def _clipped(p: FloatArray, q: FloatArray, c: FloatArray) -> FloatArray:
    largest = _scale(p, q)
    return np.asarray(np.clip(c, -largest, largest))


def _sine(cosine: FloatArray) -> FloatArray:
    return np.asarray(np.sqrt((1.0 - cosine) * (1.0 + cosine)))


# --- powers of relu


def _ramp(power: int) -> ClosedForm:
    """Return the closed form of σ(x) = max(x, 0)^power; for power 0, the unit step."""
    half_moment = {0: 0.5, 1: 1.0 / math.sqrt(2.0 * math.pi), 2: 0.5, 3: math.sqrt(2.0 / math.pi)}

    def pair(p: FloatArray, q: FloatArray, c: FloatArray) -> tuple[FloatArray, FloatArray]:
        scale, cosine = scale_and_correlation(p, q, c)
        sine, rest = _sine(cosine), np.arccos(-cosine)
        value = scale**power * _arc_cosine(power, cosine, sine, rest)
        if power == 0:
            return value, np.zeros_like(value)
        slope = power**2 * scale ** (power - 1) * _arc_cosine(power - 1, cosine, sine, rest)
        return value, slope

    return ClosedForm(pair, lambda q: half_moment[power] * np.sqrt(q) ** power)


def _arc_cosine(power: int, cosine: FloatArray, sine: FloatArray, rest: FloatArray) -> FloatArray:
    """Return V of max(x, 0)^power for variances 1; `rest` is π − θ."""
    if power == 0:
        return rest / (2.0 * np.pi)
    if power == 1:
        shape = sine + rest * cosine
    elif power == 2:
        shape = 3.0 * sine * cosine + rest * (1.0 + 2.0 * cosine**2)
    else:
        shape = sine * (4.0 + 11.0 * cosine**2) + rest * cosine * (9.0 + 6.0 * cosine**2)
    # At ρ = −1 the terms cancel to 0, up to rounding of either sign.
    return np.asarray(np.maximum(shape, 0.0) / (2.0 * np.pi))


# --- homogeneous functions of degree 1


def signs(cosine: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return E|u||v|, E sign(u) sign(v) and E|u| 2δ(v) for variances 1 and given correlations."""
    arc, sine = (2.0 / np.pi) * np.arcsin(cosine), (2.0 / np.pi) * _sine(cosine)
    return sine + cosine * arc, arc, sine


def homogeneous(left: float, right: float) -> ClosedForm:
    """Return the closed form of the function with slope `left` below 0 and `right` above 0.

    With α = (right + left) / 2 and β = (right − left) / 2 it is αx + β|x|, so that V is
    α²c + β²E|u||v| and V′ is α² + β² (2/π) arcsin ρ.
    """
    odd, even = (0.5 * (right + left)) ** 2, (0.5 * (right - left)) ** 2
    centre = 0.5 * (right - left) * math.sqrt(2.0 / math.pi)

    def pair(p: FloatArray, q: FloatArray, c: FloatArray) -> tuple[FloatArray, FloatArray]:
        scale, cosine = scale_and_correlation(p, q, c)
        absolute, arc, _ = signs(cosine)
        return scale * (odd * cosine + even * absolute), odd + even * arc

    return ClosedForm(pair, lambda q: centre * np.sqrt(q))


# --- analytic functions


def _erf(p: FloatArray, q: FloatArray, c: FloatArray) -> tuple[FloatArray, FloatArray]:
    c = _clipped(p, q, c)
    # The determinant (1 + 2p)(1 + 2q) − 4c², at least 1.
    root = np.sqrt(1.0 + 2.0 * (p + q) + 4.0 * _determinant(p, q, c))
    # arcsin of a ratio loses half of the digits near 1; arctan2 keeps them.
    return (2.0 / np.pi) * np.arctan2(2.0 * c, root), (4.0 / np.pi) / root


def _determinant(p: FloatArray, q: FloatArray, c: FloatArray) -> FloatArray:
    """Return pq − c², at least 0."""
    root = _scale(p, q)
    return np.asarray(np.maximum((root - c) * (root + c), 0.0))


def _gelu(p: FloatArray, q: FloatArray, c: FloatArray) -> tuple[FloatArray, FloatArray]:
    c = _clipped(p, q, c)
    inner = _determinant(p, q, c)
    determinant = 1.0 + p + q + inner
    root = np.sqrt(determinant)
    both = 0.25 + np.arctan2(c, root) / (2.0 * np.pi)
    density = 1.0 / (2.0 * np.pi * root)
    shares = 1.0 / (1.0 + p) + 1.0 / (1.0 + q)
    value = c * both + density * (inner + c**2 * shares)
    return value, both + density * c * (shares + 1.0 / determinant)


def _waves(p: FloatArray, q: FloatArray, c: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return exp(−(p + q)/2) sinh c and exp(−(p + q)/2) cosh c."""
    c, half = _clipped(p, q, c), 0.5 * (p + q)
    rising, falling = 0.5 * np.exp(c - half), 0.5 * np.exp(-c - half)
    # The first form is accurate for small c, and the second one does not overflow.
    small = np.exp(-half) * np.sinh(np.clip(c, -1.0, 1.0))
    return np.where(np.abs(c) < 1.0, small, rising - falling), rising + falling


def _exp(p: FloatArray, q: FloatArray, c: FloatArray) -> tuple[FloatArray, FloatArray]:
    value = np.exp(0.5 * (p + q) + _clipped(p, q, c))
    return value, value


#: The closed forms by name.  "cos", "exp", "step" and names with "^" are no activations of `Chain`.
CLOSED_FORMS: dict[str, ClosedForm] = {
    "linear": homogeneous(1.0, 1.0),
    "relu": _ramp(1),
    "relu^2": _ramp(2),
    "relu^3": _ramp(3),
    "step": _ramp(0),
    "leaky_relu": homogeneous(0.01, 1.0),
    "abs": homogeneous(-1.0, 1.0),
    "erf": ClosedForm(_erf, lambda q: 0.0 * q),
    "gelu": ClosedForm(_gelu, lambda q: q / np.sqrt(2.0 * np.pi * (1.0 + q))),
    "sin": ClosedForm(_waves, lambda q: 0.0 * q),
    "cos": ClosedForm(lambda p, q, c: _waves(p, q, c)[::-1], lambda q: np.exp(-0.5 * q)),
    "exp": ClosedForm(_exp, lambda q: np.exp(0.5 * q)),
}
