"""`assert_same_law`: an assertion that a step of another program has the law of a layer.

The test is sequential: it calls the step on some states, in stages, and tests after each stage.
Each of the states reveals other mistakes.  `whole_networks` has the test of a whole network.
"""

from __future__ import annotations

import math
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np

from bnmc._claims.claims import Claim, Evidence, assessed, directions, hidden, judged, of_one_step
from bnmc._claims.layer import COARSE, Layer, rounding_noise
from bnmc._support.arguments import Float64Array, draw_key, integer, real
from bnmc._support.workers import ranges
from bnmc.chain.chain import Chain, Network, as_chain, as_network
from bnmc.errors import ArgumentError, ArgumentTypeError, BnmcError
from bnmc.testing.calls_on_state import CallsOnState
from bnmc.testing.exact_tests import exact_claims
from bnmc.testing.explanation import explained
from bnmc.testing.faults import features_differ
from bnmc.testing.states import (
    BLOCK_NUMBERS,
    ReturnedStates,
    given_states,
    layer_of,
    numbers_of_calls,
)
from bnmc.testing.whole_networks import NetworkTest

#: A function of a state (width, batch) that returns the next state as any array.
Step = Callable[[Float64Array], Any]

#: Least width for weights that are not Gaussian: narrower chains have no measured error rate.
_LEAST_WIDTH_OF_MOMENTS = 4

#: Least number of calls on each state, and of their rows, for an explanation.
_CALLS_TO_EXPLAIN, _ROWS_TO_EXPLAIN = 16, 2048

#: Number of claims in a message, and its width in characters.
_SHOWN, _WIDTH = 6, 80

#: A space at which no line ends.
_UNBROKEN = "\N{NO-BREAK SPACE}"

#: Number of calls of the tested step that lead to the state "iterated".
_ITERATED = 10


class LawMismatch(BnmcError, AssertionError):
    """A step or a network does not have the law of a chain or of a network.

    Parameters
    ----------
    chain : Chain or Network
        The chain or the network.
    causes : tuple of str
        The most likely causes, the clearest first; empty if no known cause fits.
    failures : tuple of bnmc.invariant.Claim
        The claims that fail, the clearest first.
    calls, calls_in_all : int
        Numbers of calls of the step until the test failed, and with those for the explanation.

    Attributes
    ----------
    chain, causes, failures, calls, calls_in_all
        The parameters, unchanged.

    Examples
    --------
    >>> from bnmc.testing import LawMismatch
    >>> import bnmc
    >>> raise LawMismatch(bnmc.Chain(10, 3), ("the output is scaled by 2",), (), 26, 842)
    Traceback (most recent call last):
        ...
    bnmc.testing.LawMismatch: not the law of Chain(width=10, batch=3,
    activation='linear'), found after 26 calls (842 with the explanation)
    most likely: the output is scaled by 2
    """

    def __init__(
        self,
        chain: Chain | Network,
        causes: tuple[str, ...],
        failures: tuple[Claim, ...],
        calls: int,
        calls_in_all: int,
    ) -> None:
        self.chain, self.causes, self.failures = chain, causes, failures
        self.calls, self.calls_in_all = calls, calls_in_all
        explained = f" ({calls_in_all} with the explanation)" if calls_in_all > calls else ""
        seen = f"not the law of {chain}, found after {calls} calls{explained}"
        named = (f"most likely: {cause}" for cause in causes)
        # The first line follows the name of the class.
        first = _wrapped(seen, " " * len("bnmc.testing.LawMismatch: ")).lstrip()
        super().__init__("\n".join([first, *map(_wrapped, [*named, *_lines(failures)])]))


# Messages and pickles name the class by its public path.
LawMismatch.__module__ = "bnmc.testing"


