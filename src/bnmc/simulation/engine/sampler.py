"""The interface of samplers, and what all samplers share.

A sampler owns the state of every chain of an ensemble.  `begin` brings a range of chains to layer
0, and `advance` takes a range through layers; both write the Gram matrices of recorded layers.  The
values depend on key, chain and layer alone, never on how chains and layers were grouped.  All
samplers have the same law.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from bnmc._kernels.cpu import memory, numbers, rows
from bnmc._kernels.scalar import codes
from bnmc.chain.chain import Chain
from bnmc.chain.compiled import raise_stopped, sigma_of, spec_of
from bnmc.chain.homogeneity import splits_scale
from bnmc.chain.start import Covariance, Representation
from bnmc.errors import NonFiniteError
from bnmc.simulation.engine.precision import exponents_of, lifted
from bnmc.simulation.engine.state import Frames, Measure, State

__all__ = ["FloatArray", "Sampler", "ScaledSampler"]

FloatArray = NDArray[np.floating[Any]]

_Buffer = TypeVar("_Buffer")


def name_of(dtype: np.dtype[Any]) -> str:
    """Return the name of the dtype of rows; NumPy needs a microsecond for it."""
    return "float32" if dtype.itemsize == 4 else "float64"


class Sampler:
    """Base class: the law, the key, a buffer for each thread, and errors of kernels."""

    #: The value of `sampler` in `simulate`, and the key of the class in `SAMPLERS`.
    name: str
    path: str
    #: Whether threads may each advance a part of the chains.
    divisible = True
    #: Whether the scale of each sample is split off, in `Frames.units`.
    is_scaled = False
    #: Factor of the memory that the frames of a block of layers may take.
    frame_factor = 1

    def __init__(
        self,
        chain: Chain,
        chains: int,
        inputs: int | None,
        dtype: str,
        key: int,
        offset: int = 0,
    ) -> None:
        self.chain = chain
        self.chains = chains
        #: Number of the first chain in the whole ensemble.
        self.offset = offset
        self.inputs = inputs
        self.dtype = np.dtype(dtype)
        self.key = key
        self.columns = chain.batch * (inputs or 1)
        self.sigma = sigma_of(chain.activation)
        self.spec = spec_of(chain, inputs or 1)
        self.key_words = np.uint32(key & 0xFFFFFFFF), np.uint32(key >> 32)
        #: The float32 chains that continue in float64.
        self.wide = np.zeros(chains, np.bool_)
        #: The chains with a recorded Gram matrix that float32 rows do not resolve.
        self.unresolved = np.zeros(chains, np.bool_)
        #: The layer of the state that the sampler continues, or 0.
        self.layer = 0
        #: The numbers that kernels record in place of Gram matrices.
        self.measures: tuple[Measure, ...] = ()
        self._buffers = threading.local()
        self._allocate()

    def _allocate(self) -> None:
        """Make the arrays of all chains; the last step of `__init__`."""

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """The state of all chains, by name."""
        raise NotImplementedError

    @staticmethod
    def seconds(chain: Chain, columns: int, dtype: np.dtype[Any]) -> float:
        """Return the estimated time of one layer of one chain on one thread, in seconds."""
        raise NotImplementedError

    def take(self, state: State) -> None:
        """Continue a state, which is not changed."""
        for name, values in self.arrays.items():
            values[...] = state.arrays.get(name, 0)  # a GPU keeps fewer arrays
        self.layer = state.layer

    def record_only(self, wanted: tuple[Measure, ...]) -> None:
        """Record numbers in place of Gram matrices, unless `wanted` is empty."""
        self.measures = wanted

    @property
    def panels(self) -> int:
        """Number of parts of one layer that threads can share."""
        return 1

    def begin(
        self, start: Covariance | Representation, first: int, last: int, frames: Frames
    ) -> None:
        """Bring chains first:last to layer 0 and record it in slot 0."""
        raise NotImplementedError

    def record(self, frames: Frames) -> None:
        """Record the layer of the state, of all chains, in slot 0."""
        raise NotImplementedError

    def advance(
        self, first: int, last: int, layer: int, slots: NDArray[np.int64], frames: Frames
    ) -> None:
        """Take chains first:last from `layer` - 1 through len(slots) layers."""
        raise NotImplementedError

    def advance_together(
        self,
        executor: Executor,
        threads: int,
        layer: int,
        slots: NDArray[np.int64],
        frames: Frames,
    ) -> None:
        """Take all chains through layers, with all threads on each layer."""
        raise NotImplementedError

    def watch_precision(self, frames: Frames) -> None:
        """Give frames the unit 1, and check the precision of all chains, after each block."""

    def work(self, dtype: np.dtype[Any] | None = None) -> numbers.Work:
        """Return the buffers of the calling thread, for rows of a dtype."""
        name = name_of(dtype or self.dtype)
        return self.buffer(name, lambda: memory.work(self.chain.batch, self.inputs or 1, name))

    def buffer(self, name: str, make: Callable[[], _Buffer]) -> _Buffer:
        """Return the buffer of a name of the calling thread, made at its first use."""
        if not hasattr(self._buffers, name):
            setattr(self._buffers, name, make())
        buffer: _Buffer = getattr(self._buffers, name)
        return buffer

    def widen(self, index: int) -> None:
        """Let a float32 chain continue in float64; drop buffers that no chain needs any more."""
        self.wide[index] = True
        if self.wide.all():
            for name in [name for name in vars(self._buffers) if name.startswith(self.dtype.name)]:
                delattr(self._buffers, name)

    def activation(self, dtype: np.dtype[Any] | None = None) -> Any:
        """Return the activation as the kernels take it, for rows of a dtype."""
        return rows.activation(self.sigma, name_of(dtype or self.dtype))

    def addressed(self, layer: int, stream: np.uint32, index: int) -> codes.Draw:
        """Return the address of the random numbers of a layer of a chain."""
        return codes.Draw(layer, stream | np.uint32(self.offset + index), *self.key_words)

    def check(self, status: NDArray[np.int64], first: int) -> None:
        """Raise the error of the first chain that a kernel stopped."""
        if status[:, 0].any():
            stopped = np.flatnonzero(status[:, 0])
            what, layer, row = (int(v) for v in status[stopped[0]])
            chain = self.offset + first + int(stopped[0])
            raise_stopped(what, chain, layer, row)


class ScaledSampler(Sampler):
    """Base class of samplers that split off the scale of homogeneous chains."""

    def _allocate(self) -> None:
        self.is_scaled = splits_scale(self.chain)
        #: Columns of the state are in units of 2**exponents; there are none without a split.
        self.exponents = np.zeros((self.chains, self.columns if self.is_scaled else 0), np.int64)
        #: The exponent by which the law was divided, which each layer adds to those of the state.
        self.lift = 0
        if self.is_scaled:
            self.spec, self.lift = lifted(self.spec)

    def require_scale(self, grams: NDArray[np.float64]) -> None:
        """Raise if a Gram matrix is so small that the dtype of the rows rounds it or makes it zero.

        The zeros of an activation that is zero near 0 are exact.
        """
        near_zero = self.chain.activation([-1e-30, 1e-30])
        zero = ~grams.any(axis=(1, 2)) & bool(near_zero.all())
        single = (self.dtype == np.float32) & ~self.wide
        small = np.flatnonzero(zero | (exponents_of(grams) < np.where(single, -100, -960)))
        if small.size:
            chain = self.offset + int(small[0])
            rows = "float32" if single[small[0]] else "float64"
            raise NonFiniteError(chain, None, f"Gram matrix, too small for {rows}, is")
