"""Base class of laws with a continuous part and an atom at 0, with the methods of SciPy's laws."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from bnmc._support.arguments import Float64Array, generator, integer, real_numbers
from bnmc._support.machine import require_memory
from bnmc.errors import ArgumentError

__all__ = ["FrozenLaw"]


class FrozenLaw(ABC):
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
        levels = real_numbers("q", q)
        outside = levels[(levels < 0) | (levels > 1)]
        if outside.size:
            raise ArgumentError("q", float(outside[0]), "probabilities in [0, 1]")
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
        require_memory("size", 16 * math.prod(shape))
        return self.ppf(generator(rng).random(shape))
