"""The parts of an object that determine its values, for digests that all processes share.

An object consists of its class and its state.  A class consists of its name, its bases and its
attributes.  The state is that of pickle, so ``__getstate__`` or ``__reduce__`` of an object specify
its state.  Addresses and file names are no part of an object.
"""

from __future__ import annotations

import copyreg
import functools
import importlib.metadata
import random
import sys
import types
from collections.abc import Callable, Sequence
from enum import Enum, EnumType
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from bnmc._support.version import __version__

#: Attributes of classes that describe a class, or that Python computes and stores there.
_DESCRIPTIVE = frozenset((
    "__module__", "__qualname__", "__doc__", "__dict__", "__weakref__", "__annotations__",
    "__annotate__", "__annotate_func__", "__annotations_cache__", "__firstlineno__",
    "__static_attributes__", "__abstractmethods__", "_abc_impl", "__parameters__",
    "__orig_bases__", "__slotnames__", "__dataclass_fields__", "__dataclass_params__",
))  # fmt: skip
#: Methods that `collections.namedtuple` writes; the fields determine them.
_OF_NAMED_TUPLES = frozenset(("__new__", "_make", "_replace", "__replace__", "__repr__", "_asdict"))

#: Generators that all functions of a process share.  Distributions of SciPy refer to NumPy's, also
#: if they draw with the generator that they are given.
_GLOBAL_GENERATORS = (np.random.mtrand._rand, getattr(random, "_inst", None))

_DESCRIPTORS = (
    types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType,
    types.GetSetDescriptorType, types.MemberDescriptorType,
)  # fmt: skip

#: Numba knows the functions of these packages by name and does not compile their Python source.
KNOWN_BY_NAME = frozenset(sys.stdlib_module_names | {"numba", "numpy", "scipy"}) - {"__main__"}


