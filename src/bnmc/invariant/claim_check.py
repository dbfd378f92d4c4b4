"""`check`: whether states have the properties that theory and papers claim of the invariant law."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnmc._claims.claims import Layer, invariance, of_one_step, of_state, serial, uniqueness
from bnmc._claims.evidence import COARSE, Claim, Evidence, assessed, judged
from bnmc._claims.states import as_states, near_a_line, next_states, rounding_of
from bnmc._support.arguments import integer, real
from bnmc._support.keys import draw_key
from bnmc._support.machine import available_memory
from bnmc._support.progress import Progress, Reporter, as_progress
from bnmc._support.workers import ranges
from bnmc.chain.chain import Chain
from bnmc.errors import ArgumentError, ArgumentTypeError, ResultTooLargeError
from bnmc.invariant.certified_sample import sample
from bnmc.invariant.distances import distances
from bnmc.invariant.report import CheckReport
from bnmc.simulation.engine.pairs import require_coupling

__all__ = ["check"]

FloatArray = NDArray[np.float64]

Step = Callable[[NDArray[Any]], ArrayLike]

#: From here on the rate of false alarms was measured.
LEAST_SAMPLES, LEAST_WIDTH = 200, 4

#: Numbers of a block of samples, whose arrays then stay within a cache.
BLOCK_NUMBERS = 1 << 17


def check(
    chain: Chain,
    *,
    samples: ArrayLike | None = None,
    step: Step | None = None,
    size: int = 1000,
    tolerance: float = 0.01,
    ahead: int = 1,
    alpha: float = 1e-3,
    rng: Any = None,
    max_layers: int = 4000,
    progress: bool | Progress = False,
) -> CheckReport:
    r"""Test what is claimed of the invariant law of a chain, claim by claim.

    What is tested are states h, the (width, batch) arrays that a layer is about to normalise:
    draws of `bnmc.invariant.sample`, states of another program (`samples`), or what another
    program makes of a state (`step`).

    Parameters
    ----------
    chain : Chain
        With a norm, width >= 4 and batch >= 2; without `samples` also as in `bnmc.mixing.tv_bound`.
    samples : (N, width, batch) array_like, optional
        Independent states before N, N >= 200: real, finite, of any precision.
    step : callable, optional
        A function of one state h, a (width, batch) array, that returns the next, with weights of
        its own at every call. It goes on from each of `samples`, or else from draws of
        `bnmc.invariant.sample`; then the states that are tested are those it returns.
    size : int, default 1000
        Number of states that are drawn where there are no `samples`, >= 200.
    tolerance : float, default 0.01
        Of `bnmc.invariant.sample`, in [1e-6, 1).
    ahead : int, default 1
        Layers between the states that invariance compares, >= 1. With more, a start that is
        forgotten slowly shows better.
    alpha : float, default 1e-3
        Probability that a report on a correct chain has a claim that fails, at most; in (0, 1).
    rng : optional
        Anything `numpy.random.default_rng` takes (SPEC 7). One 64-bit key is drawn from it.
    max_layers : int, default 4000
        As in `bnmc.invariant.sample`.
    progress : bool or callable
        True for a bar on standard error (extra ``cli``), or a function of (done, total): of tasks
        while states are drawn, then of samples.

    Returns
    -------
    CheckReport
        ``print`` shows it as a table; ``ok`` says whether no claim fails.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For an argument that is not allowed, before any work, and for a `step` that does not return
        finite real numbers in the shape of a state.
    ResultTooLargeError
        If `size` states do not fit in memory.
    ZeroVarianceError
        For a row that cannot be normalised, here or, as all activations are 0, in the next layer;
        its ``chain`` is the number of the sample.
    NonFiniteError
        If the activation overflows.
    NotMixing, PartialEstimateError
        As `bnmc.invariant.sample`, where that is used.

    Notes
    -----
    With x = N(h), a = σ(x) and G = aᵀa/d, the next state is h′ = skip x + gain W a. Below, gain is
    1 and skip 0. These claims are tested, each in one or more rows of the report:

    ============ ==================================================================================
    uniqueness   draws that started from the law "gaussian" and from samples near a line, each with
                 a certificate, agree in functions of G; without `samples` and `step` only
    invariance   functions of G and of hᵀh have the same mean `ahead` layers later, where a layer
                 is `step`, or else drawn by the library
    moments      E hᵀh/d = E G, orthogonal to 1 and along 1
    rows         are independent and Gaussian given G, whatever G: E h_ri⁴ = 3 E h_ri² h_si² for
                 r ≠ s, and likewise for norms; are uncorrelated; are symmetric in sign (Lemma 4 of
                 Daneshmand et al., arXiv:2003.01652); are exchangeable
    batch        the samples of a batch are exchangeable
    samples      each state is independent of the next one
    one step     with `step`: given h, rows of h′ are independent N(0, G), and calls independent
    ============ ==================================================================================

    Claims that a chain does not make are left out: Gaussian rows for other weights, signs for a
    skip connection with a σ that is not odd, and for weights of one's own.

    Each statistic is a mean of independent differences whose expectation is 0, tested by Student's
    t with Hall's (1992) correction for skewness. Of several statistics in a row the least p-value
    counts, times their number; verdicts are those of Holm's method at level `alpha`.

    The tests rest on the central limit theorem, and draws of the library have the invariant law
    only within `tolerance`. Measured on correct chains and the fewest samples, 200: how many in a
    hundred reports fail at `alpha` of 5, 1 and 0.1 %.

    ================================================== ======= ===== ===== =====
    chain                                              reports   5 %   1 % 0.1 %
    ================================================== ======= ===== ===== =====
    relu, width 10, batch 3, given                        5000  3.84  0.74  0.06
    sigmoid, uncentred, width 10, batch 4, given          2000  4.45  0.95  0.15
    tanh, width 4, batch 5, given                         2000  4.90  1.15  0.20
    relu, width 20, batch 3, drawn at `tolerance` 0.05    1500  3.40  0.73  0.00
    ================================================== ======= ===== ===== =====

    Numbers of states that suffice at `alpha` 0.001, where a repetition would miss the fault with
    probability 10⁻⁶, for relu and batches of 5 (uniform weights: 3):

    ========================================= ================= =================
    fault                                     `samples`         with `step`
    ========================================= ================= =================
    variance of the weights 2 % off           3000 of width 100 2500 of width 60
    ddof 1 instead of 0 in the norm           300 of width 20   300 of width 20
    uniform instead of Gaussian weights       1500 of width 10  1500 of width 10
    erf(√π x/2) instead of tanh               500 of width 100
    leaky relu, slope 0.01, instead of relu                     2000 of width 200
    3 layers from samples near a line, not 20 1000 of width 100
    ========================================= ================= =================

    Not tested but reported, with intervals at level 0.95:

    - the distance in total variation of h from d rows N(0, G*), beside ε² of
      `bnmc.bounds.bridging.lemma_5`, which does not bound it. At most: the mean distance of
      N(0, G)^d. At least: Kolmogorov's distance of the laws of ‖G*^{-½}hᵀhG*^{-½}/d − I‖, with the
      band of Dvoretzky, Kiefer and Wolfowitz for both samples;
    - W₂² of one row given G from N(0, G*), and the orthogonality gap beside that of G*. For linear
      chains, in the m dimensions that N leaves, its mean square beside the leading order in 1/d,
      and it and W₂² of W H beside the bounds of `bnmc.bounds.orthogonalizes`;
    - the variance of eigenvalues over n/d, that of the law of Marchenko and Pastur. After one step
      hᵀh/d, whitened by G, has it to leading order: (n−1)(n+2)/n². The eigenvalues of PGP over
      their mean, P = I − 11ᵀ/n, have not, at stationarity: layers before widen them, at n = 20 and
      d = 500 to 5.05 (linear), 4.4 (tanh) and 2.3 (relu).

    Those with G* need a fixed point of `bnmc.MeanField`.

    Examples
    --------
    >>> import bnmc
    >>> import numpy as np
    >>> chain = bnmc.Chain(width=60, batch=4, activation="relu")
    >>> bnmc.invariant.check(chain, size=400, tolerance=0.05, rng=0).ok
    True

    A program of one's own whose weights have a variance that is 5 % off:

    >>> rng = np.random.default_rng(0)
    >>> def step(h):
    ...     x = (h - h.mean(axis=1, keepdims=True)) / h.std(axis=1, keepdims=True)
    ...     return np.sqrt(1.05 / 60) * rng.standard_normal((60, 60)) @ np.maximum(x, 0.0)
    >>> report = bnmc.invariant.check(chain, step=step, size=400, tolerance=0.05, rng=0)
    >>> report.ok, "one step: variance, whitened" in [row.claim for row in report.failures]
    (False, True)
    """
    if not isinstance(chain, Chain):
        raise ArgumentTypeError("chain", chain, "a bnmc.Chain")
    _require_law(chain, is_own=samples is None)
    if step is not None and not callable(step):
        raise ArgumentTypeError("step", step, "a function of a (width, batch) array, or None")
    size = integer("size", size, low=LEAST_SAMPLES)
    tolerance = real("tolerance", tolerance, low=1e-6, below=1.0)
    max_layers = integer("max_layers", max_layers, low=1, high=2**30)
    ahead = integer("ahead", ahead, low=1)
    alpha = real("alpha", alpha, above=0.0, below=1.0)
    progress = as_progress(progress)
    chain.activation.check()
    given = None if samples is None else _given(chain, samples)
    key = draw_key(rng)
    generator = np.random.default_rng(key)

    tests = _Tests(chain, step, ahead, generator, rounding_of(0.0 if samples is None else samples))
    source = "given"
    if given is None:
        _require_memory(chain, size)
        drawn = sample(
            chain, size, tolerance, rng=generator, max_layers=max_layers, progress=progress
        )
        given = drawn.preactivations()
        source = f"of layer {drawn.layer}, within {drawn.tolerance:g} of the invariant law"
        tests.is_of_last = step is not None
        if step is None:
            start = near_a_line(chain, generator)
            other = sample(
                chain, size, tolerance, initial=start, rng=generator, max_layers=max_layers,
                progress=progress,
            )  # fmt: skip
            tests.note(uniqueness(drawn.gram, other.gram))
    if step is not None:
        source += ", taken on by `step`"
    with Reporter(progress, "check", "samples") as report:
        block = 2 * max(1, BLOCK_NUMBERS // (2 * chain.width * chain.batch))
        for first, last in ranges(len(given), block):
            tests.add(given[first:last], first)
            report(last, len(given))
    return CheckReport(chain, judged(tests.claims(), alpha), alpha, len(given), source, key)


class _Tests:
    """What blocks of samples say for and against the claims.

    `is_of_last` says that the states to be tested are those which steps end in.
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
        """Keep evidence."""
        for claim, evidence in found.items():
            self._evidence[claim].append(evidence)

    def add(self, states: NDArray[Any], first: int) -> None:
        """Take states a few layers on, and note what that shows; `first` is the first's number."""
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
        """Yield the claims, tested and reported, without verdicts."""
        gram, square, spread = (np.concatenate(parts) for parts in zip(*self._kept, strict=True))
        self.note(serial(square))
        for claim, parts in self._evidence.items():
            yield assessed(claim, Evidence.joined(parts), min(self.rounding, COARSE))
        yield from distances(self.chain, gram, square, spread, self.generator)

    def _next(self, states: NDArray[Any], layer: Layer) -> NDArray[Any]:
        """Draw the next states, or let the user's step do it."""
        if self.step is None:
            return next_states(self.chain, layer.x, layer.a, layer.gram, self.generator)
        shape = self.chain.width, self.chain.batch
        returned = []
        for state in states:
            value = self.step(state.copy())
            returned.append(as_states("step(h)", value, shape, self.chain))
            self.rounding = max(self.rounding, rounding_of(value))
        return np.stack(returned)


