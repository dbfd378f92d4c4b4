"""Activations, Gram matrices and oracles for the tests of the mean field.

The oracles share no code with the package, except for the values of an activation: quadratures on
spheres and on the plane, orthogonal series, closed forms, and sampling.

Standard errors of 8 shifts are compared through Student's law with 7 degrees of freedom, those of
at least 100 blocks of samples through the normal law.  FALSE_ALARM bounds the probability of a
false alarm per test.  `assert_mean` allows 5.5 standard errors on each number: a false alarm has
probability 4e-8 a number, and no test compares more than 20 numbers.
"""

import math
from functools import reduce

import numpy as np
from oracle import FALSE_ALARM
from scipy import special, stats
from scipy.linalg import solve_discrete_lyapunov

from bnmc.chain import Chain
from bnmc.chain.activations import Activation
from bnmc.mean_field import FixedPoint, MeanField
from bnmc.mean_field.map.iteration import SHIFTS, Step

HOMOGENEOUS = ("linear", "relu", "leaky_relu", "abs")

SMOOTH = ("tanh", "sigmoid", "gelu", "sin")


# --- chains and activations


def mean_field(activation, batch, **options) -> MeanField:
    return MeanField(Chain(width=100, batch=batch, activation=activation, **options))


def fixed_point(activation, batch, **options) -> FixedPoint:
    return mean_field(activation, batch, **options).fixed_point()


def hard_tanh(x):
    return min(max(x, -1.0), 1.0)


def jump(x):
    return 1.0 if x > 0.3 else 0.0


def sign(x):
    return 1.0 if x > 0.0 else -1.0


def hard_swish(x):
    return x * min(max(x + 3.0, 0.0), 6.0) / 6.0


HARD_SWISH = Activation(hard_swish, kinks=(-3.0, 3.0))

EXP = Activation(lambda x: math.exp(x), name="exp")

# relu by a function of unknown code, so that it does not count as homogeneous.
HIDDEN_RELU = Activation(lambda x: 0.5 * (x + math.fabs(x)), kinks=(0.0,), name="hidden relu")


# --- Gram matrices


def random_gram(n, seed, rank=None, spread=2.0):
    """A Gram matrix of unequal samples; of full rank if `rank` is not given."""
    rng = np.random.default_rng(seed)
    a = rng.standard_normal((rank or 3 * n, n)) * np.linspace(1.0, spread, n)
    return a.T @ a / len(a)


def spectral_gram(values, seed):
    """A Gram matrix with given eigenvalues."""
    q = np.linalg.qr(np.random.default_rng(seed).standard_normal((len(values),) * 2))[0]
    return q * values @ q.T


def seen(G, norm):
    """Eigenvalues and eigenvectors of what the norm sees of G, those of 0 left out."""
    n = len(G)
    P = np.eye(n) - 1 / n if norm == "batch" else np.eye(n)
    values, vectors = np.linalg.eigh(P @ G @ P)
    positive = values > 1e-13 * values[-1]
    return values[positive], vectors[:, positive]


# --- spheres


def sphere(dimension, order):
    """Points and weights of a product rule on the unit sphere."""
    if dimension == 2:
        angle = math.pi * (np.arange(2 * order) + 0.5) / order
        return np.stack([np.cos(angle), np.sin(angle)], axis=1), np.full(2 * order, 0.5 / order)
    t, outer = special.roots_gegenbauer(order, dimension / 2 - 1)
    points, inner = sphere(dimension - 1, order)
    rest = np.sqrt(1 - t**2)[:, None, None] * points
    first = np.broadcast_to(t[:, None, None], (*rest.shape[:2], 1))
    joined = np.concatenate([first, rest], axis=2).reshape(-1, dimension)
    return joined, np.outer(outer / outer.sum(), inner).ravel()


def normalized_rows(n, order, centred=True):
    """Points and weights of the sphere of radius √n, of vectors that sum to 0 if `centred`."""
    points, weight = sphere(n - centred, order)
    basis = np.linalg.svd(np.ones((1, n)))[2][1:] if centred else np.eye(n)
    return math.sqrt(n) * points @ basis, weight


