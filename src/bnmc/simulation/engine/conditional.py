"""The conditional sampler: rows given the Gram matrix of the layer before, and no weights."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnmc._kernels.cpu import orthogonal, sources
from bnmc._kernels.scalar import codes
from bnmc.chain.chain import Chain
from bnmc.simulation.engine.rows import RowSampler


class ConditionalSampler(RowSampler):
    """Draws each layer given the Gram matrix of the one before; no weights exist."""

    name = path = "conditional"

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        arrays = {"gram": self.grams, "wide": self.wide, **self.precision_arrays}
        return {**arrays, "x": self.xs} if self.chain.skip != 0.0 else arrays

    @staticmethod
    def seconds(chain: Chain, columns: int, dtype: np.dtype[Any]) -> float:
        each = (0.6e-9 + 4e-11 * columns) * dtype.itemsize / 4
        # Orthogonal weights, and norms over the features, take a second pass over the rows.
        each *= 1.7 if chain.is_orthogonal or not chain.normalization.acts_on_rows else 1.0
        of_matrix = 4e-10 + 2e-11 * columns
        if chain.convolution is not None:  # the averages over taps
            of_matrix += 0.6e-9 * sum(chain.convolution.kernel)
        return 1e-6 + chain.width * columns * each + columns**2 * of_matrix

    def source(self, dtype: np.dtype[Any]) -> Any:
        if not self.chain.is_orthogonal:
            return self._drawn(self.chain.convolution)
        frame = self.buffer(
            f"{dtype.name} frame", lambda: orthogonal.frame(self.columns, dtype, self.panels)
        )
        return sources.Haar(codes.STREAM_ROWS, frame)
