"""The kernels for C: a table of function pointers, and the header that declares it.

`table` compiles the functions of `bnmc.kernels` for one activation and one precision, and returns
where they are; `header` is what a C compiler needs to know.  Any language that calls C can use
them, and ``ctypes`` finds them ready in `Table.functions`.

Ownership: the caller owns all memory, nothing is allocated or kept.  Tables and code live as long
as the interpreter that made them.  Threading: functions hold no lock, need no GIL and may run at
once, each call with a workspace, and arrays for results, of its own.  Errors: a status comes back
(`bnmc_status` in the header); nothing is raised, no Python is called.

`ABI_VERSION` is (major, minor), of which major changes when something that was there does, and
minor when functions are added at the end of the table; ``bytes`` is the size of the table.

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
from typing import Any, NamedTuple, cast

import numpy as np
from numba import types
from numpy.typing import DTypeLike

from bnmc import kernels
from bnmc._kernels.compiling import Sigma, c_function
from bnmc._support.arguments import choice
from bnmc.chain.activations import Activation
from bnmc.kernels.c_functions import bodies
from bnmc.kernels.values import _precision

__all__ = ["ABI_VERSION", "Table", "function", "header", "table", "write_header"]

#: Of the table: (major, minor).
ABI_VERSION = (1, 0)


@dataclass(frozen=True)
class Table:
    """The functions for one activation and one precision.

    Attributes
    ----------
    activation : str
        Name of the activation.
    dtype : str
        "float64" or "float32".
    address : int
        Of the struct ``bnmc_f64`` or ``bnmc_f32`` of the header.
    functions : dict of str to ctypes function
        By the names in the struct.  `scipy.LowLevelCallable` takes ``functions["activate"]``.

    Examples
    --------
    >>> found = table("relu")
    >>> found.dtype, found.address > 0, sorted(found.functions)[:2]
    ('float64', True, ['activate', 'conditional_layer'])
    """

    activation: str
    dtype: str
    address: int
    functions: dict[str, Callable[..., Any]] = field(repr=False)
    _kept: tuple[Any, ...] = field(repr=False)


def table(
    activation: str | Activation | Callable[[Any], Any], dtype: DTypeLike = "float64"
) -> Table:
    """Compile the functions for an activation and a precision, once.

    Parameters
    ----------
    activation : str, Activation or callable
    dtype : {"float64", "float32"}
        Of rows and weights; Gram matrices are float64.

    Returns
    -------
    Table
        The same for the same arguments; valid as long as the interpreter.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For an argument that is not allowed.

    Examples
    --------
    >>> table("relu") is table("relu")
    True
    """
    return _table(kernels.activation(activation), _precision(dtype).name)


def function(
    name: str,
    activation: str | Activation | Callable[[Any], Any] = "linear",
    dtype: DTypeLike = "float64",
) -> Callable[..., Any]:
    """Compile one function of the table alone, which takes less time.

    Parameters
    ----------
    name : str
        As in the table.
    activation, dtype
        As in `table`; many functions do not depend on the activation.

    Returns
    -------
    ctypes function
        That of the table with this activation and dtype.

    Raises
    ------
    ArgumentError, ArgumentTypeError, UnknownNameError
        For an argument that is not allowed.

    Examples
    --------
    >>> import ctypes
    >>> words = (ctypes.c_uint32 * 4)()
    >>> function("philox")((ctypes.c_uint32 * 4)(), (ctypes.c_uint32 * 2)(), words)
    0
    >>> hex(words[0])
    '0x6627e8d5'
    """
    known = {one.name: one for one in _DECLARED}
    declared = known[choice("name", name, known)]
    return cast(
        Callable[..., Any],
        _made(declared, kernels.activation(activation), _precision(dtype).name),
    )


def header() -> str:
    """Return the C header, for C99 or C++.

    Returns
    -------
    str

    Examples
    --------
    >>> "int64_t (*workspace_bytes)(const bnmc_law *law);" in header()
    True
    """
    return _HEADER.format(
        major=ABI_VERSION[0], minor=ABI_VERSION[1], f64=_struct("float64"), f32=_struct("float32")
    )


def write_header(path: str | PathLike[str]) -> Path:
    """Write the C header to a file.

    Parameters
    ----------
    path : path
        The file, or a folder, where it will be ``bnmc.h``.

    Returns
    -------
    Path
        Of the file.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     print(write_header(folder).name)
    bnmc.h
    """
    target = Path(path)
    if target.is_dir():
        target = target / "bnmc.h"
    target.write_text(header())
    return target


# --- declarations: one list, of which C, ctypes and Numba have their forms


class _Declared(NamedTuple):
    """A function of the table: its name, what it returns, and types and names of arguments."""

    name: str
    returns: str
    arguments: tuple[tuple[str, str], ...]
    comment: str


def _declared(prototype: str, comment: str) -> _Declared:
    returned, _, rest = prototype.partition(" ")
    name, _, listed = rest.rstrip(")").partition("(")
    pairs = [one.strip().rpartition(" ") for one in listed.split(",")]
    return _Declared(name, returned, tuple((kind, given) for kind, _, given in pairs), comment)


_WORK = "void* work, int64 work_bytes"
_ADDRESS = "int64 element, int64 first_row, int64 layer, int64 chain, uint64 key, uint32 stream"
_DECLARED = [
    _declared("int64 workspace_bytes(law law)", "Bytes of a workspace; -1 for an invalid law."),
    _declared("int64 stride(law law)", "Width rounded up to 512: rows of x and activations."),
    _declared(
        "int32 conditional_layer(law law, const double* gram, int64 layer, int64 chain, "
        f"uint64 key, double* out, {_WORK}, real* x, real* activations)",
        "Gram matrix of a layer given that of the one before; layer 0 has rows N(0, gram).\n"
        "x, [columns][stride], may be NULL without a skip connection; activations,\n"
        "[2][columns padded to 4][stride], may be NULL. out may be gram.",
    ),
    _declared(
        "int32 weights_layer(law law, int32 weights, real* activations, int64 layer, "
        f"int64 chain, uint64 key, double* out, {_WORK}, real* x)",
        "The same by drawn weights: of activations[layer % 2] from the other half.",
    ),
    _declared(
        f"int32 normalise_activate(law law, const real* h, int64 rows, real* out, {_WORK})",
        "Normalise [rows][columns], and apply the activation. out may be h.",
    ),
    _declared(
        f"int32 gram(law law, const real* a, int64 rows, double* out, {_WORK})",
        "Gram matrix, [columns][columns], of [rows][columns].",
    ),
    _declared(
        "int64 failed_row(const void* work, int64 work_bytes)",
        "Row of the last BNMC_ZERO_VARIANCE that had this workspace, or -1.",
    ),
    _declared(
        f"int32 normals(real* out, int64 rows, {_ADDRESS})",
        "Standard normals of an address; rows and first_row are multiples of 64.",
    ),
    _declared(f"int32 uniforms(real* out, int64 rows, {_ADDRESS})", "Uniform on (0, 1)."),
    _declared(
        "int32 philox(const uint32* counter, const uint32* key, uint32* out)",
        "The 4 words of Philox4x32-10 of a counter of 4 and a key of 2.",
    ),
    _declared("real activate(real value)", "The activation of a number."),
]


_REALS = {"float64": "double", "float32": "float"}

_CTYPES: dict[str, Any] = {
    "int32": ctypes.c_int32,
    "int64": ctypes.c_int64,
    "uint32": ctypes.c_uint32,
    "uint64": ctypes.c_uint64,
    "double": ctypes.c_double,
    "float": ctypes.c_float,
}


_NUMBA: dict[str, Any] = {
    "int32": types.int32,
    "int64": types.int64,
    "uint32": types.uint32,
    "uint64": types.uint64,
    "double": types.float64,
    "float": types.float32,
}


def _resolved(kind: str, dtype: str) -> tuple[str, bool]:
    """Return the type of a number and whether it is pointed to."""
    if kind == "law":
        return "void", True
    name = kind.removeprefix("const ").removesuffix("*")
    return _REALS[dtype] if name == "real" else name, kind.endswith("*")


def _in_c(kind: str, dtype: str) -> str:
    if kind == "law":
        return "const bnmc_law *"
    name, pointer = _resolved(kind, dtype)
    name = f"{name}_t" if name.rstrip("0123456789") in ("int", "uint") else name
    return ("const " if kind.startswith("const ") else "") + name + (" *" if pointer else " ")


def _in_ctypes(kind: str, dtype: str) -> Any:
    name, pointer = _resolved(kind, dtype)
    return ctypes.c_void_p if pointer else _CTYPES[name]


def _in_numba(kind: str, dtype: str) -> Any:
    name, pointer = _resolved(kind, dtype)
    return types.voidptr if pointer else _NUMBA[name]


def _struct(dtype: str) -> str:
    lines = []
    for one in _DECLARED:
        words = ", ".join(_in_c(kind, dtype) + name for kind, name in one.arguments)
        comment = one.comment.replace("\n", "\n     ")
        lines.append(f"  /* {comment} */")
        lines.append(f"  {_in_c(one.returns, dtype)}(*{one.name})({words});")
    return "\n".join(lines)


_HEADER = """\
/* bnmc.h: kernels of bnmc, ABI {major}.{minor}; written by bnmc.kernels.c.header().

   A table comes from Python: bnmc.kernels.c.table("relu", "float64").address is a
   const bnmc_f64 *. It lives as long as that interpreter.

   The caller owns all memory; nothing is allocated or kept. A workspace is memory of
   workspace_bytes(law) bytes, aligned to 8, of any content when it is new; what is in it between
   calls has no meaning. Functions need neither the GIL nor a lock, and may run at once, each call
   with a workspace and arrays for results of its own. They raise nothing, and call no Python.

   Before using a table, check bnmc_is_compatible(table->major, table->minor): functions are only
   ever added at its end (minor), or all is different (major). */
