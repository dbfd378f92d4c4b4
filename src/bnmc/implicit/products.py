"""Products of long vectors, block by block, of NumPy arrays and of PyTorch tensors on any device.

Vectors are rows.  Numbers of a block are multiplied in the precision of the vectors that are kept;
sums over blocks are float64.  The blocks are always the same, so are the bits.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.blas import dtrsm

from bnmc.errors import ArgumentError

#: Entries of a row that are handled at a time: blocks of a few hundred rows stay in the cache.
_BLOCK = 1 << 13

#: The least exponent by which vectors are scaled: 2**1021 is finite.
_LEAST_EXPONENT = -1021

#: A pivot below this part of its row has lost digits: the row waits for another projection.
_STEEP = 0.05


def is_tensor(x: object) -> bool:
    """Whether x is a tensor of PyTorch, which is not imported for the question."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def precision_of(x: Any) -> str:
    """Return the name of a dtype, such as "float32"."""
    return str(x.dtype).rpartition(".")[2]


def cast(x: Any, dtype: str) -> Any:
    """Return x in a precision; x itself if it has that precision."""
    return (
        x.to(getattr(sys.modules["torch"], dtype)) if is_tensor(x) else x.astype(dtype, copy=False)
    )


def to_host(x: Any) -> NDArray[Any]:
    """Return a NumPy array, which shares memory with x if it can."""
    return x.detach().cpu().numpy() if is_tensor(x) else x


def like(array: NDArray[Any], x: Any) -> Any:
    """Return a NumPy array in the library and on the device of x."""
    if not is_tensor(x):
        return array
    return sys.modules["torch"].as_tensor(np.ascontiguousarray(array), device=x.device)


def empty(shape: tuple[int, ...], x: Any, dtype: str) -> Any:
    """Return an array without values in the library and on the device of x."""
    if not is_tensor(x):
        return np.empty(shape, dtype)
    torch = sys.modules["torch"]
    return torch.empty(shape, dtype=getattr(torch, dtype), device=x.device)


def zeros(shape: tuple[int, ...], x: Any, dtype: str = "float64") -> Any:
    """Return zeros in the library and on the device of x."""
    array = empty(shape, x, dtype)
    array[...] = 0.0
    return array


def inner(x: Any, rows: Any) -> Any:
    """Return x rowsᵀ, of shape (len(x), len(rows)), float64."""
    total, work = zeros((len(x), len(rows)), x), precision_of(rows)
    for block in _blocks(x.shape[1]):
        total += _times(cast(x[:, block], work), rows[:, block].T)
    return total


def gather(terms: Sequence[tuple[Any, Any]], size: int, dtype: str) -> Any:
    """Return the sum of coordinates @ rows over the terms, of shape (vectors, size).

    Rows that are None are those of the identity.
    """
    terms = [
        (factor if rows is None else cast(factor, precision_of(rows)), rows)
        for factor, rows in terms
    ]
    out = empty((len(terms[0][0]), size), terms[0][0], dtype)
    for block in _blocks(size):
        out[:, block] = sum(
            factor[:, block] if rows is None else _times(factor, rows[:, block])
            for factor, rows in terms
        )
    return out


def project(y: Any, rows: Any) -> Any:
    """Subtract from y, in place, its part in the span of orthonormal rows, twice.

    Returns the coordinates of that part, float64.  The first subtraction and the second product
    share each block, so rows are read three times.
    """
    if not len(rows):
        return zeros((len(y), 0), y)
    work = precision_of(rows)
    first, second = inner(y, rows), zeros((len(y), len(rows)), y)
    factor = cast(first, work)
    for block in _blocks(y.shape[1]):
        part = rows[:, block]
        y[:, block] -= _times(factor, part)
        second += _times(cast(y[:, block], work), part.T)
    factor = cast(second, work)
    for block in _blocks(y.shape[1]):
        y[:, block] -= _times(factor, rows[:, block])
    return first + second


def independent(
    gram: NDArray[np.float64], least: NDArray[np.float64]
) -> tuple[NDArray[np.intp], NDArray[np.float64], NDArray[np.intp]]:
    """Choose rows by their Gram matrix: (chosen, their Cholesky factor, those to project again).

    Rows of a length up to `least` are zero.  Nothing is pivoted and diagonals are positive, so the
    choice and the factor are continuous in the Gram matrix: rounding of another BLAS changes the
    answers by rounding.
    """
    length = np.sqrt(np.maximum(np.diag(gram), 0.0))
    alive = np.flatnonzero(length > least)
    scaled = gram[np.ix_(alive, alive)] / np.outer(length[alive], length[alive])
    count = len(alive)
    try:
        factor = np.linalg.cholesky(scaled)
        if count == 0 or np.diag(factor).min() > _STEEP:
            return alive, length[alive, None] * factor, alive[:0]
    except np.linalg.LinAlgError:
        pass
    # Rarely, some rows depend on others: row by row, where `scaled` is what the chosen rows leave.
    factor, chosen = np.zeros((count, count)), np.zeros(count, bool)
    for j in range(count):
        chosen[j] = scaled[j, j] > _STEEP**2
        if chosen[j]:
            factor[:, j] = scaled[:, j] / math.sqrt(scaled[j, j])
            scaled -= np.outer(factor[:, j], factor[:, j])
    picked = alive[chosen]
    return picked, length[picked, None] * np.tril(factor[np.ix_(chosen, chosen)]), alive[~chosen]


