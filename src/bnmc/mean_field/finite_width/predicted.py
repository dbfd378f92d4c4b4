"""`fluctuations`: the predicted fluctuations of a chain around its mean-field fixed point.

**Maps of pairs of samples.**  Norms over the features, biases and no norm leave a map of pairs: the
Gram matrix of a layer is a function of the variances and the correlation of two pre-activations.
Its attractor is the variance q* of `bnmc.mean_field.correlation`, and the correlation c* of all
pairs.  If q* is positive and finite, c* < 1, and both are stable, the Gram matrices of wide chains
fluctuate around

    G* = b ((1−c) I + c 11ᵀ),    q* = gain² b + σ_b²,    q* c* = gain² b c + σ_b²,

with the stationary covariance S/width, S = J S Jᵀ + C in each sector of the permutation group.

Noise and Jacobian of such a layer: the pre-activations of all samples have the variance q and the
correlation c ≥ 0.  Let r be the variance of the argument u_i = √r v_i of σ.  With independent
standard normal z_0, z_1, …, z_n,

    v_i = √c z_0 + √(1−c) z_i,

so given z_0 the samples are independent, and an expectation over any number of samples is an
integral over z_0 of products of integrals over one z.

Let x be σ(u), or N(σ(u)) if the norm follows the activation.  Then to first order in 1/width the
Gram matrix of a layer is a mean over its rows of

    g_ij = x_i x_j − p (y_i + y_j) − s (u_i + u_j) − ½ t (x_i² + x_j²),    y_i = (u_i² − r)/2,

with coefficients that `bnmc.mean_field.finite_width.path` derives: p = E u_i x′_i x_j for a norm
before the activation, s = E x′_i x_j if it also subtracts means, and t = E x_i x_j for a norm
after it; the others are 0.  For i = j the same holds with x_i in place of x_j.

The derivatives with respect to the covariance of the pre-activations need V = E x_i x_j as a
function of the variances of u_i and u_j, and of their covariance.  Let V₁ and V₃ be its
derivatives with respect to one variance and to the covariance.  By parts in z, given z_0,

    E x′_i = E z_i x_i/√(r(1−c)),    V₃ = E x′_i x′_j,    p = r (2V₁ + cV₃).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from bnmc.chain.chain import Chain
from bnmc.chain.needs import FULLY_CONNECTED, INDEPENDENT_ENTRIES, NO_SKIP, TWO_SAMPLES, require
from bnmc.errors import ArgumentError, NotMixing
from bnmc.mean_field.correlation.correlation_map import CorrelationMap
from bnmc.mean_field.correlation.fixed_points import CorrelationPoint
from bnmc.mean_field.correlation.gaussian_moments import normal_panels
from bnmc.mean_field.correlation.layer import PairLayer, VarianceLevel, level_map
from bnmc.mean_field.correlation.phases import Phase
from bnmc.mean_field.finite_width import joint_moments
from bnmc.mean_field.finite_width.results import Fluctuations
from bnmc.mean_field.finite_width.sectors import EntryCovariance, stationary
from bnmc.mean_field.fixed_point.expectations import quadrature_errors_as_arguments
from bnmc.mean_field.fixed_point.results import FixedPoint, of_batch
from bnmc.mean_field.fixed_point.symmetric import fixed_point_and_errors, is_isotropic, worst_of
from bnmc.mean_field.float64 import FloatArray, within
from bnmc.mean_field.quadrature.panels import coordinate_rule, subdivided
from bnmc.mean_field.quadrature.profile import Profile

# Numbers of the fixed point that are not part of the law of G.
_ELSEWHERE = ("backward_rate", "cross_batch", "cross_batch_rate")

# Rules for the joint moments agree to this, in units of the relative error that is asked for.
_AGREED = 0.3

#: What to do if the weights are not independent.
WITHOUT_DEPENDENCE = "rows of W a are dependent: measure the spread of a run of bnmc.simulate"


# A fixed point, the bound of its error, and C and J of a layer there by a fine and a coarse rule.
_Linearized = tuple[FixedPoint, float, list[tuple[EntryCovariance, tuple[FloatArray, ...]]]]


def fluctuations(chain: Chain, rtol: float) -> Fluctuations:
    """Return the predictions; see `MeanField.fluctuations` for the arguments and errors."""
    require(chain, [INDEPENDENT_ENTRIES], WITHOUT_DEPENDENCE)
    instead = "MeanField.trajectory(..., fluctuations=True) has them along the path of an input"
    require(chain, [FULLY_CONNECTED], instead)
    linearized = _of_batch if chain.normalization.has_symmetric_fixed_point else _of_pairs
    point, error, rules = linearized(chain, rtol)
    fine, coarse = (tuple(stationary(noise, jacobians, chain.batch)) for noise, jacobians in rules)
    law = Fluctuations(
        fixed_point=point, sectors=fine, coarse=coarse, point_error=error, chain=chain
    )
    name, excess = law.negative_variance
    within(law, excess, 0.0, f"sector {name}, whose variance is negative, is", option="it")
    square = law.mean_square(1)
    relative = square.stderr / square.value if square.stderr > 0.0 else 0.0
    return within(law, relative, rtol, "the mean square is")


def _of_batch(chain: Chain, rtol: float) -> _Linearized:
    """Return noise and Jacobian of a layer with a norm over the batch."""
    point, errors = fixed_point_and_errors(chain)
    used = {name: error for name, error in errors.items() if name not in _ELSEWHERE}
    worst = worst_of(used)
    within(point, used[worst], rtol, "fixed point", f" (worst is {worst})")
    if not point.stable:
        message = "the fixed point is unstable: small deviations grow by "
        message += f"{point.rate:.6g} per layer, so the chain does not fluctuate around it"
        raise NotMixing(message, point, math.log(point.rate), 0.0)
    sigma, norm = chain.activation, chain.normalization
    try:
        with quadrature_errors_as_arguments(sigma):
            if norm.hides_common_part:
                results = joint_moments.joint_moments(sigma, chain.batch)
            elif is_isotropic(sigma, chain.batch, norm):
                results = joint_moments.odd_moments(sigma, chain.batch)
            else:
                results = joint_moments.uncentred_moments(sigma, chain.batch, point, _AGREED * rtol)
    except joint_moments.TooCostlyError:
        note = f": {sigma.name} has too many narrow features for quadrature over 3 or 4 samples"
        within(point, math.inf, rtol, "the mean square is", note)
    return point, used[worst], [(joint.covariance, point.jacobians) for joint in results]


# --- maps of pairs of samples

# The errors are judged here, not by the correlation map.
_ANY = 1e100

# Rates above 1 minus this count as 1.
_NEUTRAL = 1e-9

_INSTEAD = "MeanField.trajectory(..., fluctuations=True) predicts the layers up to a depth"


def _of_pairs(chain: Chain, rtol: float) -> _Linearized:
    """Return noise and Jacobian of a layer with a norm over the features, or none."""
    require(chain, (TWO_SAMPLES, NO_SKIP), "bnmc.simulate measures this chain")
    field, n = CorrelationMap.of(chain), chain.batch
    phase = field.phase(rtol=_ANY)
    q = _variance(chain, phase)
    point = _attractor(chain, field, phase)
    error, moves = phase.error + point.error, not field.layer.fixes_variance
    if moves:
        error += min(field.variance_fixed_points(), key=lambda at: abs(at.variance - q)).error
    fine, coarse = (
        pair_moments(field.layer, q, point.correlation, widest) for widest in (FINE, COARSE)
    )
    if point.correlation == 0.0:  # without biases, and with E x = 0
        fine = fine._replace(pair=0.0)
    star = within(_fixed_point(n, phase, fine, error, moves), error, rtol, "fixed point")
    return star, error, [(at.noise, at.jacobians(n)) for at in (fine, coarse)]


def _variance(chain: Chain, phase: Phase) -> float:
    """Return q*; raise unless it is positive, finite and stable."""
    if 0.0 < phase.variance < math.inf and abs(phase.variance_rate) < 1.0 - _NEUTRAL:
        return phase.variance
    walks = "is not changed by a layer at infinite width, and does a random walk at finite width"
    happens = {0.0: "tends to 0", math.inf: "diverges"}.get(phase.variance, walks)
    allowed = "a norm, or a gain and biases whose variance has a stable fixed point"
    hint = f"the variance of the pre-activations {happens}. {_INSTEAD}"
    raise ArgumentError("norm", chain.norm, allowed, hint)


def _attractor(chain: Chain, field: CorrelationMap, phase: Phase) -> CorrelationPoint:
    """Return c* < 1; raise if there is no such attractor."""
    if phase.correlation is None:
        allowed = "a function for which correlations have a stable fixed point"
        hint = f"every correlation is a fixed point, so correlations do a random walk. {_INSTEAD}"
        raise ArgumentError("activation", chain.activation.name, allowed, hint)
    if phase.correlation == 1.0:
        factor = phase.backward_rate
        exponent = 0.5 * math.log(factor) if factor > 0.0 else -math.inf
        message = f"the correlation of all samples tends to 1 ({phase.name} phase), so Gram "
        message += "matrices become singular and do not fluctuate around a fixed point. "
        message += f"{_INSTEAD}; gain and bias_variance may change the phase"
        raise NotMixing(message, phase, exponent, 0.0)
    points = field.fixed_points(variance=phase.variance, rtol=_ANY)
    return next(point for point in points if point.stable)


def _fixed_point(n: int, phase: Phase, at: _PairMoments, error: float, moves: bool) -> FixedPoint:
    """Return the fixed point for a batch size n.

    If the variance does not move, as under a norm with eps 0, `of_length` is an eigenvalue of
    scaling G* only, and 0.
    """
    pairs = n * (n - 1) // 2
    return FixedPoint(
        batch=n,
        b=at.square,
        c=at.pair / at.square,
        eigenvalues=(at.of_length, at.of_pair) if moves else (at.of_pair,),
        multiplicities=(n, pairs) if moves else (pairs,),
        rate=max(abs(at.of_length) if moves else 0.0, abs(at.of_pair)),
        backward_rate=phase.backward_rate,
        cross_batch=at.pair,
        cross_batch_rate=at.of_pair,
        error=error,
        jacobians=at.jacobians(n),
    )


# --- noise and Jacobian of a pair layer

#: Widths of the panels of z of the fine and of the coarse rule.
FINE, COARSE = 0.5, 0.75

# Nodes per panel, ends of the range of z_0 and z, and rows of an array.
_ORDER, _END, _ROWS = 16, 13.0, 32

# The basis φ of one sample: 1, x, y, u and x².
_ONE, _X, _Y, _U, _SQUARE = range(5)

# E x⁴ may have this part beyond the range.
_TAIL = 1e-12


class _PairMoments(NamedTuple):
    """One layer at the fixed point.

    Attributes
    ----------
    square, pair : float
        The diagonal and the other entries of the Gram matrix: E x_i² and E x_i x_j.
    noise : EntryCovariance
        The covariance of the entries g_ij of one row.
    of_length, of_first, of_pair : float
        The derivatives of a diagonal entry with respect to the diagonal entry of the Gram matrix
        before, and of an entry off the diagonal with respect to one of its two diagonal entries and
        to that entry.
    """

    square: float
    pair: float
    noise: EntryCovariance
    of_length: float
    of_first: float
    of_pair: float

    def jacobians(self, batch: int) -> tuple[FloatArray, ...]:
        """Return J in each sector of a batch of n ≥ 2 samples."""

        def triangular(weight: float) -> FloatArray:
            return np.array([[self.of_length, 0.0], [self.of_first * weight, self.of_pair]])

        weights = 2.0 * math.sqrt(batch - 1.0), math.sqrt(2.0 * (batch - 2.0))
        trivial, standard = map(triangular, weights)
        return of_batch(batch, trivial, standard, np.array([[self.of_pair]]))


def pair_moments(layer: PairLayer, q: float, c: float, widest: float) -> _PairMoments:
    """Return the moments from panels of a given width.

    Parameters
    ----------
    layer : PairLayer
        A layer without skip connection.
    q, c : float
        Variance and correlation of the pre-activations, c in [0, 1).
    widest : float
        Largest width of a panel.

    Raises
    ------
    ArgumentError
        If σ has no finite fourth moment.
    """
    level = level_map(layer, q).level
    r = level.inner.variance
    weight, moments, scores = _given_shared(layer, level, c, widest)
    first = moments[:, 0]  # E (1, x, y, u, x²) given z_0
    mean = (weight @ moments.reshape(len(weight), -1)).reshape(5, 5)
    square, growth, tilt = mean[_SQUARE, [_ONE, _Y, _U]].tolist()  # E x², E x² y and E x² u
    pair = float(weight @ first[:, _X] ** 2)
    slopes, stretches = scores.T / math.sqrt(r * (1.0 - c))
    stretches = stretches - first[:, _X]
    p, s = float(weight @ (stretches * first[:, _X])), float(weight @ (slopes * first[:, _X]))
    of_covariance = float(weight @ slopes**2)
    of_variance = 0.5 * (p / r - c * of_covariance)
    length_slope = growth / r**2  # the derivative of E x² with respect to r

    entry, diagonal = np.zeros((5, 5)), np.zeros(5)
    entry[_X, _X], diagonal[_SQUARE] = 1.0, 1.0
    w = layer.weight_variance
    if layer.norm == "none":
        jacobian = length_slope, of_variance, of_covariance
    elif layer.norm_is_first:
        entry[_ONE, _Y] = entry[_Y, _ONE] = -p
        diagonal[_Y] = -2.0 * growth / r
        if layer.norm == "layer":
            entry[_ONE, _U] = entry[_U, _ONE] = -s
            diagonal[_U] = -tilt / r
        spread = q + layer.eps
        shrink = layer.eps / spread**2
        first_slope = of_variance * shrink - 0.5 * of_covariance * c * r / spread
        jacobian = length_slope * shrink, first_slope, of_covariance / spread
    else:
        entry[_ONE, _SQUARE] = entry[_SQUARE, _ONE] = -0.5 * pair
        diagonal[_SQUARE] = 1.0 - square
        first_slope = of_variance - 0.5 * pair * length_slope
        jacobian = (1.0 - square) * length_slope, first_slope, of_covariance
    noise = _covariances(weight, moments, entry, diagonal)
    return _PairMoments(square, pair, noise, *(w * derivative for derivative in jacobian))


def _given_shared(
    layer: PairLayer, level: VarianceLevel, c: float, widest: float
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the weights of z_0, and expectations over z given z_0.

    Returns
    -------
    weight : ndarray of shape (nodes,)
    products : ndarray of shape (nodes, 5, 5)
        E φφᵀ, φ = (1, x, y, u, x²).
    scores : ndarray of shape (nodes, 2)
        E z x and E z u x.
    """
    function, r = layer.sigma.function, level.inner.variance
    root, apart, shared = math.sqrt(r), math.sqrt(1.0 - c), math.sqrt(c)
    z0, weight = np.zeros(1), np.ones(1)
    if c > 0.0:
        z0, weight = _shared_rule(function, root, c, widest)
    edges = normal_panels(function, root, widest, _END)
    steps = subdivided(np.array([-_END, _END]), widest)
    mean, scale = (0.0, 1.0) if layer.norm_is_first else (level.mean, math.sqrt(level.factor))
    products, scores = np.empty((z0.size, 5, 5)), np.empty((z0.size, 2))
    for begin in range(0, z0.size, _ROWS):
        rows = slice(begin, begin + _ROWS)
        moved = (edges - shared * z0[rows, None]) / apart
        bounds = np.concatenate([moved, np.broadcast_to(steps, (len(moved), steps.size))], axis=1)
        ends = np.sort(np.clip(bounds, -_END, _END), axis=1)
        z, density = coordinate_rule(ends, math.inf, _ORDER)
        u = root * (shared * z0[rows, None] + apart * z)
        with np.errstate(over="ignore", invalid="ignore"):
            x = (function(u) - mean) * scale
            basis = np.stack([np.ones_like(x), x, 0.5 * (u * u - r), u, x * x])
            products[rows] = np.einsum("iaz,jaz,az->aij", basis, basis, density, optimize=True)
        weighted = density * z * x
        scores[rows] = np.stack([weighted.sum(axis=1), (weighted * u).sum(axis=1)], axis=1)
    fourth = weight * products[:, _SQUARE, _SQUARE]
    rim = max(float(fourth[0]), float(fourth[-1])) if c > 0.0 else 0.0
    if not (np.isfinite(products).all() and rim <= _TAIL * float(fourth.sum())):
        allowed = "a function that is finite and has a finite fourth moment"
        hint = f"of a normal variable of variance {r:.6g}"
        raise ArgumentError("activation", layer.sigma.name, allowed, hint)
    return weight, products, scores


