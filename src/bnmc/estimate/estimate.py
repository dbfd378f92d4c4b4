"""`Estimate`: a number with its standard error, confidence interval and method."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnmc._support.arguments import finite_array, integer, real
from bnmc._support.text import Result
from bnmc.errors import ArgumentError, ArgumentTypeError, PartialEstimateError

#: Squares of larger samples may overflow.
_LARGEST_SAMPLE = 1e150

#: The exponential of a larger number overflows.
_LARGEST_EXPONENT = math.log(np.finfo(np.float64).max)


@dataclass(frozen=True, slots=True)
class Estimate(Result):
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

    Sums with constants, and multiples, are estimates:

    >>> print(1 - rate)
    0.20891 ± 0.00012
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

    def exp(self) -> Estimate:
        """Return the exponential of an estimate, for estimates of a logarithm.

        Returns
        -------
        Estimate
            The value and the ends of the interval are exponentials, so the interval keeps its
            level; an end may be infinite. The standard error is ``exp(value) * stderr``, which is
            exact to first order.

        Raises
        ------
        ArgumentError
            If the value or the standard error overflows.

        Examples
        --------
        >>> from bnmc import Estimate
        >>> slope = Estimate(0.7, 0.01, (0.68, 0.72), n=100, method="mean of ln")
        >>> growth = slope.exp()
        >>> print(growth, [round(end, 3) for end in growth.ci])
        2.014 ± 0.020 [1.974, 2.054]
        """
        value, low, high = (
            math.exp(x) if x <= _LARGEST_EXPONENT else math.inf for x in (self.value, *self.ci)
        )
        return Estimate(
            value, value * self.stderr, (low, high), self.n, self.method, self.level, self.assumes
        )

    def _scaled(self, factor: float, constant: float) -> Estimate:
        """Return ``factor * self + constant``."""
        ends = sorted(factor * end + constant if factor else constant for end in self.ci)
        return Estimate(
            factor * self.value + constant, abs(factor) * self.stderr, (ends[0], ends[1]),
            self.n, self.method, self.level, self.assumes,
        )  # fmt: skip

    def __mul__(self, factor: float) -> Estimate:
        """Return a multiple; the interval keeps its level, as for all sums with constants."""
        return self._scaled(float(factor), 0.0) if _is_constant(factor) else NotImplemented

    def __add__(self, constant: float) -> Estimate:
        return self._scaled(1.0, float(constant)) if _is_constant(constant) else NotImplemented

    def __sub__(self, constant: float) -> Estimate:
        return self._scaled(1.0, -float(constant)) if _is_constant(constant) else NotImplemented

    def __rsub__(self, constant: float) -> Estimate:
        return self._scaled(-1.0, float(constant)) if _is_constant(constant) else NotImplemented

    def __truediv__(self, divisor: float) -> Estimate:
        return self._scaled(1.0 / float(divisor), 0.0) if _is_constant(divisor) else NotImplemented

    def __neg__(self) -> Estimate:
        return self._scaled(-1.0, 0.0)

    __rmul__, __radd__ = __mul__, __add__

    def as_json(self) -> dict[str, Any]:
        """Return the fields for a JSON document: value, stderr, ci, level, n, and any assumes."""
        names = ["value", "stderr", "ci", "level", "n"]
        if self.assumes:
            names.append("assumes")
        return {name: getattr(self, name) for name in names}

    def __str__(self) -> str:
        """Value and standard error, to two digits of the standard error."""
        return with_error(self.value, self.stderr)

    def __format__(self, spec: str) -> str:
        """Format both numbers by `spec`, by default as `str` does."""
        return f"{self.value:{spec}} ± {self.stderr:{spec}}" if spec else str(self)


@dataclass(frozen=True, eq=False)
class Estimates(Result):
    """Estimates of several real numbers: each item is an `Estimate`.

    Attributes
    ----------
    value, stderr : (...) ndarray of float64
        The estimates and their standard errors.
    n : int
        Number of independent samples, >= 2.
    method : str
    level : float, default 0.95
        Level of the intervals.
    ci : (..., 2) ndarray of float64, optional
        Confidence intervals, by default Student's.
    assumes : tuple of str
        Conditions under which intervals have their level, in sentences.

    Examples
    --------
    >>> import numpy as np
    >>> from bnmc import Estimates
    >>> means = Estimates(np.array([1.0, 2.0]), np.array([0.1, 0.2]), 30, "sample mean")
    >>> print(means[1], len(means), means.ci[0].round(3))
    2.00 ± 0.20 2 [0.795 1.205]
    """

    value: NDArray[np.float64]
    stderr: NDArray[np.float64]
    n: int
    method: str
    level: float = 0.95
    ci: NDArray[np.float64] = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if self.ci is None:
            half = half_width(1.0, self.n - 1, self.level) * self.stderr
            ends = np.stack([self.value - half, self.value + half], axis=-1)
            object.__setattr__(self, "ci", ends)

    @property
    def assumes(self) -> tuple[str, ...]:
        """Conditions under which intervals have their level: none."""
        return ()

    def __len__(self) -> int:
        return len(self.value)

    def __iter__(self) -> Iterator[Estimate]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, index: int | tuple[int, ...]) -> Estimate:
        """Return one of the estimates."""
        value, stderr, (low, high) = self.value[index], self.stderr[index], self.ci[index]
        return Estimate(value, stderr, (low, high), self.n, self.method, self.level, self.assumes)


def _is_constant(number: object) -> bool:
    return isinstance(number, Real) and not isinstance(number, bool | np.bool)


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


def growth_estimate(growth: NDArray[np.float64], level: float, method: str, units: str) -> Estimate:
    """Return exp of the mean of independent logarithms, with Student's interval of that mean.

    Parameters
    ----------
    growth : (n,) ndarray of float64
    level : float
    method : str
    units : str
        What the samples are of, in the plural, for the message.

    Returns
    -------
    Estimate

    Raises
    ------
    PartialEstimateError
        If there is one sample.
    """
    if len(growth) < 2:
        value = math.exp(growth.mean())
        raise PartialEstimateError(f"an interval needs at least 2 {units}", value)
    return Estimate.from_samples(growth, level=level, method=method).exp()


def layers_of_growth(first: int | None, last: int | None, depth: int) -> tuple[int, int]:
    """Return the layers between which a growth is taken; the default is the middle half.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        Unless 0 <= first < last < depth.
    """
    begin = depth // 4 if first is None else integer("first", first, low=0)
    end = max(begin + 1, 3 * depth // 4) if last is None else integer("last", last, low=1)
    if not begin < end < depth:
        raise ArgumentError("last", end, f"from {begin + 1} to {depth - 1}")
    return begin, end


def _sentences(assumes: object) -> tuple[str, ...]:
    """Return the assumptions as a tuple, or raise if they are no sequence of strings."""
    if not isinstance(assumes, tuple | list) or not all(isinstance(s, str) for s in assumes):
        raise ArgumentTypeError("assumes", assumes, "a tuple of strings")
    return tuple(assumes)


def with_error(value: float, stderr: float) -> str:
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


# --- confidence intervals for means and proportions, and the jackknife

#: Halvings of an interval of length 1, down to the resolution of float64.
_BISECTIONS = 60

# Functions import SciPy's special functions locally, because SciPy is slow to import.


def half_width(stderr: float, degrees: float, level: float) -> float:
    """Return half the length of Student's interval.

    Parameters
    ----------
    stderr : float
        Standard error of the estimate, >= 0.
    degrees : float
        Degrees of freedom of the standard error, > 0.
    level : float
        Probability with which the interval covers the truth, in (0, 1).

    Returns
    -------
    float
        The interval is the estimate plus or minus this number.

    Examples
    --------
    >>> from bnmc.estimate.estimate import half_width
    >>> round(half_width(1.0, 9, 0.95), 6)
    2.262157
    """
    from scipy.special import stdtrit

    return float(stdtrit(degrees, 0.5 + level / 2)) * stderr


def mean_interval(values: NDArray[np.int64], quantile: float) -> tuple[float, float]:
    """Return an interval for the mean of samples of a law with positive skewness.

    The interval is Student's, ``mean ∓ t s/√n``, with the sample standard deviation s. If the
    sample skewness κ is positive, the upper end increases by the term of next order in κ,
    ``κ (1 + 2t²) s / (6n)`` (Hall, *On the removal of skewness by transformation*, 1992).

    Parameters
    ----------
    values : (n,) ndarray of int64
        Independent, identically distributed samples, n >= 2.
    quantile : float
        Probability of each one-sided interval, in (½, 1). For two-sided intervals of probability p
        it is (1 + p)/2.

    Returns
    -------
    low, high : float
        Both are the mean if all samples are equal.
    """
    from scipy.special import stdtrit

    count, mean, spread = values.size, float(values.mean()), float(values.std(ddof=1))
    if spread == 0.0:
        return mean, mean
    t = float(stdtrit(count - 1, quantile))
    skewness = float(((values - mean) ** 3).mean()) / spread**3
    shift = max(0.0, skewness) * (1.0 + 2.0 * t * t) / (6.0 * math.sqrt(count))
    stderr = spread / math.sqrt(count)
    return mean - t * stderr, mean + (t + shift) * stderr


def bounded_mean_interval(mean: ArrayLike, count: int, level: float) -> NDArray[np.float64]:
    r"""Return intervals for the mean of a law on [0, 1], whatever the law.

    The ends are the solutions μ, below and above the sample mean m, of

    .. math:: n \left(m \log\frac{m}{\mu} + (1 - m) \log\frac{1 - m}{1 - \mu}\right)
        = \log\frac{2}{1 - \text{level}}.

    By Theorem 1 of Hoeffding (*Probability inequalities for sums of bounded random variables*,
    1963), either end misses the mean with probability at most (1 − level)/2.

    Parameters
    ----------
    mean : (...) array_like
        Sample means m, in [0, 1].
    count : int
        Number n of independent samples in each mean, >= 1.
    level : float
        Lower bound of the probability with which an interval covers the mean, in (0, 1).

    Returns
    -------
    (..., 2) ndarray of float64
        Lower and upper ends, in [0, 1].

    Examples
    --------
    >>> from bnmc.estimate.estimate import bounded_mean_interval
    >>> bounded_mean_interval([0.0, 0.5], 100, 0.95).round(4)
    array([[0.    , 0.0362],
           [0.3667, 0.6333]])
    """
    clipped = np.clip(np.asarray(mean, dtype=np.float64), 0.0, 1.0)
    allowed = math.log(2.0 / (1.0 - level)) / count
    ends = np.stack([np.zeros(clipped.shape), np.ones(clipped.shape)])
    inside = np.stack([clipped, clipped])
    # The divergence grows monotonically away from m, so 60 bisections find both ends outwards: the
    # ends that are returned are never inside of the solutions.
    for _ in range(_BISECTIONS):
        middle = 0.5 * (ends + inside)
        beyond = _divergence(clipped, middle) > allowed
        ends, inside = np.where(beyond, middle, ends), np.where(beyond, inside, middle)
    return np.stack([*ends], axis=-1)


def _divergence(m: NDArray[np.float64], mu: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the divergence of Bernoulli(μ) from Bernoulli(m), which may be infinite."""
    from scipy.special import rel_entr

    return rel_entr(m, mu) + rel_entr(1.0 - m, 1.0 - mu)


