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

__all__ = ["CallsOnState"]

FloatArray = NDArray[np.float64]

#: A weight is read off a coordinate of Z if it has at least this share of the variance.
LEVERAGE = 0.99


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
        |Z|² of calls, |Z_r|² of rows, and √width times single weights if these can be read off.
    common : float
        Σ |Σ_r Z_r|²/width over calls.
    neighbours, pairs : (float, float)
        Σ ⟨A, B⟩ and Σ |A|², for A and B rows 2j and 2j + 1 of a call, or calls 2k and 2k + 1.
    """

    def __init__(self, name: str, layer: Layer, rounding: float) -> None:
        self.name, self.layer = name, layer
        values, vectors = np.linalg.eigh(layer.gram[0])
        n = values.size
        self._null = float(null_variance(values, rounding))
        regular = values > self._null
        self._outside = vectors[:, ~regular]
        self._whiten = vectors[:, regular] / np.sqrt(values[regular])
        self.rank = int(regular.sum())
        d = layer.x.shape[1]
        whitened = self.whitened(layer.a[0])
        leverage = np.square(whitened).sum(axis=1) / d
        largest = int(leverage.argmax())
        self._reader = None
        if leverage[largest] >= LEVERAGE:
            self._reader = whitened[largest] / math.sqrt(d * leverage[largest])
        self.shift = self.whitened(layer.x[0])
        self.calls, self.outside, self.common = 0, 0.0, 0.0
        self.total = np.zeros((d, self.rank))
        self.root = np.zeros((0, self.rank))
        self.square, self.moved = np.zeros((n, n)), np.zeros((d, n))
        self.last = np.zeros((d, n))
        self.energies: list[FloatArray] = []
        self.norms: list[FloatArray] = []
        self.readings: list[FloatArray] = []
        self.neighbours = self.pairs = (0.0, 0.0)

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
        if self._reader is not None:
            self.readings.append((z @ self._reader).ravel())
        self.common += float(np.square(z.sum(axis=1)).sum()) / d
        self.neighbours = _plus(self.neighbours, z[:, 0 : d - 1 : 2], z[:, 1:d:2])
        self.pairs = _plus(self.pairs, z[0::2], z[1::2])

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


def _plus(sums: tuple[float, float], first: FloatArray, second: FloatArray) -> tuple[float, float]:
    """Add ⟨first, second⟩ and |first|² to two sums."""
    return sums[0] + float((first * second).sum()), sums[1] + float(np.square(first).sum())
