"""The bias of the stationary mean of the Gram matrix, of order 1/width.

With S/d the stationary covariance at width d, J the Jacobian and F″ the second derivative of the
mean-field map at G*, to leading order

    E G − G* = (I − J)⁻¹ ½ F″[S] / d.

**If rows are uniform on a sphere**, let m be the dimension of its space, A the traceless deviation
in units of G* in that space, and φ = √n u the normalized row.  The second derivative of the
Gaussian density gives D²F[Δ, Δ] = Cov(σσᵀ, Q), where the mean of Q over Δ is, up to a constant,

    Q = ¼ m(m+2) E_Δ (uᵀAu)².

Permutations leave two variances of A: s₁ of P diag(e) P and s₂ of the rest, with P the projector to
the space.  |u|⁴ is constant, so only the part of uuᵀ in P diag(e) P counts, whose square is
Σu_i⁴ up to a constant and a factor k:

    E G − G* = ⅛ m(m+2) k (s₁ − s₂) Cov(σσᵀ, Σu_i⁴) / d,

k = 1/(1 − 2/n) on the centred sphere and 1 on the whole one.  J is 0 on this matrix in both cases.

**Under a norm that does not centre, if the activation is not odd**, let q = √n G*^(−½) u with
u the direction of G*^(−½) w, w ~ N(0, G*).  The second derivative of the Gaussian density, averaged
over the length of w and over Δ of covariance S, gives F″[S] = Cov(σσᵀ, Q) with

    Q = ¼ {(n+2)/n E(qᵀΔq)² − 2 E qᵀΔq tr(G*⁻¹Δ)} − E qᵀΔG*⁻¹Δq.

Permutations preserve Q, so it is a polynomial of the power sums p_k = Σq_i^k.  As q_i = f + h x_i
(see `uncentred_moments`), Q is linear in Σx_i³ and Σx_i⁴ given ψ.  The expectations of both, given
two coordinates of the centred sphere, are polynomials.
"""

from __future__ import annotations

import math

import numpy as np

from bnmc.chain.activations import Activation
from bnmc.mean_field.finite_width.sectors import EntryCovariance, Sector
from bnmc.mean_field.finite_width.uncentred_moments import angle_rule
from bnmc.mean_field.fixed_point.expectations import resolved
from bnmc.mean_field.fixed_point.results import FixedPoint, SymmetricFixedPoint
from bnmc.mean_field.float64 import FloatArray
from bnmc.mean_field.quadrature.deviation import range_of
from bnmc.mean_field.quadrature.panels import subdivided
from bnmc.mean_field.quadrature.resolution import Function, evaluate, jumps, panels_of
from bnmc.mean_field.quadrature.sphere import reach, sphere_rule

# Nodes per panel.
_SPHERE_ORDER = 24

# A polynomial of degree 4 is known from its values here.
_FIVE = np.arange(-2.0, 3.0)


def mean_bias(
    activation: Activation, point: FixedPoint, sectors: tuple[Sector, ...], centred: bool
) -> tuple[float, float]:
    """Return the diagonal and the other entries of E G − G*, times the width.

    Parameters
    ----------
    activation : Activation
        The activation; odd, if the norm does not centre.
    point : FixedPoint
        The fixed point.
    sectors : tuple of Sector
        The stationary covariance.
    centred : bool
        Whether the norm centres.
    """
    n = point.batch
    if n <= (3 if centred else 1):  # Σu_i⁴ is constant
        return 0.0, 0.0
    mu = point.b * (1.0 - point.c)
    m, k = (n - 1, 1.0 / (1.0 - 2.0 / n)) if centred else (n, 1.0)
    if centred:
        seen = np.array([1.0, -math.sqrt(2.0 / (n - 2.0))])
        first = float(seen @ sectors[1].variance @ seen) / k
        second = float(sectors[2].variance[0, 0])
    else:
        first = float(sectors[1].variance[0, 0])
        second = float(sectors[0].variance[1, 1])
    own, pair = _covariances(activation, n, m)
    factor = m * (m + 2) * k * (first - second) / (8.0 * mu**2)
    return factor * own, factor * pair if centred else 0.0


