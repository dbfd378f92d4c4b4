"""`spectral`: implied timescales of a run by VAMP, with the Chapman–Kolmogorov test."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, replace
from itertools import pairwise
from types import MappingProxyType

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnmc._support.arguments import Float64Array, integer, items, real
from bnmc._support.text import Result
from bnmc.errors import ArgumentError, PartialEstimateError
from bnmc.estimate.estimate import Estimates, half_width, jackknife
from bnmc.mixing import observed
from bnmc.mixing.rate import RateEstimate, rate_from_artanh, timescale
from bnmc.plot.drawn import Curves
from bnmc.simulation.trajectory import Trajectory

#: Multiples of a lag at which the test compares prediction and measurement.
_MULTIPLES = (2, 3)

#: Level of the test: the probability that it rejects a lag for which the hypothesis holds.
_SIGNIFICANCE = 0.01

#: The shortest stretch of a chain that is cut, in units of the longest lag.
_LAGS_IN_A_STRETCH = 20

#: Half a unit in the last place of 1.
_ULP = 2.0**-53

#: Directions whose variance is at most this share of the largest variance are left out.
_NULL = 1e-10


@dataclass(frozen=True, eq=False)
class ChapmanKolmogorov(Result):
    """The test that the leading singular value at k times a lag is its k-th power at the lag.

    Attributes
    ----------
    multiples : tuple of int
        k.
    predicted, measured : (lags, multiples) ndarray of float64
        ``σ(lag)^k`` and ``σ(k · lag)``.
    stderr : (lags, multiples) ndarray of float64
        Standard error of their difference.
    passed : (lags,) ndarray of bool
        Whether, at this lag, every difference is at most Student's quantile times its standard
        error, at level 1 % for all multiples together (Bonferroni).

    Examples
    --------
    >>> import bnmc
    >>> run = bnmc.simulate(bnmc.Chain(200, 3, "relu"), 220, chains=40, burn_in=20, rng=0)
    >>> test = bnmc.mixing.spectral(run, [1, 2]).chapman_kolmogorov
    >>> test.multiples, test.passed
    ((2, 3), array([ True,  True]))
    """

    multiples: tuple[int, ...]
    predicted: Float64Array
    measured: Float64Array
    stderr: Float64Array
    passed: NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, eq=False)
class Spectrum(Curves, RateEstimate):
    """Spectral estimates at several lags; the rate is that of the chosen lag.

    `plot` draws the rates against the lag, with their intervals.

    Attributes
    ----------
    rate, stderr, ci, n, method, level, alpha, timescale
        As in `RateEstimate`: those of `rates` at the first lag that passes the test.
    lags : (lags,) ndarray of int
        In layers.
    rates : tuple of RateEstimate
        ``σ^(1/lag)`` for the leading singular value σ, estimated from held-out stretches.
    singular_values : Estimates
        Of the whitened time-lagged covariance of all data (VAMP), (lags, r), descending; r is the
        rank of the features.  Nearly equal values are biased away from each other.
    eigenvalues : (lags, r) ndarray of complex128
        Eigenvalues of the same matrix, by descending modulus (TICA without the assumption of
        reversibility).
    chapman_kolmogorov : ChapmanKolmogorov
        The test at each lag.

    Examples
    --------
    >>> import bnmc
    >>> run = bnmc.simulate(bnmc.Chain(200, 3, "relu"), 220, chains=40, burn_in=20, rng=0)
    >>> found = bnmc.mixing.spectral(run, [1, 2])
    >>> found.lags, found.singular_values.value.shape, found.method
    (array([1, 2]), (2, 1), 'spectral, lag 1')
    """

    _axis = "lags", "lag in layers"
    _curves = MappingProxyType({"rates": "rate: factor per layer"})

    lags: NDArray[np.int64]
    rates: tuple[RateEstimate, ...]
    singular_values: Estimates
    eigenvalues: NDArray[np.complex128]
    chapman_kolmogorov: ChapmanKolmogorov

    @property
    def timescales(self) -> Float64Array:
        """Implied timescales ``−lag / ln σ`` in layers, (lags, r); inf for σ >= 1."""
        of_a_step = np.vectorize(timescale)(np.minimum(self.singular_values.value, 1.0))
        return of_a_step * self.lags[:, None]


def spectral(
    run: Trajectory | ArrayLike,
    lags: int | Iterable[int],
    *,
    observables: str | observed.Function | Sequence[str | observed.Function] | None = None,
    burn_in: int = 0,
    level: float = 0.95,
) -> Spectrum:
    r"""Estimate implied timescales of observables at several lags.

    Parameters
    ----------
    run : Trajectory or (chains, layers[, features]) array_like
        A run at stationarity, or the values of observables.
    lags : int or iterable of int
        Lags in layers: multiples of the spacing of the recorded layers.  Three times the largest
        lag must be shorter than the run.
    observables : str, callable or a sequence of these, optional
        Names of observables of the run, or functions of G; all their entries are features.  The
        default, for the norm "batch", is one component of G in each of the two subspaces that
        permutations of the batch do not mix.
    burn_in : int, default 0
        First layer that is used; the run must be stationary from this layer on.
    level : float, default 0.95
        Level of the intervals, in (0, 1).

    Returns
    -------
    Spectrum

    Raises
    ------
    PartialEstimateError
        If there are fewer than 5 stretches of 10 correlation times (10 stretches for several
        features), a correlation is 1, or the test rejects every lag.  In the last case `partial`
        is a `Spectrum` with the rate of the longest lag, otherwise a `RateEstimate` with the
        interval [0, 1].
    ArgumentError, ArgumentTypeError
        For an argument that is not allowed, layers that are not equally spaced, or observables
        that are all constant.

    Notes
    -----
    With x the features less their mean over chains and layers, ``C(h) = E x_l x_{l+h}ᵀ``, and C
    their covariance over the same pairs, the singular values σ of ``C^{-1/2} C(h) C^{-1/2}`` are
    those of the Koopman operator at lag h on the span of the features (VAMP: Wu and Noé, arXiv
    1707.04659). The implied timescales are ``−h / ln σ``, as in deeptime. Reversibility is not
    assumed. For a reversible chain the σ are the moduli of the eigenvalues at every lag. For other
    chains ``σ₁(h)^{1/h}`` is a norm and tends to the leading modulus from above as h grows.
    Features are divided by their standard deviation, and directions whose variance is below 1e-10
    of the largest are left out; the covariance is not regularized.

    The largest of several noisy singular values is biased upwards.  With several features, the
    leading directions are therefore computed from one half of the run, and the correlation along
    them from the other half.  With one feature the whole run is used.  The standard error comes
    from a jackknife over stretches (chains, cut if there are fewer than 50), and the interval is
    Student's for artanh σ.  If several singular values are so close that the leading direction is
    not resolved, the held-out correlation is smaller than σ₁.  The upper end of the interval is
    therefore at least that of the largest singular value of all data, which is biased upwards.
    Intervals are exact to first order with one feature, and conservative with several.

    The Chapman–Kolmogorov test compares ``σ(kh)`` with ``σ(h)^k`` for k = 2, 3 at level 1 %, with
    the standard error of the difference.  It tests the leading value only, whereas deeptime
    compares all entries of the matrices.  The estimate is that of the first lag that passes.
    Features in which noise is added to a slow mode pass only at long lags, and so do features of a
    chain that is far from reversible.

    In 5500 runs each, intervals covered 94.4 to 94.6 % of the time with one feature (AR(1)
    processes and tanh chains of width 100), and 96.7 to 97.8 % with two or three.

    Examples
    --------
    >>> from bnmc.mixing import spectral
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
    x = whitened(observed.standardized(series, "observables"))
    chains, layers, rank = x.shape
    longest = max(_MULTIPLES) * steps[-1]
    if chains * (layers - longest) < 4 * rank:
        raise ArgumentError("run", run, f"at least {4 * rank} pairs of layers a lag apart")

    strongest = float(singular_values(_lagged_sums(x, steps[0], np.zeros(1, np.intp)).sum(0))[0])
    rate = min(strongest ** (1 / steps[0]), 1.0 - _ULP)
    shortest = max(observed.STRETCH_TIMES * (1 + rate) / (1 - rate), _LAGS_IN_A_STRETCH * steps[-1])
    starts = observed.cuts(chains, layers - longest, shortest)
    stretches = chains * len(starts)

    def without_interval(reason: str) -> PartialEstimateError:
        """Return the error with the rate of the first lag, and the error of a Gaussian process."""
        sigma = min(strongest, 1.0 - _ULP)
        stderr = 1.0 / math.sqrt((1.0 - sigma**2) * chains * (layers - steps[0]))
        lag = series.stride * steps[0]
        rate = _rate_at_lag(math.atanh(sigma), stderr, math.inf, lag, stretches, level)
        return PartialEstimateError(reason, rate)

    learnt = stretches // 2 if rank > 1 else 0
    if stretches - learnt < observed.LEAST_STRETCHES:
        raise without_interval(f"{stretches} stretches of the run are too few for an error")
    sums = {k * h: _lagged_sums(x, k * h, starts) for h in steps for k in (1, *_MULTIPLES)}
    try:
        spectra = [singular_values(_all_and_all_but_one(sums[h])) for h in steps]
        leading = {h: _held_out_correlations(m, learnt) for h, m in sums.items()}
    except np.linalg.LinAlgError:
        reason = "the features are constant or dependent in a part of the run"
        raise without_interval(reason) from None
    if max(float(np.abs(leading[h]).max()) for h in steps) >= 1:
        reason = "features have a correlation of 1 over the lag, so they have no timescale"
        raise without_interval(reason)

    test = _chapman_kolmogorov(leading, steps)
    rates = tuple(
        _rate(leading[h], spectrum[:, 0], series.stride * h, level)
        for h, spectrum in zip(steps, spectra, strict=True)
    )
    chosen = rates[int(np.argmax(test.passed)) if test.passed.any() else -1]
    result = Spectrum(
        *astuple(chosen),
        lags=series.stride * np.array(steps),
        rates=rates,
        singular_values=Estimates(
            np.stack([spectrum[0] for spectrum in spectra]),
            np.stack([jackknife(s[0], s[1:])[1] for s in spectra]),
            len(spectra[0]) - 1,
            "jackknife over stretches",
            level,
        ),
        eigenvalues=np.stack([eigenvalues(sums[h].sum(axis=0)) for h in steps]),
        chapman_kolmogorov=test,
    )
    if not test.passed.any():
        raise PartialEstimateError("the Chapman–Kolmogorov test rejects every lag", result)
    return result


