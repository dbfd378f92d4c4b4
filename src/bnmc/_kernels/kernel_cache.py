"""Compiled code on disk: files with checksums, in folders that no other user can write to.

Numba's cache raises an error if it cannot read or write a file, executes what it reads, and takes
whatever entry has the right name.  The cache of this file never ends a run: if an entry cannot be
used or kept, the process compiles, and `KernelCacheWarning` names the folder and the reason.

An entry is executed, and its unpickling alone can run any code.  So a checksum is compared before
an entry is unpickled, and a folder or a file is only read if nobody else may have written it.  The
checksum finds damage, not forgery: the owner of the folder guards against that.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import stat
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from numba.core import config
from numba.core.caching import (
    CompileResultCacheImpl,
    FunctionCache,
    IndexDataCacheFile,
    NullCache,
    UserProvidedCacheLocator,
)
from numba.core.compiler import CompileResult, compile_result

from bnmc._kernels.pipeline import InnerLibrary, entry_of
from bnmc._kernels.wheel_kernels import recorded_to, used_folder
from bnmc.errors import KernelCacheWarning

__all__ = ["Kept", "KernelCache", "cache_of", "kept_of", "signatures_of", "source_digest"]

#: The first bytes of every file, then the digest of its stamp and the checksum.
MAGIC = b"bnmc kernel cache 1\n"

#: The first byte of files of Numba's own cache, which earlier versions of the package used.
PICKLED = b"\x80"

DIGEST_BYTES = 32


@cache
def source_digest() -> str:
    """Return a digest of every source file of `_kernels`, and of `bnmc.kernels`."""
    folder = Path(__file__).parent
    digest = hashlib.sha256()
    for part in (folder, folder.parent / "kernels"):
        for path in sorted(part.rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def cache_of(function: Any, *, inner: bool = False) -> KernelCache | Unkept:
    """Return the cache of a function: on disk if there is a folder for it, or none.

    `inner` stands for its code of `pipeline.InnerCompiler`.
    """
    try:
        return InnerCache(function) if inner else KernelCache(function)
    except RuntimeError:  # no folder can be used
        return Unkept(function, inner)


class Kept(NamedTuple):
    """What a folder has of compiled code."""

    folder: str
    entries: int
    bytes: int


def kept_of(function: Any) -> Kept | None:
    """Return what is kept beside the code of a function, or None if no folder can be used."""
    cache = cache_of(function)
    if isinstance(cache, Unkept):
        return None
    sizes = []
    for path in Path(cache.cache_path).glob("*.nb[ci]"):
        with suppress(OSError):  # another process may remove it
            sizes.append((path.suffix, path.stat().st_size))
    entries = sum(suffix == ".nbc" for suffix, _ in sizes)
    return Kept(str(cache.cache_path), entries, sum(size for _, size in sizes))


class KernelCache(FunctionCache):
    """Numba's cache on disk, with entries that depend on every file of the package.

    Numba stamps an entry with the file of the compiled function alone.  It would keep using a
    kernel after an edit of a callee in another file.
    """

    #: Of the names of its files.
    suffix = ""

    def __init__(self, function: Any) -> None:
        self._impl_class = self.places()
        super().__init__(function)
        self._cache_file = _CheckedFiles(
            cache_path=self._cache_path,
            filename_base=self._impl.filename_base + self.suffix,
            source_stamp=(self._impl.locator.get_source_stamp(), source_digest()),
        )

    @staticmethod
    def places() -> type[_Placed]:
        """Return the rules of what is kept, and how."""
        return _Placed

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return compiled code of the wheel or the disk, or None if none can be used."""
        found = None if self.suffix else carried_overload(self._py_func, sig, target_context)
        if found is not None:
            return found
        _tell_pending()
        if not self._may_use_folder():
            return None
        try:
            return super().load_overload(sig, target_context)
        # Reading, unpickling and linking raise many errors; a module of the user that one process
        # could import may be missing in this one.
        except Exception as error:
            _tell(self._cache_path, "read", f"an entry of {self._py_func.__name__} {_said(error)}")
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep compiled code on the disk if possible."""
        if not self.suffix:
            record_overload(self._py_func, sig, data)
        if not self._may_use_folder():
            return
        try:
            super().save_overload(sig, data)
        except Exception as error:  # pickling raises many errors, too
            reason = f"an entry of {self._py_func.__name__} cannot be written: {_said(error)}"
            _tell(self._cache_path, "write", reason)

    def _may_use_folder(self) -> bool:
        """Return whether the folder is still as safe as it was when it was chosen."""
        reason = _distrust(self._cache_path)
        if reason is not None:
            _tell(self._cache_path, "trust", reason)
        return reason is None


class InnerCache(KernelCache):
    """A cache of code that has no machine code, in files beside those of `KernelCache`."""

    suffix = ".inner"

    @staticmethod
    def places() -> type[_Placed]:
        """Return the rules of what is kept, and how."""
        return _PlacedInner


class Unkept(NullCache):
    """A cache that keeps nothing, and says so when the first code is compiled."""

    def __init__(self, function: Any, inner: bool) -> None:
        self._function = None if inner else function

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return compiled code of the wheel, or None."""
        if self._function is None:
            return None
        return carried_overload(self._function, sig, target_context)

    def save_overload(self, sig: Any, cres: Any) -> None:
        """Say once that the code is lost when the process ends."""
        _tell_pending()
        tried = _wanted() or "the folder of the package, and the folder of the user's caches"
        _tell(tried, "write", "no folder can be written to (NUMBA_CACHE_DIR names one)")


