"""Compiled code on disk: one file an entry, in folders that no other user can write to.

The name of a file is a digest of all that the code depends on: the versions of Python and Numba,
every source file of the kernels, the processor, unusual settings of Numba, and the function with
the types of its arguments.  Another version has other files, and two processes that write to one
file write the same code.

An entry is looked up in the folder of the wheel (see `processor`), then in the folder that
NUMBA_CACHE_DIR names, beside the sources, and in the folder of the user's caches.  It is written to
the first of the latter three that can be written to.  `wheels/kernels.py` makes the files of a
wheel by `recording`.

The package may be in a zip file or in a frozen application.  There its modules are no files, which
only their loaders can read, and nothing is written beside them.

This cache never ends a run: if an entry cannot be used or written, the process compiles, and
`KernelCacheWarning` names the folder and the reason.  An entry is executed, and its unpickling
alone can run any code.  So a checksum is compared before an entry is unpickled, and a folder or a
file is only read if nobody else may have written it.  The checksum finds damage, not forgery: the
owner of the folder guards against that.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import pickle
import pkgutil
import re
import shutil
import stat
import sys
import traceback
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.resources.abc import Traversable
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

import numba
from numba.core import config

from bnmc._kernels.processor import settings, wheel_folder
from bnmc.errors import KernelCacheWarning

#: The first bytes of every file, then the checksum.
MAGIC = b"bnmc kernel cache 2\n"

#: The folder of compiled modules beside the sources.  A frozen application has none that lasts: its
#: folder may be temporary.
BESIDE = (
    Path(__file__).with_name("__pycache__")
    if Path(__file__).is_file() and not getattr(sys, "frozen", False)
    else None
)

#: Of the folders of other versions in one place, these many that were written to last are kept.
_MOST_VERSIONS = 8

#: The packages and modules that determine compiled code.
_DETERMINING = (
    "bnmc._kernels", "bnmc.kernels",
    "bnmc.chain.code_digest", "bnmc.chain.freezing", "bnmc.chain.object_parts",
)  # fmt: skip

#: Whether mode and owner of a file say who may write to it, unlike on Windows.
_has_owners = hasattr(os, "geteuid")

#: The folders of wheels that are being built; see `recording`.
_recorded: list[Path] = []


class Entry(NamedTuple):
    """What identifies compiled code."""

    function: Any
    #: The types of the arguments, as text.
    signature: str
    #: The processor that the code is for, as text.
    processor: str
    #: The values of the closure's variables, pickled.
    cells: bytes = b""
    #: Whether this is the code of `numba_internals.InnerCompiler`.
    inner: bool = False

    @property
    def file_name(self) -> str:
        """The name of the file."""
        function, code = self.function, self.function.__code__
        place = function.__module__, function.__qualname__, code.co_firstlineno
        label = re.sub(r"[^a-zA-Z0-9_]", "", function.__name__)
        return f"{label}-{_digest(version(), *place, code.co_code, *self[1:])[:32]}.nbc"


@cache
def source_digest() -> str:
    """Return a digest of the source files of `_kernels`, `bnmc.kernels` and activations.

    The latter determine what the digest of an activation stands for.
    """
    digest = hashlib.sha256()
    for source in _sources(Path(__file__).parents[1], "bnmc"):
        digest.update(source.encode())
    return digest.hexdigest()


def _sources(folder: Path, package: str) -> Iterator[str]:
    """Yield the sources of the modules of `_DETERMINING` in a folder, sorted by name.

    If a module has no source, its bytecode counts.
    """
    modules = pkgutil.iter_modules([str(folder)], f"{package}.")
    for finder, name, is_package in sorted(modules, key=lambda module: module.name):
        counts = any(f"{name}.".startswith(f"{part}.") for part in _DETERMINING)
        if counts:
            loader: Any = finder.find_spec(name, None).loader  # type: ignore[union-attr]
            source = loader.get_source(name)
            yield _code_text(loader.get_code(name)) if source is None else source
        if is_package and (counts or any(part.startswith(f"{name}.") for part in _DETERMINING)):
            yield from _sources(folder / name.rpartition(".")[2], name)


def _code_text(code: CodeType) -> str:
    """Return all of a code object but the name of its file, which each start may change."""
    constants = [
        _code_text(value) if isinstance(value, CodeType)
        else repr(sorted(value, key=repr) if isinstance(value, frozenset) else value)
        for value in code.co_consts
    ]  # fmt: skip
    names = code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
    return repr((code.co_qualname, code.co_firstlineno, code.co_code, constants, names))


def version() -> str:
    """Return a digest of the sources, of the versions of Numba and Python, and of its settings.

    Bytecode and pickles depend on Python's.
    """
    python, sources = sys.implementation.cache_tag, source_digest()
    return _digest(python, numba.__version__, sources, *settings())[:16]


def _digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()


# --- entries


def load(entry: Entry, rebuild: Callable[[Any], Any]) -> Any:
    """Return what `rebuild` makes of an entry, or None if there is none that can be used."""
    wheel = None if entry.inner or entry.cells else wheel_folder()
    places: list[tuple[Traversable, str]] = [(folder, entry.file_name) for folder in folders()]
    if wheel is not None:
        places.insert(0, (wheel, entry._replace(processor=wheel.name).file_name))
    for folder, name in places:
        if isinstance(folder, Path) and not _is_trusted(folder):
            continue
        try:
            content = _read(folder, name)
            if content is not None:
                return rebuild(pickle.loads(content))
        # Reading, unpickling and linking raise many errors; a module of the user that one process
        # could import may be missing in this one.
        except Exception as error:
            _tell(folder, "read", f"an entry of {entry.function.__name__} {_said(error)}")
    return None


def save(entry: Entry, dump: Callable[[], bytes]) -> None:
    """Write an entry to the first folder that can be written to, and to that of `recording`."""
    try:
        content = dump()
    except Exception as error:  # pickling raises many errors, too
        tell_unwritten(entry.function, error)
        return
    if not (entry.inner or entry.cells):
        for folder in _recorded:
            _write(folder / entry._replace(processor=folder.name).file_name, content)
    failures: list[tuple[Path, str]] = []
    for folder in filter(_is_trusted, folders()):
        try:
            _write(folder / entry.file_name, content)
        except OSError as error:
            failures.append((folder, _said(error)))
        else:
            if failures and _wanted():
                _tell(failures[0][0], "move", f"it cannot be written to ({failures[0][1]})")
            return
    if failures:
        names = ", ".join(str(folder) for folder, _ in failures)
        _tell(names, "write", f"nothing can be written there ({failures[0][1]})")


def _read(folder: Traversable, name: str) -> bytes | None:
    """Return the content of a file that nobody else may have written, or None if it is missing."""
    path = folder / name
    written = _trusted_bytes(path) if isinstance(path, Path) else _packed_bytes(path)
    if written is None:
        return None
    content = written[len(_head(name, b"")) :]
    if written != _head(name, content) + content:
        raise _Unusable("is damaged: its checksum differs")
    return content


def _trusted_bytes(path: Path) -> bytes | None:
    try:
        # A pipe that nobody writes to would neither open nor end.
        with open(path, "rb", opener=_opened_at_once) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise _Unusable("is no regular file")
            reason = _distrust_status(status)
            if reason is not None:
                raise _Unusable(f"is not trusted: {reason}")
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _packed_bytes(path: Traversable) -> bytes | None:
    """Return the content of a file of the archive that this module is from, whose code runs."""
    try:
        # The loader opens the archive each time; an open one is no use after a fork.
        return bytes(__spec__.loader.get_data(str(path)))  # type: ignore[union-attr]
    except OSError:
        return None


def _opened_at_once(name: str, flags: int) -> int:
    return os.open(name, flags | getattr(os, "O_NONBLOCK", 0))


def _write(path: Path, content: bytes) -> None:
    """Write a file as a whole or not at all."""
    _make(path.parent)
    temporary = path.with_suffix(f".{uuid.uuid4().hex[:16]}")
    try:
        with open(temporary, "xb", opener=lambda name, flags: os.open(name, flags, 0o644)) as file:
            file.write(_head(path.name, content) + content)
        os.replace(temporary, path)
    except OSError:
        if os.name != "nt" or not path.exists():  # Windows replaces no file that is being read
            raise
    finally:
        with suppress(OSError):  # it was moved to its place
            temporary.unlink()


def _head(name: str, content: bytes) -> bytes:
    """Return what a file begins with; a file of another name has another checksum."""
    return MAGIC + hashlib.sha256(name.encode() + b"\n" + content).digest()


# --- folders


class _Kept(NamedTuple):
    """What a folder has of compiled code."""

    folder: Traversable
    entries: int
    bytes: int


def kept() -> _Kept | None:
    """Return what is on the disk for this version, or None if no folder can be used."""
    folder = usable_folder()
    if folder is None:
        return None
    sizes = []
    for path in folder.rglob("*.nbc"):
        with suppress(OSError):  # another process may remove it
            sizes.append(path.stat().st_size)
    return _Kept(folder, len(sizes), sum(sizes))


def carried() -> _Kept | None:
    """Return what the wheel has for this processor, or None."""
    folder = wheel_folder()
    if folder is None:
        return None
    sizes = [len(path.read_bytes()) for path in folder.iterdir()]
    return _Kept(folder, len(sizes), sum(sizes))


@contextmanager
def recording(folder: Path) -> Iterator[None]:
    """Write every kernel that this process compiles meanwhile to `folder`, too, for a wheel.

    The name of the folder is the level.
    """
    _recorded.append(folder)
    try:
        yield
    finally:
        _recorded.pop()


def entries_of(folder: Path) -> list[Any]:
    """Return the contents of all files of a folder."""
    contents = (_read(folder, path.name) for path in sorted(folder.glob("*.nbc")))
    return [pickle.loads(content) for content in contents if content is not None]


def folders() -> list[Path]:
    """Return the folders of this version, in the order in which they are tried."""
    name = f"bnmc-kernels-{version()}"
    return [parent / name for parent in (*_wanted(), BESIDE, _user_caches()) if parent is not None]


def _wanted() -> list[Path]:
    """Return the folder that NUMBA_CACHE_DIR names, if it names one."""
    name = getattr(config, "CACHE_DIR", "")
    return [Path(name)] if name else []


def usable_folder() -> Path | None:
    """Return the first folder that is trusted and can be written to, or None."""
    return next((folder for folder in folders() if _why_unusable(folder) is None), None)


def unusable_folders() -> list[str]:
    """Return the folders that are not used, each with the reason."""
    reasons = ((folder, _why_unusable(folder)) for folder in folders())
    return [f"{folder}: {reason}" for folder, reason in reasons if reason is not None]


def _why_unusable(folder: Path) -> str | None:
    """Return why nothing can be kept in a folder, which is made if possible, or None."""
    reason = _distrust(folder)
    if reason is not None:
        return f"not trusted: {reason}"
    try:
        _make(folder)
    except OSError as error:
        return f"cannot be written to ({_said(error)})"
    return None if os.access(folder, os.W_OK) else "cannot be written to"


@cache
def folder_of_numba() -> Path | None:
    """Return the folder of Numba's own cache, or None if there is none that Numba can read.

    If a folder contains a pipe, Numba waits for its content and never returns.
    """
    folder = usable_folder()
    if folder is None:
        return None
    for path in folder.rglob("*"):
        if not (path.is_file() or path.is_dir()):
            _tell(folder, "trust", f"{path.name} is no regular file")
            return None
    return folder


def _user_caches() -> Path:
    """Return the folder of Numba's caches of this user."""
    if sys.platform == "win32":
        caches = os.environ.get("LOCALAPPDATA", r"~\AppData\Local")
    elif sys.platform == "darwin":
        caches = "~/Library/Caches"
    else:
        caches = os.environ.get("XDG_CACHE_HOME", "~/.cache")
    return Path(os.path.expanduser(caches), "numba")