def assert_same_law(
    step: Step, chain: Chain | Network, *, rng: Any = None, alpha: float = 1e-6, rows: int = 2**14
) -> None:
    r"""Assert that a step has the law of a layer, or that a program has the law of a network.

    Parameters
    ----------
    step : callable
        A function of a state h, a new float64 array (width, batch) **before** normalization.  It
        returns the next state before normalization, skip N(h) + gain W σ(N(h)), as an array of any
        library in float32 or float64.  Every call must draw a new W, and a new b if the chain has a
        bias, which it adds.  For other layouts see `from_features_last`, `from_images` and
        `from_linear_first`.
        If the order of the chain is "activation-norm", the next state is skip h + gain W N(σ(h)),
        and if it is "pre-activation", skip h + gain W σ(N(h)).

        For a network, a function of the state h of layer 0, (width, batch), that returns the list
        of the states h of layers 1, 2, …, each before the norm and the activation of its layer.
    chain : Chain or Network
        The expected law.  For weights that are not Gaussian only mean, covariance and independence
        are tested, and the width must be at least 4.  For orthogonal weights every call must keep
        the Gram matrix.
    rng : optional
        Anything `numpy.random.default_rng` takes (SPEC 7), for the states on which the step is
        tested.  It does not affect the random numbers of the step.
    alpha : float, default 1e-6
        Upper bound of the probability that a correct step fails, in (0, 1).
    rows : int, default 16384
        Least number of rows of h′ per state before a step passes, >= 2.  At every width there are
        at least 16 calls per state (64 if the weights are not Gaussian).  :doc:`/undetected` lists
        the mistakes that need more.

    Raises
    ------
    LawMismatch
        If the step has another law.  It is an `AssertionError` that states the most likely causes,
        with numbers, and the claims that fail.
    ArgumentError, ArgumentTypeError
        For an argument that is not allowed, and for a step that does not return finite real
        numbers in the shape of a state, at most 1e30 times the gain in size.  Also if rounding
        errors hide the law of the chain on all states.

    See Also
    --------
    from_features_last, from_images, from_linear_first : Other layouts.
    bnmc.invariant.check : A claim about the stationary law.

    Notes
    -----
    :doc:`/testing` has the eight states on which the step is tested, and explains the tests by
    name.  :doc:`/undetected` has the faults that they find and miss, and the measured share of
    right steps that fail.

    The dtype that the step returns bounds its rounding errors, and the norm, the activation, and
    the skip connection over the gain amplify them: after tanh, a norm of values near 1 does so.
    Directions in which the standard deviation of h′ is less than 512 times the amplified errors are
    tested only for being that small, and states without other directions are left out.  So a step
    in float32 is tested in fewer directions than one in float64, above all on rows with large
    means, and on states of large scale beside a skip connection.

    For Gaussian weights, given h, the rows of R = (h′ − skip N(h))/gain are independent N(0, G),
    with G = aᵀa/width and a = σ(N(h)); a bias of variance v adds v/gain² to all entries of G.  In a
    scaled orthonormal basis of the range of G they are standard normal, so the tests are exact at
    every width and number of calls:

    - Sums of squares are χ²: in total, by coordinate (Bartlett's decomposition), of means over
      calls, and of sums over rows.
    - Products with the state are normal.
    - The rows of all calls on a state, one call after the other, are a sequence of independent
      vectors z.  For each lag k, the numbers ⟨z_{i+k}, z_i⟩/\|z_i\| are independent standard
      normals, because all earlier rows are given when z_{i+k} is drawn.  So their sum is
      normal, and their sum of squares, which shows dependence with signs that vary, is χ².  The
      lags are 1, 2, half the width, and the width (a row and that row in the next call).  The same
      holds for neighbours in random orders of the rows of a call, and for calls t and t + 1.
    - Σ Z Zᵀ over calls, for up to 256 rows, has Wishart's law: its Cholesky factor is normal below
      the diagonal (tested if there are twice as many columns as rows).  A squared correlation of
      two rows has a Beta law, which bounds the largest one (Bonferroni over the pairs).  The
      largest correlation of two calls among 256 has the same bound.
    - Norms of rows and of calls, and single weights, are compared with their laws by Kolmogorov's
      distance (with Massart's bound of its tail), and by the mean of the polynomial of degree 2
      that is most sensitive to their spread, for weights to their kurtosis (with Chernoff's bound).
    - The largest weight is compared with the largest of as many normals.
    - Components outside the range of G must be rounding errors.

    Holm's method divides alpha among the tests.  The tests are repeated after 2, 4, 8 and so on
    calls on each state, each time at alpha over the number of repetitions.  A clear failure
    therefore ends the test early, and the total probability of a false alarm is at most `alpha`.

    For other weights, the tests are those of one step of `bnmc.invariant.check`, after 64, 128 and
    so on calls on each state.  They rest on the central limit theorem, so `alpha` is approximate.

    **Networks.**  Each layer is tested given the states of the layers before, in the same way: its
    skip connection or skip path is subtracted, and its rows are whitened by the covariance of each
    call.  So the tests are as exact, and the error names the layer.  The norm and the activation
    after a layer show in the next layer; those of the last layer have no test.  Products of rows of
    different layers show weights that layers share.  Calls begin with seven of the states, as
    layer 0.  A layer after a state that its norm cannot divide, or whose activations are all 0, has
    no test in these calls.

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
    the variance of a row is divided by n - 1, not n (ddof = 1): N(h) is smaller by sqrt((n-1)/n) =
    0.8944

    A network whose second layer has a factor too much:

    >>> network = chain.repeat(1) + bnmc.Chain(width=30, batch=5, activation="tanh").repeat(1)
    >>> def layers(h):
    ...     x = layer(h)
    ...     a = np.maximum((x - x.mean(axis=1, keepdims=True)) / x.std(axis=1, keepdims=True), 0.0)
    ...     return [x, 1.5 * rng.standard_normal((30, 50)) @ a / np.sqrt(50)]
    >>> try:
    ...     assert_same_law(layers, network, rng=0)
    ... except AssertionError as error:
    ...     print(error.causes[0])
    layer 2 has another law given the layers before it: the output is scaled by 1.492
    """
    __tracebackhide__ = True  # pytest shows the test that fails, not this function
    if not callable(step):
        raise ArgumentTypeError("step", step, "a function of a (width, batch) array")
    if not isinstance(chain, Network):
        as_chain(chain)
    alpha = real("alpha", alpha, above=0.0, below=1.0)
    rows = integer("rows", rows, low=2)
    generator = np.random.default_rng(draw_key(rng))
    test: SequentialTest | NetworkTest
    if isinstance(chain, Network):
        network = as_network(chain, low=1)
        test = NetworkTest(step, network, generator)
        for each, width in zip(test.chains, network.widths[1:], strict=True):
            _require_testable(each, width)
    else:
        _require_testable(chain, chain.width)
        test = SequentialTest(step, chain, generator)
    stages = test.numbers_of_calls(rows)
    for calls in stages:
        failures = _failures(test, calls, alpha / len(stages))
        if failures:
            found_after = test.step.calls
            # Explain from more calls, after which a false alarm may no longer fail.
            failures = _failures(test, max(calls, test.calls_to_explain), alpha) or failures
            causes = test.causes({claim.claim for claim in failures})
            raise LawMismatch(chain, causes, failures, found_after, test.step.calls)


