"""A sampler for norms over the features, which need several passes over the rows of a layer.

A norm over the batch acts on each row alone, so a row is drawn, normalized, activated and added to
the next Gram matrix at once.  A norm over the features needs sums over all rows before any row can
be activated.  The rows are not kept: each pass draws them again from the same counters.
"""

from __future__ import annotations

from concurrent.futures import Executor

import numpy as np
from numpy.typing import NDArray

from bnmc._kernels.scalar.codes import Law
from bnmc.chain.compiled import law_of_start
from bnmc.chain.start import Covariance
from bnmc.errors import NonFiniteError
from bnmc.simulation.engine.conditional import ConditionalSampler
from bnmc.simulation.engine.replay import hidden_panels
from bnmc.simulation.engine.state import Frames

__all__ = ["PassesSampler"]


class PassesSampler(ConditionalSampler):
    """Draws each layer given the Gram matrix of the one before, in two passes over its rows."""

    path = "passes"

    def advance(
        self, first: int, last: int, layer: int, slots: NDArray[np.int64], frames: Frames
    ) -> None:
        for index in range(first, last):
            for step, slot in enumerate(slots):
                self._one_layer_by_passes(index, layer + step, self.law)
                if slot >= 0:
                    frames.gram[index, slot] = self.grams[index]

    def advance_together(
        self, executor: Executor, threads: int, layer: int, slots: NDArray[np.int64], frames: Frames
    ) -> None:
        self.advance(0, self.chains, layer, slots, frames)

    def _draw_start(self, start: Covariance, first: int, last: int) -> None:
        self.grams[first:last] = start.matrix
        for index in range(first, last):
            self._one_layer_by_passes(index, 0, law_of_start(self.law))

    def _one_layer_by_passes(self, index: int, layer: int, law: Law) -> None:
        """Replace the Gram matrix of one chain by that of its next layer."""
        chain = self.chain
        norm, groups = chain.normalization, chain.normalization.groups
        self.grams[index] = chain.covariance(self.grams[index])
        sums = np.zeros((2, groups, self.columns))
        for first, h in hidden_panels(self, index, layer, law):
            norm.add_sums(h.T, first, chain.width, sums)
        gram = np.zeros((self.columns, self.columns))
        for first, h in hidden_panels(self, index, layer, law):
            x = norm.over_features(h.T, first, chain.width, sums, chain.eps)
            if chain.skip != 0.0:
                self.xs[index, :, first : first + len(x)] = x.T
            a = np.asarray(chain.activation(x), np.float64)
            gram += a.T @ a
        self.grams[index] = gram / chain.width
        if not np.isfinite(gram).all():
            raise NonFiniteError(self.offset + index, layer, "Gram matrix")
