"""Claims about the stationary law and about one step, as statistics with a known mean.

A state y is h / gain, h the pre-normalization state, (samples, width, batch).  Every statistic is a
sum over rows, so a sample costs O(d n²) operations for width d and batch n.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnmc import gram as gm
from bnmc._claims.layer import COARSE, Layer, rounding_noise
from bnmc._support.arguments import Float64Array
from bnmc._support.text import Result
from bnmc.chain.chain import Chain
from bnmc.errors import ArgumentError
from bnmc.estimate.estimate import Estimate

#: Mean squares up to this share of 1 are rounding errors.
_NOTHING = 1e-10

#: Least standard deviation of R in a direction of samples, in units of its rounding errors.  In d
#: rows these change the variance in this direction by a share of about 2/(512 √d), which is less
#: than its standard error √(2/(d calls)) up to 10⁵ calls.
_RESOLVED = 512.0

#: Largest number of groups of rows by place whose averages are tested.
_GROUPS = 64


def uniqueness(gram: Float64Array, other: Float64Array) -> dict[str, Evidence]:
    """Compare the observables of two independent ensembles of Gram matrices."""
    return _compared("uniqueness", _of_gram(other), _of_gram(gram))


def invariance(before: Layer, after: Layer) -> dict[str, Evidence]:
    """Compare the observables of states with those of later states."""
    later, earlier = (_of_gram(each.gram) | _of_square(each.square) for each in (after, before))
    return _compared("invariance", later, earlier)


def _compared(
    claim: str, observed: dict[str, Float64Array], expected: dict[str, Float64Array]
) -> dict[str, Evidence]:
    return {f"{claim}: {name}": Evidence.of(observed[name], expected[name]) for name in expected}


def serial(square: Float64Array) -> dict[str, Evidence]:
    """Correlate the ranks of the observables of hᵀh between successive samples."""
    values = np.column_stack(list(_of_square(square).values()))
    ranks, expected = _ranks(values, axis=0)
    products = ranks[1:] * ranks[:-1]
    return {"samples: no serial correlation": Evidence.of(products, expected, 1.0)}


def _of_gram(gram: Float64Array) -> dict[str, Float64Array]:
    return {
        "trace of G": _mean_diagonal(gram),
        "off-diagonal of G": _mean_off_diagonal(gram),
        "orthogonality gap of G": gm.orthogonality_gap(gram),
        "largest eigenvalue of G, share": gm.eigenvalues(gram)[:, -1] / np.trace(gram, 0, 1, 2),
        "rank bound r(G)": gm.rank_bound(gram),
    }


def _of_square(square: Float64Array) -> dict[str, Float64Array]:
    return {
        "trace of hᵀh/d, centred": _mean_centred(square),
        "log trace of hᵀh/d": np.log(np.trace(square, 0, 1, 2)),
        "orthogonality gap of hᵀh": gm.orthogonality_gap(square),
    }


def of_state(chain: Chain, layer: Layer) -> dict[str, Evidence]:
    """Claims on the law of a state at stationarity, from states alone."""
    rows_are_fresh, symmetric = chain.skip == 0.0, _is_symmetric(chain)
    # Divide by a sign-invariant scale, so that odd functions keep mean 0.
    unit = np.sqrt(_mean_diagonal(layer.square))[:, None, None] if symmetric else 1.0
    rows = layer.y / unit
    evidence = _moments(chain, layer)
    if rows_are_fresh and chain.is_gaussian:
        evidence["rows: Gaussian, entries"] = _fourth_moments(rows)
        evidence["rows: Gaussian, norms"] = _norms(rows - rows.mean(axis=2, keepdims=True))
    if rows_are_fresh or symmetric:
        evidence["rows: uncorrelated"] = _products(rows)
        evidence["samples: uncorrelated"] = _pairs_of_samples(rows)
    if symmetric:
        evidence["rows: sign symmetry"] = _signs(rows)
    evidence["rows: exchangeable"] = _places(rows)
    evidence["batch: exchangeable"] = _columns(layer)
    return evidence


def _is_symmetric(chain: Chain) -> bool:
    """Whether rows are symmetric in sign: for symmetric weights, and with skip only if σ is odd."""
    law = chain.layers[1].linear.law
    if not law.is_symmetric or chain.skip == 0.0:
        return law.is_symmetric
    if not chain.normalization.acts_on_rows and chain.normalization.centred:
        return False  # the sign of a row changes the mean that is subtracted from all rows
    grid = np.linspace(0.0, 4.0, 257)
    return np.allclose(chain.activation(-grid), -chain.activation(grid), rtol=1e-12, atol=1e-12)


def _moments(chain: Chain, layer: Layer) -> dict[str, Evidence]:
    """E yᵀy/d = E G, plus E (skip/gain)² xᵀx/d with a skip connection."""
    mean = layer.gram + (chain.skip / chain.gain) ** 2 * gm.cross_gram(layer.x, layer.x)
    size = _mean_diagonal(layer.square) + _mean_diagonal(mean)
    return {
        f"E hᵀh/d = gain² E G: {name}": Evidence.of(part(layer.square), part(mean), size)
        for name, part in (("centred", _mean_centred), ("along 1", _along_ones))
    }


# For rows with the law N(0, G)^d the matrix yᵀy is a complete sufficient statistic.  A statistic
# whose mean is 0 for every G therefore has mean 0 given yᵀy, and can be divided by any function of
# yᵀy.  Division by a power of the trace makes it scale free and much less skewed.


def _fourth_moments(rows: Float64Array) -> Evidence:
    """Σ y_ri⁴ / (Σ y_ri²)² over rows r, whose mean is 3/(d+2): E y⁴ = 3 (E y²)² of entries."""
    d = rows.shape[1]
    squared = np.square(rows)
    sums, fourth = squared.sum(axis=1), np.square(squared).sum(axis=1)
    expected = 3 * d / (d + 2)
    varies = sums > _NOTHING * d
    kurtosis = np.where(varies, d * fourth / np.where(varies, sums, 1.0) ** 2, expected)
    return Evidence.of(kurtosis.mean(axis=1), expected)


def _norms(rows: Float64Array) -> Evidence:
    """E|y_r|⁴ = E |y_r|²|y_s|² + 2 E (y_r·y_s)² for r ≠ s (Isserlis), over (Σ|y_r|²/d)².

    Sums over all pairs of rows are computed as power sums minus their diagonals.
    """
    d = rows.shape[1]
    norms = np.square(rows).sum(axis=2)
    fourth, total = np.square(norms).sum(axis=1), norms.sum(axis=1)
    pairs = total**2 + 2 * squares(rows.swapaxes(1, 2) @ rows) - 3 * fourth
    unit = np.square(np.where(total > _NOTHING * d, total / d, 1.0))
    return Evidence.of(fourth / (d * unit), pairs / (d * (d - 1) * unit), 1.0)


def _products(rows: Float64Array) -> Evidence:
    """Inner products of rows of the two halves of a sample, and of neighbours: mean 0."""
    d = rows.shape[1]
    first, second = rows[:, : d // 2].sum(axis=1), rows[:, d // 2 :].sum(axis=1)
    across = 4 / d * (first * second).sum(axis=1)
    neighbours = np.einsum("krn,krn->k", rows[:, 1:], rows[:, :-1])
    size = np.square(rows).mean(axis=(1, 2))
    return Evidence.of(np.column_stack([across, neighbours]) / d, 0.0, size)


def _pairs_of_samples(rows: Float64Array) -> Evidence:
    """Inner products of successive samples, in disjoint pairs: mean 0 for independent samples."""
    first, second = _disjoint_pairs(rows)
    size = np.square(first).mean(axis=(1, 2)) + np.square(second).mean(axis=(1, 2))
    return Evidence.of((first * second).mean(axis=(1, 2)), 0.0, size)


def _signs(rows: Float64Array) -> Evidence:
    """Odd functions of rows: mean entry, mean entry times squared norm, entries minus the mean."""
    means, norms = rows.mean(axis=2), np.square(rows).mean(axis=2)
    entries = rows.mean(axis=1)
    odd = means.mean(axis=1), (means * norms).mean(axis=1)
    others = entries - entries.mean(axis=1, keepdims=True)
    return Evidence.of(np.column_stack([*odd, others]), 0.0, 1.0)


def _columns(layer: Layer) -> Evidence:
    """Deviations of each sample of the batch from the mean over the batch, of yᵀy and of G."""
    parts, sizes = [], []
    for matrix in (layer.square, layer.gram):
        n = matrix.shape[-1]
        neighbours = np.roll(matrix, 1, axis=2)[:, range(n), range(n)].mean(axis=1)
        size = _mean_diagonal(np.abs(matrix))
        for values in (np.diagonal(matrix, 0, 1, 2), matrix.mean(axis=2)):
            parts.append(values - values.mean(axis=1, keepdims=True))
        parts.append((neighbours - _mean_off_diagonal(matrix))[:, None])
        sizes += [size] * (2 * n + 1)
    return Evidence.of(np.concatenate(parts, axis=1), 0.0, np.column_stack(sizes))


def _places(rows: Float64Array) -> Evidence:
    """Ranks of the norms of rows in a sample: by place, and products with the next row."""
    d = rows.shape[1]
    ranks, expected = _ranks(np.square(rows).sum(axis=2), axis=1)
    groups = min(d, _GROUPS)
    starts = np.arange(groups) * d // groups
    lengths = np.diff(np.append(starts, d))
    by_place = np.add.reduceat(ranks, starts, axis=1) / lengths
    neighbours = (ranks[:, 1:] * ranks[:, :-1]).mean(axis=1)
    return Evidence.of(
        np.column_stack([by_place, neighbours]),
        np.column_stack([np.zeros(by_place.shape), expected]),
        1.0,
    )


# --- one step


def of_one_step(
    chain: Chain,
    before: Layer,
    y: Float64Array,
    rounding: float,
    noise: Float64Array | None = None,
) -> tuple[dict[str, Evidence], Float64Array]:
    """Return claims about one step, and the variance of the whitened spectrum over n/d.

    Parameters
    ----------
    chain : Chain
    before : Layer
        The given states.
    y : (samples, width, batch) ndarray of float64
        The next states over the gain.
    rounding : float
        Unit of rounding in which `y` was computed.
    noise : (samples, batch, batch) ndarray, optional
        `rounding_noise` of the given states, if it is known already.

    Raises
    ------
    ArgumentError
        If no sample has a direction in which the law can be told from rounding errors.

    Notes
    -----
    Given a state, the rows of R = (h′ − skip x)/gain are N(0, G), so whitened rows are standard
    normal.  With orthogonal weights RᵀR/d = G, and whitened rows are those of √d U with orthonormal
    columns U, uniformly distributed: |z_r|²/d has the law Beta(k/2, (d−k)/2), k the rank of G.

    Directions in which rounding may show are as outside the range of G, and samples without others
    are left out.
    """
    noise = rounding_noise(chain, before, rounding) if noise is None else noise
    values, vectors = directions(before.gram, noise)
    resolved = values[:, -1] > 1.0
    if not resolved.any():
        raise hidden(chain, rounding)
    if not resolved.all():
        parts = (before.y, before.x, before.a, before.gram, before.square)
        before = Layer(*(part[resolved] for part in parts), convolution=before.convolution)
        y, noise = y[resolved], noise[resolved]
        values, vectors = values[resolved], vectors[resolved]
    d = y.shape[1]
    rest = y - chain.skip / chain.gain * before.x
    regular = values > 1.0
    rank = regular.sum(axis=1)
    inverse = np.where(regular, 1.0 / np.where(regular, values, 1.0), 0.0)
    turned = rest @ vectors
    z = turned * np.sqrt(inverse)[:, None]
    # Relative to their size, products of four z have four times the rounding errors of each.
    errors = 4.0 / _RESOLVED * np.sqrt(inverse.sum(axis=1) / rank)
    of_z = 1.0 + errors / (_ROUNDING * min(rounding, COARSE))
    square, residual = z.swapaxes(1, 2) @ z, gm.cross_gram(rest, rest)
    norms = np.square(z).sum(axis=2)
    fourth = np.square(norms).sum(axis=1)
    size = np.sqrt(_mean_diagonal(before.gram))
    between = (squares(square) - fourth) / (d * (d - 1) * rank)
    if chain.is_orthogonal:
        # Σ_rs (z_r·z_s)² = d² k, and E|z_r|⁴ = d k (k + 2) / (d + 2).
        between_expected = d * (d - rank) / ((d + 2) * (d - 1))
        # This is more than the right variance and covariance.
        largest = np.trace(noise, 0, 1, 2)
        error = 2.0 * np.sqrt(largest * np.trace(before.gram, 0, 1, 2)) + largest
        deviation = np.sqrt(squares(residual - before.gram)) / before.gram.shape[-1]
        deviation = np.maximum(0.0, deviation - error)
        unit = _mean_diagonal(gm.cross_gram(y, y)) + _mean_diagonal(before.gram)
        unit = unit * max(1.0, rounding / COARSE)
        of_weights = {"one step: weights orthogonal": Evidence.of(deviation, 0.0, unit)}
    else:
        between_expected = np.ones(len(rank))
        of_weights = {
            "one step: variance relative to G": Evidence.of(
                norms.sum(axis=1) / (d * rank), 1.0, 2.0 * of_z
            ),
            "one step: covariance": _shares_of(residual, before.gram, noise),
        }
    products = _products(z).observed
    outside = np.square(np.where(regular[:, None], 0.0, turned)).mean(axis=(1, 2)) > 10.0
    evidence = {
        "one step: rows in the range of G": Evidence.of(1.0 - outside, 1.0),
        "one step: mean 0": Evidence.of(rest.mean(axis=1), 0.0, size),
        "one step: rows independent": Evidence.of(
            np.column_stack([between, products]),
            np.column_stack([between_expected, 0.0 * products]),
            of_z * rank,
        ),
        "one step: calls independent": _pairs_of_calls(z, rest, rank, size, of_z),
    }
    if chain.is_gaussian:
        evidence["one step: rows Gaussian"] = _norms(z)
    spread = squares(square / d) / rank - np.square(np.trace(square, 0, 1, 2) / (d * rank))
    return evidence | of_weights, spread * d / rank


def _shares_of(square: Float64Array, gram: Float64Array, noise: Float64Array) -> Evidence:
    """Variances of rows orthogonal to 1 and along 1 over those of G, and their difference."""
    shares, null = [], _null_covariance(gram, noise)
    for part in (_mean_centred, _along_ones):
        variance = part(gram)
        varies = variance > part(null)
        shares.append(np.where(varies, part(square) / np.where(varies, variance, 1.0), 1.0))
    columns = np.column_stack([*shares, shares[0] - shares[1]])
    return Evidence.of(columns, np.array([1.0, 1.0, 0.0]), 1.0)


def _pairs_of_calls(
    z: Float64Array,
    rest: Float64Array,
    rank: NDArray[np.intp],
    size: Float64Array,
    of_z: Float64Array,
) -> Evidence:
    """Correlations of the rows of two calls, also squared: shared weights with any signs show."""
    d = z.shape[1]
    (first, second), (rank1, rank2) = _disjoint_pairs(z), _disjoint_pairs(rank)
    scale = d * rank1 * rank2
    squared = squares(first.swapaxes(1, 2) @ second) / scale
    expected = squares(first) * squares(second) / (d * scale)
    rest1, rest2 = _disjoint_pairs(rest)
    size1, size2 = _disjoint_pairs(size)
    product = (rest1 * rest2).mean(axis=(1, 2)) / (size1 * size2)
    observed, mean = np.column_stack([squared, product]), np.column_stack([expected, 0.0 * product])
    size = (np.abs(observed) + np.abs(mean)) * np.maximum(*_disjoint_pairs(of_z))[:, None]
    return Evidence.of(observed, mean, size)


# --- helpers


def _ranks(values: Float64Array, axis: int) -> tuple[Float64Array, Float64Array]:
    """Return ranks along an axis, in [−½, ½], and the mean product of two in random order.

    Equal values share the mean of their ranks, computed from stable sorts in both directions.
    """
    count = values.shape[axis]
    forward, backward = (
        ordered.argsort(axis=axis, kind="stable").argsort(axis=axis)
        for ordered in (values, np.flip(values, axis))
    )
    ranks = (forward + np.flip(backward, axis)) / (2 * (count - 1)) - 0.5
    return ranks, -np.square(ranks).sum(axis=axis) / (count * (count - 1))


def _null_covariance(gram: Float64Array, noise: Float64Array) -> Float64Array:
    """Return the least covariances of rows of R that can be told from rounding errors.

    Parameters
    ----------
    gram : (..., n, n) ndarray of float64
        G, computed in float64.
    noise : (..., n, n) ndarray of float64
        Covariance of the rounding errors of a step.

    Returns
    -------
    (..., n, n) ndarray of float64
        Positive definite.
    """
    n, least = gram.shape[-1], _RESOLVED**2 * noise
    size = np.linalg.eigvalsh(gram)[..., -1] + np.trace(least, 0, -2, -1)
    of_gram = 64 * float(np.finfo(np.float64).eps) * n * size
    return least + np.eye(n) * of_gram[..., None, None]


def hidden(chain: Chain, rounding: float) -> ArgumentError:
    """Return the error for a chain whose law no state shows."""
    allowed = f"a chain whose law shows beyond amplified rounding errors of {rounding:.1e}"
    hint = "the norm divides by about 0, or the gain is too small beside the skip connection"
    return ArgumentError("chain", chain, allowed, hint)


def directions(gram: Float64Array, noise: Float64Array) -> tuple[Float64Array, Float64Array]:
    """Return variances of R in directions of samples, in units of `_null_covariance`, ascending.

    The directions are the columns of the second array, (..., n, n).  Components of R in different
    directions are uncorrelated.  Variances up to 1 may be rounding errors.
    """
    lower = np.linalg.cholesky(_null_covariance(gram, noise))
    half = np.linalg.solve(lower, gram)
    values, turned = np.linalg.eigh(np.linalg.solve(lower, half.swapaxes(-1, -2)))
    return values, np.linalg.solve(lower.swapaxes(-1, -2), turned)


def _disjoint_pairs(array: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    even = len(array) // 2 * 2
    return array[0:even:2], array[1:even:2]


def squares(matrices: Float64Array) -> Float64Array:
    """Return the sums of the squared entries of matrices."""
    return np.square(matrices).sum(axis=(1, 2))


def _mean_diagonal(matrices: Float64Array) -> Float64Array:
    return np.trace(matrices, 0, 1, 2) / matrices.shape[-1]


def _mean_off_diagonal(matrices: Float64Array) -> Float64Array:
    n = matrices.shape[-1]
    return (matrices.sum(axis=(1, 2)) - np.trace(matrices, 0, 1, 2)) / (n * (n - 1))


def _along_ones(matrices: Float64Array) -> Float64Array:
    """Return 1ᵀS1/n, the eigenvalue of the vector 1 of an exchangeable matrix."""
    return matrices.sum(axis=(1, 2)) / matrices.shape[-1]


def _mean_centred(matrices: Float64Array) -> Float64Array:
    """Return Tr(PSP)/(n−1), the eigenvalue orthogonal to 1 of an exchangeable matrix."""
    return (np.trace(matrices, 0, 1, 2) - _along_ones(matrices)) / (matrices.shape[-1] - 1)


# --- evidence: tests that differences have mean 0, corrected for their number

#: Largest difference of two equal numbers, in units of rounding.
_ROUNDING = 64

#: Level of the intervals of claims without a test.
LEVEL = 0.95


@dataclass(frozen=True)
class Claim(Result):
    """One row of a report.

    Attributes
    ----------
    claim : str
        The claim, in words.
    statistic : float
        A mean over samples.
    expected : float or None
        Its expectation if the claim is true, or a mean over samples with the same expectation; None
        if unknown.
    stderr : float or None
        Standard error of their difference; None if there is none.
    interval : tuple of (float, float) or None
        Interval of the statistic at level 0.95, if the claim is not tested.
    p_value : float or None
        Two-sided, of the difference; None if the claim is not tested.
    adjusted : float or None
        The p-value corrected for all tests of the report (Holm).
    verdict : str
        "holds" or "fails"; "reported" if the claim is not tested.
    count : int
        Number of statistics of the row.  The row shows the one with the least p-value, multiplied
        by their number (Bonferroni).

    Examples
    --------
    >>> from bnmc.invariant import Claim
    >>> claim = Claim("mean trace of G", statistic=2.02, expected=2.0, stderr=0.05)
    >>> abs(claim.statistic - claim.expected) < 2 * claim.stderr, claim.verdict
    (True, 'reported')
    """

    claim: str
    statistic: float
    expected: float | None
    stderr: float | None
    interval: tuple[float, float] | None = None
    p_value: float | None = None
    adjusted: float | None = None
    verdict: str = "reported"
    count: int = 1


class Evidence(NamedTuple):
    """Statistics of samples and their expectations, (samples, k) each.

    Rounding is relative to `magnitude`: two means are equal if their difference and its standard
    deviation are at most 64 units of rounding of it.
    """

    observed: Float64Array
    expected: Float64Array
    magnitude: Float64Array

    @classmethod
    def of(
        cls,
        observed: Float64Array,
        expected: Float64Array | float = 0.0,
        magnitude: Float64Array | float | None = None,
    ) -> Evidence:
        """Return evidence from vectors or columns; the default magnitude is the sum of moduli."""
        right = np.broadcast_to(expected, observed.shape)
        size = np.abs(observed) + np.abs(right) if magnitude is None else np.asarray(magnitude)
        left, right, size = (
            array[:, None] if array.ndim == 1 else array for array in (observed, right, size)
        )
        return cls(left, right, np.broadcast_to(size, left.shape))

    @classmethod
    def joined(cls, parts: Iterable[Evidence]) -> Evidence:
        """Return the evidence of several blocks of samples as one."""
        return cls(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


def assessed(claim: str, evidence: Evidence, rounding: float) -> Claim:
    """Return the p-value of the hypothesis that independent differences have mean 0.

    The test is Student's t, corrected for the skewness of the differences by the transformation of
    Hall (*On the removal of skewness by transformation*, 1992).  `rounding` is the rounding unit.
    """
    from scipy.special import stdtr

    difference = evidence.observed - evidence.expected
    count = len(difference)
    mean, deviation = difference.mean(axis=0), difference.std(axis=0, ddof=1)
    floor = _ROUNDING * rounding * evidence.magnitude.max(axis=0)
    exact = deviation <= floor
    stderr = deviation / math.sqrt(count)
    unit = np.where(exact, 1.0, deviation)
    skewness = np.where(exact, 0.0, ((difference - mean) / unit) ** 3).mean(axis=0)
    t = math.sqrt(count) * np.where(exact, 0.0, mean / unit)
    t += skewness * (2 * t**2 + 1) / (6 * math.sqrt(count)) + skewness**2 * t**3 / (27 * count)
    p = np.where(exact, np.abs(mean) <= floor, 2.0 * stdtr(count - 1, -np.abs(t)))
    worst = int(p.argmin())
    return Claim(
        claim,
        float(evidence.observed[:, worst].mean()),
        float(evidence.expected[:, worst].mean()),
        float(stderr[worst]),
        p_value=min(1.0, p.size * float(p[worst])),
        count=p.size,
    )


def reported(claim: str, values: Float64Array, expected: float | None = None) -> Claim:
    """Return the mean of a statistic (samples,) beside a number, without a test."""
    estimate = Estimate.from_samples(values, level=LEVEL)
    return Claim(claim, estimate.value, expected, estimate.stderr, estimate.ci)


def judged(claims: Iterable[Claim], alpha: float) -> tuple[Claim, ...]:
    """Return the claims with p-values adjusted by Holm's method, and with verdicts."""
    rows = list(claims)
    order = sorted(
        (row.p_value, index) for index, row in enumerate(rows) if row.p_value is not None
    )
    largest = 0.0
    for place, (p, index) in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - place) * p))
        verdict = "fails" if largest <= alpha else "holds"
        rows[index] = replace(rows[index], adjusted=largest, verdict=verdict)
    return tuple(rows)
