"""`assert_same_law`: an assertion that a step of another program has the law of a layer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np

from bnmc._claims.claims import Claim, judged
from bnmc._support.arguments import draw_key, integer, real
from bnmc.chain.chain import Chain, as_chain
from bnmc.errors import ArgumentError, ArgumentTypeError, BnmcError
from bnmc.testing.explanation import explained
from bnmc.testing.faults import features_differ
from bnmc.testing.sequential_test import SequentialTest, Step, numbers_of_calls

#: Least width for weights that are not Gaussian: narrower chains have no measured error rate.
_LEAST_WIDTH_OF_MOMENTS = 4

#: Least number of calls on each state, and of their rows, for an explanation.
_CALLS_TO_EXPLAIN, _ROWS_TO_EXPLAIN = 16, 2048

#: Number of claims in a message.
_SHOWN = 6


class LawMismatch(BnmcError, AssertionError):
    """A step does not have the law of a layer of a chain.

    Parameters
    ----------
    chain : Chain
        The chain.
    causes : tuple of str
        The most likely causes, the clearest first; empty if no known cause fits.
    failures : tuple of bnmc.invariant.Claim
        The claims that fail, the clearest first.
    calls : int
        Number of calls of the step so far.

    Attributes
    ----------
    chain, causes, failures, calls
        The parameters, unchanged.

    Examples
    --------
    >>> from bnmc.testing import LawMismatch
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
    r"""Assert that a step of another program has the law of a layer of a chain.

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
    chain : Chain
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
        at least 16 calls per state (64 if the weights are not Gaussian).  The documentation page on
        tests lists the mistakes that need more.

    Raises
    ------
    LawMismatch
        If the step has another law.  It is an `AssertionError` that states the most likely causes,
        with numbers, and the claims that fail.
    ArgumentError, ArgumentTypeError
        For an argument that is not allowed, and for a step that does not return finite real
        numbers in the shape of a state, at most 1e30 times the gain in size.

    Notes
    -----
    The step is tested on eight states:

    - a generic state;
    - a state whose rows are equal, except up to four in random places, so that as many columns of W
      can be read off h′;
    - rows with large means;
    - samples near a line;
    - duplicated samples;
    - rows with standard deviations from 1e-6 to 1e-2, which reveal an ε;
    - rows with standard deviations from 1e3 to 1e6;
    - the state after ten layers of the step itself.

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

    The table shows numbers of correct steps that failed, of 1000 of each chain with `rows` 64
    (``python -m bench false-alarms``).  The expectations are at most 50, 10 and 1:

    =========================================== ===== ===== =====
    chain                                         5 %   1 % 0.1 %
    =========================================== ===== ===== =====
    relu, width 10, batch 3                        34     3     1
    tanh, width 20, batch 5, skip 0.5              40     6     0
    linear, uncentred, width 12, batch 12          33     4     1
    =========================================== ===== ===== =====

    The following mistakes were made in a layer of width 20, batch 5 and relu, and tested at `alpha`
    1e-6.  Each was found in all of 40 repetitions, and explained within 3 s.  The table shows the
    number of calls before the explanation, in the median and at most
    (``python -m bench testing --quick``):

    ============================================ ====== =======
    mistake                                      median at most
    ============================================ ====== =======
    eps 1e-5; evaluation mode; no centring           26      26
    running statistics, momentum 0.1                 26      26
    ddof 1                                           42      74
    activation tanh; leaky relu, slope 0.01          26      26
    variance 2/width; Linear of PyTorch              26      26
    skip connection 0.1                              26      26
    variance 4 % off                                522    1034
    uniform weights                                  42      74
    uniform weights, width 10 and batch 3           266     266
    normal weights, truncated at ±2                 138     138
    orthogonal weights                               26      26
    one W at all calls                               26      26
    seven W in turn                                  42      74
    rows correlated by 0.2, or alike in pairs        26      26
    ============================================ ====== =======

    The documentation page on tests has a table of faults whose signs vary, of laws near the normal
    law, and of normalized weights, for widths 20, 200 and 1000, and a list of what stays invisible.

    A scale that is 1 % off was found with 16384 rows at width 20, but missed for the linear chain
    of width 10 and batch 3, which needs more rows.

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
    as_chain(chain)
    alpha = real("alpha", alpha, above=0.0, below=1.0)
    rows = integer("rows", rows, low=2)
    if not chain.is_gaussian and chain.width < _LEAST_WIDTH_OF_MOMENTS:
        allowed = f"an integer >= {_LEAST_WIDTH_OF_MOMENTS} for weights that are not Gaussian"
        raise ArgumentError("width", chain.width, allowed)
    if chain.bias_variance > 0.0 and chain.is_orthogonal:
        allowed = "0 for orthogonal weights"
        hint = "test the step without its bias"
        raise ArgumentError("bias_variance", chain.bias_variance, allowed, hint)
    if chain.convolution is not None and not chain.is_gaussian:
        hint = "the tests for other weights know fully connected layers"
        raise ArgumentError("weights", chain.weights, "'gaussian' for a convolution", hint)
    chain.activation.check()
    generator = np.random.default_rng(draw_key(rng))
    test = SequentialTest(step, chain, generator)
    stages = list(numbers_of_calls(chain, rows))
    for calls in stages:
        failures = _failures(test, calls, alpha / len(stages))
        if failures:
            # Explain from more calls, after which a false alarm may no longer fail.
            more = max(calls, _CALLS_TO_EXPLAIN, -(-_ROWS_TO_EXPLAIN // (2 * chain.width)) * 2)
            failures = _failures(test, more, alpha) or failures
            names = {claim.claim for claim in failures}
            differ = partial(features_differ, chain, test.step, generator)
            causes = explained(chain, test.states, names, differ)
            raise LawMismatch(chain, causes, failures, test.step.calls)


def _failures(test: SequentialTest, calls: int, alpha: float) -> tuple[Claim, ...]:
    """Continue to `calls` calls on each state; return the claims that fail, the clearest first."""
    failures = [row for row in judged(test.claims_after(calls), alpha) if row.verdict == "fails"]
    return tuple(sorted(failures, key=lambda row: row.p_value or 0.0))


def _lines(failures: Iterable[Claim]) -> Iterator[str]:
    """Yield the lines of a message about failed claims."""
    rows = list(failures)
    for row in rows[:_SHOWN]:
        expected = "" if row.expected is None else f", expected {row.expected:.4g}"
        error = "" if row.stderr is None else f" ± {row.stderr:.2g}"
        p = f"p = {row.p_value:.1g}" if row.p_value else "p < 1e-300"
        yield f"  {row.claim}: {row.statistic:.4g}{expected}{error} ({p})"
    if len(rows) > _SHOWN:
        yield f"  and {len(rows) - _SHOWN} more, in `failures`"
