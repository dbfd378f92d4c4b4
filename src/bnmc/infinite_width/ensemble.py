"""The law of the outputs of an ensemble of trained networks: `posterior`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from bnmc._support.arguments import finite_array, real
from bnmc.errors import ArgumentError
from bnmc.infinite_width.spectrum import eigensystem, labels_of
from bnmc.infinite_width.training import learned, times_of
from bnmc.mean_field.float64 import FloatArray

__all__ = ["Posterior", "posterior"]


@dataclass(frozen=True)
class Posterior:
    """Mean and covariance of the outputs of an ensemble of networks during training.

    Attributes
    ----------
    times : (times,) ndarray of float64
    mean : (times, points) or (times, points, outputs) ndarray of float64
        Mean over initializations.
    covariance : (times, points, points) ndarray of float64
        Covariance of each output; different outputs are independent.

    Examples
    --------
    >>> from bnmc.infinite_width import posterior
    >>> law = posterior([[2.0]], [[1.0]], [3.0], [0.0, 100.0])
    >>> law.mean[:, 0].round(6), law.covariance[:, 0, 0].round(6)
    (array([0., 3.]), array([1., 0.]))
    """

    times: FloatArray
    mean: FloatArray
    covariance: FloatArray


def posterior(
    tangent: ArrayLike,
    prior: ArrayLike,
    y: ArrayLike,
    times: ArrayLike,
    *,
    learning_rate: float = 1.0,
    test_tangent: ArrayLike | None = None,
    test_prior: ArrayLike | None = None,
    test_covariance: ArrayLike | None = None,
) -> Posterior:
    """Law of the outputs of infinitely wide networks, trained from random initializations.

    Parameters
    ----------
    tangent : (samples, samples) array_like
        Θ of the training inputs, as `ntk` returns it. With Θ = K only the output layer is trained;
        for t → ∞ the result is then the posterior of the Gaussian process without noise.
    prior : (samples, samples) array_like
        K of the training inputs, as `nngp` returns it: the covariance of the initial outputs.
    y : (samples,) or (samples, outputs) array_like
        Labels, real numbers; the loss is squared.
    times : (times,) array_like
        Times t >= 0, nondecreasing; see `descent`.
    learning_rate : float, default 1.0
        η > 0.
    test_tangent, test_prior : (tests, samples) array_like, optional
        Θ and K of the test inputs with the training inputs.
    test_covariance : (tests, tests) array_like, optional
        K of the test inputs. The three are given together; without them the result is for the
        training inputs.

    Returns
    -------
    Posterior
        Outputs at different points are jointly Gaussian, at each time.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If an argument is not such an array, `tangent` or `prior` is not positive semidefinite, or
        only some of the three test arguments are given.

    Notes
    -----
    Gradient flow maps the initial outputs linearly. With n samples and
    ``M_t = Θ_test Θ⁻¹ (1 − exp(−η t Θ / n))``, the outputs are ``f_t = f_0 + M_t (y − ŷ_0)``, and

        E f_t = M_t y,
        Cov f_t = K_test,test − M_t K_testᵀ − K_test M_tᵀ + M_t K M_tᵀ

    (Lee et al., arXiv 1902.06720, eq. (15) and (16), where the loss is a sum, not a mean).

    Examples
    --------
    >>> from bnmc.infinite_width import posterior
    >>> law = posterior([[2.0]], [[1.0]], [3.0], [0.0, 100.0])
    >>> law.mean.round(6), law.covariance.round(6)
    (array([[0.],
           [3.]]), array([[[1.]],
    <BLANKLINE>
           [[0.]]]))
    """
    values, vectors = eigensystem("tangent", tangent)
    n = values.size
    labels = labels_of("y", y, n)
    when = times_of(times)
    rate = real("learning_rate", learning_rate, above=0.0)
    square = finite_array("prior", prior, shape=(n, n)).astype(np.float64)
    eigensystem("prior", square)
    given = {
        "test_tangent": test_tangent,
        "test_prior": test_prior,
        "test_covariance": test_covariance,
    }
    missing = [name for name, value in given.items() if value is None]
    if 0 < len(missing) < len(given):
        allowed = "all of test_tangent, test_prior and test_covariance, or none"
        raise ArgumentError(missing[0], None, allowed)
    if missing:
        start = np.exp(-rate / n * when[:, None] * values)
        # Without test inputs M_t = 1 − exp(−η t Θ / n), and f_t − y is the rest of ŷ_0 − y.
        rest = np.einsum("ij,tj,kj->tik", vectors, start, vectors, optimize=True)
        mean = labels - np.einsum("tik,k...->ti...", rest, labels)
        return Posterior(when, mean, _symmetric(rest @ square @ np.swapaxes(rest, 1, 2)))
    across = finite_array("test_tangent", test_tangent, shape=("tests", n)).astype(np.float64)
    m = across.shape[0]
    cross = finite_array("test_prior", test_prior, shape=(m, n)).astype(np.float64)
    own = finite_array("test_covariance", test_covariance, shape=(m, m)).astype(np.float64)
    pulls = learned(values, rate / n * when)
    maps = np.einsum("ij,tj,kj->tik", across @ vectors, pulls, vectors, optimize=True)
    mixed = maps @ cross.T
    covariance = own - mixed - np.swapaxes(mixed, 1, 2) + maps @ square @ np.swapaxes(maps, 1, 2)
    return Posterior(when, np.einsum("tik,k...->ti...", maps, labels), _symmetric(covariance))


def _symmetric(matrices: FloatArray) -> FloatArray:
    return np.asarray(0.5 * (matrices + np.swapaxes(matrices, 1, 2)))
