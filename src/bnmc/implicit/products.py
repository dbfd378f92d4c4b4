"""Products of long vectors, block by block, of NumPy arrays and of PyTorch tensors on any device.

Vectors are rows.  Numbers of a block are multiplied in the precision of the vectors that are kept;
sums over blocks are float64.  Blocks and parts depend on sizes alone, and sums of parts are added
in their order, so bits do not depend on how many threads share the parts.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.blas import dtrsm

from bnmc._support.machine import results_of_parts
from bnmc._support.workers import ranges
from bnmc.errors import ArgumentError

_T = TypeVar("_T")

#: Entries of a row that are handled at a time: blocks of a few hundred rows stay in the cache.
_BLOCK = 1 << 13

#: OpenBLAS multiplies without copies, in half the time, up to so many multiplications.  Pieces of a
#: block are that short, but no shorter than `_SHORT`.
_SMALL, _SHORT = 10**6, 1 << 9

#: The most parts of a row, which threads share.
_PARTS = 16

#: Multiplications from which threads share a product: fewer take less time than to hand them over.
_SHARED = 1 << 22

#: Multiplications in the time of which a number is written to memory that was not used before.
_WRITING = 8

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
    work = precision_of(rows)

    def part(blocks: Sequence[slice]) -> Any:
        total = zeros((len(x), len(rows)), x)
        for block in blocks:
            total += _inner(cast(x[:, block], work), rows[:, block])
        return total

    return sum(_in_parts(part, x, len(rows)), zeros((len(x), len(rows)), x))


def squares(x: Any) -> Any:
    """Return the sums of squares of rows, float64."""

    def part(blocks: Sequence[slice]) -> Any:
        return sum((x[:, block] ** 2).sum(1) for block in blocks)

    return sum(_in_parts(part, x, _WRITING), zeros((len(x),), x))


def multiply(x: Any, factors: NDArray[np.float64]) -> Any:
    """Multiply rows by factors, in place; return them."""
    column = like(factors[:, None], x)

    def part(blocks: Sequence[slice]) -> None:
        for block in blocks:
            x[:, block] *= column

    _in_parts(part, x, _WRITING)
    return x


def gather(terms: Sequence[tuple[Any, Any]], size: int, dtype: str) -> Any:
    """Return the sum of coordinates @ rows over the terms, of shape (vectors, size).

    Rows that are None are those of the identity.
    """
    terms = [
        (factor if rows is None else cast(factor, precision_of(rows)), rows)
        for factor, rows in terms
    ]
    out = empty((len(terms[0][0]), size), terms[0][0], dtype)

    def part(blocks: Sequence[slice]) -> None:
        for block in blocks:
            for number, (factor, rows) in enumerate(terms):
                term = factor[:, block] if rows is None else _gathered(factor, rows[:, block])
                if number == 0:
                    out[:, block] = term
                else:
                    out[:, block] += term

    _in_parts(part, out, max(0 if rows is None else len(rows) for _, rows in terms))
    return out


def project(y: Any, rows: Any) -> Any:
    """Subtract from y, in place, its part in the span of orthonormal rows, twice.

    Returns the coordinates of that part, float64.  The first subtraction and the second product
    share each block, so rows are read three times.
    """
    if not len(rows):
        return zeros((len(y), 0), y)
    work = precision_of(rows)
    first = inner(y, rows)
    factor = cast(first, work)

    def subtract(blocks: Sequence[slice], again: bool = True) -> Any:
        total = zeros((len(y), len(rows)), y) if again else None
        for block in blocks:
            part = rows[:, block]
            y[:, block] -= _gathered(factor, part)
            if again:
                total += _inner(cast(y[:, block], work), part)
        return total

    second = sum(_in_parts(subtract, y, len(rows)), zeros((len(y), len(rows)), y))
    factor = cast(second, work)
    _in_parts(partial(subtract, again=False), y, len(rows))
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
    q = empty(y.shape, y, "float64")

    def solve(blocks: Sequence[slice]) -> Any:
        total = zeros((len(y), len(y)), y)
        for block in blocks:
            q[:, block] = part = _solved(factor, y[:, block])
            total += _inner(part, part)
        return total

    gram = sum(_in_parts(solve, y, len(y)), zeros((len(y), len(y)), y))
    second = np.linalg.cholesky(to_host(gram))

    def solve_again(blocks: Sequence[slice]) -> None:
        for block in blocks:
            q[:, block] = _solved(second, q[:, block])

    _in_parts(solve_again, y, len(y))
    return q, factor @ second


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
        new = self._buffer[self.count : count]

        def write(blocks: Sequence[slice]) -> None:
            for block in blocks:
                new[:, block] = rows[:, block]

        _in_parts(write, rows, _WRITING)
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
    if is_tensor(x):
        largest = to_host(x.abs().amax(1)).astype(np.float64)
    else:
        parts = ranges(x.shape[1], _BLOCK)
        most = [abs(x[:, first:last]).max(1) for first, last in parts]
        largest = np.max(most, axis=0).astype(np.float64)
    if not np.isfinite(largest).all():
        raise ArgumentError("x", largest.max(), "finite numbers")
    exponents = np.maximum(np.frexp(largest)[1], _LEAST_EXPONENT)
    return cast(x, "float64") * like(np.ldexp(1.0, -exponents)[:, None], x), exponents


def _in_parts(work: Callable[[Sequence[slice]], _T], x: Any, count: int) -> list[_T]:
    """Call a function with the blocks of each part of rows x; return the results in order.

    Parameters
    ----------
    work : callable
        Takes the blocks of a part.
    x : (k, size) array
    count : int
        Multiplications of the function for each entry of x: the number of other rows.
    """
    size = x.shape[1]
    width = max(1, -(-size // (_PARTS * _BLOCK))) * _BLOCK
    parts = [
        [slice(first + start, first + end) for start, end in ranges(last - first, _BLOCK)]
        for first, last in ranges(size, width)
    ]
    if len(parts) < 2 or size * len(x) * count < _SHARED or is_tensor(x):
        return [work(part) for part in parts]
    return results_of_parts([partial(work, part) for part in parts])


def _solved(factor: NDArray[np.float64], y: Any) -> Any:
    """Return the solution q of factor q = y, whose rows are accurate relative to those of y."""
    if is_tensor(y):
        solve = sys.modules["torch"].linalg.solve_triangular
        return solve(like(factor, y), y, upper=False)
    # q factorᵀ = y, transposed: the memory of y has the order of BLAS already.
    return dtrsm(1.0, factor, y.T, side=1, lower=1, trans_a=1).T


def _inner(x: Any, rows: Any) -> Any:
    """Return x rowsᵀ of a block; BLAS is faster if the first factor has more rows."""
    if len(x) > len(rows):
        return _inner(rows, x).T
    if len(x) == 1:
        return _inner(_twice(x), rows)[:1]
    if is_tensor(x):
        return x @ rows.T
    length = _length_of_pieces(x, rows)
    pieces = _pieces(rows, length) @ _pieces(x, length).swapaxes(1, 2)
    return pieces.sum(0, dtype=np.float64).T


def _gathered(factor: Any, rows: Any) -> Any:
    """Return factor @ rows of a block."""
    if len(factor) == 1:
        return _gathered(_twice(factor), rows)[:1]
    if is_tensor(rows):
        return factor @ rows
    out = np.empty((len(factor), rows.shape[1]), rows.dtype)
    length = _length_of_pieces(factor, rows)
    np.matmul(factor, _pieces(rows, length), out=_pieces(out, length))
    return out


def _length_of_pieces(x: Any, rows: Any) -> int:
    """Return the length of pieces of rows of a block, so that BLAS makes no copies if it can."""
    size: int = rows.shape[1]
    length = size
    while length > _SHORT and length * len(x) * len(rows) > _SMALL and length % 2 == 0:
        length //= 2
    return length if size == _BLOCK else size


def _pieces(rows: Any, length: int) -> Any:
    """Return pieces of rows, (pieces, rows, length), without a copy."""
    return rows.reshape(len(rows), rows.shape[1] // length, length).swapaxes(0, 1)


def _twice(row: Any) -> Any:
    """Return a vector as two rows: BLAS has functions for one whose sums depend on its threads."""
    return row.repeat(2, 1) if is_tensor(row) else np.repeat(row, 2, axis=0)