def _require_law(chain: Chain, is_own: bool) -> None:
    """Refuse a chain without an invariant law, or without the library's draws of it if needed."""
    if is_own:
        require_coupling(chain, "pass samples= of your own")
    if chain.norm == "none":
        raise ArgumentError(
            "norm", chain.norm, '"batch" or "batch-uncentred"',
            "without normalization there is no invariant law",
        )  # fmt: skip
    if chain.batch < 2:
        raise ArgumentError("batch", chain.batch, "an integer >= 2", "one sample is no chain")
    if chain.width < LEAST_WIDTH:
        raise ArgumentError("width", chain.width, f"an integer >= {LEAST_WIDTH} for this function")


def _require_memory(chain: Chain, size: int) -> None:
    """Refuse states that do not fit: those drawn, and their Gram matrices, twice."""
    needed = 8 * size * chain.batch * (chain.width + 4 * chain.batch)
    available = available_memory()
    if needed > available:
        raise ResultTooLargeError("size", needed, available, "fewer samples suffice at large width")


def _given(chain: Chain, samples: ArrayLike) -> NDArray[np.floating[Any]]:
    states = as_states("samples", samples, ("N", chain.width, chain.batch), chain)
    if len(states) < LEAST_SAMPLES:
        raise ArgumentError("samples", states.shape, f"at least {LEAST_SAMPLES} samples")
    return states
