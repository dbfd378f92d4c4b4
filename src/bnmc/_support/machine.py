"""Processors and memory that a process may use on this machine."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar, copy_context
from functools import cache, lru_cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, TypeVar

import numpy as np

from bnmc.errors import ResultTooLargeError

_T = TypeVar("_T")

#: Bytes that stand for no limit.
UNLIMITED = 1 << 62

#: Seconds for which the limits of control groups are known.
_LIMITS_SECONDS = 10.0

#: Version 1 of control groups writes the largest number of pages for no limit.
_NO_LIMIT_OF_GROUP = 1 << 60


def available_processors() -> int:
    """Return the number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def available_memory() -> int:
    """Return the available memory in bytes.

    Returns
    -------
    int
        The least of: the available memory of the system, or all memory if the system does not
        report it; what the limits RLIMIT_AS and RLIMIT_DATA leave; what the memory limits of the
        control group of the process, and of each group above it, leave. At least 0, and 2**62 if
        nothing is known.
    """
    return memory_within(Path("/"), _resource_limits())


def require_memory(name: str, size: int, hint: str = "") -> None:
    """Raise `ResultTooLargeError` if an argument needs arrays of more bytes than are free."""
    available = available_memory()
    if size > available:
        raise ResultTooLargeError(name, size, available, hint)


def memory_within(root: Path, limits: Mapping[str, int]) -> int:
    """Return the available memory in bytes, from the files below a root.

    Parameters
    ----------
    root : Path
        The folder that has ``proc`` and ``sys``.
    limits : mapping of {"VmSize", "VmData"} to int
        Limits of the address space and of the data of the process, in bytes.
    """
    sizes = [_of_system(root)]
    for name, limit in limits.items():
        sizes.append(limit - (_size(root / "proc/self/status", name) or 0))
    limited = _limited_groups(root, int(time.monotonic() / _LIMITS_SECONDS))
    sizes += [_left_in_group(group, version) for group, version in limited]
    return max(0, min(sizes))


def _of_system(root: Path) -> int:
    """Return the available memory of the system, or all its memory."""
    available = _size(root / "proc/meminfo", "MemAvailable")
    if available is not None:
        return available
    with suppress(AttributeError, ValueError, OSError):  # Windows has no sysconf
        return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return UNLIMITED


def _resource_limits() -> dict[str, int]:
    """Return the limits of this process, by the name that /proc gives to what they limit."""
    try:
        import resource
    except ImportError:  # Windows
        return {}
    named = {"VmSize": "RLIMIT_AS", "VmData": "RLIMIT_DATA"}
    limits = {}
    for used, name in named.items():
        with suppress(AttributeError, OSError):  # not every system has both
            soft = resource.getrlimit(getattr(resource, name))[0]
            if soft != resource.RLIM_INFINITY:
                limits[used] = soft
    return limits


def _size(path: Path, name: str) -> int | None:
    """Return the size of a line such as ``VmSize:  1000 kB`` in bytes, or None if it is missing."""
    try:
        with open(path, errors="replace") as lines:
            for line in lines:
                if line.startswith(f"{name}:"):
                    words = line.split()
                    return int(words[1]) * 1024 if words[1:2] and words[1].isdigit() else None
    except OSError:
        pass
    return None


# --- control groups


class _Files(NamedTuple):
    """The names of the files of a group, and of the line of inactive pages in ``memory.stat``."""

    limit: str
    used: str
    inactive: str


