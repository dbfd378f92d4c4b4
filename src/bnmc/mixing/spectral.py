"""Implied timescales of a run by VAMP, and whether they obey Chapman and Kolmogorov."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnmc._validate import integer, real
from bnmc.errors import ArgumentError, ArgumentTypeError, PartialEstimateError
from bnmc.mixing.rate import (
    LEAST_STRETCHES,
    STRETCH_TIMES,
    Float64Array,
    Function,
    RateEstimate,
    Series,
    centred,
    contrast,
    cuts,
    gram_of,
    half_width,
    jackknife,
    rate_from_artanh,
    read,
    timescale,
)
from bnmc.trajectory import Trajectory

__all__ = ["ChapmanKolmogorov", "Spectrum", "spectral"]

#: Multiples of a lag at which its prediction is tested.
MULTIPLES = (2, 3)
#: Directions of features that vary by less than this share of the largest variance are null.
NULL = 1e-10


@dataclass(frozen=True, eq=False)
class ChapmanKolmogorov:
    """Whether the leading singular value at a multiple of a lag is its power.

    Attributes
    ----------
    multiples : tuple of int
        k.
    predicted, measured : (lags, multiples) ndarray of float64
        ``σ(lag)^k`` and ``σ(k · lag)``.
    stderr : (lags, multiples) ndarray of float64
        Standard error of their difference.
    passed : (lags,) ndarray of bool
        Whether, at this lag, no difference is larger than Student's quantile times its standard
        error, at the level of the estimate for all multiples together (Bonferroni).
    """

    multiples: tuple[int, ...]
    predicted: Float64Array
    measured: Float64Array
    stderr: Float64Array
    passed: NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, eq=False)
class Spectrum(RateEstimate):
    """Spectral estimates at several lags; as a rate, the leading one of the lag that is chosen.

    Attributes
    ----------
    rate, stderr, ci, n, method, level, alpha, timescale
        As of a `RateEstimate`: that of `rates` at the first lag that passes the test.
    lags : (lags,) ndarray of int
        In layers.
    rates : tuple of RateEstimate
        ``σ^(1/lag)`` for the leading singular value σ, measured with held-out stretches.
    singular_values : (lags, r) ndarray of float64
        VAMP: of the whitened time-lagged covariance of all data, descending; r is the rank of the
        features.
    singular_errors : (lags, r) ndarray of float64
        Their standard errors. Those of nearly equal values are biased away from each other.
    eigenvalues : (lags, r) ndarray of complex128
        TICA without the assumption of reversibility: eigenvalues of the same matrix, by modulus.
    chapman_kolmogorov : ChapmanKolmogorov
        The test at each lag.
    """

    lags: NDArray[np.int64]
    rates: tuple[RateEstimate, ...]
    singular_values: Float64Array
    singular_errors: Float64Array
    eigenvalues: NDArray[np.complex128]
    chapman_kolmogorov: ChapmanKolmogorov

    @property
    def timescales(self) -> Float64Array:
        """Implied timescales ``−lag / ln σ`` in layers, (lags, r); inf for σ >= 1."""
        implied = [
            [timescale(min(sigma, 1.0)) * lag for sigma in row]
            for lag, row in zip(self.lags, self.singular_values, strict=True)
        ]
        return np.array(implied)


def spectral(
    run: Trajectory | ArrayLike,
    lags: int | Iterable[int],
    *,
    observables: str | Function | Sequence[str | Function] | None = None,
    burn_in: int = 0,
    level: float = 0.95,
) -> Spectrum:
    r"""Estimate implied timescales of observables at several lags.

    Parameters
    ----------
    run : Trajectory or (chains, layers[, features]) array_like
        A run at stationarity, or the values of observables.
    lags : int or iterable of int
        Lags in layers, multiples of the distance of recorded layers; three times the largest must
        be shorter than the run.
    observables : str, callable or a sequence of these, optional
        Names of observables of the run, or functions of G; all their entries are features.  By
        default one component of G of each kind that permutations of the batch distinguish, which
        is all that a chain with norm "batch" remembers.
    burn_in : int, default 0
        First layer that counts: the run is taken for stationary from here on.
    level : float, default 0.95
        Level of the intervals and of the test, in (0, 1).

    Returns
    -------
    Spectrum

    Raises
    ------
    PartialEstimateError
        If there are fewer than 5 stretches of 10 correlation times to take an error from (10 where
        directions have to be learnt), a correlation is 1, or the test rejects every lag.  In the
        last case `partial` is a `Spectrum` with the rate of the longest lag, else a `RateEstimate`
        whose interval is [0, 1].
    ArgumentError, ArgumentTypeError
        For an argument that is not allowed, layers that are not equally spaced, or observables
        none of which varies.

    Notes
    -----
    With x the features less their mean over chains and layers, ``C(h) = E x_l x_{l+h}ᵀ``, and C
    their covariance over the same pairs, the singular values σ of ``C^{-1/2} C(h) C^{-1/2}`` are
    those of the Koopman operator at lag h on the span of the features (VAMP: Wu and Noé, arXiv
    1707.04659); ``−h / ln σ`` are the implied timescales, as deeptime defines them.  Reversibility
    is not assumed.  For a reversible chain the σ are the moduli of the eigenvalues at every lag; for
    others ``σ₁(h)^{1/h}`` is a norm and tends to the leading modulus from above as h grows.
    Features are divided by their standard deviation, and directions whose variance is below 1e-10
    of the largest are left out: nothing is added to the covariance.

    The largest of several noisy singular values is too large.  So directions are learnt in one
    half of the run, and the correlation along them is measured in the other; with one feature
    there is nothing to learn, and all of the run measures.  The standard error is that of a
    jackknife over stretches (chains, cut where there are fewer than 50), the interval Student's in
    artanh σ.  Where several values are so near one another that the leading direction is not
    resolved, what is measured is smaller than σ₁: the upper end is therefore not below that of the
    largest singular value of all data, which is too large.  With one feature intervals are exact to
    first order; with several they are conservative.

    The Chapman–Kolmogorov test compares ``σ(kh)`` with ``σ(h)^k`` for k = 2, 3, with the error of
    the difference.  The estimate is that of the first lag that passes.  Features that see a slow
    mode together with noise do not pass until the lag is long.

    Examples
    --------
    >>> import bnmc
    >>> chain = bnmc.Chain(width=300, batch=4, activation="relu")
    >>> run = bnmc.simulate(chain, 420, chains=50, burn_in=20, rng=0)
    >>> found = spectral(run, [1, 2, 4])
    >>> abs(found.rate - bnmc.MeanField(chain).fixed_point().rate) < 4 * found.stderr
    True
    >>> found.chapman_kolmogorov.passed
    array([ True,  True,  True])
    """
    level = real("level", level, above=0.0, below=1.0)
    series = _features(run, observables, burn_in)
    steps = _steps(lags, series)
    x = _whitened(centred(series, "observables"))
    chains, layers, rank = x.shape

    first = np.linalg.svd(_Pairs(x, steps[0], np.zeros(1, np.intp)).matrix(), compute_uv=False)
    strongest = float(first[0])
'''
