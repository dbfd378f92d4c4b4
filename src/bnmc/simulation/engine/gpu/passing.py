"""Layers on a GPU that are not plain: in passes over their rows, and with maps of the Gram matrix.

The kernels are those of `_kernels.gpu.passes`.  A layer takes as many launches as it has parts: the
covariance of the rows, or the activations that all taps see; the moments; the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnmc._kernels.gpu.block import NOT_STOPPED
from bnmc._kernels.gpu.build import Kernels
from bnmc._kernels.gpu.device import cuda as numba_cuda
from bnmc._kernels.gpu.device import launch, ready
from bnmc._kernels.gpu.passes import cover, segments_of, unfold
from bnmc._kernels.gpu.shape import (
    DRAWN,
    KEPT,
    MOST_RANGES,
    MULTIPLIED,
    NO_BIAS,
    NORMAL_BIAS,
    UNIFORM_BIAS,
    Passing,
)
from bnmc._kernels.scalar import codes
from bnmc.chain.chain import Chain
from bnmc.chain.compiled import spec_of

__all__ = ["GpuPasses"]

#: Threads of a block of the kernels that do one thing per entry.
THREADS = 256


class Arrays(NamedTuple):
    """The state of some chains on the device, and where they are recorded."""

    grams: Any
    xs: Any
    kept: Any
    target: tuple[Any, ...]


class Address(NamedTuple):
    """The address of the random numbers of the first layer of the first chain."""

    first_chain: int
    layer: int
    key0: np.uint32
    key1: np.uint32


class _Work(NamedTuple):
    """Work space on the device; see `_kernels.gpu.passes`."""

    covariances: Any
    factors: Any
    segments: Any
    shifts: Any
    scales: Any


class GpuPasses:
    """What the layers of a chain that are not plain need beside the state.

    Parameters
    ----------
    chain : Chain
    columns : int
        Number of samples in all input batches.
    """

    def __init__(self, chain: Chain, columns: int) -> None:
        self.chain, self.columns = chain, columns
        self.spec = spec_of(chain)
        taps = np.arange(columns)[None]
        if chain.convolution is not None:
            taps = chain.convolution.neighbours(columns)
        self.neighbours = numba_cuda.to_device(np.ascontiguousarray(taps, np.int64))

    @staticmethod
    def are_needed(chain: Chain) -> bool:
        """Whether the layers of a chain are not plain."""
        return not (chain.is_row_by_row and chain.covariance.is_identity)

    @staticmethod
    def passing(chain: Chain, source: int) -> Passing:
        """Return for which properties the kernels of a source of rows are compiled."""
        spec, bias = spec_of(chain), NO_BIAS
        if source == MULTIPLIED and spec.bias > 0.0:
            bias = UNIFORM_BIAS if spec.uniform_bias else NORMAL_BIAS
        is_convolved = source == MULTIPLIED and chain.convolution is not None
        return Passing(spec.order, spec.norm, spec.groups > 0, spec.centred, bias, is_convolved)

    @property
    def bias_of_covariance(self) -> float:
        """What the bias adds to all entries of a covariance."""
        return self.chain.bias_variance / self.chain.gain**2 if self.chain.shows_bias else 0.0

    def bytes_of_chain(self, shape: Any) -> int:
        """Return the bytes that one chain needs on the device beside state and sums."""
        groups, width = max(1, self.spec.groups), self.chain.width
        size = 8 * self.columns**2 + 16 * groups * self.columns
        if self.spec.groups:
            size += 16 * self.columns * segments_of(shape, width, groups)
        if shape.spec.source == MULTIPLIED and self.chain.convolution is not None:
            size += 8 * self.chain.fan_in * self.columns
        return size

    def start(
        self,
        kernels: Callable[[int], Kernels],
        source: int,
        arrays: Arrays,
        law: codes.LayerSpec,
        address: Address,
        slots: NDArray[np.int64],
        blocks: int,
        stream: Any,
    ) -> tuple[Any, Any]:
        """Start the kernels of layers; return their status array, and arrays that must live on.

        Parameters
        ----------
        kernels : callable
            Returns the kernels of a source of rows.
        source : int
            DRAWN or MULTIPLIED.
        arrays : Arrays
        law : LayerSpec
        address : Address
        slots : (layers,) int64
            Where each layer is recorded; -1 for nowhere.
        blocks : int
            Largest number of blocks among which the rows of a chain are divided.
        """
        count = arrays.grams.shape[0]
        first = kernels(source)
        second = kernels(KEPT) if law.groups and source == MULTIPLIED else first
        status = numba_cuda.to_device(np.full(count, NOT_STOPPED), stream=stream)
        arrived = numba_cuda.to_device(np.zeros(count, np.int32), stream=stream)
        work = self._work(first, source, arrays, address.layer)
        ranges = min(second.shape.tiles(law.width), MOST_RANGES)
        sums = numba_cuda.device_array((count, ranges, second.shape.entries), np.float64)
        eps_of_factor = 0.0 if law.hides_scale else 1.0
        of_law = (
            law.width, law.fan_in, law.skip, law.gain, law.bias, eps_of_factor, law.eps,
        )  # fmt: skip

        own: tuple[Any, ...]
        tasks: list[Callable[[int, int, int], None]] = []
        if work.covariances is not arrays.grams:
            tasks.append(
                lambda step, layer, slot: launch(
                    cover, count, THREADS, 0, stream, arrays.grams, self.neighbours,
                    self.bias_of_covariance, work.covariances,
                )
            )  # fmt: skip
        if self._is_convolved(source):
            tasks.append(
                lambda step, layer, slot: launch(
                    unfold, (blocks, count), THREADS, 0, stream, arrays.kept, layer,
                    law.width, self.neighbours, work.factors,
                )
            )  # fmt: skip

        def row_task(
            kernel: Any, of: Kernels, most: int, before: tuple[Any, ...], *, records: bool
        ) -> Callable[[int, int, int], None]:
            def arguments(step: int, layer: int, slot: int) -> tuple[Any, ...]:
                recorded = (*arrays.target, slot) if records else ()
                return (
                    *before, *recorded, status, *of_law, address.first_chain, layer, step,
                    address.key0, address.key1,
                )  # fmt: skip

            # Prepared once, since a layer may be as short as the launch of a kernel by Python.
            start = ready(
                kernel, (min(blocks, most), count), of.shape.threads, of.shape.bytes, stream,
                arguments(0, 0, 0),
            )  # fmt: skip
            return lambda step, layer, slot: start(*arguments(step, layer, slot))

        rows = work.covariances, arrays.xs, arrays.kept, work.factors
        moments = work.shifts, work.scales
        if law.groups:
            own = (*rows, work.segments, *moments, arrived)
            tiles = first.shape.tiles(law.width)
            tasks.append(row_task(first.moments, first, tiles, own, records=False))
        own = (arrays.grams, *rows, *moments, sums, arrived)
        tasks.append(row_task(second.finish, second, ranges, own, records=True))
        for step, slot in enumerate(slots.tolist()):
            for task in tasks:
                task(step, address.layer + step, slot)
        return status, (sums, arrived, work, arrays)

    def _is_convolved(self, source: int) -> bool:
        """Whether weights of several taps are multiplied."""
        return source == MULTIPLIED and self.chain.convolution is not None

    def _work(self, kernels: Kernels, source: int, arrays: Arrays, layer: int) -> _Work:
        count, n = arrays.grams.shape[0], self.columns
        groups = max(1, self.spec.groups)

        def doubles(*lengths: int) -> Any:
            return numba_cuda.device_array((count, *lengths), np.float64)

        covariances = arrays.grams
        # Layer 0 is drawn given its covariance itself.
        if source == DRAWN and layer > 0 and not self.chain.covariance.is_identity:
            covariances = doubles(n, n)
        places = segments_of(kernels.shape, self.chain.width, groups) if self.spec.groups else 1
        lengths = (1, 1, 1)
        if self._is_convolved(source):
            lengths = (count, self.chain.fan_in, n)
        factors = numba_cuda.device_array(lengths, arrays.kept.dtype)
        shifts, scales = doubles(groups, n), doubles(groups, n)
        return _Work(covariances, factors, doubles(places, 2, n), shifts, scales)
