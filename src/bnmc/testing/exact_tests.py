"""Exact tests of a step with Gaussian weights, at every width and number of calls.

The p-values are tails of χ² and normal laws.  For the two tests of Kolmogorov and Smirnov, the
inequality of Dvoretzky, Kiefer and Wolfowitz with Massart's constant bounds the p-value.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from bnmc._claims.evidence import Claim
from bnmc.testing.calls_on_state import CallsOnState

__all__ = ["exact_claims", "largest_claim", "uniform_claim"]

FloatArray = NDArray[np.float64]


def exact_claims(states: Sequence[CallsOnState]) -> Iterator[Claim]:
    """Yield the claims with p-values: first on all states together, then on each.

    Parameters
    ----------
    states : sequence of CallsOnState
        Each with at least one pair of calls.
    """
    numbers = [state.numbers for state in states]
    energy = [state.variance * count for state, count in zip(states, numbers, strict=True)]
    width = len(states[0].total)
    yield _chi2("variance, whitened", sum(energy), sum(numbers))
    yield _normal(
        "calls independent", sum(state.pairs[0] for state in states),
        sum(state.pairs[1] for state in states), sum(numbers) / 2,
    )  # fmt: skip
    yield _chi2(
        "rows: nothing in common", sum(state.common for state in states),
        sum(state.calls * state.rank for state in states),
    )  # fmt: skip
    if width > 1:
        yield _normal(
            "rows: neighbours independent", sum(state.neighbours[0] for state in states),
            sum(state.neighbours[1] for state in states), sum(numbers) / 2,
        )  # fmt: skip
    shifts = sum(state.calls * float(np.square(state.shift).sum()) for state in states)
    yield _normal(
        "nothing of x is added",
        sum(float((s.shift * s.total).sum()) for s in states),
        shifts,
        shifts,
    )
    yield uniform_claim(
        "rows: norms Gaussian",
        [_chi2_below(np.concatenate(state.norms), state.rank) for state in states],
    )
    yield uniform_claim(
        "calls: norms Gaussian",
        [_chi2_below(np.concatenate(s.energies), s.total.size) for s in states],
    )
    read = [part for state in states for part in state.readings]
    if read:
        readings = np.concatenate(read)
        yield largest_claim("weights: largest", readings)
        yield uniform_claim("weights: Gaussian", [_normal_below(readings)])
    for state in states:
        yield from _of_one(state)


def _of_one(state: CallsOnState) -> Iterator[Claim]:
    """Yield the claims on one state."""
    at = f", {state.name}"
    yield Claim("range of G" + at, state.outside, 0.0, None, p_value=float(state.outside <= 1.0))
    yield _chi2("variance, whitened" + at, state.variance * state.numbers, state.numbers)
    yield _chi2("mean 0" + at, float(np.square(state.total).sum()) / state.calls, state.total.size)
    yield from _covariance(state, at)


def _covariance(state: CallsOnState, at: str) -> Iterator[Claim]:
    """Bartlett's decomposition: root has χ²(rows − i) squares on its diagonal, normals above it."""
    rows, rank = state.calls * len(state.total), state.rank
    degrees = rows - np.arange(rank)
    diagonal = np.square(np.diagonal(state.root))
    p = _both_sides(*_chi2_tails(diagonal, degrees))
    worst = int(p.argmin())
    yield Claim(
        "covariance" + at, float(diagonal[worst] / degrees[worst]), 1.0,
        math.sqrt(2 / degrees[worst]), p_value=min(1.0, rank * float(p[worst])), count=rank,
    )  # fmt: skip
    if rank > 1:
        above = float(np.square(np.triu(state.root, 1)).sum())
        yield _chi2("covariance, between coordinates" + at, above, rank * (rank - 1) // 2)


def _chi2(claim: str, value: float, degrees: float) -> Claim:
    """Test a sum of squares of standard normals; the claim shows it per degree of freedom."""
    p = float(_both_sides(*_chi2_tails(value, degrees)))
    return Claim(claim, value / degrees, 1.0, math.sqrt(2 / degrees), p_value=p)


def _normal(claim: str, product: float, square: float, size: float) -> Claim:
    """Test ⟨A, B⟩, which given A is normal with variance |A|²; the claim shows it per `size`."""
    from scipy.special import erfc

    root = math.sqrt(square)
    p = float(erfc(abs(product) / (math.sqrt(2) * root))) if root > 0.0 else 1.0
    return Claim(
        claim, product / size if size else 0.0, 0.0, root / size if size else 0.0, p_value=p
    )


def uniform_claim(claim: str, parts: list[FloatArray]) -> Claim:
    """Test Kolmogorov's distance from the uniform law: P(distance > t) ≤ 2 exp(−2 count t²)."""
    values = np.sort(np.concatenate(parts))
    count = values.size
    steps = np.arange(count + 1) / count
    distance = float(max((steps[1:] - values).max(), (values - steps[:-1]).max()))
    p = min(1.0, 2.0 * math.exp(-2.0 * count * distance**2))
    return Claim(claim, distance, 0.0, 0.5 / math.sqrt(count), p_value=p)


def largest_claim(claim: str, values: FloatArray) -> Claim:
    """Test the largest modulus of `count` normals: P(largest ≤ t) = (1 − erfc(t/√2))^count."""
    from scipy.special import erfc, erfcinv

    largest = float(np.abs(values).max())
    single = float(erfc(largest / math.sqrt(2)))
    below = values.size * math.log1p(-single) if single < 1.0 else -math.inf
    p = min(1.0, 2.0 * min(math.exp(below), -math.expm1(below)))
    median = math.sqrt(2) * float(erfcinv(-math.expm1(math.log(0.5) / values.size)))
    return Claim(claim, largest, median, None, p_value=p)


def _chi2_tails(
    value: float | FloatArray, degrees: float | NDArray[np.intp]
) -> tuple[FloatArray, FloatArray]:
    from scipy.special import chdtr, chdtrc

    return np.asarray(chdtr(degrees, value)), np.asarray(chdtrc(degrees, value))


def _chi2_below(value: FloatArray, degrees: int) -> FloatArray:
    return _chi2_tails(value, degrees)[0]


def _normal_below(value: FloatArray) -> FloatArray:
    from scipy.special import ndtr

    return np.asarray(ndtr(value))


def _both_sides(below: FloatArray, above: FloatArray) -> FloatArray:
    return np.minimum(1.0, 2.0 * np.minimum(below, above))
