"""Weights that no kernel draws: those of the user's samplers, and orthogonal matrices."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from bnmc._kernels.cpu.layers import panels_of as panels_of_layer
from bnmc._kernels.scalar.codes import GIVEN
from bnmc._support.arguments import host_array
from bnmc.chain.layers import Linear
from bnmc.errors import ArgumentError, ArgumentTypeError
from bnmc.simulation.engine.state import FloatArray
from bnmc.simulation.runs import Run


def panels_of(run: Run, index: int, layer: int) -> Callable[[int], FloatArray]:
    """Return a function of a panel that returns its unit-variance weights, (panel, fan_in).

    The generators depend on key, chain, layer and panel alone.
    """
    linear, spec = run.layer(layer).linear, run.spec(layer)

    def generator(panel: int) -> np.random.Generator:
        counter = [0, panel, layer, run.first + index]
        return np.random.Generator(np.random.Philox(key=run.key, counter=counter))

    if linear.law.is_orthogonal:
        # The rows of a matrix depend on each other.
        shape, count = (linear.width, linear.fan_in), panels_of_layer(spec)
        matrix = np.zeros((count * spec.panel, linear.fan_in), run.dtype)
        matrix[: linear.width] = linear.law.entries(generator(0), shape)
        panels = matrix.reshape(count, spec.panel, linear.fan_in)
        return lambda panel: panels[panel]

    def given(panel: int) -> FloatArray:
        weights = np.zeros((spec.panel, linear.fan_in), run.dtype)
        rows = min(spec.panel, linear.width - panel * spec.panel)
        weights[:rows] = _by_user(linear, generator(panel), rows)
        return weights

    return given


def bytes_of_layer(run: Run) -> int:
    """Return the bytes that a thread takes for the weights of a layer that no kernel draws."""
    linear, spec = run.layers[-1].linear, run.specs[-1]
    if run.path != "weights" or linear.law.code != GIVEN:
        return 0
    if linear.law.is_orthogonal:
        # Normals, the factorization with its work space, and the matrix.
        return 8 * 5 * linear.width * (linear.width + spec.panel)
    # The user's array, and the panel in the precision of the rows.
    return (8 + np.dtype(run.dtype).itemsize) * spec.panel * linear.fan_in


def _by_user(linear: Linear, generator: np.random.Generator, rows: int) -> FloatArray:
    """Return rows of weights by the user's sampler, or raise."""
    shape = rows, linear.fan_in
    returned = linear.law.entries(generator, shape)
    allowed = f"a sampler of real numbers of shape {shape}"
    try:
        entries: FloatArray = host_array("weights", returned, allowed)
    except ArgumentTypeError as error:  # ragged, or masked
        raise ArgumentError("weights", returned, allowed, str(error)) from None
    if entries.shape != shape or entries.dtype.kind not in "fiu":
        got = f"{entries.dtype} of shape {entries.shape}"
        raise ArgumentError("weights", got, f"real numbers of shape {shape}")
    if not np.isfinite(entries).all():
        raise ArgumentError("weights", "a sample that is not finite", "finite real numbers")
    return entries
