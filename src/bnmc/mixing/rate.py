"""`RateEstimate`: the contraction factor per layer, and the timescale that it implies."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from bnmc._support.arguments import real
from bnmc._support.text import Result
from bnmc.errors import ArgumentError
from bnmc.estimate.estimate import Estimate

if TYPE_CHECKING:
    pass


@dataclass(frozen=True)
class RateEstimate(Estimate):
    """An estimate of the factor per layer by which the influence of the start decreases.

    Parameters
    ----------
    value : float
        Contraction factor per layer, in [0, 1); `rate` is another name of it.
    stderr : float
        Standard error of the rate, >= 0.
    ci : tuple of (float, float)
        Confidence interval of the rate, within [0, 1], lower end first; it need not be symmetric.
    n : int
        Number of independent samples (chains, pairs, stretches of a run) in the estimate, >= 1.
    method : str
        The method, in words.
    level : float, default 0.95
        Coverage probability of the interval, in (0, 1).
    assumes : tuple of str, default ()
        As in `bnmc.Estimate`.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If a field lies outside these ranges.

    Examples
    --------
    >>> from bnmc.mixing import RateEstimate
    >>> rate = RateEstimate(0.791093, 0.000123, (0.79085, 0.79133), n=64, method="coupled chains")
    >>> print(rate)
    0.79109 ± 0.00012 per layer, timescale 4.27 (coupled chains)
    >>> round(rate.alpha, 6), [round(end, 3) for end in rate.timescale_ci]
    (0.208907, [4.262, 4.273])
    """

    def __post_init__(self) -> None:
        real("value", self.value, low=0, below=1)
        super().__post_init__()
        if self.ci[0] < 0 or self.ci[1] > 1:
            raise ArgumentError("ci", self.ci, "an interval within [0, 1]")

    @property
    def rate(self) -> float:
        """`value`: the contraction factor per layer."""
        return self.value

    @property
    def alpha(self) -> float:
        """The constant of geometric ergodicity, ``1 − rate``."""
        return 1.0 - self.rate

    @property
    def timescale(self) -> float:
        """Number of layers in which correlations decrease by e, ``−1 / ln rate``; 0 for rate 0."""
        return timescale(self.rate)

    @property
    def timescale_ci(self) -> tuple[float, float]:
        """Confidence interval of the timescale: the interval of the rate, transformed."""
        return timescale(self.ci[0]), timescale(self.ci[1])

    @property
    def rate_estimate(self) -> RateEstimate:
        """These fields alone, without the fields that a subclass adds."""
        return RateEstimate(*(getattr(self, field.name) for field in fields(RateEstimate)))

    def as_json(self) -> dict[str, Any]:
        """Return rate, stderr, ci, timescale and n, for a JSON document."""
        return {name: getattr(self, name) for name in ("rate", "stderr", "ci", "timescale", "n")}

    def __str__(self) -> str:
        """Rate with its error, timescale and method."""
        return f"{super().__str__()} per layer, timescale {self.timescale:.3g} ({self.method})"


class WithRate(Result):
    """A result with an estimate of the rate among its fields."""

    rate_estimate: RateEstimate

    @property
    def rate(self) -> float:
        """`rate_estimate.rate`: the factor per layer."""
        return self.rate_estimate.rate

    @property
    def alpha(self) -> float:
        """``1 − rate``."""
        return 1.0 - self.rate


def timescale(rate: float) -> float:
    """Return ``−1 / ln rate``, in layers, for a rate in [0, 1]."""
    if rate in (0.0, 1.0):
        return math.inf if rate else 0.0
    return -1.0 / math.log(rate)


def rate_from_artanh(
    z: float, stderr: float, ends: tuple[float, float], lag: int, n: int, method: str, level: float
) -> RateEstimate:
    """Return the rate per layer of a correlation ``tanh z`` at a lag.

    Parameters
    ----------
    z, stderr : float
        Artanh of the correlation and its standard error.  On this scale, intervals of the
        correlation stay within (−1, 1).
    ends : tuple of (float, float)
        Confidence interval of z.
    lag : int
        Lag in layers.
    n, method, level
        As in `RateEstimate`.

    Returns
    -------
    RateEstimate
        The rate is the modulus of the correlation to the power 1/lag.  The interval begins at 0 if
        the correlation may be 0, which does not reduce the coverage.
    """

    def rate(x: float) -> float:
        return math.copysign(math.tanh(abs(x)) ** (1.0 / lag), x)

    low, high = ends if z >= 0 else (-ends[1], -ends[0])
    z = abs(z)
    error = (rate(z + stderr) - rate(z - stderr)) / 2
    ci = max(rate(low), 0.0), max(rate(high), rate(-low))
    return RateEstimate(rate(z), error, ci, n, method, level)
