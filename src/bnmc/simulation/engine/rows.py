"""The sampler that makes layers row by row, on the CPU, with or without weights.

Without weights, it draws the rows of a layer given the Gram matrix of the layer before.  With
weights, it draws the weight matrix tile by tile and multiplies.  That works for every law of
weights, and is the reference for the sampler without weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnmc._kernels.cpu import factor, layers, memory, orthogonal, rows, sources
from bnmc._kernels.cpu.scaling import Units
from bnmc._kernels.scalar import codes
from bnmc.chain.activations import sigma_of
from bnmc.chain.compiled import Stage, raise_stopped
from bnmc.chain.layers import RowMap
from bnmc.chain.start import Covariance, Representation, Start
from bnmc.errors import NonFiniteError, ZeroVarianceError
from bnmc.simulation.engine.sampler import Sampler
from bnmc.simulation.engine.state import FloatArray, Frames, exponents_of, in_range
from bnmc.simulation.engine.threads import Threads
from bnmc.simulation.runs import Run, name_of_x, number_of_projection

#: Relative pivot of a Gram matrix below which float32 rows do not resolve the samples.  In each
#: layer rounding moves a sample by at least 2**-24 of its size, which is then 0.05 % of its
#: distance from the span of the others.
_LOST_PIVOT = 2.0**-26

#: The source of rows without taps.
_DRAWN = sources.Drawn(codes.STREAM_ROWS)


class RowSampler(Sampler):
    """A sampler that makes each layer row by row, from a source of rows.

    The state of a chain is its Gram matrix, its representation x if there is a skip connection, and
    the activations of all rows if weights multiply them.
    """

    def _allocate(self) -> None:
        super()._allocate()
        chains = self.chains
        self.grams = self._arrays["gram"]
        self.xs: FloatArray = self._arrays.get("x", np.zeros((chains, 0, 0), self.dtype))
        #: The activations of two layers.
        none = np.zeros((chains, 2, 0, 0), self.dtype)
        self.activations: FloatArray = self._arrays.get("activations", none)
        #: Columns of the state are in units of 2**exponents, if scales are split off.
        self.exponents = self._arrays.get("exponent")

    @property
    def _keeps_rows(self) -> bool:
        """Whether rows are a part of the state, which then cannot leave their dtype."""
        return "x" in self._arrays or "activations" in self._arrays

    # --- the state

    def watch_precision(self, frames: Frames) -> None:
        run, n = self.run, self.run.batch
        if "unresolved" in self._arrays:
            centred = all(layer.rows.norm.hides_common_part for layer in run.layers[1:])
            width = min(layer.linear.width for layer in run.layers)
            for first in range(0, self.columns, n):
                gram = frames.gram[..., first : first + n, first : first + n]
                least = least_pivots(gram, centred, width)
                self.unresolved |= (least < _LOST_PIVOT).any(axis=1)
        if run.splits_scale:
            for recorded in frames.each:
                in_range(recorded.gram, recorded.log_scale, recorded.units)
        elif run.lacks_norm:
            # If float32 rows are no part of the state, kernels have compared with their limit.
            self.require_scale(self.grams, self.dtype if self._keeps_rows else np.dtype(np.float64))

    def begin(self, start: Start, first: int, last: int, frames: Frames) -> None:
        if self.exponents is not None:
            part = slice(first, last) if len(start.exponents) > 1 else slice(1)
            self.exponents[first:last] = start.exponents[part]
        if isinstance(start, Covariance):
            # Layer 0 given its covariance, as if that were the Gram matrix of a layer -1.
            self.grams[first:last] = start.matrix
            self._run(self.run.stages[0], first, last, 0, np.zeros(1, np.int64), frames)
            return
        self._copy_start(start, first, last)
        self._record(frames, first, last)
        if frames.states is not None:
            self._sum(start.h, first, last, frames.states.gram[first:last, 0])

    def record(self, frames: Frames) -> None:
        self._record(frames, 0, self.chains)
        if frames.states is not None and self.run.keeps_x:
            # `starting` has checked that x is h if this layer is due.
            width = self.run.layer(self.layer).linear.width
            states = self.xs[:, :, :width].swapaxes(1, 2)
            self._sum(states, 0, self.chains, frames.states.gram[:, 0])

    def _record(self, frames: Frames, first: int, last: int) -> None:
        frames.gram[first:last, 0] = self.grams[first:last]
        if self.exponents is not None:
            for recorded in frames.each:
                recorded.units[first:last, 0] = self.exponents[first:last]

    def _copy_start(self, start: Representation, first: int, last: int) -> None:
        shared = len(start.x) == 1
        self._sum(start.a, first, last, self.grams[first:last])
        if self.run.lacks_norm:
            self._require_squares(start.a, first, last)
        some = slice(1) if shared else slice(first, last)
        width, copies = start.x.shape[1], []
        with np.errstate(over="ignore"):
            if self.xs.shape[1]:
                copies.append(self.xs[first:last, :, :width])
                copies[-1][...] = start.x[some].swapaxes(1, 2)
            if "activations" in self._arrays:
                copies.append(self.activations[first:last, 0, : self.columns, :width])
                copies[-1][...] = start.a[some].swapaxes(1, 2)
        for values in copies:
            finite = np.isfinite(values).all(axis=(1, 2))
            if not finite.all():
                chain = None if shared else self.offset + first + int(finite.argmin())
                raise NonFiniteError(chain, 0, f"{self.dtype} representation")

    def _require_squares(self, a: FloatArray, first: int, last: int) -> None:
        """Raise if the square of a sample is zero, and the sample is not."""
        rows = a if len(a) == 1 else a[first:last]
        zero = np.diagonal(self.grams[first:last], axis1=1, axis2=2) == 0.0
        lost = np.flatnonzero((zero & rows.any(axis=1)).any(axis=1))
        if lost.size:
            chain = None if len(a) == 1 else self.offset + first + int(lost[0])
            raise_stopped(codes.TOO_SMALL, chain, 0, 8)

    def _sum(self, values: FloatArray, first: int, last: int, out: NDArray[np.float64]) -> None:
        """Write Gram matrices of values (chains or 1, width, columns) of chains first:last."""
        shared, width = len(values) == 1, values.shape[1]
        work = memory.work(self.run.batch, self.run.inputs or 1, np.dtype(np.float64))
        rows = memory.aligned_zeros((self.columns, memory.stride(width)), np.float64)
        for index in range(first, first + 1 if shared else last):
            rows[:, :width] = values[0 if shared else index].T
            if not layers.gram_of_rows(rows, width, work, out[index - first]):
                chain = None if shared else self.offset + index
                raise NonFiniteError(chain, 0, "Gram matrix")
        if shared:
            out[1:] = out[0]

    # --- layers

    @property
    def panels(self) -> int:
        return max(layers.panels_of(spec) for spec in self.run.specs[1:])

    def advance(
        self,
        first: int,
        last: int,
        layer: int,
        slots: NDArray[np.int64],
        frames: Frames,
        threads: Threads | None = None,
    ) -> None:
        while slots.size:
            stage = self.run.stage(layer)
            some, slots = slots[: stage.end - layer], slots[stage.end - layer :]
            if layer == stage.first and stage.begins:
                self._begin_paths(stage, first, last)
            if _is_given(stage):
                # No kernel draws the weights, which are those of one layer of one chain.
                for index in range(first, last):
                    for step in range(len(some)):
                        giving = self.threads_of(index, layer + step, threads)
                        at = some[step : step + 1]
                        self._run(stage, index, index + 1, layer + step, at, frames, giving)
            else:
                self._run(stage, first, last, layer, some, frames, threads)
            if frames.states is not None and stage.lift:
                # The law of the layer was divided, and so is h.
                frames.states.units[first:last, some[some >= 0]] += stage.lift
            layer += len(some)

    def _run(
        self,
        stage: Stage,
        first: int,
        last: int,
        layer: int,
        slots: NDArray[np.int64],
        frames: Frames,
        threads: Threads | None = None,
    ) -> None:
        """Take chains first:last through layers of a stage, by one thread or by several together.

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
        units = None
        if self.exponents is not None:
            units = Units(self.exponents[first:last], stage.lift)
        state = layers.State(
            self.grams[first:last],
            self._xs(stage.level)[first:last].astype(dtype, copy=False),
            self.activations[first:last].astype(dtype, copy=False),
            units,
        )
        least, zeros, whole = self._limits(dtype)
        course = layers.Course(
            self.offset + first, layer, *self.key_words, slots, frames.gram[first:last],
            frames.units[first:last], status, least, zeros, whole,
        )  # fmt: skip
        sums = self.sums(stage, dtype, shared=threads is not None)
        if frames.states is not None and sums.states is not None:
            states = frames.states.part(first, last)
            recorded = sums.states._replace(record=states.gram, units=states.units)
            sums = sums._replace(states=recorded)
        (layers.layers if threads is None else layers.advance)(
            threads, self.source(stage, dtype), self.activation(stage, dtype),
            stage.specs_from(layer), *map(tuple, (state, course, work, sums)),
        )  # fmt: skip
        del work
        if not np.count_nonzero(status[:, 0]):
            return
        for index in (first + np.flatnonzero(status[:, 0] == codes.UNRESOLVED)).tolist():
            self.widen(index)
            done = int(status[index - first, 1]) - layer
            status[index - first] = 0
            self._run(stage, index, index + 1, layer + done, slots[done:], frames, threads)
        self.check(status, first)

    # --- skip paths over several layers
    #
    # Layers inside of k blocks keep in array k what a skip connection sees.  A block keeps in array
    # k - 1 what its skip path adds to its last layer, which is inside of k - 1 blocks.

    def _xs(self, level: int) -> FloatArray:
        """Return the representations inside of so many blocks."""
        return self._arrays[name_of_x(level)] if level else self.xs

    def _begin_paths(self, stage: Stage, first: int, last: int) -> None:
        """Keep what skip paths add that begin before a stage, for chains first:last."""
        before = stage.first - 1
        width = self.run.layer(before).linear.width
        outer = self.run.stage(before).level
        for level, path in enumerate(stage.begins, outer):
            x = self._xs(level)
            if name_of_x(level + 1) in self._arrays:
                self._xs(level + 1)[first:last, :, :width] = x[first:last, :, :width]
            if path.takes_activations:
                a = self.activations[first:last, before % 2, : self.columns, :width]
                x[first:last, :, :width] = a
            if path.projection is not None:
                for index in range(first, last):
                    self._project(x[index], width, index, before + path.length, path.norm)

    def _project(
        self, x: FloatArray, width: int, index: int, end: int, norm: RowMap | None
    ) -> None:
        """Replace x (columns, >= width) of a chain by its projection, which layer `end` adds."""
        number = number_of_projection(end)
        stage, columns, shape = self.run.stage(number), self.columns, self.activations.shape[2:]
        if not shape[0]:
            shape = memory.padded(columns), x.shape[1]
        both = memory.aligned_zeros((1, 2, *shape), self.dtype)
        seen, projected = both[0, (number + 1) % 2], both[0, number % 2]
        seen[:columns, :width] = x[:, :width]
        grams, nowhere = np.zeros((1, columns, columns)), np.zeros((1, 0, 0), self.dtype)
        work, status = self.work(), np.zeros((1, 3), np.int64)
        if not layers.gram_of_rows(seen, width, work, grams[0]):
            raise_stopped(codes.NOT_FINITE, self.offset + index, end, 0)
        frames = Frames(units=np.zeros((1, 0, 0), np.int64), gram=np.zeros((1, 0, 0, 0)))
        course = layers.Course(
            self.offset + index, number, *self.key_words, np.full(1, -1), frames.gram,
            frames.units, status, 0.0, True, False,
        )  # fmt: skip
        threads = self.threads_of(index, number)
        state = layers.State(grams, nowhere, both)
        (layers.layers if threads is None else layers.advance)(
            threads, self.source(stage, self.dtype), self.activation(stage, self.dtype),
            stage.specs, *map(tuple, (state, course, work, self.sums(stage, self.dtype))),
        )  # fmt: skip
        if status[0, 0]:
            raise_stopped(int(status[0, 0]), self.offset + index, end, int(status[0, 2]))
        wide = stage.layer.linear.width
        x[:, :wide] = projected[:columns, :wide]
        if norm is not None:
            y = x[None, :, :wide].swapaxes(1, 2).astype(np.float64, order="C")
            if flat := norm.without_variance(y):
                raise ZeroVarianceError(self.offset + index, end, *flat[1:])
            x[:, :wide] = norm.normalise(y).values[0].T

    # --- what kernels take

    def _limits(self, dtype: np.dtype[Any]) -> tuple[float, bool, bool]:
        """Return from where on Gram matrices are too small for rows of a dtype; see `Course`."""
        zeros = not self.run.lacks_norm or self.run.splits_scale or self.has_zeros
        # Norms see how the samples of a row differ, not their size.
        return codes.LEAST_SQUARES[dtype.itemsize == 8], zeros, not self.run.lacks_norm

    def activation(self, stage: Stage, dtype: np.dtype[Any]) -> Any:
        """Return the activation of a stage as kernels take it."""
        name = "float32" if dtype.itemsize == 4 else "float64"  # `dtype.name` takes a microsecond
        return rows.activation(sigma_of(stage.layer.rows.activation), name)

    def source(self, stage: Stage, dtype: np.dtype[Any]) -> Any:
        """Return the source of the rows of a stage, with buffers of the calling thread."""
        linear, columns = stage.layer.linear, self.columns
        convolution = linear.convolution
        if stage.first == 0 or not (stage.by_weights or linear.law.is_orthogonal):
            if convolution is None or convolution.taps == 1:
                return _DRAWN
            average = self.buffer(("average",), lambda: self.zeros((columns, columns), np.float64))
            taps = sources.Taps(*convolution.axes(columns), average)
            return sources.Drawn(codes.STREAM_ROWS, taps)
        if not stage.by_weights:
            frame = self.buffer(
                ("frame", dtype.char, stage.buffers),
                lambda: orthogonal.frame(columns, dtype, stage.buffers[0], self.zeros),
            )
            return sources.Haar(codes.STREAM_ROWS, frame)
        given = np.zeros((0, 0), dtype)
        if convolution is None:
            return sources.Multiplied(codes.STREAM_WEIGHTS, given)
        shape = memory.padded(columns), memory.stride(linear.fan_in)
        unfolded = self.buffer(("unfolded", dtype.char, shape), lambda: self.zeros(shape, dtype))
        neighbours = convolution.neighbours(columns)
        return sources.Convolved(codes.STREAM_WEIGHTS, given, neighbours, unfolded)

    def sums(self, stage: Stage, dtype: np.dtype[Any], *, shared: bool = False) -> layers.Sums:
        """Return the sums over the rows of a layer, in buffers of the calling thread."""

        def make() -> layers.Sums:
            return layers.sums_of(
                stage.largest, dtype, keeps_rows=not self.run.draws_weights, shared=shared,
                with_states=self.run.shows_state, zeros=self.zeros,
            )  # fmt: skip

        return self.buffer(("sums", dtype.char, shared, *stage.buffers), make)

    def threads_of(self, index: int, layer: int, threads: Threads | None = None) -> Threads | None:
        """Return threads that give kernels the weights of a layer that no kernel draws, if any."""
        stage = self.run.stage(layer)
        if not _is_given(stage):
            return threads
        panel_of = given_panels(self.run, index, layer)
        return replace(threads or Threads(None, 1, self.work), panel_of=panel_of)


