"""`RateEstimate`: how fast a chain forgets."""

from __future__ import annotations

import math
from dataclasses import dataclass

from bnmc._support.arguments import real
from bnmc.errors import ArgumentError
from bnmc.estimate.estimate import Estimate

__all__ = ["RateEstimate", "timescale"]


@dataclass(frozen=True)
class RateEstimate:
    """An estimate of the factor by which each layer shrinks what a chain remembers of its start.

    Parameters
    ----------
    rate : float
        Contraction factor per layer, in [0, 1).
    stderr : float
        Its standard error, >= 0.
    ci : tuple of (float, float)
        Confidence interval of the rate, within [0, 1], lower end first; it need not be symmetric.
    n : int
        Number of independent samples (chains, pairs, stretches of a run) behind it, >= 1.
    method : str
        How it was obtained, in words.
    level : float, default 0.95
        Probability with which intervals made this way cover the truth, in (0, 1).

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If a field lies outside these ranges.

    Examples
    --------
    >>> found = RateEstimate(0.791093, 0.000123, (0.79085, 0.79133), n=64, method="coupled chains")
    >>> print(found)
    0.79109 ± 0.00012 a layer, timescale 4.27 (coupled chains)
    >>> round(found.alpha, 6), [round(end, 3) for end in found.timescale_ci]
    (0.208907, [4.262, 4.273])
    """

    rate: float
    stderr: float
    ci: tuple[float, float]
    n: int
    method: str
    level: float = 0.95

    def __post_init__(self) -> None:
        real("rate", self.rate, low=0, below=1)
        checked = Estimate(self.rate, self.stderr, self.ci, self.n, self.method, self.level)
        if checked.ci[0] < 0 or checked.ci[1] > 1:
            raise ArgumentError("ci", checked.ci, "an interval within [0, 1]")
        object.__setattr__(self, "rate", checked.value)
        for field in ("stderr", "ci", "n", "method", "level"):
            object.__setattr__(self, field, getattr(checked, field))

    @property
    def alpha(self) -> float:
        """The constant of geometric ergodicity, ``1 − rate``."""
        return 1.0 - self.rate

    @property
    def timescale(self) -> float:
        """Layers in which the memory falls e-fold, ``−1 / ln rate``; 0 for the rate 0."""
        return timescale(self.rate)

    @property
    def timescale_ci(self) -> tuple[float, float]:
        """Confidence interval of the timescale: that of the rate, transformed."""
        return timescale(self.ci[0]), timescale(self.ci[1])

    @property
    def rate_estimate(self) -> RateEstimate:
        """These fields alone, without what the result of an estimator adds to them."""
        return RateEstimate(self.rate, self.stderr, self.ci, self.n, self.method, self.level)

    def __str__(self) -> str:
        """Rate with its error, timescale and method."""
        rate = Estimate(self.rate, self.stderr, self.ci, self.n, self.method, self.level)
        return f"{rate} a layer, timescale {self.timescale:.3g} ({self.method})"


def timescale(rate: float) -> float:
    """``−1 / ln rate`` for a rate in [0, 1]."""
    if rate in (0.0, 1.0):
        return math.inf if rate else 0.0
    return -1.0 / math.log(rate)
