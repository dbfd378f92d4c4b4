"""The bodies of the functions for C: pointers in, arrays on to `bnmc.kernels`, a status out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bnmc._kernels.compiling import Sigma, inlined
from bnmc._kernels.compiling import activate as activated
from bnmc._kernels.cpu import memory, workspace
from bnmc._kernels.scalar.codes import Law
from bnmc.kernels import layers as kernels
from bnmc.kernels import random_numbers
from bnmc.kernels.layers import _is_valid


def bodies(sigma: Sigma, real: type[np.floating[Any]]) -> dict[str, Callable[..., Any]]:
    """Return the functions of the table, whose pointers are those of C."""
    bad, size = kernels.BAD_ARGUMENT, np.dtype(real).itemsize

    def workspace_bytes(law):
        if _is_null(law):
            return -1
        of_law = _law_at(law)
        if not _is_valid(of_law, 0, 0):
            return -1
        return workspace.workspace_bytes(of_law.batch, of_law.columns, size)

    def stride(law):
        return -1 if _is_null(law) else memory.stride(_law_at(law).width)

    def conditional_layer(
        law, gram, layer, chain, key, out, work,
        work_bytes, x, activations,
    ):  # fmt: skip
        if _is_null(law) or _is_null(gram) or _is_null(out) or not _is_work(work, work_bytes):
            return bad
        of_law = _law_at(law)
        if not _is_valid(of_law, layer, chain):
            return bad
        n, rows = of_law.columns, memory.stride(of_law.width)
        columns_of_x = 0 if _is_null(x) else n
        halves = 0 if _is_null(activations) else 2
        return kernels.conditional_layer(
            sigma, of_law, _array(gram, (n, n), np.float64), layer, chain, key,
            _array(out, (n, n), np.float64), _array(work, (work_bytes // size,), real),
            _array(x, (columns_of_x, rows), real),
            _array(activations, (halves, memory.padded(n), rows), real),
        )  # fmt: skip

    def weights_layer(
        law, weights, activations, layer, chain, key, out,
        work, work_bytes, x,
    ):  # fmt: skip
        if _is_null(law) or _is_null(activations) or _is_null(out):
            return bad
        of_law = _law_at(law)
        if not _is_work(work, work_bytes) or not _is_valid(of_law, layer, chain):
            return bad
        n, rows = of_law.columns, memory.stride(of_law.width)
        return kernels.weights_layer(
            sigma, of_law, np.int64(weights),
            _array(activations, (2, memory.padded(n), rows), real),
            layer, chain, key, _array(out, (n, n), np.float64),
            _array(work, (work_bytes // size,), real),
            _array(x, (0 if _is_null(x) else n, rows), real),
        )  # fmt: skip

    def normalise_activate(law, h, rows, out, work, work_bytes):
        if _is_null(law) or _is_null(h) or _is_null(out) or not _is_work(work, work_bytes):
            return bad
        of_law = _law_at(law)
        if rows < 0 or not _is_valid(of_law, 0, 0):
            return bad
        shape = (rows, of_law.columns)
        return kernels.normalise_activate(
            sigma, of_law, _array(h, shape, real), _array(out, shape, real),
            _array(work, (work_bytes // size,), real),
        )  # fmt: skip

    def gram(law, a, rows, out, work, work_bytes):
        if _is_null(law) or _is_null(a) or _is_null(out) or not _is_work(work, work_bytes):
            return bad
        of_law = _law_at(law)
        if rows < 0 or not _is_valid(of_law, 0, 0):
            return bad
        n = of_law.columns
        return kernels.gram(
            of_law, _array(a, (rows, n), real), _array(out, (n, n), np.float64),
            _array(work, (work_bytes // size,), real),
        )  # fmt: skip

    def failed_row(work, work_bytes):
        if not _is_work(work, work_bytes):
            return -1
        return kernels.failed_row(_array(work, (work_bytes // size,), real))

    def normals(
        out, rows, element, first_row, layer, chain, key,
        stream,
    ):  # fmt: skip
        if _is_null(out) or rows < 0:
            return bad
        values = _array(out, (rows,), real)
        return random_numbers.normals(
            values, element, first_row, layer, chain, key, np.int64(stream)
        )

    def uniforms(
        out, rows, element, first_row, layer, chain, key,
        stream,
    ):  # fmt: skip
        if _is_null(out) or rows < 0:
            return bad
        values = _array(out, (rows,), real)
        return random_numbers.uniforms(
            values, element, first_row, layer, chain, key, np.int64(stream)
        )

    def philox(counter, key, out):
        if _is_null(counter) or _is_null(key) or _is_null(out):
            return bad
        c, k = _array(counter, (4,), np.uint32), _array(key, (2,), np.uint32)
        words, found = (
            _array(out, (4,), np.uint32),
            random_numbers.philox(c[0], c[1], c[2], c[3], k[0], k[1]),
        )
        words[0], words[1], words[2], words[3] = found
        return 0

    def activate(value):
        return activated(sigma, value)

    return {
        body.__name__: body
        for body in (
            workspace_bytes, stride, conditional_layer, weights_layer, normalise_activate, gram,
            failed_row, normals, uniforms, philox, activate,
        )
    }  # fmt: skip


@inlined
def _is_null(pointer):
    return workspace.address_of(pointer) == 0


@inlined
def _is_work(pointer, size):
    address = workspace.address_of(pointer)
    return address != 0 and address % 8 == 0 and size >= 0


@inlined
def _array(pointer, shape, dtype):
    return workspace.at(workspace.address_of(pointer), shape, dtype)


@inlined
def _law_at(pointer):
    address = np.int64(workspace.address_of(pointer))
    whole = workspace.at(address, (4,), np.int64)
    parts = workspace.at(address + 32, (3,), np.float64)
    return Law(whole[0], whole[1], whole[2], whole[3], parts[0], parts[1], parts[2])
