"""The Marchenko–Pastur law of eigenvalues, and the law of the singular values.

`_FrozenLaw` has the methods of SciPy's laws, for an atom at 0 and a continuous part, the bulk. The
mass and the quantiles of the bulk are those of T = tan(θ/2), for the angle θ that `MarchenkoPastur`
defines. T is 0 at one edge of the bulk, and 1 at the middle of the range of θ.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from bnmc._support.arguments import Float64Array, generator, instance, integer, real, real_numbers
from bnmc._support.machine import require_memory


class _FrozenLaw(ABC):
    """A law on [0, ∞) with a continuous part, the bulk, and possibly an atom at 0.

    Its methods have the names of the frozen distributions of `scipy.stats`.
    """

    @property
    @abstractmethod
    def atom(self) -> float:
        """Mass at 0, ``max(0, 1 − 1/γ)``."""

    @property
    @abstractmethod
    def _bulk(self) -> float:
        """Mass of the bulk, ``1 − atom`` to all digits."""

    @property
    @abstractmethod
    def edges(self) -> tuple[float, float]:
        """Ends of the bulk."""

    @abstractmethod
    def moment(self, order: float) -> float:
        """Moment of real order >= 0, including the atom."""

    @abstractmethod
    def var(self) -> float:
        """Variance."""

    @abstractmethod
    def _density(self, x: Float64Array) -> Float64Array:
        """Return the density of the bulk."""

    @abstractmethod
    def _masses(self, x: Float64Array) -> tuple[Float64Array, Float64Array]:
        """Return the shares of the bulk below and above x."""

    @abstractmethod
    def _quantiles(self, below: Float64Array, above: Float64Array) -> Float64Array:
        """Return the points x of the bulk with the given `_masses`."""

    def support(self) -> tuple[float, float]:
        """Smallest and largest point of the law: `edges`, or (0, b) if the law has an atom."""
        low, high = self.edges
        return (0.0 if self.atom > 0 else low), high

    def pdf(self, x: ArrayLike) -> Float64Array:
        """Density of the bulk, which has the mass ``1 − atom``.

        Parameters
        ----------
        x : (...) array_like
            Finite real numbers.

        Returns
        -------
        (...) ndarray of float64
            Non-negative. Infinite only for eigenvalues, γ = 1 and x = 0.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            If `x` is not an array of finite real numbers.
        """
        return self._density(real_numbers("x", x))[()]

    def cdf(self, x: ArrayLike) -> Float64Array:
        """Mass of (−∞, x], including the atom.

        Parameters
        ----------
        x : (...) array_like
            Finite real numbers.

        Returns
        -------
        (...) ndarray of float64
            In [0, 1].

        Raises
        ------
        ArgumentError, ArgumentTypeError
            If `x` is not an array of finite real numbers.
        """
        at = real_numbers("x", x)
        below, _ = self._masses(at)
        return np.where(at < 0, 0.0, self.atom + self._bulk * below)[()]

    def sf(self, x: ArrayLike) -> Float64Array:
        """Mass of (x, ∞), ``1 − cdf(x)`` without cancellation.

        Parameters
        ----------
        x : (...) array_like
            Finite real numbers.

        Returns
        -------
        (...) ndarray of float64
            In [0, 1].

        Raises
        ------
        ArgumentError, ArgumentTypeError
            If `x` is not an array of finite real numbers.
        """
        at = real_numbers("x", x)
        _, above = self._masses(at)
        return np.where(at < 0, 1.0, self._bulk * above)[()]

    def ppf(self, q: ArrayLike) -> Float64Array:
        """Quantiles: the smallest x of the support with ``cdf(x) >= q``.

        Parameters
        ----------
        q : (...) array_like
            Probabilities, in [0, 1].

        Returns
        -------
        (...) ndarray of float64
            In the support.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            If `q` is not an array of numbers in [0, 1].
        """
        levels = real_numbers("q", q, low=0, high=1)
        below = np.clip((levels - self.atom) / self._bulk, 0.0, 1.0)
        above = np.clip((1.0 - levels) / self._bulk, 0.0, 1.0)
        is_atom = (levels <= self.atom) & (self.atom > 0) & (levels < 1)
        bulk = np.clip(self._quantiles(below, above), *self.edges)
        return np.where(is_atom, 0.0, bulk)[()]

    def mean(self) -> float:
        """First moment."""
        return self.moment(1)

    def std(self) -> float:
        """Standard deviation."""
        return math.sqrt(self.var())

    def median(self) -> float:
        """Median, ``ppf(0.5)``."""
        return float(self.ppf(0.5))

    def rvs(self, size: int | tuple[int, ...] = (), rng: Any = None) -> Float64Array:
        """Independent samples, by inversion.

        Parameters
        ----------
        size : int or tuple of int, default ()
            Shape of the result.
        rng : optional
            Any argument of `numpy.random.default_rng`.

        Returns
        -------
        (*size) ndarray of float64
            Independent, unlike the eigenvalues of one matrix, which repel each other.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            If `size` is not a shape, or `rng` is not such an argument.
        ResultTooLargeError
            If the samples do not fit into the free memory.
        """
        lengths = size if isinstance(size, tuple) else (size,)
        shape = tuple(integer("size", length, low=0) for length in lengths)
        stream = generator(rng)
        require_memory("size", 16 * math.prod(shape))
        return self.ppf(stream.random(shape))


@dataclass(frozen=True)
class MarchenkoPastur(_FrozenLaw):
    """Limiting law of the eigenvalues of ``AᵀA/d``, A a d × n matrix of i.i.d. centred entries.

    As d and n grow with ``n/d → γ``, the fraction of eigenvalues up to x tends to ``cdf(x)``, for
    every law of the entries with variance v (Marchenko and Pastur 1967). With edges
    ``a, b = v (1 ∓ √γ)²`` the density is ``√((b−x)(x−a)) / (2π v γ x)`` on [a, b]. For γ > 1 the
    law has an additional atom of mass ``1 − 1/γ`` at 0.

    Parameters
    ----------
    ratio : float
        γ = n/d, the batch divided by the width, in [1e-150, 1e150].
    variance : float, default 1.0
        v, variance of the entries, in [1e-150, 1e150].

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If a parameter is not a real number in its range.

    Notes
    -----
    For γ <= 1, put ``x = v |1 − √γ e^{iθ}|²`` with 0 <= θ <= π. The density in θ is
    ``(2/π) sin²θ / (1 − 2√γ cos θ + γ)``. For γ > 1 the eigenvalues other than 0 are those of
    ``AAᵀ/d``. In ``T = tan(θ/2)`` the density is rational. It is integrated from the nearer edge,
    in closed form. If the closed form would cancel, a Gauss–Legendre rule integrates it to rounding
    instead. So `cdf` and `sf` have errors of about 1e-15. In the tails, their relative error is
    that of the distance from the edge.

    The bulk is only of width √γ. So an error ε x of the argument x changes `cdf` by up to
    ``ε/(π√γ)``.

    Examples
    --------
    >>> from bnmc.random_matrix import MarchenkoPastur
    >>> law = MarchenkoPastur(0.25)
    >>> law.edges, law.mean(), law.var()
    ((0.25, 2.25), 1.0, 0.25)
    >>> law.cdf([0.2, 1.0, 3.0]).round(6)
    array([0.     , 0.55339, 1.     ])
    >>> print(law.ppf(law.cdf(1.0)).round(12))
    1.0
    >>> MarchenkoPastur(4.0).atom
    0.75
    """

    ratio: float
    variance: float = 1.0

    def __post_init__(self) -> None:
        for name in ("ratio", "variance"):
            value = real(name, getattr(self, name), low=1e-150, high=1e150)
            object.__setattr__(self, name, value)

    @property
    def singular_values(self) -> SingularValueLaw:
        """Law of the square roots, that is, of the singular values of ``A/√d``."""
        return SingularValueLaw(self)

    @property
    def atom(self) -> float:
        """Mass at 0, ``max(0, 1 − 1/γ)``."""
        return max(0.0, (self.ratio - 1.0) / self.ratio)

    @property
    def _bulk(self) -> float:
        return min(1.0, 1.0 / self.ratio)

    @property
    def edges(self) -> tuple[float, float]:
        """Ends ``v (1 ∓ √γ)²`` of the bulk."""
        return self._scale * self._near**2, self._scale * self._far**2

    def moment(self, order: float) -> float:
        """Moment ``E x^p``, including the atom.

        For γ <= 1 it is ``v^p ₂F₁(−p, 1−p; 2; γ)``. For integer p and every γ, it is Narayana's
        polynomial ``v^p Σ_k binom(p, k) binom(p, k−1) γ^{k−1} / p``.

        Parameters
        ----------
        order : float
            p in [0, 100], not necessarily an integer.

        Returns
        -------
        float
            The relative error is about 1e-14 for p <= 20, and 1e-12 up to 100. Infinite if the
            moment overflows.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            If `order` is not a real number in [0, 100].
        """
        from scipy.special import hyp2f1

        p = real("order", order, low=0, high=100)
        if p == 0:
            return 1.0
        shape = float(hyp2f1(-p, 1.0 - p, 2.0, self._root**2))
        with np.errstate(over="ignore", under="ignore"):
            return float(self._bulk * shape * np.float64(self._scale) ** p)

    def var(self) -> float:
        """Variance, ``v² γ``."""
        return self.variance * self.variance * self.ratio

    # For γ > 1 the bulk is γ times the bulk of A Aᵀ / n, which has the ratio 1/γ.

    @property
    def _scale(self) -> float:
        return self.variance * max(1.0, self.ratio)

    @property
    def _root(self) -> float:
        return math.sqrt(min(self.ratio, 1.0 / self.ratio))

    @property
    def _near(self) -> float:
        """``1 − root``, exact if it nearly vanishes."""
        return abs(1.0 - self.ratio) / max(1.0, self.ratio) / self._far

    @property
    def _far(self) -> float:
        return 1.0 + self._root

    def _density(self, x: Float64Array) -> Float64Array:
        relative, above_low, below_high = self._locate(x)
        height = np.sqrt(above_low) * np.sqrt(below_high)
        density = np.zeros_like(height)
        np.divide(height, relative, out=density, where=relative > 0)
        density = np.where((relative == 0) & (x >= 0) & (self._near == 0), np.inf, density)
        return density / (2.0 * math.pi * self.variance * self.ratio)

    def _masses(self, x: Float64Array) -> tuple[Float64Array, Float64Array]:
        _, above_low, below_high = self._locate(x)
        is_low = above_low <= below_high
        T = np.sqrt(np.minimum(above_low, below_high) / np.maximum(above_low, below_high))
        near, far = np.where(is_low, self._near, self._far), np.where(is_low, self._far, self._near)
        mass = _bulk_mass(self._root, near, far, T)
        return np.where(is_low, mass, 1.0 - mass), np.where(is_low, 1.0 - mass, mass)

    def _quantiles(self, below: Float64Array, above: Float64Array) -> Float64Array:
        low, high = np.array(self._near), np.array(self._far)
        is_low = below <= _bulk_mass(self._root, low, high, np.array(1.0))
        near, far = np.where(is_low, low, high), np.where(is_low, high, low)
        T = _bulk_tangent(self._root, near, far, np.where(is_low, below, above))
        distance = 4.0 * self._root * T * T / (1.0 + T * T)
        if self._root < 0.5:  # as in `_locate`
            reach = np.where(is_low, -self._root, self._root)
            deviation = reach * (2.0 + reach) + np.where(is_low, distance, -distance)
            return self._scale + self._scale * deviation
        return self._scale * (near**2 + np.where(is_low, distance, -distance))

    def _locate(self, x: Float64Array) -> tuple[Float64Array, Float64Array, Float64Array]:
        """Return x/scale, and its distances from the lower and the upper edge, 0 outside."""
        inside = np.clip(x, 0.0, 2.0 * self.edges[1])
        relative = inside / self._scale
        if self._root < 0.5:
            # The bulk lies around 1, and the difference from 1 is exact there.
            deviation = (inside - self._scale) / self._scale
            above_low = deviation + self._root * (2.0 - self._root)
            below_high = self._root * (2.0 + self._root) - deviation
        else:
            above_low = relative - self._near**2
            below_high = self._far**2 - relative
        return relative, np.maximum(above_low, 0.0), np.maximum(below_high, 0.0)


@dataclass(frozen=True)
class SingularValueLaw(_FrozenLaw):
    """Law of the singular values of ``A/√d``, the square roots of Marchenko–Pastur eigenvalues.

    Its density is ``2 z f(z²)``, where f is the density of the eigenvalues. For γ = 1 it is the
    quarter circle ``√(4v − z²) / (πv)`` on [0, 2√v]. Its methods are those of `MarchenkoPastur`.

    Parameters
    ----------
    squares : MarchenkoPastur
        Law of the squares.

    Raises
    ------
    ArgumentTypeError
        If `squares` is not a `MarchenkoPastur`.

    Examples
    --------
    >>> from bnmc.random_matrix import MarchenkoPastur
    >>> law = MarchenkoPastur(0.25).singular_values
    >>> law.edges
    (0.5, 1.5)
    >>> print(law.cdf(1.0) == MarchenkoPastur(0.25).cdf(1.0))
    True
    >>> round(law.mean(), 6), round(law.moment(2), 12)
    (0.967688, 1.0)
    """

    squares: MarchenkoPastur

    def __post_init__(self) -> None:
        instance("squares", self.squares, MarchenkoPastur, "a MarchenkoPastur")

    @property
    def atom(self) -> float:
        """Mass at 0, ``max(0, 1 − 1/γ)``."""
        return self.squares.atom

    @property
    def _bulk(self) -> float:
        return self.squares._bulk

    @property
    def edges(self) -> tuple[float, float]:
        """Ends ``√v |1 ∓ √γ|`` of the bulk."""
        root = math.sqrt(self.squares._scale)
        return root * self.squares._near, root * self.squares._far

    def moment(self, order: float) -> float:
        """Moment ``E z^p``, the moment of order p/2 of the eigenvalues.

        Parameters
        ----------
        order : float
            p in [0, 200], not necessarily an integer.

        Returns
        -------
        float
            The relative error is about 1e-14 for p <= 40, and 1e-12 up to 200. Infinite if the
            moment overflows.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            If `order` is not a real number in [0, 200].
        """
        return self.squares.moment(real("order", order, low=0, high=200) / 2.0)

    def var(self) -> float:
        """Variance, ``v − (E z)²``."""
        from scipy.special import hyp2f1

        law = self.squares
        if law.ratio > 0.5:
            return law.variance - self.mean() ** 2
        # The difference would cancel. Integrate the derivative of 1 − E z/√v in γ, which is
        # ₂F₁(1/2, 3/2; 3; γ)/8.
        rise = sum(weight * hyp2f1(0.5, 1.5, 3.0, law.ratio * node) for node, weight in unit_rule())
        deficit = float(law.ratio * rise / 8.0)
        return law.variance * deficit * (2.0 - deficit)

    def _density(self, z: Float64Array) -> Float64Array:
        # For γ = 1 and z = 0 the factors are 0 and infinite. Close to 0 they are finite.
        inside = np.clip(z, 1e-100 * self.edges[1], 2.0 * self.edges[1])
        return np.where(z < 0, 0.0, 2.0 * inside * self.squares._density(inside**2))

    def _masses(self, z: Float64Array) -> tuple[Float64Array, Float64Array]:
        return self.squares._masses(np.square(np.clip(z, 0.0, 2.0 * self.edges[1])))

    def _quantiles(self, below: Float64Array, above: Float64Array) -> Float64Array:
        return np.sqrt(self.squares._quantiles(below, above))


# --- the bulk, in T = tan(θ/2)


def _bulk_mass(root: float, near: Float64Array, far: Float64Array, T: Float64Array) -> Float64Array:
    """Return the mass of the bulk between an edge and the point T = tan(θ/2) <= 1, θ from the edge.

    The density in T is ``(16/π) T² / ((1+T²)² (near² + far² T²))``, with root = √γ for γ <= 1.  For
    the lower edge, `near` and `far` are 1 − root and 1 + root; for the upper edge the reverse.
    """
    mass = np.empty(np.broadcast_shapes(near.shape, T.shape))
    near, far, T = (np.broadcast_to(array, mass.shape) for array in (near, far, T))
    # The density has poles at ±i near/far. If T is far above them, the quadrature fails, but the
    # closed form does not cancel. That happens for near < far/1.86 only, so at the lower edge.
    is_steep = far * T >= 1.86 * near

    t, close, distant = T[~is_steep], near[~is_steep], far[~is_steep]
    integral = np.zeros_like(t)
    for node, weight in unit_rule():
        square = np.square(node * t)
        poles = close**2 + distant**2 * square
        integral += (weight * node**2) / (np.square(1.0 + square) * poles)
    mass[~is_steep] = 16.0 / math.pi * t**3 * integral

    t, close, distant = T[is_steep], near[is_steep], far[is_steep]
    bend = distant**2 * t - close * distant * np.arctan2(distant * t, close)
    bend -= (1.0 + root**2) * (t - np.arctan(t)) + 2.0 * root * t**3 / (1.0 + t**2)
    mass[is_steep] = bend / (math.pi * root**2)
    return mass


def _bulk_tangent(
    root: float, near: Float64Array, far: Float64Array, mass: Float64Array
) -> Float64Array:
    """Return T with ``_bulk_mass(root, near, far, T) = mass``."""
    # The density without one factor of its denominator is larger, so both of these are at most T.
    # For a tiny mass the larger of the two is exact to rounding.
    cubic = np.cbrt(3.0 / 16.0 * math.pi * near**2 * mass)
    start = np.maximum(cubic, math.pi / 16.0 * far**2 * mass)
    is_tiny = mass < 1e-100
    T, target = np.where(is_tiny, 0.5, start), np.where(is_tiny, 0.1, mass)
    # T times the density is log-concave in ln T, hence so is the mass. So Newton's iteration in
    # logarithms, started below the root, increases towards the root and never exceeds it.
    for _ in range(60):
        value = _bulk_mass(root, near, far, T)
        rise = 16.0 / math.pi * T**3 / (np.square(1.0 + T**2) * (near**2 + far**2 * T**2))
        step = np.where(is_tiny, 0.0, np.log(target / value) * (value / rise))
        T = T * np.exp(step)
        if (np.abs(step) < 1e-9).all():  # the next step would be of the order of its square
            break
    return np.where(is_tiny, start, np.minimum(T, 1.0))


@cache
def unit_rule() -> tuple[tuple[float, float], ...]:
    """Return the pairs (node, weight) of the Gauss–Legendre rule of order 20 on [0, 1]."""
    nodes, weights = np.polynomial.legendre.leggauss(20)
    return tuple(zip((0.5 * (nodes + 1.0)).tolist(), (0.5 * weights).tolist(), strict=True))
