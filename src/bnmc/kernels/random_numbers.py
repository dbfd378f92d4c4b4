"""Random numbers by address as compiled functions: Philox words, normals and uniforms."""

from __future__ import annotations

import numpy as np

from bnmc._kernels.compiling import by_precision, inlined
from bnmc._kernels.cpu.numbers import GROUP, fill, fill_normals
from bnmc._kernels.scalar.codes import MOST_LAYERS, MOST_ROWS
from bnmc._kernels.scalar.normal import uniforms as scalar_uniforms
from bnmc._kernels.scalar.philox import philox4x32
from bnmc.kernels.checks import BAD_ARGUMENT, OK, Rows, compiled, draw_of, is_address


@compiled
def philox(c0: int, c1: int, c2: int, c3: int, k0: int, k1: int) -> tuple[int, int, int, int]:
    """Return the four words of Philox4x32-10 for a counter and a key.

    Salmon, Moraes, Dror and Shaw, *Parallel random numbers: as easy as 1, 2, 3* (SC 2011).

    Parameters
    ----------
    c0, c1, c2, c3 : int
        Words of the counter, of 32 bits each.
    k0, k1 : int
        Words of the key, of 32 bits each.

    Returns
    -------
    tuple of int
        Four words of 32 bits.

    Examples
    --------
    >>> from bnmc.kernels import philox
    >>> [hex(word) for word in philox(0, 0, 0, 0, 0, 0)]
    ['0x6627e8d5', '0xe169c58d', '0xbc57ac4c', '0x9b00dbd8']
    """
    words: tuple[int, int, int, int] = philox4x32(c0, c1, c2, c3, k0, k1)
    return words


@compiled
def normals(
    out: Rows, element: int, first_row: int, layer: int, chain: int, key: np.uint64, stream: int
) -> int:
    """Write the standard normals of one column of the random matrix of a layer.

    With the key of a run, these are the normals from which `bnmc.simulate` makes its layers. Take
    another key for independent numbers.

    Parameters
    ----------
    out : (rows,) float32 or float64
        Receives the normals; rows is a multiple of 64. float32 normals are the rounded float64
        ones, except in the far tail.
    element : int
        Column of the random matrix, >= 0 and below 2**32.
    first_row : int
        Row of ``out[0]``, >= 0 and a multiple of 64.
    layer, chain, key
        As in `conditional_layer`.
    stream : int
        `Stream.ROWS` for the rows drawn given a Gram matrix, `Stream.WEIGHTS` for weights.

    Returns
    -------
    int
        `Status.OK` or `Status.BAD_ARGUMENT`.

    Examples
    --------
    >>> import numpy as np
    >>> from bnmc import kernels
    >>> out = np.zeros(64)
    >>> kernels.normals(out, 0, 0, 1, 0, np.uint64(7), kernels.Stream.ROWS)
    0
    >>> bool(abs(out.mean()) < 1.0)
    True
    """
    if not _is_block(out.shape[0], element, first_row, layer, chain):
        return BAD_ARGUMENT
    draw = draw_of(layer, chain, key, stream)
    fill_normals(out, 0, element, 1, first_row, out.shape[0], draw)
    return OK


@compiled
def uniforms(
    out: Rows, element: int, first_row: int, layer: int, chain: int, key: np.uint64, stream: int
) -> int:
    """Write numbers that are uniform on the open interval (0, 1), with addresses as in `normals`.

    Parameters
    ----------
    out : (rows,) float32 or float64
        Receives the numbers; rows is a multiple of 64.
    element, first_row, layer, chain, key, stream
        As in `normals`.

    Returns
    -------
    int
        `Status.OK` or `Status.BAD_ARGUMENT`.

    Examples
    --------
    >>> import numpy as np
    >>> from bnmc import kernels
    >>> out = np.zeros(64)
    >>> kernels.uniforms(out, 0, 0, 1, 0, np.uint64(7), kernels.Stream.WEIGHTS)
    0
    >>> bool((out > 0.0).all() and (out < 1.0).all())
    True
    """
    if not _is_block(out.shape[0], element, first_row, layer, chain):
        return BAD_ARGUMENT
    draw = draw_of(layer, chain, key, stream)
    fill(_uniforms, out, 0, element, 1, first_row, out.shape[0], draw)
    return OK


_uniforms = by_precision(scalar_uniforms)


@inlined
def _is_block(rows, element, first_row, layer, chain):
    """Whether rows are whole groups of one element, and the counter has room for them."""
    return (
        rows % GROUP == 0
        and first_row >= 0
        and first_row % GROUP == 0
        and first_row + rows <= MOST_ROWS
        and 0 <= element < MOST_LAYERS
        and is_address(layer, chain)
    )
