"""Brute force on spheres of two dimensions: an oracle that shares no code with the package.

Points and weights cover the sphere, so every expectation is one weighted sum over σσᵀ in full.
"""

import numpy as np
from scipy.linalg import solve_discrete_lyapunov


def centred_points(n, count):
    """Points of the centred sphere of radius √n for n = 3 (a circle) or 4, and weights."""
    basis = np.linalg.svd(np.ones((1, n)))[2][1:]
    if n == 3:
        angle = 2 * np.pi * (np.arange(count) + 0.5) / count
        unit = np.stack([np.cos(angle), np.sin(angle)], axis=1)
        weight = np.full(count, 1 / count)
    else:
        unit, weight = _sphere(count)
    return np.sqrt(n) * unit @ basis, weight


def full_points(n, count):
    """Points of the sphere of radius √n in n = 2 (a circle), 3 or 4 dimensions, and weights."""
    if n == 2:
        angle = 2 * np.pi * (np.arange(count) + 0.5) / count
        unit, weight = np.stack([np.cos(angle), np.sin(angle)], axis=1), np.full(count, 1 / count)
    elif n == 3:
        unit, weight = _sphere(count)
    else:
        unit, weight = _hypersphere(count)
    return np.sqrt(n) * unit, weight


def _sphere(count):
    """The midpoint rule in height and angle: the area of a sphere is uniform in both."""
    height = (np.arange(count) + 0.5) / count * 2 - 1
    angle = 2 * np.pi * (np.arange(2 * count) + 0.5) / (2 * count)
    radius = np.sqrt(1 - height**2)[:, None]
    unit = np.stack(
        [
            radius * np.cos(angle),
            radius * np.sin(angle),
            np.broadcast_to(height[:, None], (count, 2 * count)),
        ],
        axis=-1,
    ).reshape(-1, 3)
    return unit, np.full(len(unit), 1 / len(unit))


def _hypersphere(count):
    """Gauss's rules in the first coordinate and the height, and the midpoint rule in an angle."""
    first = np.pi * np.arange(1, count + 1) / (count + 1)
    height, of_height = np.polynomial.legendre.leggauss(count)
    angle = 2 * np.pi * (np.arange(2 * count) + 0.5) / (2 * count)
    first, height, angle = (one.ravel() for one in np.meshgrid(first, height, angle, indexing="ij"))
    weight = np.sin(first) ** 2 * np.tile(np.repeat(of_height, 2 * count), count)
    rest, radius = np.sin(first), np.sin(first) * np.sqrt(1 - height**2)
    coordinates = [np.cos(first), rest * height, radius * np.cos(angle), radius * np.sin(angle)]
    return np.stack(coordinates, axis=-1), weight / weight.sum()


def brute_force(function, points, weight, *, centred):
    """Return G*, the Jacobian and the stationary covariance as matrices over all n² entries."""
    n = points.shape[1]
    s = function(points)
    outer = (s[:, :, None] * s[:, None, :]).reshape(len(s), -1)
    gram = weight @ outer
    noise = (outer * weight[:, None]).T @ outer - np.outer(gram, gram)
    gram = gram.reshape(n, n)
    projector = np.eye(n) - centred / n
    m = n - centred
    mu = np.sum(projector * gram) / m
    # Of w ~ N(0, G*), the part that the norm sees is |w| φ/√n with E|w|² = m μ, and
    # DF(G)[Δ] = ½ E[σσᵀ (wᵀ G⁻¹ Δ G⁻¹ w − tr G⁻¹ Δ)].
    score = m / n * (points[:, :, None] * points[:, None, :]).reshape(len(s), -1)
    score -= projector.ravel()
    jacobian = (outer * weight[:, None]).T @ score / (2 * mu)
    return gram, jacobian, solve_discrete_lyapunov(jacobian, noise)


def brute_force_uncentred(function, points, weight):
    """Return the same for a norm that does not centre, with the fixed point of any correlation.

    The last result is the bias: E G − G* times the width, to leading order.

    `points` are √n u with u uniform: the row is w = G*^(½) u times a length that does not matter.
    """
    n = points.shape[1]
    gram = np.eye(n) + 0.1
    for _ in range(200):
        values, vectors = np.linalg.eigh(gram)
        root = (vectors * np.sqrt(values)) @ vectors.T
        rows = points @ root
        rows *= np.sqrt(n) / np.linalg.norm(rows, axis=1, keepdims=True)
        s = function(rows)
        previous, gram = gram, (s * weight[:, None]).T @ s
        if np.abs(gram - previous).max() < 1e-13:
            break
    outer = (s[:, :, None] * s[:, None, :]).reshape(len(s), -1)
    noise = (outer * weight[:, None]).T @ outer - np.outer(gram.ravel(), gram.ravel())
    # DF(G)[Δ] = ½ E[σσᵀ (qᵀΔq − tr G⁻¹Δ)] with q = √n G^(−½) u.
    inverse = np.linalg.inv(gram)
    q = points @ np.linalg.inv(root)
    squares = (q[:, :, None] * q[:, None, :]).reshape(len(s), -1)
    jacobian = 0.5 * (outer * weight[:, None]).T @ (squares - inverse.ravel())
    stationary = solve_discrete_lyapunov(jacobian, noise)
    # F″[S] = E[σσᵀ Q] less its mean, with Q of `bnmc.mean_field.finite_width.bias`.
    S = stationary.reshape((n,) * 4)
    score = 0.25 * (n + 2) / n * np.einsum("ra,ab,rb->r", squares, stationary, squares)
    score -= 0.5 * squares @ stationary @ inverse.ravel()
    score -= np.einsum("ri,ijkm,jk,rm->r", q, S, inverse, q)
    score -= weight @ score
    second = (outer * weight[:, None]).T @ score
    bias = np.linalg.solve(np.eye(n * n) - jacobian, 0.5 * second).reshape(n, n)
    # The points are not symmetric in the samples.
    own, other = np.trace(bias) / n, (bias.sum() - np.trace(bias)) / (n * (n - 1))
    bias = (own - other) * np.eye(n) + other
    return gram, jacobian, stationary, bias
