"""A sequential test of a step: calls on each state, in stages, and the claims after each stage.

Each of the states on which a step is tested reveals other mistakes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from bnmc._claims.claims import COARSE, Claim, Evidence, assessed, of_one_step
from bnmc._claims.layer import LARGEST, Layer, near_a_line, rounding_of
from bnmc._support.arguments import Float64Array, finite_array
from bnmc._support.workers import ranges
from bnmc.chain.chain import Chain
from bnmc.errors import ArgumentError, ZeroVarianceError
from bnmc.testing.calls_on_state import LEAST, CallsOnState
from bnmc.testing.exact_tests import exact_claims
from bnmc.testing.examples import as_numpy

#: A function of a state (width, batch) that returns the next state as any array.
Step = Callable[[Float64Array], Any]

#: Calls on each state: before the first verdict, and at least in the end.
_FEWEST_CALLS, _MOST_CALLS = 2, 16

#: Calls on each state before the first verdict, for tests by the central limit theorem.
_FEWEST_CALLS_OF_MOMENTS = 64

#: Numbers in a block of calls that are evaluated together.
BLOCK_NUMBERS = 1 << 18

#: Number of calls of the tested step that lead to the state "iterated".
_ITERATED = 10

#: Largest number of rows that are apart from the others, and number of draws to choose from.
_APART, _DRAWS = 4, 16

#: Ranges of log₁₀ of the standard deviations of rows.
TINY, _HUGE = (-6.0, -2.0), (3.0, 6.0)


class SequentialTest:
    """The test of a step, which continues call by call.

    Parameters
    ----------
    step : callable
        The caller's step.
    chain : Chain
        The expected law.
    generator : numpy.random.Generator
        For the states.

    Attributes
    ----------
    step : _CheckedStep
    states : list of CallsOnState
    """

    def __init__(self, step: Step, chain: Chain, generator: np.random.Generator) -> None:
        self.chain, self.step = chain, _CheckedStep(step, chain)
        # One of the states comes from calls of the step, which also show the rounding.
        tried = list(tried_states(chain, self.step, generator))
        rounding, seed = self.step.rounding, int(generator.integers(2**63))
        # Each state has the same seed, so that all compare the same rows.
        self.states = [
            CallsOnState(name, layer, rounding, np.random.default_rng(seed))
            for name, layer in tried
        ]
        # Exact tests of Gaussian weights need the sums on each state alone.
        self._moments = None if chain.is_gaussian else _MomentTests(chain, rounding)

    def claims_after(self, calls: int) -> Iterator[Claim]:
        """Call the step until each state has `calls` calls, and return the claims."""
        for state in self.states:
            for rest in _residuals(self.step, self.chain, state.layer, calls - state.calls):
                state.add(rest)
                if self._moments is not None:
                    self._moments.add(state.layer, rest)
        return exact_claims(self.states) if self._moments is None else self._moments.claims()


def numbers_of_calls(chain: Chain, rows: int) -> Iterator[int]:
    """Yield the numbers of calls on each state after which there is a verdict.

    `rows` is the least number of rows of h′ per state in the end.
    """
    calls, most = _FEWEST_CALLS, _MOST_CALLS
    if not chain.is_gaussian:
        calls = most = _FEWEST_CALLS_OF_MOMENTS
    most = max(most, -(-rows // chain.width))
    while True:
        yield calls
        if calls >= most:
            return
        calls *= 2


class _CheckedStep:
    """The caller's step, with checks of the states that it returns.

    Attributes
    ----------
    calls : int
        Number of calls so far.
    rounding : float
        Largest unit of rounding of the returned arrays.
    """

    def __init__(self, step: Step, chain: Chain) -> None:
        self.step, self.chain = step, chain
        self.calls, self.rounding = 0, rounding_of(0.0)

    def __call__(self, h: Float64Array) -> Float64Array:
        """Return the next state in float64, or raise if the step does not return a state."""
        value = as_numpy(self.step(h.copy()))
        self.calls += 1
        shape = self.chain.width, self.chain.batch
        returned = finite_array("step(h)", value, shape=shape).astype(np.float64)
        largest = float(np.abs(returned).max()) / abs(self.chain.gain)
        if largest > LARGEST:
            allowed = f"a state whose entries over the gain are at most {LARGEST:g} in size"
            raise ArgumentError("step(h)", largest, allowed)
        self.rounding = max(self.rounding, rounding_of(value))
        return returned


class _MomentTests:
    """The tests of one step of `bnmc.invariant.check`, which hold for every law of weights."""

    def __init__(self, chain: Chain, rounding: float) -> None:
        self.chain, self.rounding = chain, rounding
        self._evidence: defaultdict[str, list[Evidence]] = defaultdict(list)

    def add(self, layer: Layer, rest: Float64Array) -> None:
        """Add R = (h′ − skip x)/gain of an even number of calls on one state."""
        arrays = (layer.y, layer.x, layer.a, layer.gram, layer.square)
        before = Layer(*(np.broadcast_to(array, (len(rest), *array.shape[1:])) for array in arrays))
        y = rest + self.chain.skip / self.chain.gain * before.x
        evidence_of, _ = of_one_step(self.chain, before, y, self.rounding)
        for claim, evidence in evidence_of.items():
            self._evidence[claim].append(evidence)

    def claims(self) -> Iterator[Claim]:
        """Yield the claims with p-values."""
        for claim, parts in self._evidence.items():
            yield assessed(claim, Evidence.joined(parts), min(self.rounding, COARSE))


def _residuals(
    step: _CheckedStep, chain: Chain, layer: Layer, count: int
) -> Iterator[Float64Array]:
    """Yield R of an even number of calls on a state, in blocks of pairs."""
    h, mean = chain.gain * layer.y[0], chain.skip * layer.x
    block = 2 * max(1, BLOCK_NUMBERS // (2 * h.size))
    for first, last in ranges(count, block):
        yield (np.stack([step(h) for _ in range(first, last)]) - mean) / chain.gain


# --- the states


def tried_states(
    chain: Chain, step: Callable[[Float64Array], Float64Array], generator: np.random.Generator
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
    chain: Chain, step: Callable[[Float64Array], Float64Array], generator: np.random.Generator
) -> Iterator[tuple[str, Float64Array]]:
    shape = d, n = chain.width, chain.batch

    def normal() -> Float64Array:
        return generator.standard_normal(shape)

    def scales(decades: tuple[float, float]) -> Float64Array:
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
        yield "huge scale", normal() * scales(_HUGE)
    for _ in range(_ITERATED):
        state = step(state)
    yield "iterated", state


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
        try:
            a = Layer.of(chain, h[None], 0).a[0, places[: count + 1]]
        except ZeroVarianceError:
            continue
        sizes = np.linalg.svd(a, compute_uv=False)
        distance = float(sizes[-1] / max(sizes[0], LEAST)) if len(a) <= n else 0.0
        if distance > furthest:
            best, furthest = h, distance
    return best
