"""Expectations over one and two coordinates of a uniform point on a sphere, to about 1e-13.

Batch normalization maps a Gaussian row to a point φ of a sphere, so the mean field needs E f(x)
and E f(x) g(y) for two coordinates x and y of a uniform point on the sphere of radius √m in m
dimensions.  The coordinates may belong to axes that are not orthogonal: E xy = ρ.  Write
x = √m sin a.  Given a,

    y = √m (ρ sin a + √(1−ρ²) cos a sin β),

where the densities of the angles a and β on [−π/2, π/2] are proportional to cos(a)^(m−2) and
cos(β)^(m−3).  Both densities are smooth for every m, so only the function may have kinks:
`sphere_rule` puts Gauss-Legendre nodes on the panels of x that `resolve` returns, and on the panels
of y given x.  For m → ∞ with ρ → 0, x and y are independent standard normal.

`moments` computes the expectations that the fixed points share.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bnmc.mean_field.float64 import FloatArray
from bnmc.mean_field.quadrature import panels
from bnmc.mean_field.quadrature.resolution import WIDEST_PANEL, Function, evaluate, merged, slope

# Coordinates are cut off where their density, relative to its maximum, is 10 to this power.  The
# error is then below rounding for functions that grow like exp(|x|), and even like exp(x²/8).
_CUT_WEIGHT = -40.0

# From _SMOOTH_DIMENSION dimensions on, expectations given x are so smooth in x that polynomials on
# _SMOOTH_SCALE/m panels represent them.
_SMOOTH_DIMENSION, _SMOOTH_SCALE = 64, 256

# Breaks closer than this fraction of the radius are one where they meet the edge of the sphere.
_SHRUNK = 1e-5

# Entries of an array of which several fit in the second-level cache of a core.
_CACHED = 1 << 13

#: Maps nodes y and their weights given each x, shape (angles, nodes), and the derivatives of y by
#: the variable of the panels, shape (angles, panels, order) (None if y has no panels), to
#: expectations, shape (rows, angles).
Expectations = Callable[[FloatArray, FloatArray, FloatArray | None], FloatArray]


@dataclass(frozen=True)
class SphereRule:
    """A quadrature rule for x, with the values of a function f and its expectations given x.

    Attributes
    ----------
    x, weight : ndarray of shape (nodes,)
        Nodes and weights of the law of x; the weights sum to 1.
    value : ndarray of shape (nodes,)
        f(x).
    given : ndarray of shape (3, nodes)
        E[y^p f(y) | x] for p = 0, 1, 2.
    slope : ndarray of shape (nodes,)
        The derivative f′(x).
    slope_given : ndarray of shape (2, nodes)
        E[y^p f′(y) | x] for p = 0, 1.  On the sphere of two points (m = 1) `slope` and
        `slope_given` are zero, as values at two points do not determine a derivative.
    """

    x: FloatArray
    weight: FloatArray
    value: FloatArray
    given: FloatArray
    slope: FloatArray
    slope_given: FloatArray

    def mean(self, values: FloatArray) -> float:
        """Return the expectation of a function of x from its values at the nodes."""
        return float(self.weight @ values)


def reach(dimension: float) -> float:
    """Return where the law of a coordinate is cut off.

    That is the largest x with (1 − x²/m)^((m−2)/2) ≥ 1e-40, for the sphere of radius √m in m
    dimensions.  For small m it is √m to rounding; for large or infinite m it is about 13.6.

    Parameters
    ----------
    dimension : float
        m ≥ 1, an integer or ``inf``.
    """
    if dimension <= 2:
        return float(np.sqrt(dimension))
    if dimension == np.inf:
        return float(np.sqrt(-2.0 * _CUT_WEIGHT * np.log(10.0)))
    exponent = 2.0 * _CUT_WEIGHT * np.log(10.0) / (dimension - 2)
    return float(np.sqrt(-dimension * np.expm1(exponent)))


def sphere_rule(
    function: Function, dimension: float, correlation: float, breaks: FloatArray, order: int
) -> SphereRule:
    """Return the rule for two coordinates of a uniform point on the sphere of radius √m.

    Parameters
    ----------
    function : callable
        Maps a float64 array elementwise.
    dimension : float
        m ≥ 1, the dimension of the space that contains the sphere, an integer or ``inf``.
    correlation : float
        ρ = E xy, the cosine of the angle between the two axes, in (−1, 1).  If m = 1, it must
        be −1; if m is infinite, 0.
    breaks : ndarray of float64
        Panels of the function on [−r, r], from `resolve`, with r from `reach`.
    order : int
        Nodes per panel.

    Returns
    -------
    SphereRule
    """
    if dimension == np.inf:
        return _normal_rule(function, breaks, order)
    x, weight, given = coordinate_pairs(dimension, correlation, breaks, order)
    differentiate = panels.gauss_legendre(order).differentiate

    def expectations(y: FloatArray, share: FloatArray, speed: FloatArray | None) -> FloatArray:
        value = evaluate(function, y)
        if speed is None:
            slopes = slope(function, y, breaks, order)
        else:
            slopes = (value.reshape(speed.shape) @ differentiate.T / speed).reshape(y.shape)
        product = share * value
        slopes *= share
        sums = (product, product * y, product * y * y, slopes, slopes * y)
        return np.stack([term.sum(axis=1) for term in sums])

    means, slopes = given(expectations), slope(function, x, breaks, order)
    if dimension == 1:  # values at two points do not determine a derivative
        slopes, means[3:] = np.zeros(2), 0.0
    return SphereRule(x, weight, evaluate(function, x), means[:3], slopes, means[3:])


def coordinate_pairs(
    dimension: float, correlation: float, breaks: FloatArray, order: int
) -> tuple[FloatArray, FloatArray, Callable[[Expectations], FloatArray]]:
    """Return nodes and weights of x, and a function that evaluates expectations over y given x.

    The parameters are those of `sphere_rule`.
    """
    if dimension == 1:
        x = np.array([-1.0, 1.0])
        y = correlation * x[:, None]
        return x, np.array([0.5, 0.5]), lambda of: of(y, np.ones_like(y), None)
    tilt = np.arcsin(correlation)
    edges = _edges_of_first_angle(dimension, tilt, breaks)
    # Where a kink of y enters or leaves the sphere, expectations given x have a square root at the
    # end of a panel of x.
    angle, weight = panels.coordinate_rule(edges, dimension, order, roots=True)

    def given(of: Expectations) -> FloatArray:
        def at(some: FloatArray) -> FloatArray:
            return of(*_second_coordinate(some, dimension, tilt, breaks, order))

        if dimension < _SMOOTH_DIMENSION:
            # Parts are so small that their arrays stay in the cache.
            size = max(1, _CACHED // (order * breaks.size))
            parts = [at(angle[i : i + size]) for i in range(0, angle.size, size)]
            return np.concatenate(parts, axis=1)
        # Given x, y depends on x only weakly, and smoothly even if f has corners: evaluate at the
        # nodes of a few panels of the angle, and interpolate.
        last = np.arcsin(breaks[-1] / np.sqrt(dimension))
        ends = np.linspace(-last, last, int(np.ceil(_SMOOTH_SCALE / dimension)) + 1)
        few = panels.panel_points(ends, panels.gauss_legendre(order).nodes)[0]
        return panels.Table.through(ends, np.stack([at(row).T for row in few]))(angle)

    return np.sqrt(dimension) * np.sin(angle), weight, given


def _normal_rule(function: Function, breaks: FloatArray, order: int) -> SphereRule:
    """Return `sphere_rule` for m = ∞ and ρ = 0: x and y are independent standard normal."""
    x, weight = panels.coordinate_rule(panels.subdivided(breaks, WIDEST_PANEL), np.inf, order)
    value, slopes = evaluate(function, x), slope(function, x, breaks, order)
    means = [weight @ (value * x**p) for p in range(3)] + [weight @ (slopes * x**p) for p in (0, 1)]
    given = np.repeat(np.array(means)[:, None], x.size, axis=1)
    return SphereRule(x, weight, value, given[:3], slopes, given[3:])


def _edges_of_first_angle(dimension: float, tilt: float, breaks: FloatArray) -> FloatArray:
    """Return the angles a at which x crosses a break, or a break of y meets the sphere's edge.

    Given a, y runs from −√m cos(a + tilt) to √m cos(a − tilt), with tilt = arcsin ρ.
    """
    sine = np.clip(breaks / np.sqrt(dimension), -1.0, 1.0)
    crossed = np.arcsin(sine)
    # From four dimensions on, the density of y vanishes at its edge, where panels that shrink
    # towards a point then are as good as one.
    inner = sine[1:-1]
    apart = np.diff(inner, prepend=-2.0) > (_SHRUNK if dimension >= 4 else 0.0)
    upper = np.arccos(inner[apart])
    lower = np.pi - upper
    other = np.concatenate([tilt + upper, tilt - upper, -tilt + lower, -tilt - lower])
    inside = (other > crossed[0]) & (other < crossed[-1])
    return merged(np.concatenate([crossed, other[inside]]))


def _second_coordinate(
    angle: FloatArray, dimension: float, tilt: float, breaks: FloatArray, order: int
) -> tuple[FloatArray, FloatArray, FloatArray | None]:
    """Return the arguments of `Expectations`, given the angle a of x."""
    nodes, weights, _, _ = panels.gauss_legendre(order)
    radius = np.sqrt(dimension)
    centre = radius * np.sin(tilt) * np.sin(angle)[:, None]
    spread = radius * np.cos(tilt) * np.cos(angle)[:, None]
    if dimension == 2:
        y = centre + spread * np.array([-1.0, 1.0])
        return y, np.full_like(y, 0.5), None
    edges = np.arcsin(np.clip((breaks - centre) / spread, -1.0, 1.0))
    half = 0.5 * np.diff(edges)[..., None]
    beta = 0.5 * (edges[:, 1:] + edges[:, :-1])[..., None] + half * nodes
    y = centre[..., None] + spread[..., None] * np.sin(beta)
    weight = half * weights * panels.power_of_cosine(beta, dimension - 3)
    weight = weight.reshape(angle.size, -1)
    # Panels beyond the sphere's edge have length and weight 0, so their slope does not count;
    # half = 1 avoids a division by 0.
    speed = np.where(half > 0.0, half, 1.0) * spread[..., None] * np.cos(beta)
    return y.reshape(weight.shape), weight / weight.sum(axis=1, keepdims=True), speed


# --- moments that the fixed points share


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
    squares : tuple of float
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
    squares: tuple[float, float]
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
        first, second = (share * a - 2.0 * b for a, b in zip(self.squares, self.cross, strict=True))
        return first, second


def moments(rule: SphereRule, batch: float) -> Moments:
    """Return the moments of a function from its quadrature rule.

    Parameters
    ----------
    rule : SphereRule
        The rule for dimension n − 1 and correlation −1/(n−1).
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
        squares=(rule.mean(value**2 * x), rule.mean(value**2 * square)),
        cross=(rule.mean(value * given[0] * x), rule.mean(value * given[0] * square)),
        mixed=mixed,
        inverse_batch=e,
    )
