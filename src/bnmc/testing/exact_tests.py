"""Exact tests of a step with Gaussian weights, at every width and number of calls.

The p-values are tails of χ² and normal laws.  For the two tests of Kolmogorov and Smirnov, the
inequality of Dvoretzky, Kiefer and Wolfowitz with Massart's constant bounds the p-value, and for
tests of a spread Chernoff's inequality.

The spread of q with the law χ² with m degrees of freedom is tested by the orthonormal polynomial of
degree 2,

    g(q) = ((q − m − 2)² − 2(m + 2))/√(8 m(m + 2)),    E g = 0,  E g² = 1.

Its mean is the most powerful test against a small change of the variance of q: the kurtosis of
single weights (m = 1, q a squared weight), norms of rows (m the rank of G) and norms of calls
(m the rank times the width).  For rows of W of norm 1, E g = −√(m(m + 2)/2)/(width + 2).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import special

from bnmc._claims.claims import Claim
from bnmc._support.arguments import Float64Array
from bnmc.testing.calls_on_state import Calls, Products, RowPairs, correlations

#: q is moved to these quantiles where it is beyond them: g then has exponential moments.
_TAIL = 1e-5

#: Exponents t of Chernoff's bound.  The best one is about z/√count for z standard errors.
_EXPONENTS = np.geomspace(1e-5, 4.0, 128)

#: Nodes and weights of the quadrature of E exp(t g).
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(160)


def exact_claims(states: Sequence[Calls]) -> Iterator[Claim]:
    """Yield the claims with p-values: first on all states together, then on each.

    Parameters
    ----------
    states : sequence of Calls
        Each with at least one pair of calls.
    """
    numbers = [state.numbers for state in states]
    energy = [state.variance * count for state, count in zip(states, numbers, strict=True)]
    yield _chi2("variance relative to G", sum(energy), sum(numbers))
    yield from _dependence(states)
    shifts = sum(state.shift_square for state in states)
    added = sum(state.shift_product for state in states)
    yield _normal("no further skip connection", added, shifts, shifts)
    norms = [(state.norms, state.rank) for state in states]
    energies = [(state.energies, state.total.size) for state in states]
    for name, parts in ("rows", norms), ("calls", energies):
        yield uniform_claim(f"{name}: law of norms", [special.chdtr(m, q) for q, m in parts])
        yield spread_claim(f"{name}: spread of norms", parts)
    readings = np.concatenate([state.readings for state in states])
    if readings.size:
        yield largest_claim("weights: largest", readings)
        yield uniform_claim("weights: Gaussian", [special.ndtr(readings)])
        yield spread_claim("weights: kurtosis", [(np.square(readings), 1)])
    for state in states:
        yield from _of_one(state)


def _dependence(states: Sequence[Calls]) -> Iterator[Claim]:
    """Yield the claims that rows and calls are independent."""
    width = len(states[0].total)
    yield _chi2(
        "rows: no common part", sum(state.common for state in states),
        sum(state.calls * state.rank for state in states),
    )  # fmt: skip
    sequences = [state.sequence for state in states]
    yield from product_claims("calls", [sequence.calls for sequence in sequences])
    same_row = [sequence.lags[width] for sequence in sequences]
    yield from product_claims("calls: the same row", same_row)
    if width > 1:
        for lag in sequences[0].lags:
            name = "rows: neighbours" if lag == 1 else f"rows: r and r + {lag}"
            if lag < width:
                yield from product_claims(name, [sequence.lags[lag] for sequence in sequences])
        yield from product_claims("rows: random pairs", [sequence.orders for sequence in sequences])
        yield from _pairs_of_rows([state.row_pairs for state in states])
    calls = [state.call_pairs for state in states]
    largest = [(pairs.largest, pairs.places.size, pairs.pairs) for pairs in calls]
    yield _largest_correlation("calls: largest correlation", largest)


def product_claims(name: str, parts: Sequence[Products]) -> Iterator[Claim]:
    """Test Σ u, which is normal, and Σ u², which is χ²; the first claim shows a correlation."""
    count = sum(part.count for part in parts)
    total, length = sum(part.total for part in parts), sum(part.length for part in parts)
    yield _normal(f"{name} independent", total, count, length)
    square = sum(part.square for part in parts)
    yield _chi2(f"{name} independent, squared correlations", square, count)


def _pairs_of_rows(parts: Sequence[RowPairs]) -> Iterator[Claim]:
    """Test all pairs of rows, summed over calls: the largest correlation, and all of them.

    The squared correlation of two rows of `columns` normals has the law Beta(½, (columns − 1)/2).
    Their Gram matrix has Wishart's law, so its Cholesky factor has normals below the diagonal.
    """
    gram, columns = sum(part.gram for part in parts), sum(part.columns for part in parts)
    gram = np.asarray(gram)
    size = len(gram)
    pairs = size * (size - 1) // 2
    largest = float(np.square(correlations(gram)).max())
    yield _largest_correlation("rows: largest correlation", [(largest, columns, pairs)])
    if columns >= 2 * size:
        try:
            below = np.tril(np.linalg.cholesky(gram), -1)
        except np.linalg.LinAlgError:  # linearly dependent rows, although there are enough columns
            yield Claim("rows: all pairs independent", math.inf, 1.0, None, p_value=0.0)
        else:
            yield _chi2("rows: all pairs independent", float(np.square(below).sum()), pairs)


def _largest_correlation(claim: str, parts: Sequence[tuple[float, int, int]]) -> Claim:
    """Test largest squared correlations of vectors of `size` normals, of `pairs` each."""
    p = [
        pairs * float(special.betainc((size - 1) / 2, 0.5, max(0.0, 1.0 - square)))
        if size > 1
        else 1.0
        for square, size, pairs in parts
    ]
    worst = int(np.argmin(p))
    square = math.sqrt(parts[worst][0])
    return Claim(claim, square, 0.0, None, p_value=min(1.0, len(p) * float(p[worst])), count=len(p))


def _of_one(state: Calls) -> Iterator[Claim]:
    """Yield the claims on one state."""
    at, outside = f", state {state.name!r}", state.outside
    yield Claim(f"rows in the range of G{at}", outside, 0.0, None, p_value=float(outside <= 1.0))
    yield _chi2("variance relative to G" + at, state.variance * state.numbers, state.numbers)
    yield _chi2("mean 0" + at, float(np.square(state.total).sum()) / state.calls, state.total.size)
    yield from _covariance(state, at)


def _covariance(state: Calls, at: str) -> Iterator[Claim]:
    """Bartlett's decomposition: root has χ²(rows − i) squares on its diagonal, normals above it."""
    rows, rank = state.calls * len(state.total), state.rank
    degrees = rows - np.arange(rank)
    diagonal = np.square(np.diagonal(state.root))
    p = np.asarray(_unlikeliness(diagonal, degrees))
    worst = int(p.argmin())
    yield Claim(
        "covariance, diagonal" + at, float(diagonal[worst] / degrees[worst]), 1.0,
        math.sqrt(2 / degrees[worst]), p_value=min(1.0, rank * float(p[worst])), count=rank,
    )  # fmt: skip
    if rank > 1:
        above = float(np.square(np.triu(state.root, 1)).sum())
        yield _chi2("covariance, off the diagonal" + at, above, rank * (rank - 1) // 2)


def _chi2(claim: str, value: float, degrees: float) -> Claim:
    """Test a sum of squares of standard normals; the claim shows it per degree of freedom."""
    p = float(_unlikeliness(value, degrees))
    return Claim(claim, value / degrees, 1.0, math.sqrt(2 / degrees), p_value=p)


def _normal(claim: str, product: float, square: float, size: float) -> Claim:
    """Test ⟨A, B⟩, which given A is normal with variance |A|²; the claim shows it per `size`."""
    root = math.sqrt(square)
    p = float(special.erfc(abs(product) / (math.sqrt(2) * root))) if root > 0.0 else 1.0
    mean, error = (product / size, root / size) if size else (0.0, 0.0)
    return Claim(claim, mean, 0.0, error, p_value=p)


def uniform_claim(claim: str, parts: list[Float64Array]) -> Claim:
    """Test Kolmogorov's distance from the uniform law: P(distance > t) ≤ 2 exp(−2 count t²)."""
    values = np.sort(np.concatenate(parts))
    count = values.size
    steps = np.arange(count + 1) / count
    distance = float(max((steps[1:] - values).max(), (values - steps[:-1]).max()))
    p = min(1.0, 2.0 * math.exp(-2.0 * count * distance**2))
    return Claim(claim, distance, 0.0, 0.5 / math.sqrt(count), p_value=p)


def largest_claim(claim: str, values: Float64Array) -> Claim:
    """Test the largest modulus of `count` normals: P(largest ≤ t) = (1 − erfc(t/√2))^count."""
    largest = float(np.abs(values).max())
    single = float(special.erfc(largest / math.sqrt(2)))
    below = values.size * math.log1p(-single) if single < 1.0 else -math.inf
    p = min(1.0, 2.0 * min(math.exp(below), -math.expm1(below)))
    median = math.sqrt(2) * float(special.erfcinv(-math.expm1(math.log(0.5) / values.size)))
    return Claim(claim, largest, median, None, p_value=p)


def _unlikeliness(
    value: float | Float64Array, degrees: float | NDArray[np.intp]
) -> np.float64 | Float64Array:
    """Return the p-values of χ² variables, on both sides."""
    tails = special.chdtr(degrees, value), special.chdtrc(degrees, value)
    return np.minimum(1.0, 2.0 * np.minimum(*tails))


# --- the spread of χ² variables


def spread_claim(claim: str, parts: Iterable[tuple[Float64Array, int]]) -> Claim:
    """Test the mean of g(q) over independent χ² variables q, by Chernoff's bound.

    For S = Σ g(q), the probability that S is at least s is at most exp(log E exp(tS) − ts) for each
    t > 0.  The p-value is twice the least of these bounds over a fixed grid of t, for the more
    unlikely sign.  So it is never too small, and at z standard errors about z√(2π) times too large.

    Parameters
    ----------
    claim : str
        Name of the claim.
    parts : iterable of (ndarray, int)
        Values and their degrees of freedom.

    Returns
    -------
    Claim
        Its statistic is the mean of g(q), with q moved into its central quantiles.
    """
    total, expected, count = 0.0, 0.0, 0
    above, below = np.zeros_like(_EXPONENTS), np.zeros_like(_EXPONENTS)
    for values, degrees in parts:
        mean, up, down = _cumulants(degrees)
        total += float(scores(values, degrees).sum())
        expected += values.size * mean
        count += values.size
        above += values.size * up
        below += values.size * down
    if count == 0:
        return Claim(claim, 0.0, 0.0, None, p_value=1.0)
    logs = float((above - _EXPONENTS * total).min()), float((below + _EXPONENTS * total).min())
    p = min(1.0, 2.0 * math.exp(min(0.0, *logs)))
    return Claim(claim, total / count, expected / count, 1 / math.sqrt(count), p_value=p)


def scores(values: Float64Array, degrees: int) -> Float64Array:
    """Return g(q), with q moved into the quantiles 1e-5 to 1 − 1e-5."""
    return _polynomial(np.clip(values, *_quantiles(degrees)), degrees)


def _polynomial(q: Float64Array, degrees: int) -> Float64Array:
    return ((q - degrees - 2) ** 2 - 2 * (degrees + 2)) / math.sqrt(8 * degrees * (degrees + 2))


@lru_cache(maxsize=256)
def _quantiles(degrees: int) -> tuple[float, float]:
    tails = special.gammaincinv, special.gammainccinv
    low, high = (2 * float(inverse(degrees / 2, _TAIL)) for inverse in tails)
    return low, high


@lru_cache(maxsize=256)
def _cumulants(degrees: int) -> tuple[float, Float64Array, Float64Array]:
    """Return E g, and log E exp(tg) and log E exp(−tg) on the grid of t.

    The integrals are over r = √q, whose density is smooth at 0, by the rule of Gauss and Legendre.
    """
    low, high = _quantiles(degrees)
    center, half = (math.sqrt(high) + math.sqrt(low)) / 2, (math.sqrt(high) - math.sqrt(low)) / 2
    r = center + half * _NODES
    logs = np.log(_WEIGHTS) + (degrees - 1) * np.log(r / center) - (np.square(r) - center**2) / 2
    # The mass between the quantiles is known, so the constant of the density is not needed.
    logs += math.log1p(-2 * _TAIL) - special.logsumexp(logs)
    logs = np.concatenate([[math.log(_TAIL)], logs, [math.log(_TAIL)]])
    values = _polynomial(np.concatenate([[low], np.square(r), [high]]), degrees)
    scaled = _EXPONENTS[:, None] * values
    up, down = (special.logsumexp(logs + sign * scaled, axis=1) for sign in (1, -1))
    return float((np.exp(logs) * values).sum()), up, down
