"""The interface of samplers, and what all samplers share.

A sampler owns the state of every chain of a run.  `begin` brings a range of chains to layer 0, and
`advance` takes a range through layers; both write the Gram matrices of recorded layers.  The values
depend on key, chain and layer alone, never on how chains and layers were grouped.  All samplers
have the same law.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from bnmc._kernels.cpu import memory, numbers
from bnmc._kernels.scalar import codes
from bnmc.chain.compiled import check_status, lifted, raise_stopped
from bnmc.chain.start import Start
from bnmc.simulation.engine.state import Frames, State
from bnmc.simulation.engine.threads import Threads
from bnmc.simulation.runs import Run

_Buffer = TypeVar("_Buffer")


class Sampler:
    """Base class: the state, a buffer for each thread, and errors of kernels.

    Parameters
    ----------
    run : Run
    zeros : callable
        Makes buffers; `memory.unplaced` for a run without chains, whose buffers are counted.

    Attributes
    ----------
    spec : LayerSpec
        What kernels know of the last layers.
    lift : int
        The exponent by which that spec was divided, which each layer adds to those of the state.
    wide : (chains,) ndarray of bool
        The float32 chains that continue in float64.
    unresolved : (chains,) ndarray of bool
        The chains with a recorded Gram matrix that float32 rows do not resolve.
    layer : int
        The layer of the state that the sampler continues, or 0.
    """

    #: Whether threads may each advance a part of the chains.
    divisible = True

    def __init__(self, run: Run, zeros: memory.Zeros = memory.aligned_zeros) -> None:
        self.zeros = zeros
        self.run, self.chains, self.offset = run, run.chains, run.first
        self.columns, self.dtype = run.columns, np.dtype(run.dtype)
        #: The halves of the key, as kernels take it.
        self.key_words = np.uint32(run.key & 0xFFFFFFFF), np.uint32(run.key >> 32)
        self.spec, self.lift = lifted(run.specs[-1]) if run.splits_scale else (run.specs[-1], 0)
        self.wide = np.zeros(run.chains, np.bool_)
        self.unresolved = np.zeros(run.chains, np.bool_)
        self._arrays: dict[str, NDArray[Any]] = {}
        self.layer = 0
        #: Which samples of each chain were zero when `require_scale` was called last.
        self._zeros_before: NDArray[np.bool_] | None = None
        #: By the number of a thread.
        self._buffers: dict[int, dict[tuple[Any, ...], Any]] = {}
        self._allocate()

    def _allocate(self) -> None:
        """Make the arrays of all chains; the last step of `__init__`."""
        for name, (shape, dtype) in self.run.layout.items():
            # Rows begin a cache line; NumPy's own zeros take less time.
            zeros = self.zeros if name in ("x", "activations") else np.zeros
            self._arrays[name] = zeros((self.chains, *shape), dtype)
        self.wide = self._arrays.get("wide", self.wide)
        self.unresolved = self._arrays.get("unresolved", self.unresolved)

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """The state of all chains, by name."""
        return self._arrays

    def take(self, state: State) -> None:
        """Continue a state, which is not changed."""
        for name, values in self.arrays.items():
            values[...] = state.arrays.get(name, 0)  # a GPU keeps fewer arrays
        self.layer = state.layer

    @property
    def panels(self) -> int:
        """Number of parts of one layer that threads can share."""
        return 1

    def begin(self, start: Start, first: int, last: int, frames: Frames) -> None:
        """Bring chains first:last to layer 0 and record it in slot 0."""
        raise NotImplementedError

    def record(self, frames: Frames) -> None:
        """Record the layer of the state, of all chains, in slot 0."""
        raise NotImplementedError

    def advance(
        self,
        first: int,
        last: int,
        layer: int,
        slots: NDArray[np.int64],
        frames: Frames,
        threads: Threads | None = None,
    ) -> None:
        """Take chains first:last from `layer` - 1 through len(slots) layers.

        If threads are given, they share each layer, of which the sampler has several panels.
        """
        raise NotImplementedError

    def watch_precision(self, frames: Frames) -> None:
        """Give frames the unit 1, and check the precision of all chains, after each block."""

    def work(self, dtype: np.dtype[Any] | None = None) -> numbers.Work:
        """Return the buffers of the calling thread, for rows of a dtype."""
        dtype = dtype or self.dtype
        return self.buffer(("work", dtype.char), lambda: self._new_work(dtype))

    def _new_work(self, dtype: np.dtype[Any]) -> numbers.Work:
        work = memory.work(self.run.batch, self.run.inputs or 1, dtype, self.run.tile)
        if not self.run.shows_state:
            return work
        # The Gram matrices of h have sums of their own, after those of a.
        return work._replace(sums=memory.aligned_zeros((2 * work.sums.size,), np.float64))

    def buffer(self, key: tuple[Any, ...], make: Callable[[], _Buffer]) -> _Buffer:
        """Return the buffer of a key of the calling thread, made at its first use.

        The key of rows has the character of their dtype, whose hash takes less time.
        """
        buffers: dict[Any, Any] = self.buffers()
        if key not in buffers:
            buffers[key] = make()
        return buffers[key]

    def buffers(self) -> dict[tuple[Any, ...], Any]:
        """Return the buffers that the calling thread has made."""
        return self._buffers.setdefault(threading.get_ident(), {})

    def widen(self, index: int) -> None:
        """Let a float32 chain continue in float64; drop buffers that no chain needs any more."""
        self.wide[index] = True
        if self.wide.all():
            buffers: dict[Any, Any] = self.buffers()
            for key in [key for key in buffers if self.dtype.char in key]:
                del buffers[key]

    def addressed(self, layer: int, stream: np.uint32, index: int) -> codes.Draw:
        """Return the address of the random numbers of a layer of a chain."""
        return codes.Draw(layer, stream | np.uint32(self.offset + index), *self.key_words)

    def check(self, status: NDArray[np.int64], first: int) -> None:
        """Raise the error of the first chain that a kernel stopped."""
        check_status(status, self.offset + first)

    @cached_property
    def has_zeros(self) -> bool:
        """Whether an activation is exactly zero near 0, so that zeros may be exact."""
        near_zero = [layer.rows.activation([-1e-30, 1e-30]) for layer in self.run.layers[1:]]
        return not np.all(near_zero)

    def require_scale(self, grams: NDArray[np.float64], dtype: np.dtype[Any]) -> None:
        """Raise if a sample of a Gram matrix is so small that sums over rows of a dtype round it.

        Also if the matrix is zero, or a sample has become zero since the last call, and no
        activation makes it so.
        """
        diagonals = np.diagonal(grams, axis1=1, axis2=2)
        sizes = np.where(self.wide, 8, dtype.itemsize)
        least = np.where(sizes == 4, *codes.LEAST_SQUARES)[:, None]
        small = ((diagonals > 0.0) & (diagonals < least)).any(axis=1)
        zeros, before = diagonals == 0.0, self._zeros_before
        self._zeros_before = zeros
        if not self.has_zeros:
            small |= zeros.all(axis=1)
            if before is not None:
                small |= (zeros & ~before).any(axis=1)
        if small.any():
            chain = int(small.argmax())
            raise_stopped(codes.TOO_SMALL, self.offset + chain, None, int(sizes[chain]))
