"""Joint moments of an activation at up to four coordinates of the centred sphere.

Let x be uniform on the centred sphere: |x| = √n, x orthogonal to (1, …, 1), with n the batch size.
Given the first coordinates x_1, …, x_k, with sum s and sum of squares q, the other N = n − k
coordinates are uniform on a centred sphere around −s/N whose squared radius is n − q − s²/N.  The
next coordinate is

    −s/N + √((N−1)/N (n − q − s²/N)) sin β,

where the angle β on [−π/2, π/2] has a density proportional to cos(β)^(N−3).  So an expectation over
four coordinates is a nested integral over four angles, three angles for n = 5, and two for n = 4.
`bnmc.mean_field.quadrature.sphere` has expectations over one and two coordinates, to rounding.  For
large batches, `bnmc.mean_field.finite_width.transforms` replaces the nested integral.

Under a norm that does not centre, if the activation is not odd, the normalized row of w ~ N(0, G*)
is (see `bnmc.mean_field.fixed_point.uncentred`)

    φ_i = sin ψ + cos ψ x_i,    tan ψ = √(g₀/g₁) tan ψ′,

with x uniform on the centred sphere and independent of ψ.  Given ψ, the joint moments are those of
the function σ(sin ψ + cos ψ x) on the centred sphere, so one more angle is integrated outside of
the nested rules.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy.special import roots_gegenbauer

from bnmc.chain.activations import Activation
from bnmc.mean_field.finite_width import transforms
from bnmc.mean_field.finite_width.sectors import EntryCovariance, noises
from bnmc.mean_field.fixed_point import expectations
from bnmc.mean_field.fixed_point.results import SymmetricFixedPoint
from bnmc.mean_field.float64 import FloatArray
from bnmc.mean_field.quadrature.deviation import range_of
from bnmc.mean_field.quadrature.panels import coordinate_rule
from bnmc.mean_field.quadrature.profile import Profile, profile
from bnmc.mean_field.quadrature.resolution import Function, evaluate
from bnmc.mean_field.quadrature.sphere import coordinate_pairs, reach, sphere_rule

# Nodes per panel of the accurate rules for one and two coordinates.
_PAIR_ORDER, _COARSE_PAIR_ORDER = 32, 20

# Nodes per angle of the nested rules, if σ is smooth, and per panel of an angle, if σ has kinks.
# The rules are tried in turn until two agree.
_SMOOTH_ORDERS = (14, 20, 28, 40, 56, 80, 112)
_PANEL_ORDERS = (6, 9, 13, 18, 25, 33, 50)

# Two rules agree if their moments differ by at most _AGREED times the square of the variance of σ,
# or less for batches of more than _LARGE samples, in which eigenvalues near 1 amplify errors.
_AGREED, _LARGE = 1e-6, 10

# Evaluations of the activation by one rule, at most, and by the second one, which an error needs.
_MOST_EVALUATIONS, _MOST_NEEDED = 2e7, 2e8

# Evaluations of the activation in one array.
_CHUNK = 1 << 18

# Angles are cut off where the density of a coordinate, relative to its maximum, is 1e-20.
_CUT = 20.0 * math.log(10.0)

# If at most _FEW_LEFT coordinates are left, panels also end where a kink of the next coordinate
# meets the edge of its range.  With more coordinates, the singularities there are weak.  In batches
# of at most _FEW_IN_ALL, panels also end where a narrow feature does so.
_FEW_LEFT, _FEW_IN_ALL = 5, 4


class _JointMoments(NamedTuple):
    """Expectations of products of σ_i = σ(x_i), by the powers of distinct σ_i.

    For example, ``m211`` is E σ₁²σ₂σ₃.  For a batch of fewer than three samples ``m211`` is 0, for
    one of fewer than four ``m1111``.

    Attributes
    ----------
    m2, m11 : float
        Second moments.
    m4, m22, m31, m211, m1111 : float
        Fourth moments.
    """

    m2: float
    m4: float
    m22: float
    m11: float = 0.0
    m31: float = 0.0
    m211: float = 0.0
    m1111: float = 0.0

    @property
    def covariance(self) -> EntryCovariance:
        """The covariances of the entries of σσᵀ."""
        fourths = self.m4, self.m22, self.m31, self.m211, self.m22, self.m211, self.m1111
        return EntryCovariance.about(self.m2, self.m11, *fourths)


def joint_moments(activation: Activation, batch: int) -> tuple[_JointMoments, _JointMoments]:
    """Return the joint moments of an activation on the centred sphere, by a fine and a coarse rule.

    Parameters
    ----------
    activation : Activation
        The activation σ.
    batch : int
        n ≥ 2.

    Raises
    ------
    UnresolvedError
        If the activation cannot be resolved.
    TooCostlyError
        If no two rules that resolve it are affordable.
    """
    _, sigma = squared(activation, batch - 1)
    mean, products, centred = _pairs(activation, batch, sigma.breaks, _PAIR_ORDER)
    nested, coarse_nested = _agreeing(centred, batch, sigma, products[0])
    fine = _raw_moments(mean, products, nested, batch)
    mean, products, _ = _pairs(activation, batch, sigma.breaks, _COARSE_PAIR_ORDER)
    return fine, _raw_moments(mean, products, coarse_nested, batch)


def squared(activation: Activation, dimension: int) -> tuple[Function, Profile]:
    """Return σ², and the profile of σ on the range of E σ⁴ for a coordinate of a sphere."""

    def square(x: FloatArray) -> FloatArray:
        return evaluate(activation, x) ** 2

    edge = max(reach(dimension), range_of(square, dimension).limit)
    return square, profile(activation, edge)


def _pairs(
    function: Function, batch: int, panels: FloatArray, order: int
) -> tuple[float, FloatArray, Function]:
    """Return E σ, the products that `_raw_moments` needs, and σ̃ = σ − E σ."""
    m = batch - 1
    x, weight, given = coordinate_pairs(m, -1.0 / m, panels, order)
    raw = evaluate(function, x)
    mean = float(weight @ raw)

    def centred(x: FloatArray) -> FloatArray:
        return evaluate(function, x) - mean

    def powers(y: FloatArray, share: FloatArray, speed: FloatArray | None) -> FloatArray:
        value = centred(y)
        product = share * value
        return np.stack([product.sum(axis=1), (product * value).sum(axis=1)])

    value, (other, square) = raw - mean, given(powers)
    products = [value**2, value * other, value**3, value**4, value**2 * other, value**3 * other]
    return mean, np.array([*products, value**2 * square]) @ weight, centred


def odd_moments(activation: Activation, batch: int) -> tuple[_JointMoments, _JointMoments]:
    """Return the joint moments of an odd activation on the sphere of radius √n in n dimensions.

    A reflection of one coordinate changes the sign of every moment with an odd power, so only
    moments of one and two coordinates are not 0. The two results are by a fine and a coarse rule.

    Parameters and errors are those of `joint_moments`.
    """
    square, sigma = squared(activation, batch)
    orders = _PAIR_ORDER, _COARSE_PAIR_ORDER
    rules = [sphere_rule(square, batch, 0.0, sigma.breaks, order) for order in orders]
    fine, coarse = (
        _JointMoments(*map(rule.mean, (rule.value, rule.value**2, rule.value * rule.given[0])))
        for rule in rules
    )
    return fine, coarse


def _raw_moments(
    mean: float, products: FloatArray, nested: FloatArray, batch: int
) -> _JointMoments:
    """Return the moments of σ from its mean and those of σ̃ = σ − E σ.

    Parameters
    ----------
    mean : float
        E σ.
    products : ndarray of shape (7,)
        E σ̃₁², E σ̃₁σ̃₂, E σ̃₁³, E σ̃₁⁴, E σ̃₁²σ̃₂, E σ̃₁³σ̃₂ and E σ̃₁²σ̃₂².
    nested : ndarray of shape (3,)
        E σ̃₁σ̃₂σ̃₃, E σ̃₁²σ̃₂σ̃₃ and E σ̃₁σ̃₂σ̃₃σ̃₄.
    batch : int
        n ≥ 2.
    """
    mu = mean
    t2, t11, t3, t4, t21, t31, t22 = products.tolist()
    t111, t211, t1111 = nested.tolist()
    m211 = t211 + 2.0 * mu * (t21 + t111) + mu**2 * (t2 + 5.0 * t11) + mu**4
    m1111 = t1111 + 4.0 * mu * t111 + 6.0 * mu**2 * t11 + mu**4
    return _JointMoments(
        m2=t2 + mu**2,
        m11=t11 + mu**2,
        m4=t4 + 4.0 * mu * t3 + 6.0 * mu**2 * t2 + mu**4,
        m31=t31 + mu * (3.0 * t21 + t3) + 3.0 * mu**2 * (t11 + t2) + mu**4,
        m22=t22 + 4.0 * mu * t21 + 2.0 * mu**2 * t2 + 4.0 * mu**2 * t11 + mu**4,
        m211=m211 if batch > 2 else 0.0,
        m1111=m1111 if batch > 3 else 0.0,
    )


class TooCostlyError(ArithmeticError):
    """Narrow features of σ need more nodes than are affordable."""


class Cuts(NamedTuple):
    """Where panels of an angle end.

    Attributes
    ----------
    batch : int
        n.
    kinks : ndarray of float64
        The kinks of σ.
    narrow : ndarray of float64
        Further ends of panels, for narrow features of σ.
    """

    batch: int
    kinks: FloatArray
    narrow: FloatArray = np.empty(0)

    def panels(self, left: int) -> int:
        """Return the number of panels of the next of N = `left` coordinates."""
        ends, met = self.of_next(left)
        return 1 + ends.size + 4 * met.size

    def of_next(self, left: int) -> tuple[FloatArray, FloatArray]:
        """Return the ends for that coordinate, and those that matter for the one after it."""
        ends = np.concatenate([self.kinks, self.narrow])
        if not self.batch - 3 < left <= _FEW_LEFT:  # weak, or no coordinate follows
            return ends, np.empty(0)
        return ends, ends if self.batch <= _FEW_IN_ALL else self.kinks

    def size(self, order: int) -> float:
        """Return the number of evaluations of the activation by a nested rule."""
        count = 1.0
        for left in range(self.batch, max(self.batch - 4, 0), -1):
            count *= order * self.panels(left) if left > 2 else left
        return count


def _rules(
    sigma: Profile, batch: int, smooth: tuple[int, ...], per_panel: tuple[int, ...], most: float
) -> tuple[Cuts, tuple[int, ...]]:
    """Return the ends of panels of the nested rules, and the nodes per panel of each rule.

    No rule has a panel of σ between its nodes; see `Profile.wider`.

    Parameters
    ----------
    sigma : Profile
        The activation σ.
    batch : int
        n.
    smooth, per_panel : tuple of int
        Nodes per angle if σ is smooth, and per panel if σ has kinks or narrow features.
    most : float
        Evaluations by the second rule, at most.

    Raises
    ------
    TooCostlyError
        If σ has so many narrow features that two rules are not affordable.
    """
    plain = Cuts(batch, sigma.kinks)
    if batch >= transforms.LEAST_BATCH:
        return plain, transforms.ORDERS
    orders = per_panel if sigma.kinks.size else smooth
    if sigma.complete:
        return plain, orders
    fine_enough = tuple(order for order in orders if not sigma.wider(order).size)
    plans = [(plain, fine_enough), (plain._replace(narrow=sigma.wider(per_panel[0])), per_panel)]
    for cuts, rules in plans:
        if len(rules) > 1 and cuts.size(rules[1]) <= most:
            return cuts, rules
    raise TooCostlyError


def _agreeing(
    function: Function, batch: int, sigma: Profile, variance: float
) -> tuple[FloatArray, FloatArray]:
    """Return the three nested moments of σ̃ by the first rule that agrees with the one before it.

    Returns
    -------
    fine, coarse : ndarray of shape (3,)
        By that rule and the one before it.  If no affordable rule agrees, by the last two.
    """
    if batch < 3:
        return np.zeros(3), np.zeros(3)
    cuts, orders = _rules(sigma, batch, _SMOOTH_ORDERS, _PANEL_ORDERS, _MOST_NEEDED)
    agreed, large = _AGREED * min(1.0, _LARGE / batch) ** 2, batch >= transforms.LEAST_BATCH
    allowed = agreed * variance ** np.array([1.5, 2.0, 2.0])

    results: list[FloatArray] = []
    for order in orders:
        if len(results) > 1 and not large and cuts.size(order) > _MOST_EVALUATIONS:
            break
        if large:
            result = transforms.transformed_moments(function, batch, sigma.breaks, order)
        else:
            result = nested_moments(function, cuts, float(sigma.breaks[-1]), order)
        results.append(result)
        if len(results) > 1 and np.all(np.abs(results[-1] - results[-2]) <= allowed):
            break
    return results[-1], results[-2]


def nested_moments(function: Function, cuts: Cuts, edge: float, order: int) -> FloatArray:
    """Return E σ̃₁σ̃₂σ̃₃, E σ̃₁²σ̃₂σ̃₃ and E σ̃₁σ̃₂σ̃₃σ̃₄ by a nested rule."""
    n = cuts.batch
    x1, w1 = _next(n, np.zeros(1), np.zeros(1), cuts, edge, order)
    first, weight = x1[0], w1[0]
    some = max(1, int(_CHUNK / (cuts.size(order) / first.size)))
    total = np.zeros(3)
    for start in range(0, first.size, some):
        x, w = first[start : start + some], weight[start : start + some]
        t = evaluate(function, x)
        sums, squares = x, x * x
        products = [w * t, w * t * t]
        for left in (n - 1, n - 2):
            y, share = _next(left, sums, squares, cuts, edge, order)
            u = share * evaluate(function, y)
            sums = (sums[:, None] + y).ravel()
            squares = (squares[:, None] + y * y).ravel()
            products = [(product[:, None] * u).ravel() for product in products]
        total[:2] += [float(product.sum()) for product in products]
        if n > 3:
            y, share = _next(n - 3, sums, squares, cuts, edge, order)
            last = (share * evaluate(function, y)).sum(axis=1)
            total[2] += float(products[0] @ last)
    return total


def _next(
    left: int, sums: FloatArray, squares: FloatArray, cuts: Cuts, edge: float, order: int
) -> tuple[FloatArray, FloatArray]:
    """Return nodes and weights of the next coordinate given others, shape (others, nodes).

    Parameters
    ----------
    left : int
        N ≥ 1, the number of coordinates that are not given.
    sums, squares : ndarray of shape (others,)
        Sum and sum of squares of the given coordinates.
    cuts, edge, order
        The ends of panels, the end of the range of a coordinate, and the nodes per panel.
    """
    centre = (-sums / left)[:, None]
    if left == 1:
        return centre, np.ones_like(centre)
    radius2 = np.maximum(cuts.batch - squares - sums**2 / left, 0.0)
    spread = np.sqrt(radius2 * (left - 1) / left)[:, None]
    if left == 2:
        return centre + spread * np.array([-1.0, 1.0]), np.full((sums.size, 2), 0.5)
    points, met = cuts.of_next(left)
    if not points.size:
        sines, weights = _gegenbauer(order, left)
        return centre + spread * sines, np.broadcast_to(weights, (sums.size, order))
    last = _last_angle(left, edge)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio, ratio_met = (
            np.clip(np.nan_to_num((place - centre) / spread, nan=1.0), -1.0, 1.0)
            for place in (points, met)
        )
    rim = np.full((sums.size, 1), last)
    tilt, upper = math.asin(-1.0 / (left - 1)), np.arccos(ratio_met)
    lower = math.pi - upper
    ends = [-rim, np.arcsin(ratio), rim, tilt + upper, tilt - upper, lower - tilt, -lower - tilt]
    edges = np.sort(np.clip(np.concatenate(ends, axis=1), -last, last), axis=1)
    angle, weights = coordinate_rule(edges, left - 1, order, roots=left <= _FEW_LEFT)
    return centre + spread * np.sin(angle), weights


def _last_angle(left: int, edge: float) -> float:
    """Return where the angle is cut off if N = `left` coordinates are not given."""
    m = left - 1
    if edge > reach(m) * (1.0 + 1e-9) or m <= 3:  # the activation grows fast, or nothing to cut
        return 0.5 * math.pi
    return math.asin(math.sqrt(-math.expm1(-2.0 * _CUT / (m - 2))))


@lru_cache(maxsize=64)
def _gegenbauer(order: int, left: int) -> tuple[FloatArray, FloatArray]:
    """Return nodes and weights for the density (1 − t²)^((N−4)/2) on [−1, 1], N = `left`."""
    nodes, weights = roots_gegenbauer(order, 0.5 * (left - 3))
    return nodes, weights / weights.sum()


# --- norms that do not centre, if the activation is not odd

# Nodes per panel of one and two coordinates given ψ.
_GIVEN_ORDER = 24

# Nodes per panel of ψ, one more for each finer nested rule, and widest panel of √n ψ′.
_ANGLE_ORDER, _WIDEST_ANGLE = 7, 3.0

# Panels of ψ end where features of σ leave the sphere that need panels narrower than this.
_NARROW = 1.0

# Nodes per angle of the nested rules, if σ is smooth, and per panel of an angle, if σ has kinks.
_SMOOTH_GIVEN, _PANELS_GIVEN = (8, 12, 17, 24, 34), (8, 12, 17, 24)

# For batches up to this, the nested rules have at most one angle.
_FEW = 3

# Evaluations of the activation by the rules of all angles, in units of those that one nested rule
# is allowed.
_MORE = 20.0


def uncentred_moments(
    activation: Activation, batch: int, point: SymmetricFixedPoint, rtol: float
) -> tuple[_JointMoments, _JointMoments]:
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
        Two rules agree if the noise differs by at most this, relative to its trace in each sector.
        For large batches and up to 3 samples, `rtol` is multiplied by
        1 − rate².

    Raises
    ------
    UnresolvedError, TooCostlyError
        As those of `joint_moments`.
    """
    sigma = expectations.resolved(activation, batch, wider=True)
    most, large = _MORE * _MOST_EVALUATIONS, batch >= transforms.LEAST_BATCH
    cuts, orders = _rules(sigma.profile, batch, _SMOOTH_GIVEN, _PANELS_GIVEN, most)
    # S is larger than the noise by up to 1/(1 − rate²), and so are its errors.  If an angle ψ costs
    # milliseconds, the rules are as accurate as that requires.
    cheap = large or batch <= _FEW
    agreed = rtol * (1.0 - point.rate**2) if cheap else rtol
    results: list[_JointMoments] = []
    for more, order in enumerate(orders):
        per_panel = order if cheap else _ANGLE_ORDER + more
        nodes = angle_rule(batch, point, sigma, per_panel)
        if not large and nodes.weight.size * cuts.size(order) > most:
            if len(results) < 2:
                raise TooCostlyError
            break
        turned = map(sigma.turned, nodes.angle.tolist())
        given = [_moments_given(function, cuts, order) for function in turned]
        results.append(_JointMoments(*(nodes.weight @ given).tolist()))
        if len(results) > 1 and _noise_difference(results[-1], results[-2], batch) <= agreed:
            break
    return results[-1], results[-2]


