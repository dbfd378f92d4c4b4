"""Noise and Jacobian of a layer whose map acts on pairs of samples, at its symmetric fixed point.

The pre-activations of all samples have the variance q and the correlation c ≥ 0.  Let r be the
variance of the argument u_i = √r v_i of σ.  With independent standard normal z_0, z_1, …, z_n,

    v_i = √c z_0 + √(1−c) z_i,

so given z_0 the samples are independent, and an expectation over any number of samples is an
integral over z_0 of products of integrals over one z.

Let x be σ(u), or N(σ(u)) if the norm follows the activation.  Then to first order in 1/width the
Gram matrix of a layer is a mean over its rows of

    g_ij = x_i x_j − p (y_i + y_j) − s (u_i + u_j) − ½ t (x_i² + x_j²),    y_i = (u_i² − r)/2,

with coefficients that `bnmc.mean_field.finite_width.norm_terms` derives: p = E u_i x′_i x_j for a
norm before the activation, s = E x′_i x_j if it also subtracts means, and t = E x_i x_j for a norm
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

from bnmc.errors import ArgumentError
from bnmc.mean_field.correlation.gaussian_moments import normal_panels
from bnmc.mean_field.correlation.layer import Level, PairLayer
from bnmc.mean_field.finite_width.entry_covariance import EntryCovariance
from bnmc.mean_field.float64 import FloatArray
from bnmc.mean_field.quadrature.panels import gauss_legendre, panel_points, row_panels, subdivided

__all__ = ["COARSE", "FINE", "PairMoments", "pair_moments"]

#: Widths of the panels of z of the fine and of the coarse rule.
FINE, COARSE = 0.5, 0.75

# Nodes per panel, ends of the range of z_0 and z, and rows of an array.
_ORDER, _END, _ROWS = 16, 13.0, 32

# E x⁴ may have this part beyond the range.
_TAIL = 1e-12


class PairMoments(NamedTuple):
    """One layer at the fixed point.

    Attributes
    ----------
    own, pair : float
        The diagonal and the other entries of the Gram matrix: E x_i² and E x_i x_j.
    noise : EntryCovariance
        The covariance of the entries g_ij of one row.
    of_length, of_first, of_pair : float
        The derivatives of a diagonal entry with respect to the diagonal entry of the Gram matrix
        before, and of an entry off the diagonal with respect to one of its two diagonal entries and
        to that entry.
    """

    own: float
    pair: float
    noise: EntryCovariance
    of_length: float
    of_first: float
    of_pair: float


def pair_moments(layer: PairLayer, level: Level, q: float, c: float, widest: float) -> PairMoments:
    """Return the moments from panels of a given width.

    Parameters
    ----------
    layer : PairLayer
        A layer without skip connection.
    level : Level
        The layer at the variance q.
    q, c : float
        Variance and correlation of the pre-activations, c in [0, 1).
    widest : float
        Largest width of a panel.

    Raises
    ------
    ArgumentError
        If σ has no finite fourth moment.
    """
    r = level.inner.variance
    given = _given_shared(layer, level, c, widest)
    weight, moments = given.weight, given.products
    first = moments[:, 0]  # E (1, x, y, u, x²) given z_0
    mean = weight @ moments.reshape(len(weight), -1)
    own, growth, tilt = (float(mean[5 * 4 + k]) for k in (0, 2, 3))
    # E x² = own, E x² y = growth and E x² u = tilt.
    pair = float(weight @ first[:, 1] ** 2)
    slopes = given.scores[:, 0] / math.sqrt(r * (1.0 - c))
    stretches = given.scores[:, 1] / math.sqrt(r * (1.0 - c)) - first[:, 1]
    p, s = float(weight @ (stretches * first[:, 1])), float(weight @ (slopes * first[:, 1]))
    of_covariance = float(weight @ slopes**2)
    of_variance = 0.5 * (p / r - c * of_covariance)
    length_slope = growth / r**2  # the derivative of E x² with respect to r

    entry, diagonal = np.zeros((5, 5)), np.zeros(5)
    entry[1, 1], diagonal[4] = 1.0, 1.0
    w = layer.weight_variance
    if layer.norm == "none":
        jacobian = length_slope, of_variance, of_covariance
    elif layer.norm_is_first:
        entry[0, 2] = entry[2, 0] = -p
        diagonal[2] = -2.0 * growth / r
        if layer.norm == "layer":
            entry[0, 3] = entry[3, 0] = -s
            diagonal[3] = -tilt / r
        spread = q + layer.eps
        shrink = layer.eps / spread**2
        first_slope = of_variance * shrink - 0.5 * of_covariance * c * r / spread
        jacobian = length_slope * shrink, first_slope, of_covariance / spread
    else:
        entry[0, 4] = entry[4, 0] = -0.5 * pair
        diagonal[4] = 1.0 - own
        jacobian = (
            (1.0 - own) * length_slope,
            of_variance - 0.5 * pair * length_slope,
            of_covariance,
        )
    noise = _covariances(weight, moments, entry, diagonal)
    return PairMoments(own, pair, noise, *(w * one for one in jacobian))


class _Given(NamedTuple):
    """Expectations over z given z_0.

    Attributes
    ----------
    weight : ndarray of shape (nodes,)
        The rule for z_0.
    products : ndarray of shape (nodes, 5, 5)
        E φφᵀ, φ = (1, x, y, u, x²).
    scores : ndarray of shape (nodes, 2)
        E z x and E z u x.
    """

    weight: FloatArray
    products: FloatArray
    scores: FloatArray


def _given_shared(layer: PairLayer, level: Level, c: float, widest: float) -> _Given:
    function, r = layer.function, level.inner.variance
    root, own, shared = math.sqrt(r), math.sqrt(1.0 - c), math.sqrt(c)
    z0, weight = np.zeros(1), np.ones(1)
    if c > 0.0:
        z0, weight = _shared_rule(function.kinks, root, c, widest)
    edges = normal_panels(function.kinks, root, widest, _END)
    steps = subdivided(np.array([-_END, _END]), widest)
    mean, scale = (0.0, 1.0) if layer.norm_is_first else (level.mean, math.sqrt(level.factor))
    products, scores = np.empty((z0.size, 5, 5)), np.empty((z0.size, 2))
    for begin in range(0, z0.size, _ROWS):
        rows = slice(begin, begin + _ROWS)
        moved = (edges - shared * z0[rows, None]) / own
        bounds = np.concatenate([moved, np.broadcast_to(steps, (len(moved), steps.size))], axis=1)
        z, density = row_panels(np.sort(np.clip(bounds, -_END, _END), axis=1), _ORDER)
        density *= np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
        u = root * (shared * z0[rows, None] + own * z)
        with np.errstate(over="ignore", invalid="ignore"):
            x = (np.asarray(function.value(u), dtype=np.float64) - mean) * scale
            basis = np.stack([np.ones_like(x), x, 0.5 * (u * u - r), u, x * x])
            products[rows] = np.einsum("iaz,jaz,az->aij", basis, basis, density, optimize=True)
        weighted = density * z * x
        scores[rows] = np.stack([weighted.sum(axis=1), (weighted * u).sum(axis=1)], axis=1)
    fourth = weight * products[:, 4, 4]
    rim = max(float(fourth[0]), float(fourth[-1])) if c > 0.0 else 0.0
    if not (np.isfinite(products).all() and rim <= _TAIL * float(fourth.sum())):
        allowed = "a function that is finite and has a finite fourth moment"
        hint = f"of a normal variable of variance {r:.6g}"
        raise ArgumentError("activation", function.name, allowed, hint)
    return _Given(weight, products, scores)


def _shared_rule(
    kinks: tuple[float, ...], root: float, c: float, widest: float
) -> tuple[FloatArray, FloatArray]:
    """Return nodes and weights for z_0 ~ N(0, 1).

    Expectations given z_0 change within √((1−c)/c) of a kink.
    """
    scale = root * math.sqrt(c)
    edges, smooth = [normal_panels(kinks, scale, widest, _END)], math.sqrt((1.0 - c) / c)
    while smooth < widest:
        edges += [np.array([kink / scale + side * smooth for kink in kinks]) for side in (-1, 1)]
        smooth *= 2.0
    merged = np.unique(np.clip(np.concatenate(edges), -_END, _END))
    points, half = panel_points(merged, gauss_legendre(_ORDER).nodes)
    weight = half * gauss_legendre(_ORDER).weights * np.exp(-0.5 * points * points)
    return points.ravel(), weight.ravel() / math.sqrt(2.0 * math.pi)


def _covariances(
    weight: FloatArray, moments: FloatArray, entry: FloatArray, diagonal: FloatArray
) -> EntryCovariance:
    """Return the covariances of g_ij = φ_iᵀ `entry` φ_j and g_ii = `diagonal` · φ_i."""
    mean = moments[:, 0]
    image = mean @ entry  # of the other sample, given z_0
    own = mean @ diagonal
    both = np.einsum("ai,ai->a", image, mean)
    mixed = np.einsum("i,aij,aj->a", diagonal, moments, image)
    square = np.einsum("i,aij,j->a", diagonal, moments, diagonal)
    turned = entry @ moments
    pairs = np.einsum("aij,aji->a", turned, turned)
    common = np.einsum("ai,aij,aj->a", image, moments, image)
    length, product = float(weight @ own), float(weight @ both)

    def covariance(values: FloatArray, first: float, second: float) -> float:
        return float(weight @ values) - first * second

    return EntryCovariance(
        ii_ii=covariance(square, length, length),
        ii_jj=covariance(own * own, length, length),
        ii_ij=covariance(mixed, length, product),
        ii_jk=covariance(own * both, length, product),
        ij_ij=covariance(pairs, product, product),
        ij_ik=covariance(common, product, product),
        ij_kl=covariance(both * both, product, product),
    )
