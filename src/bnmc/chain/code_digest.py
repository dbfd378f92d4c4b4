"""A digest of a function: of its code, and of all values that the code depends on."""

from __future__ import annotations

import builtins
import dis
import hashlib
import importlib
import sys
from _ctypes import CFuncPtr
from collections.abc import Callable, Iterator
from enum import Enum
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnmc.chain.object_parts import attribute_of, installed_name, parts_of, version_of
from bnmc.errors import ArgumentError

ScalarFunction = Callable[[Any], Any]

# Numba knows the functions of these packages by name and does not compile their Python source.
_KNOWN_BY_NAME = frozenset(sys.stdlib_module_names | {"numba", "numpy", "scipy"}) - {"__main__"}

#: Types whose `repr` is their value.
_PLAIN = frozenset((bool, int, float, complex, str, bytes))

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
    reads = ("LOAD_GLOBAL", "LOAD_NAME")
    instructions = (step for part in _codes(code) for step in dis.get_instructions(part))
    return sorted({str(step.argval) for step in instructions if step.opname in reads})


def _imported_names(code: CodeType) -> list[str]:
    """Return the names of the modules that a code, or a code in it, imports absolutely."""
    names: set[str] = set()
    for part in _codes(code):
        loaded: list[Any] = [None, None]
        for step in dis.get_instructions(part):
            # The level and the names are loaded before.
            if step.opname == "IMPORT_NAME" and loaded[-2] == 0:
                names.add(str(step.argval))
            loaded.append(step.argval)
    return sorted(names)


def _attribute_names(code: CodeType) -> list[str]:
    return sorted({name for part in _codes(code) for name in part.co_names})


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield a code and all codes in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def is_importable(function: ScalarFunction) -> bool:
    """Return whether another process finds this function by its name."""
    module_name = getattr(function, "__module__", None)
    if module_name is None or module_name == "__main__":
        return False
    return attribute_of(module_name, str(getattr(function, "__qualname__", ""))) is function


# --- digest


def code_digest(function: FunctionType, name: str) -> str:
    """Return a digest of the code of a function and of all values that the code depends on.

    File and line do not enter, so an edit elsewhere keeps compiled code.

    Raises
    ------
    ArgumentError
        If the function refers to a value whose content cannot be read, such as a pointer to a C
        function.
    """
    digest = _Digest()
    try:
        digest.add_function(function)
    except Exception as error:  # reading a foreign value may raise anything
        allowed = "a function of numbers, arrays and functions that Numba knows"
        hint = f"{type(error).__name__}: {error}"
        raise ArgumentError("activation", name, allowed, hint) from error
    return digest.hexdigest()


def digest_of(value: object) -> str:
    """Return a digest of a value with all that it refers to, the same in every process.

    It contains neither addresses nor the order of sets.  The order of a dict is part of the dict,
    as a loop over it shows.  Functions and classes of installed packages enter by name and version,
    all others by their code.  Objects enter by class and state; see `object_parts`.

    Raises
    ------
    TypeError
        If `value` refers to something that has no such digest: a lock, a file, a pointer to a C
        function.
    """
    digest = _Digest(by_version=True)
    try:
        digest.add(value)
    except TypeError:
        raise
    except Exception as error:  # reading a foreign value may raise anything
        raise TypeError(f"{type(error).__name__}: {error}") from error
    return digest.hexdigest()