def _make(folder: Path) -> None:
    """Make a folder that its owner alone can write to, and remove those of old versions."""
    if folder.is_dir():
        return
    for path in (*reversed(folder.parents), folder):
        if not path.exists():
            path.mkdir(mode=0o755, exist_ok=True)
    with suppress(OSError):  # another process may remove them
        versions = folder.parent.glob(f"bnmc-kernels-{'[0-9a-f]' * 16}")
        for old in sorted(versions, key=os.path.getmtime)[:-_MOST_VERSIONS]:
            shutil.rmtree(old, ignore_errors=True)


def _is_trusted(folder: Path) -> bool:
    """Return whether code from a folder may be executed; if not, warn."""
    reason = _distrust(folder)
    if reason is not None:
        _tell(folder, "trust", reason)
    return reason is None


def _distrust(folder: Path) -> str | None:
    """Return why code from a folder, which may be missing, must not be executed, or None."""
    try:
        parent = os.stat(folder.parent)
        if _has_owners and parent.st_mode & stat.S_IWOTH and not parent.st_mode & stat.S_ISVTX:
            return "every user can replace it, so anybody's code would be executed"
        return _distrust_status(os.stat(folder))
    except (FileNotFoundError, NotADirectoryError):  # it will be made, or cannot be made
        return None
    except OSError as error:
        return f"it cannot be examined ({_said(error)})"