def content_of(value: Any) -> tuple[str, Sequence[Any]] | None:
    """Return the kind of a container, an array or a code and what is in it, else None.

    These are the same if their contents are: whether two of them are one object does not matter.
    """
    if isinstance(value, Enum):
        return "member", (full_name(type(value)), value.name, value.value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return "named tuple", (value._fields, type(value), *value)
    if type(value) in (tuple, list):
        return type(value).__name__, value
    if type(value) is dict:
        return "dict", [*value.items()]
    if isinstance(value, np.dtype):
        return "dtype", (repr(value),)
    if isinstance(value, types.CodeType):
        counts = value.co_argcount, value.co_posonlyargcount, value.co_kwonlyargcount
        names = value.co_flags, value.co_names, value.co_consts
        return "code", (value.co_code, value.co_exceptiontable, counts, *names)
    # Other classes of arrays have more than their items: a masked array has a mask.
    if type(value) in (np.ndarray, np.recarray) or isinstance(value, np.generic):
        if value.dtype.names is not None:  # without the padding between fields
            fields = [np.asarray(value[name]) for name in value.dtype.names]
            return "record", (value.dtype, value.shape, *fields)
        if not value.dtype.hasobject:
            return "array", (value.dtype, value.shape, value.tobytes())
    return None


#: The parts of objects of exactly these types.
_OF_TYPE: dict[type, Callable[[Any], Any]] = {
    np.vectorize: attrgetter("pyfunc", "otypes", "signature", "excluded"),  # not kept results
    np.ma.MaskedArray: lambda array: (array.data, np.ma.getmaskarray(array), array.fill_value),
    np.ndarray: lambda array: (array.shape, array.ravel().tolist()),  # of Python objects
}

#: The parts of objects of these types and of those derived from them; the last match counts.
_OF_KIND: dict[Any, Callable[[Any], Any]] = {
    type: lambda kind: _of_class(kind),
    EnumType: lambda kind: (full_name(kind), dict(kind.__members__)),
    types.MethodType: lambda method: (_function_of(method), method.__self__),
    (types.BuiltinFunctionType, types.MethodWrapperType): lambda function: (
        function.__qualname__, getattr(function, "__module__", None), function.__self__,
    ),
    _DESCRIPTORS: attrgetter("__name__", "__objclass__"),
    (staticmethod, classmethod): attrgetter("__func__"),
    property: attrgetter("fget", "fset", "fdel"),
    functools.cached_property: attrgetter("func"),
    functools._lru_cache_wrapper: attrgetter("__wrapped__"),
    types.MappingProxyType: dict,
}  # fmt: skip


def parts_of(value: Any) -> tuple[str, Sequence[Any]]:
    """Return the kind of an object and its parts, which are objects again.

    Parameters
    ----------
    value : object
        Anything but plain values, `content_of` values, Python functions and modules.

    Raises
    ------
    TypeError
        If the object has no state that pickle knows, such as a lock or a file, or is known by its
        name only.
    """
    if any(value is shared for shared in _GLOBAL_GENERATORS):
        return "global generator", (type(value),)
    if (parts := _of_numba(value)) is not None:
        return f"numba {type(value).__name__}", parts
    getter: Callable[[Any], Any] = _OF_TYPE.get(type(value), _of_instance)
    for kinds, of_kind in _OF_KIND.items():
        if isinstance(value, kinds):
            getter = of_kind
    return f"object {type(value).__name__}", (getter(value),)


def _of_numba(value: Any) -> tuple[Any, ...] | None:
    """Return the parts of an object of Numba's that compiles functions, else None."""
    module = type(value).__module__
    if hasattr(value, "py_func"):  # jit
        options = sorted(value.targetoptions.items()), sorted(getattr(value, "locals", {}).items())
        # Given signatures convert arguments.
        is_open = getattr(value, "_can_compile", True)
        return *options, [] if is_open else list(map(str, value.signatures)), value.py_func
    if module.startswith("numba.np.ufunc.") and hasattr(value, "_dispatcher"):  # vectorize
        return value.signature, value.types if value._frozen else [], value._dispatcher
    if module.startswith("numba.np.ufunc.") and hasattr(value, "gufunc_builder"):  # guvectorize
        return value.signature, value.gufunc_builder.py_func
    if module == "numba.core.ccallback":  # cfunc
        return str(value._sig), value._pyfunc
    if module == "numba.core.extending" and hasattr(value, "_defn"):  # intrinsic
        return (value._defn,)
    if hasattr(value, "class_type") and hasattr(value.class_type, "jit_methods"):  # jitclass
        kind = value.class_type
        others = sorted(kind.jit_props.items()), sorted(kind.jit_static_methods.items())
        return [*kind.struct.items()], sorted(kind.jit_methods.items()), *others
    if module.startswith("numba.core.types"):  # a type, to convert to
        return (str(value),)
    return None


def overloads_of(function: types.FunctionType) -> list[Any]:
    """Return how Numba compiles calls of a function of the user: by `overload`, `register_jitable`.

    Numba has it by the function's identity, in templates.
    """
    templates = sys.modules.get("numba.core.typing.templates")
    if templates is None or str(function.__module__).partition(".")[0] == "bnmc":
        return []
    kinds = [kind for value, kind in templates.builtin_registry.globals if value is function]
    every = [template for kind in kinds for template in getattr(kind, "templates", ())]
    return [template for template in every if hasattr(template, "_overload_func")]


def _function_of(method: types.MethodType) -> Any:
    """Return the name by which the class has the function of a method, or else the function.

    A method that was pickled may have a copy of the function of its class.
    """
    function = method.__func__
    name = getattr(function, "__name__", "")
    of_class = getattr(type(method.__self__), name, None)
    code = getattr(function, "__code__", None)
    return name if code is not None and getattr(of_class, "__code__", None) == code else function


def _of_instance(value: Any) -> tuple[Any, ...]:
    """Return class and state of an object, as pickle sees them."""
    reduce = copyreg.dispatch_table.get(type(value))
    reduced = value.__reduce_ex__(4) if reduce is None else reduce(value)
    if isinstance(reduced, str):
        raise TypeError(f"a {type(value).__name__} is known by its name only")
    function, arguments, state, items, entries = (*reduced[:5], None, None, None)[:5]
    return (
        type(value), function, arguments, _sorted(state), list(items or ()), list(entries or ())
    )  # fmt: skip


def _sorted(state: Any) -> Any:
    """Return a state with its attributes in the order of their names."""
    if isinstance(state, dict) and all(isinstance(name, str) for name in state):
        return sorted(state.items())
    if isinstance(state, tuple):
        return tuple(_sorted(part) for part in state)
    return state


def _of_class(kind: type) -> tuple[Any, ...]:
    skipped = _DESCRIPTIVE
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        skipped |= _OF_NAMED_TUPLES
    attributes = [(name, vars(kind)[name]) for name in sorted(vars(kind)) if name not in skipped]
    # ABCMeta and the like are found by their names.
    return kind.__name__, type(kind), kind.__bases__, attributes


# --- names


def full_name(value: Any) -> str:
    """Return the name by which an imported module has a function or a class."""
    return f"{type(value).__name__} {getattr(value, '__module__', '')}.{value.__name__}"


def is_known(value: Any) -> bool:
    """Return whether Numba, NumPy, SciPy or Python has a value by its name."""
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    module = getattr(value, "__module__", None)
    is_ufunc = module is None and isinstance(value, np.ufunc)
    places = ("numpy", "scipy.special") if is_ufunc else (str(module),)
    return isinstance(name, str) and any(
        place.partition(".")[0] in KNOWN_BY_NAME and attribute_of(place, name) is value
        for place in places
    )


def installed_name(value: Any) -> str | None:
    """Return name and version of a function or class of an installed package, else None.

    The version determines the code.  A package that is not below ``site-packages``, such as one
    that its author edits, has no version here.
    """
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str):
        return None
    version = version_of(module.partition(".")[0])
    is_found = version is not None and attribute_of(module, name) is value
    return f"{module}.{name} {version}" if is_found else None


def attribute_of(module: str, name: str) -> Any:
    """Return what a dotted name stands for in an imported module, or None."""
    value: Any = sys.modules.get(module)
    for part in name.split("."):
        value = getattr(value, part, None)
    return value


@cache
def version_of(package: str) -> str | None:
    """Return the version of an installed package, or None if its files may be edited."""
    if package == "bnmc":
        return __version__
    module = sys.modules.get(package)
    places = [getattr(module, "__file__", None), *getattr(module, "__path__", ())]
    folders = {part for place in places if place for part in Path(place).parts}
    if not folders & {"site-packages", "dist-packages"}:
        return None
    version = getattr(module, "__version__", None)
    if isinstance(version, str):
        return version
    try:
        return importlib.metadata.version(package)
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return None
