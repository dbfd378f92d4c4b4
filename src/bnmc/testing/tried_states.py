"""The states on which a step is tested; each reveals other mistakes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from bnmc._claims.layer import Layer
from bnmc._claims.states import near_a_line
from bnmc.chain.chain import Chain
from bnmc.errors import ZeroVarianceError

__all__ = ["tried_states"]

FloatArray = NDArray[np.float64]

#: Number of calls of the tested step that lead to the state "iterated".
ITERATED = 10

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
    yield "one row apart", np.vstack([normal()[:1], np.repeat(normal()[:1], d - 1, axis=0)])
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
