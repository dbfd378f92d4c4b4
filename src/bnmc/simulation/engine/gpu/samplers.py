"""The samplers on GPUs: their state is on a device, and only what is recorded leaves it.

Chains are divided among devices.  On each they go in chunks, whose frames have two buffers: while
the kernels fill one, the other is copied to the host.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnmc._kernels.cpu import memory
from bnmc._kernels.gpu.arguments import NOTHING, Address, State, Target
from bnmc._kernels.gpu.block import NOT_STOPPED, REASON_MASK, STEP_BITS, STOPPED_UNRESOLVED
from bnmc._kernels.gpu.build import Kernels, kernels_of
from bnmc._kernels.gpu.device import cuda as numba_cuda
from bnmc._kernels.gpu.device import free_memory, launch, processors, shared_memory
from bnmc._kernels.gpu.gram import observe
from bnmc._kernels.gpu.shape import DRAWN, GIVEN, MOST_RANGES, MULTIPLIED, Spec, shape_of
from bnmc._kernels.scalar import codes
from bnmc._kernels.scalar import measures as numbers_of
from bnmc.chain.compiled import lifted
from bnmc.chain.layers import Layer
from bnmc.chain.start import Covariance, Representation, prepare
from bnmc.errors import BackendError, NonFiniteError
from bnmc.simulation.engine.gpu.arrays import DeviceRows, device_memory
from bnmc.simulation.engine.gpu.launches import (
    Launches,
    bytes_of_work,
    forward,
    kernel_spec,
    raise_noted,
)
from bnmc.simulation.engine.rows import RowSampler
from bnmc.simulation.engine.sampler import Sampler
from bnmc.simulation.engine.state import Frames, Measure, in_range
from bnmc.simulation.engine.state import State as SavedState
from bnmc.simulation.engine.threads import Threads
from bnmc.simulation.runs import Run

#: Part of the free memory that the frames of a block of layers may take.
_SHARE_OF_MEMORY = 0.25

#: Most chains of one launch: they are an axis of the grid.
MOST_OF_GRID = 65_535

#: Bytes of a buffer from which frames are copied, and least number of chains per multiprocessor in
#: a chunk: with fewer chains it would be idle.
STAGING_BYTES = 1 << 26
LEAST_OF_PROCESSOR = 12
_FEWER_CHAINS = "simulate fewer chains at a time, or on the CPU"


class _Part(NamedTuple):
    """Consecutive layers that are equal, up to layer `end`.

    law : LayerSpec
        Divided by 2**`lift`.
    """

    end: int
    layer: Layer
    law: codes.LayerSpec
    lift: int


class _Course(NamedTuple):
    """Equal layers to take chains through, from `layer` on.

    records : sequence of (chains, recorded layers, ...) ndarray
        The frames on the host: of a, and of h if its Gram matrices are recorded.
    """

    part: _Part
    layer: int
    slots: NDArray[np.int64]
    records: Sequence[NDArray[np.float64]]

    def after(self, done: int) -> _Course:
        """Return the layers after the first ones."""
        return self._replace(layer=self.layer + done, slots=self.slots[done:])


class GpuSampler(Sampler):
    """The sampler of some chains on one GPU, with or without weights."""

    divisible = False
    #: Whether the normals of float64 rows are those of float32 ones.
    narrow = False

    def _allocate(self) -> None:
        chains, self.source = self.chains, _source_of(self.run)
        self._start, *self._parts = _parts_of(self.run)
        for part in self._parts:
            self.kernels = self._kernels(self._spec_of(part, self.source, self.dtype.name))
        stride = max(memory.stride(spec.width) for spec in self.run.specs)
        itemsize = self.dtype.itemsize
        of_x = (chains * self.run.keeps_x, self.columns, stride)
        of_a = (chains * self.keeps_a, 2, stride, self.columns)
        size = 8 * chains * self.columns**2 + itemsize * (math.prod(of_x) + math.prod(of_a))
        with device_memory("chains", size, _FEWER_CHAINS):
            self.stream, self.copying = numba_cuda.stream(), numba_cuda.stream()
            # With the units of the samples in a further row, if the scale is split off.
            self.grams = self._zeros((chains, self._rows_of_gram, self.columns), np.float64)
            self.xs = self._zeros(of_x, self.dtype) if self.run.keeps_x else NOTHING
            self.activations = self._zeros(of_a, self.dtype) if self.keeps_a else NOTHING
        #: What `lift` has added to all units since the units on the device.
        self._lifted = 0
        #: The array on the device in which frames stay, or None.
        self.results: Any = None
        # Made once: the driver waits for kernels before it pins or frees memory.
        self._noted = [numba_cuda.pinned_array(chains, np.int64) for _ in range(2)]
        self._buffers_of_frames: list[tuple[Any, Any]] = []
        self._record_only(self.run.measures)

    def _record_only(self, measures: tuple[Measure, ...]) -> None:
        """Record numbers in place of Gram matrices, unless there are none."""
        n = self.run.batch
        kinds = np.array([measure.kind for measure in measures] or [numbers_of.NOTHING])
        stars = np.zeros((len(kinds), n, n))
        for star, measure in zip(stars, measures, strict=False):
            if measure.star is not None:
                star[:] = measure.star
        self._wanted = numba_cuda.to_device(kinds), numba_cuda.to_device(stars)
        # Stands for the one of two arrays that kernels do not write.
        self._nothing = numba_cuda.device_array((1, 1, 1, 1), np.float64)

    @property
    def _shape_of_frame(self) -> tuple[int, int]:
        """Shape of the recorded values of one layer of one chain."""
        if self.run.measures:
            return len(self.run.measures), self.run.inputs or 1
        return self._rows_of_gram, self.columns

    @property
    def _rows_of_gram(self) -> int:
        """Rows of a Gram matrix on the device; the last one holds units if there are any."""
        return self.columns + self.run.splits_scale

    def _target(self, frames: Any) -> Target:
        """Return the arrays in which kernels record, given the array of frames on the device."""
        record, values = (self._nothing, frames) if self.run.measures else (frames, self._nothing)
        return Target(record, values, *self._wanted)

    def _host(self, frames: Frames) -> list[NDArray[np.float64]]:
        return [frames.values] if self.run.measures else [each.gram for each in frames.each]

    @property
    def keeps_a(self) -> bool:
        """Whether the activations of all rows are part of the state."""
        return self.source == MULTIPLIED

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """The state, on the host, in the form of the CPU samplers."""
        grams, exponents = self._divided(self.grams.copy_to_host())
        arrays: dict[str, NDArray[Any]] = {"gram": grams}
        if self.keeps_a:
            rows = self.activations.copy_to_host().transpose(0, 1, 3, 2)
            shape = (*rows.shape[:2], memory.padded(self.columns), rows.shape[3])
            arrays["activations"] = memory.aligned_zeros(shape, self.dtype)
            arrays["activations"][:, :, : self.columns] = rows
        else:
            arrays["wide"] = self.wide
        if self.run.splits_scale:
            arrays["exponent"] = exponents
        if self.run.keeps_x:
            arrays["x"] = self.xs.copy_to_host()
        return arrays

    def take(self, state: SavedState) -> None:
        self.layer = state.layer
        arrays = state.arrays or {name: np.zeros_like(array) for name, array in self.arrays.items()}
        self._send_grams(arrays["gram"], arrays.get("exponent", 0))
        if self.keeps_a:
            rows = arrays["activations"][:, :, : self.columns]
            self.activations.copy_to_device(np.ascontiguousarray(rows.transpose(0, 1, 3, 2)))
        else:
            self.wide[:] = arrays["wide"]
        if self.run.keeps_x:
            self.xs.copy_to_device(np.ascontiguousarray(arrays["x"]))

    def begin(
        self, start: Covariance | Representation, first: int, last: int, frames: Frames
    ) -> None:
        run = self.run
        is_plain_start = not run.splits_scale and self._start.layer.is_plain
        if isinstance(start, DeviceRows) and (run.shows_state or not is_plain_start):
            # The host splits off their scale, and makes layers 0 that are not plain.
            rows = start.array.copy_to_host()
            start = prepare(run.network, rows, self.chains, None, keeps_h=run.shows_state)
        if isinstance(start, Covariance):
            self._send_grams(start.matrix, start.exponents)
            slots = np.full(1, 0 if run.shows_state else -1)
            self._advance(self._start, 0, self.chains, 0, slots, frames)
        elif isinstance(start, DeviceRows):
            self._take_rows(start.array)
        else:
            sampler = RowSampler(replace(run, backend="cpu", stays=False))
            whole = frames if run.shows_state else sampler.run.frames(1)
            sampler.begin(start, 0, self.chains, whole)
            self.take(run.state(0, sampler.arrays))
        self._record(frames)

    def record(self, frames: Frames) -> None:
        if frames.states is None:
            self._record(frames)
            return
        sampler = RowSampler(replace(self.run, backend="cpu"))
        sampler.take(self.run.state(self.layer, self.arrays))
        sampler.record(frames)

    def _record(self, frames: Frames) -> None:
        if self.run.splits_scale:
            self._deliver(self.grams.copy_to_host()[:, None], np.zeros(1, np.int64), 0, frames)
            return
        if self.results is None and not self.run.measures:
            frames.gram[:, 0] = self.grams.copy_to_host()
            return
        there = self.results
        if there is None:
            there = numba_cuda.device_array((self.chains, 1, *self._shape_of_frame), np.float64)
        launch(
            self.kernels.of(observe), self.chains, self.kernels.shape.threads, self.kernels.bytes,
            self.stream, self.grams, self._target(there),
        )  # fmt: skip
        self.stream.synchronize()
        if self.results is None:
            frames.values[:, :1] = there.copy_to_host()

    def watch_precision(self, frames: Frames) -> None:
        if self.run.splits_scale:
            for recorded in frames.each if frames.gram.size else ():
                in_range(recorded.gram, recorded.log_scale, recorded.units)
        else:
            self._require_scale()

    def _require_scale(self) -> None:
        """Raise if sums over rows have rounded a sample of a chain without a scale of its own."""
        if self.run.lacks_norm and not self.run.splits_scale:
            self.require_scale(self.grams.copy_to_host(), self.dtype)

    def _send_grams(self, grams: NDArray[np.float64], exponents: Any) -> None:
        """Copy Gram matrices and the units of their samples to the device."""
        rows = np.zeros(self.grams.shape)
        rows[:, : self.columns] = grams
        if self.run.splits_scale:
            rows[:, self.columns :] = np.asarray(exponents)[..., None, :]
        self.grams.copy_to_device(rows)
        self._lifted = 0

    def _divided(
        self, rows: NDArray[np.float64], lifts: Any = 0
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return Gram matrices and units, given the arrays of the device and `lifts` later."""
        n = self.columns
        units = rows[..., n:, :].sum(axis=-2).astype(np.int64)
        units += (self._lifted + np.asarray(lifts, np.int64))[..., None]
        return np.ascontiguousarray(rows[..., :n, :]), units

    def _advance(
        self, part: _Part, first: int, last: int, layer: int, slots: NDArray[np.int64],
        frames: Frames,
    ) -> None:  # fmt: skip
        """Take chains first:last through equal layers."""
        if not self.run.splits_scale:
            self._draw(first, last, _Course(part, layer, slots, self._host(frames)))
            return
        due = np.flatnonzero(slots >= 0)
        shape = (self.chains, due.size, self._rows_of_gram, self.columns)
        rows = [np.zeros(shape) for _ in frames.each]
        places = np.full(slots.shape, -1)
        places[due] = np.arange(due.size)
        self._draw(first, last, _Course(part, layer, places, rows))
        at = int(slots[due[0]]) if due.size else 0
        for recorded, of_device in zip(frames.each, rows, strict=True):
            self._deliver(of_device, part.lift * (due + 1), at, recorded)
        self._lifted += part.lift * slots.size

    def _deliver(
        self, rows: NDArray[np.float64], lifts: NDArray[np.int64], first: int, frames: Frames
    ) -> None:
        """Write recorded layers, and their units, to frames or to the array of the device."""
        (grams, units), last = self._divided(rows, lifts), first + len(lifts)
        if self.results is None:
            frames.gram[:, first:last] = grams
            frames.units[:, first:last] = units
            return
        log_scale = np.zeros(grams.shape[:2])
        in_range(grams, log_scale, units)
        large = np.flatnonzero((log_scale > 0.0).any(axis=1))
        if large.size:
            chain = self.offset + int(large[0])
            raise NonFiniteError(chain, None, "Gram matrix, too large for float64, is")
        grams *= np.exp(np.maximum(log_scale, -745.2))[..., None, None]
        for chain in range(self.chains if len(lifts) else 0):
            there = self.results[chain, first:last]
            there.copy_to_device(np.ascontiguousarray(grams[chain]))

    def _spec_of(self, part: _Part, source: int, dtype: str) -> Spec:
        """Return the properties for which kernels of equal layers are compiled."""
        # Layer 0 is drawn given its covariance, without weights.
        is_orthogonal = part is not self._start and part.layer.linear.law.is_orthogonal
        return _spec_of(self.run, part, source, dtype)._replace(
            keeps_rows=self.keeps_a, narrow=self.narrow, is_orthogonal=is_orthogonal
        )

    def _kernels(self, spec: Spec) -> Kernels:
        kernels = kernels_of(spec)
        if kernels.bytes > shared_memory():
            raise BackendError(
                "cuda",
                f"{self.columns} columns in {spec.dtype} need {kernels.bytes} bytes of shared "
                f"memory, the device has {shared_memory()}: backend='cpu'",
            )
        return kernels

    def _zeros(self, shape: tuple[int, ...], dtype: Any) -> Any:
        array = numba_cuda.device_array(shape, dtype)
        array.copy_to_device(np.zeros(shape, dtype))
        return array

    def _draw(self, first: int, last: int, course: _Course) -> None:
        """Take chains first:last through layers, each drawn given the one before.

        As on the CPU, a float32 chain that float32 rows do not resolve continues in float64.
        """
        narrow = np.flatnonzero(~self.wide[first:last]) + first
        for a, b in _ranges(narrow):
            status = self._advance_chunks(a, b, course, self.dtype.name)
            stopped = (status & REASON_MASK) == STOPPED_UNRESOLVED
            unresolved = (a + np.flatnonzero(stopped & (status != NOT_STOPPED))).tolist()
            if unresolved:
                # Before their states count as those of float64 rows.
                self._require_scale()
            for index in unresolved:
                done = int(status[index - a] >> STEP_BITS)
                self.wide[index] = True
                status[index - a] = NOT_STOPPED
                self._advance_float64(index, course.after(done))
            self._check(status, a, course.layer)
        for index in np.setdiff1d(np.arange(first, last), narrow).tolist():
            self._advance_float64(index, course)

    def _advance_float64(self, index: int, course: _Course) -> None:
        status = self._advance_chunks(index, index + 1, course, "float64")
        self._check(status, index, course.layer)

    def _advance_chunks(
        self, first: int, last: int, course: _Course, dtype: str
    ) -> NDArray[np.int64]:
        """Take chains through layers in chunks."""
        part, layer, slots, records = course
        wanted = np.flatnonzero(slots >= 0)
        # A chain that continues in float64 has recorded some layers already.
        base = int(slots[wanted[0]]) if wanted.size else 0
        stay = self.results is not None and not self.run.splits_scale
        leave = wanted.size > 0 and not stay
        shape = (wanted.size, *self._shape_of_frame) if leave else (1, 1, 1)
        numbers = len(records) * int(np.prod(shape))
        most = min(last - first, self._most_of_chunk(8 * numbers if leave else 0))
        places = np.where(slots >= 0, slots if stay else slots - base, -1)
        notes = np.full(last - first, NOT_STOPPED)
        pending: list[Callable[[], None] | None] = [None, None]
        with device_memory("chains", self._size_of_buffers(most * numbers), _FEWER_CHAINS):
            buffers = self._two_buffers(most * numbers)
            for number, a in enumerate(range(first, last, most)):
                b = min(last, a + most)
                finish = pending[number % 2]
                if finish is not None:
                    finish()
                there, here = (
                    flat[: (b - a) * numbers].reshape(len(records), b - a, *shape)
                    for flat in buffers[number % 2]
                )
                frames = [self.results[a:b]] if stay else [there[at] for at in range(len(records))]
                targets = [self._target(each) for each in frames]
                launches = self._launches(part, a, b, layer, places, targets, dtype)
                noted = self._noted[number % 2][: b - a]
                computed, copied = numba_cuda.event(), numba_cuda.event()
                computed.record(self.stream)
                computed.wait(self.copying)
                launches.work.status.copy_to_host(noted, stream=self.copying)
                if leave:
                    there.copy_to_host(here, stream=self.copying)
                copied.record(self.copying)

                def take(
                    a: int = a, b: int = b, here: Any = here, noted: Any = noted,
                    copied: Any = copied, launches: Launches = launches,
                ) -> None:  # fmt: skip
                    # What the kernels work on is held until they have ended.
                    copied.synchronize()
                    notes[a - first : b - first] = launches.of_layers(noted)
                    for record, values in zip(records if leave else (), here, strict=False):
                        record[a:b, base : base + wanted.size] = values

                pending[number % 2] = take
            for finish in pending:
                if finish is not None:
                    finish()
        return notes

    def _most_of_chunk(self, size: int) -> int:
        """Return how many chains a chunk has, whose frames take so many bytes a chain."""
        sums, work = 0, 1
        for part in self._parts:
            spec = self._spec_of(part, self.source, self.dtype.name)
            shape = kernels_of(spec).shape
            tiles = shape.tiles(part.law.width)
            if self.run.shows_state or not spec.one_block_suffices or tiles > MOST_RANGES:
                sums = max(sums, 8 * min(tiles, MOST_RANGES) * shape.entries)
            work = max(work, bytes_of_work(part.layer, part.law, spec))
        most = min(MOST_OF_GRID, int(_SHARE_OF_MEMORY * free_memory() / max(1, 2 * (size + sums))))
        if size:
            most = min(most, max(STAGING_BYTES // size, LEAST_OF_PROCESSOR * processors()))
        if self.run.shows_state:  # a copy of the state
            work += self.run.bytes_of_chain
        return max(1, min(most, int(_SHARE_OF_MEMORY * free_memory() / work)))

    def _size_of_buffers(self, numbers: int) -> int:
        """Return the bytes that two buffers of `numbers` numbers need besides the existing ones."""
        held = self._buffers_of_frames[0][0].size if self._buffers_of_frames else 0
        return 2 * 8 * numbers if numbers > held else 0

    def _two_buffers(self, numbers: int) -> list[tuple[Any, Any]]:
        """Return two buffers of frames, each on the device and in pinned memory of the host."""
        if self._size_of_buffers(numbers):
            self._buffers_of_frames = []
            self._buffers_of_frames = [
                (
                    numba_cuda.device_array(numbers, np.float64),
                    numba_cuda.pinned_array(numbers, np.float64),
                )
                for _ in range(2)
            ]
        return self._buffers_of_frames

    def _launches(
        self, part: _Part, first: int, last: int, layer: int, slots: NDArray[np.int64],
        targets: Sequence[Target], dtype: str, given: Any = NOTHING,
    ) -> Launches:  # fmt: skip
        """Start the kernels that take chains first:last through layers."""
        source = self.source if layer > 0 else DRAWN
        if given is not NOTHING:
            source = GIVEN
        spec = self._spec_of(part, source, dtype)
        self._kernels(spec)
        state = State(
            self.grams[first:last],
            self.xs[first:last] if self.run.keeps_x else NOTHING,
            self.activations[first:last] if self.keeps_a else NOTHING,
        )
        address = Address(self.offset + first, *self.key_words)
        return forward(
            part.layer, part.law, spec, state, targets, address, layer, slots, self.stream, given
        )

    def _take_rows(self, given: Any) -> None:
        """Make layer 0 from given rows."""
        most = self._most_of_chunk(0)
        for a in range(0, self.chains, most):
            b = min(self.chains, a + most)
            rows = given[a:b] if given.shape[0] > 1 else given
            targets = [self._target(self._nothing)]
            with device_memory("chains", 0, _FEWER_CHAINS):
                launches = self._launches(
                    self._start, a, b, 0, np.full(1, -1), targets, self.dtype.name, rows
                )
                self.stream.synchronize()
            self._check(launches.of_layers(launches.work.status.copy_to_host()), a, 0)

    def _check(self, status: NDArray[np.int64], first: int, layer: int) -> None:
        """Raise the error of the first chain that a kernel stopped."""
        stopped = np.flatnonzero(status != NOT_STOPPED)
        if stopped.size:
            noted, index = int(status[stopped[0]]), first + int(stopped[0])
            size = 8 if self.wide[index] else self.dtype.itemsize
            number = layer + (noted >> STEP_BITS)
            raise_noted(noted & REASON_MASK, self.offset + index, number, size)

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
            part = next(part for part in self._parts if layer < part.end)
            count = part.end - layer
            self._advance(part, first, last, layer, slots[:count], frames)
            slots, layer = slots[count:], part.end


def _source_of(run: Run) -> int:
    """Return how kernels make the rows of a run."""
    return MULTIPLIED if run.path == "weights" else DRAWN


def _parts_of(run: Run) -> list[_Part]:
    """Return the parts of equal layers of a run: layer 0 alone, and others."""
    # Layer 0 of a chain goes through the kernels of its later layers.
    layers = run.layers[-1:] * 2 if len(run.layers) == 2 else run.layers
    laws = [
        lifted(spec) if number and run.splits_scale else (spec, 0)
        for number, spec in enumerate(run.specs)
    ]
    parts, ends = [], (*run.firsts[1:], codes.MOST_LAYERS)
    for (_, layer, law), group in groupby(
        range(len(laws)), lambda number: (number > 0, layers[number], laws[number])
    ):
        parts.append(_Part(ends[max(group)], layer, *law))
    return parts


def _spec_of(run: Run, part: _Part, source: int, dtype: str) -> Spec:
    spec = kernel_spec(part.layer, part.law, dtype, source)
    # If any layer has a skip connection, all layers write the representation.
    return spec._replace(skipped=run.keeps_x, scaled=run.splits_scale)


def fits(run: Run) -> bool:
    """Return whether the shared memory of the device suffices for the kernels of a run.

    A float32 chain may continue in float64.
    """
    specs = [
        _spec_of(run, part, _source_of(run), dtype)
        for part in _parts_of(run)[1:]
        for dtype in {run.dtype, "float64"}
    ]
    return all(shape_of(spec).bytes <= shared_memory() for spec in specs)


def _ranges(numbers: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Return increasing numbers as ranges of consecutive numbers."""
    breaks = np.flatnonzero(np.diff(numbers) > 1) + 1
    return [(int(part[0]), int(part[-1]) + 1) for part in np.split(numbers, breaks) if part.size]