def _distrust_status(status: os.stat_result) -> str | None:
    """Return why the code of a file or a folder must not be executed, or None."""
    if not _has_owners:
        return None
    if status.st_uid not in _trusted_owners():
        return f"it belongs to another user (uid {status.st_uid}), whose code would be executed"
    if status.st_mode & stat.S_IWOTH:
        return "every user can write to it, so anybody's code would be executed"
    return None


def _trusted_owners() -> set[int]:
    """Return this user, root, and the owner of this file, whose code already runs.

    In a zip file or a frozen application this file is missing; the archive or folder that it is in
    has the owner.
    """
    places = Path(__file__), *Path(__file__).parents
    return {os.geteuid(), 0, next(place for place in places if place.exists()).stat().st_uid}


# --- warnings


class _Unusable(Exception):
    """A file of the cache is damaged, or somebody else may have written it."""


#: The folders and kinds of failures that were reported.
_told: set[tuple[str, str]] = set()

_CONSEQUENCES = {
    "read": "it is compiled again",
    "write": "so each process compiles for 10 to 20 s; NUMBA_CACHE_DIR names another folder",
    "move": "another folder is used",
    "trust": "it is not used; NUMBA_CACHE_DIR names another folder",
}


def tell_unwritten(function: Any, error: Exception) -> None:
    """Warn that the code of a function cannot be written to any folder."""
    kind, name = type(error).__name__, function.__name__
    _tell(folders()[0], "write", f"an entry of {name} cannot be written ({kind}: {error})")


def _tell(folder: Traversable | str, kind: str, reason: str) -> None:
    """Warn of a folder, once for each kind of failure."""
    if (str(folder), kind) in _told:
        return
    _told.add((str(folder), kind))
    warnings.warn(
        f"the folder {folder} of compiled kernels: {reason}; {_CONSEQUENCES[kind]}",
        KernelCacheWarning,
        stacklevel=_level_of_the_user(),
    )


def _level_of_the_user() -> int:
    """Return how many calls above `_tell` a line is that neither bnmc nor Numba has."""
    frames = traceback.walk_stack(sys._getframe(1))
    names = (frame.f_globals.get("__name__", "").partition(".")[0] for frame, _ in frames)
    inside = itertools.takewhile({"bnmc", "numba", "concurrent", "threading"}.__contains__, names)
    return 1 + sum(1 for _ in inside)


def _said(error: Exception) -> str:
    """Return an error as a part of a sentence."""
    if isinstance(error, _Unusable):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, ImportError):
        return f"refers to a module that this process cannot import ({error})"
    return f"cannot be loaded ({type(error).__name__}: {error})"
