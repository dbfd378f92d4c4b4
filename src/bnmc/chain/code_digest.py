"""A digest of a function: of its code, and of all values that the code depends on."""

from __future__ import annotations

import builtins
import dis
import hashlib
import sys
from collections.abc import Callable, Iterator
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

from bnmc.errors import ArgumentError

__all__ = ["ScalarFunction", "code_digest", "digest_of", "frozen_copy", "is_importable"]

ScalarFunction = Callable[[Any], Any]

# Numba knows the functions of these packages by name and does not compile their Python source.
_KNOWN_BY_NAME = frozenset(sys.stdlib_module_names | {"numba", "numpy", "scipy"}) - {"__main__"}

# --- what a function is


def frozen_copy(function: ScalarFunction) -> FunctionType:
    """Return a function with the same code and with copies of its variables.

    Numba reads variables when it compiles, possibly long after the digest was taken.
    """
    function = getattr(function, "py_func", function)  # the function of a compiled dispatcher
    if not isinstance(function, FunctionType):
        function = _calling(function)
    variables = {
        name: function.__globals__[name]
        for name in _global_names(function.__code__)
        if name in function.__globals__
    }
    variables["__builtins__"] = builtins
    frozen = FunctionType(
        function.__code__,
        variables,
        function.__name__,
        function.__defaults__,
        tuple(_copied(cell) for cell in function.__closure__ or ()),
    )
    frozen.__kwdefaults__ = function.__kwdefaults__
    frozen.__module__ = function.__module__
    frozen.__qualname__ = function.__qualname__
    return frozen


def _calling(function: ScalarFunction) -> FunctionType:
    """Return a Python function that calls a function of C, such as `math.tanh` or a ufunc."""

    def call(x):  # type: ignore[no-untyped-def]
        return function(x)

    return call  # type: ignore[return-value]


def _copied(cell: CellType) -> CellType:
    try:
        return CellType(cell.cell_contents)
    except ValueError:  # a variable that has no value yet
        return CellType()


def _global_names(code: CodeType) -> list[str]:
    """Return the names of the global variables that a code, or a code in it, reads."""
    names = {
        str(instruction.argval)
        for instruction in dis.get_instructions(code)
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    }
    for inner in _inner_codes(code):
        names.update(_global_names(inner))
    return sorted(names)


def _inner_codes(code: CodeType) -> Iterator[CodeType]:
    return (constant for constant in code.co_consts if isinstance(constant, CodeType))


def is_importable(function: ScalarFunction) -> bool:
    """Return whether another process finds this function by its name."""
    module_name = getattr(function, "__module__", None)
    found: object = sys.modules.get(str(module_name))
    if found is None or module_name == "__main__":
        return False
    for part in str(getattr(function, "__qualname__", "")).split("."):
        found = getattr(found, part, None)
    return found is function


# --- digest


def code_digest(function: FunctionType, name: str) -> str:
    """Return a digest of the code of a function and of all values that the code depends on.

    File and line do not enter, so an edit elsewhere keeps compiled code.
    """
    digest = _Digest()
    try:
        digest.add_function(function)
    except Exception as error:  # pickling a foreign value may raise anything
        allowed = "a function of numbers, arrays and functions that Numba knows"
        raise ArgumentError(
            "activation", name, allowed, f"{type(error).__name__}: {error}"
        ) from error
    return digest.hexdigest()


def digest_of(value: object) -> str:
    """Return a digest of a function or of plain values, the same in every process."""
    digest = _Digest()
    digest.add(value)
    return digest.hexdigest()


class _Digest:
    """SHA-256 of a tree of values, the same in every process."""

    def __init__(self) -> None:
        self._state = hashlib.sha256()
        self._seen: dict[tuple[int, int], int] = {}

    def hexdigest(self) -> str:
        return self._state.hexdigest()

    def add_function(self, function: FunctionType) -> None:
        code = function.__code__
        if self._is_seen(function, code):
            return
        self._add_code(code)
        self.add(function.__defaults__)
        self.add(sorted((function.__kwdefaults__ or {}).items()))
        for cell in function.__closure__ or ():
            try:
                self.add(cell.cell_contents, code)
            except ValueError:
                self._write("empty", b"")
        for name in _global_names(code):
            self.add(name)
            if name in function.__globals__:
                self.add(function.__globals__[name], code)

    def add(self, value: Any, user: CodeType | None = None) -> None:
        """Add a value; of a module only what `user`, the code that refers to it, may read."""
        if value is None or isinstance(value, bool | int | float | complex | str | bytes):
            self._write(type(value).__name__, repr(value).encode())
        elif isinstance(value, tuple | list):
            self._write(type(value).__name__, str(len(value)).encode())
            for item in value:
                self.add(item, user)
        elif isinstance(value, frozenset):
            self.add(sorted(map(repr, value)))
        elif isinstance(value, np.ndarray | np.generic) and value.dtype.kind != "O":
            self._write("array", f"{value.dtype.str}{value.shape}".encode())
            self._write("items", value.tobytes())
        elif isinstance(value, CodeType):
            self._add_code(value)
        elif isinstance(value, ModuleType):
            self._add_module(value, user)
        elif hasattr(value, "py_func"):  # compiled by Numba
            self._write("options", repr(sorted(value.targetoptions.items())).encode())
            self.add_function(value.py_func)
        elif isinstance(value, FunctionType) and not _known_by_name(value):
            self.add_function(value)
        elif hasattr(value, "__name__"):
            self._write("name", _full_name(value).encode())
        else:
            from numba import cloudpickle

            dumps: Any = cloudpickle.dumps
            self._write("pickle", dumps(value))

    def _add_code(self, code: CodeType) -> None:
        signature = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount)
        self._write("code", code.co_code)
        self._write("exceptions", code.co_exceptiontable)
        self._write("signature", repr((signature, code.co_flags)).encode())
        self.add(code.co_names)
        self.add(code.co_consts)

    def _add_module(self, module: ModuleType, user: CodeType | None) -> None:
        self._write("module", module.__name__.encode())
        if user is None or self._is_seen(module, user):
            return
        for name in _attribute_names(user):
            if name in vars(module):
                self.add(name)
                self.add(vars(module)[name], user)

    def _is_seen(self, value: object, user: CodeType) -> bool:
        """Note a value that may refer to itself; say whether it was noted before."""
        key = (id(value), id(user))
        seen = key in self._seen
        self._write("reference", str(self._seen.setdefault(key, len(self._seen))).encode())
        return seen

    def _write(self, kind: str, content: bytes) -> None:
        self._state.update(f"{kind}:{len(content)}:".encode())
        self._state.update(content)


def _attribute_names(code: CodeType) -> list[str]:
    names = set(code.co_names)
    for inner in _inner_codes(code):
        names.update(_attribute_names(inner))
    return sorted(names)


def _known_by_name(function: FunctionType) -> bool:
    return str(function.__module__).partition(".")[0] in _KNOWN_BY_NAME


def _full_name(value: Any) -> str:
    return f"{type(value).__name__} {getattr(value, '__module__', '')}.{value.__name__}"
