"""The law of squared singular values of a product of many large independent matrices."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq, minimize_scalar

from bnmc._support.arguments import Float64Array, finite_array, instance, integer, items, real
from bnmc._support.text import Result
from bnmc.errors import ArgumentError

_Complex = NDArray[np.complex128]

#: Angles at which the density is computed, in each of three parts; steps along a ray, and of
#: Newton's method at each step.
_ANGLES, _STEPS, _NEWTON = 60, 75, 3


@dataclass(frozen=True, eq=False)
class Factor(Result):
    r"""A factor :math:`C^{1/2} W` of a product of matrices.

    Parameters
    ----------
    columns, rows : int
        Shape of W, at least 1.
    variance : float
        g² > 0: entries of W have the variance g²/columns, or W is g times an orthogonal matrix.
    values : (k,) array_like
        Eigenvalues >= 0 of C, the largest one from 1e-100 to 1e100.
    weights : (k,) array_like, optional
        Their shares, which sum to 1; by default all are equal.
    is_orthogonal : bool, default False
        Whether W is a uniformly distributed orthogonal matrix, and not Gaussian.
    moments : (float, float), optional
        Means of c and of c² over the eigenvalues, if they are known beyond `values`; may be
        infinite.
    is_bounded : bool, default True
        Whether the eigenvalues are bounded.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If an argument is not as above, or an orthogonal matrix is not square.

    Examples
    --------
    >>> from bnmc.random_matrix import Factor
    >>> Factor(100, 100, 2.0, [0.0, 1.0]).moments
    (0.5, 0.5)
    """

    columns: int
    rows: int
    variance: float
    values: Float64Array
    weights: Float64Array
    is_orthogonal: bool
    moments: tuple[float, float]
    is_bounded: bool

    def __init__(
        self,
        columns: int,
        rows: int,
        variance: float,
        values: ArrayLike,
        weights: ArrayLike | None = None,
        *,
        is_orthogonal: bool = False,
        moments: tuple[float, float] | None = None,
        is_bounded: bool = True,
    ) -> None:
        columns, rows = integer("columns", columns, low=1), integer("rows", rows, low=1)
        c = finite_array("values", values, shape=("k",)).astype(np.float64)
        if not c.size or c.min() < 0.0 or not 1e-100 <= c.max() <= 1e100:
            raise ArgumentError("values", values, "numbers >= 0, the largest in [1e-100, 1e100]")
        if weights is None:
            shares = np.full(c.size, 1.0 / c.size)
        else:
            shares = finite_array("weights", weights, shape=(c.size,)).astype(np.float64)
            if shares.min() < 0.0 or abs(shares.sum() - 1.0) > 1e-9:
                raise ArgumentError("weights", weights, "numbers >= 0 with the sum 1")
        instance("is_bounded", is_bounded, bool, "True or False")
        if instance("is_orthogonal", is_orthogonal, bool, "True or False") and rows != columns:
            raise ArgumentError("rows", rows, f"{columns}, for an orthogonal matrix")
        c, place = np.unique(c, return_inverse=True)
        shares = np.bincount(place.reshape(-1), shares)
        if moments is None:
            with np.errstate(under="ignore"):
                moments = float(shares @ c), float(shares @ c**2)
        pair = items("moments", moments, "a pair of numbers")
        if len(pair) != 2:
            raise ArgumentError("moments", moments, "a pair of numbers")
        content = {
            "columns": columns, "rows": rows, "variance": real("variance", variance, above=0.0),
            "values": c, "weights": shares, "is_orthogonal": is_orthogonal,
            "moments": (
                real("moments[0]", pair[0], above=0.0, finite=False),
                real("moments[1]", pair[1], above=0.0, finite=False),
            ),
            "is_bounded": is_bounded,
        }  # fmt: skip
        for field, value in content.items():
            object.__setattr__(self, field, value)

    @property
    def mean(self) -> float:
        """The factor of the mean squared singular value."""
        return self.variance * self.moments[0] * (self.rows / self.columns)

    @property
    def dispersion(self) -> float:
        """Variance over squared mean that the factor adds, for a product with `rows` columns."""
        mean, square = self.moments
        spread = square / mean / mean - 1.0 if math.isfinite(square) else math.inf
        return spread + (0.0 if self.is_orthogonal else 1.0)


@dataclass(frozen=True, eq=False)
class ProductLaw(Result):
    r"""The limit law of the squared singular values of products of independent matrices.

    The product is

    .. math:: J = C_L^{1/2} W_L \cdots C_1^{1/2} W_1

    with `size` columns, where W_1, …, W_L are Gaussian or uniformly distributed orthogonal matrices
    and C_l are independent of them.  If all sizes grow in proportion, the eigenvalues of
    :math:`J^T J` have a limit law, whose S-transform is a product: that of Jacobians of wide random
    networks (Pennington, Schoenholz and Ganguli, arXiv 1802.09979).

    Parameters
    ----------
    factors : sequence of Factor
        From the first one, which multiplies the input, to the last one.
    size : int, optional
        Columns of J, at least those of the first factor; J is 0 on the other ones.  Default: those
        of the first factor.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If there is no factor, or a factor does not fit the one before.

    Notes
    -----
    Let w be a value of ψ(z) = Σ_k m_k zᵏ, m_k the moments of the law, and let λ be rows/columns of
    a factor, u = w · size/columns and v = w · size/rows.  Then

    .. math:: ψ^{-1}(w) = \frac{w}{1 + w} \prod_l S_l, \qquad
              S_l = \frac{1}{g^2 (λ + u)} S_C(v), \quad\text{or}\quad \frac{1}{g^2} S_C(v)

    for an orthogonal matrix, with S_C the S-transform of the law of the eigenvalues of C.

    Examples
    --------
    Four layers of ReLU, whose slopes are 0 or 1, with weights of variance 2/width:

    >>> from bnmc.random_matrix import Factor, ProductLaw
    >>> law = ProductLaw([Factor(100, 100, 2.0, [0.0, 1.0])] * 4)
    >>> law.mean, law.dispersion
    (1.0, 8.0)
    >>> round(law.largest, 6)
    21.858249
    """

    factors: tuple[Factor, ...]
    size: int

    def __init__(self, factors: Sequence[Factor], size: int | None = None) -> None:
        given = items("factors", factors, "objects Factor")
        chosen = tuple(instance("factors", each, Factor, "objects Factor") for each in given)
        if not chosen:
            raise ArgumentError("factors", factors, "at least one factor")
        for before, after in itertools.pairwise(chosen):
            if after.columns != before.rows:
                raise ArgumentError("columns", after.columns, f"{before.rows}, rows before")
        first = chosen[0].columns
        size = first if size is None else integer("size", size, low=first)
        object.__setattr__(self, "factors", chosen)
        object.__setattr__(self, "size", size)

    @property
    def log_mean(self) -> float:
        """Logarithm of the mean."""
        shares = sum(math.log(each.mean) for each in self.factors)
        return shares + math.log(self.factors[0].columns / self.size)

    @property
    def mean(self) -> float:
        """Mean of the squared singular values; infinite if it overflows."""
        with np.errstate(over="ignore"):
            return float(np.exp(self.log_mean))

    @property
    def dispersion(self) -> float:
        """Variance of the squared singular values over their squared mean; may be infinite."""
        added = sum(self.size / each.rows * each.dispersion for each in self.factors)
        return self.size / self.factors[0].columns - 1.0 + added

    @property
    def largest(self) -> float:
        """The largest squared singular value, the upper end of the law; may be infinite."""
        return self.mean * self.largest_over_mean

    @property
    def largest_over_mean(self) -> float:
        """The largest squared singular value over the mean, also if both overflow."""
        if not all(each.is_bounded for each in self.factors):
            return math.inf
        if self.dispersion < 1e-14:
            return 1.0
        at_end = minimize_scalar(
            lambda t: self._log_argument(math.exp(t)), bounds=(-25.0, 12.0), method="bounded",
            options={"xatol": 1e-9},
        )  # fmt: skip
        return math.exp(at_end.fun - self.log_mean)

    def density(self, x: ArrayLike) -> Float64Array:
        """Return the density of the squared singular values that are not 0.

        Parameters
        ----------
        x : array_like
            Numbers above 0.

        Returns
        -------
        ndarray of float64
            Of the shape of x.  Its integral is the share of the values that are not 0.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            If x are not finite numbers above 0.

        Notes
        -----
        For each angle, the first w = r e^{iθ} for which 1/ψ⁻¹(w) is a real number x is found by
        bisection.  There (1 + w)/x is the Stieltjes transform of the law.  The density is
        interpolated between these x, in logarithms: the relative error is about 2e-3.

        Examples
        --------
        >>> from bnmc.random_matrix import Factor, ProductLaw
        >>> law = ProductLaw([Factor(100, 100, 1.0, [1.0])])  # Marchenko-Pastur
        >>> law.density([1.0, 2.0, 5.0]).round(4)
        array([0.2756, 0.1591, 0.    ])
        """
        points = finite_array("x", x, shape=(...,)).astype(np.float64)
        if points.size and points.min() <= 0.0:
            raise ArgumentError("x", float(points.min()), "numbers above 0")
        if not abs(self.log_mean) < 700.0:
            raise ArgumentError(
                "factors", self.log_mean, "a product with the logarithm of its mean below 700"
            )
        at, density = self._curve
        scale = math.exp(self.log_mean)
        logs = np.interp(
            np.log(points / scale), np.log(at), np.log(density), left=-np.inf, right=-np.inf
        )
        return np.exp(logs) / scale

    def _counted(self) -> dict[Factor, int]:
        counts: dict[Factor, int] = {}
        for each in self.factors:
            counts[each] = counts.get(each, 0) + 1
        return counts

    def _log_argument(self, w: float) -> float:
        """Return ln z for a real z above the law with ψ(1/z) = w > 0."""
        share = self.factors[0].columns / self.size
        total = math.log(share + w) - math.log(w)
        for each, count in self._counted().items():
            u, v = w * self.size / each.columns, w * self.size / each.rows
            total += count * math.log(each.variance)
            if not each.is_orthogonal:
                total += count * math.log(each.rows / each.columns + u)
            total -= count * (math.log1p(v) - math.log(v) + math.log(_real_inverse(each, v)))
        return total

    @cached_property
    def _curve(self) -> tuple[Float64Array, Float64Array]:
        """Return points x and the density there, for the law with mean 1."""
        near = np.geomspace(1e-4, 0.3, _ANGLES)
        middle = np.linspace(0.3, math.pi - 0.3, _ANGLES)[1:-1]
        theta = np.concatenate([near, middle, math.pi - near[::-1]])
        inverses = {each: _Inverse(each) for each in self.factors}
        # The phase of 1/ψ⁻¹ grows along a ray, from -θ at 0.
        spread = self.dispersion
        r = np.full(theta.shape, 0.05 / (1.0 + spread) if math.isfinite(spread) else 1e-3)
        low, high = np.zeros_like(r), np.full_like(r, np.inf)
        with np.errstate(all="ignore"):  # near the real line Newton's method may fail
            for _ in range(_STEPS):
                _, phase = self._argument(r, theta, inverses)
                low, high = np.where(phase < 0.0, r, low), np.where(phase < 0.0, high, r)
                r = np.where(np.isfinite(high), np.sqrt(low * high), low * 1.25)
            size, phase = self._argument(r, theta, inverses)
        w = r * np.exp(1j * theta)
        is_found = np.isfinite(high) & np.isfinite(size) & (np.abs(phase) < 1e-6)
        x, w = np.exp(size[is_found]), w[is_found]
        order = np.argsort(x)
        return x[order], w.imag[order] / (math.pi * x[order])

    def _argument(
        self, r: Float64Array, theta: Float64Array, inverses: dict[Factor, _Inverse]
    ) -> tuple[Float64Array, Float64Array]:
        """Return ln of modulus and phase of 1/ψ⁻¹(r e^{iθ}), for the law with mean 1."""
        w = r * np.exp(1j * theta)
        share = self.factors[0].columns / self.size
        total = np.log(1.0 + w / share) - np.log(r) - 1j * theta
        for each, count in self._counted().items():
            u, v = w * self.size / each.columns, w * self.size / each.rows
            # v/(y mean (1 + v)) is 1 at 0, and its logarithm is continuous along the ray.
            y = inverses[each].at(v)
            total -= count * (np.log((1.0 + v) * each.moments[0]) + np.log(y / v))
            if not each.is_orthogonal:
                total += count * np.log(1.0 + u * each.columns / each.rows)
        return total.real, total.imag


def _real_inverse(factor: Factor, v: float) -> float:
    """Return y with E[y c/(1 − y c)] = v > 0."""
    c, shares = factor.values, factor.weights
    top = c[-1]
    if np.count_nonzero(c) == 1:
        return float(v / (top * (shares[-1] + v)))

    def excess(y: float) -> float:
        return float(shares @ (y * c / (1.0 - y * c)) - v)

    # One eigenvalue alone gives a bound: shares · y top/(1 − y top) <= v.
    upper = v / (top * (shares[-1] + v))
    return float(brentq(excess, 0.0, upper, xtol=1e-300, rtol=1e-14))


class _Inverse:
    """The inverse of ψ(y) = E[y c/(1 − y c)], followed by Newton's method from call to call."""

    def __init__(self, factor: Factor) -> None:
        self._factor = factor
        self._y: _Complex | None = None

    def at(self, v: _Complex) -> _Complex:
        """Return y with ψ(y) = v."""
        c, shares = self._factor.values, self._factor.weights
        if np.count_nonzero(c) == 1:
            return v / (c[-1] * (shares[-1] + v))
        mean = float(shares @ c)
        y = v / (mean * (1.0 + v)) if self._y is None else self._y
        for _ in range(_NEWTON):
            rest = 1.0 / (1.0 - y[:, None] * c)
            slope = (c * rest**2) @ shares
            y = y - ((y[:, None] * c * rest) @ shares - v) / slope
        self._y = y
        return y
