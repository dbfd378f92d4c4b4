"""The bodies of the functions for C: each makes arrays of pointers and calls `bnmc.kernels`.

Their arguments are those that `bnmc.kernels.c_header` declares.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bnmc._kernels import compiling
from bnmc._kernels.compiling import Sigma, inlined, makes_array
from bnmc._kernels.cpu import memory, workspace
from bnmc.kernels import layers, random_numbers
from bnmc.kernels.checks import BAD_ARGUMENT, Law, is_valid


def bodies(sigma: Sigma, real: type[np.floating[Any]]) -> dict[str, Callable[..., Any]]:
    """Return the functions of the table by name, with the pointers of C as arguments.

    Parameters
    ----------
    sigma : Sigma
        The activation.
    real : type
        `numpy.float64` or `numpy.float32`: the type of rows and weights.

    Returns
    -------
    dict of str to function
        Plain functions for Numba to compile. In Python, pointers are integers or None.
    """
    size = np.dtype(real).itemsize

    def workspace_bytes(law):
        valid, of_law = _law_at(law, 0, 0)
        if not valid:
            return -1
        return workspace.workspace_bytes(of_law.batch, of_law.columns, size)

    def stride(law):
        return -1 if _is_null(law) else memory.stride(_law_at(law, 0, 0)[1].width)

    def conditional_layer(
        law, gram, layer, chain, key, out, work, work_bytes, x, activations
    ):  # fmt: skip
        valid, of_law = _law_at(law, layer, chain)
        if not valid or _is_null(gram) or _is_null(out) or not _is_work(work, work_bytes):
            return BAD_ARGUMENT
        n, rows = of_law.columns, memory.stride(of_law.width)
        halves = 0 if _is_null(activations) else 2
        return layers.conditional_layer(
            sigma, of_law, _array(gram, (n, n), np.float64), layer, chain, key,
            _array(out, (n, n), np.float64), _array(work, (work_bytes // size,), real),
            _array(x, (0 if _is_null(x) else n, rows), real),
            _array(activations, (halves, memory.padded(n), rows), real),
        )  # fmt: skip

    def weights_layer(
        law, weights, activations, layer, chain, key, out, work, work_bytes, x
    ):  # fmt: skip
        valid, of_law = _law_at(law, layer, chain)
        if not valid or _is_null(activations) or _is_null(out) or not _is_work(work, work_bytes):
            return BAD_ARGUMENT
        n, rows = of_law.columns, memory.stride(of_law.width)
        return layers.weights_layer(
            sigma, of_law, np.int64(weights),
            _array(activations, (2, memory.padded(n), rows), real),
            layer, chain, key, _array(out, (n, n), np.float64),
            _array(work, (work_bytes // size,), real),
            _array(x, (0 if _is_null(x) else n, rows), real),
        )  # fmt: skip

    def normalise_activate(law, h, rows, out, work, work_bytes):
        valid, of_law = _law_at(law, 0, 0)
        if not valid or _is_null(h) or _is_null(out) or not _is_work(work, work_bytes) or rows < 0:
            return BAD_ARGUMENT
        shape = (rows, of_law.columns)
        return layers.normalise_activate(
            sigma, of_law, _array(h, shape, real), _array(out, shape, real),
            _array(work, (work_bytes // size,), real),
        )  # fmt: skip

    def gram(law, a, rows, out, work, work_bytes):
        valid, of_law = _law_at(law, 0, 0)
        if not valid or _is_null(a) or _is_null(out) or not _is_work(work, work_bytes) or rows < 0:
            return BAD_ARGUMENT
        n = of_law.columns
        return layers.gram(
            of_law, _array(a, (rows, n), real), _array(out, (n, n), np.float64),
            _array(work, (work_bytes // size,), real),
        )  # fmt: skip

    def failed_row(work, work_bytes):
        if not _is_work(work, work_bytes):
            return -1
        return layers.failed_row(_array(work, (work_bytes // size,), real))

    def normals(out, rows, element, first_row, layer, chain, key, stream):
        if _is_null(out) or rows < 0:
            return BAD_ARGUMENT
        return random_numbers.normals(
            _array(out, (rows,), real), element, first_row, layer, chain, key, np.int64(stream)
        )

    def uniforms(out, rows, element, first_row, layer, chain, key, stream):
        if _is_null(out) or rows < 0:
            return BAD_ARGUMENT
        return random_numbers.uniforms(
            _array(out, (rows,), real), element, first_row, layer, chain, key, np.int64(stream)
        )

    def philox(counter, key, out):
        if _is_null(counter) or _is_null(key) or _is_null(out):
            return BAD_ARGUMENT
        c, k = _array(counter, (4,), np.uint32), _array(key, (2,), np.uint32)
        words = _array(out, (4,), np.uint32)
        # All words before the first store: `out` may be `counter`.
        words[0], words[1], words[2], words[3] = random_numbers.philox(
            c[0], c[1], c[2], c[3], k[0], k[1]
        )
        return 0

    def activate(value):
        return compiling.activate(sigma, value)

    functions = (
        workspace_bytes, stride, conditional_layer, weights_layer, normalise_activate, gram,
        failed_row, normals, uniforms, philox, activate,
    )  # fmt: skip
    return {function.__name__: function for function in functions}


@inlined
def _is_null(pointer):
    return workspace.address_of(pointer) == 0


@inlined
def _is_work(pointer, size):
    """Whether a pointer may be a workspace: not null, and aligned to 8 bytes."""
    address = workspace.address_of(pointer)
    return address != 0 and address % 8 == 0 and size >= 0


@makes_array
def _array(pointer, shape, dtype):
    """Return the memory behind a pointer as an array."""
    return workspace.at(workspace.address_of(pointer), shape, dtype)


@inlined
def _law_at(pointer, layer, chain):
    """Return whether a ``bnmc_law`` is there and valid for a layer of a chain, and the law."""
    if _is_null(pointer):
        return False, Law(0, 0, 0, 0, 0.0, 0.0, 0.0)
    address = np.int64(workspace.address_of(pointer))
    # Four integers, then three real numbers.
    whole = workspace.at(address, (4,), np.int64)
    parts = workspace.at(address + 32, (3,), np.float64)
    law = Law(whole[0], whole[1], whole[2], whole[3], parts[0], parts[1], parts[2])
    return is_valid(law, layer, chain), law
