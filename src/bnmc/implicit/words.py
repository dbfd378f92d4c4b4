"""Normals by address: key of the matrix, number of the call, column of the call, row."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnmc._kernels.cpu.numbers import GROUP
from bnmc._support.arguments import Key, draw_key, generator
from bnmc.implicit import products
from bnmc.kernels.checks import Stream
from bnmc.kernels.random_numbers import normals as write_normals


def key_of(rng: Any) -> Key:
    """Return the 64-bit key of a matrix.

    NumPy's generator of a sequence of seeds ignores zeros at its end.  A digest does not, so (5,),
    (5, 0) and 5 are the seeds of three matrices.
    """
    if isinstance(rng, (list, tuple)):
        generator(rng)
        digest = hashlib.sha256(",".join(str(int(seed)) for seed in rng).encode()).digest()
        return Key(int.from_bytes(digest[:8], "little"))
    return draw_key(rng)


def normals(key: int, call: int, columns: NDArray[np.intp], size: int, dtype: str, x: Any) -> Any:
    """Return standard normals of shape (len(columns), size), where x is.

    Row i depends on the key, on the call, on columns[i] and on nothing else.
    """
    shape = len(columns), -(-size // GROUP) * GROUP
    if products.is_tensor(x) and x.is_cuda:
        out = products.empty(shape, x, dtype)
        from bnmc.implicit.words_on_gpu import fill

        fill(out, key, call, columns)
        return out[:, :size]
    numbers = np.empty(shape, dtype)
    for row, column in zip(numbers, columns, strict=True):
        write_normals(row, int(column), 0, call, 0, np.uint64(key), Stream.WEIGHTS.value)
    return products.like(numbers[:, :size], x)
