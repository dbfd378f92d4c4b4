"""Losses, and the steps of optimizers."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from bnmc._support.arguments import Float64Array
from bnmc.training.weights import padded

#: Coefficients of the odd polynomial of degree 5 of Muon (Jordan et al., 2024), and its steps.
_QUINTIC, _STEPS = (3.4445, -4.7750, 2.0315), 5

#: Muon divides shorter gradients by this length, as PyTorch does.
_SHORTEST = 1e-7


def cross_entropy(outputs: Float64Array, targets: Float64Array) -> tuple[float, Float64Array]:
    """Return −mean over samples of Σ_c target_c ln softmax(f)_c, and its gradient."""
    shifted = outputs - outputs.max(axis=1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    mass = targets.sum(axis=1, keepdims=True)
    value = -float((targets * logs).sum()) / len(outputs)
    return value, (mass * np.exp(logs) - targets) / len(outputs)


def squared(outputs: Float64Array, targets: Float64Array) -> tuple[float, Float64Array]:
    """Return the mean over samples of ‖f − target‖²/2, and its gradient."""
    error = outputs - targets
    return 0.5 * float(np.square(error).sum()) / len(outputs), error / len(outputs)


Loss = Callable[[Float64Array, Float64Array], tuple[float, Float64Array]]
LOSSES: dict[str, Loss] = {"cross-entropy": cross_entropy, "squared": squared}


class Descent(NamedTuple):
    """The settings of an optimizer.

    Attributes
    ----------
    rate, momentum, decay : float
        η, μ and λ.
    """

    rate: float
    momentum: float
    decay: float

    def sgd(
        self, value: Float64Array, velocity: Float64Array, gradient: Float64Array, factor: float
    ) -> tuple[Float64Array, Float64Array]:
        """Return value and velocity after a step of gradient descent.

        v ← μ v + factor · gradient + λ W and W ← W − η v: the factor of the learning rate of a
        matrix multiplies its gradient and not its decay.
        """
        value, velocity = padded(value, gradient.shape), padded(velocity, gradient.shape)
        velocity = self.momentum * velocity + factor * gradient + self.decay * value
        return value - self.rate * velocity, velocity

    def muon(
        self, value: Float64Array, velocity: Float64Array, gradient: Float64Array, factor: float
    ) -> tuple[Float64Array, Float64Array]:
        """Return value and velocity after a step of Muon, with Nesterov's momentum.

        v ← μ v + gradient and W ← (1 − η λ) W − η · factor · p(gradient + μ v), p the odd
        polynomial that brings singular values near 1.
        """
        value, velocity = padded(value, gradient.shape), padded(velocity, gradient.shape)
        velocity = self.momentum * velocity + gradient
        moved = _nearly_orthogonal(gradient + self.momentum * velocity)
        decayed = (1.0 - self.rate * self.decay) * value
        return decayed - self.rate * factor * moved, velocity


def _nearly_orthogonal(matrix: Float64Array) -> Float64Array:
    """Return five steps of Newton and Schulz's iteration with the coefficients of Muon.

    The iteration is an odd polynomial, so in coordinates of orthonormal bases it is that of the
    matrix itself.
    """
    a, b, c = _QUINTIC
    x = matrix.T if len(matrix) > matrix.shape[1] else matrix
    x = x / max(float(np.linalg.norm(x)), _SHORTEST)
    for _ in range(_STEPS):
        square = x @ x.T
        x = a * x + (b * square + c * square @ square) @ x
    return x.T if len(matrix) > matrix.shape[1] else x
