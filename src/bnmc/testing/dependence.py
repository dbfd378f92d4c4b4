"""Sums that show dependence between rows of Z, and between calls of a step on one state.

For a correct step, the rows of all calls on a state, one call after the other, are a sequence
z_1, z_2, … of independent standard normal vectors of `rank` numbers.  For every lag k, the numbers

    u_i = ⟨z_{i+k}, z_i⟩/|z_i|

are then independent standard normals: given all rows before z_{i+k}, u_i is a component of z_{i+k}
in a known direction.  Their sum shows dependence with one sign, and the sum of their squares,
which has a χ² law, dependence with signs that vary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["CallPairs", "Products", "RowPairs", "RowSequence", "compared_rows"]

FloatArray = NDArray[np.float64]

#: Largest number of rows whose pairs are all compared, over all calls.
_ROWS = 256

#: Largest number of successive calls whose pairs are all compared, by so many numbers of each.
_CALLS, _NUMBERS = 256, 64

#: Least squared norm in a quotient.
_LEAST = 1e-300


@dataclass
class Products:
    """Sums over pairs of rows (a, b).

    Attributes
    ----------
    count : int
        Number of pairs.
    total, square : float
        Σ u and Σ u², with u = ⟨b, a⟩/|a|.
    product, norm : float
        Σ ⟨b, a⟩ and Σ |a|², whose quotient estimates the correlation.
    """

    count: int = 0
    total: float = 0.0
    square: float = 0.0
    product: float = 0.0
    norm: float = 0.0

    def add(self, first: FloatArray, second: FloatArray, norms: FloatArray) -> None:
        """Add pairs (first[i], second[i]), (..., rank) each, and |first[i]|²."""
        inner = np.einsum("...i,...i->...", first, second)
        u = inner / np.sqrt(np.maximum(norms, _LEAST))
        self.count += u.size
        self.total += float(u.sum())
        self.square += float(np.square(u).sum())
        self.product += float(inner.sum())
        self.norm += float(norms.sum())

    @property
    def correlation(self) -> float:
        """Σ ⟨b, a⟩/Σ |a|²."""
        return self.product / max(self.norm, _LEAST)


class RowSequence:
    """Products of the rows of calls on one state.

    Parameters
    ----------
    width, rank : int
        Shape of Z.
    generator : numpy.random.Generator
        For the random orders of rows.

    Attributes
    ----------
    lags : dict of {int: Products}
        Rows i and i + k of the sequence of all rows, by k: 1, 2, half the width (rounded down and
        up), and the width, which compares each row with that row in the next call.
    orders : Products
        Neighbours in a random order of the rows of a call, drawn anew for each block of calls.
    calls : Products
        Whole calls t and t + 1, as vectors of width · rank numbers.
    """

    def __init__(self, width: int, rank: int, generator: np.random.Generator) -> None:
        self.generator = generator
        known = {1, 2, width // 2, -(-width // 2), width}
        self.lags = {lag: Products() for lag in sorted(known) if 0 < lag <= width}
        self.orders, self.calls = Products(), Products()
        self._last, self._last_norms = np.zeros((0, width, rank)), np.zeros((0, width))

    def add(self, z: FloatArray, norms: FloatArray) -> None:
        """Add the next calls, (calls, width, rank), and the squared norms of their rows."""
        width, rank = z.shape[1:]
        joined = np.concatenate([self._last, z])
        joined_norms = np.concatenate([self._last_norms, norms])
        rows, squares, seen = joined.reshape(-1, rank), joined_norms.ravel(), len(self._last)
        for lag, products in self.lags.items():
            start = max(0, seen * width - lag)
            products.add(rows[start:-lag], rows[start + lag :], squares[start:-lag])
        whole = joined.reshape(len(joined), -1)
        self.calls.add(whole[:-1], whole[1:], joined_norms[:-1].sum(axis=1))
        if width > 1:
            order = self.generator.permutation(width)
            ordered = z[:, order]
            self.orders.add(ordered[:, :-1], ordered[:, 1:], norms[:, order[:-1]])
        self._last, self._last_norms = z[-1:], norms[-1:]


class RowPairs:
    """Products of pairs of rows, summed over calls: they show pairs whose correlation stays.

    Parameters
    ----------
    rows : (k,) ndarray of intp
        The rows that are compared.

    Attributes
    ----------
    gram : (k, k) ndarray
        Σ Z Zᵀ of these rows over calls.
    columns : int
        Number of columns of all Z.
    """

    def __init__(self, rows: NDArray[np.intp]) -> None:
        self.rows = rows
        self.gram = np.zeros((rows.size, rows.size))
        self.columns = 0

    def add(self, z: FloatArray) -> None:
        """Add calls, (calls, width, rank)."""
        chosen = np.swapaxes(z[:, self.rows], 0, 1).reshape(self.rows.size, -1)
        self.gram += chosen @ chosen.T
        self.columns += chosen.shape[1]


class CallPairs:
    """The largest correlation of two calls in a block of calls on one state, whatever its sign.

    Parameters
    ----------
    numbers : int
        Number of entries of Z.
    generator : numpy.random.Generator
        For the entries that are compared, at most 64.

    Attributes
    ----------
    places : (m,) ndarray of intp
        The entries that are compared.
    pairs : int
        Number of pairs of calls.
    largest : float
        Largest squared correlation of a pair.
    """

    def __init__(self, numbers: int, generator: np.random.Generator) -> None:
        chosen = generator.choice(numbers, min(numbers, _NUMBERS), replace=False)
        self.places = np.sort(chosen)
        self.pairs, self.largest = 0, 0.0

    def add(self, z: FloatArray) -> None:
        """Add calls, (calls, width, rank); pairs are those within 256 successive calls."""
        chosen = z.reshape(len(z), -1)[:, self.places]
        norms = np.sqrt(np.square(chosen).sum(axis=1, keepdims=True))
        unit = chosen / np.maximum(norms, math.sqrt(_LEAST))
        for first in range(0, len(unit), _CALLS):
            part = unit[first : first + _CALLS]
            squares = np.square(part @ part.T)
            np.fill_diagonal(squares, 0.0)
            self.largest = max(self.largest, float(squares.max()))
            self.pairs += len(part) * (len(part) - 1) // 2


def compared_rows(width: int, generator: np.random.Generator) -> NDArray[np.intp]:
    """Return the rows whose pairs are all compared: every row up to width 256, else 256 of them."""
    chosen = generator.choice(width, min(width, _ROWS), replace=False)
    return np.sort(chosen).astype(np.intp)
