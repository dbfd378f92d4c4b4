"""Implied timescales of a run by VAMP, and whether they obey Chapman and Kolmogorov."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnmc._support.arguments import integer, items, real
from bnmc.errors import ArgumentError, PartialEstimateError
from bnmc.estimate.intervals import half_width, jackknife
from bnmc.mixing._series import (
    LEAST_STRETCHES,
    STRETCH_TIMES,
    Float64Array,
    Function,
    Series,
    centred,
    contrast,
    cuts,
    rate_from_artanh,
    read,
)
from bnmc.mixing.rate import RateEstimate, timescale
from bnmc.simulation.trajectory import Trajectory

__all__ = ["ChapmanKolmogorov", "Spectrum", "spectral"]

#: Multiples of a lag at which its prediction is tested.
MULTIPLES = (2, 3)

#: Directions of features that vary by less than this share of the largest variance are null.
NULL = 1e-10

#: Probability with which the test rejects a lag that it should pass; more would bias the choice.
SIGNIFICANCE = 0.01

#: A chain that is cut gives stretches of at least so many of the longest lag.
LAGS_IN_A_STRETCH = 20
_ULP = 2.0**-53


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
        error, at the level of 1 % for all multiples together (Bonferroni).
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
        default, for the norm "batch", one component of G of each of the two kinds that permutations
        of the batch do not mix.
    burn_in : int, default 0
        First layer that counts: the run is taken for stationary from here on.
    level : float, default 0.95
        Level of the intervals, in (0, 1).

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
    is not assumed.  For a reversible chain the σ are the moduli of the eigenvalues at every lag;
    for others ``σ₁(h)^{1/h}`` is a norm and tends to the leading modulus from above as h grows.
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
    the difference, at a level of 1 %; it looks at the leading value only, where deeptime compares
    all entries of the matrices.  The estimate is that of the first lag that passes.  Features that
    see a slow mode together with noise do not pass until the lag is long, nor do those of a chain
    that is far from reversible.

    Of 5500 runs each, intervals cover 94.4 to 94.6 % of the time with one feature (AR(1) processes
    and tanh chains of width 100), and 96.7 to 97.8 % with two or three.

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
    longest = max(MULTIPLES) * steps[-1]
    if chains * (layers - longest) < 4 * rank:
        raise ArgumentError("run", run, f"at least {4 * rank} pairs of layers a lag apart")

    strongest = float(_singular_values(_moments(x, steps[0], np.zeros(1, np.intp)).sum(0))[0])
    rate = min(strongest ** (1 / steps[0]), 1.0 - _ULP)
    shortest = max(STRETCH_TIMES * (1 + rate) / (1 - rate), LAGS_IN_A_STRETCH * steps[-1])
    starts = cuts(chains, layers - longest, shortest)
    stretches = chains * len(starts)
    learnt = stretches // 2 if rank > 1 else 0

    def refuse(reason: str) -> PartialEstimateError:
        sigma, pairs = min(strongest, 1.0 - _ULP), chains * (layers - steps[0])
        gaussian = 1.0 / math.sqrt((1.0 - sigma**2) * pairs)
        lag = series.stride * steps[0]
        everything = (-math.inf, math.inf)
        rate, stderr, ci = rate_from_artanh(math.atanh(sigma), gaussian, everything, lag)
        partial = RateEstimate(rate, stderr, ci, stretches, f"spectral, lag {lag}", level)
        return PartialEstimateError(reason, partial)

    if stretches - learnt < LEAST_STRETCHES:
        raise refuse(f"{stretches} stretches of the run are too few for an error")
    moments = {k * h: _moments(x, k * h, starts) for h in steps for k in (1, *MULTIPLES)}
    try:
        spectra = [_singular_values(_all_and_all_but_one(moments[h])) for h in steps]
        leading = {h: _along_learnt_directions(m, learnt) for h, m in moments.items()}
    except np.linalg.LinAlgError:
        raise refuse("the features are constant or dependent in a part of the run") from None
    if max(float(np.abs(leading[h]).max()) for h in steps) >= 1:
        raise refuse("features have a correlation of 1: they do not forget")

    test = _chapman_kolmogorov(leading, steps)
    rates = tuple(
        _rate(leading[h], spectrum[:, 0], series.stride * h, level)
        for h, spectrum in zip(steps, spectra, strict=True)
    )
    chosen = rates[int(np.argmax(test.passed)) if test.passed.any() else -1]
    result = Spectrum(
        rate=chosen.rate,
        stderr=chosen.stderr,
        ci=chosen.ci,
        n=chosen.n,
        method=chosen.method,
        level=level,
        lags=series.stride * np.array(steps),
        rates=rates,
        singular_values=np.stack([spectrum[0] for spectrum in spectra]),
        singular_errors=np.stack([jackknife(s[0], s[1:])[1] for s in spectra]),
        eigenvalues=np.stack([_eigenvalues(moments[h].sum(axis=0)) for h in steps]),
        chapman_kolmogorov=test,
    )
    if not test.passed.any():
        raise PartialEstimateError("the Chapman–Kolmogorov test rejects every lag", result)
    return result


def _features(run: object, observables: object, burn_in: int) -> Series:
    """Read the observables, by default what permutations of the batch distinguish."""
    if observables is not None or not isinstance(run, Trajectory):
        return read(run, "observables", observables, burn_in)
    n = run.chain.batch
    if run.chain.norm != "batch" or run.inputs is not None or n < 3:
        hint = 'the default is for norm "batch", a batch of 3 or more and a run without inputs='
        raise ArgumentError("observables", None, "names in the run or functions of G", hint)
    matrices = np.stack([contrast(n, which) for which in range(min(n - 2, 2))]).reshape(-1, n * n)
    return read(run, "observables", lambda G: matrices @ G.ravel(), burn_in)


def _steps(lags: int | Iterable[int], series: Series) -> list[int]:
    """Return the lags in recorded layers, ascending."""
    if isinstance(lags, (int, np.integer)):
        lags = [int(lags)]
    wanted = sorted(
        {integer("lags", lag, low=1) for lag in items("lags", lags, "an integer or integers")}
    )
    if not wanted:
        raise ArgumentError("lags", wanted, "at least one lag")
    last = (len(series.layers) - 1) * series.stride
    for lag in wanted:
        if lag % series.stride or max(MULTIPLES) * lag > last:
            allowed = f"multiples of {series.stride} up to {last // max(MULTIPLES)}"
            raise ArgumentError("lags", lag, allowed)
    return [lag // series.stride for lag in wanted]


def _whitened(x: Float64Array) -> Float64Array:
    """Return uncorrelated features of variance 1, without the null directions."""
    variances, directions = np.linalg.eigh(np.einsum("clf,clg->fg", x, x) / (x.size / x.shape[2]))
    kept = variances > NULL * variances[-1]
    whitened: Float64Array = x @ (directions[:, kept] / np.sqrt(variances[kept]))
    return whitened


def _moments(x: Float64Array, lag: int, starts: NDArray[np.intp]) -> Float64Array:
    """Return sums of ``x_l x_{l+lag}ᵀ`` and of both squares, (stretches, 2, r, r)."""
    chains, layers, rank = x.shape
    now, later = x[:, : layers - lag], x[:, lag:]
    sums = np.empty((chains, len(starts), 2, rank, rank))
    for piece, (start, stop) in enumerate(pairwise([*starts, layers - lag])):
        a, b = now[:, start:stop], later[:, start:stop]
        sums[:, piece, 0] = a.swapaxes(1, 2) @ b
        sums[:, piece, 1] = a.swapaxes(1, 2) @ a + b.swapaxes(1, 2) @ b
    return sums.reshape(-1, 2, rank, rank)


def _all_and_all_but_one(sums: Float64Array) -> Float64Array:
    total = sums.sum(axis=0)
    joined: Float64Array = np.concatenate([total[None], total - sums])
    return joined


def _koopman(sums: Float64Array) -> tuple[Float64Array, Float64Array]:
    """Return ``L⁻¹ C(h) L⁻ᵀ`` and L, where ``L Lᵀ = C``; its singular values are σ."""
    L = np.linalg.cholesky(sums[..., 1, :, :] / 2)
    half = np.linalg.solve(L, sums[..., 0, :, :])
    matrix: Float64Array = np.linalg.solve(L, half.swapaxes(-2, -1)).swapaxes(-2, -1)
    return matrix, L.astype(np.float64, copy=False)


def _singular_values(sums: Float64Array) -> Float64Array:
    values = np.linalg.svd(_koopman(sums)[0], compute_uv=False)
    return values.astype(np.float64, copy=False)


def _eigenvalues(sums: Float64Array) -> NDArray[np.complex128]:
    values = np.linalg.eigvals(_koopman(sums)[0]).astype(np.complex128)
    return values[np.argsort(-np.abs(values), kind="stable")]


def _along_learnt_directions(sums: Float64Array, learnt: int) -> Float64Array:
    """Return the leading correlation in the stretches held out: of all, and all but one of them."""
    if learnt:
        matrix, L = _koopman(sums[:learnt].sum(axis=0))
        left, _, right = np.linalg.svd(matrix)
        u, v = np.linalg.solve(L.T, np.stack([left[:, 0], right[0]], axis=1)).T
    else:
        u = v = np.ones(1)
    held = sums[learnt:]
    parts = [u @ held[:, 0] @ v, u @ held[:, 1] @ u / 2, v @ held[:, 1] @ v / 2]
    products, before, after = (_all_and_all_but_one(part) for part in parts)
    correlations: Float64Array = products / np.sqrt(before * after)
    return correlations


def _rate(leading: Float64Array, largest: Float64Array, lag: int, level: float) -> RateEstimate:
    """Return the rate from held-out correlations and the largest singular values of all data."""
    z, stderr = jackknife(math.atanh(leading[0]), np.arctanh(leading[1:]))
    half = half_width(stderr, len(leading) - 2, level)
    rate, error, (low, high) = rate_from_artanh(z, stderr, (z - half, z + half), lag)
    if len(largest) > len(leading):
        z_all = np.arctanh(np.minimum(largest, 1.0 - _ULP))
        _, stderr_all = jackknife(z_all[0], z_all[1:])
        highest = z_all[0] + half_width(stderr_all, len(largest) - 2, level)
        high = max(high, math.tanh(highest) ** (1.0 / lag))
    return RateEstimate(rate, error, (low, high), len(leading) - 1, f"spectral, lag {lag}", level)


def _chapman_kolmogorov(leading: dict[int, Float64Array], steps: list[int]) -> ChapmanKolmogorov:
    shape = (len(steps), len(MULTIPLES))
    predicted, measured, difference, stderr = (np.empty(shape) for _ in range(4))
    for row, h in enumerate(steps):
        for column, k in enumerate(MULTIPLES):
            prediction, found = leading[h] ** k, leading[k * h]
            predicted[row, column], measured[row, column] = prediction[0], found[0]
            gap = found - prediction
            difference[row, column], stderr[row, column] = jackknife(gap[0], gap[1:])
    degrees = len(leading[steps[0]]) - 2
    allowed = half_width(1.0, degrees, 1.0 - SIGNIFICANCE / len(MULTIPLES))
    passed = np.asarray((np.abs(difference) <= allowed * stderr).all(axis=1))
    return ChapmanKolmogorov(MULTIPLES, predicted, measured, stderr, passed)