#ifndef BNMC_H
#define BNMC_H

#include <stdint.h>

#define BNMC_ABI_MAJOR {major}
#define BNMC_ABI_MINOR {minor}

#ifdef __cplusplus
extern "C" {{
#endif

typedef enum {{
  BNMC_OK = 0,
  BNMC_ZERO_VARIANCE = 1,   /* a row cannot be normalised: failed_row */
  BNMC_NOT_FINITE = 2,      /* a chain without normalization has left the range of double */
  BNMC_UNRESOLVED = 3,      /* float rows would lose pivots: this layer and all later ones are for
                               the table of double; out is gram */
  BNMC_BAD_ARGUMENT = 4,    /* NULL, a law or a number out of range, memory not aligned to 8 */
  BNMC_SMALL_WORKSPACE = 5
}} bnmc_status;

typedef enum {{ BNMC_NONE = 0, BNMC_UNCENTRED = 1, BNMC_CENTRED = 2 }} bnmc_norm;
typedef enum {{ BNMC_GAUSSIAN = 0, BNMC_UNIFORM = 1, BNMC_RADEMACHER = 2 }} bnmc_weights;

/* Streams of random numbers. */
#define BNMC_ROWS UINT32_C(0x00000000)
#define BNMC_WEIGHTS UINT32_C(0x20000000)

typedef struct {{
  int64_t width;
  int64_t batch;
  int64_t columns; /* batch times the number of inputs, which go side by side */
  int64_t norm;    /* bnmc_norm */
  double skip;
  double gain;
  double eps;
}} bnmc_law;

typedef struct {{
  uint32_t major;
  uint32_t minor;
  uint64_t bytes; /* of this struct, as it was made */
{f64}
}} bnmc_f64;

typedef struct {{
  uint32_t major;
  uint32_t minor;
  uint64_t bytes;
{f32}
}} bnmc_f32;

static inline int bnmc_is_compatible(uint32_t major, uint32_t minor) {{
  return major == BNMC_ABI_MAJOR && (minor == BNMC_ABI_MINOR || minor > BNMC_ABI_MINOR);
}}

#ifdef __cplusplus
}}
#endif

