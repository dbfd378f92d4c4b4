"""Gram matrices, activations and oracles for the tests of the mean-field map.

Standard errors of 8 shifts are compared through Student's law with 7 degrees of freedom, those of
at least 100 blocks of samples through the normal law.  FALSE_ALARM bounds the probability of a
false alarm per test.
"""

import math

import numpy as np
from scipy import special, stats

from bnmc.chain import Chain
from bnmc.chain.activations import Activation
from bnmc.mean_field import MeanField
from bnmc.mean_field.map.iteration import SHIFTS, Step

FALSE_ALARM = 1e-6

HOMOGENEOUS = ("linear", "relu", "leaky_relu", "abs")

SMOOTH = ("tanh", "sigmoid", "gelu", "sin")


def mean_field(activation, batch, **options) -> MeanField:
    return MeanField(Chain(width=100, batch=batch, activation=activation, **options))


def relu(x):
    return x if x > 0.0 else 0.0


def hard_tanh(x):
    return min(max(x, -1.0), 1.0)


def jump(x):
    return 1.0 if x > 0.3 else 0.0


def hidden_relu(x):
    """relu by a function of unknown code, so that it does not count as homogeneous."""
    return 0.5 * (x + math.fabs(x))


HIDDEN_RELU = Activation(hidden_relu, kinks=(0.0,), name="hidden relu")


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
    keep = values > 1e-13 * values[-1]
    return values[keep], vectors[:, keep]


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


def sampled(chain, G, count, seed):
    """Blocks of samples of σ(φ) σ(φ)ᵀ, (200, n, n)."""
    n = chain.batch
    values, vectors = np.linalg.eigh(G)
    root = vectors * np.sqrt(np.clip(values, 0, None))
    rng = np.random.default_rng(seed)
    blocks = []
    for _ in range(200):
        row = chain.gain * rng.standard_normal((count // 200, n)) @ root.T
        if chain.norm == "batch":
            row -= row.mean(axis=1, keepdims=True)
        if chain.norm != "none":
            row /= np.sqrt((row**2).mean(axis=1, keepdims=True) + chain.eps)
        a = chain.activation(row)
        blocks.append(a.T @ a / len(a))
    return np.array(blocks)


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
