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

Permutations preserve Q, so it is a polynomial of the power sums p_k = Σq_i^k.  With the notation of
`bnmc.mean_field.fixed_point.uncentred`,

    q_i = f + h x_i,    f = sin ψ′/√(b g₀),    h = cos ψ′/√(b g₁),

so given ψ, Q is linear in Σx_i³ and Σx_i⁴.  The expectations of both, given two coordinates of the
centred sphere, are polynomials.
"""

from __future__ import annotations

import math

import numpy as np

from bnmc.chain.activations import Activation
from bnmc.chain.chain import Chain
from bnmc.mean_field.finite_width.joint_moments import angle_rule, squared
from bnmc.mean_field.finite_width.sectors import EntryCovariance, Sector
from bnmc.mean_field.fixed_point.expectations import Turned, resolved
from bnmc.mean_field.fixed_point.results import FixedPoint
from bnmc.mean_field.fixed_point.symmetric import is_isotropic
from bnmc.mean_field.float64 import FloatArray
from bnmc.mean_field.quadrature.sphere import coordinate_pairs, sphere_rule

# Nodes per panel.
_SPHERE_ORDER = 24

# A polynomial of degree 4 is known from its values here.
_FIVE = np.arange(-2.0, 3.0)


def mean_bias(
    chain: Chain, point: FixedPoint, sectors: tuple[Sector, ...], covariance: EntryCovariance
) -> tuple[float, float]:
    """Return the diagonal and the other entries of E G − G*, times the width.

    Parameters
    ----------
    chain : Chain
        With a norm over the batch.
    point : FixedPoint
    sectors : tuple of Sector
        The stationary covariance S.
    covariance : EntryCovariance
        S, by entries.
    """
    activation, n, centred = chain.activation, point.batch, chain.normalization.hides_common_part
    if not is_isotropic(activation, n, chain.normalization):
        return _uncentred_bias(activation, point, sectors[0], covariance)
    if n <= (3 if centred else 1):  # Σu_i⁴ is constant
        return 0.0, 0.0
    m = n - 1 if centred else n
    square, sigma = squared(activation, m)
    if centred:
        k, seen = 1.0 / (1.0 - 2.0 / n), np.array([1.0, -math.sqrt(2.0 / (n - 2.0))])
        first = float(seen @ sectors[1].variance @ seen) / k
        second = float(sectors[2].variance[0, 0])
        covariances = _with_power_sums(Turned(sigma, 0.0, sigma.limit), n, _SPHERE_ORDER)[:, 2]
    else:
        k = 1.0
        first, second = float(sectors[1].variance[0, 0]), float(sectors[0].variance[1, 1])
        # The other coordinates are uniform on a sphere.  E Σx⁴ is 3n²/(n+2).
        rule = sphere_rule(square, m, 0.0, sigma.breaks, _SPHERE_ORDER)
        fourths = 3.0 * (n - rule.x**2) ** 2 / (n + 1.0) + rule.x**4 - 3.0 * n * n / (n + 2.0)
        covariances = np.array([rule.mean(rule.value * fourths), 0.0])
    factor = m * (m + 2) * k * (first - second) / (8.0 * (n * point.b * (1.0 - point.c)) ** 2)
    diagonal, other = (factor * covariances).tolist()
    return diagonal, other


# --- norms that do not centre

# Nodes per panel of ψ and of the coordinates.
_ANGLE_ORDER, _ORDER = 10, 16


def _uncentred_bias(
    activation: Activation, point: FixedPoint, trivial: Sector, covariance: EntryCovariance
) -> tuple[float, float]:
    """Return the diagonal and the other entries of E G − G*, times the width; c < 1.

    `trivial` is the sector of matrices that permutations preserve.
    """
    n = point.batch
    sigma = resolved(activation, n, wider=True)
    nodes = angle_rule(n, point, sigma, _ANGLE_ORDER)
    f = nodes.zeta / math.sqrt(n * point.b * (1.0 + (n - 1.0) * point.c))
    h = nodes.cosine / math.sqrt(point.b * (1.0 - point.c))
    turned = map(sigma.turned, nodes.angle.tolist())
    given = [_with_power_sums(function, n, _ORDER) for function in turned]
    # Q is `scores` times 1, Σx³ and Σx⁴ − E Σx⁴.
    at = [_score(f, h, n, trivial, covariance, point, *sums) for sums in ((0, 0), (1, 0), (0, 1))]
    third, fourth = at[1] - at[0], at[2] - at[0]
    scores = np.stack([at[0] + fourth * _mean_fourth(n), third, fourth])
    mean = float(nodes.weight @ scores[0])
    second = [
        0.5 * float(nodes.weight @ ((products * scores.T).sum(axis=1) - mean * products[:, 0]))
        for products in np.stack(given, axis=1)
    ]
    sizes = np.array([math.sqrt(n), math.sqrt(n * (n - 1.0))])
    shift = np.linalg.solve(np.eye(2) - trivial.jacobian, sizes * second) / sizes
    return float(shift[0]), float(shift[1])


def _score(
    f: FloatArray,
    h: FloatArray,
    n: int,
    trivial: Sector,
    cov: EntryCovariance,
    point: FixedPoint,
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
    across = 1.0 / (point.b * (1.0 - point.c))
    every = -point.c * across / (1.0 + (n - 1.0) * point.c)
    root, off_root = math.sqrt(n), math.sqrt(n * (n - 1.0))
    x, y = trivial.variance @ np.array([(across + every) * root, every * off_root])
    product = x / root * p2 + y / off_root * (p1**2 - p2)
    sums = (
        cov.ii_ii + (n - 1.0) * (2.0 * cov.ii_ij + cov.ij_ij + (n - 2.0) * cov.ij_ik),
        cov.ii_jj + 2.0 * cov.ii_ij + cov.ij_ij
        + (n - 2.0) * (2.0 * cov.ii_jk + 3.0 * cov.ij_ik + (n - 3.0) * cov.ij_kl),
    )  # fmt: skip
    diagonal = across * (cov.ii_ii + (n - 1.0) * cov.ij_ij) + every * sums[0]
    other = across * (2.0 * cov.ii_ij + (n - 2.0) * cov.ij_ik) + every * sums[1]
    twice = diagonal * p2 + other * (p1**2 - p2)
    return 0.25 * ((n + 2.0) / n * square - 2.0 * product) - twice


def _with_power_sums(function: Turned, n: int, order: int) -> FloatArray:
    """Return expectations of σ₁² and σ₁σ₂ given ψ, shape (2, 3).

    The columns are those of the products alone, times Σx³, and times Σx⁴ − E Σx⁴.
    """

    def powers(y: FloatArray, share: FloatArray, speed: FloatArray | None) -> FloatArray:
        values = share * function(y)
        return np.stack([(values * y**power).sum(axis=1) for power in range(5)])

    x, weight, of = coordinate_pairs(n - 1, -1.0 / (n - 1), function.panels, order)
    value, given, y = function(x), of(powers), _FIVE[:, None]
    columns = [[value**2 @ weight, value * given[0] @ weight]]
    for power, mean in ((3, 0.0), (4, _mean_fourth(n))):
        alone = x**power + _others(x, x * x, n - 1, n, power) - mean
        both = x**power + y**power + _others(x + y, x * x + y * y, n - 2, n, power) - mean
        coefficients = np.linalg.solve(np.vander(_FIVE, increasing=True), both)
        pair = value * np.sum(coefficients * given, axis=0)
        columns.append([value**2 * alone @ weight, pair @ weight])
    return np.array(columns).T


def _mean_fourth(n: int) -> float:
    """Return E Σx⁴."""
    return 3.0 * n * (n - 1.0) / (n + 1.0)


def _others(sums: FloatArray, squares: FloatArray, left: int, n: int, power: int) -> FloatArray:
    """Return the expected sum of third or fourth powers of the other N = `left` coordinates.

    `sums` and `squares` are those of the coordinates that are known.
    """
    if left == 0:
        return np.zeros_like(sums)
    centre = -sums / left
    variance = (n - squares - sums**2 / left) / left
    if power == 3:
        return left * (centre**3 + 3.0 * centre * variance)
    fourth = 3.0 * variance**2 * (left - 1.0) / (left + 1.0)
    return left * (centre**4 + 6.0 * centre**2 * variance + fourth)
