"""The floating-point environment of a thread: whether it flushes small numbers to zero.

Other libraries change it, such as PyTorch with `torch.set_flush_denormal`.  A new thread inherits
it from the thread that starts it.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

#: Bytes that suffice for the `fenv_t` of every C library.
_ENVIRONMENT_BYTES = 64


class StandardArithmetic:
    """A context in which the current thread rounds to nearest and keeps subnormal numbers.

    On exit, the thread has its former environment again.  If the C library has no functions of
    C99 for it, as on Windows, the context does nothing.
    """

    def __enter__(self) -> None:
        self._before = ctypes.create_string_buffer(_ENVIRONMENT_BYTES)
        if _FUNCTIONS is not None:
            get, put, standard = _FUNCTIONS
            get(self._before)
            put(standard)

    def __exit__(self, *_: object) -> None:
        if _FUNCTIONS is not None:
            _FUNCTIONS[1](self._before)


def _functions() -> tuple[Any, Any, Any] | None:
    """Return fegetenv, fesetenv and the address of the standard environment, or None."""
    try:
        library = ctypes.CDLL(None)
        # FE_DFL_ENV is -1 in glibc and musl.
        standard: Any = ctypes.c_void_p(-1)
        if sys.platform == "darwin":
            standard = ctypes.byref(ctypes.c_char.in_dll(library, "_FE_DFL_ENV"))
        return library.fegetenv, library.fesetenv, standard
    except (TypeError, OSError, AttributeError, ValueError):
        return None


_FUNCTIONS = _functions()
