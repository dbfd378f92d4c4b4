"""A digest of a function: of its code, and of all values that the code depends on."""

from __future__ import annotations

import dis
import hashlib
import importlib
from _ctypes import CFuncPtr
from collections.abc import Callable, Iterator, Sequence
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

from bnmc.chain import object_parts

ScalarFunction = Callable[[Any], Any]

#: Types whose `repr` is their value.
PLAIN = frozenset((bool, int, float, complex, str, bytes))

# --- what a function is


def contents_of(cell: CellType) -> tuple[Any, ...]:
    """Return the value of a variable, or nothing if it has none yet."""
    try:
        return (cell.cell_contents,)
    except ValueError:
        return ()


def globals_of(function: FunctionType) -> dict[str, Any]:
    """Return the global variables that a function reads, by their names, in order."""
    steps = (step for code in codes_of(function.__code__) for step in dis.get_instructions(code))
    reads = {str(step.argval) for step in steps if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    variables = function.__globals__
    return {name: variables[name] for name in sorted(reads) if name in variables}


def _imported_names(code: CodeType) -> list[str]:
    """Return the names of the modules that a code, or a code in it, imports absolutely."""
    names: set[str] = set()
    for part in codes_of(code):
        loaded: list[Any] = [None, None]
        for step in dis.get_instructions(part):
            # The level and the names are loaded before.
            if step.opname == "IMPORT_NAME" and loaded[-2] == 0:
                names.add(str(step.argval))
            loaded.append(step.argval)
    return sorted(names)


def _imported(name: str) -> ModuleType | None:
    """Return a module that a function imports, or None if it is known by its name or missing."""
    try:
        has_name = name.partition(".")[0] in object_parts.KNOWN_BY_NAME
        return None if has_name else importlib.import_module(name)
    except ImportError:  # the function may handle it
        return None


def attribute_names(code: CodeType) -> list[str]:
    """Return the names by which a code, or a code in it, may read attributes, in order."""
    return sorted({name for part in codes_of(code) for name in part.co_names})


def codes_of(code: CodeType) -> Iterator[CodeType]:
    """Yield a code and all codes in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes_of(constant)


def is_importable(function: ScalarFunction) -> bool:
    """Return whether another process finds this function by its name."""
    module, name = (getattr(function, name, None) for name in ("__module__", "__qualname__"))
    in_module = module not in (None, "__main__")
    return in_module and object_parts.attribute_of(str(module), str(name)) is function


# --- digest


def digest_of(value: object, *, by_version: bool = True) -> str:
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
    digest = _Digest(by_version=by_version)
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

    def __init__(self, *, by_version: bool) -> None:
        self._by_version = by_version
        self._state = hashlib.sha256()
        self._seen: dict[tuple[int, int], int] = {}
        # `_seen` holds addresses: they stay unique while the values are alive.
        self._alive: list[object] = []

    def hexdigest(self) -> str:
        return self._state.hexdigest()

    def add(self, value: Any, user: CodeType | None = None) -> None:
        """Add a value; of a module only what `user`, the code that refers to it, may read."""
        if value is None or value is ... or type(value) in PLAIN:
            self._write(type(value).__name__, value if type(value) is bytes else repr(value))
        elif type(value) in (set, frozenset):
            self._write("set", " ".join(sorted(map(self._digest_of, value))))
        elif isinstance(value, ModuleType):
            self._add_module(value, user)
        elif (content := object_parts.content_of(value)) is not None:
            self._add_parts(*content, user)
        elif self._by_version and (name := object_parts.installed_name(value)) is not None:
            self._write("installed", name)
        elif object_parts.is_known(value):
            self._write("name", object_parts.full_name(value))
        elif isinstance(value, FunctionType):
            self._add_function(value)
        elif isinstance(value, CFuncPtr):
            raise TypeError("it refers to a pointer to a C function, which cannot be identified")
        elif not self._is_seen(value, None):
            self._add_parts(*object_parts.parts_of(value), None)

    def _add_function(self, function: FunctionType) -> None:
        code = function.__code__
        if self._is_seen(function, code):
            return
        cells = list(map(contents_of, function.__closure__ or ()))
        variables = globals_of(function)
        parts: list[Any] = [code, function.__defaults__, function.__kwdefaults__, cells, variables]
        overloads = [] if self._by_version else object_parts.overloads_of(function)
        if overloads:
            parts.append([(each._overload_func, dict(each._jit_options)) for each in overloads])
        if self._by_version:
            imports = [(name, _imported(name)) for name in _imported_names(code)]
            parts += [sorted(vars(function).items()), imports]
        self._add_parts("function", parts, code)

    def _add_parts(self, kind: str, parts: Sequence[Any], user: CodeType | None) -> None:
        self._write(kind, str(len(parts)))
        for part in parts:
            self.add(part, user)

    def _digest_of(self, value: object) -> str:
        digest = _Digest(by_version=self._by_version)
        digest.add(value)
        return digest.hexdigest()

    def _add_module(self, module: ModuleType, user: CodeType | None) -> None:
        self._write("module", module.__name__)
        package = module.__name__.partition(".")[0]
        version = "" if package in object_parts.KNOWN_BY_NAME else object_parts.version_of(package)
        if self._by_version and version is not None:
            self._write("version", version)  # names are part of the code that refers to it
        elif user is not None and not self._is_seen(module, user):
            for name in attribute_names(user):
                if name in vars(module):
                    self.add(name)
                    self.add(vars(module)[name], user)

    def _is_seen(self, value: object, user: CodeType | None) -> bool:
        """Note a value that may refer to itself; say whether it was noted before."""
        key = (id(value), id(user))
        is_seen = key in self._seen
        self._alive.append(value)
        self._write("reference", str(self._seen.setdefault(key, len(self._seen))))
        return is_seen

    def _write(self, kind: str, content: str | bytes) -> None:
        encoded = content if isinstance(content, bytes) else content.encode()
        self._state.update(f"{kind}:{len(encoded)}:".encode())
        self._state.update(encoded)
