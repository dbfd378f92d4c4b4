"""Evidence on the claims about the stationary law, collected from blocks of samples."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnmc._claims.claims import invariance, of_one_step, of_state, serial
from bnmc._claims.evidence import COARSE, Claim, Evidence, assessed
from bnmc._claims.layer import Layer
from bnmc._claims.states import as_states, next_states, rounding_of
from bnmc.chain.chain import Chain
from bnmc.invariant.distances import distances

FloatArray = NDArray[np.float64]

#: A function of one state that returns the next.
Step = Callable[[NDArray[Any]], ArrayLike]


class EvidenceOfBlocks:
    """Evidence on all claims, collected from blocks of samples.

    Parameters
    ----------
    chain : Chain
    step : callable or None
        The caller's function of one state; None draws the next states.
    ahead : int
        Layers between the states that invariance compares.
    generator : numpy.random.Generator
    rounding : float
        Unit of rounding of the samples.

    Attributes
    ----------
    is_of_last : bool
        Whether the states to test are those after the steps, rather than before.
    """

    def __init__(
        self,
        chain: Chain,
        step: Step | None,
        ahead: int,
        generator: np.random.Generator,
        rounding: float,
    ) -> None:
        self.chain, self.step, self.ahead = chain, step, ahead
        self.generator, self.rounding = generator, rounding
        self.is_of_last = False
        self._evidence: defaultdict[str, list[Evidence]] = defaultdict(list)
        self._kept: list[tuple[FloatArray, FloatArray, FloatArray]] = []

    def note(self, found: dict[str, Evidence]) -> None:
        """Add evidence by claim."""
        for claim, evidence in found.items():
            self._evidence[claim].append(evidence)

    def add(self, states: NDArray[Any], first: int) -> None:
        """Simulate the layers after a block of states, and note the evidence.

        `first` is the number of the first sample of the block.
        """
        before = after = Layer.of(self.chain, states, first)
        for layer in range(self.ahead):
            states = self._next(states, after)
            after = Layer.of(self.chain, states, first)
            if layer == 0:
                found, spread = of_one_step(self.chain, before, after.y, self.rounding)
        if self.step is not None:
            self.note(found)
        self.note(invariance(before, after))
        examined = after if self.is_of_last else before
        self.note(of_state(self.chain, examined))
        self._kept.append((examined.gram, examined.square, spread))

    def claims(self) -> Iterator[Claim]:
        """Yield the claims, with and without tests, before verdicts."""
        gram, square, spread = (np.concatenate(parts) for parts in zip(*self._kept, strict=True))
        self.note(serial(square))
        for claim, parts in self._evidence.items():
            yield assessed(claim, Evidence.joined(parts), min(self.rounding, COARSE))
        yield from distances(self.chain, gram, square, spread, self.generator)

    def _next(self, states: NDArray[Any], layer: Layer) -> NDArray[Any]:
        """Return the next states, drawn or by the caller's step."""
        if self.step is None:
            return next_states(self.chain, layer.x, layer.a, layer.gram, self.generator)
        shape = self.chain.width, self.chain.batch
        returned = []
        for state in states:
            value = self.step(state.copy())
            returned.append(as_states("step(h)", value, shape, self.chain))
            self.rounding = max(self.rounding, rounding_of(value))
        return np.stack(returned)
