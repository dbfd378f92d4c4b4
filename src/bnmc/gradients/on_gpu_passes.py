"""A backward pass on a GPU of layers in passes: other norms and orders, biases, convolutions.

The kernels are those of `_kernels.gpu.backward_passes`, in float64.  With dtype "float32" the
normals of the rows have this precision, and products are float64, as on the CPU.  The forward pass
has the random numbers of the CPU.  The backward pass has others, because `ReplayedRows` of
`products.py` draws the rows Z in another way: results of CPU and GPU have the same law.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnmc._kernels.gpu.backward_frame import sums_of
from bnmc._kernels.gpu.block import STOPPED_FLAT
from bnmc._kernels.gpu.build import (
    BackwardPasses,
    Kernels,
    backward_passes_of,
    kernels_of,
)
from bnmc._kernels.gpu.device import cuda as numba_cuda
from bnmc._kernels.gpu.device import processors, ready
from bnmc._kernels.gpu.passes import segments_of
from bnmc._kernels.gpu.shape import DRAWN, MOST_RANGES, Shape, Spec
from bnmc._kernels.scalar import codes
from bnmc.chain.chain import Chain
from bnmc.chain.compiled import norm_of_factor, raise_stopped, sigma_of, spec_of
from bnmc.chain.slopes import slope_of
from bnmc.gradients.directions import GivenRows
from bnmc.gradients.forward import Stretch
from bnmc.gradients.on_gpu import (
    BLOCKS_OF_PROCESSOR,
    MOST_OF_GRID,
    PART_BYTES,
    Arrays,
    GpuLaunch,
    GpuPass,
    GpuTask,
)
from bnmc.simulation.engine.gpu.passing import GpuPasses
from bnmc.simulation.engine.gpu.samplers import GpuConditionalSampler
from bnmc.simulation.engine.sampler import ScaledSampler

__all__ = ["GpuPassesTask"]


def _spec(chain: Chain, inputs: int, dtype: str) -> Spec:
    """Return the properties for which kernels of the backward pass are compiled."""
    passing = GpuPasses.passing(chain, DRAWN)
    return Spec(
        chain.batch * inputs, chain.batch, norm_of_factor(spec_of(chain, inputs)),
        chain.skip != 0.0, False, "float64", sigma_of(chain.activation).digest,
        passing=passing._replace(is_convolved=chain.convolution is not None),
        slope=slope_of(chain.activation).digest, narrow=dtype == "float32",
    )  # fmt: skip


class GpuPassesTask(GpuTask):
    """A `GpuTask` of layers in passes."""

    def _pass(self) -> type[GpuPass]:
        return _PassesPass

    def _bytes_of_block(self) -> int:
        spec = _spec(self.chain, self.inputs or 1, self.dtype)
        return backward_passes_of(spec).room.bytes

    @property
    def chains_of_part(self) -> int:
        """The largest number of chains of a part."""
        spec = _spec(self.chain, self.inputs or 1, self.dtype)
        shape, width, groups = backward_passes_of(spec).shape, self.chain.width, _groups(self.chain)
        size = 24 * self.columns**2
        if self.chain.skip != 0.0:
            size += 8 * self.columns * width
        size *= 2 * math.isqrt(self.depth) + 2
        size += 8 * min(shape.tiles(width), MOST_RANGES) * _sums_of(self.chain, shape)
        if spec.over_features:
            size += 16 * 3 * self.columns * segments_of(shape, width, groups)
        return max(1, min(MOST_OF_GRID, PART_BYTES // size))


def _groups(chain: Chain) -> int:
    return max(1, spec_of(chain).groups)


def _sums_of(chain: Chain, shape: Shape) -> int:
    """Return how many sums over rows a range of tiles has: aᵀZ of each tap, or those of a state."""
    return max(sums_of(shape), _taps(chain) * shape.spec.columns**2)


def _taps(chain: Chain) -> int:
    return 1 if chain.convolution is None else chain.convolution.taps


class _Sampler(GpuConditionalSampler):
    """The forward pass in float64, of float32 normals."""

    narrow = True


class _PassesPass(GpuPass):
    """The work of one task."""

    def _launch(self) -> type[GpuLaunch]:
        return _PassesLaunch

    def _sampler(self) -> ScaledSampler:
        task = self.task
        kind = _Sampler if task.dtype == "float32" else GpuConditionalSampler
        return kind(task.chain, self.count, task.inputs, "float64", task.key, self.first)

    def _record(
        self, stretch: Stretch, states: NDArray[np.float64], scales: NDArray[np.float64]
    ) -> None:
        chain, products = self.task.chain, states[:, :, 2:]
        in_branch = chain.order_code == codes.NORM_IN_BRANCH
        if in_branch and chain.normalization.hides_common_part:
            # hᵀδ without the means of the rows of h, which no later layer sees.
            by_batch = products.reshape(*products.shape[:3], -1, chain.batch, products.shape[-1])
            seen = by_batch - by_batch.mean(axis=-2, keepdims=True)
            products[:] = seen.reshape(products.shape)
        super()._record(stretch, states, scales)


class _PassesLaunch(GpuLaunch):
    """The way of all chains of a part down through a stretch of layers."""

    kernels: BackwardPasses

    def _dtype(self) -> str:
        return "float64"

    def _kernels(self) -> BackwardPasses:
        task = self.task
        spec = _spec(task.chain, task.inputs or 1, task.dtype)
        #: The kernels of the forward pass, which sum the moments of samples.
        self.forward: Kernels = kernels_of(
            spec._replace(slope="", passing=GpuPasses.passing(task.chain, DRAWN))
        )
        #: Launches per layer, but for the one of the top.
        self.launches = 4 if spec.over_features else 2
        return backward_passes_of(spec)

    @property
    def _gain(self) -> float:
        # The law has gain 1 if the norm does not see the scale of rows.
        return self.task.chain.gain

    def _seen(self, grams: NDArray[np.float64]) -> NDArray[np.float64]:
        return self.task.chain.covariance(grams)

    def _sums_of(self, shape: Shape) -> int:
        return _sums_of(self.task.chain, shape)

    def _raise(self, chain: int, layer: int, reason: int) -> None:
        if reason >= STOPPED_FLAT:
            raise_stopped(codes.FLAT_SAMPLE, chain, layer, reason - STOPPED_FLAT)
        super()._raise(chain, layer, reason)

    def _given(self) -> Any:
        # Divided by a power of two, as on the CPU: squares of large numbers leave their range.
        direction, first = self.task.direction, self.first_chain
        if not isinstance(direction, GivenRows):
            return super()._given()
        rows = direction.rows
        if len(rows) > 1:
            rows = rows[first : first + len(self.descents)]
        largest = np.abs(rows).max(axis=(1, 2))
        exponents = np.where(largest > 0.0, np.frexp(largest)[1], 0)
        for descent, exponent in zip(
            self.descents, np.broadcast_to(exponents, len(self.descents)), strict=True
        ):
            descent.log_scale = float(exponent)
        return numba_cuda.to_device(np.ldexp(rows, -exponents[:, None, None]))

    def _tasks(self, arrays: Arrays, hidden: bool) -> list[Callable[[int, int, int, int], None]]:
        chain, law, kernels, eps = self.task.chain, self.spec, self.kernels, self.spec.eps
        count, n, groups = len(self.descents), law.columns, _groups(chain)
        of_layers, keys = (arrays.grams, arrays.scales), self._keys
        of_sums = arrays.sums, arrays.arrived
        results = arrays.record, arrays.factors, arrays.status
        # A readout has one tap.
        one_tap = every_tap = numba_cuda.to_device(np.arange(n, dtype=np.int64)[None])
        if chain.convolution is not None:
            every_tap = numba_cuda.to_device(chain.convolution.neighbours(n))
        constant = math.sqrt(law.width) * self.spec.bias / chain.gain if self.spec.bias else 0.0

        def empty(*lengths: int) -> Any:
            return numba_cuda.device_array((count, *lengths), np.float64)

        of_norm = empty(groups, n), empty(groups, n)
        means = empty(2, groups, n)

        def of_stage(stage: int) -> tuple[int, float, float, float, Any]:
            # Only the gradient through a norm at the state's own place has sums of zero.
            if stage == codes.INNER and self.spec.order != codes.NORM_FIRST:
                stage = codes.TOP
            # A readout has no gain, no skip connection and no bias.
            if stage == codes.READOUT:
                return stage, 1.0, 0.0, 0.0, one_tap
            return stage, chain.gain / _taps(chain), law.skip, constant, every_tap

        def mix(stage: int, *address: int) -> tuple[Any, ...]:
            stage, _, _, of_bias, taps = of_stage(stage)
            return (
                *of_layers, arrays.ratios, arrays.xs, *of_norm, arrays.state, arrays.basis,
                arrays.mixing, *of_sums, arrays.status, law.width, law.skip, of_bias, eps, stage,
                self.first_chain, *address, *keys, taps,
            )  # fmt: skip

        def lower(stage: int, *address: int) -> tuple[Any, ...]:
            stage, gain, skip, _, taps = of_stage(stage)
            return (
                *of_layers, arrays.xs, *of_norm, means, arrays.above, arrays.state, arrays.mixing,
                *of_sums, *results, law.width, gain, skip, chain.gain, law.skip, eps, stage,
                hidden, self.first_chain, *address, *keys, taps,
            )  # fmt: skip

        if kernels.average is None:
            return [self._prepared(kernels.mix, mix), self._prepared(kernels.lower, lower)]
        segments = empty(2, segments_of(kernels.shape, law.width, groups), 2, n)

        def average(stage: int, *address: int) -> tuple[Any, ...]:
            stage, gain, skip, _, taps = of_stage(stage)
            return (
                *of_layers, arrays.xs, *of_norm, arrays.above, arrays.state, arrays.mixing,
                segments, means, arrays.arrived, arrays.status, law.width, gain, skip, law.skip,
                eps, stage, self.first_chain, *address, *keys, taps,
            )  # fmt: skip

        return [
            self._moments(arrays, of_norm),
            self._prepared(kernels.mix, mix),
            self._prepared(kernels.average, average),
            self._prepared(kernels.lower, lower),
        ]

    def _moments(
        self, arrays: Arrays, of_norm: tuple[Any, Any]
    ) -> Callable[[int, int, int, int], None]:
        """Return what launches the kernel of the forward pass that measures the samples."""
        law, shape, count = self.spec, self.forward.shape, len(self.descents)
        places = segments_of(shape, law.width, _groups(self.task.chain))
        segments = numba_cuda.device_array((count, places, 2, law.columns), np.float64)
        seen = self._seen(self.stretch.grams[:, : self.layers])
        send, nothing = numba_cuda.to_device, numba_cuda.device_array
        kept, factors = nothing((1, 2, 1, 1), np.float64), nothing((1, 1, 1), np.float64)

        def arguments(at: int, layer: int, step: int) -> tuple[Any, ...]:
            # This kernel takes the arrays of one layer.
            xs = nothing((1, 1, 1), np.float64)
            if self.task.chain.skip != 0.0:
                xs = send(np.ascontiguousarray(self.stretch.xs[:, at]))
            return (
                send(np.ascontiguousarray(seen[:, at])), xs, kept, factors, segments, *of_norm,
                arrays.arrived, arrays.status, law.width, law.width, law.skip, law.gain,
                law.bias, 0.0 if law.hides_scale else 1.0, law.eps, self.first_chain, layer,
                step, *self._keys,
            )  # fmt: skip

        blocks = -(-BLOCKS_OF_PROCESSOR * processors() // count)
        start = ready(
            self.forward.moments, (min(blocks, shape.tiles(law.width)), count), shape.threads,
            shape.bytes, 0, arguments(0, 0, 0),
        )  # fmt: skip
        return lambda stage, layer, at, step: start(*arguments(at, layer, step))
