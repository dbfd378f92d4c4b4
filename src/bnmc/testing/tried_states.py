"""The states on which a step is tested; each reveals other mistakes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from bnmc._claims.layer import Layer, near_a_line
from bnmc.chain.chain import Chain
from bnmc.errors import ZeroVarianceError

__all__ = ["tried_states"]

FloatArray = NDArray[np.float64]

#: Number of calls of the tested step that lead to the state "iterated".
ITERATED = 10

#: Largest number of rows that are apart from the others, and number of draws to choose from.
_APART, _DRAWS = 4, 16

#: Least divisor.
_LEAST = 1e-300

#: Ranges of log₁₀ of the standard deviations of rows.
TINY, HUGE = (-6.0, -2.0), (3.0, 6.0)


def tried_states(
    chain: Chain, step: Callable[[FloatArray], FloatArray], generator: np.random.Generator
) -> Iterator[tuple[str, Layer]]:
    """Yield states by name, as layers with one sample.

    States with a row of zero variance are left out.
    """
    for name, h in _states(chain, step, generator):
        try:
            layer = Layer.of(chain, h[None], 0)
        except ZeroVarianceError:
            continue
        yield name, layer


def _states(
    chain: Chain, step: Callable[[FloatArray], FloatArray], generator: np.random.Generator
) -> Iterator[tuple[str, FloatArray]]:
    shape = d, n = chain.width, chain.batch

    def normal() -> FloatArray:
        return generator.standard_normal(shape)

    def scales(decades: tuple[float, float]) -> FloatArray:
        return 10.0 ** generator.uniform(*decades, (d, 1))

    state = generic = normal()
    yield "generic", generic
    yield "rows apart", _rows_apart(chain, generator)
    yield "row means", normal() + 3.0 * generator.standard_normal((d, 1))
    if n > 1:
        yield "nearly collinear", near_a_line(chain, generator)
    if n > 2:
        yield "duplicated samples", normal()[:, np.arange(n) % ((n + 1) // 2)]
    yield "tiny variance", normal() * scales(TINY)
    if not chain.normalization.is_identity:
        yield "huge scale", normal() * scales(HUGE)
    for _ in range(ITERATED):
        state = step(state)
    yield "iterated", state


def _rows_apart(chain: Chain, generator: np.random.Generator) -> FloatArray:
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
        try:
            a = Layer.of(chain, h[None], 0).a[0, places[: count + 1]]
        except ZeroVarianceError:
            continue
        sizes = np.linalg.svd(a, compute_uv=False)
        distance = float(sizes[-1] / max(sizes[0], _LEAST)) if len(a) <= n else 0.0
        if distance > furthest:
            best, furthest = h, distance
    return best
