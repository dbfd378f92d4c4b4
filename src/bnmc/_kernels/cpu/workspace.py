"""The buffers of the kernels in one array of the caller, for code that must not allocate.

A workspace begins with a header, of whole numbers of 64 bits: what it was laid out for, then what
happened last.  Fields follow, each at the start of a cache line.
"""

from __future__ import annotations

import ctypes
from math import prod
from typing import NamedTuple

import numpy as np
from llvmlite import ir
from numba import carray, types  # type: ignore[attr-defined]
from numba.core.imputils import lower_constant
from numba.extending import intrinsic, overload

from bnmc._kernels.compiling import INLINED, MAKING, SigmaType, inlined, kernel, makes_array
from bnmc._kernels.cpu import memory
from bnmc._kernels.cpu.numbers import TILE, Work
from bnmc._kernels.processor import LINE_BYTES

#: Marks a workspace that is laid out.
MAGIC = 0x626E6D632D303031

#: Numbers of the header, and where in it the status is (what, in which layer, to which row), and
#: the bytes that the workspace needs.
HEADER, STATUS, _NEEDED = 8, 4, 7


for function in (
    memory.padded, memory.stride, memory.tile_sums, memory.panel_rows, memory.panel_shape,
    memory.lines,
):  # fmt: skip
    inlined(function)
for carver in memory.cut, memory.carve:
    makes_array(carver)


class _Scratch(NamedTuple):
    """A `Work`, and what kernels take beside it for one layer of one chain."""

    work: Work
    total: np.ndarray  # float64, as work.sums
    status: np.ndarray  # int64 (3,)


@lower_constant(SigmaType)
def _constant_sigma(context, builder, typ, value):
    """Let compiled code refer to an activation that is a global or a closure variable."""
    return context.get_dummy_value()


@intrinsic
def _pointer(typing_context, address):
    def codegen(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())

    return types.voidptr(types.uintp), codegen


@intrinsic
def _number(typing_context, pointer):
    def codegen(context, builder, signature, arguments):
        return builder.ptrtoint(arguments[0], ir.IntType(64))

    return types.uintp(pointer), codegen


def address_of(pointer):
    """Return a pointer as a number; Python has numbers for pointers."""
    return pointer or 0


def at(address, shape, dtype):
    """Return the array that is at an address; nobody counts references to it."""
    size = prod(shape) * np.dtype(dtype).itemsize
    if size == 0:
        return np.empty(shape, dtype)
    return np.frombuffer((ctypes.c_char * size).from_address(int(address)), dtype).reshape(shape)


overload(address_of, jit_options=INLINED)(lambda pointer: lambda pointer: _number(pointer))


overload(at, jit_options=MAKING)(
    lambda address, shape, dtype: (
        lambda address, shape, dtype: carray(_pointer(np.uintp(address)), shape, dtype)
    )
)


@makes_array
def _piece(address, place, shape, dtype):
    """Return the array that is so many bytes after an address."""
    return at(address + place, shape, dtype)


@makes_array
def header_of(workspace):
    """Return the header of a workspace, whose first line may be a part of one."""
    return at(memory.lines(workspace.ctypes.data), (HEADER,), np.int64)


@kernel
def workspace_bytes(batch, columns, itemsize):
    """Return the bytes of a workspace, wherever it begins."""
    # What aligns the header, and the header.  The address is any one: nothing is read there.
    rest = 2 * LINE_BYTES
    if itemsize == 4:
        return rest + _scratch(LINE_BYTES, batch, columns, np.float32)[2]
    return rest + _scratch(LINE_BYTES, batch, columns, np.float64)[2]


@makes_array
def _scratch(address, batch, columns, rows):
    """Return a `Work` and further sums from an address on, and their bytes."""
    work, size = memory.carve(_piece, address, batch, columns, rows, TILE)
    total, size = memory.cut(_piece, address, size, work.sums.shape, np.float64)
    return work, total, size


@kernel
def lay_out(workspace, batch, columns):
    """Zero a workspace that is laid out for something else; return whether it is large enough."""
    if workspace.nbytes < 2 * LINE_BYTES:
        return False
    header = header_of(workspace)
    if (
        header[0] == MAGIC
        and header[1] == batch
        and header[2] == columns
        and header[3] == workspace.itemsize
    ):
        return workspace.nbytes >= header[_NEEDED]
    needed = workspace_bytes(batch, columns, workspace.itemsize)
    if workspace.nbytes < needed:
        return False
    workspace[:] = 0.0
    header[0], header[1], header[2], header[3] = MAGIC, batch, columns, workspace.itemsize
    header[_NEEDED] = needed
    return True


@makes_array
def carve(workspace, batch, columns):
    """Return the fields of a workspace that is laid out."""
    header = memory.lines(workspace.ctypes.data)
    work, total, _ = _scratch(header + LINE_BYTES, batch, columns, workspace.dtype)
    status = at(header + 8 * STATUS, (3,), np.int64)
    status[0], status[1], status[2] = 0, 0, -1
    return _Scratch(work, total, status)