def _require_testable(chain: Chain, width: int) -> None:
    """Raise unless there are tests of a step of a chain to so many rows."""
    if not chain.is_gaussian and width < _LEAST_WIDTH_OF_MOMENTS:
        allowed = f"an integer >= {_LEAST_WIDTH_OF_MOMENTS} for weights that are not Gaussian"
        raise ArgumentError("width", width, allowed)
    if chain.bias_variance > 0.0 and chain.is_orthogonal:
        allowed = "0 for orthogonal weights"
        hint = "test the step without its bias"
        raise ArgumentError("bias_variance", chain.bias_variance, allowed, hint)
    if chain.convolution is not None and not chain.is_gaussian:
        hint = "the tests for other weights know fully connected layers"
        raise ArgumentError("weights", chain.weights, "'gaussian' for a convolution", hint)
    chain.activation.check()


def _failures(test: SequentialTest | NetworkTest, calls: int, alpha: float) -> tuple[Claim, ...]:
    """Continue to `calls` calls on each state; return the claims that fail, the clearest first."""
    failures = [row for row in judged(test.claims_after(calls), alpha) if row.verdict == "fails"]
    return tuple(sorted(failures, key=lambda row: row.p_value or 0.0))


def _lines(failures: Iterable[Claim]) -> Iterator[str]:
    """Yield the lines of a message about failed claims."""
    rows = list(failures)
    if rows:
        yield "failed tests: measured, expected ± standard error if the law is right (p-value)"
    for row in rows[:_SHOWN]:
        expected = "" if row.expected is None else f", expected {_rounded(row):.4g}"
        error = "" if row.stderr is None else f" ± {row.stderr:.2g}"
        p = f"p = {row.p_value:.1g}" if row.p_value else "p < 1e-300"
        yield f"  {row.claim}: {row.statistic:.4g}{expected}{error} ({p.replace(' ', _UNBROKEN)})"
    if len(rows) > _SHOWN:
        yield f"  and {len(rows) - _SHOWN} more, in `failures`"


def _rounded(row: Claim) -> float:
    """Return an expectation to the digits of its standard error: 0 if it is 0 up to rounding."""
    expected, error = row.expected or 0.0, row.stderr
    if not error or not math.isfinite(error):
        return expected
    return round(expected, 1 - math.floor(math.log10(error))) + 0.0


