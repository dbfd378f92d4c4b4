"""The sampler of linear chains without normalization, whose cost does not depend on the width."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bnmc._kernels.cpu import memory, wishart
from bnmc._kernels.scalar.codes import Draw
from bnmc.chain.start import Representation, Start
from bnmc.simulation.engine.sampler import Sampler
from bnmc.simulation.engine.state import FloatArray, Frames
from bnmc.simulation.engine.threads import Threads


class FactorSampler(Sampler):
    """Multiplies triangular Wishart factors, for linear chains without normalization."""

    def _allocate(self) -> None:
        super()._allocate()
        # Matrices are small, so they are float64 for every dtype.
        self.dtype = np.dtype(np.float64)
        self.factors, self.exponents = self._arrays["factor"], self._arrays["exponent"]
        self.log_starts = self._arrays["log_start"]

    def begin(self, start: Start, first: int, last: int, frames: Frames) -> None:
        units = np.broadcast_to(start.exponents, (len(start.exponents), self.columns))
        # All samples share one unit here, the largest.
        largest = units.max(axis=1, keepdims=True)
        shares = np.ldexp(1.0, np.maximum(units - largest, -2000).astype(np.int32))
        part = slice(first, last) if len(largest) > 1 else slice(1)
        self.log_starts[first:last] = 2.0 * np.log(2.0) * largest[part, 0]
        if isinstance(start, Representation):
            for index in range(first, last):
                at = 0 if len(start.a) == 1 else index
                a = start.a[at] * shares[0 if len(shares) == 1 else index]
                self.factors[index] = _triangular_factor(a / np.sqrt(self.spec.width))
            slots = np.zeros(0, np.int64)
        else:
            self.factors[first:last] = _root_of(start.matrix) * shares[0]
            # Layer 0 is drawn: its Gram matrix is W^T W / width with W a Wishart factor, and
            # gain 1.
            self.log_starts[first:last] -= np.log(self.spec.width)
            slots = np.full(1, -1)
        self.advance(first, last, 0, slots, frames)
        self._record(first, last, 0, frames)

    def record(self, frames: Frames) -> None:
        self._record(0, self.chains, self.layer, frames)

    def _record(self, first: int, last: int, layer: int, frames: Frames) -> None:
        record = wishart.Record(frames.gram, frames.log_scale, frames.log_pivots)
        for index in range(first, last):
            common = wishart.log_of_factors(self.spec, self.log_starts[index], layer)
            wishart.write_factor(
                self.factors[index], self.exponents[index], common, record, index, 0
            )

    def advance(
        self,
        first: int,
        last: int,
        layer: int,
        slots: NDArray[np.int64],
        frames: Frames,
        threads: Threads | None = None,
    ) -> None:
        part = slice(first, last)
        wishart.factor_layers(
            self.spec,
            wishart.Factors(self.factors[part], self.exponents[part], self.log_starts[part]),
            Draw(layer, np.uint32(self.offset + first), *self.key_words),
            slots,
            wishart.Record(frames.gram[part], frames.log_scale[part], frames.log_pivots[part]),
            self.work(),
        )


def _triangular_factor(a: FloatArray) -> NDArray[np.float64]:
    """Return the square upper triangular R with RᵀR = aᵀa and a diagonal that is not negative."""
    factor = np.zeros((a.shape[1], a.shape[1]))
    wishart.triangularise(np.array(a.T, dtype=np.float64, order="C"), factor)
    return factor


def _root_of(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the upper triangular R with RᵀR = S for a positive semidefinite matrix S."""
    order = len(matrix)
    lower, panel = np.zeros_like(matrix), np.zeros(memory.panel_shape(order))
    diagonal, twin, regular = np.zeros(order), np.zeros(order, np.int64), np.zeros(order, np.bool_)
    wishart.semidefinite_factor(np.array(matrix), diagonal, twin, regular, panel, lower)
    return np.ascontiguousarray(lower.T)
