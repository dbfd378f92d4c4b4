"""The header that declares the table of functions for C."""

from __future__ import annotations

from bnmc.kernels.c_declarations import DECLARED, in_c


def header_text(major: int, minor: int) -> str:
    """Return the header of a version of the table."""
    return _HEADER.format(major=major, minor=minor, f64=_struct("float64"), f32=_struct("float32"))


def _struct(dtype: str) -> str:
    lines = []
    for item in DECLARED:
        words = ", ".join(in_c(kind, dtype) + name for kind, name in item.arguments)
        comment = item.comment.replace("\n", "\n     ")
        lines.append(f"  /* {comment} */")
        lines.append(f"  {in_c(item.returns, dtype)}(*{item.name})({words});")
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
