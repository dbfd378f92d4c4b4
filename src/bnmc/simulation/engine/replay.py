"""Any layer of a chain again, from the counters of its random numbers.

A run keeps Gram matrices and no rows.  All random numbers are addressed by key, chain, layer, row
and element, so the rows of a layer can be made again, as often as needed, from the state before it;
and its weights from the key alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bnmc._kernels.cpu import layers, memory, numbers
from bnmc._kernels.cpu import rows as rows_kernels
from bnmc._kernels.scalar import codes
from bnmc.chain.activations import Activation
from bnmc.chain.chain import Chain
from bnmc.chain.compiled import sigma_of
from bnmc.chain.needs import ROWS_ALONE, require
from bnmc.errors import ZeroVarianceError
from bnmc.simulation.engine.conditional import ConditionalSampler
from bnmc.simulation.engine.rows import RowSampler
from bnmc.simulation.engine.sampler import FloatArray
from bnmc.simulation.engine.state import State
from bnmc.simulation.engine.weights import WeightsSampler

__all__ = ["Replay", "biases_of_layer", "unit_weights_of_layer", "weights_of_layer"]


class Replay:
    """The layer after a state, made again.

    Parameters
    ----------
    state : State
        Of the sampler "conditional" or "weights".

    Raises
    ------
    ArgumentError
        If layers are not row by row.
    """

    def __init__(self, state: State) -> None:
        require(state.chain, ROWS_ALONE, "the rows of other layers are not made again")
        kind = WeightsSampler if state.path == WeightsSampler.path else ConditionalSampler
        self.sampler = kind(state.chain, state.chains, state.inputs, state.dtype, state.key)
        self.sampler.take(state)
        self.layer = state.layer + 1

    def representation(self, index: int) -> FloatArray:
        """Return x = N(skip x + gain W a) of one chain, (columns, width).

        Without normalization, numbers beyond the range of the dtype are infinite or zero.

        Raises
        ------
        ZeroVarianceError
            If a row of h has no variance.
        """
        sampler = self.sampler
        if isinstance(sampler, WeightsSampler):
            out = _room(sampler, sampler.dtype)
            degenerate = self._multiplied(sampler, index, out)
        else:
            out, degenerate = _drawn(sampler, index, self.layer, sampler.spec)
        if degenerate >= 0:
            raise ZeroVarianceError(index, self.layer, degenerate)
        rows = out[:, : sampler.chain.width]
        if sampler.is_scaled:
            by = np.clip(sampler.exponents[index] + sampler.lift, -5000, 5000).astype(np.int32)
            with np.errstate(over="ignore"):
                np.ldexp(rows, by[:, None], out=rows)
        return rows

    def _multiplied(self, sampler: WeightsSampler, index: int, out: FloatArray) -> int:
        """Write the representation by weights; return a row without variance, or -1."""
        a, x = sampler.factors(index, self.layer), sampler.rows_of_x(index).copy()
        draw = sampler.addressed(self.layer, codes.STREAM_WEIGHTS, index)
        sums = np.zeros((sampler.panels, sampler.work().sums.size))
        given_panel = sampler.given_panels(index, self.layer)
        for panel in range(sampler.panels):
            degenerate: int = layers.multiply_panels(
                _identity(sampler.dtype), sampler.spec, sampler.weight_code,
                given_panel(panel), a, x, out, panel, panel + 1, sampler.panel, draw,
                sampler.work(), sums,
            )  # fmt: skip
            if degenerate >= 0:
                return degenerate
        return -1


def _drawn(
    sampler: ConditionalSampler, index: int, layer: int, spec: codes.LayerSpec
) -> tuple[FloatArray, int]:
    """Return all rows of N(h), normalized as `law` says, and a row without variance or -1.

    The kernels of a run keep the activations of rows.  With the identity as activation these are
    the rows themselves, with the bits that they had in the run.
    """
    dtype, draw, work = sampler.factorised(index, layer)
    out = _room(sampler, dtype)
    x = sampler.rows_of_x(index, dtype).copy()
    sums = np.zeros((sampler.panels, work.sums.size))
    degenerate: int = layers.draw_panels(
        _identity(dtype), spec, x, out, 0, sampler.panels, sampler.panel, draw, work, sums
    )
    return out, degenerate


def _room(sampler: RowSampler, dtype: np.dtype[Any]) -> FloatArray:
    """Return an array for all rows of one chain, (columns, width up to whole blocks)."""
    return memory.aligned_zeros((sampler.columns, memory.stride(sampler.chain.width)), dtype)


def _identity(dtype: np.dtype[Any]) -> Any:
    """Return the identity as kernels take an activation."""
    return rows_kernels.activation(sigma_of(Activation.named("linear")), dtype.name)


def weights_of_layer(
    chain: Chain, inputs: int | None, dtype: str, key: int, index: int, layer: int
) -> FloatArray:
    """Return the weights W of a layer of one chain of the sampler "weights", (width, width).

    Those of a convolution are (channels, channels, height, width), output channel first.
    """
    weights = unit_weights_of_layer(chain, inputs, dtype, key, index, layer)
    weights /= np.sqrt(weights.dtype.type(chain.fan_in))
    if chain.convolution is None:
        return weights
    taps = weights.reshape(chain.width, *chain.convolution.kernel, chain.width)
    return np.ascontiguousarray(taps.transpose(0, 3, 1, 2))


def unit_weights_of_layer(
    chain: Chain, inputs: int | None, dtype: str, key: int, index: int, layer: int
) -> FloatArray:
    """Return the weights W with entries of variance 1, (width, weights of a row)."""
    sampler = WeightsSampler(chain, 1, inputs, dtype, key, index)
    width, length = chain.width, chain.fan_in
    weights = np.zeros((width, length), sampler.dtype)
    draw = sampler.addressed(layer, codes.STREAM_WEIGHTS, 0)
    tile = sampler.work().tile
    given_panel = sampler.given_panels(0, layer)
    for panel, first in enumerate(range(0, width, sampler.panel)):
        given = given_panel(panel)
        for row in range(first, min(first + sampler.panel, width), numbers.BLOCK):
            for column in range(0, length, numbers.TILE):
                part = weights[row : row + numbers.BLOCK, column : column + numbers.TILE]
                rows, columns = part.shape
                numbers.fill_weights(
                    sampler.weight_code, given, tile, column, columns, row, numbers.BLOCK, draw
                )
                part[:] = tile.reshape(numbers.TILE, numbers.STRIDE)[:columns, :rows].T
    return weights


def biases_of_layer(
    chain: Chain, inputs: int | None, dtype: str, key: int, index: int, layer: int
) -> FloatArray:
    """Return the biases of a layer of one chain of the sampler "weights", (width,)."""
    sampler = WeightsSampler(chain, 1, inputs, dtype, key, index)
    width, tile = chain.width, sampler.work().tile
    unit = np.zeros(memory.stride(width), sampler.dtype)
    draw = sampler.addressed(layer, codes.STREAM_WEIGHTS, 0)
    fill = numbers.fill_uniforms if chain.weight_law.uniform_bias else numbers.fill_normals
    for row in range(0, width, numbers.BLOCK):
        fill(tile, 0, chain.fan_in, 1, row, numbers.BLOCK, draw)
        unit[row : row + numbers.BLOCK] = tile[: numbers.BLOCK]
    biases: FloatArray = unit[:width] * sampler.dtype.type(np.sqrt(chain.bias_variance))
    return biases
