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
from functools import cache
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


def parts_of(value: Any) -> tuple[str, tuple[Any, ...]]:
    """Return the kind of an object and its parts, which are objects again.

    Parameters
    ----------
    value : object
        Anything but plain values, containers, Python functions and modules.

    Returns
    -------
    kind : str
    parts : tuple

    Raises
    ------
    TypeError
        If the object has no state that pickle knows, such as a lock or a file, or is known by its
        name only.
    """
    if any(value is shared for shared in _GLOBAL_GENERATORS):
        return "global generator", (type(value),)
    if isinstance(value, type):
        return "class", _of_class(value)
    if isinstance(value, types.MethodType):
        return "method", (_of_method(value), value.__self__)
    if isinstance(value, types.BuiltinFunctionType | types.MethodWrapperType):
        owner = value.__self__
        if owner is None or isinstance(owner, types.ModuleType):
            return "function of C", (value.__qualname__, str(value.__module__))
        return "method of C", (value.__name__, owner)
    if isinstance(value, _DESCRIPTORS):
        return "descriptor", (value.__name__, value.__objclass__)
    if isinstance(value, staticmethod | classmethod):
        return type(value).__name__, (value.__func__,)
    if isinstance(value, property):
        return "property", (value.fget, value.fset, value.fdel)
    if isinstance(value, functools.cached_property):
        return "cached property", (value.func,)
    if isinstance(value, functools._lru_cache_wrapper):
        return "cached function", (value.__wrapped__,)
    if isinstance(value, types.MappingProxyType):
        return "mapping", (dict(value),)
    if type(value) is np.vectorize:  # it keeps results of its calls in its state
        told: Any = value
        return "vectorize", (told.pyfunc, told.otypes, told.signature, told.excluded)
    if type(value) is np.ma.MaskedArray:
        return "masked array", (value.data, np.ma.getmaskarray(value), value.fill_value)
    if isinstance(value, np.ndarray) and type(value) is np.ndarray:  # of Python objects
        return "array of objects", (value.shape, value.ravel().tolist())
    return "object", _of_instance(value)


def _of_method(method: types.MethodType) -> Any:
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


# --- functions and classes of installed packages


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
