"""The build backend: Hatchling, with the option `kernels`.

`python -m build` makes a wheel that carries compiled kernels if this machine can compile and run
them: Linux, x86-64, AVX2.  Elsewhere the wheel is pure.  The option `-Ckernels=none` always makes a
pure wheel, and `-Ckernels=compiled` raises an error if the wheel would be pure.  The environment
variable BNMC_KERNELS, with the same values, sets the default.  Editable installations never carry
kernels.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# pip reads the version that pyproject.toml requires after it has called this file.
if sys.version_info < (3, 11):  # noqa: UP036
    raise SystemExit(f"bnmc needs Python >= 3.11, and this is Python {platform.python_version()}")

from hatchling import build as hatchling
from hatchling.build import (
    build_editable,
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
]

ROOT = Path(__file__).parents[1]
VALUES = ("none", "compiled")


def chosen(settings: Mapping[str, Any] | None) -> str:
    """Return "none" or "compiled"."""
    value = (settings or {}).get("kernels") or os.environ.get("BNMC_KERNELS")
    if value is None:
        return "compiled" if can_compile() else "none"
    if value not in VALUES:
        raise SystemExit(f"kernels = {value!r}, but must be one of: {', '.join(VALUES)}")
    if value == "compiled" and not can_compile():
        raise SystemExit("kernels = 'compiled', but this machine is no Linux on x86-64 with AVX2")
    return str(value)


def can_compile() -> bool:
    """Return whether this machine can compile kernels for wheels, and run them."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    flags = Path("/proc/cpuinfo").read_text().split()
    return {"avx2", "fma", "bmi2", "f16c"} <= set(flags)


def get_requires_for_build_wheel(config_settings: dict[str, Any] | None = None) -> list[str]:
    """Return what the build needs; compiling needs the package's own dependencies."""
    needed: list[str] = hatchling.get_requires_for_build_wheel(config_settings)
    if chosen(config_settings) == "compiled":
        import tomllib

        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        needed = [*needed, *project["dependencies"]]
    return needed


def build_wheel(
    wheel_directory: str,
    config_settings: dict[str, Any] | None = None,
    metadata_directory: str | None = None,
) -> str:
    """Build a wheel; `hatch_hook.py` reads the choice from the environment."""
    with environment("BNMC_KERNELS", chosen(config_settings)):
        made: str = hatchling.build_wheel(wheel_directory, config_settings, metadata_directory)
    return made


@contextmanager
def environment(name: str, value: str) -> Iterator[None]:
    """Set a variable of the environment meanwhile."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
