"""The symmetric fixed point of the mean-field map, the spectrum of its Jacobian, its rates."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from bnmc.chain import Chain
from bnmc.errors import ArgumentError, PartialEstimateError
from bnmc.mean_field._quadrature import (
    FloatArray,
    Function,
    SphereRule,
    UnresolvedError,
    reach,
    resolve,
    sphere_rule,
)

__all__ = ["FixedPoint", "fixed_point"]

# Nodes a panel of the quadrature: the result, and the coarser one it is compared with.
_ORDER, _COARSE_ORDER = 32, 24
# An activation whose standard deviation on the sphere is this small beside its root mean square is
# constant to rounding: nothing is left of its Gram matrix but a matrix of rank one.
_CONSTANT = 1e-12


@dataclass(frozen=True)
class FixedPoint:
    """The permutation-symmetric fixed point ``G* = b ((1−c) I + c 11ᵀ)`` of the mean-field map.

    `MeanField.fixed_point` makes it and gives the formulas.

    Attributes
    ----------
    batch : int
        Batch size n ≥ 2.
    b : float
        Diagonal of ``G*``, > 0.
    c : float
        Correlation of two samples, the off-diagonal of ``G*`` divided by b, in [−1, 1).
    eigenvalues : tuple of float
        The distinct eigenvalues of the Jacobian of the map at ``G*``, without the eigenvalue 0 of
        the scale of G, which the normalization does not see. Empty for the centred norm and n = 2.
    multiplicities : tuple of int
        Their multiplicities.
    rate : float
        Largest modulus of the eigenvalues: the factor by which a small deviation from ``G*``
        shrinks, asymptotically, with each layer. 0 where there are no eigenvalues.
    backward_rate : float
        Factor by which the expected squared norm of a gradient grows with each layer on its way
        back; ``inf`` where the expectation diverges (small n, or an activation that jumps).
    cross_batch : float
        Entry of the block of the Gram matrix between two batches that have forgotten one another.
    cross_batch_rate : float
        Factor by which, with each layer, a small deviation of that block shrinks.
    error : float
        Estimated error of the worst of the numbers above, absolute for those below 1 and relative
        for larger ones: the difference to a coarser quadrature, and rounding. The true error is
        usually far smaller.
    """

    batch: int
    b: float
    c: float
    eigenvalues: tuple[float, ...]
    multiplicities: tuple[int, ...]
    rate: float
    backward_rate: float
    cross_batch: float
    cross_batch_rate: float
    error: float

    @property
    def stable(self) -> bool:
        """Whether ``rate < 1``: otherwise the chain does not settle at ``G*``."""
        return self.rate < 1.0

    @property
    def gram(self) -> FloatArray:
        """``G*`` as an array of shape (batch, batch), built anew each time it is asked for."""
        gram = np.full((self.batch, self.batch), self.b * self.c)
        np.fill_diagonal(gram, self.b)
        return gram


def fixed_point(chain: Chain, rtol: float) -> FixedPoint:
    """The fixed point of `MeanField.fixed_point`, for checked arguments."""
    _require_scale_free(chain)
    solve = _centred if chain.norm == "batch" else _odd
    n = chain.batch
    dimension, correlation = (n - 1, -1.0 / (n - 1)) if chain.norm == "batch" else (n, 0.0)
    activation = chain.activation
    try:
        breaks = resolve(activation, reach(dimension), activation.kinks)
    except UnresolvedError as error:
        raise _unfit(chain, "a function that quadrature resolves", str(error)) from None
    if solve is _odd and not _is_odd(activation, breaks):
        raise _unfit(
            chain,
            'an odd function under norm "batch-uncentred"',
            "other activations see the mean of a row, and G* is no multiple of the identity",
        )
    fine, coarse = (
        solve(chain, sphere_rule(activation, dimension, correlation, breaks, order))
        for order in (_ORDER, _COARSE_ORDER)
    )
    return _judged(fine, coarse, rtol)


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


def _unfit(chain: Chain, allowed: str, hint: str = "") -> ArgumentError:
    return ArgumentError("activation", chain.activation.name, allowed, hint)


def _is_odd(function: Function, breaks: FloatArray) -> bool:
    points = np.linspace(0.0, breaks[-1], 513)[1:]
    plus, minus = function(points), function(-points)
    return bool(np.all(np.abs(plus + minus) <= 4.0 * np.finfo(np.float64).eps * np.abs(plus)))


def _centred(chain: Chain, rule: SphereRule) -> FixedPoint:
    n = chain.batch
    x, mean = rule.x, rule.mean(rule.value)
    b = rule.mean(rule.value**2)
    # A constant added to σ changes neither μ nor the Jacobian; without its mean, no large numbers
    # cancel. y has mean ρx and variance (1−ρ²)(m−x²)/(m−1) given x, with ρ = −1/m and m = n − 1.
    value = rule.value - mean
    centre = -x / (n - 1)
    variance = (n - 1 - x * x) * n / (n - 1) ** 2 if n > 2 else np.zeros_like(x)
    given = rule.given - mean * np.stack([np.ones_like(x), centre, centre**2 + variance])
    covariance = rule.mean(value * given[0])
    mu = rule.mean(value**2) - covariance
    _require_spread(chain, mu, b)

    eigenvalues, multiplicities = [], []
    if n > 2:
        own = rule.mean(value**2 * (x * x - 1.0))
        cross = rule.mean(value * given[0] * (x * x - 1.0))
        eigenvalues.append(((1 - 2 / n) * own - 2 * (1 - 1 / n) * cross) * n / (2 * mu * (n - 2)))
        multiplicities.append(n - 1)
    if n > 3:
        product = rule.mean(value * x * given[1])
        squares = rule.mean(value * (x * x * given[0] + given[2]))
        square_of_sum = squares + 2.0 * product
        both_others = (square_of_sum + squares - n * covariance) / ((n - 2) * (n - 3))
        eigenvalues.append((product + square_of_sum / (n - 2) + both_others) * (n - 1) / (n * mu))
        multiplicities.append(n * (n - 3) // 2)

    first = rule.mean(value * x) * math.sqrt(2 * n) / (n - 1) * _gamma_ratio((n - 1) / 2)
    slopes = rule.mean(rule.slope**2) - rule.mean(rule.slope * rule.slope_given)
    return FixedPoint(
        batch=n,
        b=b,
        c=(covariance + mean**2) / b,
        eigenvalues=tuple(eigenvalues),
        multiplicities=tuple(multiplicities),
        rate=max(map(abs, eigenvalues), default=0.0),
        backward_rate=math.inf if n <= 3 or rule.jumps else slopes / (mu * (n - 3)),
        cross_batch=mean**2,
        cross_batch_rate=first**2 / mu,
        error=_rounding(mu, b),
    )


def _odd(chain: Chain, rule: SphereRule) -> FixedPoint:
    n = chain.batch
    x, value = rule.x, rule.value
    b = rule.mean(value**2)
    _require_spread(chain, b, b)
    eigenvalues = (
        rule.mean(value**2 * (x * x - 1.0)) * n / (2 * b * (n - 1)),
        rule.mean(value * x * rule.given[1]) / b,
    )
    first = rule.mean(value * x) * math.sqrt(2 / n) * _gamma_ratio(n / 2)
    return FixedPoint(
        batch=n,
        b=b,
        c=0.0,
        eigenvalues=eigenvalues,
        multiplicities=(n - 1, n * (n - 1) // 2),
        rate=max(map(abs, eigenvalues)),
        backward_rate=(
            math.inf if n <= 2 or rule.jumps else rule.mean(rule.slope**2) / (b * (n - 2))
        ),
        cross_batch=0.0,
        cross_batch_rate=first**2 / b,
        error=_rounding(b, b),
    )


def _require_spread(chain: Chain, mu: float, b: float) -> None:
    if not mu > _CONSTANT**2 * b:
        raise _unfit(
            chain,
            f"a function that is not constant on the sphere of a batch of {chain.batch}",
            "G* has rank one and the Jacobian does not exist",
        )


def _gamma_ratio(x: float) -> float:
    """``Γ(x+½)/Γ(x)``; by Stirling's series where the Gamma function would overflow."""
    if x < 150:
        return math.gamma(x + 0.5) / math.gamma(x)
    y = 1.0 / x
    terms = (1.0, -1 / 8, 1 / 128, 5 / 1024, -21 / 32768, -399 / 262144)
    return math.sqrt(x) * sum(term * y**power for power, term in enumerate(terms))


def _rounding(mu: float, b: float) -> float:
    # Values of σ are of size √b and rounded; the Jacobian sees their fluctuations, of size √μ.
    return 8.0 * float(np.finfo(np.float64).eps) * math.sqrt(b / mu)


def _judged(fine: FixedPoint, coarse: FixedPoint, rtol: float) -> FixedPoint:
    """The finer result with an estimate of its error, or the error that says it is too large."""

    def difference(a: float, b: float) -> float:
        return 0.0 if a == b else abs(a - b) / max(1.0, abs(a))

    names = ("b", "c", "rate", "backward_rate", "cross_batch", "cross_batch_rate")
    errors = {name: difference(getattr(fine, name), getattr(coarse, name)) for name in names}
    pairs = zip(fine.eigenvalues, coarse.eigenvalues, strict=True)
    errors |= {f"eigenvalues[{i}]": difference(*pair) for i, pair in enumerate(pairs)}
    worst = max(errors, key=errors.__getitem__)
    star = replace(fine, error=fine.error + errors[worst])
    if not star.error <= rtol:
        raise PartialEstimateError(
            f"fixed point known to {star.error:.1e} only, rtol is {rtol:.1e} (worst is {worst})",
            star,
        )
    return star
