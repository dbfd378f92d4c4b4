"""Layers that are not row by row: norms over the features, and other orders of norm and activation.

`Chain.is_row_by_row` tells which layers these are.  The kernels are those of `_kernels.cpu.passes`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnmc._kernels.cpu import memory, numbers, passes
from bnmc._kernels.scalar import codes
from bnmc.chain.chain import Chain
from bnmc.chain.compiled import raise_stopped, spec_of

__all__ = ["Passes"]


class Passes:
    """The passes over the rows of a layer, and their buffers.

    Parameters
    ----------
    chain : Chain
    columns : int
        Number of samples in all input batches.
    panel, panels : int
        Rows of a panel, and number of panels.
    keeps_a : bool
        Whether the sampler has arrays for the activations of all rows, which then hold the rows
        between the passes.
    """

    def __init__(
        self, chain: Chain, columns: int, panel: int, panels: int, *, keeps_a: bool
    ) -> None:
        self.spec = spec_of(chain)
        self.panel = panel
        self._sizes = chain.width, columns, panels, self.spec.groups
        self._keeps_a = keeps_a
        self._buffers = threading.local()

    def room(self, dtype: np.dtype[Any]) -> passes.Room:
        """Return the buffers of the calling thread for rows of a dtype."""
        if not hasattr(self._buffers, dtype.name):
            room = passes.room(*self._sizes, dtype, keeps_rows=not self._keeps_a)
            setattr(self._buffers, dtype.name, room)
        found: passes.Room = getattr(self._buffers, dtype.name)
        return found

    def drawn(self, dtype: np.dtype[Any], variance: float = 0.0) -> Callable[..., None]:
        """Return the kernel that draws layers, as `layers.conditional_layers` does.

        `variance`, that of the bias over the square of the gain, is added to Gram matrices.
        """
        return partial(self._layers(passes.drawn_layers, dtype), variance)

    def multiplied(self, dtype: np.dtype[Any]) -> Callable[..., None]:
        """Return the kernel that multiplies by weights, as `layers.weighted_layers` does."""
        return self._layers(passes.multiplied_layers, dtype)

    def _layers(self, kernel: Any, dtype: np.dtype[Any]) -> Callable[..., None]:
        _, columns, panels, _ = self._sizes
        sums = np.zeros((panels, memory.tile_sums(columns)))
        return partial(kernel, self.room(dtype), sums)

    def merge(
        self, spec: codes.LayerSpec, work: numbers.Work, room: passes.Room, chain: int, layer: int
    ) -> None:
        """End the first pass, whose panels threads have shared.

        Raises
        ------
        ZeroVarianceError, NonFiniteError
            About the chain and the layer of these numbers.
        """
        if self.spec.groups:
            event, place = passes.merge_moments(spec, self.panel, work.block, room)
            if event != codes.RUNNING:
                raise_stopped(event, chain, layer, place)

    def finish(
        self,
        sigma: Any,
        spec: codes.LayerSpec,
        x: NDArray[Any],
        kept: NDArray[Any],
        hidden: NDArray[Any],
        panels: tuple[int, int],
        draw: codes.Draw,
        work: numbers.Work,
        room: passes.Room,
        panel_sums: NDArray[np.floating[Any]],
    ) -> int:
        """Make a range of panels in the second pass; return a row without variance, or -1."""
        degenerate: int = passes.finish_panels(
            sigma, spec, x, kept, hidden, *panels, self.panel, draw, work, room,
            panel_sums,
        )  # fmt: skip
        return degenerate