def _is_given(stage: Stage) -> bool:
    """Whether no kernel draws the weights of a stage."""
    return stage.by_weights and stage.layer.linear.law.code == codes.GIVEN


def given_panels(run: Run, index: int, layer: int) -> Callable[[int], FloatArray]:
    """Return a function of a panel that returns weights that no kernel draws, (panel, fan_in).

    The weights are those of the user's sampler, or of an orthogonal matrix, with variance 1.  The
    generators depend on key, chain, layer and panel alone.
    """
    linear, spec = run.layer(layer).linear, run.spec(layer)

    def generator(panel: int) -> np.random.Generator:
        counter = [0, panel, layer, run.first + index]
        return np.random.Generator(np.random.Philox(key=run.key, counter=counter))

    if linear.law.has_dependent_rows:
        shape, count = (linear.width, linear.fan_in), layers.panels_of(spec)
        matrix = np.zeros((count * spec.panel, linear.fan_in), run.dtype)
        matrix[: linear.width] = linear.law.entries(generator(0), shape)
        panels = matrix.reshape(count, spec.panel, linear.fan_in)
        return lambda panel: panels[panel]

    def given(panel: int) -> FloatArray:
        weights = np.zeros((spec.panel, linear.fan_in), run.dtype)
        count = min(spec.panel, linear.width - panel * spec.panel)
        weights[:count] = linear.law.checked(generator(panel), (count, linear.fan_in))
        return weights

    return given


