"""The functions for C: one list, in the forms of `ctypes` and Numba, and as the header of C."""

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
        "[2][columns padded to 4][stride], may be NULL. out may be gram. gram must be symmetric\n"
        "and positive semidefinite. This is not checked: with another matrix the result has no\n"
        "meaning, and the status may be BNMC_OK or BNMC_ZERO_VARIANCE.",
    ),
    _declared(
        "int32 weights_layer(law law, int32 weights, real* activations, int64 layer, "
        f"int64 chain, uint64 key, double* out, {_WORK}, real* x)",
        "Draws W; reads one half of activations and writes activations[layer % 2].",
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


#: Names of real numbers in C and in NumPy; those of whole numbers are the same.
_REALS = {"double": "float64", "float": "float32"}


def _resolved(kind: str, dtype: str) -> tuple[str, bool]:
    """Return C's name of a number in a table of a dtype, and whether `kind` points to it."""
    if kind == "law":
        return "void", True
    name = kind.removeprefix("const ").removesuffix("*")
    if name == "real":
        name = "double" if dtype == "float64" else "float"
    return name, kind.endswith("*")


def in_ctypes(kind: str, dtype: str) -> Any:
    """Return a type of `ctypes`."""
    name, pointer = _resolved(kind, dtype)
    return getattr(ctypes, "c_void_p" if pointer else f"c_{name}")


def in_numba(kind: str, dtype: str) -> Any:
    """Return a type of Numba."""
    name, pointer = _resolved(kind, dtype)
    return types.voidptr if pointer else getattr(types, _REALS.get(name, name))


def _in_c(kind: str, dtype: str) -> str:
    """Return a type as C spells it before a name."""
    if kind == "law":
        return "const bnmc_law *"
    name, pointer = _resolved(kind, dtype)
    name = f"{name}_t" if "int" in name else name
    return ("const " if kind.startswith("const ") else "") + name + (" *" if pointer else " ")


def header_text(major: int, minor: int) -> str:
    """Return the header of a version of the table."""
    return _HEADER.format(major=major, minor=minor, declarations=declarations_text(major, minor))


def declarations_text(major: int, minor: int) -> str:
    """Return constants and types of the header, without other directives of the preprocessor."""
    f64, f32 = _struct("float64"), _struct("float32")
    return _DECLARATIONS.format(major=major, minor=minor, f64=f64, f32=f32)


def _struct(dtype: str) -> str:
    lines = []
    for item in DECLARED:
        words = ", ".join(_in_c(kind, dtype) + name for kind, name in item.arguments)
        comment = item.comment.replace("\n", "\n     ")
        lines.append(f"  /* {comment} */")
        lines.append(f"  {_in_c(item.returns, dtype)}(*{item.name})({words});")
    return "\n".join(lines)


_HEADER = """\
/* bnmc.h: kernels of bnmc, ABI {major}.{minor}; written by bnmc.kernels.c.header().

   A table comes from Python: bnmc.kernels.c.table("relu", "float64").address is a
   const bnmc_f64 *. It lives as long as that interpreter.

   The caller owns all memory; nothing is allocated or kept. A workspace is memory of
   workspace_bytes(law) bytes, aligned to 8, of any content when it is new; what is in it between
   calls has no meaning. Functions need neither the GIL nor a lock, and may run at once, each call
   with a workspace and arrays for results of its own. They raise nothing, and call no Python.

   Before using a table, check bnmc_is_compatible(table->major, table->minor). A new minor version
   adds functions at the end of the table; a new major version may change everything. */
#ifndef BNMC_H
#define BNMC_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {{
#endif

{declarations}
static inline int bnmc_is_compatible(uint32_t major, uint32_t minor) {{
  return major == BNMC_ABI_MAJOR && (minor == BNMC_ABI_MINOR || minor > BNMC_ABI_MINOR);
}}

#ifdef __cplusplus
}}
#endif

#endif
"""

_DECLARATIONS = """\
#define BNMC_ABI_MAJOR {major}
#define BNMC_ABI_MINOR {minor}

typedef enum {{
  BNMC_OK = 0,
  BNMC_ZERO_VARIANCE = 1,   /* a row cannot be normalised: failed_row */
  BNMC_NOT_FINITE = 2,      /* numbers, or squares of a row, leave the range of the type */
  BNMC_UNRESOLVED = 3,      /* float rows would lose pivots: this layer and all later ones are for
                               the table of double; out is gram */
  BNMC_BAD_ARGUMENT = 4,    /* NULL, a law or a number out of range, memory not aligned to 8 */
  BNMC_SMALL_WORKSPACE = 5  /* the workspace is too small for the law; nothing is done. A larger
                               one is fine */
}} bnmc_status;

typedef enum {{ BNMC_NONE = 0, BNMC_UNCENTRED = 1, BNMC_CENTRED = 2 }} bnmc_norm;
typedef enum {{ BNMC_GAUSSIAN = 0, BNMC_UNIFORM = 1, BNMC_RADEMACHER = 2 }} bnmc_weights;

/* Streams of random numbers. */
#define BNMC_ROWS 0x00000000U
#define BNMC_WEIGHTS 0x20000000U

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
"""