def on_sphere(G, sigma, norm="batch"):
    """F(G) where S has rank 3: directions have the density ∝ (θᵀ S⁻¹ θ)^(−3/2)."""
    values, vectors = seen(G, norm)
    assert values.size == 3
    theta, weight = sphere(3, 200)
    density = weight * (theta**2 / values).sum(axis=1) ** -1.5
    a = sigma(np.sqrt(len(G)) * theta @ vectors.T)
    return a.T * (density / density.sum()) @ a


def on_circle(G, sigma, norm="batch"):
    """F(G) where S has rank 2: an integral over the angle of the Gaussian.

    Cut where a φ_i is 0, and where φ turns faster than the angle if S is nearly of rank 1.
    """
    values, vectors = seen(G, norm)
    assert values.size == 2
    root = vectors * np.sqrt(values)
    fast = np.sqrt(values[0] / values[1]) * 4.0 ** np.arange(-3, 12)
    fast = fast[fast < 1.0]
    cuts = np.concatenate([np.arctan2(-root[:, 0], root[:, 1]), fast, -fast, [0.0]]) % np.pi
    cuts = np.append(np.unique(cuts), np.pi)
    edges = np.concatenate([cuts, cuts[1:] + np.pi])
    nodes, weights = special.roots_legendre(80)
    half = np.diff(edges)[:, None] / 2
    angle = (edges[:-1, None] + half + half * nodes).ravel()
    u = root @ np.stack([np.cos(angle), np.sin(angle)])
    a = sigma(np.sqrt(len(G)) * u / np.linalg.norm(u, axis=0))
    return a * (half * weights).ravel() @ a.T / (2 * np.pi)


def brute_force(function, points, weight, *, centred):
    """Return G*, the Jacobian, the stationary covariance and the bias, over all n² entries.

    `points` are √n u with u uniform: the row is w = (PG*P)^½ u times a length that does not matter.
    The bias is E G − G* times the width, to leading order.
    """
    n = points.shape[1]
    m = n - centred
    projector = np.eye(n) - centred / n
    gram = np.eye(n) + 0.1
    for _ in range(200):
        values, vectors = np.linalg.eigh(projector @ gram @ projector)
        root = (vectors * np.sqrt(values.clip(0.0))) @ vectors.T
        rows = points @ root
        rows *= np.sqrt(n) / np.linalg.norm(rows, axis=1, keepdims=True)
        s = function(rows)
        previous, gram = gram, (s * weight[:, None]).T @ s
        if np.abs(gram - previous).max() < 1e-13:
            break
    outer = (s[:, :, None] * s[:, None, :]).reshape(len(s), -1)
    noise = (outer * weight[:, None]).T @ outer - np.outer(gram.ravel(), gram.ravel())
    # DF(G)[Δ] = ½ E[σσᵀ (qᵀΔq − tr (PGP)⁻¹Δ)] with q = √m (PGP)^(−½) u.
    inverse = np.linalg.pinv(projector @ gram @ projector, rcond=1e-9)
    q = math.sqrt(m / n) * points @ np.linalg.pinv(root, rcond=1e-6)
    squares = (q[:, :, None] * q[:, None, :]).reshape(len(s), -1)
    jacobian = 0.5 * (outer * weight[:, None]).T @ (squares - inverse.ravel())
    stationary = solve_discrete_lyapunov(jacobian, noise)
    # F″[S] = E[σσᵀ Q] less its mean, with Q of `bnmc.mean_field.finite_width.bias`.
    S = stationary.reshape((n,) * 4)
    score = 0.25 * (m + 2) / m * np.einsum("ra,ab,rb->r", squares, stationary, squares)
    score -= 0.5 * squares @ stationary @ inverse.ravel()
    score -= np.einsum("ri,ijkm,jk,rm->r", q, S, inverse, q)
    score -= weight @ score
    second = (outer * weight[:, None]).T @ score
    bias = np.linalg.solve(np.eye(n * n) - jacobian, 0.5 * second).reshape(n, n)
    # The points are not symmetric in the samples.
    diagonal = np.trace(bias) / n
    other = (bias.sum() - np.trace(bias)) / (n * (n - 1))
    return gram, jacobian, stationary, (diagonal - other) * np.eye(n) + other