def least_pivots(grams: NDArray[np.float64], centred: bool, rank: int) -> NDArray[np.float64]:
    """Return the least pivot of each Gram matrix, relative to its diagonal.

    Parameters
    ----------
    grams : (..., n, n) ndarray of float64
    centred : bool
        Whether to take the pivots of P G P, P the projector orthogonal to 1, without its last
        pivot, which is 0.
    rank : int
        Largest possible rank; the function takes as many pivots.

    Returns
    -------
    (...) ndarray of float64
        The squared relative distance of the nearest sample from the span of those before it.
    """
    rest = np.ldexp(grams, -exponents_of(grams)[..., None, None].astype(np.int32))
    n = rest.shape[-1]
    if centred:
        rest -= rest.mean(axis=-1, keepdims=True)
        rest -= rest.mean(axis=-2, keepdims=True)
    order = min(n - 1 if centred else n, rank)
    matrices = np.ascontiguousarray(rest.reshape(-1, n, n)[:, :order, :order])
    diagonals = np.einsum("kii->ki", matrices).clip(np.finfo(float).tiny)
    least = np.full(len(matrices), np.inf)
    panel, regular = np.zeros(memory.panel_shape(order)), np.zeros(order, np.bool_)
    factor.least_pivots(matrices, diagonals, np.arange(order), panel, regular, least)
    return least.reshape(rest.shape[:-2])