class _Digest:
    """SHA-256 of a tree of values, the same in every process.

    Parameters
    ----------
    by_version : bool
        Whether functions and classes of installed packages enter by name and version.
    """

    def __init__(self, *, by_version: bool = False) -> None:
        self._by_version = by_version
        self._state = hashlib.sha256()
        self._seen: dict[tuple[int, int], int] = {}
        # `_seen` holds addresses: they stay unique while the values are alive.
        self._kept: list[object] = []

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
        if self._by_version:
            self.add(sorted(vars(function).items()))
            self._add_imports(code)

    def _add_imports(self, code: CodeType) -> None:
        """Add the modules that a code imports when it runs."""
        for name in _imported_names(code):
            self.add(name)
            if name.partition(".")[0] in _KNOWN_BY_NAME:
                continue
            try:
                module = importlib.import_module(name)
            except ImportError:  # the function may handle it
                self._write("missing", b"")
            else:
                self._add_module(module, code)

    def add(self, value: Any, user: CodeType | None = None) -> None:
        """Add a value; of a module only what `user`, the code that refers to it, may read."""
        if isinstance(value, Enum):
            self._write("member", f"{_full_name(type(value))}.{value.name}".encode())
            self.add(value.value, user)
        elif value is None or value is ... or type(value) in _PLAIN:
            self._write(type(value).__name__, repr(value).encode())
        elif type(value) in (tuple, list) or _is_named_tuple(value):
            fields = getattr(value, "_fields", ())
            self._write(type(value).__name__, " ".join([str(len(value)), *fields]).encode())
            if fields:
                self.add(type(value))
            for item in value:
                self.add(item, user)
        elif type(value) in (set, frozenset):
            self._write("set", " ".join(sorted(map(self._digest_of, value))).encode())
        elif type(value) is dict:
            self._write("dict", str(len(value)).encode())
            for item in value.items():
                self.add(item, user)
        elif _is_plain_array(value):
            self._add_array(np.asarray(value))
        elif isinstance(value, np.dtype):
            self._write("dtype", _layout(value).encode())
        elif isinstance(value, CodeType):
            self._add_code(value)
        elif isinstance(value, ModuleType):
            self._add_module(value, user)
        elif self._by_version and (name := installed_name(value)) is not None:
            self._write("installed", name.encode())
        elif isinstance(value, FunctionType) and not _is_known(value):
            self.add_function(value)
        elif _is_known(value):
            self._write("name", _full_name(value).encode())
        elif isinstance(value, CFuncPtr):
            raise TypeError("it refers to a pointer to a C function, which cannot be identified")
        elif not self._add_compiled(value):
            kind, parts = parts_of(value)
            self._write("object", kind.encode())
            if not self._is_seen(value, None):
                for part in parts:
                    self.add(part)

    def _digest_of(self, value: object) -> str:
        digest = _Digest(by_version=self._by_version)
        digest.add(value)
        return digest.hexdigest()

    def _add_array(self, array: NDArray[Any]) -> None:
        self._write("array", f"{_layout(array.dtype)}{array.shape}".encode())
        if array.dtype.names is None:
            self._write("items", array.tobytes())
            return
        for name in array.dtype.names:  # without the padding between fields
            self._add_array(array[name])

    def _add_compiled(self, value: Any) -> bool:
        """Add an object of Numba's that compiles functions; say whether it is one."""
        kind = type(value).__module__
        if hasattr(value, "py_func"):  # jit
            self._write("options", repr(sorted(value.targetoptions.items())).encode())
            self.add(sorted(getattr(value, "locals", {}).items(), key=lambda item: item[0]))
            if not getattr(value, "_can_compile", True):  # given signatures convert arguments
                self.add(list(map(str, value.signatures)))
            self.add_function(value.py_func)
        elif kind.startswith("numba.np.ufunc.") and hasattr(value, "_dispatcher"):  # vectorize
            self._write("vectorized", f"{type(value).__name__} {value.signature}".encode())
            if value._frozen:  # given signatures convert arguments
                self.add(list(value.types))
            self.add(value._dispatcher)
        elif kind.startswith("numba.np.ufunc.") and hasattr(value, "gufunc_builder"):  # guvectorize
            self._write("vectorized", f"{type(value).__name__} {value.signature}".encode())
            self.add(value.gufunc_builder.py_func)
        elif kind == "numba.core.ccallback":  # cfunc
            self._write("callback", str(value._sig).encode())
            self.add(value._pyfunc)
        elif kind == "numba.core.extending" and hasattr(value, "_defn"):  # intrinsic
            self._write("intrinsic", b"")
            self.add(value._defn)
        elif hasattr(value, "class_type") and hasattr(value.class_type, "jit_methods"):  # jitclass
            methods = value.class_type.jit_methods
            fields = [f"{name}: {of}" for name, of in value.class_type.struct.items()]
            self._write("class", " ".join(fields).encode())
            self.add(sorted(methods.items()))
        elif isinstance(value, type) and issubclass(value, Enum):
            self._write("enumeration", _full_name(value).encode())
            self.add(list(value.__members__.items()))
        elif kind.startswith("numba.core.types"):  # a type, to convert to
            self._write("type", str(value).encode())
        else:
            return False
        return True

    def _add_code(self, code: CodeType) -> None:
        signature = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount)
        self._write("code", code.co_code)
        self._write("exceptions", code.co_exceptiontable)
        self._write("signature", repr((signature, code.co_flags)).encode())
        self.add(code.co_names)
        self.add(code.co_consts)

    def _add_module(self, module: ModuleType, user: CodeType | None) -> None:
        self._write("module", module.__name__.encode())
        if self._by_version:
            package = module.__name__.partition(".")[0]
            version = "" if package in _KNOWN_BY_NAME else version_of(package)
            if version is not None:  # names are part of the code that refers to it
                self._write("version", version.encode())
                return
        if user is None or self._is_seen(module, user):
            return
        for name in _attribute_names(user):
            if name in vars(module):
                self.add(name)
                self.add(vars(module)[name], user)

    def _is_seen(self, value: object, user: CodeType | None) -> bool:
        """Note a value that may refer to itself; say whether it was noted before."""
        key = (id(value), id(user))
        seen = key in self._seen
        self._kept.append(value)
        self._write("reference", str(self._seen.setdefault(key, len(self._seen))).encode())
        return seen

    def _write(self, kind: str, content: bytes) -> None:
        self._state.update(f"{kind}:{len(content)}:".encode())
        self._state.update(content)


def _is_named_tuple(value: Any) -> bool:
    return isinstance(value, tuple) and hasattr(value, "_fields")


def _is_plain_array(value: Any) -> bool:
    """Return whether a value is an array or a scalar of NumPy, and nothing more.

    Other classes of arrays have more than their items: a masked array has a mask.
    """
    if isinstance(value, np.ndarray) and type(value) not in (np.ndarray, np.recarray):
        return False
    return isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject


def _is_known(value: Any) -> bool:
    """Return whether the name of a value identifies it: it is found there."""
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    if not isinstance(name, str):
        return False
    module = getattr(value, "__module__", None)
    if module is None and isinstance(value, np.ufunc):
        places: tuple[str, ...] = ("numpy", "scipy.special")
    else:
        places = (str(module),)
    for place in places:
        if place.partition(".")[0] in _KNOWN_BY_NAME and attribute_of(place, name) is value:
            return True
    return False


def _layout(dtype: np.dtype[Any]) -> str:
    """Return the names, types and places of the fields of a dtype."""
    if dtype.names is None or dtype.fields is None:
        return dtype.str if dtype.subdtype is None else f"{_layout(dtype.base)}{dtype.shape}"
    fields = [
        f"{name}@{dtype.fields[name][1]}:{_layout(dtype.fields[name][0])}" for name in dtype.names
    ]
    return f"{{{' '.join(fields)}}}{dtype.itemsize}{dtype.alignment}"


def _full_name(value: Any) -> str:
    return f"{type(value).__name__} {getattr(value, '__module__', '')}.{value.__name__}"
