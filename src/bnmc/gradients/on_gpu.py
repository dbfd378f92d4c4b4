"""A backward pass on a GPU: many chains at a time, a few launches per layer.

The kernels are those of `_kernels.gpu.backward`, the forward pass is that of the sampler on GPUs.
Plain layers have the dtype of the rows, and a chain that float32 does not resolve goes on with the
kernels of the CPU.  Layers in passes and layers with orthogonal weights are float64: with dtype
"float32" the normals of the rows have this precision, as on the CPU.

Random numbers are those of the CPU, so results agree up to rounding, but for the backward pass of
layers in passes: `ReplayedRows` of `products.py` draws the rows Z in another way, so results of CPU
and GPU have the same law.
"""

from __future__ import annotations

import math
from dataclasses import replace
from threading import Event
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnmc._kernels.gpu import backward, passes
from bnmc._kernels.gpu.arguments import (
    NOTHING,
    Address,
    Descents,
    Layers,
    Noise,
    Numbers,
    Passes,
    Standards,
    State,
)
from bnmc._kernels.gpu.backward_frame import sums_of
from bnmc._kernels.gpu.block import (
    NOT_STOPPED,
    STEP_BITS,
    STOPPED_FLAT,
    STOPPED_NOT_FINITE,
    STOPPED_UNRESOLVED,
)
from bnmc._kernels.gpu.build import Kernels, kernels_of
from bnmc._kernels.gpu.device import cuda as numba_cuda
from bnmc._kernels.gpu.device import shared_memory
from bnmc._kernels.gpu.shape import MOST_RANGES, Spec
from bnmc._kernels.scalar import codes
from bnmc.chain.compiled import raise_stopped, spec_of
from bnmc.chain.slopes import slope_of
from bnmc.chain.start import Covariance, Representation
from bnmc.errors import BackendError
from bnmc.gradients.descent import Descent
from bnmc.gradients.directions import GivenRows, Readout
from bnmc.gradients.forward import Stretch
from bnmc.gradients.observables import Gradients
from bnmc.gradients.parts import Pass, RowPass, Task
from bnmc.simulation.engine.gpu.arrays import device_memory
from bnmc.simulation.engine.gpu.launches import Launches, is_plain, kernel_spec, neighbours
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

    def pass_of(self, run: Run, start: Covariance | Representation, stop: Event) -> Pass:
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
    def in_passes(self) -> bool:
        """Whether layers are in passes over their rows."""
        return not is_plain(self.run.chain)

    @property
    def law(self) -> codes.LayerSpec:
        """The layers of the chain."""
        return spec_of(self.run.chain, self.run.inputs or 1)

    @property
    def kernels(self) -> Kernels:
        """The kernels of the backward pass."""
        chain, dtype = self.run.chain, self.run.dtype
        is_double = self.in_passes or chain.is_orthogonal
        spec = kernel_spec(chain, self.law, "float64" if is_double else dtype)
        if spec.passing is not None:
            is_convolved = chain.convolution is not None
            spec = spec._replace(passing=spec.passing._replace(is_convolved=is_convolved))
        return kernels_of(
            spec._replace(
                slope=slope_of(chain.activation).digest,
                narrow=is_double and dtype == "float32",
                is_orthogonal=chain.is_orthogonal,
                scaled=False,
            )
        )

    @property
    def sums(self) -> int:
        """How many sums over rows a range of tiles has: aᵀZ of each tap, or those of a state."""
        convolution = self.run.chain.convolution
        taps = 1 if convolution is None else convolution.taps
        return max(sums_of(self.kernels.shape), taps * self.run.columns**2)

    @property
    def chains_of_pass(self) -> int:
        """The largest number of chains of a pass."""
        return self.run.chains

    @property
    def most_chains(self) -> int:
        """The largest number of chains of a part, by memory."""
        columns, law = self.run.columns, self.law
        size = 24 * columns**2
        if law.skip != 0.0:
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
    """The work of one task."""

    task: GpuTask
    #: The factors of what the layer above a stretch saw, as the stretch above has left them.
    bases: Float64Array | None = None
    #: The float32 chains whose last layer has float64 rows.
    wide: NDArray[np.bool_]

    def _sampler(self) -> GpuSampler:
        kind, dtype = GpuSampler, self.run.dtype
        if self.task.in_passes:
            kind, dtype = _NarrowSampler if dtype == "float32" else kind, "float64"
        return kind(replace(self.run, path="conditional", backend="cuda", dtype=dtype))

    def _record(self, stretch: Stretch, gradients: Gradients) -> None:
        chain, hidden = self.run.chain, gradients.products[:, :, 2:]
        in_branch = chain.order_code == codes.NORM_IN_BRANCH
        if in_branch and chain.normalization.hides_common_part:
            # hᵀδ without the means of the rows of h, which no later layer sees.
            by_batch = hidden.reshape(*hidden.shape[:3], -1, chain.batch, hidden.shape[-1])
            seen = by_batch - by_batch.mean(axis=-2, keepdims=True)
            hidden[:] = seen.reshape(hidden.shape)
        super()._record(stretch, gradients)

    def _descend(self, stretch: Stretch, gradients: Gradients) -> None:
        if self.stop.is_set():
            return  # the stretch may lack layers
        is_top = stretch.first + stretch.layers == self.run.depth
        if is_top:
            # For the whole descent, so that bits do not depend on how it is cut into stretches.
            self.wide = stretch.wide
        way = _Way(self, stretch, is_top and not isinstance(self.task.direction, Readout))
        for index in range(self.run.chains):
            # Kernels of the CPU begin with the rows of chains with which they go on.
            if way.wide[index] or not way.has_top:
                self._begin(stretch, index, gradients.products[index])
        way.descend(gradients)


