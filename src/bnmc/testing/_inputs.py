"""The states that a step is tried on: each shows what others hide."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from bnmc._claims.claims import Layer
from bnmc._claims.states import near_a_line
from bnmc.chain.chain import Chain
from bnmc.errors import ZeroVarianceError

__all__ = ["inputs"]

FloatArray = NDArray[np.float64]

#: Layers of the step under test that lead to the state "iterated".
ITERATED = 10

#: Decades of the standard deviations of rows.
TINY, HUGE = (-6.0, -2.0), (3.0, 6.0)


def inputs(
    chain: Chain, step: Callable[[FloatArray], FloatArray], generator: np.random.Generator
) -> Iterator[tuple[str, Layer]]:
    """Yield names and layers of one sample; states that the chain cannot normalise are left out."""
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
    yield "one row apart", np.vstack([normal()[:1], np.repeat(normal()[:1], d - 1, axis=0)])
    yield "row means", normal() + 3.0 * generator.standard_normal((d, 1))
    if n > 1:
        yield "nearly collinear", near_a_line(chain, generator)
    if n > 2:
        yield "duplicated samples", normal()[:, np.arange(n) % ((n + 1) // 2)]
    yield "tiny variance", normal() * scales(TINY)
    if chain.norm != "none":
        yield "huge scale", normal() * scales(HUGE)
    for _ in range(ITERATED):
        state = step(state)
    yield "iterated", state
