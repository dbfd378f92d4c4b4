"""The levels of x86-64 processors for which a wheel carries compiled kernels.

A level is a set of instructions that the psABI of x86-64 defines.  Code for a level runs on every
processor that has these instructions.  Kernels that no wheel carries are compiled for the processor
itself, or for the one that NUMBA_CPU_NAME and NUMBA_CPU_FEATURES name.
"""

from __future__ import annotations

from collections.abc import Mapping

import llvmlite.binding as llvm
from numba.core import config

__all__ = ["LEVELS", "cpu_features", "cpu_name", "feature_text", "level_of", "this_level"]

_V3 = (
    "64bit cx8 fxsr mmx sse sse2 cmov cx16 sahf popcnt sse3 sse4.1 sse4.2 ssse3 avx avx2 bmi bmi2 "
    "f16c fma lzcnt movbe xsave"
)
_V4 = f"{_V3} avx512f avx512bw avx512cd avx512dq avx512vl"

#: The instructions that each level requires, by LLVM's names; the highest level comes last.
LEVELS = {"x86-64-v3": frozenset(_V3.split()), "x86-64-v4": frozenset(_V4.split())}


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
    found = [name for name, needed in LEVELS.items() if all(features.get(one) for one in needed)]
    return found[-1] if found else None


def this_level() -> str | None:
    """Return the highest level of the processor for which this process compiles, or None."""
    return level_of(cpu_features())