# --- kernels of a wheel


def carried_overload(function: Any, sig: Any, target_context: Any) -> Any:
    """Return compiled code that the wheel carries for this processor, or None.

    There may be none for this version of Numba or Python, these sources or this signature.  If a
    file is damaged or not trusted, `KernelCacheWarning` says so.
    """
    folder = used_folder()
    if folder is None or function.__closure__ is not None:
        return None
    target_context.refresh()
    try:
        found = _carried_files(folder, _carried_name(function)).load(_carried_key(function, sig))
        return None if found is None else CompileResult._rebuild(target_context, *found)
    except Exception as error:  # reading, unpickling and linking raise many errors
        _tell(str(folder), "read", f"an entry of {function.__name__} {_said(error)}")
        return None


def record_overload(function: Any, sig: Any, data: Any) -> None:
    """Write compiled code to the folder of a wheel that is being built, if there is one."""
    folder = recorded_to()
    if folder is not None and function.__closure__ is None:
        _carried_files(folder, _carried_name(function)).save(
            _carried_key(function, sig), data._reduce()
        )


def signatures_of(folder: Path) -> list[tuple[str, str, Any]]:
    """Return module, name and signature of each kernel in a folder of a wheel."""
    found: list[tuple[str, str, Any]] = []
    for path in sorted(folder.glob("*.nbi")):
        module, _, name = path.stem.rpartition(".")
        files = _carried_files(folder, path.stem)
        found.extend((module, name, signature) for signature, _ in files.all_keys())
    return found


def _carried_files(folder: Path, name: str) -> _CheckedFiles:
    """Return the files of a kernel in a folder of a wheel, which stands for a level."""
    return _CheckedFiles(str(folder), name, (folder.name, _python(), source_digest()))


def _carried_name(function: Any) -> str:
    """Return the name of the files of a kernel: its module and its own name."""
    return f"{function.__module__}.{function.__qualname__}".removeprefix("bnmc.")


def _python() -> str:
    """Return the version of Python, on which bytecode and pickles depend."""
    return str(sys.implementation.cache_tag)


def _carried_key(function: Any, sig: Any) -> tuple[Any, str]:
    """Return the key of an entry; Numba's contains the processor and its features, too."""
    return sig, hashlib.sha256(function.__code__.co_code).hexdigest()


# --- folders


def _wanted() -> str:
    """Return the folder that NUMBA_CACHE_DIR names, or nothing."""
    return str(getattr(config, "CACHE_DIR", ""))


def _distrust(folder: str | os.PathLike[str]) -> str | None:
    """Return why code from a folder must not be executed, or None."""
    try:
        return _distrust_status(os.stat(folder), os.stat(Path(folder).parent))
    except FileNotFoundError:  # it will be made
        return None
    except OSError as error:
        return f"it cannot be examined ({_said(error)})"


def _distrust_status(found: os.stat_result, parent: os.stat_result | None = None) -> str | None:
    """Return why the code of a file or a folder must not be executed, or None."""
    if not hasattr(os, "geteuid"):  # on Windows, mode and owner say nothing
        return None
    if found.st_uid not in _trusted_owners():
        return f"it belongs to another user (uid {found.st_uid}), whose code would be executed"
    if found.st_mode & stat.S_IWOTH:
        return "every user can write to it, so anybody's code would be executed"
    if parent is not None and parent.st_mode & stat.S_IWOTH and not parent.st_mode & stat.S_ISVTX:
        return "every user can replace it, so anybody's code would be executed"
    return None


def _trusted_owners() -> set[int]:
    """Return this user, root, and the owner of this file, whose code already runs."""
    return {os.geteuid(), 0, os.stat(__file__).st_uid}


def _private(locator: Any) -> Any:
    """Return a class of Numba that finds a folder, restricted to folders that may be used."""

    class Private(locator):
        def ensure_cache_path(self) -> None:
            # With an empty umask, Numba would make folders that every user can write to.
            path = Path(self.get_cache_path())
            for folder in (*reversed(path.parents), path):
                if not folder.exists():
                    folder.mkdir(mode=0o755, exist_ok=True)
            super().ensure_cache_path()

        @classmethod
        def from_function(cls, py_func: Any, py_file: str) -> Any:
            found = super().from_function(py_func, py_file)
            if found is None:
                if _wanted() and locator is UserProvidedCacheLocator:
                    _pending.append((_wanted(), "write", "it cannot be written to"))
                return None
            folder = found.get_cache_path()
            reason = _distrust(folder)
            if reason is not None:
                _pending.append((folder, "trust", reason))
                return None
            return found

    return Private


