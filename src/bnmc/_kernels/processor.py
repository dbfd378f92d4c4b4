"""The processor for which this process compiles, and the kernels that a wheel carries for it.

A level is a set of instructions that the psABI of x86-64 defines.  Code for a level runs on every
processor that has these instructions.  A wheel carries compiled kernels for some levels, in the
folder `compiled` beside this file.  Kernels that no wheel carries are compiled for the processor
itself, or for the one that NUMBA_CPU_NAME and NUMBA_CPU_FEATURES name.

The environment variables BNMC_KERNELS=none and BNMC_PLAIN_NUMBA=1 make a process ignore the kernels
of the wheel.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable

import llvmlite.binding as llvm
from numba.core import config

#: Bytes of a cache line, and of the widest vectors.
LINE_BYTES = 64

_V3 = (
    "64bit cx8 fxsr mmx sse sse2 cmov cx16 sahf popcnt sse3 sse4.1 sse4.2 ssse3 avx avx2 bmi bmi2 "
    "f16c fma lzcnt movbe xsave"
)
_V4 = f"{_V3} avx512f avx512bw avx512cd avx512dq avx512vl"

#: The instructions that each level requires, by LLVM's names; the highest level comes last.
LEVELS = {"x86-64-v3": frozenset(_V3.split()), "x86-64-v4": frozenset(_V4.split())}

#: Numba's settings that change compiled code, by the names of its variables: with these values
#: they are not named.
_SETTINGS = {
    "OPT": 3, "DISABLE_JIT": 0, "LOOP_VECTORIZE": 1, "SLP_VECTORIZE": 0, "ENABLE_AVX": True,
    "USING_SVML": False, "DEBUGINFO_DEFAULT": 0,
}  # fmt: skip

#: Where a wheel has its compiled kernels, one folder a level.  An editable installation has none.
#: In a zip file it is no folder of the disk.
FOLDER: Traversable = resources.files("bnmc._kernels") / "compiled"


def cpu_name() -> str:
    """Return LLVM's name of the processor for which this process compiles."""
    return str(getattr(config, "CPU_NAME", None) or llvm.get_host_cpu_name())


def cpu_features() -> dict[str, bool]:
    """Return which instructions the processor has for which this process compiles."""
    given = getattr(config, "CPU_FEATURES", None)
    if given is None:
        return dict(llvm.get_host_cpu_features())
    return {name[1:]: name[0] == "+" for name in given.split(",") if name}


def feature_text(level: str) -> str:
    """Return the instructions of a level in the form of NUMBA_CPU_FEATURES."""
    return ",".join(f"+{name}" for name in sorted(LEVELS[level]))


def level_of(features: Mapping[str, bool]) -> str | None:
    """Return the highest level whose instructions a processor has, or None."""
    levels = [name for name, needed in LEVELS.items() if all(map(features.get, needed))]
    return levels[-1] if levels else None


def settings() -> tuple[str, ...]:
    """Return Numba's settings that change compiled code and differ from its usual ones."""
    values = {name: getattr(config, name, usual) for name, usual in _SETTINGS.items()}
    values["OPT"] = getattr(values["OPT"], "_raw_value", values["OPT"])  # "max" counts as 3, too
    return tuple(
        f"NUMBA_{name}={value}" for name, value in values.items() if value != _SETTINGS[name]
    )


@cache
def wheel_folder() -> Traversable | None:
    """Return the folder of the wheel's kernels for this processor, or None if there is none."""
    level = level_of(cpu_features())
    ignored = os.environ.get("BNMC_KERNELS") == "none", os.environ.get("BNMC_PLAIN_NUMBA") == "1"
    if level is None or any(ignored):
        return None
    folder = FOLDER / level
    return folder if folder.is_dir() else None


@cache
def processor() -> str:
    """Return name and features of the processor for which this process compiles, as one word."""
    features = [name for name, on in sorted(cpu_features().items()) if on]
    return f"{cpu_name()}-{hashlib.sha256(','.join(features).encode()).hexdigest()[:8]}"


def host_cpu() -> str:
    """Return what compiled code depends on as one line.

    That is name and features of the processor, and unusual settings of Numba, with which no kernels
    come from a wheel.  If some do, it is the level: all processors of a level have the same bits.
    """
    folder, unusual = wheel_folder(), settings()
    if folder is None or unusual:
        return "; ".join([processor(), *unusual])
    # Kernels that the wheel lacks have the vectors of the processor.
    is_wider = cpu_features().get("avx512f", False) and "avx512f" not in LEVELS[folder.name]
    name = processor() if is_wider else "wheel"
    return f"{name}+{folder.name}"
