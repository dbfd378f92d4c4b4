"""Copies of functions that later changes do not reach, with their digests.

Numba reads the variables of a function when it compiles, possibly long after the digest was taken.
If a function that it calls was compiled before, Numba uses that code, with the values of that time.
So a copy shares nothing with the given function that can change:

- Arrays and containers are copied.
- A function, also a nested one, has copies of the variables that it reads, and a module has copies
  of the attributes that the function may read.
- An object of Numba that compiles (jit, vectorize, guvectorize, cfunc, jitclass, intrinsic,
  overload) is made anew from the copies of its functions.
- Anything else that can change, such as an object of a class of the user, is refused.
"""

from __future__ import annotations

import builtins
import dis
import uuid
from _ctypes import CFuncPtr
from collections.abc import Callable
from enum import Enum, EnumType
from functools import partial
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

from bnmc.chain import object_parts
from bnmc.chain.code_digest import (
    PLAIN,
    ScalarFunction,
    attribute_names,
    codes_of,
    contents_of,
    digest_of,
    globals_of,
)
from bnmc.errors import ArgumentError

#: By these names, objects of Numba keep for pickle the signatures that they were compiled for, and
#: whether they compile for others.
_SIGNATURES = ("sigs", "siglist", "typesigs")
_OPEN = {"can_compile": True, "frozen": False}

#: Values of these types do not change, or the digest refuses them.
_CONSTANT = (
    type(None), type(...), CodeType, BuiltinFunctionType, CFuncPtr, np.dtype, slice, range,
)  # fmt: skip


def frozen(function: ScalarFunction, name: str) -> tuple[FunctionType, str]:
    """Return a copy of a function that later changes do not reach, and the digest of its code.

    File and line do not enter the digest, so an edit elsewhere keeps compiled code.

    Raises
    ------
    ArgumentError
        If the function refers to a value that cannot be copied or has no digest, such as a pointer
        to a C function, or if it leaves compiled code (`objmode`).
    """
    given = getattr(function, "py_func", function)  # the function of a compiled dispatcher
    # A function of Python calls one of C, such as `math.tanh` or a ufunc.
    python: Any = given if isinstance(given, FunctionType) else lambda x: given(x)
    try:
        copy = _Copies().of_function(python)
        return copy, digest_of(copy, by_version=False)
    except Exception as error:  # reading and compiling a foreign value may raise anything
        allowed = "a function of numbers, arrays and functions that Numba knows"
        reason = str(error) if isinstance(error, TypeError) else f"{type(error).__name__}: {error}"
        raise ArgumentError("activation", name, allowed, reason) from error