def clopper_pearson(
    successes: NDArray[np.float64], count: int, level: float
) -> NDArray[np.float64]:
    """Return exact intervals for the probability of a binomial law (Clopper and Pearson 1934).

    Parameters
    ----------
    successes : (...) ndarray of float64
        Numbers of successes, integers in 0 … `count`.
    count : int
        Number of trials, >= 1.
    level : float
        Lower bound of the probability with which an interval covers the truth, in (0, 1).

    Returns
    -------
    (..., 2) ndarray of float64
        Lower and upper ends, in [0, 1].

    Examples
    --------
    >>> import numpy as np
    >>> from bnmc.estimate.estimate import clopper_pearson
    >>> clopper_pearson(np.array([0.0, 5.0]), 10, 0.95).round(4)
    array([[0.    , 0.3085],
           [0.1871, 0.8129]])
    """
    from scipy.special import betaincinv

    tail = 0.5 * (1.0 - level)
    some, not_all = successes > 0, successes < count
    low = np.zeros(successes.shape)
    low[some] = betaincinv(successes[some], count - successes[some] + 1.0, tail)
    high = np.ones(successes.shape)
    high[not_all] = betaincinv(successes[not_all] + 1.0, count - successes[not_all], 1.0 - tail)
    return np.stack([low, high], axis=-1)


def jackknife(full: Any, left_out: Any) -> tuple[Any, Any]:
    """Return an estimate without its bias of first order, and its standard error.

    The method is that of Efron and Stein (1981).

    Parameters
    ----------
    full : float or (...) ndarray
        The statistic of all m groups of the data.
    left_out : (m, ...) ndarray
        The statistic of all groups but one, for each omitted group.

    Returns
    -------
    estimate, stderr : float or (...) ndarray
    """
    count = len(left_out)
    mean = left_out.mean(axis=0)
    stderr = np.sqrt((count - 1) / count * np.square(left_out - mean).sum(axis=0))
    return count * full - (count - 1) * mean, stderr
