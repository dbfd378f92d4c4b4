"""The chains of a run before anything is made: how many, by which sampler, from which layer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from bnmc._kernels.cpu import memory
from bnmc._kernels.scalar.codes import MOST_CHAINS, MOST_ELEMENTS, MOST_ROWS
from bnmc._support.arguments import choice, integer, precision
from bnmc.chain.chain import Chain
from bnmc.chain.start import FirstLayer, shape_of
from bnmc.errors import ArgumentError
from bnmc.simulation.engine.choice import SAMPLERS, choose_sampler
from bnmc.simulation.engine.state import State
from bnmc.simulation.state_check import require_sound

__all__ = ["Ensemble", "ensemble_of"]

#: What `simulate` takes as `sampler`.
SAMPLER_NAMES = ("auto", "conditional", "weights")


@dataclass(frozen=True)
class Ensemble:
    """Independent chains of one kind.

    Attributes
    ----------
    chain : Chain
    path : str
        Key of the sampler in `SAMPLERS`.
    chains : int
        Number of chains.
    inputs : int or None
        Number of input batches; None for one without an axis of its own.
    dtype : str
        Precision of the rows.
    first_layer : int
        The layer of the start: 0, or that of `state`.
    state : State or None
        Where the chains continue.
    """

    chain: Chain
    path: str
    chains: int
    inputs: int | None
    dtype: str
    first_layer: int = 0
    state: State | None = None

    @property
    def columns(self) -> int:
        """Number of samples in all input batches."""
        return self.chain.batch * (self.inputs or 1)

    @cached_property
    def seconds(self) -> float:
        """Estimated time of one layer of one chain on one thread."""
        return SAMPLERS[self.path].seconds(self.chain, self.columns, np.dtype(self.dtype))

    @cached_property
    def bytes_of_chain(self) -> int:
        """Bytes of the state of one chain, about."""
        columns = self.columns
        width = np.dtype(self.dtype).itemsize * memory.stride(self.chain.width)
        rows = width * columns * (self.chain.skip != 0.0)
        rows += width * 2 * memory.padded(columns) * (self.path == "weights")
        # Exponents, and whether float32 rows resolve the chain.
        return 8 * columns**2 + rows + (8 * columns + 8 if self.path == "factor" else 10)

    @property
    def state_bytes(self) -> int:
        """Bytes of the state of all chains, about."""
        return self.chains * self.bytes_of_chain


def ensemble_of(
    chain: Chain,
    initial: Any,
    *,
    chains: int | None,
    inputs: int | None,
    rng: Any,
    sampler: str,
    dtype: Any,
) -> Ensemble:
    """Return the chains that the arguments of `simulate` mean, or raise."""
    choice("sampler", sampler, SAMPLER_NAMES)
    name = precision(dtype)
    if isinstance(initial, State):
        return _continued(chain, initial, chains, inputs, rng, sampler, name)
    return _started(chain, initial, chains, inputs, sampler, name)


def _continued(
    chain: Chain,
    state: State,
    chains: int | None,
    inputs: int | None,
    rng: Any,
    sampler: str,
    dtype: str,
) -> Ensemble:
    """Take everything from a state; arguments that are given as well must agree with it."""
    require_sound(state)
    if state.chain != chain:
        raise ArgumentError("initial", state.chain, f"a state of {chain}")
    for name, given, kept in (
        ("chains", chains, state.chains),
        ("inputs", inputs, state.inputs),
        ("dtype", dtype if dtype != "float64" else None, state.dtype),
    ):
        if given is not None and given != kept:
            raise ArgumentError(name, given, f"{kept}, that of the state")
    if rng is not None:
        raise ArgumentError("rng", rng, "None: a state continues its own random numbers")
    if sampler not in ("auto", SAMPLERS[state.path].name):
        raise ArgumentError("sampler", sampler, SAMPLERS[state.path].name)
    return Ensemble(chain, state.path, state.chains, state.inputs, state.dtype, state.layer, state)


def _started(
    chain: Chain, initial: Any, chains: int | None, inputs: int | None, sampler: str, dtype: str
) -> Ensemble:
    """Decide how many chains start, and by which sampler they go on."""
    if inputs is not None:
        inputs = integer("inputs", inputs, low=1, high=MOST_CHAINS)
    if chains is None:
        axes = 2 if inputs is None else 3
        shape = () if isinstance(initial, (str, FirstLayer)) else shape_of(initial)
        chains = shape[0] if len(shape) == axes + 1 else 1
    chains = integer("chains", chains, low=1, high=MOST_CHAINS)
    path = choose_sampler(chain, inputs, sampler, dtype).path
    most = {"factor": chain.width, "weights": MOST_ELEMENTS}.get(path, MOST_ROWS)
    length = chain.fan_in if path == "weights" else chain.width
    if length > most:
        raise ArgumentError("width", chain.width, f"at most {most} for this chain")
    return Ensemble(chain, path, chains, inputs, dtype)