def _shared_rule(
    sigma: Profile, root: float, c: float, widest: float
) -> tuple[FloatArray, FloatArray]:
    """Return nodes and weights for z_0 ~ N(0, 1).

    Expectations given z_0 change within √((1−c)/c) of a kink.
    """
    scale = root * math.sqrt(c)
    edges, smooth = [normal_panels(sigma, scale, widest, _END)], math.sqrt((1.0 - c) / c)
    while smooth < widest:
        edges += [sigma.centres(scale * widest) / scale + side * smooth for side in (-1, 1)]
        smooth *= 2.0
    merged = np.unique(np.clip(np.concatenate(edges), -_END, _END))
    return coordinate_rule(merged, math.inf, _ORDER)


def _covariances(
    weight: FloatArray, moments: FloatArray, entry: FloatArray, diagonal: FloatArray
) -> EntryCovariance:
    """Return the covariances of g_ij = φ_iᵀ `entry` φ_j and g_ii = `diagonal` · φ_i."""
    mean = moments[:, 0]
    image = mean @ entry  # of the other sample, given z_0
    squares = mean @ diagonal
    both = np.einsum("ai,ai->a", image, mean)
    mixed = np.einsum("i,aij,aj->a", diagonal, moments, image)
    square = np.einsum("i,aij,j->a", diagonal, moments, diagonal)
    turned = entry @ moments
    pairs = np.einsum("aij,aji->a", turned, turned)
    common = np.einsum("ai,aij,aj->a", image, moments, image)
    products = square, squares * squares, mixed, squares * both, pairs, common, both * both
    means = [float(weight @ values) for values in (squares, both, *products)]
    return EntryCovariance.about(*means)