def gegenbauer_fixed_point(sigma, n, terms=160, rule=None, energy=None):
    """b, c, λ_L, λ_M, and the rates of gradients and between batches: series of Gegenbauer.

    E f(x) g(y) = Σ f_k g_k P_k(ρ).

    The rule of a coordinate x and the energy E σ′² (m − x²) are those of smooth functions, unless
    given.
    """
    m, rho = n - 1, -1.0 / (n - 1)
    alpha = (m - 2) / 2
    if rule is None:
        t, weight = special.roots_gegenbauer(2 * terms, alpha)
        x, weight = math.sqrt(m) * t, weight / weight.sum()
    else:
        x, weight = rule
    k = np.arange(terms)
    # Normalized to 1 at 1 by recurrence: (k+2α) P_{k+1} = 2(k+α) t P_k − k P_{k−1}.
    points = np.append(x / math.sqrt(m), rho)
    p = np.ones((terms, points.size))
    p[1] = points
    for i in range(1, terms - 1):
        p[i + 1] = (2 * (i + alpha) * points * p[i] - i * p[i - 1]) / (i + 2 * alpha)
    polynomials, at_rho = p[:, :-1], p[:, -1]
    norms = polynomials**2 @ weight
    value = sigma(x) - weight @ sigma(x)

    def coefficients(power):
        return polynomials @ (weight * value * x**power) / np.sqrt(norms)

    def pair(p, q):
        return float(np.sum(coefficients(p) * coefficients(q) * at_rho))

    mu = weight @ value**2 - pair(0, 0)
    b = weight @ sigma(x) ** 2
    square = weight @ (value**2 * (x**2 - 1))
    cross = pair(2, 0) - pair(0, 0)
    lambda_l = n / (2 * mu * (n - 2)) * ((1 - 2 / n) * square - 2 * (1 - 1 / n) * cross)
    square = 2 * pair(1, 1) + 2 * pair(2, 0)
    others = (square + 2 * pair(2, 0) - n * pair(0, 0)) / ((n - 2) * (n - 3))
    lambda_m = (n - 1) / (n * mu) * (pair(1, 1) + square / (n - 2) + others)
    energies = k * (k + m - 2.0) * coefficients(0) ** 2
    total = energies.sum() if energy is None else energy
    backward = float(total - energies @ at_rho) / (mu * (n - 3))
    gamma = math.gamma(n / 2) / math.gamma((n - 1) / 2)
    between = 2 * n / (n - 1) ** 2 * gamma**2 * (weight @ (value * x)) ** 2 / mu
    return b, 1 - mu / b, lambda_l, lambda_m, backward, between


# --- normal variables

# The trapezoidal rule: its error is far below rounding if a function is analytic in a strip.
NODES = 0.1 * np.arange(-140.0, 141.0)
WEIGHTS = 0.1 * np.exp(-0.5 * NODES**2) / math.sqrt(2.0 * math.pi)


def pair_mean(f, g, p, q, c):
    """E f(u)g(v) for normal u, v of variances p, q and covariance c."""
    u = math.sqrt(p) * NODES[:, None]
    v = c / p * u + math.sqrt(max(q - c * c / p, 0.0)) * NODES
    return float(WEIGHTS @ (f(u) * g(v)) @ WEIGHTS)


def normal_points(covariance, count):
    """Points and weights for N(0, covariance), by a tensor of Gauss-Hermite rules."""
    n = len(covariance)
    nodes, weights = np.polynomial.hermite_e.hermegauss(count)
    z = np.stack(np.meshgrid(*[nodes] * n, indexing="ij"), axis=-1).reshape(-1, n)
    weight = reduce(np.multiply.outer, [weights / weights.sum()] * n).ravel()
    return z @ np.linalg.cholesky(covariance).T, weight


def limits_of(sigma):
    """b, c, λ_L, λ_M and E σ′²/μ for an infinite batch, of a function with a kink at most at 0."""
    x, weight = special.roots_legendre(400)
    x = np.concatenate([6.0 * x - 6.0, 6.0 * x + 6.0])
    weight = np.tile(6.0 * weight, 2) * np.exp(-0.5 * x**2) / math.sqrt(2.0 * math.pi)
    mean = weight @ sigma(x)
    value = sigma(x) - mean
    mu = weight @ value**2
    slope = (sigma(x + 1e-5) - sigma(x - 1e-5)) / 2e-5
    lambda_l = weight @ (value**2 * (x**2 - 1)) / (2 * mu)
    b = mu + mean**2
    return b, mean**2 / b, lambda_l, (weight @ (value * x)) ** 2 / mu, weight @ slope**2 / mu


