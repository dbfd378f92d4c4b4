"""An activation applied to an array, outside of any chain."""

from __future__ import annotations

from bnmc._kernels.core import elementary
from bnmc._kernels.jit import activate, inline_module, kernel

inline_module(elementary)


@kernel
def apply(sigma, values):
    """Replace each of the 1-d `values` by the activation `sigma` of it."""
    for i in range(values.size):
        values[i] = activate(sigma, values[i])
