"""Moments of an activation on the centred sphere, for a batch of any size or infinite."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bnmc.mean_field.quadrature.sphere import SphereRule

__all__ = ["Moments", "moments"]


@dataclass(frozen=True)
class Moments:
    """Expectations for x uniform on the centred sphere: |x| = √n, x orthogonal to (1, …, 1).

    n is the batch size, x_i the coordinate of sample i, σ the activation, σ_i = σ(x_i) and
    σ̃_i = σ_i − E σ_1.  For n = ∞ the coordinates are independent and standard normal.

    Attributes
    ----------
    mean, first, second : float
        E σ₁, E σ₁x₁ and E σ₁(x₁²−1).
    variance, covariance : float
        E σ̃₁² and E σ̃₁σ̃₂.
    own : tuple of float
        E σ̃₁²x₁ and E σ̃₁²(x₁²−1).
    cross : tuple of float
        E σ̃₁σ̃₂x₁ and E σ̃₁σ̃₂(x₁²−1).
    mixed : float
        E σ̃₁σ̃₂(x₁−x₃)(x₂−x₄); 0 for n ≤ 3.
    inverse_batch : float
        1/n.
    """

    mean: float
    first: float
    second: float
    variance: float
    covariance: float
    own: tuple[float, float]
    cross: tuple[float, float]
    mixed: float
    inverse_batch: float

    @property
    def spread(self) -> float:
        """E|Pσ|²/(n−1), with P the projector orthogonal to (1, …, 1), σ = (σ₁, …, σ_n)."""
        return self.variance - self.covariance

    @property
    def diagonal(self) -> tuple[float, float]:
        """E (Pσ)₁² x₁ and E (Pσ)₁² (x₁²−1), each times n/(n−1)."""
        share = (1.0 - 2.0 * self.inverse_batch) / (1.0 - self.inverse_batch)
        first, second = (share * a - 2.0 * b for a, b in zip(self.own, self.cross, strict=True))
        return first, second


def moments(rule: SphereRule, batch: float) -> Moments:
    """Return the moments of a function from its quadrature rule.

    Parameters
    ----------
    rule : SphereRule
        The rule for dimension n − 1 and correlation −1/(n−1), or `normal_rule` for n = ∞.
    batch : float
        n ≥ 2, an integer or ``inf``.
    """
    e = 1.0 / batch
    x, mean = rule.x, rule.mean(rule.value)
    # Only `mean`, `first` and `second` depend on the mean of σ.  The others are computed without
    # it, so that a large mean does not cancel.  Given x = x₁, the coordinate y = x₂ has mean ρx and
    # variance (1−ρ²)(m−x²)/(m−1), with ρ = −1/m and m = n − 1.
    value = rule.value - mean
    centre = -x * (e / (1.0 - e))
    variance = (1.0 - e - e * x * x) / (1.0 - e) ** 2 if batch > 2 else np.zeros_like(x)
    given = rule.given - mean * np.stack([np.ones_like(x), centre, centre**2 + variance])
    square = x * x - 1.0
    covariance = rule.mean(value * given[0])
    mixed = 0.0
    if batch > 3:
        # Given x₁ and x₂, the other coordinates are uniform on a smaller sphere.
        product = rule.mean(value * x * given[1])
        squares = rule.mean(value * (x * x * given[0] + given[2]))
        square_of_sum = squares + 2.0 * product
        both_others = e * (e * (square_of_sum + squares) - covariance) / (1.0 - 3.0 * e)
        mixed = product + (e * square_of_sum + both_others) / (1.0 - 2.0 * e)
    return Moments(
        mean=mean,
        first=rule.mean(value * x),
        second=rule.mean(value * square),
        variance=rule.mean(value**2),
        covariance=covariance,
        own=(rule.mean(value**2 * x), rule.mean(value**2 * square)),
        cross=(rule.mean(value * given[0] * x), rule.mean(value * given[0] * square)),
        mixed=mixed,
        inverse_batch=e,
    )