def arc_cosine(rho):
    """E σ(u)σ(v) and E σ′(u)σ′(v) of relu, times two, at variance 1 (Cho and Saul)."""
    angle = np.pi - np.arccos(rho)
    return (np.sqrt(np.maximum(1 - rho**2, 0.0)) + angle * rho) / np.pi, angle / np.pi


def erf_pair(q, c):
    """E σ(u)σ(v) of erf at variance q and correlation c (Williams)."""
    return 2 / np.pi * np.arcsin(2 * q * c / (1 + 2 * q))


def erf_slope(q, c):
    """E σ′(u)σ′(v) of erf."""
    return 4 / np.pi / np.sqrt((1 + 2 * q) ** 2 - (2 * q * c) ** 2)


# --- sampling


def pair_of_states(width, variance, correlation, rng):
    """Normal pre-activations of two inputs, with exactly this Gram matrix."""
    z, _ = np.linalg.qr(rng.standard_normal((width, 2)))
    root = np.array([[1.0, correlation], [0.0, np.sqrt(1.0 - correlation**2)]])
    return np.sqrt(variance * width) * z @ root


def reach(samples):
    """How far the mean of independent samples, along axis 0, may be from the truth."""
    samples = np.asarray(samples)
    quantile = stats.t.isf(FALSE_ALARM / 2 / max(samples[0].size, 1), len(samples) - 1)
    return quantile * samples.std(axis=0, ddof=1) / np.sqrt(len(samples))


def sampled_rows(chain, G, count, rng):
    """σ(N(h)) of rows h ~ N(0, gain² G), (count, n)."""
    values, vectors = np.linalg.eigh(G)
    root = vectors * np.sqrt(np.clip(values, 0, None))
    rows = chain.gain * rng.standard_normal((count, chain.batch)) @ root.T
    if chain.norm == "batch":
        rows -= rows.mean(axis=1, keepdims=True)
    if chain.norm != "none":
        rows /= np.sqrt((rows**2).mean(axis=1, keepdims=True) + chain.eps)
    return chain.activation(rows)


def sampled(chain, G, count, seed):
    """Blocks of samples of σ(φ) σ(φ)ᵀ, (200, n, n)."""
    a = sampled_rows(chain, G, count, np.random.default_rng(seed)).reshape(200, -1, chain.batch)
    return a.swapaxes(1, 2) @ a / a.shape[1]


def assert_mean(samples, expected, error=0.0):
    """Mean of independent samples along axis 0, a number a column, within 5.5 standard errors.

    The standard errors are those of the means of 400 blocks.
    """
    blocks = samples.reshape(400, -1, *samples.shape[1:]).mean(axis=1)
    allowed = 5.5 * blocks.std(axis=0, ddof=1) / 20.0 + error
    np.testing.assert_array_less(np.abs(blocks.mean(axis=0) - expected), allowed)


def assert_agrees(step: Step, blocks):
    """Entries on and above the diagonal against the mean of blocks of samples."""
    upper = np.triu_indices(blocks.shape[1])
    stderr = blocks.std(axis=0, ddof=1)[upper] / math.sqrt(len(blocks))
    error = np.abs(np.asarray(step)[upper] - blocks.mean(axis=0)[upper])
    sigmas = stats.norm.isf(FALSE_ALARM / 4 / stderr.size)
    quantile = stats.t.isf(FALSE_ALARM / 4 / stderr.size, SHIFTS - 1)
    assert np.linalg.norm(step.stderr[upper]) < 0.7 * np.linalg.norm(stderr)
    np.testing.assert_array_less(error, sigmas * stderr + quantile * step.stderr[upper])


def assert_within_stderr(step, expected):
    """All entries on and above the diagonal, by Student's law."""
    upper = np.triu_indices(len(expected))
    quantile = stats.t.isf(FALSE_ALARM / 2 / upper[0].size, SHIFTS - 1)
    error = np.abs(step.gram - expected)[upper]
    np.testing.assert_array_less(error, quantile * step.stderr[upper])
