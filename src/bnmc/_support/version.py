"""The version of this package, and of the packages that compute values."""

from __future__ import annotations

import platform
from functools import cache

__version__ = "0.2.0"


@cache
def versions() -> str:
    """Return the versions of Python and of the packages on which the bits of a run depend."""
    import llvmlite
    import numba
    import numpy as np
    import scipy

    # Versions 3.11.2 and 3.11.9 of Python have the same bytecode.
    python = ".".join(platform.python_version_tuple()[:2])
    named = [f"{module.__name__} {module.__version__}" for module in (numba, llvmlite, np, scipy)]
    return ", ".join([f"Python {python}", *named])
