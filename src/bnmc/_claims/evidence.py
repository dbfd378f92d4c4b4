"""Evidence for claims: tests that differences have mean 0, corrected for their number."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnmc.estimate.estimate import Estimate

#: Largest unit of rounding in the tests; coarser rounding, as in half precision, acts as noise.
COARSE = float(np.finfo(np.float32).eps)

FloatArray = NDArray[np.float64]

#: Largest difference of two equal numbers, in units of rounding.
_ROUNDING = 64

#: Level of the intervals of claims without a test.
LEVEL = 0.95


@dataclass(frozen=True)
class Claim:
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

    observed: FloatArray
    expected: FloatArray
    magnitude: FloatArray

    @classmethod
    def of(
        cls,
        observed: FloatArray,
        expected: FloatArray | float = 0.0,
        magnitude: FloatArray | float | None = None,
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


def reported(claim: str, values: FloatArray, expected: float | None = None) -> Claim:
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