def orthonormal(y: Any, factor: NDArray[np.float64]) -> tuple[Any, NDArray[np.float64]]:
    """Return (Q, factor) with y = factor Q and orthonormal rows Q: Cholesky QR, twice."""
    q = _solved(factor, y)
    second = np.linalg.cholesky(to_host(inner(q, q)))
    return _solved(second, q), factor @ second


class Basis:
    """Vectors that are kept as rows of a buffer, which doubles when it is full.

    Rows that are not used yet are never touched, so they take no memory.
    """

    def __init__(self, x: Any, size: int, dtype: str, room: int = 0) -> None:
        self.size, self.dtype, self.count = size, dtype, 0
        self._buffer = empty((room, size), x, dtype)

    def __len__(self) -> int:
        return self.count

    @classmethod
    def of(cls, rows: Any) -> Basis:
        """Return given vectors, which share memory."""
        vectors = cls(rows, rows.shape[1], precision_of(rows))
        vectors._buffer, vectors.count = rows, len(rows)
        return vectors

    @property
    def rows(self) -> Any:
        """Return the vectors, of shape (count, size), without a copy."""
        return self._buffer[: self.count]

    @property
    def nbytes(self) -> int:
        """Return the bytes of the vectors."""
        return self.count * self.size * np.dtype(self.dtype).itemsize

    def append(self, rows: Any) -> None:
        """Add vectors.  If this is interrupted, nothing was added."""
        count = self.count + len(rows)
        if count > len(self._buffer):
            room = max(count, min(max(2 * len(self._buffer), 8), self.size))
            buffer = empty((room, self.size), self._buffer, self.dtype)
            buffer[: self.count] = self.rows
            self._buffer = buffer
        self._buffer[self.count : count] = cast(rows, self.dtype)
        self.count = count

    def move(self, device: Any) -> None:
        """Keep the vectors on a device of PyTorch."""
        self._buffer = sys.modules["torch"].as_tensor(self._buffer, device=device)


class Canonical:
    """The basis of the identity, which nobody stores: coordinates are entries."""

    #: Of the identity; see `gather`.
    rows: Any = None
    nbytes = 0

    def __init__(self, size: int) -> None:
        self.size = self.count = size

    def __len__(self) -> int:
        return self.size


def scaled(x: Any) -> tuple[Any, NDArray[np.intp]]:
    """Return (y, exponents), y a float64 copy of x whose row i is x[i] / 2**exponents[i].

    The largest entries of y are below 1, so squares neither overflow nor underflow.

    Raises
    ------
    ArgumentError
        If x has NaN or infinity.
    """
    if not x.shape[1]:
        return cast(x, "float64"), np.zeros(len(x), int)
    largest = to_host(abs(x).max(1) if not is_tensor(x) else x.abs().amax(1)).astype(np.float64)
    if not np.isfinite(largest).all():
        raise ArgumentError("x", largest.max(), "finite numbers")
    exponents = np.maximum(np.frexp(largest)[1], _LEAST_EXPONENT)
    return cast(x, "float64") * like(np.ldexp(1.0, -exponents)[:, None], x), exponents


def _blocks(size: int) -> Iterator[slice]:
    return (slice(start, min(start + _BLOCK, size)) for start in range(0, size, _BLOCK))


def _solved(factor: NDArray[np.float64], y: Any) -> Any:
    """Return the solution q of factor q = y, whose rows are accurate relative to those of y."""
    if is_tensor(y):
        solve = sys.modules["torch"].linalg.solve_triangular
        return solve(like(factor, y), y, upper=False)
    # q factorᵀ = y, transposed: the memory of y has the order of BLAS already.
    return dtrsm(1.0, factor, y.T, side=1, lower=1, trans_a=1).T


def _times(a: Any, b: Any) -> Any:
    """Return a @ b.

    BLAS has other functions for a single vector, whose sums may depend on its threads: a vector
    is multiplied as two equal ones.
    """
    if len(a) > 1:
        return a @ b
    return ((a.repeat(2, 1) if is_tensor(a) else np.repeat(a, 2, axis=0)) @ b)[:1]
