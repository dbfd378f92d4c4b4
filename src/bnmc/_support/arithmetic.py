"""The arithmetic of the calling thread, which other libraries change.

Its floating-point environment says whether it flushes small numbers to zero, as PyTorch does after
`torch.set_flush_denormal`.  A new thread inherits it from the thread that starts it.  NumPy's error
state says what an underflow does.
"""

from __future__ import annotations

import ctypes
import functools
import inspect
import sys
from collections.abc import Callable
from dataclasses import is_dataclass
from typing import Any, TypeVar

import numpy as np

from bnmc._support.keywords import explain, explain_calls

_Function = TypeVar("_Function", bound=Callable[..., Any])

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


def make_public(module: str, *names: str) -> None:
    """Let public functions and classes ignore underflow, and explain calls that do not fit.

    Under `np.errstate(under="raise")` of the caller, numbers that are rounded to 0 would end the
    functions of NumPy.  Nothing else depends on the error state: no function of this package
    divides by zero, overflows or makes NaN without a context that allows it.

    The error of a call that does not fit the signature says what to write: see `keywords.py`.

    Parameters
    ----------
    module : str
        Name of the module, whose last statement is the call.  Each function is replaced there and
        in the module that defines it, and so are methods and properties of each class.
    *names
        Names in the module; by default those of `__all__`, and also classes of results and
        functions of a package that `__all__` leaves out, without those that are imported at their
        first use.
    """
    members = vars(sys.modules[module])
    for name in names or [*members["__all__"], *_left_out(module)]:
        value = members.get(name)
        if inspect.isfunction(value):
            members[name] = vars(sys.modules[value.__module__])[value.__name__] = ignoring(value)
        elif inspect.isclass(value) and not issubclass(value, BaseException):
            for base in value.__mro__:
                if base.__module__.startswith("bnmc."):
                    _ignore_in(base)


def _left_out(module: str) -> list[str]:
    """Return public classes, and functions of files of a package, that `__all__` may leave out."""
    return [
        name
        for name, value in vars(sys.modules[module]).items()
        if not name.startswith("_")
        and (
            (inspect.isclass(value) and value.__module__.startswith("bnmc."))
            or (inspect.isfunction(value) and value.__module__.startswith(f"{module}."))
        )
    ]


def _ignore_in(kind: type) -> None:
    """Let methods and properties of a class ignore underflow, but not those that it inherits.

    A constructor that `dataclass` made computes nothing.
    """
    computing = {"__call__", "__post_init__" if is_dataclass(kind) else "__init__"}
    for name, member in list(vars(kind).items()):
        if name in computing or not name.startswith("_"):
            setattr(kind, name, _ignoring_member(member))
    explain_calls(kind)


def ignoring(function: _Function) -> _Function:
    """Return a function that ignores underflow; such a function is returned as it is."""
    if function in _IGNORING:
        return function

    @functools.wraps(function)
    def without_underflow(*arguments: Any, **options: Any) -> Any:
        __tracebackhide__ = True  # pytest shows failures of assertions at the caller's line
        with np.errstate(under="ignore"):
            try:
                return function(*arguments, **options)
            except TypeError as error:
                explain(error, function, options)
                raise

    _IGNORING.add(without_underflow)
    return without_underflow  # type: ignore[return-value]


def _ignoring_member(member: Any) -> Any:
    """Return a method or a property that ignores underflow, and other members as they are."""
    if inspect.isfunction(member):
        return ignoring(member)
    if isinstance(member, property) and member.fget is not None:
        return member.getter(ignoring(member.fget))
    if isinstance(member, (classmethod, staticmethod)):
        return type(member)(ignoring(member.__func__))
    if isinstance(member, functools.cached_property):
        member.func = ignoring(member.func)
    return member


#: What `ignoring` returned.
_IGNORING: set[Callable[..., Any]] = set()