def _covariances(activation: Activation, batch: int, dimension: int) -> tuple[float, float]:
    """Return the covariances of σ₁² and of σ₁σ₂ with Σu_i⁴; the latter only if m is n − 1."""
    n, m = batch, dimension
    centred = m < n

    def value(x: FloatArray) -> FloatArray:
        return np.asarray(evaluate(activation, x))

    def square(x: FloatArray) -> FloatArray:
        return np.asarray(value(x) ** 2)

    def value_times_square(x: FloatArray) -> FloatArray:
        return np.asarray(value(x) * x * x)

    breaks = panels_of(activation, max(reach(m), range_of(square, m).limit))
    correlation = -1.0 / m if centred else 0.0
    rule = sphere_rule(value, m, correlation, breaks, _SPHERE_ORDER)
    x = rule.x
    fourth = 3.0 * n * m / (m + 2.0) if centred else 3.0 * n * n / (n + 2.0)
    one = _sum_of_fourths(x, x * x, n - 1, n, centred) + x**4 - fourth
    own = rule.mean(rule.value**2 * one) / n**2
    if not centred:
        return own, 0.0
    more = sphere_rule(value_times_square, m, correlation, breaks, _SPHERE_ORDER)
    given = np.concatenate([rule.given, more.given[1:]])
    y = _FIVE[:, None]
    sums = _sum_of_fourths(x + y, x * x + y * y, n - 2, n, centred) + x**4 + y**4 - fourth
    coefficients = np.linalg.solve(np.vander(_FIVE, increasing=True), sums)
    pair = rule.mean(rule.value * np.sum(coefficients * given, axis=0)) / n**2
    return own, pair


def _sum_of_fourths(
    sums: FloatArray, squares: FloatArray, left: int, batch: int, centred: bool
) -> FloatArray:
    """Return the expected sum of fourth powers of the other N = `left` coordinates.

    They are uniform on a sphere, given the sum and the sum of squares of the others.
    """
    if not centred:
        return np.asarray(3.0 * (batch - squares) ** 2 / (left + 2.0))
    centre = -sums / left
    variance = (batch - squares - sums**2 / left) / left
    fourth = 3.0 * variance**2 * (left - 1.0) / (left + 1.0)
    return np.asarray(left * (centre**4 + 6.0 * centre**2 * variance + fourth))


# --- norms that do not centre

# Nodes per panel of ψ and of the coordinates, and widest panel of the latter.
_ANGLE_ORDER, _ORDER, _WIDEST_PANEL = 10, 16, 3.0


def uncentred_bias(
    activation: Activation,
    batch: int,
    point: SymmetricFixedPoint,
    trivial: Sector,
    covariance: EntryCovariance,
) -> tuple[float, float]:
    """Return the diagonal and the other entries of E G − G*, times the width.

    Parameters
    ----------
    activation : Activation
        The activation, not odd.
    batch : int
        n ≥ 2.
    point : SymmetricFixedPoint
        The fixed point, with c < 1.
    trivial : Sector
        The sector of matrices that permutations preserve.
    covariance : EntryCovariance
        S.
    """
    n = batch
    known = resolved(activation, n, wider=True)
    kinks = jumps(activation, known.breaks)
    nodes = angle_rule(n, point, kinks, known.edge, _ANGLE_ORDER)
    f = nodes.zeta / math.sqrt(n * point.b * (1.0 + (n - 1.0) * point.c))
    h = nodes.cosine / math.sqrt(point.b * (1.0 - point.c))
    parts = np.array([_parts(angle, known.edge, known.breaks, activation, n)
                      for angle in nodes.angle.tolist()])  # fmt: skip
    # Columns: E σ₁² and E σ₁σ₂ alone, times Σx³, and times Σx⁴; the last are those of 1.
    third, fourth = (_score(f, h, n, trivial, covariance, point, *at) for at in ((1, 0), (0, 1)))
    base = _score(f, h, n, trivial, covariance, point, 0, 0)
    third, fourth = third - base, fourth - base
    scores = np.stack([base, third, fourth])
    mean_fourth = float(_others(np.zeros(1), np.zeros(1), n, n, 4)[0])
    mean = float(nodes.weight @ (base + fourth * mean_fourth))
    second = []
    for one in (parts[:, 0], parts[:, 1]):
        value = float(nodes.weight @ np.einsum("ak,ka->a", one, scores))
        second.append(0.5 * (value - mean * float(nodes.weight @ one[:, 0])))
    sizes = np.array([math.sqrt(n), math.sqrt(n * (n - 1.0))])
    found = np.linalg.solve(np.eye(2) - trivial.jacobian, sizes * second) / sizes
    return float(found[0]), float(found[1])