class _Way:
    """The way of all chains of a part down through a stretch of layers.

    Parameters
    ----------
    of : _GpuPass
    stretch : Stretch
    has_top : bool
        Whether its last layer has its gradient already; else the descents have the state above it.
    """

    def __init__(self, of: _GpuPass, stretch: Stretch, has_top: bool) -> None:
        self.of, self.stretch, self.has_top = of, stretch, has_top
        self.task, self.run, self.chain, self.descents = of.task, of.run, of.run.chain, of.descents
        self.spec, self.lift = of.descents[0].spec, of.descents[0].lift
        self.layers, self.last = stretch.layers, stretch.first + stretch.layers
        self.kernels = of.task.kernels
        #: Launches of a layer, and of the top.
        self.launches = self.of_top = 1
        #: Chains that the kernels of the CPU take.
        self.wide = of.wide | np.array([each.is_wide for each in of.descents])

    def descend(self, gradients: Gradients) -> None:
        """Write the gradients of the layers after the first one."""
        stretch, products = self.stretch, gradients.products
        size = 8 * products.size + stretch.xs.nbytes + stretch.grams.nbytes
        with device_memory("chains", size, _FEWER_CHAINS):
            layers, of = self._arrays(products.shape[2])
            status = self._start(layers, of, hidden=products.shape[2] == 3)
            record, factors = of.record.copy_to_host(), of.factors.copy_to_host()
            states, self.of.bases = of.state.copy_to_host(), of.basis.copy_to_host()
            above = of.above.copy_to_host() if self.chain.skip != 0.0 else None
        for index, descent in enumerate(self.descents):
            if self.of.stop.is_set():
                return
            done, of_chain = self._finished(index, int(status[index])), gradients.chain(index)
            rest = self.layers - done
            of_chain.products[rest:] = record[index, rest:]
            if self.wide[index]:
                rest -= self.has_top
            else:
                self._take(descent, factors[index], of_chain.scales, done)
                descent.state = states[index]
                if above is not None:
                    descent.above = descent.blocks_of(above[index])
            if rest:
                descent.through(stretch, index, of_chain.part(0, rest))

    def _finished(self, index: int, noted: int) -> int:
        """Return the number of layers that a chain has reached, or raise its error."""
        if self.wide[index]:
            return 0
        if noted == NOT_STOPPED:
            return self.layers
        step, reason = int(noted >> STEP_BITS), noted & (1 << STEP_BITS) - 1
        done = (step + self.has_top * (self.launches - self.of_top)) // self.launches
        if reason == STOPPED_UNRESOLVED:
            self.descents[index].backward_dtype = "float64"
            return done
        self._raise(self.run.first + index, self.last - done, reason)
        raise AssertionError

    def _raise(self, chain: int, layer: int, reason: int) -> None:
        """Raise the error that a kernel noted."""
        if reason >= STOPPED_FLAT:
            raise_stopped(codes.FLAT_SAMPLE, chain, layer, reason - STOPPED_FLAT)
        code = codes.NOT_FINITE if reason == STOPPED_NOT_FINITE else codes.ZERO_VARIANCE
        raise_stopped(code, chain, layer, reason)

    def _take(
        self, descent: Descent, factors: Float64Array, log_scales: Float64Array, done: int
    ) -> None:
        """Write the log-scales of the layers that a chain has reached, and its stage."""
        for step in range(done):
            at, is_top = self.layers - 1 - step, step == 0 and self.has_top
            if not is_top:
                # A readout has no gain.
                lift = 0 if descent.stage == codes.READOUT else self.lift
                descent.log_scale += lift - math.log2(factors[at])
            log_scales[at] = descent.log_scale
            descent.stage = codes.TOP if is_top else codes.INNER

    def _arrays(self, matrices: int) -> tuple[Layers, Descents]:
        """Copy the layers, and the states of the chains, to the device."""
        law, stretch, layers, dtype = self.spec, self.stretch, self.layers, self._dtype
        count, n, send = len(self.descents), law.columns, numba_cuda.to_device
        grams = np.ascontiguousarray(stretch.grams[:, : layers + 1])
        units = stretch.units[:, : layers + 1]
        ratios = np.exp2(units[:, :-1] - units[:, 1:] + float(self.lift))
        seen = self._covariances(grams[:, :-1])
        if self.of.bases is None:
            # What the layer saw that is above the first one to reach from above.
            above_it = seen[:, -1] if self.has_top else grams[:, -1]
            self.of.bases = self._bases_of(above_it)
        xs = above = NOTHING
        if law.skip != 0.0:
            rows = np.zeros((count, n, stretch.xs.shape[-1]), dtype)
            for rows_of, descent, wide in zip(rows, self.descents, self.wide, strict=True):
                if descent.above is not None and not wide:
                    descent.copy_above(rows_of)
            xs, above = send(np.ascontiguousarray(stretch.xs, dtype)), send(rows)
        state = np.stack([each.state for each in self.descents])
        scales, ratios = self._scales(grams[:, :-1]), np.ascontiguousarray(ratios)
        of_layers = Layers(send(np.ascontiguousarray(seen)), send(scales), send(ratios), xs)
        return of_layers, Descents(
            given=self._given() if self.has_top else NOTHING,
            above=above,
            state=send(state),
            basis=send(self.of.bases),
            mixing=self._empty(n, n),
            record=self._empty(layers, matrices, n, n),
            factors=self._empty(layers),
        )

    def _empty(self, *lengths: int) -> Any:
        return numba_cuda.device_array((len(self.descents), *lengths), np.float64)

    @property
    def _dtype(self) -> str:
        return self.kernels.shape.spec.dtype

    def _bases_of(self, seen: Float64Array) -> Float64Array:
        """Return the factors of what a layer of each chain saw."""
        bases = [of.basis_of(gram) for of, gram in zip(self.descents, seen, strict=True)]
        if self.chain.is_orthogonal:
            # A Gram matrix of `width` rows has no larger rank.
            for basis in bases:
                basis[:, np.flatnonzero(np.diagonal(basis))[self.spec.width :]] = 0.0
        return np.stack(bases)

    def _covariances(self, grams: Float64Array) -> Float64Array:
        """Return the covariances of the rows of W a, given the Gram matrices of the layers."""
        return self.chain.covariance(grams) if self.task.in_passes else grams

    def _scales(self, grams: Float64Array) -> Float64Array:
        """Return the scale of the rows h of each layer, in place of the gain if N ignores it."""
        law = self.spec
        if not law.hides_scale:
            return np.full(grams.shape[:2], law.gain)
        largest = np.diagonal(grams, axis1=-2, axis2=-1).max(axis=-1)
        return np.ldexp(1.0, -(np.frexp(largest)[1] // 2))

    def _start(self, layers: Layers, of: Descents, *, hidden: bool) -> NDArray[np.int64]:
        """Launch the kernels of all layers; return the notes of why chains stopped."""
        task, law, kernels, n = self.task, self.spec, self.kernels, self.spec.columns
        status = np.where(self.wide, np.int64(-1), np.int64(NOT_STOPPED))
        launches = Launches(kernels.shape, len(self.descents), law.width, task.sums, 0, status)
        work = launches.work
        address = Address(
            self.run.first, np.uint32(self.run.key & 0xFFFFFFFF), np.uint32(self.run.key >> 32)
        )
        # The law has gain 1 if the norm of layers in passes does not see the scale of rows.
        gain = self.chain.gain if task.in_passes else law.gain
        constant = math.sqrt(law.width) * law.bias / gain if task.in_passes else 0.0
        numbers, extra = Numbers(law, gain, constant, hidden), NOTHING
        if task.in_passes:
            extra = self._standards()
        if self.chain.is_orthogonal:
            extra = Noise(
                self._empty(n, n), self._empty(2, n, n), self._empty(n, n), self._empty(n),
                self._empty(), self._empty(), 0, False,
            )  # fmt: skip

        def add(*functions: Any, with_rest: bool) -> None:
            """Add kernels of a layer, of which the first ones make its normals orthogonal."""
            for number in range(codes.MOST_PASSES if isinstance(extra, Noise) else 0):
                noise = extra._replace(number=number, with_rest=with_rest)
                fixed = layers, of, noise, numbers, work, address
                launches.add(kernels, backward.orthogonalise, launches.ranges, *fixed, ends=4)
            for function in functions:
                fixed = layers, of, extra, numbers, work, address
                launches.add(kernels, function, launches.ranges, *fixed, ends=4)

        at, stage = self.layers - 1, self.descents[0].stage
        if self.has_top:
            add(backward.top, with_rest=False)
            self.of_top = launches.count_of_layer
            launches.run([(codes.TOP, self.last, at)])
            launches.clear()
            at, stage = at - 1, codes.TOP
        average = (backward.average,) if law.groups else ()
        if law.groups:
            self._add_moments(launches, extra, address)
        add(backward.begin, *average, backward.descend, with_rest=True)
        self.launches = launches.count_of_layer
        stages = [stage] + [codes.INNER] * at
        places = range(at, -1, -1)
        launches.run(
            (stage, self.stretch.first + 1 + place, place)
            for stage, place in zip(stages, places, strict=False)
        )
        return work.status.copy_to_host()

    def _standards(self) -> Standards:
        """Return the arrays of layers in passes."""
        law, chain, n = self.spec, self.chain, self.spec.columns
        taps = one_tap = shifts = inverses = means = segments = NOTHING
        if chain.convolution is not None:
            taps = neighbours(chain, n)
            one_tap = numba_cuda.to_device(np.arange(n, dtype=np.int64)[None])
        if law.groups:
            shifts, inverses = self._empty(law.groups, n), self._empty(law.groups, n)
            places = passes.segments_of(self.kernels.shape, law.width, law.groups)
            means, segments = self._empty(2, law.groups, n), self._empty(2, places, 2, n)
        return Standards(shifts, inverses, means, segments, taps, one_tap)

    def _add_moments(self, launches: Launches, extra: Standards, address: Address) -> None:
        """Add the kernel of the forward pass that measures the samples."""
        law, stretch, send = self.spec, self.stretch, numba_cuda.to_device
        spec: Spec = kernel_spec(self.chain, law, "float64")
        kernels = kernels_of(spec._replace(narrow=self.kernels.shape.spec.narrow))
        places = passes.segments_of(kernels.shape, law.width, law.groups)
        segments = self._empty(places, 2, law.columns)
        seen = self._covariances(stretch.grams[:, : self.layers])
        work = launches.work._replace(sums=NOTHING)

        def arguments(at: int) -> tuple[Any, ...]:
            # This kernel takes the arrays of one layer.
            xs = NOTHING
            if law.skip != 0.0:
                xs = send(np.ascontiguousarray(stretch.xs[:, at], np.float64))
            covariances = send(np.ascontiguousarray(seen[:, at]))
            of = Passes(covariances, NOTHING, segments, extra.shifts, extra.inverses)
            return State(NOTHING, xs, NOTHING), of, law, work, address

        start = launches.prepared(
            kernels, passes.moments, kernels.shape.tiles(law.width), (*arguments(0), 0, 0, 0)
        )
        launches.add_function(lambda _, layer, at, step: start(*arguments(at), -1, layer, step))

    def _given(self) -> Any:
        """Return δ at the top on the device; an array without columns if it is normal."""
        direction, count = self.task.direction, len(self.descents)
        if not isinstance(direction, GivenRows):
            return numba_cuda.to_device(np.zeros((1, 0, 1)))
        rows = direction.rows
        if len(rows) > 1:
            rows = rows[self.run.first : self.run.first + count]
        if self.task.in_passes:
            # Divided by a power of two, as on the CPU: squares of large numbers leave their range.
            largest = np.abs(rows).max(axis=(1, 2))
            exponents = np.where(largest > 0.0, np.frexp(largest)[1], 0)
            of_chains = np.broadcast_to(exponents, count)
            for descent, exponent in zip(self.descents, of_chains, strict=True):
                descent.log_scale = float(exponent)
            rows = np.ldexp(rows, -exponents[:, None, None])
        return numba_cuda.to_device(np.ascontiguousarray(rows))
