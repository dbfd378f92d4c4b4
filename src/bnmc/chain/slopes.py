"""An activation and its derivative, as arguments of kernels."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bnmc._kernels.compiling import Sigma
from bnmc._kernels.cpu.elementwise import apply
from bnmc._kernels.scalar.slopes import SLOPES
from bnmc.chain.activations import Activation
from bnmc.errors import ArgumentError


def sigma_of(activation: Activation) -> Sigma:
    """Return the activation as an argument of kernels."""
    sigma = Sigma.by_digest.get(activation.digest)
    if sigma is None:
        functions = {name: activation.scalar(name) for name in ("float32", "float64")}
        sigma = Sigma(activation.digest, functions)
    return sigma


def require_derivative(activation: Activation) -> None:
    """Raise unless the derivative of an activation is known and agrees with differences.

    Raises
    ------
    ArgumentError
        If a function has no derivative, or another one.
    """
    if activation.builtin:
        return
    if activation.derivative is None:
        raise ArgumentError(
            "activation", activation.name, "a named activation, or one with its derivative",
            "bnmc.Activation(function, derivative=...)",
        )  # fmt: skip
    activation.check_derivative()


def slope_of(activation: Activation) -> Sigma:
    """Return the derivative of an activation that `require_derivative` accepts."""
    if activation.derivative is not None:
        return sigma_of(activation.derivative)
    # No function of Python has this digest, as digests of functions are hexadecimal.
    digest = f"slope of {activation.name}"
    if digest not in Sigma.by_digest:
        single, double = SLOPES[activation.name]
        Sigma(digest, {"float32": single, "float64": double})
    return Sigma.by_digest[digest]


def slope_at(activation: Activation, x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the derivative of an activation that `require_derivative` accepts, at every entry."""
    values = np.array(x, np.float64, order="C")
    apply(slope_of(activation), values.reshape(-1))
    return values
