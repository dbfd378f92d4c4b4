"""States that `check` is given, once they are checked, and those that it draws."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnmc._support.arguments import finite_array
from bnmc._support.linalg import semidefinite_root
from bnmc.chain.chain import Chain
from bnmc.errors import ArgumentError

__all__ = ["LARGEST", "as_states", "near_a_line", "next_states", "rounding_of"]

FloatArray = NDArray[np.float64]

#: Numbers up to here, and down to its inverse, have fourth powers, and sums of them.
LARGEST = 1e30


def as_states(
    name: str, value: object, shape: tuple[int | str, ...], chain: Chain
) -> NDArray[np.floating[Any]]:
    """Return states (..., width, batch) as an array whose moments neither over- nor underflow."""
    array = finite_array(name, value, shape=shape)
    with np.errstate(over="ignore"):
        largest = np.abs(array).max(axis=(-2, -1)).astype(np.float64) / abs(chain.gain)
    outside = ~((largest >= 1.0 / LARGEST) & (largest <= LARGEST))
    if outside.any():
        raise ArgumentError(
            name, float(largest[outside].flat[0]),
            f"states whose largest entry over the gain is {1.0 / LARGEST:g} to {LARGEST:g} in size",
        )  # fmt: skip
    return array


def rounding_of(value: object) -> float:
    """Return the unit of rounding of an array of floats, that of float64 for all else."""
    dtype = np.asarray(value).dtype
    exact = float(np.finfo(np.float64).eps)
    return max(exact, float(np.finfo(dtype).eps)) if dtype.kind == "f" else exact


def near_a_line(chain: Chain, generator: np.random.Generator) -> FloatArray:
    """Return a batch of samples that nearly lie on a line, which no norm makes Gaussian again."""
    places = np.linspace(1.0, 2.0, chain.batch)
    line = generator.standard_normal((chain.width, 1)) * places
    start: FloatArray = line + 0.1 * generator.standard_normal(line.shape)
    return start


def next_states(
    chain: Chain, x: FloatArray, a: FloatArray, gram: FloatArray, generator: np.random.Generator
) -> FloatArray:
    """Draw skip x + gain W a for each of the samples, for Gaussian weights by its rows given G."""
    if chain.is_gaussian:
        rows = generator.standard_normal(a.shape) @ semidefinite_root(gram)
    else:
        rows = np.stack([_weights(chain, generator) @ one for one in a]) / chain.width**0.5
    states: FloatArray = chain.skip * x + chain.gain * rows
    return states


def _weights(chain: Chain, generator: np.random.Generator) -> NDArray[np.floating[Any]]:
    shape = chain.width, chain.width
    if callable(chain.weights):
        return finite_array("weights(rng, shape)", chain.weights(generator, shape), shape=shape)
    if chain.weights == "uniform":
        return generator.uniform(-np.sqrt(3.0), np.sqrt(3.0), shape)
    return 2.0 * generator.integers(0, 2, shape) - 1.0