def _wrapped(line: str, indent: str = "") -> str:
    hanging = 4 * " " + line[: len(line) - len(line.lstrip())]
    text = textwrap.fill(
        line, _WIDTH, initial_indent=indent, subsequent_indent=hanging,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    return text.replace(_UNBROKEN, " ")


# --- calls on each state, in stages


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
    step : CheckedStep
    states : list of CallsOnState
    """

    def __init__(self, step: Step, chain: Chain, generator: np.random.Generator) -> None:
        self.chain, self.step = chain, CheckedStep(step, chain)
        self._generator = generator
        # One of the states comes from calls of the step, which also show the rounding.
        tried = list(tried_states(chain, self.step, generator))
        rounding, seed = self.step.rounding, int(generator.integers(2**63))
        # Each state has the same seed, so that all compare the same rows.
        self.states = [
            CallsOnState(name, layer, self.step.noise(layer), np.random.default_rng(seed))
            for name, layer in tried
            if self.step.is_clear(layer)
        ]
        if not self.states:
            raise hidden(chain, rounding)
        # Exact tests of Gaussian weights need the sums on each state alone.
        self._moments = None if chain.is_gaussian else _MomentTests(chain, rounding)

    def claims_after(self, calls: int) -> Iterator[Claim]:
        """Call the step until each state has `calls` calls, and return the claims."""
        for state in self.states:
            for rest in _residuals(self.step, self.chain, state.layer, calls - state.calls):
                state.add(rest)
                if self._moments is not None:
                    self._moments.add(state, rest)
        return exact_claims(self.states) if self._moments is None else self._moments.claims()

    def numbers_of_calls(self, rows: int) -> list[int]:
        """Return the numbers of calls on each state after which there is a verdict."""
        return numbers_of_calls(self.chain.width, rows, is_gaussian=self.chain.is_gaussian)

    @property
    def calls_to_explain(self) -> int:
        """Least number of calls on each state for an explanation."""
        return max(_CALLS_TO_EXPLAIN, -(-_ROWS_TO_EXPLAIN // (2 * self.chain.width)) * 2)

    def causes(self, failed: set[str]) -> tuple[str, ...]:
        """Return the most likely causes of failed claims."""
        differ = partial(features_differ, self.chain, self.step, self._generator)
        return explained(self.chain, self.states, failed, differ)


class CheckedStep(ReturnedStates):
    """The caller's step, with checks of the states that it returns."""

    def __init__(self, step: Step, chain: Chain) -> None:
        super().__init__(step)
        self.chain = chain

    def __call__(self, h: Float64Array) -> Float64Array:
        """Return the next state in float64, or raise if the step does not return a state."""
        shape = self.chain.width, self.chain.batch
        return self.checked("step(h)", self.call(h), shape, self.chain.gain)

    def noise(self, layer: Layer) -> Float64Array:
        """Return the covariance of rounding errors of R on one state."""
        return rounding_noise(self.chain, layer, self.rounding)[0]

    def is_clear(self, layer: Layer) -> bool:
        """Return whether R on a state can be told from rounding errors in some direction."""
        values, _ = directions(layer.gram[0], self.noise(layer))
        return bool(values[-1] > 1.0)


class _MomentTests:
    """Tests one layer given the layer before, by the moments that all laws of weights share.

    They are those of `bnmc.invariant.check`.
    """

    def __init__(self, chain: Chain, rounding: float) -> None:
        self.chain, self.rounding = chain, rounding
        self._evidence: defaultdict[str, list[Evidence]] = defaultdict(list)

    def add(self, state: CallsOnState, rest: Float64Array) -> None:
        """Add R = (h′ − skip x)/gain of an even number of calls on one state."""
        layer, noise = state.layer, np.broadcast_to(state.noise, (len(rest), *state.noise.shape))
        arrays = (layer.y, layer.x, layer.a, layer.gram, layer.square)
        before = Layer(*(np.broadcast_to(array, (len(rest), *array.shape[1:])) for array in arrays))
        y = rest + self.chain.skip / self.chain.gain * before.x
        evidence_of, _ = of_one_step(self.chain, before, y, self.rounding, noise)
        for claim, evidence in evidence_of.items():
            self._evidence[claim].append(evidence)

    def claims(self) -> Iterator[Claim]:
        """Yield the claims with p-values."""
        for claim, parts in self._evidence.items():
            yield assessed(claim, Evidence.joined(parts), min(self.rounding, COARSE))


def _residuals(step: CheckedStep, chain: Chain, layer: Layer, count: int) -> Iterator[Float64Array]:
    """Yield R of an even number of calls on a state, in blocks of pairs."""
    h, mean = chain.gain * layer.y[0], chain.skip * layer.x
    block = 2 * max(1, BLOCK_NUMBERS // (2 * h.size))
    for first, last in ranges(count, block):
        yield (np.stack([step(h) for _ in range(first, last)]) - mean) / chain.gain


# --- the states


def tried_states(
    chain: Chain, step: CheckedStep, generator: np.random.Generator
) -> Iterator[tuple[str, Layer]]:
    """Yield states by name, as layers with one sample.

    States with a row of zero variance are left out.
    """
    for name, h in _states(chain, step, generator):
        layer = layer_of(chain, h)
        if layer is not None:
            yield name, layer


def _states(
    chain: Chain, step: CheckedStep, generator: np.random.Generator
) -> Iterator[tuple[str, Float64Array]]:
    given = list(given_states(chain, generator))
    yield from given
    _, state = given[0]
    for _ in range(_ITERATED):
        layer = layer_of(chain, state)
        if layer is None or not step.is_clear(layer):
            return  # the step may divide by 0
        state = step(state)
    yield "iterated", state
