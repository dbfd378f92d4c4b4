"""Declarations of the functions for C: one list, with the forms of C, `ctypes` and Numba."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

from numba import types


class Declared(NamedTuple):
    """A function of the table.

    Attributes
    ----------
    name : str
        Name of the field in the struct of the table.
    returns : str
        Type of the result.
    arguments : tuple of (str, str)
        Type and name of each argument. Beside the types of C there are ``law``, a pointer to a
        ``bnmc_law``, and ``real``, ``double`` or ``float`` depending on the table.
    comment : str
        Comment in the header.
    """

    name: str
    returns: str
    arguments: tuple[tuple[str, str], ...]
    comment: str


def _declared(prototype: str, comment: str) -> Declared:
    """Return the declaration of a function from its prototype."""
    returned, _, rest = prototype.partition(" ")
    name, _, listed = rest.rstrip(")").partition("(")
    pairs = [word.strip().rpartition(" ") for word in listed.split(",")]
    return Declared(name, returned, tuple((kind, given) for kind, _, given in pairs), comment)


_WORK = "void* work, int64 work_bytes"
_ADDRESS = "int64 element, int64 first_row, int64 layer, int64 chain, uint64 key, uint32 stream"
#: The functions, in the order of the table. New functions go to the end.
DECLARED = [
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
    """Return the type of a number in a table of a dtype, and whether `kind` points to it."""
    if kind == "law":
        return "void", True
    name = kind.removeprefix("const ").removesuffix("*")
    return _REALS[dtype] if name == "real" else name, kind.endswith("*")


def in_c(kind: str, dtype: str) -> str:
    """Return a type as C spells it before a name."""
    if kind == "law":
        return "const bnmc_law *"
    name, pointer = _resolved(kind, dtype)
    name = f"{name}_t" if name.rstrip("0123456789") in ("int", "uint") else name
    return ("const " if kind.startswith("const ") else "") + name + (" *" if pointer else " ")


def in_ctypes(kind: str, dtype: str) -> Any:
    """Return a type of `ctypes`."""
    name, pointer = _resolved(kind, dtype)
    return ctypes.c_void_p if pointer else _CTYPES[name]


def in_numba(kind: str, dtype: str) -> Any:
    """Return a type of Numba."""
    name, pointer = _resolved(kind, dtype)
    return types.voidptr if pointer else _NUMBA[name]
