"""The kernels for C: a table of function pointers, and the header that declares the table.

`table` compiles the functions of `bnmc.kernels` for one activation and one precision, and returns
their addresses. `header` returns the declarations for a C compiler, `declarations` those that cffi
parses. Every language that calls C can use the table; Python calls its functions through
``ctypes``, in `Table.functions`.

- Ownership: the caller owns all memory. The functions allocate and keep nothing. Tables and code
  live as long as the interpreter that made them.
- Threads: the functions take no lock and need no GIL. Calls may run at the same time if each has a
  workspace, and arrays for its results, of its own.
- Errors: each function returns a status, ``bnmc_status`` in the header. It raises nothing and calls
  no Python.

`ABI_VERSION` is (major, minor). The minor version changes when functions are added at the end of
the table, the major version with any other change. The field ``bytes`` is the size of the table.

Examples
--------
>>> from bnmc.kernels import c
>>> relu = c.function("activate", "relu")
>>> relu(-2.0), relu(3.0)
(0.0, 3.0)
>>> print(c.header().splitlines()[0])
/* bnmc.h: kernels of bnmc, ABI 1.0; written by bnmc.kernels.c.header().
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from os import PathLike
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import DTypeLike

from bnmc._kernels.compiling import Sigma, c_function
from bnmc._support.arguments import choice, precision
from bnmc._support.files import as_path
from bnmc.chain.activations import Activation
from bnmc.kernels import values
from bnmc.kernels.c_functions import bodies
from bnmc.kernels.c_header import (
    DECLARED,
    Declared,
    declarations_text,
    header_text,
    in_ctypes,
    in_numba,
)

__all__ = [
    "ABI_VERSION",
    "declarations",
    "function",
    "header",
    "table",
    "write_header",
]

#: Version of the table, (major, minor).
ABI_VERSION = (1, 0)


@dataclass(frozen=True)
class Table:
    """The functions for one activation and one precision.

    Attributes
    ----------
    activation : str
        Name of the activation.
    dtype : {"float64", "float32"}
        Precision of rows and weights.
    address : int
        Address of the struct ``bnmc_f64`` or ``bnmc_f32`` of the header.
    functions : dict of str to ctypes function
        The functions, by the names of the fields of the struct. `scipy.LowLevelCallable` takes
        ``functions["activate"]``.

    Examples
    --------
    >>> from bnmc.kernels.c import table
    >>> relu = table("relu")
    >>> relu.dtype, relu.address > 0, sorted(relu.functions)[:2]
    ('float64', True, ['activate', 'conditional_layer'])
    """

    activation: str
    dtype: str
    address: int
    functions: dict[str, Callable[..., Any]] = field(repr=False)


def table(
    activation: str | Activation | Callable[[Any], Any], dtype: DTypeLike = "float64"
) -> Table:
    """Compile the functions for an activation and a precision.

    Parameters
    ----------
    activation : str, Activation or callable
        As in `bnmc.Chain`.
    dtype : {"float64", "float32"}
        Precision of rows and weights. Gram matrices are always float64.

    Returns
    -------
    Table
        Equal arguments give the same table, compiled once. It is valid as long as the interpreter.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If an argument is not allowed.

    Examples
    --------
    >>> from bnmc.kernels.c import table
    >>> table("relu") is table("relu")
    True
    """
    return _table(values.activation(activation), precision(dtype))


def function(
    name: str,
    activation: str | Activation | Callable[[Any], Any] = "linear",
    dtype: DTypeLike = "float64",
) -> Callable[..., Any]:
    """Compile one function of the table, which takes less time than the whole table.

    Parameters
    ----------
    name : str
        Name of the field in the struct of the table.
    activation, dtype
        As in `table`. Many functions do not depend on the activation.

    Returns
    -------
    ctypes function
        The function of the table of this activation and dtype.

    Raises
    ------
    ArgumentError, ArgumentTypeError, UnknownNameError
        If an argument is not allowed.

    Examples
    --------
    >>> from bnmc.kernels.c import function
    >>> import ctypes
    >>> words = (ctypes.c_uint32 * 4)()
    >>> function("philox")((ctypes.c_uint32 * 4)(), (ctypes.c_uint32 * 2)(), words)
    0
    >>> hex(words[0])
    '0x6627e8d5'
    """
    functions = {item.name: item for item in DECLARED}
    declared = functions[choice("name", name, functions)]
    compiled = _function(declared, values.activation(activation), precision(dtype))
    return cast(Callable[..., Any], compiled)


def header() -> str:
    """Return the header, for C99 or C++.

    Returns
    -------
    str
        Text of the file ``bnmc.h``.

    Examples
    --------
    >>> from bnmc.kernels.c import header
    >>> "int64_t (*workspace_bytes)(const bnmc_law *law);" in header()
    True
    """
    return header_text(*ABI_VERSION)


def declarations() -> str:
    """Return the declarations of the header, for parsers without a preprocessor.

    ``cffi.FFI().cdef(declarations())`` declares the constants and the types of the header. The
    function ``bnmc_is_compatible`` is missing.

    Returns
    -------
    str
        Text in C. Its only directives are definitions of integers.

    Examples
    --------
    >>> from bnmc.kernels import c
    >>> c.declarations() in c.header()
    True
    """
    return declarations_text(*ABI_VERSION)


def write_header(path: str | PathLike[str]) -> Path:
    """Write the header to a file.

    Parameters
    ----------
    path : path
        A file, or a folder that receives ``bnmc.h``.

    Returns
    -------
    Path
        Path of the file.

    Examples
    --------
    >>> from bnmc.kernels.c import write_header
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     print(write_header(folder).name)
    bnmc.h
    """
    target = as_path("path", path)
    if target.is_dir():
        target = target / "bnmc.h"
    target.write_text(header())
    return target


@cache
def _table(sigma: Sigma, dtype: str) -> Table:
    made = {item.name: _function(item, sigma, dtype) for item in DECLARED}
    fields: list[tuple[str, Any]] = [
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("bytes", ctypes.c_uint64)
    ]  # fmt: skip
    fields += [(name, ctypes.c_void_p) for name in made]
    structure = type("bnmc_table", (ctypes.Structure,), {"_fields_": fields})
    addresses = [ctypes.cast(function, ctypes.c_void_p).value for function in made.values()]
    filled = structure(*ABI_VERSION, ctypes.sizeof(structure), *addresses)
    name = sigma.functions[dtype].__name__
    _OWNERS.append(filled)
    return Table(name, dtype, ctypes.addressof(filled), made)


@cache
def _function(declared: Declared, sigma: Sigma, dtype: str) -> Any:
    """Compile one function; equal arguments give the same address."""
    kinds = [kind for kind, _ in declared.arguments]
    signature = in_numba(declared.returns, dtype)(*(in_numba(kind, dtype) for kind in kinds))
    body = bodies(sigma, np.dtype(dtype).type)[declared.name]
    compiled = c_function(signature, body)
    prototype = ctypes.CFUNCTYPE(
        in_ctypes(declared.returns, dtype), *(in_ctypes(kind, dtype) for kind in kinds)
    )
    _OWNERS.append(compiled)
    return prototype(compiled.address)


#: The owners of compiled code. They live as long as the interpreter, and so do the addresses.
_OWNERS: list[Any] = []
