"""The state of an ensemble of chains, and the frames in which samplers record layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnmc.chain.chain import Chain

__all__ = ["MOST_CHAINS", "MOST_ROWS", "Frames", "Measure", "State"]

#: The largest number of chains: the chain shares a counter word with the stream.
MOST_CHAINS = 1 << 28

#: The largest width of layers that are made row by row: four rows share a 32-bit counter word.
MOST_ROWS = 1 << 33


class Measure(NamedTuple):
    """A number that kernels can take of a Gram matrix; see `_kernels.core.measures`."""

    kind: int
    star: NDArray[np.float64] | None = None


class Frames(NamedTuple):
    """What is recorded of a block of layers; G is `gram` times exp(`log_scale`).

    gram : (chains, layers, columns, columns) float64
    log_scale : (chains, layers) float64
    log_pivots : (chains, layers, columns) float64, or no columns where the sampler has none
    values : (chains, layers, measures, inputs) float64
        In place of all others where the sampler measures.
    """

    gram: NDArray[np.float64]
    log_scale: NDArray[np.float64]
    log_pivots: NDArray[np.float64]
    values: NDArray[np.float64] = np.zeros((0, 0, 0, 0))


@dataclass(frozen=True)
class State:
    """Where an ensemble of chains has got to: all that is needed to go on.

    Attributes
    ----------
    chain : Chain
    path : str
        "conditional", "weights" or "factor": which sampler's arrays these are.
    key : int
        Of 64 bits.
    layer : int
        The layer of the arrays.
    inputs : int or None
    dtype : str
    arrays : dict of ndarray
        By name; the first axis is the chain.
    """

    chain: Chain
    path: str
    key: int
    layer: int
    inputs: int | None
    dtype: str
    arrays: dict[str, NDArray[Any]]

    @property
    def chains(self) -> int:
        """Number of chains."""
        return len(next(iter(self.arrays.values())))

    def part(self, first: int, last: int) -> State:
        """Return the state of some chains, as a view."""
        return replace(
            self, arrays={name: values[first:last] for name, values in self.arrays.items()}
        )

    @staticmethod
    def joined(parts: Sequence[State]) -> State:
        """Return the state of the chains of several parts, one after the other."""
        names = parts[0].arrays
        arrays = {name: np.concatenate([one.arrays[name] for one in parts]) for name in names}
        return replace(parts[0], arrays=arrays)