def bytes_of_thread(run: Run) -> int:
    """Return the bytes of the buffers with which a thread makes layers."""
    size = memory.work_bytes(run.batch, run.inputs or 1, run.dtype, run.tile)
    if run.path == "factor":
        return size
    sampler = RowSampler(run.part(0, 0), memory.unplaced)
    if run.shows_state:
        size += 16 * memory.tile_sums(run.columns)
    for stage in (*run.stages[1:], *(each.stage for each in run.projections.values())):
        sampler.source(stage, sampler.dtype)
        sampler.sums(stage, sampler.dtype)
    return size + memory.bytes_of_arrays((*sampler.buffers().values(),))


def bytes_of_given_weights(run: Run) -> int:
    """Return the bytes that a thread takes for the weights of a layer that no kernel draws."""

    def size(number: int) -> int:
        linear, spec = run.layer(number).linear, run.spec(number)
        if linear.law.has_dependent_rows:
            # Normals, the factorization with its work space, and the matrix.
            return 8 * 5 * linear.width * (linear.fan_in + spec.panel)
        # The user's array, and the panel in the precision of the rows.
        return (8 + np.dtype(run.dtype).itemsize) * spec.panel * linear.fan_in

    given = [first for first in run.firsts[1:] if _is_given(run.stage(first))]
    return max(map(size, given), default=0)
