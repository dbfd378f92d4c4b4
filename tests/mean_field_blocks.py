"""Activations and samples for the tests of fixed points of the mean-field map."""

import math

import numpy as np

import bnmc
from bnmc.chain.activations import Activation

SIGMAS = 6.5


def named(name):
    return Activation.named(name)


def exponential(x):
    return math.exp(x)


def hard_swish(x):
    return x * min(max(x + 3.0, 0.0), 6.0) / 6.0


HARD_SWISH = Activation(hard_swish, kinks=(-3.0, 3.0))

EXP = Activation(exponential, name="exp")


def symmetric_point(activation, n):
    return bnmc.MeanField(bnmc.Chain(1, n, activation)).fixed_point()


def rows_of(sigma, gram, count, rng):
    """σ(φ) for rows drawn from N(0, G)."""
    values, vectors = np.linalg.eigh(gram)
    w = rng.standard_normal((count, len(gram))) * np.sqrt(np.clip(values, 0, None)) @ vectors.T
    w -= w.mean(axis=1, keepdims=True)
    return sigma(w / np.sqrt((w**2).mean(axis=1, keepdims=True)))


def assert_mean(samples, expected, error=0.0):
    """Mean of independent samples along axis 0, a number a column, within SIGMAS and an error."""
    allowed = SIGMAS * samples.std(axis=0, ddof=1) / math.sqrt(len(samples)) + error
    np.testing.assert_array_less(np.abs(samples.mean(axis=0) - expected), allowed)