#endif
"""


# --- definitions


@cache
def _table(sigma: Sigma, dtype: str) -> Table:
    made = {one.name: _made(one, sigma, dtype) for one in _DECLARED}
    fields: list[tuple[str, Any]] = [
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("bytes", ctypes.c_uint64)
    ]  # fmt: skip
    fields += [(name, ctypes.c_void_p) for name in made]
    structure = type("bnmc_table", (ctypes.Structure,), {"_fields_": fields})
    addresses = [ctypes.cast(function, ctypes.c_void_p).value for function in made.values()]
    filled = structure(*ABI_VERSION, ctypes.sizeof(structure), *addresses)
    name = sigma.functions[dtype].__name__
    return Table(name, dtype, ctypes.addressof(filled), made, (filled,))


@cache
def _made(declared: _Declared, sigma: Sigma, dtype: str) -> Any:
    """Compile one function; the same address each time."""
    kinds = [kind for kind, _ in declared.arguments]
    signature = _in_numba(declared.returns, dtype)(*(_in_numba(kind, dtype) for kind in kinds))
    body = bodies(sigma, np.dtype(dtype).type)[declared.name]
    compiled = c_function(signature, body)
    kind = ctypes.CFUNCTYPE(
        _in_ctypes(declared.returns, dtype), *(_in_ctypes(name, dtype) for name in kinds)
    )
    _KEPT.append(compiled)
    return kind(compiled.address)


#: What owns the code behind addresses, which are valid as long as the interpreter.
_KEPT: list[Any] = []
