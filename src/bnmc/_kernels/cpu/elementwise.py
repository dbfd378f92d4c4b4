"""An activation applied to an array, outside of any chain."""

from __future__ import annotations

from bnmc._kernels.compiling import activate, inline_module, kernel
from bnmc._kernels.scalar import activations, elementary

# Activations too: a user's function may call `Activation.scalar` of a named one.
for module in (elementary, activations):
    inline_module(module)


@kernel
def apply(sigma, values):
    """Replace each of the 1-d `values` by the activation `sigma` of it."""
    for i in range(values.size):
        values[i] = activate(sigma, values[i])
