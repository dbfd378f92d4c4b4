"""The states on which a step is tested, how often it is called on each, and what it returns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from bnmc._claims.layer import LARGEST, Layer, near_a_line, rounding_of
from bnmc._support.arguments import Float64Array, finite_array
from bnmc.chain.chain import Chain
from bnmc.errors import ArgumentError, ZeroVarianceError
from bnmc.testing.calls_on_state import LEAST
from bnmc.testing.examples import as_numpy

#: Numbers in a block of calls that are evaluated together.
BLOCK_NUMBERS = 1 << 18

#: Calls on each state: before the first verdict, and at least in the end.
_FEWEST_CALLS, _MOST_CALLS = 2, 16

#: Calls on each state before the first verdict, for tests by the central limit theorem.
_FEWEST_CALLS_OF_MOMENTS = 64

#: Largest number of rows that are apart from the others, and number of draws to choose from.
_APART, _DRAWS = 4, 16

#: Ranges of log₁₀ of the standard deviations of rows.
_TINY, _HUGE = (-6.0, -2.0), (3.0, 6.0)


def numbers_of_calls(width: int, rows: int, *, is_gaussian: bool) -> list[int]:
    """Return the numbers of calls on each state after which there is a verdict.

    Parameters
    ----------
    width : int
        Number of rows of h′.
    rows : int
        Least number of rows of h′ per state in the end.
    is_gaussian : bool
        Whether all weights are Gaussian.
    """
    few = _FEWEST_CALLS_OF_MOMENTS
    fewest, most = (_FEWEST_CALLS, _MOST_CALLS) if is_gaussian else (few, few)
    stages = [fewest]
    while stages[-1] < max(most, rows / width):
        stages.append(2 * stages[-1])
    return stages


def layer_of(chain: Chain, h: Float64Array) -> Layer | None:
    """Return a state as a layer, or None if it has a row of zero variance."""
    try:
        return Layer.of(chain, h[None], 0)
    except ZeroVarianceError:
        return None


def given_states(
    chain: Chain, generator: np.random.Generator
) -> Iterator[tuple[str, Float64Array]]:
    """Yield states (width, batch) by name, the generic one first."""
    shape = d, n = chain.width, chain.batch

    def normal() -> Float64Array:
        return generator.standard_normal(shape)

    def scales(decades: tuple[float, float]) -> Float64Array:
        return 10.0 ** generator.uniform(*decades, (d, 1))

    yield "generic", normal()
    yield "rows apart", _rows_apart(chain, generator)
    yield "row means", normal() + 3.0 * generator.standard_normal((d, 1))
    if n > 1:
        yield "nearly collinear", near_a_line(chain, generator)
    if n > 2:
        yield "duplicated samples", normal()[:, np.arange(n) % ((n + 1) // 2)]
    yield "tiny variance", normal() * scales(_TINY)
    if not chain.normalization.is_identity:
        yield "huge scale", normal() * scales(_HUGE)


def _rows_apart(chain: Chain, generator: np.random.Generator) -> Float64Array:
    """Return a state with equal rows, except up to four in random places.

    If the activations of these rows and of one other row are linearly independent, the columns of W
    in these places can be read off h′.  Of several draws, return the one whose activations are
    furthest from dependence.
    """
    d, n = chain.width, chain.batch
    count = min(_APART, d, max(1, chain.normalization.dimensions(n) - 1))
    places = generator.permutation(d)
    best, furthest = np.zeros((d, n)), -1.0
    for _ in range(_DRAWS):
        h = np.repeat(generator.standard_normal((1, n)), d, axis=0)
        h[places[:count]] = generator.standard_normal((count, n))
        layer = layer_of(chain, h)
        if layer is None:
            continue
        a = layer.a[0, places[: count + 1]]
        sizes = np.linalg.svd(a, compute_uv=False)
        distance = float(sizes[-1] / max(sizes[0], LEAST)) if len(a) <= n else 0.0
        if distance > furthest:
            best, furthest = h, distance
    return best


class ReturnedStates:
    """A step or a network of the caller, with checks of the states that it returns.

    Parameters
    ----------
    function : callable
        Takes a state (width, batch).

    Attributes
    ----------
    calls : int
        Number of calls so far.
    rounding : float
        Largest unit of rounding of the returned arrays.
    """

    def __init__(self, function: Callable[[Float64Array], Any]) -> None:
        self._function = function
        self.calls, self.rounding = 0, rounding_of(0.0)

    def call(self, h: Float64Array) -> Any:
        """Return what the caller's function returns for a state; its errors name the layout."""
        try:
            value = self._function(h.copy())
        except Exception as error:
            error.add_note(_layouts(h.shape))
            raise
        self.calls += 1
        return value

    def checked(self, name: str, value: Any, shape: tuple[int, int], gain: float) -> Float64Array:
        """Return a state in float64, or raise if the value is no state of this shape."""
        array = as_numpy(value)
        try:
            state = finite_array(name, array, shape=shape).astype(np.float64)
        except ArgumentError as error:
            if np.shape(array) != shape:
                error.add_note(_layouts(shape))
            raise
        if (largest := float(np.abs(state).max()) / abs(gain)) > LARGEST:
            allowed = f"a state whose entries over the gain are at most {LARGEST:g} in size"
            raise ArgumentError(name, largest, allowed)
        self.rounding = max(self.rounding, rounding_of(array))
        return state


def _layouts(shape: tuple[int, ...]) -> str:
    return (
        f"h has shape {shape}: features, samples. bnmc.testing.from_features_last wraps "
        "a function of (samples, features), and from_images one of images."
    )
