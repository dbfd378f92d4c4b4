"""The symmetric fixed point of the mean-field map, the spectrum of its Jacobian, its rates."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from typing import TypeVar

import numpy as np

from bnmc.chain.activations import Activation
from bnmc.chain.chain import Chain
from bnmc.errors import ArgumentError, PartialEstimateError
from bnmc.mean_field.fixed_point.results import FixedPoint, Star
from bnmc.mean_field.fixed_point.uncentred import uncentred
from bnmc.mean_field.quadrature.moments import moments
from bnmc.mean_field.quadrature.sphere import (
    FloatArray,
    Function,
    SphereRule,
    UnresolvedError,
    jumps,
    normal_rule,
    reach,
    resolve,
    sphere_rule,
)

__all__ = ["fixed_point", "judged", "settled"]

Kind = TypeVar("Kind", bound=Star)

# Nodes a panel of the quadrature: the result, and the coarser one it is compared with.
_ORDER, _COARSE_ORDER = 32, 24

# An activation whose standard deviation on the sphere is this small beside its root mean square is
# constant to rounding: nothing is left of its Gram matrix but a matrix of rank one.
_CONSTANT = 1e-12


def fixed_point(chain: Chain, rtol: float) -> FixedPoint:
    """The fixed point of `MeanField.fixed_point`, for checked arguments."""
    _require_scale_free(chain)
    n = chain.batch
    star, worst = settled(chain.activation, n, chain.norm)
    kinds = len(star.eigenvalues)
    if chain.norm == "batch":
        multiplicities: tuple[int, ...] = (n - 1, n * (n - 3) // 2)
    elif kinds == 2:
        multiplicities = (n - 1, n * (n - 1) // 2)
    else:
        multiplicities = (1, n - 1, n - 1, n * (n - 3) // 2)
    point = FixedPoint(**asdict(star), batch=n, multiplicities=multiplicities[:kinds])
    return judged(point, worst, rtol)


def settled(activation: Activation, batch: float, norm: str) -> tuple[Star, str]:
    """The fixed point for a batch of any size ≥ 2 or ``inf``, and which number is known worst.

    Raises
    ------
    ArgumentError
        The activation has no such fixed point, or cannot be resolved.
    """
    try:
        fine, coarse = _solutions(activation, batch, norm)
    except UnresolvedError as error:
        allowed = "a function that quadrature resolves"
        raise ArgumentError("activation", activation.name, allowed, str(error)) from None
    names = ("b", "c", "rate", "backward_rate", "cross_batch", "cross_batch_rate")
    errors = {name: _difference(getattr(fine, name), getattr(coarse, name)) for name in names}
    pairs = zip(fine.eigenvalues, coarse.eigenvalues, strict=True)
    errors |= {f"eigenvalues[{i}]": _difference(*pair) for i, pair in enumerate(pairs)}
    worst = max(errors, key=errors.__getitem__)
    return replace(fine, error=fine.error + errors[worst]), worst


def judged(star: Kind, worst: str, rtol: float) -> Kind:
    """The fixed point, or the error that says it is known too badly."""
    if not star.error <= rtol:
        raise PartialEstimateError(
            f"fixed point known to {star.error:.1e} only, rtol is {rtol:.1e} (worst is {worst})",
            star,
        )
    return star


def _require_scale_free(chain: Chain) -> None:
    if chain.norm == "none":
        raise ArgumentError(
            "norm",
            chain.norm,
            '"batch" or "batch-uncentred"',
            "without normalization every G is a fixed point of the linear chain of gain 1, and the "
            "fixed points of other chains depend on gain",
        )
    if chain.skip != 0:
        raise ArgumentError("skip", chain.skip, "0", "the fixed point is that of a chain of layers")
    if chain.eps != 0:
        raise ArgumentError("eps", chain.eps, "0", "the fixed point is that of scale-free layers")

    if chain.batch < 2:
        raise ArgumentError("batch", chain.batch, "an integer >= 2", "one sample has no Jacobian")


def _difference(fine: complex, coarse: complex) -> float:
    return 0.0 if fine == coarse else abs(fine - coarse) / max(1.0, abs(fine))


def _solutions(activation: Activation, batch: float, norm: str) -> tuple[Star, Star]:
    """The fixed point, and again from a coarser quadrature; their `error` is that of rounding."""
    centres = norm == "batch"
    dimension, correlation = (batch - 1, -1.0 / (batch - 1)) if centres else (batch, 0.0)
    breaks = resolve(activation, reach(dimension), activation.kinks)
    if not centres and not _is_odd(activation, breaks):
        return uncentred(activation, batch)
    solve = _centred if centres else _odd
    explodes = batch <= (3 if centres else 2) or jumps(activation, breaks, 0).size > 0
    rules = [
        normal_rule(activation, breaks, order)
        if batch == math.inf
        else sphere_rule(activation, int(dimension), correlation, breaks, order)
        for order in (_ORDER, _COARSE_ORDER)
    ]
    fine, coarse = (solve(activation, batch, rule, explodes) for rule in rules)
    return fine, coarse


def _is_odd(function: Function, breaks: FloatArray) -> bool:
    points = np.linspace(0.0, breaks[-1], 513)[1:]
    plus, minus = function(points), function(-points)
    return bool(np.all(np.abs(plus + minus) <= 4.0 * np.finfo(np.float64).eps * np.abs(plus)))


def _centred(activation: Activation, batch: float, rule: SphereRule, explodes: bool) -> Star:
    e, x = 1.0 / batch, rule.x
    m = moments(rule, batch)
    b, mu = rule.mean(rule.value**2), m.spread
    _require_spread(activation, batch, mu, b)
    eigenvalues = []
    if batch > 2:
        eigenvalues.append((1.0 - e) * m.diagonal[1] / (2.0 * (1.0 - 2.0 * e) * mu))
    if batch > 3:
        eigenvalues.append((1.0 - e) * m.mixed / mu)
    # Gradients on the sphere of radius √n: n ∇x·∇x = n − 1 − x² and n ∇x·∇y = −1 − xy.
    own = rule.mean(rule.slope**2 * (1.0 - e - e * x * x))
    pair = rule.mean(rule.slope * (rule.slope_given[0] + x * rule.slope_given[1]))
    return Star(
        b=b,
        c=(m.covariance + m.mean**2) / b,
        eigenvalues=tuple(eigenvalues),
        rate=max(map(abs, eigenvalues), default=0.0),
        backward_rate=math.inf if explodes else (own + e * pair) / (mu * (1.0 - 3.0 * e)),
        cross_batch=m.mean**2,
        cross_batch_rate=(m.first * _mean_length(batch - 1)) ** 2 / ((1.0 - e) * mu),
        error=_rounding(mu, b),
    )


def _odd(activation: Activation, batch: float, rule: SphereRule, explodes: bool) -> Star:
    e, x, value = 1.0 / batch, rule.x, rule.value
    b = rule.mean(value**2)
    _require_spread(activation, batch, b, b)
    eigenvalues = (
        rule.mean(value**2 * (x * x - 1.0)) / (2.0 * b * (1.0 - e)),
        rule.mean(value * x * rule.given[1]) / b,
    )
    slopes = rule.mean(rule.slope**2 * (1.0 - e * x * x))
    return Star(
        b=b,
        c=0.0,
        eigenvalues=eigenvalues,
        rate=max(map(abs, eigenvalues)),
        backward_rate=math.inf if explodes else slopes / (b * (1.0 - 2.0 * e)),
        cross_batch=0.0,
        cross_batch_rate=(rule.mean(value * x) * _mean_length(batch)) ** 2 / b,
        error=_rounding(b, b),
    )


def _require_spread(activation: Activation, batch: float, mu: float, b: float) -> None:
    if not mu > _CONSTANT**2 * b:
        raise ArgumentError(
            "activation",
            activation.name,
            f"a function that is not constant on the sphere of a batch of {batch}",
            "G* has rank one and the Jacobian does not exist",
        )


def _mean_length(dimension: float) -> float:
    """Mean length of a standard normal vector over √dimension: ``√(2/m) Γ((m+1)/2)/Γ(m/2)``."""
    if dimension < 300:
        return (
            math.sqrt(2 / dimension) * math.gamma((dimension + 1) / 2) / math.gamma(dimension / 2)
        )
    # Stirling's series, where the Gamma function would overflow.
    y = 2.0 / dimension
    terms = (1.0, -1 / 8, 1 / 128, 5 / 1024, -21 / 32768, -399 / 262144)
    return sum(term * y**power for power, term in enumerate(terms))


def _rounding(mu: float, b: float) -> float:
    # Values of σ are of size √b and rounded; the Jacobian sees their fluctuations, of size √μ.
    return 8.0 * float(np.finfo(np.float64).eps) * math.sqrt(b / mu)
