"""Compiled kernels that a wheel carries, in the folder `compiled` beside this file.

The folder has one folder for each level of `levels.py`, with the files of `kernel_cache.py`: an
index and machine code for each kernel.  `wheels/kernels.py` makes them.  Each file is stamped with
the version of Numba, the digest of the kernels' sources and the level.  If a file has another
stamp, is damaged or is missing, the process compiles the kernel, as it does without a wheel.  Only
damage is reported, by `KernelCacheWarning`.

The environment variable BNMC_KERNELS=none makes a process ignore the folder.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import NamedTuple

from bnmc._kernels.levels import this_level

__all__ = ["FOLDER", "Carried", "carried", "recorded_to", "recording", "used_folder"]

#: Where a wheel has its compiled kernels.  An editable installation has no such folder.
FOLDER = Path(__file__).with_name("compiled")

_recorded: list[Path] = []


class Carried(NamedTuple):
    """What the wheel has for this processor."""

    level: str
    entries: int
    bytes: int


@cache
def used_folder() -> Path | None:
    """Return the folder of the kernels for this processor, or None if the wheel has none."""
    level = this_level()
    if level is None or os.environ.get("BNMC_KERNELS") == "none":
        return None
    folder = FOLDER / level
    return folder if folder.is_dir() else None


def carried() -> Carried | None:
    """Return what the wheel has for this processor, or None."""
    folder = used_folder()
    if folder is None:
        return None
    sizes = [path.stat().st_size for path in folder.glob("*.nbc")]
    return Carried(folder.name, len(sizes), sum(sizes))


@contextmanager
def recording(folder: Path) -> Iterator[None]:
    """Write every kernel that this process compiles meanwhile to `folder`, for a wheel."""
    folder.mkdir(parents=True, exist_ok=True)
    _recorded.append(folder)
    try:
        yield
    finally:
        _recorded.pop()


def recorded_to() -> Path | None:
    """Return the folder of `recording`, or None."""
    return _recorded[-1] if _recorded else None
