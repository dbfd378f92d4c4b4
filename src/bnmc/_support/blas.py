"""The BLAS of NumPy: its name, on which the last bits of eigenvalues depend, and its threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np


@cache
def blas_kernel() -> str:
    """Return name, version, kernel and threads of the BLAS that NumPy uses, as one line.

    Kernel and threads are known only if the package threadpoolctl is installed.

    Examples
    --------
    >>> from bnmc._support.blas import blas_kernel
    >>> bool(blas_kernel())
    True
    """
    if find_spec("threadpoolctl") is not None:
        libraries = import_module("threadpoolctl").threadpool_info()
        found: list[dict[str, Any]] = [one for one in libraries if one.get("user_api") == "blas"]
        # SciPy may have loaded a library of its own.
        own = [one for one in found if "numpy" in str(one.get("filepath"))] or found
        if own:
            kernel = f"{own[0].get('architecture') or 'unknown'}, {own[0]['num_threads']} threads"
            return f"{own[0]['internal_api']} {own[0].get('version') or 'unknown'} {kernel}"
    config: Any = np.show_config(mode="dicts")
    blas = config.get("Build Dependencies", {}).get("blas", {})
    return f"{blas.get('name', 'unknown')} {blas.get('version', 'unknown')}"


class _Limit:
    """One thread for the BLAS of the process, from the first that asks for it to the last."""

    def __init__(self) -> None:
        self._guard, self._users = threading.Lock(), 0
        self._limits: Any = None

    def __enter__(self) -> None:
        with self._guard:
            if self._users == 0:
                _take_control()
                self._limits = import_module("threadpoolctl").threadpool_limits(1, user_api="blas")
            self._users += 1

    def __exit__(self, *_: object) -> None:
        with self._guard:
            self._users -= 1
            if self._users == 0:
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
