"""A backward pass on a GPU of chains with orthogonal weights.

The kernels are those of `_kernels.gpu.backward_orthogonal`, in float64.  With dtype "float32" the
normals have this precision.  The forward pass is that of `GpuConditionalSampler`, whose rows have
the dtype.  All random numbers are those of the CPU, so results agree up to rounding.  A float32
chain whose forward pass goes on in float64 has its backward pass on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnmc._kernels.gpu.build import BackwardOrthogonal, backward_orthogonal_of
from bnmc._kernels.gpu.device import cuda as numba_cuda
from bnmc._kernels.gpu.shape import Spec
from bnmc._kernels.scalar import codes
from bnmc.chain.chain import Chain
from bnmc.chain.compiled import norm_of_factor, sigma_of, spec_of
from bnmc.chain.slopes import slope_of
from bnmc.gradients.on_gpu import Arrays, GpuLaunch, GpuPass, GpuTask

__all__ = ["GpuOrthogonalTask"]


def _kernels(chain: Chain, inputs: int, dtype: str) -> BackwardOrthogonal:
    """Return the kernels of a chain."""
    spec = Spec(
        chain.batch * inputs, chain.batch, norm_of_factor(spec_of(chain, inputs)),
        chain.skip != 0.0, False, "float64",
        sigma_of(chain.activation).digest, slope=slope_of(chain.activation).digest,
        narrow=dtype == "float32",
    )  # fmt: skip
    return backward_orthogonal_of(spec)


class GpuOrthogonalTask(GpuTask):
    """A `GpuTask` of chains with orthogonal weights."""

    def _pass(self) -> type[GpuPass]:
        return _OrthogonalPass

    def _bytes_of_block(self) -> int:
        return _kernels(self.chain, self.inputs or 1, self.dtype).room.bytes


class _OrthogonalPass(GpuPass):
    """The work of one task."""

    def _launch(self) -> type[GpuLaunch]:
        return _OrthogonalLaunch


class _OrthogonalLaunch(GpuLaunch):
    """The way of all chains of a part down through a stretch of layers."""

    # The launches of `orthogonalise` for a layer share a step.
    launches, of_top = 3, 2

    def _dtype(self) -> str:
        return "float64"

    def _kernels(self) -> BackwardOrthogonal:
        return _kernels(self.task.chain, self.task.inputs or 1, self.task.dtype)

    def _bases_of(self, seen: NDArray[np.float64]) -> NDArray[np.float64]:
        bases = super()._bases_of(seen)
        # A Gram matrix of `width` rows has no larger rank.
        for basis in bases:
            basis[:, np.flatnonzero(np.diagonal(basis))[self.spec.width :]] = 0.0
        return bases

    def _start(self, arrays: Arrays, hidden: bool) -> None:
        count, n = len(self.descents), self.spec.columns

        def empty(*lengths: int) -> Any:
            return numba_cuda.device_array((count, *lengths), np.float64)

        #: See the kernels.
        self.inverse, self.work, self.root = empty(n, n), empty(2, n, n), empty(n, n)
        self.regular, self.powers, self.leasts = empty(n), empty(), empty()
        super()._start(arrays, hidden)

    def _at_top(self, arrays: Arrays, hidden: bool) -> list[Callable[[int, int, int, int], None]]:
        law, results = self.spec, (arrays.record, arrays.factors, arrays.status)

        def top(stage: int, *address: int) -> tuple[Any, ...]:
            return (
                arrays.grams, arrays.scales, arrays.xs, self._given(), arrays.above, arrays.state,
                self.inverse, arrays.sums, arrays.arrived, *results, law.width, self._gain,
                law.skip, hidden, self.first_chain, *address, *self._keys,
            )  # fmt: skip

        return [self._orthogonalise(arrays, False), self._prepared(self.kernels.top, top)]

    def _tasks(self, arrays: Arrays, hidden: bool) -> list[Callable[[int, int, int, int], None]]:
        law, of_layers = self.spec, (arrays.grams, arrays.scales)
        of_sums = arrays.sums, arrays.arrived
        results = arrays.record, arrays.factors, arrays.status

        def begin(stage: int, *address: int) -> tuple[Any, ...]:
            return (
                *of_layers, arrays.ratios, arrays.xs, arrays.state, arrays.basis, arrays.mixing,
                self.inverse, self.work, self.root, self.regular, self.powers, *of_sums,
                arrays.status, law.width, law.skip, law.eps, stage, self.first_chain, *address,
                *self._keys,
            )  # fmt: skip

        def descend(stage: int, *address: int) -> tuple[Any, ...]:
            # A readout has no gain and no skip connection.
            gain, skip = (1.0, 0.0) if stage == codes.READOUT else (law.gain, law.skip)
            return (
                *of_layers, arrays.xs, arrays.above, arrays.state, arrays.mixing, self.inverse,
                self.root, self.regular, self.powers, *of_sums, *results, law.width, gain, skip,
                law.gain, law.skip, law.eps, stage, hidden, self.first_chain, *address,
                *self._keys,
            )  # fmt: skip

        return [
            self._orthogonalise(arrays, True),
            self._prepared(self.kernels.begin, begin),
            self._prepared(self.kernels.descend, descend),
        ]

    def _orthogonalise(
        self, arrays: Arrays, with_rest: bool
    ) -> Callable[[int, int, int, int], None]:
        """Return what launches the kernel that makes the normals of a layer orthogonal."""

        def launched(number: int) -> Callable[[int, int, int, int], None]:
            def arguments(stage: int, *address: int) -> tuple[Any, ...]:
                return (
                    arrays.grams, arrays.scales, arrays.state, arrays.basis, self.inverse,
                    self.work, self.root, self.regular, self.powers, self.leasts, arrays.sums,
                    arrays.arrived, arrays.status, self.spec.width, with_rest, number, stage,
                    self.first_chain, *address, *self._keys,
                )  # fmt: skip

            return self._prepared(self.kernels.orthogonalise, arguments)

        every = [launched(number) for number in range(codes.MOST_PASSES)]

        def launch(stage: int, *address: int) -> None:
            for one in every:
                one(stage, *address)

        return launch