def angle_rule(
    batch: int, point: SymmetricFixedPoint, sigma: expectations.Resolved, order: int
) -> expectations.AngleNodes:
    """Return the rule for ψ, of `order` nodes per panel."""
    # The points where σ is not smooth for the rule.
    points = np.union1d(sigma.profile.kinks, sigma.profile.wider(order, _NARROW))
    stretch = math.sqrt((1.0 / (1.0 - point.c) - 1.0) + 1.0 / batch)
    if sigma.edge > reach(batch - 1) * (1.0 + 1e-9) or batch <= 3:
        limit = reach(batch)
    else:
        limit = math.sqrt(-batch * math.expm1(-2.0 * _CUT / (batch - 2)))
    ends = expectations.singular_angles(points, batch)
    return expectations.angle_nodes(ends, batch, stretch, limit, order=order, widest=_WIDEST_ANGLE)


def _moments_given(function: expectations.Turned, cuts: Cuts, order: int) -> _JointMoments:
    """Return the joint moments given ψ."""
    batch, panels = cuts.batch, function.panels
    if batch >= transforms.LEAST_BATCH:
        return _raw_moments(*transforms.transformed_pairs(function, batch, panels, order), batch)
    mean, products, centred = _pairs(function, batch, panels, _GIVEN_ORDER)
    nested = np.zeros(3)
    if batch > 2:
        inside = Cuts(batch, *map(function.inside, (cuts.kinks, cuts.narrow)))
        nested = nested_moments(centred, inside, function.edge, order)
    return _raw_moments(mean, products, nested, batch)


def _noise_difference(first: _JointMoments, second: _JointMoments, batch: int) -> float:
    """Return the largest difference of the noise, relative to its trace in each sector."""
    noise = zip(*(noises(joint.covariance, batch) for joint in (first, second)), strict=True)
    return max(float(np.abs(a - b).max() / np.trace(a)) for a, b in noise)
