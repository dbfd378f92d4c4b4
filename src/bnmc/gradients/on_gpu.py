"""A backward pass on a GPU: many chains at a time, a few launches per layer.

The kernels are those of `_kernels.gpu.backward`, the forward pass is that of the sampler on GPUs.
Plain layers have the dtype of the rows, and a chain that float32 does not resolve goes on with the
kernels of the CPU.  Layers in passes and layers with orthogonal weights are float64: with dtype
"float32" the normals of the rows have this precision, as on the CPU.

Random numbers are those of the CPU, so results agree up to rounding, but for the backward pass of
layers in passes: `ReplayedRows` of `network.py` draws the rows Z in another way, so results of CPU
and GPU have the same law.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnmc._kernels.gpu import arguments, backward, passes
from bnmc._kernels.gpu.arguments import NOTHING
from bnmc._kernels.gpu.backward_frame import sums_of
from bnmc._kernels.gpu.block import NOT_STOPPED, REASON_MASK, STEP_BITS, STOPPED_UNRESOLVED
from bnmc._kernels.gpu.build import Kernels, kernels_of
from bnmc._kernels.gpu.device import cuda as numba_cuda
from bnmc._kernels.gpu.device import shared_memory
from bnmc._kernels.gpu.shape import MOST_RANGES, Spec
from bnmc._kernels.scalar import codes
from bnmc._support.interruption import Stop
from bnmc.chain.activations import slope_of
from bnmc.chain.compiled import specs_of
from bnmc.chain.layers import Layer
from bnmc.chain.start import Start
from bnmc.errors import BackendError
from bnmc.gradients.descent import Stretch
from bnmc.gradients.directions import GivenRows, Readout
from bnmc.gradients.observables import Gradients
from bnmc.gradients.parts import Pass, RowPass, Task
from bnmc.simulation.engine.gpu.arrays import device_memory
from bnmc.simulation.engine.gpu.launches import Launches, kernel_spec, neighbours, raise_noted
from bnmc.simulation.engine.gpu.samplers import GpuSampler
from bnmc.simulation.runs import Run

Float64Array = NDArray[np.float64]

#: Bytes that the matrices of a stretch of layers of all chains of a part, or its representations,
#: may take.
PART_BYTES = 1 << 28

#: Most chains of a part: they are an axis of the grid.
_MOST_OF_GRID = 65_535

_FEWER_CHAINS = "backpropagate fewer chains at a time, or on the CPU"


class GpuTask(Task):
    """A `Task` whose chains are on a GPU."""

    def pass_of(self, run: Run, start: Start, stop: Stop) -> Pass:
        """Return the pass of the chains of a run."""
        return _GpuPass(self, run, start, stop)

    def require_device(self) -> None:
        """Raise unless the shared memory of a block suffices.

        Raises
        ------
        BackendError
        """
        needed = self.kernels.bytes
        if needed > shared_memory():
            raise BackendError(
                "cuda",
                f"gradients of {self.run.columns} columns in {self.run.dtype} need {needed} bytes "
                f"of shared memory, the device has {shared_memory()}: backend='cpu'",
            )

    @property
    def layer(self) -> Layer:
        """The layer that repeats."""
        return self.run.repeated

    @property
    def in_passes(self) -> bool:
        """Whether layers are in passes over their rows."""
        return not self.layer.is_plain

    @property
    def law(self) -> codes.LayerSpec:
        """What kernels know of the layer."""
        return specs_of(self.run.layers, self.run.inputs or 1)[-1]

    @property
    def kernels(self) -> Kernels:
        """The kernels of the backward pass."""
        (linear, rows, *_), dtype = self.layer, self.run.dtype
        is_double = self.in_passes or linear.law.is_orthogonal
        spec = kernel_spec(self.layer, self.law, "float64" if is_double else dtype)
        return kernels_of(
            spec._replace(
                slope=slope_of(rows.activation).digest,
                narrow=is_double and dtype == "float32",
                is_orthogonal=linear.law.is_orthogonal,
                scaled=False,
                is_convolved=self.in_passes and linear.convolution is not None,
            )
        )

    @property
    def sums(self) -> int:
        """How many sums over rows a range of tiles has."""
        return sums_of(self.kernels.shape, self.layer.linear.patches.taps)

    @property
    def chains_of_pass(self) -> int:
        """The largest number of chains of a pass."""
        return self.run.chains

    @property
    def most_chains(self) -> int:
        """The largest number of chains of a part, by memory."""
        columns, law = self.run.columns, self.law
        size = 24 * columns**2
        if self.run.keeps_x:
            itemsize = 8 if self.in_passes else np.dtype(self.run.dtype).itemsize
            size += itemsize * columns * law.width
        size *= 2 * math.isqrt(self.run.depth) + 2
        if self.in_passes:
            shape = self.kernels.shape
            size += 8 * min(shape.tiles(law.width), MOST_RANGES) * self.sums
            if law.groups:
                size += 16 * 3 * columns * passes.segments_of(shape, law.width, law.groups)
        return max(1, min(_MOST_OF_GRID, PART_BYTES // size))


class _NarrowSampler(GpuSampler):
    """The forward pass in float64, of float32 normals."""

    narrow = True


class _GpuPass(RowPass):
    """The work of one task; between stretches of layers, the device keeps where the chains are."""

    task: GpuTask
    device: arguments.Descents
    #: The stage of the layers that the chains have reached, and their log-scales.
    stage: int
    log_scales: Float64Array
    #: The chains that the kernels of the CPU take, because float32 does not resolve them.
    on_cpu: NDArray[np.bool_]

    def _sampler(self) -> GpuSampler:
        kind, dtype = GpuSampler, self.run.dtype
        if self.task.in_passes:
            kind, dtype = _NarrowSampler if dtype == "float32" else kind, "float64"
        return kind(replace(self.run, path="conditional", backend="cuda", dtype=dtype))

    def _record(self, stretch: Stretch, gradients: Gradients) -> None:
        rows, hidden = self.task.layer.rows, gradients.products[:, :, 2:]
        if rows.hides_common_part() and not rows.keeps_normed:
            # hᵀδ without the means of the rows of h, which no later layer sees.
            by_batch = hidden.reshape(*hidden.shape[:3], -1, rows.batch, hidden.shape[-1])
            seen = by_batch - by_batch.mean(axis=-2, keepdims=True)
            hidden[:] = seen.reshape(hidden.shape)
        super()._record(stretch, gradients)

    def _descend(self, stretch: Stretch, gradients: Gradients) -> None:
        if self.stop.is_set():
            return  # the stretch may lack layers
        (products, scales), layers, n = gradients, stretch.layers, self.run.columns
        is_top = stretch.first + layers == self.run.depth
        # Whether the last layer has its gradient already; else the states are above it.
        has_top = is_top and not isinstance(self.task.direction, Readout)
        size = 8 * products.size + stretch.xs.nbytes + stretch.grams.nbytes
        with device_memory("chains", size, _FEWER_CHAINS):
            of_layers = self._layers_of(stretch)
            if is_top:
                self._begin_all(stretch, gradients, has_top)
            of = self.device._replace(
                record=self._empty(layers, products.shape[2], n, n), factors=self._empty(layers)
            )
            notes = self._launch(stretch, of_layers, of, has_top)
            of.record.copy_to_host(products)
            factors = of.factors.copy_to_host()
        # The factors are powers of two.  A readout has no gain.
        changes = self._lift + 1.0 - np.frexp(factors)[1]
        if has_top:
            changes[:, -1] = 0.0
        elif self.stage == codes.READOUT:
            changes[:, -1] -= self._lift
        scales[:] = self.log_scales[:, None] + changes[:, ::-1].cumsum(axis=1)[:, ::-1]
        done = np.where(notes == NOT_STOPPED, layers, notes >> STEP_BITS)
        for index in np.flatnonzero(self.on_cpu | (done < layers)).tolist():
            if self.stop.is_set():
                return
            rest, of_chain = layers, gradients.chain(index)
            if not self.on_cpu[index]:
                rest = layers - int(done[index])
                self._leave(stretch, index, int(notes[index]), of_chain.scales, has_top)
            elif has_top:
                rest -= self._begin(stretch, index, of_chain.products)
            if rest:
                self.descents[index].through(stretch, index, of_chain.part(0, rest))
        self.log_scales, self.stage = scales[:, 0].copy(), self._stage_after(layers, has_top)

    def _stage_after(self, done: int, has_top: bool) -> int:
        """Return the stage of the layer that a chain has reached by so many of a stretch."""
        if done == 0:
            return self.stage
        return codes.TOP if has_top and done == 1 else codes.INNER

    def _leave(
        self, stretch: Stretch, index: int, noted: int, scales: Float64Array, has_top: bool
    ) -> None:
        """Leave a chain that float32 does not resolve to the CPU; raise what else stopped one."""
        done, reason = noted >> STEP_BITS, noted & REASON_MASK
        if reason != STOPPED_UNRESOLVED:
            last = stretch.first + stretch.layers
            raise_noted(reason, self.run.first + index, last - done)
        descent, self.on_cpu[index] = self.descents[index], True
        descent.backward_dtype, descent.stage = "float64", self._stage_after(done, has_top)
        descent.log_scale = float(np.append(scales, self.log_scales[index])[len(scales) - done])
        descent.state = self.device.state[index].copy_to_host()
        if self.run.keeps_x:
            descent.above = descent.blocks_of(self.device.above[index].copy_to_host())

    @property
    def _law(self) -> codes.LayerSpec:
        """The layers, in the units of the rows."""
        return self.sampler.spec

    @property
    def _lift(self) -> int:
        """The power of two by which the units of a layer are larger than those of the gain."""
        return self.sampler.lift

    def _begin_all(self, stretch: Stretch, gradients: Gradients, has_top: bool) -> None:
        """Begin at the top: the states of all chains, on the device."""
        linear, count, n = self.task.layer.linear, self.run.chains, self.run.columns
        # For the whole descent, so that bits do not depend on how it is cut into stretches.
        self.on_cpu = stretch.wide.copy()
        for index in range(0 if has_top else count):
            self._begin(stretch, index, gradients.products[index])
        self.stage = self.descents[0].stage
        self.log_scales = np.array([each.log_scale for each in self.descents])
        given = self._given() if has_top else NOTHING
        # What the layer saw that is above the first one to reach from above.
        seen = self._covariances(stretch.grams[:, -2]) if has_top else stretch.grams[:, -1]
        bases = np.stack([of.basis_of(gram) for of, gram in zip(self.descents, seen, strict=True)])
        if linear.law.is_orthogonal:
            # A Gram matrix of `width` rows has no larger rank.
            for basis in bases:
                basis[:, np.flatnonzero(np.diagonal(basis))[linear.width :]] = 0.0
        above = NOTHING
        if self.run.keeps_x:
            above = numba_cuda.to_device(np.zeros((count, n, stretch.xs.shape[-1]), self._dtype))
        state = numba_cuda.to_device(np.stack([each.state for each in self.descents]))
        basis, mixing = numba_cuda.to_device(bases), self._empty(n, n)
        self.device = arguments.Descents(given, above, state, basis, mixing, NOTHING, NOTHING)

    def _given(self) -> Any:
        """Return δ at the top on the device; an array without columns if it is normal."""
        direction, count = self.task.direction, self.run.chains
        if not isinstance(direction, GivenRows):
            return numba_cuda.to_device(np.zeros((1, 0, 1)))
        rows = direction.rows
        if len(rows) > 1:
            rows = rows[self.run.first : self.run.first + count]
        if self.task.in_passes:
            # Divided by a power of two, as on the CPU: squares of large numbers leave their range.
            largest = np.abs(rows).max(axis=(1, 2))
            exponents = np.where(largest > 0.0, np.frexp(largest)[1], 0)
            self.log_scales[:] = exponents
            rows = np.ldexp(rows, -exponents[:, None, None])
        return numba_cuda.to_device(np.ascontiguousarray(rows))

    def _layers_of(self, stretch: Stretch) -> arguments.Layers:
        """Copy the layers of a stretch to the device."""
        law, before = self._law, stretch.grams[:, :-1]
        scales = np.full(before.shape[:2], law.gain)
        if law.hides_scale:
            # The scale of the rows h, in place of the gain, which N ignores.
            largest = np.diagonal(before, axis1=-2, axis2=-1).max(axis=-1)
            scales = np.ldexp(1.0, -(np.frexp(largest)[1] // 2))
        ratios = np.exp2(stretch.units[:, :-1] - stretch.units[:, 1:] + float(self._lift))
        arrays = [(self._covariances(before), "float64"), (scales, "float64"), (ratios, "float64")]
        if self.run.keeps_x:
            arrays.append((stretch.xs, self._dtype))
        sent = [numba_cuda.to_device(np.ascontiguousarray(*each)) for each in arrays]
        return arguments.Layers(*sent, *(NOTHING,) * (4 - len(sent)))

    def _empty(self, *lengths: int) -> Any:
        return numba_cuda.device_array((self.run.chains, *lengths), np.float64)

    @property
    def _dtype(self) -> str:
        return self.task.kernels.shape.spec.dtype

    def _covariances(self, grams: Float64Array) -> Float64Array:
        """Return the covariances of the rows of W a, given the Gram matrices of the layers."""
        return self.task.layer.covariance(grams) if self.task.in_passes else grams

    def _launch(
        self, stretch: Stretch, layers: arguments.Layers, of: arguments.Descents, has_top: bool
    ) -> NDArray[np.int64]:
        """Launch the kernels of all layers; return the notes of why chains stopped, and where."""
        task, law, kernels, run = self.task, self._law, self.task.kernels, self.run
        n, in_passes, extra = run.columns, task.in_passes, NOTHING
        status = np.where(self.on_cpu, np.int64(-1), np.int64(NOT_STOPPED))
        launches = Launches(kernels.shape, run.chains, law.width, task.sums, 0, status)
        address = arguments.Address(run.first, *self.sampler.key_words)
        # The law has gain 1 if the norm of layers in passes does not see the scale of rows.
        gain = task.layer.linear.gain if in_passes else law.gain
        constant = math.sqrt(law.width) * law.bias / gain if in_passes else 0.0
        numbers = arguments.Numbers(law, gain, constant, task.wants_hidden)
        if in_passes:
            extra = self._standards()
        if task.layer.linear.law.is_orthogonal:
            extra = arguments.Noise(
                self._empty(n, n), self._empty(2, n, n), self._empty(n, n), self._empty(n),
                self._empty(), self._empty(), 0, False,
            )  # fmt: skip

        def add(*functions: Any, with_rest: bool) -> None:
            """Add kernels of a layer, of which the first ones make its normals orthogonal."""
            for number in range(codes.MOST_PASSES if isinstance(extra, arguments.Noise) else 0):
                noise = extra._replace(number=number, with_rest=with_rest)
                fixed = layers, of, noise, numbers, launches.work, address
                launches.add(kernels, backward.orthogonalise, launches.ranges, *fixed, ends=4)
            for function in functions:
                fixed = layers, of, extra, numbers, launches.work, address
                launches.add(kernels, function, launches.ranges, *fixed, ends=4)

        at = stretch.layers - 1
        if has_top:
            add(backward.top, with_rest=False)
            launches.run([(codes.TOP, run.depth, at)])
            launches.clear()
            at -= 1
        average = (backward.average,) if law.groups else ()
        if law.groups:
            self._add_moments(launches, layers, extra, address)
        add(backward.begin, *average, backward.descend, with_rest=True)
        if has_top:
            # As if the top took as many launches as another layer.
            launches.step = launches.count_of_layer
        launches.run(
            (self.stage if place == at else codes.INNER, stretch.first + 1 + place, place)
            for place in range(at, -1, -1)
        )
        return launches.of_layers(launches.work.status.copy_to_host())

    def _standards(self) -> arguments.Standards:
        """Return the arrays of layers in passes."""
        law, n, convolution = self._law, self.run.columns, self.task.layer.linear.convolution
        taps = one_tap = shifts = inverses = means = segments = NOTHING
        if convolution is not None:
            taps = neighbours(convolution, n)
            one_tap = numba_cuda.to_device(np.arange(n, dtype=np.int64)[None])
        if law.groups:
            shifts, inverses = self._empty(law.groups, n), self._empty(law.groups, n)
            places = passes.segments_of(self.task.kernels.shape, law.width, law.groups)
            means, segments = self._empty(2, law.groups, n), self._empty(2, places, 2, n)
        return arguments.Standards(shifts, inverses, means, segments, taps, one_tap)

    def _add_moments(
        self, launches: Launches, layers: arguments.Layers, extra: arguments.Standards, address: Any
    ) -> None:
        """Add the kernel of the forward pass that measures the samples."""
        law, of_backward = self._law, self.task.kernels.shape.spec
        spec: Spec = kernel_spec(self.task.layer, law, "float64")
        kernels = kernels_of(spec._replace(narrow=of_backward.narrow))
        places = passes.segments_of(kernels.shape, law.width, law.groups)
        segments, work = self._empty(places, 2, law.columns), launches.work._replace(sums=NOTHING)

        def of_layer(at: int) -> tuple[Any, ...]:
            # This kernel takes the arrays of one layer.
            xs = layers.xs[:, at] if self.run.keeps_x else NOTHING
            covariances, shifts = layers.covariances[:, at], extra.shifts
            of = arguments.Passes(covariances, NOTHING, segments, shifts, extra.inverses)
            return arguments.State(NOTHING, xs, NOTHING), of, law, work, address

        start = launches.prepared(
            kernels, passes.moments, kernels.shape.tiles(law.width), (*of_layer(0), 0, 0, 0)
        )
        launches.add_function(lambda _, layer, at, step: start(*of_layer(at), -1, layer, step))
