"""Any layer of a chain again, from the counters of its random numbers.

A run keeps Gram matrices and no rows.  All random numbers are addressed by key, chain, layer, row
and element, so the rows of a layer can be made again, as often as needed, from the state before it;
and its weights from the key alone.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from bnmc._kernels.cpu import memory, numbers
from bnmc._kernels.cpu import replay as kernels
from bnmc._kernels.scalar import codes
from bnmc.chain.chain import Chain
from bnmc.errors import ZeroVarianceError
from bnmc.simulation.engine.conditional import ConditionalSampler
from bnmc.simulation.engine.sampler import FloatArray
from bnmc.simulation.engine.state import State
from bnmc.simulation.engine.weights import WeightsSampler

__all__ = ["Replay", "hidden_panels", "weights_of_layer"]


class Replay:
    """The layer after a state, made again.

    Parameters
    ----------
    state : State
        Of the sampler "conditional" or "weights".
    """

    def __init__(self, state: State) -> None:
        kind = WeightsSampler if state.path == WeightsSampler.path else ConditionalSampler
        self.sampler = kind(state.chain, state.chains, state.inputs, state.dtype, state.key)
        self.sampler.take(state)
        self.layer = state.layer + 1

    def representation(self, index: int) -> FloatArray:
        """Return x = N(skip x + gain W a) of one chain, (columns, width).

        Raises
        ------
        ZeroVarianceError
            If a row of h has no variance.
        """
        sampler, width = self.sampler, self.sampler.chain.width
        out = memory.aligned_zeros((sampler.columns, memory.stride(width)), sampler.dtype)
        if isinstance(sampler, WeightsSampler):
            degenerate = self._multiplied(sampler, index, out)
        else:
            dtype, draw, work = sampler.factorised(index, self.layer)
            out = out.astype(dtype, copy=False)
            x = sampler.rows_of_x(index, dtype)
            degenerate = kernels.drawn_representation(sampler.law, x, draw, work, out)
        if degenerate >= 0:
            raise ZeroVarianceError(index, self.layer, degenerate)
        return out[:, :width]

    def _multiplied(self, sampler: WeightsSampler, index: int, out: FloatArray) -> int:
        """Write the representation by weights; return a row without variance, or -1."""
        a, x = sampler.activations[index, (self.layer + 1) % 2], sampler.rows_of_x(index)
        draw = sampler.addressed(self.layer, codes.STREAM_WEIGHTS, index)
        for panel, first in enumerate(range(0, sampler.chain.width, sampler.panel)):
            last = min(first + sampler.panel, sampler.chain.width)
            degenerate: int = kernels.multiplied_representation(
                sampler.law, sampler.weight_code, sampler.given(index, self.layer, panel), first,
                last, a, x, draw, sampler.work(), out,
            )  # fmt: skip
            if degenerate >= 0:
                return degenerate
        return -1


def hidden_panels(
    sampler: ConditionalSampler, index: int, layer: int
) -> Iterator[tuple[int, NDArray[np.floating]]]:
    """Yield first row and h = skip x + gain W a, (columns, rows), of each panel of a layer.

    Every call yields the same rows: a layer can be made in several passes over them.

    Parameters
    ----------
    sampler : ConditionalSampler
        Whose state is that of layer - 1.
    index : int
        Which of its chains.
    layer : int
    """
    dtype, draw, work = sampler.factorised(index, layer)
    x = sampler.rows_of_x(index, dtype)
    for first in range(0, sampler.chain.width, sampler.panel):
        last = min(first + sampler.panel, sampler.chain.width)
        out = np.zeros((sampler.columns, memory.stride(last - first)), dtype)
        kernels.drawn_rows(sampler.law, x, first, last, draw, work, out)
        yield first, out[:, : last - first]


def weights_of_layer(
    chain: Chain, inputs: int | None, dtype: str, key: int, index: int, layer: int
) -> FloatArray:
    """Return the weights W of a layer of one chain of the sampler "weights", (width, width)."""
    sampler = WeightsSampler(chain, 1, inputs, dtype, key, index)
    width = chain.width
    weights = np.zeros((width, width), sampler.dtype)
    draw = sampler.addressed(layer, codes.STREAM_WEIGHTS, 0)
    tile = sampler.work().tile
    for panel, first in enumerate(range(0, width, sampler.panel)):
        given = sampler.given(0, layer, panel)
        for row in range(first, min(first + sampler.panel, width), numbers.BLOCK):
            for column in range(0, width, numbers.TILE):
                part = weights[row : row + numbers.BLOCK, column : column + numbers.TILE]
                rows, columns = part.shape
                numbers.fill_weights(
                    sampler.weight_code, given, tile, column, columns, row, numbers.BLOCK, draw
                )
                part[:] = tile.reshape(numbers.TILE, numbers.BLOCK)[:columns, :rows].T
    weights /= np.sqrt(sampler.dtype.type(width))
    return weights