def _score(
    f: FloatArray,
    h: FloatArray,
    n: int,
    trivial: Sector,
    cov: EntryCovariance,
    point: SymmetricFixedPoint,
    cubes: float,
    fourths: float,
) -> FloatArray:
    """Return Q at q = f + h x with Σx³ = `cubes` and Σx⁴ = `fourths`."""
    p1, p2 = n * f, n * (f**2 + h**2)
    p3 = n * (f**3 + 3.0 * f * h**2) + h**3 * cubes
    p4 = n * (f**4 + 6.0 * f**2 * h**2) + 4.0 * f * h**3 * cubes + h**4 * fourths
    # Sums over distinct samples: q_i³q_j, q_i²q_j², q_i²q_jq_k and q_iq_jq_kq_l.
    s31, s22 = p3 * p1 - p4, p2**2 - p4
    s211 = p2 * p1**2 - p2**2 - 2.0 * p3 * p1 + 2.0 * p4
    s1111 = p1**4 - 6.0 * p1**2 * p2 + 3.0 * p2**2 + 8.0 * p1 * p3 - 6.0 * p4
    square = cov.ii_ii * p4 + (cov.ii_jj + 2.0 * cov.ij_ij) * s22 + 4.0 * cov.ii_ij * s31
    square += (2.0 * cov.ii_jk + 4.0 * cov.ij_ik) * s211 + cov.ij_kl * s1111

    # G*⁻¹ = own I + all 11ᵀ.
    own = 1.0 / (point.b * (1.0 - point.c))
    every = -point.c * own / (1.0 + (n - 1.0) * point.c)
    root, off_root = math.sqrt(n), math.sqrt(n * (n - 1.0))
    x, y = trivial.variance @ np.array([(own + every) * root, every * off_root])
    product = x / root * p2 + y / off_root * (p1**2 - p2)
    sums = (
        cov.ii_ii + (n - 1.0) * (2.0 * cov.ii_ij + cov.ij_ij + (n - 2.0) * cov.ij_ik),
        cov.ii_jj + 2.0 * cov.ii_ij + cov.ij_ij
        + (n - 2.0) * (2.0 * cov.ii_jk + 3.0 * cov.ij_ik + (n - 3.0) * cov.ij_kl),
    )  # fmt: skip
    diagonal = own * (cov.ii_ii + (n - 1.0) * cov.ij_ij) + every * sums[0]
    other = own * (2.0 * cov.ii_ij + (n - 2.0) * cov.ij_ik) + every * sums[1]
    twice = diagonal * p2 + other * (p1**2 - p2)
    return np.asarray(0.25 * ((n + 2.0) / n * square - 2.0 * product) - twice)


def _parts(
    angle: float, edge: float, breaks: FloatArray, activation: Activation, n: int
) -> FloatArray:
    """Return E σ₁² and E σ₁σ₂ given ψ, alone, times Σx³, and times Σx⁴: shape (2, 3)."""
    sine, cosine, m = math.sin(angle), math.cos(angle), n - 1

    def function(x: FloatArray) -> FloatArray:
        return np.asarray(evaluate(activation, sine + cosine * x))

    def times_square(x: FloatArray) -> FloatArray:
        return np.asarray(function(x) * x * x)

    inner = (breaks - sine) / cosine
    panels = subdivided(np.array([-edge, *inner[np.abs(inner) < edge], edge]), _WIDEST_PANEL)
    rules = [_rule(one, m, panels) for one in (function, times_square)]
    x, value, mean, weight = rules[0]
    own, pair = value**2, value * mean[0]
    given = np.concatenate([mean, rules[1][2][1:]])
    found = np.empty((2, 3))
    found[:, 0] = weight @ own, weight @ pair
    powers = np.vander(_FIVE, increasing=True)
    y = _FIVE[:, None]
    for column, power in ((1, 3), (2, 4)):
        one = x**power + _others(x, x * x, n - 1, n, power)
        both = x**power + y**power + _others(x + y, x * x + y * y, n - 2, n, power)
        coefficients = np.linalg.solve(powers, np.broadcast_to(both, (5, x.size)))
        found[0, column] = weight @ (own * one)
        found[1, column] = weight @ (value * np.sum(coefficients * given, axis=0))
    return found


def _rule(
    function: Function, m: int, panels: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    rule = sphere_rule(function, m, -1.0 / m, panels, _ORDER)
    return rule.x, rule.value, rule.given, rule.weight


def _others(sums: FloatArray, squares: FloatArray, left: int, n: int, power: int) -> FloatArray:
    """Return the expected sum of third or fourth powers of the other N = `left` coordinates.

    `sums` and `squares` are those of the coordinates that are known.
    """
    if left == 0:
        return np.zeros_like(sums)
    centre = -sums / left
    variance = (n - squares - sums**2 / left) / left
    if power == 3:
        return np.asarray(left * (centre**3 + 3.0 * centre * variance))
    fourth = 3.0 * variance**2 * (left - 1.0) / (left + 1.0)
    return np.asarray(left * (centre**4 + 6.0 * centre**2 * variance + fourth))
