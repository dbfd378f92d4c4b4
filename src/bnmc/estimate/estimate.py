"""`Estimate`: a number with its standard error, confidence interval and method."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from bnmc._support.arguments import finite_array, integer, real
from bnmc.errors import ArgumentError, ArgumentTypeError
from bnmc.estimate.intervals import half_width

#: Squares of larger samples may overflow.
_LARGEST_SAMPLE = 1e150


@dataclass(frozen=True, slots=True)
class Estimate:
    """An estimate of one real number, with its standard error and confidence interval.

    Parameters
    ----------
    value : float
        The estimate.
    stderr : float
        Its standard error, >= 0.
    ci : tuple of (float, float)
        Confidence interval, lower end first. An end may be infinite. The interval may be
        asymmetric about `value`, and its length need not be a multiple of `stderr`.
    n : int
        Number of independent samples (chains, replicates) of the estimate, >= 1.
    method : str
        Name of the method, in words.
    level : float, default 0.95
        Probability with which intervals of this method cover the truth, in (0, 1).
    assumes : tuple of str, default ()
        Conditions under which the interval has that probability, in sentences.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If a field lies outside these ranges.

    Examples
    --------
    >>> from bnmc import Estimate
    >>> rate = Estimate(0.791093, 0.000123, (0.790852, 0.791334), n=64, method="coupled chains")
    >>> print(rate)
    0.79109 ± 0.00012
    >>> print(f"{rate:.3f}")
    0.791 ± 0.000
    >>> rate.compatible(0.7911)
    True
    """

    value: float
    stderr: float
    ci: tuple[float, float]
    n: int
    method: str
    level: float = 0.95
    assumes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not (isinstance(self.ci, tuple | list) and len(self.ci) == 2):
            raise ArgumentTypeError("ci", self.ci, "a pair of real numbers")
        low = real("ci[0]", self.ci[0], finite=False)
        high = real("ci[1]", self.ci[1], finite=False)
        if low > high:
            raise ArgumentError("ci", (low, high), "the lower end first")
        if not isinstance(self.method, str):
            raise ArgumentTypeError("method", self.method, "a string")
        canonical = {
            "value": real("value", self.value),
            "stderr": real("stderr", self.stderr, low=0),
            "ci": (low, high),
            "n": integer("n", self.n, low=1),
            "level": real("level", self.level, above=0, below=1),
            "assumes": _sentences(self.assumes),
        }
        for field, content in canonical.items():
            object.__setattr__(self, field, content)

    @classmethod
    def from_samples(
        cls, samples: ArrayLike, *, level: float = 0.95, method: str = "sample mean"
    ) -> Estimate:
        """Estimate of a mean from independent samples.

        The standard error is ``s / sqrt(n)``, with s the sample standard deviation (ddof 1). The
        interval is Student's. It is exact for normal samples, and asymptotic for others by the
        central limit theorem.

        Parameters
        ----------
        samples : (n,) array_like
            Independent, identically distributed samples, n >= 2.
        level : float, default 0.95
            Level of the interval, in (0, 1).
        method : str, default "sample mean"
            Name of the method to record.

        Returns
        -------
        Estimate

        Raises
        ------
        ArgumentError, ArgumentTypeError
            If `samples` are not n >= 2 finite real numbers of modulus at most 1e150, or `level` is
            not in (0, 1).

        Examples
        --------
        >>> from bnmc import Estimate
        >>> print(Estimate.from_samples([1.0, 2.0, 3.0]))
        2.00 ± 0.58
        """
        x = finite_array("samples", samples, shape=("n",)).astype(np.float64, copy=False)
        if x.size < 2:
            raise ArgumentError("samples", x.shape, "at least 2 samples")
        level = real("level", level, above=0, below=1)
        if np.abs(x).max() > _LARGEST_SAMPLE:
            allowed = f"numbers of at most {_LARGEST_SAMPLE:g} in size"
            raise ArgumentError("samples", float(np.abs(x).max()), allowed)
        mean = float(x.mean())
        stderr = float(x.std(ddof=1)) / math.sqrt(x.size)
        return with_student_interval(mean, stderr, x.size - 1, x.size, method, level)

    def compatible(self, other: Estimate | float, sigmas: float = 4.0) -> bool:
        """Tell whether two independent estimates, or an estimate and a known number, agree.

        Parameters
        ----------
        other : Estimate or float
            The second estimate. A number counts as exact.
        sigmas : float, default 4
            Largest allowed difference in standard errors of the difference, >= 0. Two independent,
            normal estimates of the same number differ by more than 4 with probability 6.3e-5.

        Returns
        -------
        bool
            ``|value - other.value| <= sigmas * hypot(stderr, other.stderr)``.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            If `other` or `sigmas` is not a finite real number.

        Examples
        --------
        >>> from bnmc import Estimate
        >>> a = Estimate(1.00, 0.03, (0.94, 1.06), n=100, method="sample mean")
        >>> b = Estimate(1.30, 0.04, (1.22, 1.38), n=100, method="sample mean")
        >>> a.compatible(b), a.compatible(b, sigmas=7)
        (False, True)
        """
        sigmas = real("sigmas", sigmas, low=0)
        if isinstance(other, Estimate):
            value, stderr = other.value, other.stderr
        else:
            value, stderr = real("other", other), 0.0
        return abs(self.value - value) <= sigmas * math.hypot(self.stderr, stderr)

    def as_json(self) -> dict[str, Any]:
        """Return the fields for a JSON document: value, stderr, ci, level, n, and any assumes."""
        names = ["value", "stderr", "ci", "level", "n"]
        if self.assumes:
            names.append("assumes")
        return {name: getattr(self, name) for name in names}

    def __str__(self) -> str:
        """Value and standard error, to two digits of the standard error."""
        return f"{self}"

    def __format__(self, spec: str) -> str:
        """Format both numbers by `spec`, by default to two digits of the standard error."""
        if spec:
            return f"{self.value:{spec}} ± {self.stderr:{spec}}"
        return _with_two_digits_of_error(self.value, self.stderr)


def with_student_interval(
    value: float, stderr: float, degrees: float, n: int, method: str, level: float
) -> Estimate:
    """Return an estimate with Student's interval.

    Parameters
    ----------
    value, stderr, n, method, level
        As in `Estimate`.
    degrees : float
        Degrees of freedom of the standard error, > 0.
    """
    half = half_width(stderr, degrees, level)
    return Estimate(value, stderr, (value - half, value + half), n, method, level)


def _sentences(assumes: object) -> tuple[str, ...]:
    """Return the assumptions as a tuple, or raise if they are no sequence of strings."""
    if not isinstance(assumes, tuple | list) or not all(isinstance(s, str) for s in assumes):
        raise ArgumentTypeError("assumes", assumes, "a tuple of strings")
    return tuple(assumes)


def _with_two_digits_of_error(value: float, stderr: float) -> str:
    """Return both numbers, rounded to the same decimal, in one notation."""
    if stderr == 0:
        return f"{value} ± 0"
    error_exponent = _exponent(stderr)
    leading = max(_exponent(value), error_exponent) if value else error_exponent
    if -5 <= leading < 6:
        decimals = max(1 - error_exponent, 0)
        return f"{value:.{decimals}f} ± {stderr:.{decimals}f}"
    decimals = leading - error_exponent + 1
    # Decimal shifts the point exactly. Multiplying by a power of ten may under- or overflow.
    mantissas = (Decimal(x).scaleb(-leading) for x in (value, stderr))
    return "({:.{d}f} ± {:.{d}f})e{:+03d}".format(*mantissas, leading, d=decimals)


def _exponent(x: float) -> int:
    """Return the decimal exponent of x after rounding to two digits (0.0996 gives −1)."""
    return int(f"{x:.1e}".partition("e")[2])