def _rate_at_lag(
    z: float, stderr: float, half: float, lag: int, stretches: int, level: float
) -> RateEstimate:
    ends, method = (z - half, z + half), f"spectral, lag {lag}"
    return rate_from_artanh(z, stderr, ends, lag, stretches, method, level)


def _features(run: object, observables: object, burn_in: int) -> observed.Series:
    """Read the observables, by default one component of G in each sector."""
    if observables is not None or not isinstance(run, Trajectory):
        return observed.read(run, "observables", observables, burn_in)
    n = run.chain.batch
    if not run.chain.normalization.hides_common_part or run.inputs is not None or n < 3:
        hint = 'the default is for norm "batch", a batch of 3 or more and a run without inputs='
        raise ArgumentError("observables", None, "names in the run or functions of G", hint)
    components = np.stack([observed.contrast(n, which).ravel() for which in range(min(n - 2, 2))])
    return observed.read(run, "observables", lambda G: components @ G.ravel(), burn_in)


def _steps(lags: int | Iterable[int], series: observed.Series) -> list[int]:
    """Return the lags in recorded layers, ascending."""
    given = [lags] if isinstance(lags, (int, np.integer)) else lags
    each = items("lags", given, "an integer or integers")
    wanted = sorted({integer("lags", lag, low=1) for lag in each})
    if not wanted:
        raise ArgumentError("lags", wanted, "at least one lag")
    last = (len(series.layers) - 1) * series.stride
    for lag in wanted:
        if lag % series.stride or max(_MULTIPLES) * lag > last:
            allowed = f"multiples of {series.stride} up to {last // max(_MULTIPLES)}"
            raise ArgumentError("lags", lag, allowed)
    return [lag // series.stride for lag in wanted]


def _rate(leading: Float64Array, largest: Float64Array, lag: int, level: float) -> RateEstimate:
    """Return the rate from held-out correlations and the largest singular values of all data."""
    z, stderr = jackknife(math.atanh(leading[0]), np.arctanh(leading[1:]))
    half = half_width(stderr, len(leading) - 2, level)
    estimate = _rate_at_lag(z, stderr, half, lag, len(leading) - 1, level)
    if len(largest) == len(leading):
        return estimate
    z_all = np.arctanh(np.minimum(largest, 1.0 - _ULP))
    _, stderr_all = jackknife(z_all[0], z_all[1:])
    highest = z_all[0] + half_width(stderr_all, len(largest) - 2, level)
    low, high = estimate.ci
    return replace(estimate, ci=(low, max(high, math.tanh(highest) ** (1.0 / lag))))


def _chapman_kolmogorov(leading: dict[int, Float64Array], steps: list[int]) -> ChapmanKolmogorov:
    """Test each lag; `leading` has, by lag, the correlation of all stretches and all but one."""
    # Of all stretches and all but one, (1 + stretches, lags, multiples).
    predicted = np.array([[leading[h] ** k for k in _MULTIPLES] for h in steps]).transpose(2, 0, 1)
    measured = np.array([[leading[k * h] for k in _MULTIPLES] for h in steps]).transpose(2, 0, 1)
    gaps = measured - predicted
    difference, stderr = jackknife(gaps[0], gaps[1:])
    allowed = half_width(1.0, len(gaps) - 2, 1.0 - _SIGNIFICANCE / len(_MULTIPLES))
    passed = np.asarray((np.abs(difference) <= allowed * stderr).all(axis=1))
    return ChapmanKolmogorov(_MULTIPLES, predicted[0], measured[0], stderr, passed)


# --- linear algebra of VAMP (Wu and Noé, arXiv 1707.04659)
#
# With x the features, C(h) = E x_l x_{l+h}ᵀ and C their covariance over the same pairs of layers, σ
# are the singular values of C^{-1/2} C(h) C^{-1/2}.


def whitened(x: Float64Array) -> Float64Array:
    """Return uncorrelated features of variance 1, without the null directions.

    Parameters
    ----------
    x : (chains, layers, features) ndarray of float64
        Centred features.

    Returns
    -------
    (chains, layers, r) ndarray of float64
        r is the rank of the covariance.
    """
    variances, directions = np.linalg.eigh(np.einsum("clf,clg->fg", x, x) / (x.size / x.shape[2]))
    regular = variances > _NULL * variances[-1]
    return x @ (directions[:, regular] / np.sqrt(variances[regular]))


def _lagged_sums(x: Float64Array, lag: int, starts: NDArray[np.intp]) -> Float64Array:
    """Return the sums of each stretch of pairs of layers, from which all matrices are made.

    Parameters
    ----------
    x : (chains, layers, r) ndarray of float64
    lag : int
        In recorded layers.
    starts : (pieces,) ndarray of int
        First layers of the stretches of a chain.

    Returns
    -------
    (chains · pieces, 2, r, r) ndarray of float64
        Sums of ``x_l x_{l+lag}ᵀ``, and of ``x_l x_lᵀ + x_{l+lag} x_{l+lag}ᵀ``.
    """
    chains, layers, rank = x.shape
    now, later = x[:, : layers - lag], x[:, lag:]
    sums = np.empty((chains, len(starts), 2, rank, rank))
    for piece, (start, stop) in enumerate(pairwise([*starts, layers - lag])):
        a, b = now[:, start:stop], later[:, start:stop]
        sums[:, piece, 0] = a.swapaxes(1, 2) @ b
        sums[:, piece, 1] = a.swapaxes(1, 2) @ a + b.swapaxes(1, 2) @ b
    return sums.reshape(-1, 2, rank, rank)


def _all_and_all_but_one(sums: Float64Array) -> Float64Array:
    """Return the total over stretches, then the totals with each stretch left out."""
    total = sums.sum(axis=0)
    return np.concatenate([total[None], total - sums])


def _koopman(sums: Float64Array) -> tuple[Float64Array, Float64Array]:
    """Return ``L⁻¹ C(h) L⁻ᵀ`` and L, with ``L Lᵀ = C``.

    Raises
    ------
    numpy.linalg.LinAlgError
        If C is singular.
    """
    L = np.linalg.cholesky(sums[..., 1, :, :] / 2)
    half = np.linalg.solve(L, sums[..., 0, :, :])
    matrix: Float64Array = np.linalg.solve(L, half.swapaxes(-2, -1)).swapaxes(-2, -1)
    return matrix, L.astype(np.float64, copy=False)


def singular_values(sums: Float64Array) -> Float64Array:
    """Return the singular values σ of sums (..., 2, r, r), descending, (..., r)."""
    values = np.linalg.svd(_koopman(sums)[0], compute_uv=False)
    return values.astype(np.float64, copy=False)


def eigenvalues(sums: Float64Array) -> NDArray[np.complex128]:
    """Return the eigenvalues of sums (2, r, r), by descending modulus."""
    values = np.linalg.eigvals(_koopman(sums)[0]).astype(np.complex128)
    return values[np.argsort(-np.abs(values), kind="stable")]


def _held_out_correlations(sums: Float64Array, learnt: int) -> Float64Array:
    """Return the leading correlation, with directions learnt from other stretches.

    Parameters
    ----------
    sums : (stretches, 2, r, r) ndarray of float64
    learnt : int
        Number of stretches from which the leading singular vectors are computed; 0 for r = 1.

    Returns
    -------
    (1 + stretches − learnt,) ndarray of float64
        Of all other stretches, then with each of them left out.
    """
    if learnt:
        matrix, L = _koopman(sums[:learnt].sum(axis=0))
        left, _, right = np.linalg.svd(matrix)
        u, v = np.linalg.solve(L.T, np.stack([left[:, 0], right[0]], axis=1)).T
    else:
        u = v = np.ones(1)
    held = sums[learnt:]
    parts = [u @ held[:, 0] @ v, u @ held[:, 1] @ u / 2, v @ held[:, 1] @ v / 2]
    products, before, after = (_all_and_all_but_one(part) for part in parts)
    return products / np.sqrt(before * after)