class _Module(ModuleType):
    """Copies of the attributes of a module that a function may read."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _Module, (self.__name__,), vars(self)


class _Copies:
    """Copies of the values that a function refers to, which refer to one another as these do.

    Functions and modules may refer to themselves, so they are filled after they were made.
    """

    def __init__(self) -> None:
        self._copies: dict[tuple[int, int], Any] = {}
        # `_copies` holds addresses: they stay unique while the values are alive.
        self._alive: list[object] = []
        self._fillings: list[Callable[[], None]] = []
        self._compilations: list[Callable[[], None]] = []

    def of_function(self, function: FunctionType) -> FunctionType:
        """Return the copy of a function, with copies of all that it refers to."""
        copy = self._function(function)
        for fill in self._fillings:  # to which they add
            fill()
        for compile_copy in self._compilations:
            compile_copy()
        return copy

    def _of(self, value: Any, user: CodeType | None = None) -> Any:
        """Return the copy of a value; of a module only what `user`, a code, may read."""
        if _is_constant(value):
            return value
        key = id(value), id(user) if isinstance(value, ModuleType) else 0
        if key not in self._copies:
            self._alive.append((value, user))
            self._copies[key] = self._made(value, user)
        return self._copies[key]

    def _made(self, value: Any, user: CodeType | None) -> Any:
        if isinstance(value, FunctionType):
            return self._function(value)
        if isinstance(value, ModuleType):
            module = _Module(value.__name__)
            self._fillings.append(partial(self._fill_module, value, module, user))
            return module
        if type(value) in (tuple, list, set, frozenset):
            return type(value)([self._of(part, user) for part in value])
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*(self._of(part, user) for part in value))
        if type(value) is dict:
            return {self._of(key, user): self._of(part, user) for key, part in value.items()}
        if isinstance(value, (np.ndarray, np.void)) and not value.dtype.hasobject:
            # The digest knows no order in memory, so all copies have one.
            array = value.copy("C")
            if isinstance(array, np.ndarray):
                array.flags.writeable = False
            return array
        if hasattr(value, "_reduce_states") and hasattr(value, "_rebuild"):
            return self._compiler(value)
        if type(value).__module__ == "numba.core.ccallback":
            return self._callback(value)
        if hasattr(value, "class_type"):
            return self._jitclass(value.class_type)
        kind = value if isinstance(value, type) else type(value)
        raise TypeError(f"it refers to the class {kind.__qualname__}, which can change")

    # --- Python

    def _function(self, function: FunctionType, *, is_compiled: bool = True) -> FunctionType:
        code, name = function.__code__, function.__name__
        if is_compiled and any(map(_enters, codes_of(code))):
            raise TypeError(f"{name} has a with statement: compiled code calls no objmode")
        cells = tuple(CellType() for _ in function.__closure__ or ())
        copy = FunctionType(code, {"__builtins__": builtins}, name, None, cells)
        self._alive.append(function)
        self._copies[id(function), 0] = copy
        for attribute in ("__module__", "__qualname__"):
            setattr(copy, attribute, getattr(function, attribute))
        for attribute in ("__defaults__", "__kwdefaults__"):
            setattr(copy, attribute, self._of(getattr(function, attribute), code))
        self._fillings.append(partial(self._fill_function, function, copy))
        return copy

    def _fill_function(self, function: FunctionType, copy: FunctionType) -> None:
        code = function.__code__
        for cell, new in zip(function.__closure__ or (), copy.__closure__ or (), strict=True):
            for value in contents_of(cell):
                new.cell_contents = self._of(value, code)
        for name, value in globals_of(function).items():
            copy.__globals__[name] = self._of(value, code)
        for template in object_parts.overloads_of(function):
            from numba.extending import overload

            register = overload(
                copy, template._jit_options, template._strict, template._inline._inline,
                template.prefer_literal, **template.metadata,
            )  # fmt: skip
            register(self._function(template._overload_func, is_compiled=False))

    def _fill_module(self, module: ModuleType, copy: ModuleType, user: CodeType | None) -> None:
        for name in attribute_names(user) if user is not None else ():
            if name in vars(module):
                setattr(copy, name, self._of(vars(module)[name], user))

    # --- Numba

    def _compiler(self, value: Any) -> Any:
        """Return a new object of Numba for a copy of its function, as pickle would make it."""
        states = value._reduce_states()
        if "defn" in states:  # of `intrinsic`, whose function the compiler calls
            body = self._function(value._defn, is_compiled=False)
            copy = type(value)(value._name, body, value._prefer_literal, **value._ctor_kwargs)
            copy._register()
            return copy
        names = [name for name in _SIGNATURES if name in states]
        changed: dict[str, Any] = dict.fromkeys(names, ())
        changed |= {name: _OPEN[name] for name in _OPEN if name in states}
        if "uuid" in states:  # two objects of one uuid are one
            changed["uuid"] = str(uuid.uuid4())
        for name in states.keys() & {"py_func", "pyfunc", "dispatcher"}:
            changed[name] = self._of(states[name])
        copy = type(value)._rebuild(**{**states, **changed})
        if _pipeline_of(copy) is not _pipeline_of(value):
            raise TypeError(f"it refers to {value}, which has a compiler of its own")
        if any(states.get(name, is_open) != is_open for name, is_open in _OPEN.items()):
            signatures = [signature for name in names for signature in states[name]]
            self._compilations.append(partial(_compile, copy, signatures))
        return copy

    def _callback(self, value: Any) -> Any:
        """Return a new function of `cfunc` for a copy of its function."""
        compiler, signature = value._compiler, value._sig
        types = signature.args, signature.return_type
        body, options = self._of(value._pyfunc), compiler.targetoptions
        copy = type(value)(body, types, compiler.locals, options, compiler.pipeline_class)
        self._compilations.append(copy.compile)
        return copy

    def _jitclass(self, kind: Any) -> Any:
        """Return a new class of `jitclass` with copies of its methods."""
        from numba.experimental.jitclass.decorators import jitclass

        if any("jitclass" in str(field) for field in kind.struct.values()):
            raise TypeError("it refers to a jitclass that has a field of another jitclass")
        members = {name: self._of(method) for name, method in kind.methods.items()}
        for name, method in kind.static_methods.items():
            members[name] = staticmethod(self._of(method))
        for name, parts in kind.jit_props.items():
            get_set = (parts[which].py_func if which in parts else None for which in ("get", "set"))
            members[name] = property(*map(self._of, get_set))
        return jitclass([*kind.struct.items()])(type(kind.class_name, (), members))


def _compile(value: Any, signatures: list[Any]) -> None:
    """Compile an object of Numba for signatures, and for no other ones from then on."""
    for signature in signatures:
        (value.add if hasattr(value, "add") else value.compile)(signature)
    if hasattr(value, "build_ufunc"):
        value.build_ufunc()
    value.disable_compile()


def _pipeline_of(value: Any) -> Any:
    return getattr(getattr(value, "_compiler", None), "pipeline_class", None)


def _is_constant(value: Any) -> bool:
    """Return whether a value cannot change, or Numba or this package has it by its name."""
    if type(value) in PLAIN or isinstance(value, _CONSTANT):
        return True
    if isinstance(value, EnumType):
        members: Any = value
        return all(_is_constant(member.value) for member in members)
    if isinstance(value, Enum):
        return _is_constant(type(value))
    if isinstance(value, type) and issubclass(value, (BaseException, tuple)):
        return True
    if isinstance(value, np.generic):
        return not isinstance(value, np.void)
    is_module = isinstance(value, ModuleType)
    module = str(getattr(value, "__name__" if is_module else "__module__", ""))
    if is_module and module.partition(".")[0] in object_parts.KNOWN_BY_NAME | {"bnmc"}:
        return True
    is_ours = module.startswith(("bnmc._kernels", "bnmc.kernels"))
    is_type = type(value).__module__.startswith("numba.core.types")
    return is_ours or is_type or object_parts.is_known(value)


def _enters(code: CodeType) -> bool:
    """Return whether a code has a `with` statement."""
    steps = dis.get_instructions(code)
    return any(step.opname == "BEFORE_WITH" or step.argrepr == "__enter__" for step in steps)
