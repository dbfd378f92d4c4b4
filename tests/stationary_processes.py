"""Autoregressive processes in closed form, and how often the intervals of an estimator cover."""

import math
from concurrent.futures import Executor, Future
from contextlib import suppress

import numpy as np
from scipy import linalg, signal, stats

import bnmc
from bnmc.errors import PartialEstimateError
from bnmc.mixing import autocorrelation


def ar1(rng, chains, layers, rho, start=None):
    """``x' = ρ x + √(1−ρ²) ε``, (chains, layers).

    Stationary, of variance 1, or from `start`: then E x_l = start ρ^l, of variance 1 − ρ^{2l}.
    """
    noise = math.sqrt(1 - rho * rho) * rng.standard_normal((chains, layers))
    if start is None:
        before = rho * rng.standard_normal((chains, 1))
    else:
        noise[:, 0], before = start, np.zeros((chains, 1))
    return signal.lfilter([1.0], [1.0, -rho], noise, axis=1, zi=before)[0]


def var1(rng, chains, layers, A):
    """Stationary ``x' = A x + ε``, (chains, layers, features)."""
    x = np.empty((chains, layers, len(A)))
    x[:, 0] = rng.standard_normal((chains, len(A))) @ stationary_root(A).T
    x[:, 1:] = rng.standard_normal((chains, layers - 1, len(A)))
    for layer in range(1, layers):
        x[:, layer] += x[:, layer - 1] @ A.T
    return x


def stationary_root(A):
    """A factor of the stationary covariance ``C = A C Aᵀ + I``."""
    return np.linalg.cholesky(linalg.solve_discrete_lyapunov(A, np.eye(len(A))))


def singular_values(A, lag):
    root = stationary_root(A)
    return linalg.svdvals(np.linalg.inv(root) @ np.linalg.matrix_power(A, lag) @ root)


def turning(modulus, angle):
    cosine, sine = modulus * math.cos(angle), modulus * math.sin(angle)
    return np.array([[cosine, -sine], [sine, cosine]])


def many(seeds, make):
    """Values of `make`, one after the other, from one generator."""
    rng = np.random.default_rng(2026)
    return (make(rng) for _ in range(seeds))


def times(values, **options):
    """The intervals of rate, integrated time and mean by autocorrelations."""
    estimate = autocorrelation(values, **options)
    return estimate.ci, estimate.time.ci, estimate.mean.ci


def coverage(runs, intervals, truths):
    """Shares of runs whose intervals cover `truths`, and the share of runs that do not raise.

    `intervals` returns the interval of a run, or several, and `truths` are as many.
    """
    covered, count = [], 0
    for values in runs:
        count += 1
        with suppress(PartialEstimateError):
            ends = np.array(intervals(values))
            covered.append((ends[..., 0] <= truths) & (truths <= ends[..., 1]))
    return np.mean(covered, axis=0), len(covered) / count


def lowest(seeds, probability=0.95):
    """Share of successes of at least this probability that is undercut once in a million times."""
    return stats.binom.ppf(1e-6, seeds, probability) / seeds


def thinned_run(values, every):
    """A run that recorded every so many layers of a process as its orthogonality gap."""
    chains, layers = values.shape
    run = bnmc.simulate(
        bnmc.Chain(20, 3, "tanh"), layers - 1, chains=chains, every=every,
        observables="orthogonality_gap", rng=0,
    )  # fmt: skip
    run["orthogonality_gap"][:] = values[:, ::every]
    return run


class AtOnce(Executor):
    """Runs each task as it is submitted: no threads, which cost more than small tasks do."""

    def submit(self, function, /, *args, **kwargs):
        future = Future()
        future.set_result(function(*args, **kwargs))
        return future
