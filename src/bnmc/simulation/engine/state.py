"""The state of an ensemble of chains, and the frames in which samplers record layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnmc._kernels.cpu import memory
from bnmc.chain.chain import Chain
from bnmc.chain.homogeneity import splits_scale


class Field(NamedTuple):
    """An array of a state or a frame: the shape of the part of one chain, and the dtype."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        """Bytes of the part of one chain."""
        return math.prod(self.shape) * self.dtype.itemsize


def layout_of(chain: Chain, path: str, inputs: int | None, dtype: str) -> dict[str, Field]:
    """Return the arrays of the states of a sampler by name."""
    columns, stride = chain.batch * (inputs or 1), memory.stride(chain.width)
    rows, exact, flag = (np.dtype(name) for name in (dtype, np.float64, np.bool_))
    if path == "factor":
        return {
            "factor": Field((columns, columns), exact),
            "exponent": Field((columns,), exact),
            "log_start": Field((), exact),
        }
    layout = {"gram": Field((columns, columns), exact)}
    if path == "weights":
        layout["activations"] = Field((2, memory.padded(columns), stride), rows)
    else:
        layout["wide"] = Field((), flag)
    if splits_scale(chain):
        layout["exponent"] = Field((columns,), np.dtype(np.int64))
    if rows == np.float32 and (path == "weights" or chain.skip != 0.0):
        layout["unresolved"] = Field((), flag)
    if chain.skip != 0.0:
        layout["x"] = Field((columns, stride), rows)
    return layout


class Measure(NamedTuple):
    """A number that kernels compute from a Gram matrix; see `_kernels.scalar.measures`."""

    kind: int
    star: NDArray[np.float64] | None = None


class Frames(NamedTuple):
    """Recorded values of a block of layers; G is `gram` times exp(`log_scale`).

    gram : (chains, layers, columns, columns) float64
    log_scale : (chains, layers) float64
    log_pivots : (chains, layers, columns) float64, or no columns if the sampler has none
    values : (chains, layers, measures, inputs) float64
        Replaces all others if the sampler records numbers only.
    units : (chains, layers, columns) int64, or no columns if the scale is not split off
        The units in which samplers record `gram`, until `watch_precision`.
    """

    gram: NDArray[np.float64] = np.zeros((0, 0, 0, 0))
    log_scale: NDArray[np.float64] = np.zeros((0, 0))
    log_pivots: NDArray[np.float64] = np.zeros((0, 0, 0))
    values: NDArray[np.float64] = np.zeros((0, 0, 0, 0))
    units: NDArray[np.int64] = np.zeros((0, 0, 0), np.int64)

    def part(self, first: int, last: int) -> Frames:
        """Return the frames of some chains, as a view."""
        if last - first == len(self.log_scale):
            return self
        own = slice(first, last)
        return Frames(
            self.gram[own], self.log_scale[own], self.log_pivots[own], self.values[own],
            self.units[own],
        )  # fmt: skip


@dataclass(frozen=True)
class State:
    """The state of an ensemble of chains at a layer: all that a continued run needs.

    Attributes
    ----------
    chain : Chain
    path : str
        The sampler of the arrays: "conditional", "weights" or "factor".
    key : int
        The 64-bit key of all random numbers.
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
        """Return the state of the chains of several parts, one after the other.

        An array that a part lacks is one of the optional arrays, which a GPU does not make: zeros.
        """
        kinds = {name: array for one in parts for name, array in one.arrays.items()}

        def array_of(one: State, name: str) -> NDArray[Any]:
            found = one.arrays.get(name)
            kind = kinds[name]
            return np.zeros((one.chains, *kind.shape[1:]), kind.dtype) if found is None else found

        arrays = {name: np.concatenate([array_of(one, name) for one in parts]) for name in kinds}
        return replace(parts[0], arrays=arrays)
