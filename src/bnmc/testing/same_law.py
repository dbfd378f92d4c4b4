"""`assert_same_law`: whether a program's layer is distributed as that of a chain."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnmc._claims.claims import Layer, of_one_step
from bnmc._claims.evidence import COARSE, Claim, Evidence, assessed, judged
from bnmc._claims.states import LARGEST, rounding_of
from bnmc._support.arguments import finite_array, integer, real
from bnmc._support.keys import draw_key
from bnmc._support.workers import ranges
from bnmc.chain.chain import Chain
from bnmc.errors import ArgumentError, ArgumentTypeError, BnmcError
from bnmc.testing._evidence import OnOneState, claims
from bnmc.testing._explain import explained
from bnmc.testing._inputs import inputs
from bnmc.testing.adapters import as_numpy

__all__ = ["LawMismatch", "assert_same_law"]

FloatArray = NDArray[np.float64]

Step = Callable[[FloatArray], Any]

#: Calls on each state, at least, before the first verdict and in the end.
FEWEST_CALLS, MOST_CALLS = 2, 16

#: The same where the tests rest on the central limit theorem, and the least width they were
#: measured at.
FEWEST_CALLS_OF_MOMENTS, LEAST_WIDTH_OF_MOMENTS = 64, 4

#: Calls on each state, and their rows, that an explanation needs.
CALLS_TO_EXPLAIN, ROWS_TO_EXPLAIN = 16, 2048

#: Numbers that are looked at together.
BLOCK_NUMBERS = 1 << 18

#: Rows of the table in a message.
_SHOWN = 6


class LawMismatch(BnmcError, AssertionError):
    """A step does not have the law of a chain.

    Parameters
    ----------
    chain : Chain
        The chain.
    causes : tuple of str
        What most likely differs, the clearest first; empty if nothing known fits.
    failures : tuple of bnmc.invariant.Claim
        The tests that fail, the clearest first.
    calls : int
        Number of calls of the step that it took.

    Attributes
    ----------
    chain, causes, failures, calls
        The parameters, unchanged.

    Examples
    --------
    >>> import bnmc
    >>> raise LawMismatch(bnmc.Chain(10, 3), ("the output is scaled by 2",), (), 32)
    Traceback (most recent call last):
        ...
    bnmc.testing.same_law.LawMismatch: not the law of Chain(width=10, batch=3,
    activation='linear'), seen in 32 calls
    most likely: the output is scaled by 2
    """

    def __init__(
        self, chain: Chain, causes: tuple[str, ...], failures: tuple[Claim, ...], calls: int
    ) -> None:
        self.chain, self.causes, self.failures, self.calls = chain, causes, failures, calls
        super().__init__(
            "\n".join(
                [
                    f"not the law of {chain}, seen in {calls} calls",
                    *(f"most likely: {cause}" for cause in causes),
                    *_lines(failures),
                ]
            )
        )


def assert_same_law(
    step: Step, chain: Chain, *, rng: Any = None, alpha: float = 1e-6, rows: int = 2**14
) -> None:
    r"""Assert that a step of another program is distributed as a layer of a chain.

    Parameters
    ----------
    step : callable
        Takes a state h, a new float64 array (width, batch), **before** normalization, and returns
        the next, skip N(h) + gain W σ(N(h)), again before normalization, as an array of any kind
        and of float32 or float64. W must be drawn anew at every call. For other layouts see
        `from_features_last` and `from_linear_first`.
    chain : Chain
        What the step should be. With weights that are not Gaussian only mean, covariance and
        independence are tested, and the width is at least 4.
    rng : optional
        Anything `numpy.random.default_rng` takes (SPEC 7): for the states that the step is tried
        on. It has no part in the numbers that the step draws.
    alpha : float, default 1e-6
        Probability that a correct step fails, at most, in (0, 1).
    rows : int, default 16384
        Rows of h′ that are looked at for each state, at least, before a step passes; >= 2. There
        are 16 calls for each state (64 if the weights are not Gaussian) however wide it is.

    Raises
    ------
    LawMismatch
        If the law is another. It is an `AssertionError` that names the most likely causes, with
        numbers, and the tests that fail.
    ArgumentError, ArgumentTypeError
        For an argument that is not allowed, and for a step that does not return finite real
        numbers in the shape of a state, at most 1e30 times the gain in size.

    Notes
    -----
    The step is tried on eight states: a generic one; one whose rows are all equal but the first,
    so that a single column of W can be read off h′; rows with large means; samples near a line;
    duplicated samples; rows of standard deviation 1e-6 to 1e-2, where an ε shows, and of 1e3 to
    1e6; and the state that ten layers of the step itself lead to.

    Given h, the rows of R = (h′ − skip N(h))/gain are independent N(0, G), G = aᵀa/width with
    a = σ(N(h)), for Gaussian weights exactly. In an orthonormal basis of the range of G, and
    scaled, they are standard normal. So the tests are exact at every width and number of calls:
    sums of squares in total, by coordinate (Bartlett's decomposition), of means over calls and of
    sums over rows are χ²; products of one call, row or state with the next are normal given the
    one; norms of rows and of calls, and single weights, are compared with their laws in
    Kolmogorov's distance (Massart's bound of its tail), and the largest weight with that of as
    many normals. Components outside the range of G must be rounding.

    Each of the tests has its share of alpha by Holm's method. They are made after 2 calls on each
    state, 4, 8 and so on, each time at alpha over the number of times, so a clear failure ends the
    test early and the total probability of a false alarm is at most `alpha`.

    Other weights: the tests of one step of `bnmc.invariant.check`, after 64 calls on each state,
    128 and so on. These rest on the central limit theorem, and `alpha` is as accurate as that is.

    Measured on correct steps, with `rows` 512 (64 in half of the repetitions of the first): how
    many in a hundred fail at `alpha` of 5, 1 and 0.1 %.

    =========================================== =========== ===== ===== =====
    chain                                       repetitions   5 %   1 % 0.1 %
    =========================================== =========== ===== ===== =====
    relu, width 10, batch 3                           11482  3.82  0.89  0.18
    tanh, width 20, batch 5, skip 0.5                  2000  3.75  0.90  0.00
    linear, uncentred, width 12, batch 12              2000  3.80  1.05  0.10
    relu, width 16, batch 6, step in float32           2000  4.50  0.90  0.05
    relu, width 10, batch 3, uniform weights           6000  3.67  0.88  0.05
    =========================================== =========== ===== ===== =====

    Of all 23482 there are 27 at 0.1 %, where at most 23.5 are expected. A further 27000 of the
    first chain, with `rows` 64, gave 1004, 208 and 25, where at most 1350, 270 and 27 are. Of the
    4000 that ``python -m bench testing`` makes, 140, 35 and 5 failed, of at most 200, 40 and 4.

    Mistakes in a layer of width 20, batch 5 and relu, at `alpha` 1e-6: the command found each in
    all of 1000 repetitions, and explained each within 3.2 s on a busy machine. Calls that it took,
    before the explanation, in the median and at most:

    ============================================ ====== =======
    mistake                                      median at most
    ============================================ ====== =======
    eps 1e-5; evaluation mode; no centring           26      26
    running statistics, momentum 0.1                 26      26
    ddof 1                                           42      74
    activation tanh; leaky relu, slope 0.01          26      26
    variance 2/width; Linear of PyTorch              26      26
    skip connection 0.1                              26      26
    variance 4 % off                               1034    2058
    uniform weights                                 138     138
    uniform weights, width 10 and batch 3           266    4106
    normal weights, truncated at ±2                 522     522
    orthogonal weights                               26      26
    one W at all calls                               26      26
    seven W in turn                                 138     138
    rows correlated by 0.2, or alike in pairs        26      26
    ============================================ ====== =======

    What is 1 % off in scale needs more rows: with 16384 it was found at width 20 and missed for
    the linear chain of width 10 and batch 3.

    Examples
    --------
    >>> import bnmc
    >>> import numpy as np
    >>> from bnmc.testing import assert_same_law
    >>> chain = bnmc.Chain(width=50, batch=5, activation="relu")
    >>> rng = np.random.default_rng(0)
    >>> def layer(h, ddof=0):
    ...     x = (h - h.mean(axis=1, keepdims=True)) / h.std(axis=1, ddof=ddof, keepdims=True)
    ...     return rng.standard_normal((50, 50)) @ np.maximum(x, 0.0) / np.sqrt(50)
    >>> assert_same_law(layer, chain, rng=0)
    >>> try:
    ...     assert_same_law(lambda h: layer(h, ddof=1), chain, rng=0)
    ... except AssertionError as error:
    ...     print(error.causes[0])
    the variance of a row is divided by n - 1, not n (ddof = 1): x is smaller by sqrt((n-1)/n) =
    0.8944
    """
    if not callable(step):
        raise ArgumentTypeError("step", step, "a function of a (width, batch) array")
    if not isinstance(chain, Chain):
        raise ArgumentTypeError("chain", chain, "a bnmc.Chain")
    alpha = real("alpha", alpha, above=0.0, below=1.0)
    rows = integer("rows", rows, low=2)
    if not chain.is_gaussian and chain.width < LEAST_WIDTH_OF_MOMENTS:
        allowed = f"an integer >= {LEAST_WIDTH_OF_MOMENTS} for weights that are not Gaussian"
        raise ArgumentError("width", chain.width, allowed)
    chain.activation.check()
    generator = np.random.default_rng(draw_key(rng))

    tried = _Tried(step, chain)
    known = list(inputs(chain, tried, generator))  # with calls, which show the rounding
    states = [OnOneState(name, layer, tried.rounding) for name, layer in known]
    law = _Exact() if chain.is_gaussian else _Moments(chain, tried.rounding)
    stages = list(_stages(chain, rows))
    for calls in stages:
        failures = _failures(tried, chain, states, law, calls, alpha / len(stages))
        if failures:
            # Explained from more calls, in which a false alarm may vanish.
            more = max(calls, CALLS_TO_EXPLAIN, -(-ROWS_TO_EXPLAIN // (2 * chain.width)) * 2)
            failures = _failures(tried, chain, states, law, more, alpha) or failures
            causes = explained(chain, states, {claim.claim for claim in failures})
            raise LawMismatch(chain, causes, failures, tried.calls)


def _failures(
    tried: _Tried,
    chain: Chain,
    states: Sequence[OnOneState],
    law: _Exact | _Moments,
    calls: int,
    alpha: float,
) -> tuple[Claim, ...]:
    """Go on to `calls` calls on each state; return the tests that fail, the clearest first."""
    for state in states:
        for rest in _calls(tried, chain, state.layer, calls - state.calls):
            state.add(rest)
            law.add(state.layer, rest)
    failures = [row for row in judged(law.claims(states), alpha) if row.verdict == "fails"]
    return tuple(sorted(failures, key=lambda row: row.p_value or 0.0))


class _Tried:
    """The step of the user, with checks of what it returns."""

    def __init__(self, step: Step, chain: Chain) -> None:
        self.step, self.chain = step, chain
        self.calls, self.rounding = 0, rounding_of(0.0)

    def __call__(self, h: FloatArray) -> FloatArray:
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


class _Exact:
    """The tests for Gaussian weights, which need nothing but the sums of each state."""

    def add(self, layer: Layer, rest: FloatArray) -> None:
        """Take R of some calls on one state."""

    def claims(self, states: Sequence[OnOneState]) -> Iterator[Claim]:
        """Yield the tests."""
        return claims(states)


class _Moments:
    """The tests of one step of `bnmc.invariant.check`, which hold for weights of any law."""

    def __init__(self, chain: Chain, rounding: float) -> None:
        self.chain, self.rounding = chain, rounding
        self._evidence: defaultdict[str, list[Evidence]] = defaultdict(list)

    def add(self, layer: Layer, rest: FloatArray) -> None:
        """Take R = (h′ − skip x)/gain of an even number of calls on one state."""
        arrays = (layer.y, layer.x, layer.a, layer.gram, layer.square)
        before = Layer(*(np.broadcast_to(one, (len(rest), *one.shape[1:])) for one in arrays))
        y = rest + self.chain.skip / self.chain.gain * before.x
        found, _ = of_one_step(self.chain, before, y, self.rounding)
        for claim, evidence in found.items():
            self._evidence[claim].append(evidence)

    def claims(self, states: Sequence[OnOneState]) -> Iterator[Claim]:
        """Yield the tests."""
        for claim, parts in self._evidence.items():
            yield assessed(claim, Evidence.joined(parts), min(self.rounding, COARSE))


def _stages(chain: Chain, rows: int) -> Iterator[int]:
    """Yield the numbers of calls on each state after which there is a verdict."""
    calls, most = FEWEST_CALLS, MOST_CALLS
    if not chain.is_gaussian:
        calls = most = FEWEST_CALLS_OF_MOMENTS
    most = max(most, -(-rows // chain.width))
    while True:
        yield calls
        if calls >= most:
            return
        calls *= 2


def _calls(tried: _Tried, chain: Chain, layer: Layer, count: int) -> Iterator[FloatArray]:
    """Yield R of `count` calls on a state, an even number, some at a time and in pairs."""
    h, known = chain.gain * layer.y[0], chain.skip * layer.x
    block = 2 * max(1, BLOCK_NUMBERS // (2 * h.size))
    for first, last in ranges(count, block):
        yield (np.stack([tried(h) for _ in range(first, last)]) - known) / chain.gain


def _lines(failures: Iterable[Claim]) -> Iterator[str]:
    rows = list(failures)
    for row in rows[:_SHOWN]:
        expected = "" if row.expected is None else f", expected {row.expected:.4g}"
        error = "" if row.stderr is None else f" ± {row.stderr:.2g}"
        p = f"p = {row.p_value:.1g}" if row.p_value else "p < 1e-300"
        yield f"  {row.claim}: {row.statistic:.4g}{expected}{error} ({p})"
    if len(rows) > _SHOWN:
        yield f"  and {len(rows) - _SHOWN} more, in `failures`"
