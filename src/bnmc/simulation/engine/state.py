"""The state of an ensemble of chains, and the frames in which samplers record layers.

Gram matrices change their scale by exact powers of 2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnmc.chain.chain import Chain, Network

FloatArray = NDArray[np.floating[Any]]

#: Matrices with an exponent (base 2) of at most 900 are recorded unscaled.
_MOST_EXPONENT = 900
#: Beyond all differences of exponents of float64.
_FARTHEST = 5000


#: An array of a state or a frame: the shape of the part of one chain, and the dtype.
Field = tuple[tuple[int, ...], np.dtype[Any]]


def bytes_of(*fields: Field) -> int:
    """Return the bytes of the parts of one chain."""
    return sum(math.prod(shape) * dtype.itemsize for shape, dtype in fields)


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
    states : Frames, optional
        The Gram matrices of h, if they are recorded: `gram`, `log_scale` and `units`.
    """

    gram: NDArray[np.float64] = np.zeros((0, 0, 0, 0))
    log_scale: NDArray[np.float64] = np.zeros((0, 0))
    log_pivots: NDArray[np.float64] = np.zeros((0, 0, 0))
    values: NDArray[np.float64] = np.zeros((0, 0, 0, 0))
    units: NDArray[np.int64] = np.zeros((0, 0, 0), np.int64)
    states: Frames | None = None

    @property
    def each(self) -> list[Frames]:
        """These frames and, if they are recorded, those of h."""
        return [self] if self.states is None else [self, self.states]

    def part(self, first: int, last: int) -> Frames:
        """Return the frames of some chains, as a view."""
        if last - first == len(self.log_scale):
            return self
        part = slice(first, last)
        return Frames(
            self.gram[part], self.log_scale[part], self.log_pivots[part], self.values[part],
            self.units[part], None if self.states is None else self.states.part(first, last),
        )  # fmt: skip


@dataclass(frozen=True)
class State:
    """The state of an ensemble of chains at a layer: all that a continued run needs.

    Attributes
    ----------
    network : Network
        Its layers up to `layer` led to the state.
    path : str
        The sampler of the arrays: "conditional", "weights", "mixed" or "factor".
    key : int
        The 64-bit key of all random numbers.
    layer : int
        The layer of the arrays.
    inputs : int or None
    dtype : str
    arrays : dict of ndarray
        By name; the first axis is the chain.
    """

    network: Network
    path: str
    key: int
    layer: int
    inputs: int | None
    dtype: str
    arrays: dict[str, NDArray[Any]]

    @property
    def chain(self) -> Chain:
        """The chain that repeats, or an error if layers differ."""
        return self.network.chain

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
        forms = {name: array[:0] for part in parts for name, array in part.arrays.items()}

        def array_of(part: State, name: str) -> NDArray[Any]:
            form = forms[name]
            zeros = np.zeros((part.chains, *form.shape[1:]), form.dtype)
            return part.arrays.get(name, zeros)

        arrays = {name: np.concatenate([array_of(part, name) for part in parts]) for name in forms}
        return replace(parts[0], arrays=arrays)


def exponents_of(grams: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the exponent of the largest diagonal entry of each matrix (..., n, n); 0 for 0."""
    largest = np.diagonal(grams, axis1=-2, axis2=-1).max(axis=-1)
    return np.where(largest > 0.0, np.frexp(largest)[1], 0).astype(np.int64)


def in_range(
    grams: NDArray[np.float64], log_scale: NDArray[np.float64], units: NDArray[np.int64]
) -> None:
    """Give recorded matrices the unit 1 as far as float64 allows, in place.

    Parameters
    ----------
    grams : (chains, layers, n, n) ndarray of float64
        Receive the matrices themselves if float64 can hold their largest entry, else matrices with
        entries of at most 1.
    log_scale : (chains, layers) ndarray of float64
        Receives the logarithm of the factor that is missing.
    units : (chains, layers, n) ndarray of int64
        Entry (i, j) of a matrix is in units of 2**(units[i] + units[j]).

    Notes
    -----
    The result depends on the matrices themselves alone, not on their units.  A sample that is
    smaller than the largest one by more than float64 allows becomes zero.
    """
    diagonal = np.diagonal(grams, axis1=-2, axis2=-1)
    sizes = np.where(diagonal > 0.0, np.frexp(diagonal)[1] + 2 * units, -(1 << 62)).max(axis=-1)
    far = (np.abs(sizes) > _MOST_EXPONENT) & (diagonal > 0.0).any(axis=-1)
    common = np.where(far, sizes, 0)
    by = units[..., :, None] + units[..., None, :] - common[..., None, None]
    np.ldexp(grams, np.clip(by, -_FARTHEST, _FARTHEST).astype(np.int32), out=grams)
    log_scale[...] = common * np.log(2.0)