_FILES = {
    1: _Files("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: _Files("memory.max", "memory.current", "inactive_file"),
}


@lru_cache(maxsize=8)
def _limited_groups(root: Path, period: int) -> tuple[tuple[Path, int], ...]:
    """Return the group of the process and those above it that have a limit, with their versions.

    Limits change rarely, and the files are slow: they are looked for once in a period.
    """
    mounts = _mounts(root)
    limited = []
    for line in _lines(root / "proc/self/cgroup"):
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        version = 2 if controllers == "" else 1 if "memory" in controllers.split(",") else 0
        if version in mounts:
            mounted, point = mounts[version]
            groups = _upward(point, path, mounted)
            limited += [(group, version) for group in groups if _limit(group, version) < UNLIMITED]
    return tuple(limited)


def _mounts(root: Path) -> dict[int, tuple[str, Path]]:
    """Return where the groups of each version are mounted: the path of the top, and the folder."""
    mounts = {}
    for line in _lines(root / "proc/self/mountinfo"):
        about, _, kind = line.partition(" - ")
        fields, kinds = about.split(), kind.split()
        if len(fields) < 5 or not kinds:
            continue
        version = {"cgroup2": 2, "cgroup": 1}.get(kinds[0])
        if version == 1 and "memory" not in kinds[-1].split(","):
            continue
        if version is not None:
            mounts[version] = fields[3], root / fields[4].lstrip("/")
    return mounts


def _upward(point: Path, path: str, mounted: str) -> Iterator[Path]:
    """Yield the folder of a group, and those of all groups above it that are mounted.

    In a container the mounted top may be the group of the container.  Groups above it cannot be
    seen.
    """
    group = PurePosixPath(path)
    inside = group.relative_to(mounted) if group.is_relative_to(mounted) else PurePosixPath()
    for folder in (inside, *inside.parents):
        if ".." not in folder.parts:
            yield point / folder


def _limit(group: Path, version: int) -> int:
    """Return the limit of a group in bytes."""
    limit = _number(group / _FILES[version].limit)
    return UNLIMITED if limit is None or limit >= _NO_LIMIT_OF_GROUP else limit


def _left_in_group(group: Path, version: int) -> int:
    """Return the bytes that the limit of a group leaves.

    The kernel reclaims inactive pages of files before it refuses memory.
    """
    files = _FILES[version]
    inactive = 0
    for line in _lines(group / "memory.stat"):
        name, _, value = line.partition(" ")
        if name == files.inactive and value.isdigit():
            inactive = int(value)
    return _limit(group, version) - max(0, (_number(group / files.used) or 0) - inactive)


def _number(path: Path) -> int | None:
    """Return the number in a file, or None if there is none, as for "max"."""
    text = "".join(_lines(path)).strip()
    return int(text) if text.isdigit() else None


def _lines(path: Path) -> list[str]:
    """Return the lines of a file, or none if it cannot be read."""
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:
        return []


@cache
def blas_kernel() -> str:
    """Return name, version, kernel and threads of the BLAS that NumPy uses, as one line.

    Kernel and threads are known only if the package threadpoolctl is installed.

    Examples
    --------
    >>> from bnmc._support.machine import blas_kernel
    >>> bool(blas_kernel())
    True
    """
    if find_spec("threadpoolctl") is not None:
        loaded = import_module("threadpoolctl").threadpool_info()
        libraries = [library for library in loaded if library.get("user_api") == "blas"]
        # SciPy may have loaded a library of its own.
        libraries.sort(key=lambda library: "numpy" not in str(library.get("filepath")))
        if libraries:
            blas: dict[str, Any] = libraries[0]
            kernel = f"{blas.get('architecture') or 'unknown'}, {blas['num_threads']} threads"
            return f"{blas['internal_api']} {blas.get('version') or 'unknown'} {kernel}"
    config: Any = np.show_config(mode="dicts")
    blas = config.get("Build Dependencies", {}).get("blas", {})
    return f"{blas.get('name', 'unknown')} {blas.get('version', 'unknown')}"


class _Limit:
    """One thread for the BLAS of the process, from the first that asks for it to the last."""

    def __init__(self) -> None:
        self._guard, self.users = threading.Lock(), 0
        self._limits: Any = None

    def __enter__(self) -> None:
        with self._guard:
            if self.users == 0:
                _take_control()
                self._limits = import_module("threadpoolctl").threadpool_limits(1, user_api="blas")
            self.users += 1

    def __exit__(self, *_: object) -> None:
        with self._guard:
            self.users -= 1
            if self.users == 0:
                _take_control()
                self._limits.restore_original_limits()
                _take_control()  # and leaves it to others


_LIMIT = _Limit()


def _take_control() -> None:
    """Let any thread set the number of threads of OpenBLAS.

    From version 3.8 on, threadpoolctl lets only the first thread do this as long as it lives, and
    ignores the others.  The thread that enters the context first, or leaves it last, may be a
    worker.
    """
    controller = getattr(import_module("threadpoolctl"), "OpenBLASController", None)
    clear = getattr(controller, "clear_controlling_thread", None)
    if clear is not None:
        clear(force=True)


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Let products of small matrices take one thread, if the package threadpoolctl is installed.

    If other programs use the processors, threads of a small product wait for each other much longer
    than they compute: ten times as long on two busy processors.  Several threads may be in this
    context; the last that leaves it restores the number of threads.
    """
    if find_spec("threadpoolctl") is None:
        yield
        return
    with _LIMIT:
        yield


#: The threads that share the large products of the current context.
_SHARING: ContextVar[Executor | None] = ContextVar("threads of products", default=None)


def results_of_parts(parts: Sequence[Callable[[], _T]]) -> list[_T]:
    """Return what functions return, in order; the threads of the current context share them."""
    pool = _SHARING.get()
    if pool is None:
        return [part() for part in parts]
    # NumPy's error state is a part of the context, which a thread does not inherit.
    calls = [pool.submit(copy_context().run, _unshared, part) for part in parts]
    wait(calls)  # an error of one call leaves none that still writes
    return [call.result() for call in calls]


def _unshared(part: Callable[[], _T]) -> _T:
    """Call a function that no thread shares, as it would wait for its own thread."""
    _SHARING.set(None)
    return part()


@contextmanager
def sharing_products(threads: int | None = None) -> Iterator[None]:
    """Let threads of the package share large products, and BLAS take one thread.

    Parameters
    ----------
    threads : int, optional
        By default the number of processors, or 1 if another thread of the process limits BLAS,
        since it shares the processors already.
    """
    if threads is None:
        threads = 1 if _LIMIT.users else available_processors()
    with one_blas_thread(), ExitStack() as stack:
        pool = None
        if threads > 1:
            pool = stack.enter_context(ThreadPoolExecutor(threads, "bnmc-products"))
        token = _SHARING.set(pool)
        stack.callback(_SHARING.reset, token)
        yield
