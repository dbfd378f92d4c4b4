"""Sums over the calls of a step on one state, whitened, which show what is wrong with it.

Given a state h, a correct step has rows of R = (h′ − skip x)/gain that are independent N(0, G).  In
a scaled orthonormal basis of the range of G they become Z, (width, rank): independent standard
normals for every h.

The rows of all calls on a state, one call after the other, are a sequence z_1, z_2, … of
independent standard normal vectors of `rank` numbers.  For every lag k, the numbers

    u_i = ⟨z_{i+k}, z_i⟩/|z_i|

are then independent standard normals: given all rows before z_{i+k}, u_i is a component of z_{i+k}
in a known direction.  Their sum shows dependence with one sign, and the sum of their squares,
which has a χ² law, dependence with signs that vary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from bnmc._claims.claims import directions
from bnmc._claims.layer import Layer
from bnmc._support.arguments import Float64Array

#: Weights of a column are read off a direction of Z if they have at least this share of its
#: variance, for so many columns at most.
LEVERAGE, _COLUMNS = 0.99, 4

#: Probability that normals of variance 1 have more squares in a call than may be outside.
_OUTSIDE = 1e-15

#: Least divisor, and least number in a logarithm.
LEAST = 1e-300

#: Largest number of rows whose pairs are all compared, over all calls.
_ROWS = 256

#: Largest number of successive calls whose pairs are all compared, by so many numbers of each.
_CALLS, _NUMBERS = 256, 64


class Calls:
    """Sums over calls whose rows are independent standard normals Z, (width, rank).

    Parameters
    ----------
    name : str
        Name of the state.
    width, rank : int
        Shape of Z.
    generator : numpy.random.Generator
        For the places and orders that are compared.

    Attributes
    ----------
    name, rank
        The parameters, unchanged.
    calls : int
        Number of calls.
    outside : float
        Largest sum of squares outside the range of G, in units of the null covariance, over its
        quantile.
    total : (width, rank) ndarray
        Σ Z over calls.
    root : (rank, rank) ndarray
        Triangular, with Σ ZᵀZ = rootᵀ root.
    energies, norms, readings : ndarray
        |Z|² of calls, |Z_r|² of rows, and single weights in units of their standard deviation, if
        these can be read off.
    common : float
        Σ |Σ_r Z_r|²/width over calls.
    shift_square, shift_product : float
        Σ |X|² and Σ ⟨X, Z⟩ over calls, with X the state x in the coordinates of Z.
    sequence : RowSequence
        Products of rows and of calls in their order.
    row_pairs, call_pairs : RowPairs, CallPairs
        Products of all pairs of rows, and of all pairs of calls.
    """

    def __init__(self, name: str, width: int, rank: int, generator: np.random.Generator) -> None:
        self.name, self.rank = name, rank
        self.calls, self.outside, self.common = 0, 0.0, 0.0
        self.total = np.zeros((width, rank))
        self.root = np.zeros((0, rank))
        self.energies, self.norms, self.readings = np.empty(0), np.empty(0), np.empty(0)
        self.shift_square, self.shift_product = 0.0, 0.0
        self.sequence = RowSequence(width, rank, generator)
        self.row_pairs = RowPairs(width, generator)
        self.call_pairs = CallPairs(width * rank, generator)

    def add_normals(self, z: Float64Array) -> None:
        """Add Z of an even number of calls, (calls, width, rank)."""
        self.calls += len(z)
        self.total += z.sum(axis=0)
        root = np.linalg.qr(np.vstack([self.root, z.reshape(-1, self.rank)]), mode="r")
        self.root = np.asarray(root)
        norms = np.square(z).sum(axis=2)
        self.norms = np.append(self.norms, norms)
        self.energies = np.append(self.energies, norms.sum(axis=1))
        self.common += float(np.square(z.sum(axis=1)).sum()) / z.shape[1]
        self.sequence.add(z, norms)
        self.row_pairs.add(z)
        self.call_pairs.add(z)

    @property
    def variance(self) -> float:
        """Mean square of the entries of Z, which is 1 in expectation."""
        return float(self.energies.sum()) / self.numbers

    @property
    def unit(self) -> float:
        """`variance`, positive also if all calls return zero."""
        return max(self.variance, LEAST)

    @property
    def numbers(self) -> int:
        """Number of entries of Z in all calls."""
        return self.calls * self.total.size


class CallsOnState(Calls):
    """Sums over the calls of a step on one state.

    Parameters
    ----------
    name : str
        Name of the state.
    layer : Layer
        The state, as one sample.
    noise : (batch, batch) ndarray
        Covariance of rounding errors of R, of `rounding_noise`.
    generator : numpy.random.Generator
        For the places and orders that are compared.

    Attributes
    ----------
    layer, noise
        The parameters, unchanged.
    rank : int
        Rank of G, up to variances that may be rounding errors.
    square : (batch, batch) ndarray
        Σ RᵀR over calls.
    moved : (width, batch) ndarray
        Σ R over calls.
    shift : (width, rank) ndarray
        x in the coordinates of Z.
    last : (width, batch) ndarray
        R in the last call.
    """

    def __init__(
        self, name: str, layer: Layer, noise: Float64Array, generator: np.random.Generator
    ) -> None:
        self.layer, self.noise = layer, noise
        values, vectors = directions(layer.gram[0], noise)
        d, n = layer.x.shape[1:]
        regular = values > 1.0
        self._outside = vectors[:, ~regular]
        self._whiten = vectors[:, regular] / np.sqrt(values[regular])
        super().__init__(name, d, int(regular.sum()), generator)
        self._most_outside = _most_outside(d * (n - self.rank))
        factors = layer.factors[0]
        self._readers = _readers(self.whitened(factors) / math.sqrt(len(factors)))
        self.shift = self.whitened(layer.x[0])
        self.square, self.moved = np.zeros((n, n)), np.zeros((d, n))
        self.last = np.zeros((d, n))

    def add(self, rest: Float64Array) -> None:
        """Add R of an even number of calls, (calls, width, batch)."""
        flat = rest.reshape(-1, rest.shape[2])
        self.square += flat.T @ flat
        self.moved += rest.sum(axis=0)
        self.last = rest[-1]
        excess = np.square(rest @ self._outside).sum(axis=(1, 2))
        self.outside = max(self.outside, float(excess.max()) / self._most_outside)
        z = self.whitened(rest)
        self.readings = np.append(self.readings, z @ self._readers.T)
        self.add_normals(z)
        self.shift_square = self.calls * float(np.square(self.shift).sum())
        self.shift_product = float((self.shift * self.total).sum())

    def whitened(self, rows: Float64Array) -> Float64Array:
        """Return rows (..., batch) in the coordinates of Z, (..., rank)."""
        return rows @ self._whiten

    @property
    def covariance(self) -> Float64Array:
        """Covariance of the samples over calls, averaged over rows: G in expectation."""
        about_mean = self.square - self.moved.T @ self.moved / self.calls
        return about_mean / ((self.calls - 1) * len(self.total))


class CallsOfLayer(Calls):
    """Sums over calls of a layer whose given states differ from call to call.

    The normals Z have a basis of the samples that moves continuously with the given states.  In
    directions in which rounding errors may show, they are fresh normals: so all calls have the same
    rank, the batch.

    Attributes
    ----------
    squares : (2, calls) ndarray
        |Z|² without the fresh normals, and the number of the other ones.
    """

    def __init__(self, name: str, width: int, batch: int, generator: np.random.Generator) -> None:
        super().__init__(name, width, batch, generator)
        self.squares = np.zeros((2, 0))

    def add(
        self,
        rest: Float64Array,
        shift: Float64Array,
        gram: Float64Array,
        factors: Float64Array,
        noise: Float64Array,
        normals: Float64Array,
    ) -> Float64Array:
        """Add an even number of calls, and return Z.

        Parameters
        ----------
        rest : (calls, width, batch) ndarray
            R.
        shift : (calls, width, batch) ndarray
            What a skip connection adds, or might add.
        gram : (calls, batch, batch) ndarray
            G.
        factors : (calls, weights, batch) ndarray
            What rows of W multiply.
        noise : (calls, batch, batch) ndarray
            The covariances of rounding errors of the rows of R.
        normals : (calls, width, batch) ndarray
            Fresh normals.
        """
        values, vectors = directions(gram, noise)
        hidden = values[:, None] <= 1.0
        turned = rest @ vectors
        excess = np.square(np.where(hidden, turned, 0.0)).sum(axis=(1, 2))
        most = _most_outside(rest.shape[1] * hidden.sum(axis=(1, 2)))
        self.outside = max(self.outside, float((excess / most).max()))
        left, _, right = np.linalg.svd(vectors)
        back = (left @ right).swapaxes(1, 2)
        whiten = vectors / np.sqrt(np.where(hidden, np.inf, values[:, None])) @ back
        z = rest @ whiten
        degrees = rest.shape[1] * (~hidden).sum(axis=(1, 2))
        squares = np.stack([np.square(z).sum(axis=(1, 2)), degrees])
        self.squares = np.concatenate([self.squares, squares], axis=1)
        z = z + np.where(hidden, normals, 0.0) @ back
        if (gram == gram[0]).all():  # the given states do not differ
            readers = _readers(factors[0] @ whiten[0] / math.sqrt(factors.shape[1]))
            self.readings = np.append(self.readings, z @ readers.T)
        self.add_normals(z)
        x = shift @ whiten
        self.shift_square += float(np.square(x).sum())
        self.shift_product += float((x * z).sum())
        return z


def _most_outside(degrees: Any) -> Any:
    """Return the largest sum of squares of so many normals that a call may have outside."""
    return special.chdtri(np.maximum(degrees, 1), _OUTSIDE)


def _readers(rows: Float64Array) -> Float64Array:
    """Return orthonormal directions, (columns, rank), of the rows with leverage near 1.

    Z along such a direction is √width times the weights of one column of W.  Any orthonormal
    directions have independent normal readings, so their errors do not affect the tests.
    """
    leverages = np.square(rows).sum(axis=1)
    largest = np.argsort(-leverages, kind="stable")[:_COLUMNS]
    chosen = rows[largest[leverages[largest] >= LEVERAGE]]
    left, _, right = np.linalg.svd(chosen, full_matrices=False)
    return left @ right


# --- dependence between rows, and between calls


@dataclass
class Products:
    """Sums over pairs of rows (a, b).

    Attributes
    ----------
    count : int
        Number of pairs.
    total, square : float
        Σ u and Σ u², with u = ⟨b, a⟩/|a|.
    length : float
        Σ |a|.  Σ u/Σ |a| estimates the correlation too, and is normal.
    product, norm : float
        Σ ⟨b, a⟩ and Σ |a|², whose quotient estimates the correlation.
    """

    count: int = 0
    total: float = 0.0
    square: float = 0.0
    length: float = 0.0
    product: float = 0.0
    norm: float = 0.0

    def add(self, first: Float64Array, second: Float64Array, norms: Float64Array) -> None:
        """Add pairs (first[i], second[i]), (..., rank) each, and |first[i]|²."""
        inner = np.einsum("...i,...i->...", first, second)
        lengths = np.sqrt(np.maximum(norms, LEAST))
        u = inner / lengths
        self.count += u.size
        self.total += float(u.sum())
        self.square += float(np.square(u).sum())
        self.length += float(lengths.sum())
        self.product += float(inner.sum())
        self.norm += float(norms.sum())

    @property
    def correlation(self) -> float:
        """Σ ⟨b, a⟩/Σ |a|²."""
        return self.product / max(self.norm, LEAST)


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
        lags = {1, 2, width // 2, -(-width // 2), width}
        self.lags = {lag: Products() for lag in sorted(lags) if 0 < lag <= width}
        self.orders, self.calls = Products(), Products()
        self._last, self._last_norms = np.zeros((0, width, rank)), np.zeros((0, width))

    def add(self, z: Float64Array, norms: Float64Array) -> None:
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
    width : int
        Number of rows of Z.
    generator : numpy.random.Generator
        For the rows that are compared, at most 256.

    Attributes
    ----------
    rows : (k,) ndarray of intp
        The rows that are compared.
    gram : (k, k) ndarray
        Σ Z Zᵀ of these rows over calls.
    columns : int
        Number of columns of all Z.
    """

    def __init__(self, width: int, generator: np.random.Generator) -> None:
        self.rows = _some(width, _ROWS, generator)
        self.gram = np.zeros((self.rows.size, self.rows.size))
        self.columns = 0

    def add(self, z: Float64Array) -> None:
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
        self.places = _some(numbers, _NUMBERS, generator)
        self.pairs, self.largest = 0, 0.0

    def add(self, z: Float64Array) -> None:
        """Add calls, (calls, width, rank); pairs are those within 256 successive calls."""
        chosen = z.reshape(len(z), -1)[:, self.places]
        norms = np.sqrt(np.square(chosen).sum(axis=1, keepdims=True))
        unit = chosen / np.maximum(norms, math.sqrt(LEAST))
        for first in range(0, len(unit), _CALLS):
            part = unit[first : first + _CALLS]
            squares = np.square(part @ part.T)
            np.fill_diagonal(squares, 0.0)
            self.largest = max(self.largest, float(squares.max()))
            self.pairs += len(part) * (len(part) - 1) // 2


def _some(count: int, most: int, generator: np.random.Generator) -> NDArray[np.intp]:
    """Return `most` of the first integers at random, ascending, or all of them if they are few."""
    return np.sort(generator.choice(count, min(count, most), replace=False)).astype(np.intp)


def correlations(gram: Float64Array) -> Float64Array:
    """Return the correlations of pairs of rows above the diagonal, and 0 elsewhere."""
    scale = 1 / np.sqrt(np.maximum(np.diagonal(gram), LEAST))
    return np.triu(gram, 1) * scale * scale[:, None]
