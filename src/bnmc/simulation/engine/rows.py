"""The sampler that makes layers row by row, on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnmc._kernels.cpu import layers, memory, sources
from bnmc._kernels.scalar import codes
from bnmc.chain.compiled import spec_of_start
from bnmc.chain.convolution import Convolution
from bnmc.chain.start import Covariance, Representation
from bnmc.errors import NonFiniteError
from bnmc.simulation.engine.precision import in_range, least_pivots
from bnmc.simulation.engine.sampler import FloatArray, ScaledSampler, name_of
from bnmc.simulation.engine.state import Frames
from bnmc.simulation.engine.threads import Threads

#: Relative pivot of a Gram matrix below which float32 rows do not resolve the samples.  In each
#: layer rounding moves a sample by at least 2**-24 of its size, which is then 0.05 % of its
#: distance from the span of the others.
_LOST_PIVOT = 2.0**-26


class RowSampler(ScaledSampler):
    """A sampler that makes each layer row by row, from a source of rows.

    The state of a chain is its Gram matrix, its representation x if there is a skip connection, and
    the activations of all rows if weights multiply them.
    """

    #: Whether weights multiply the activations of all rows, which then are part of the state.
    keeps_a = False

    def _allocate(self) -> None:
        super()._allocate()
        chain, chains, columns = self.chain, self.chains, self.columns
        stride = memory.stride(chain.width)
        self.grams = np.zeros((chains, columns, columns))
        keeps_x = chain.skip != 0.0
        self.xs: FloatArray = np.zeros((chains, 0, 0), self.dtype)
        if keeps_x:
            self.xs = memory.aligned_zeros((chains, columns, stride), self.dtype)
        #: The activations of two layers.
        self.activations: FloatArray = np.zeros((chains, 2, 0, 0), self.dtype)
        if self.keeps_a:
            of_a = chains, 2, memory.padded(columns), stride
            self.activations = memory.aligned_zeros(of_a, self.dtype)
        self.is_watched = self.dtype == np.float32 and (keeps_x or self.keeps_a)

    @property
    def precision_arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays of the state that describe its precision."""
        arrays: dict[str, NDArray[Any]] = {}
        if self.is_scaled:
            arrays["exponent"] = self.exponents
        if self.is_watched:
            arrays["unresolved"] = self.unresolved
        return arrays

    def watch_precision(self, frames: Frames) -> None:
        if self.is_watched:
            n, centred = self.chain.batch, self.chain.normalization.hides_common_part
            for first in range(0, self.columns, n):
                gram = frames.gram[..., first : first + n, first : first + n]
                least = least_pivots(gram, centred, self.chain.width)
                self.unresolved |= (least < _LOST_PIVOT).any(axis=1)
        if self.is_scaled:
            in_range(frames.gram, frames.log_scale, frames.units)
        elif self.chain.normalization.is_identity:
            self.require_scale(self.grams)

    @property
    def panels(self) -> int:
        return layers.panels_of(self.spec)

    def begin(
        self, start: Covariance | Representation, first: int, last: int, frames: Frames
    ) -> None:
        if self.is_scaled:
            part = slice(first, last) if len(start.exponents) > 1 else slice(1)
            self.exponents[first:last] = start.exponents[part]
        if isinstance(start, Covariance):
            # Layer 0 given its covariance, as if that were the Gram matrix of a layer -1.
            self.grams[first:last] = start.matrix
            specs = layers.records(spec_of_start(self.spec))
            stage = _Stage(lambda dtype: self._drawn(None), specs)
            self._run(stage, first, last, 0, np.zeros(1, np.int64), frames)
            return
        self._copy_start(start, first, last)
        frames.gram[first:last, 0] = self.grams[first:last]
        if self.is_scaled:
            frames.units[first:last, 0] = self.exponents[first:last]

    def record(self, frames: Frames) -> None:
        frames.gram[:, 0] = self.grams
        if self.is_scaled:
            frames.units[:, 0] = self.exponents

    def _copy_start(self, start: Representation, first: int, last: int) -> None:
        width, shared = self.chain.width, len(start.x) == 1
        work = memory.work(self.chain.batch, self.inputs or 1, np.dtype(np.float64))
        rows = memory.aligned_zeros((self.columns, memory.stride(width)), np.float64)
        for index in range(first, first + 1 if shared else last):
            rows[:, :width] = start.a[0 if shared else index].T
            if not layers.gram_of_rows(rows, width, work, self.grams[index]):
                chain = None if shared else self.offset + index
                raise NonFiniteError(chain, 0, "Gram matrix")
        if shared:
            self.grams[first + 1 : last] = self.grams[first]

        some = slice(1) if shared else slice(first, last)
        copies = []
        with np.errstate(over="ignore"):
            if self.xs.shape[1]:
                copies.append(self.xs[first:last, :, :width])
                copies[-1][...] = start.x[some].swapaxes(1, 2)
            if self.keeps_a:
                copies.append(self.activations[first:last, 0, : self.columns, :width])
                copies[-1][...] = start.a[some].swapaxes(1, 2)
        for values in copies:
            finite = np.isfinite(values).all(axis=(1, 2))
            if not finite.all():
                chain = None if shared else self.offset + first + int(finite.argmin())
                raise NonFiniteError(chain, 0, f"{self.dtype} representation")

    def advance(
        self, first: int, last: int, layer: int, slots: NDArray[np.int64], frames: Frames
    ) -> None:
        self._run(self._stage, first, last, layer, slots, frames)

    def advance_together(
        self,
        executor: Executor,
        threads: int,
        layer: int,
        slots: NDArray[np.int64],
        frames: Frames,
    ) -> None:
        shared = Threads(executor, threads, self.work)
        self._run(self._stage, 0, self.chains, layer, slots, frames, shared)

    @property
    def _stage(self) -> _Stage:
        """The layers after layer 0."""
        return _Stage(self.source, layers.records(self.layer_spec), self.lift)

    @property
    def layer_spec(self) -> codes.LayerSpec:
        """What kernels know of a layer after layer 0."""
        return self.spec

    def source(self, dtype: np.dtype[Any]) -> Any:
        """Return the source of rows of a dtype, with buffers of the calling thread."""
        raise NotImplementedError

    def _drawn(self, convolution: Convolution | None) -> sources.Drawn:
        """Return the source of rows given the Gram matrix."""
        columns = self.columns
        if convolution is None or convolution.taps == 1:
            return sources.Drawn(codes.STREAM_ROWS)
        average = self.buffer("average", lambda: np.zeros((columns, columns)))
        taps = sources.Taps(*convolution.axes(columns), average)
        return sources.Drawn(codes.STREAM_ROWS, taps)

    def _run(
        self,
        stage: _Stage,
        first: int,
        last: int,
        layer: int,
        slots: NDArray[np.int64],
        frames: Frames,
        threads: Threads | None = None,
    ) -> None:
        """Take chains first:last through layers, by one thread or by several together.

        If float32 rows do not resolve the Gram matrix of a float32 chain, the chain continues in
        float64, in all later layers.  Rounding then neither loses nor creates small eigenvalues.
        """
        if last - first > 1 and self.wide[first:last].any():
            for index in range(first, last):
                self._run(stage, index, index + 1, layer, slots, frames, threads)
            return
        dtype = np.dtype(np.float64) if self.wide[first] else self.dtype
        status = np.zeros((last - first, 3), np.int64)
        work = self.work(dtype)
        state = layers.State(
            self.grams[first:last],
            self.xs[first:last].astype(dtype, copy=False),
            self.activations[first:last].astype(dtype, copy=False),
            self.exponents[first:last],
        )
        course = layers.Course(
            self.offset + first, layer, *self.key_words, slots, frames.gram[first:last],
            frames.units[first:last], status, stage.lift,
        )  # fmt: skip
        (layers.layers if threads is None else layers.advance)(
            threads, stage.source(dtype), self.activation(dtype), stage.specs, state, course, work,
            self.sums(dtype, shared=threads is not None),
        )  # fmt: skip
        del work
        if not np.count_nonzero(status[:, 0]):
            return
        for index in (first + np.flatnonzero(status[:, 0] == codes.UNRESOLVED)).tolist():
            self.widen(index)
            done = int(status[index - first, 1]) - layer
            status[index - first] = 0
            rest = stage.after(done)
            self._run(rest, index, index + 1, layer + done, slots[done:], frames, threads)
        self.check(status, first)

    def sums(self, dtype: np.dtype[Any], *, shared: bool = False) -> layers.Sums:
        """Return the sums over the rows of a layer, in buffers of the calling thread."""
        return self.buffer(
            f"{name_of(dtype)} {'shared ' if shared else ''}sums",
            lambda: layers.sums_of(self.spec, dtype, keeps_rows=not self.keeps_a, shared=shared),
        )


class _Stage(NamedTuple):
    """Layers that one call of a kernel makes."""

    source: Callable[[np.dtype[Any]], Any]
    specs: NDArray[Any]
    lift: int = 0

    def after(self, layers: int) -> _Stage:
        """Return the stage without its first layers."""
        return self._replace(specs=self.specs[min(layers, len(self.specs) - 1) :])