class _Placed(CompileResultCacheImpl):
    """Numba's rules of what is kept, in folders that may be used."""

    def __init__(self, py_func: Any) -> None:
        self._locator_classes = [_private(one) for one in CompileResultCacheImpl._locator_classes]
        super().__init__(py_func)


class _PlacedInner(_Placed):
    """The same for code of `pipeline.InnerCompiler`."""

    def rebuild(self, target_context: Any, payload: Any) -> Any:
        """Return the compiled function that `reduce` made parts of."""
        code, description, environment, signature, _, lifted, annotation, reloads, used = payload
        for reload in reloads:
            reload()
        name, _, bitcode = code
        library = InnerLibrary.of_bitcode(target_context.codegen(), name, bitcode)
        return compile_result(
            target_context=target_context,
            typing_context=target_context.typing_context,
            library=library,
            environment=environment,
            entry_point=entry_of(description, environment, library),
            fndesc=description,
            type_annotation=annotation,
            signature=signature,
            objectmode=False,
            lifted=lifted,
            reload_init=reloads,
            referenced_envs=used,
        )


# --- files


class _Unusable(Exception):
    """A file of the cache is damaged, or somebody else may have written it."""


class _CheckedFiles(IndexDataCacheFile):
    """Numba's files of an index and of data, each with a checksum, and data with their key.

    Two processes that write entries of two keys at once may choose one name for both; the key in
    the file shows which entry it contains.
    """

    def save(self, key: Any, data: Any) -> None:
        """Keep an entry; a damaged index is replaced."""
        try:
            self._load_index()
        except Exception:  # unpickling raises many errors
            self.flush()
        super().save(key, (key, data))

    def load(self, key: Any) -> Any:
        """Return an entry, or None if there is none."""
        name = self._load_index().get(key)
        found = None if name is None else self._unpickled(self._data_path(name))
        return None if found is None or found[0] != key else found[1]

    def all_keys(self) -> list[Any]:
        """Return the keys of all entries."""
        return list(self._load_index())

    def _load_index(self) -> dict[Any, str]:
        found = self._unpickled(self._index_path)
        return {} if found is None else found

    def _save_index(self, overloads: dict[Any, str]) -> None:
        self._write(self._index_path, overloads)

    def _save_data(self, name: str, data: Any) -> None:
        self._write(self._data_path(name), data)

    def _write(self, path: str, value: Any) -> None:
        content = self._stamp() + self._dump(value)
        with self._open_for_write(path) as file:
            if hasattr(os, "fchmod"):
                os.fchmod(file.fileno(), os.fstat(file.fileno()).st_mode & ~0o022)
            file.write(MAGIC + hashlib.sha256(content).digest() + content)

    def _unpickled(self, path: str) -> Any:
        """Return the value of a file, or None if there is none for these sources."""
        try:
            with open(path, "rb") as file:
                content = _read(file)
        except FileNotFoundError:
            return None
        if content.startswith(PICKLED):
            return None
        begin = len(MAGIC) + DIGEST_BYTES
        head, content = content[:begin], content[begin:]
        if head != MAGIC + hashlib.sha256(content).digest():
            raise _Unusable("is damaged: its checksum differs")
        if content[:DIGEST_BYTES] != self._stamp():
            return None
        return pickle.loads(content[DIGEST_BYTES:])

    def _stamp(self) -> bytes:
        """Return a digest of the versions and sources that an entry belongs to."""
        return hashlib.sha256(repr((self._version, self._source_stamp)).encode()).digest()

    @contextmanager
    def _open_for_write(self, filepath: str) -> Iterator[BinaryIO]:
        with super()._open_for_write(filepath) as file:
            yield file
            file.flush()  # on a full disk, the rest of a buffer would be lost without an error


def _read(file: BinaryIO) -> bytes:
    """Return the bytes of a file of the cache that nobody else may have written."""
    reason = _distrust_status(os.fstat(file.fileno()))
    if reason is not None:
        raise _Unusable(f"is not trusted: {reason}")
    return file.read()


# --- warnings

#: Folders that were found unusable while modules were imported: (folder, kind, reason).
_pending: list[tuple[str, str, str]] = []

#: The folders and kinds of failures that were reported.
_told: set[tuple[str, str]] = set()


def _tell_pending() -> None:
    """Report what was found during imports, where a warning as an error would do damage."""
    while _pending:
        _tell(*_pending.pop())


def _tell(folder: str, kind: str, reason: str) -> None:
    """Warn of a folder, once for each kind of failure."""
    if (folder, kind) in _told:
        return
    _told.add((folder, kind))
    consequence = {
        "read": "it is compiled again",
        "write": "compiled code is kept in memory only, so each process compiles for 10 to 20 s",
        "trust": "it is not used; NUMBA_CACHE_DIR names another folder",
    }[kind]
    warnings.warn(
        f"kernel cache {folder}: {reason}; {consequence}", KernelCacheWarning, stacklevel=3
    )


def _said(error: Exception) -> str:
    """Return an error as a part of a sentence."""
    if isinstance(error, _Unusable):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, ImportError):
        return f"refers to a module that this process cannot import ({error})"
    return f"cannot be loaded ({type(error).__name__}: {error})"
