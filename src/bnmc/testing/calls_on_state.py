"""Sums over the calls of a step on one state, whitened.

Given a state h, a correct step has rows of R = (h′ − skip x)/gain that are independent N(0, G).  In
a scaled orthonormal basis of the range of G they become Z, (width, rank): independent standard
normals for every h.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from bnmc._claims.claims import null_variance
from bnmc._claims.layer import Layer
from bnmc.testing.dependence import CallPairs, RowPairs, RowSequence, compared_rows

__all__ = ["CallsOnState"]

FloatArray = NDArray[np.float64]

#: Weights of a column are read off a direction of Z if they have at least this share of its
#: variance, for so many columns at most.
LEVERAGE, _COLUMNS = 0.99, 4

#: Largest share of the variance that counts as amplified rounding errors.
_MOST_NULL = 1e-3

#: Least divisor.
_LEAST = 1e-300


class CallsOnState:
    """Sums over the calls of a step on one state.

    Parameters
    ----------
    name : str
        Name of the state.
    layer : Layer
        The state, as one sample.
    rounding : float
        Unit of rounding of the values that the step returns.
    generator : numpy.random.Generator, optional
        For the places and orders that are compared; by default of seed 0.

    Attributes
    ----------
    name, layer
        The parameters, unchanged.
    calls : int
        Number of calls.
    rank : int
        Rank of G.
    outside : float
        Largest mean square outside the range of G, over the largest rounding error.
    total : (width, rank) ndarray
        Σ Z over calls.
    root : (rank, rank) ndarray
        Triangular, with Σ ZᵀZ = rootᵀ root.
    square : (batch, batch) ndarray
        Σ RᵀR over calls.
    moved : (width, batch) ndarray
        Σ R over calls.
    shift : (width, rank) ndarray
        x in the coordinates of Z.
    last : (width, batch) ndarray
        R in the last call.
    energies, norms, readings : list of ndarray
        |Z|² of calls, |Z_r|² of rows, and single weights in units of their standard deviation, if
        these can be read off.
    common : float
        Σ |Σ_r Z_r|²/width over calls.
    sequence : RowSequence
        Products of rows and of calls in their order.
    row_pairs, call_pairs : RowPairs, CallPairs
        Products of all pairs of rows, and of all pairs of calls.
    """

    def __init__(
        self,
        name: str,
        layer: Layer,
        rounding: float,
        generator: np.random.Generator | None = None,
    ) -> None:
        self.name, self.layer = name, layer
        values, vectors = np.linalg.eigh(layer.gram[0])
        n = values.size
        amplified = rounding * math.sqrt(1.0 + _amplification(layer))
        most = max(float(null_variance(values, rounding)), _MOST_NULL * float(values[-1]))
        self._null = min(float(null_variance(values, amplified)), most)
        regular = values > self._null
        self._outside = vectors[:, ~regular]
        self._whiten = vectors[:, regular] / np.sqrt(values[regular])
        self.rank = int(regular.sum())
        d = layer.x.shape[1]
        factors = layer.factors[0]
        self._readers = _readers(self.whitened(factors) / math.sqrt(len(factors)))
        self.shift = self.whitened(layer.x[0])
        self.calls, self.outside, self.common = 0, 0.0, 0.0
        self.total = np.zeros((d, self.rank))
        self.root = np.zeros((0, self.rank))
        self.square, self.moved = np.zeros((n, n)), np.zeros((d, n))
        self.last = np.zeros((d, n))
        self.energies: list[FloatArray] = []
        self.norms: list[FloatArray] = []
        self.readings: list[FloatArray] = []
        generator = np.random.default_rng(0) if generator is None else generator
        self.sequence = RowSequence(d, self.rank, generator)
        self.row_pairs = RowPairs(compared_rows(d, generator))
        self.call_pairs = CallPairs(d * self.rank, generator)

    def add(self, rest: FloatArray) -> None:
        """Add R of an even number of calls, (calls, width, batch)."""
        d = rest.shape[1]
        self.calls += len(rest)
        flat = rest.reshape(-1, rest.shape[2])
        self.square += flat.T @ flat
        self.moved += rest.sum(axis=0)
        self.last = rest[-1]
        excess = np.square(rest @ self._outside).sum(axis=(1, 2)) / d
        self.outside = max(self.outside, float(excess.max()) / (10 * self._null))
        z = self.whitened(rest)
        self.total += z.sum(axis=0)
        root = np.linalg.qr(np.vstack([self.root, z.reshape(-1, self.rank)]), mode="r")
        self.root = np.asarray(root)
        norms = np.square(z).sum(axis=2)
        self.norms.append(norms.ravel())
        self.energies.append(norms.sum(axis=1))
        if len(self._readers):
            self.readings.append((z @ self._readers.T).ravel())
        self.common += float(np.square(z.sum(axis=1)).sum()) / d
        self.sequence.add(z, norms)
        self.row_pairs.add(z)
        self.call_pairs.add(z)

    def whitened(self, rows: FloatArray) -> FloatArray:
        """Return rows (..., batch) in the coordinates of Z, (..., rank)."""
        z: FloatArray = rows @ self._whiten
        return z

    @property
    def variance(self) -> float:
        """Mean square of the entries of Z, which is 1 in expectation."""
        return float(np.concatenate(self.energies).sum()) / self.numbers

    @property
    def covariance(self) -> FloatArray:
        """Covariance of the samples over calls, averaged over rows: G in expectation."""
        about_mean: FloatArray = self.square - self.moved.T @ self.moved / self.calls
        return about_mean / ((self.calls - 1) * len(self.total))

    @property
    def numbers(self) -> int:
        """Number of entries of Z in all calls."""
        return self.calls * self.total.size


def _amplification(layer: Layer) -> float:
    """Return the mean square factor by which the norm amplifies rounding errors of the state.

    A row whose mean is large beside its standard deviation loses digits when the mean is
    subtracted: an error of u · max |h| in h becomes one of u · max |h|/std in x.

    This is estimated for x = N(h).  If the norm is elsewhere, x is h, and the factor is about 1.
    """
    y, x = layer.y[0], layer.x[0]
    before, after = y.std(axis=1), x.std(axis=1)
    factors = np.abs(y).max(axis=1) * np.divide(after, before, np.zeros(len(y)), where=before > 0.0)
    return float(np.square(factors).mean() / max(float(np.square(x).mean()), _LEAST))


def _readers(rows: FloatArray) -> FloatArray:
    """Return orthonormal directions, (columns, rank), of the rows with leverage near 1.

    Z along such a direction is √width times the weights of one column of W.  Any orthonormal
    directions have independent normal readings, so their errors do not affect the tests.
    """
    leverages = np.square(rows).sum(axis=1)
    largest = np.argsort(-leverages, kind="stable")[:_COLUMNS]
    chosen = rows[largest[leverages[largest] >= LEVERAGE]]
    left, _, right = np.linalg.svd(chosen, full_matrices=False)
    directions: FloatArray = left @ right
    return directions
