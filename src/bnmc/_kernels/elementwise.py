"""An activation applied to an array, outside of any chain."""

from __future__ import annotations

from bnmc._kernels.core import activations, elementary
from bnmc._kernels.jit import activate, inline_module, kernel

# Activations too, so that functions of the user's may call `Activation.scalar` of one.
for module in (elementary, activations):
    inline_module(module)


@kernel
def apply(sigma, values):
    """Replace each of the 1-d `values` by the activation `sigma` of it."""
    for i in range(values.size):
        values[i] = activate(sigma, values[i])
