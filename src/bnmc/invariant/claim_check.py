"""`check`: tests of states against the claims of theory and papers about the stationary law."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnmc import gram as gm
from bnmc import random_matrix
from bnmc._claims import claims
from bnmc._claims.claims import Claim, Evidence
from bnmc._claims.layer import COARSE, Layer, as_states, near_a_line, next_states, rounding_of
from bnmc._support.arguments import Float64Array, draw_key, integer, real
from bnmc._support.machine import require_memory
from bnmc._support.progress import Progress, reporting
from bnmc._support.text import Result, first_of, plain, text_table, wrapped
from bnmc._support.workers import Parallel, ranges
from bnmc.bounds import bridging, orthogonalizes
from bnmc.chain.chain import Chain
from bnmc.chain.needs import COUPLED, FULLY_CONNECTED, STATIONARY, TWO_SAMPLES, Need, require
from bnmc.errors import ArgumentError, ArgumentTypeError, PartialEstimateError, SingularGramError
from bnmc.invariant.certified_sample import sample
from bnmc.mean_field import FixedPoint
from bnmc.mean_field.field import MeanField

#: A function of one state that returns the next.
Step = Callable[[NDArray[Any]], ArrayLike]

#: Smallest number of samples, and width, at which the rate of false alarms was measured.
_LEAST_SAMPLES, _LEAST_WIDTH = 200, 4

#: What the tests need of a chain.
_NEEDS = (
    *STATIONARY,
    FULLY_CONNECTED,
    Need(
        "bias_variance",
        lambda chain: chain.bias_variance == 0.0 or not chain.is_orthogonal,
        "0 for orthogonal weights",
        "test the states without their biases",
    ),
    TWO_SAMPLES,
    Need(
        "width",
        lambda chain: chain.width >= _LEAST_WIDTH,
        f"an integer >= {_LEAST_WIDTH} for this function",
        "",
    ),
)

#: Lines of the heads of two tables, each below an empty line.
_LINES_OF_HEADS = 4

#: Numbers in a block of samples; its arrays fit in the cache of a core.
BLOCK_NUMBERS = 1 << 17


@dataclass(frozen=True)
class CheckReport(Result):
    """Result of `check`; ``print`` shows a table.

    Attributes
    ----------
    chain : Chain
    rows : tuple of Claim
    alpha : float
        Upper bound of the probability that any claim fails if all are true, up to the accuracy of
        the tests.
    chains : int
        Number of samples, of as many chains.
    source : str
        Source of the samples, in words.
    key : int
        The 64-bit key of all random numbers: as `rng` it repeats the call.
    assumes : tuple of str
        For samples that `bnmc.invariant.sample` drew, the conditions under which their law is near
        the stationary law; empty for given samples.

    Examples
    --------
    >>> import bnmc
    >>> chain = bnmc.Chain(width=60, batch=4, activation="relu")
    >>> report = bnmc.invariant.check(chain, chains=400, atol=0.05, rng=0)
    >>> report.ok, report.failures, report.chains
    (True, (), 400)
    """

    chain: Chain
    rows: tuple[Claim, ...]
    alpha: float
    chains: int
    source: str
    key: int = field(repr=False)
    assumes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether no claim fails."""
        return not self.failures

    @property
    def failures(self) -> tuple[Claim, ...]:
        """The rows that fail."""
        return tuple(row for row in self.rows if row.verdict == "fails")

    def to_dict(self) -> dict[str, Any]:
        """Return the report as strings, numbers, lists and dicts, for `json.dumps`."""
        return {**plain(self), "ok": self.ok}

    def __str__(self) -> str:
        """Return the claims that fail and some others, in 25 lines; `table` has all of them."""
        # What fails first, then what comes nearest to it.
        order = sorted(
            range(len(self.rows)),
            key=lambda k: (
                self.rows[k].verdict != "fails",
                math.inf if (p := self.rows[k].p_value) is None else p,
            ),
        )
        around = len(self._text([], ["…"]).splitlines()) + _LINES_OF_HEADS
        chosen, more = first_of(order, max(1, 25 - around), "claims: see table()")
        return self._text([self.rows[k] for k in sorted(chosen)], more)

    def table(self) -> str:
        """Return the text with all claims."""
        return self._text(self.rows, [])

    def _text(self, rows: Sequence[Claim], more: list[str]) -> str:
        tested = [_cells_of_test(row) for row in rows if row.p_value is not None]
        others = [_cells(row) for row in rows if row.p_value is None]
        count = sum(row.p_value is not None for row in self.rows)
        hold = f"{count - len(self.failures)} of {count} tested claims hold"
        lines = [
            wrapped(f"The stationary law of {self.chain}: {self.chains} samples, {self.source}"),
            f"{hold}. If all are true, one fails with probability {self.alpha:g} at most.",
        ]
        if tested:
            heads = ["claim", "measured", "expected", "std. error", "adjusted p", "verdict"]
            lines += ["", text_table(heads, tested, align="<>>>><")]
        if others:
            heads = ["not tested", "measured", "95 % interval", "prediction"]
            lines += ["", text_table(heads, others)]
        return "\n".join([*lines, *more, *(f"\n{wrapped(text)}" for text in self.assumes)])


def _cells_of_test(row: Claim) -> tuple[str, ...]:
    """Return the cells of a claim that was tested."""
    name = row.claim + (f" (worst of {row.count})" if row.count > 1 else "")
    numbers = (
        _cell(row.statistic),
        _cell(row.expected),
        _cell(row.stderr, 2),
        _cell(row.adjusted, 2),
    )
    return (name, *numbers, row.verdict)


def _cells(row: Claim) -> tuple[str, ...]:
    """Return the cells of a number that was measured beside a prediction."""
    interval = "" if row.interval is None else "[{:.4g}, {:.4g}]".format(*row.interval)
    return row.claim, _cell(row.statistic), interval, _cell(row.expected)


def _cell(number: float | None, digits: int = 4) -> str:
    return "" if number is None else f"{number:.{digits}g}"


def check(
    chain: Chain,
    *,
    samples: ArrayLike | None = None,
    step: Step | None = None,
    chains: int = 1000,
    atol: float = 0.01,
    ahead: int = 1,
    alpha: float = 1e-3,
    rng: Any = None,
    max_layers: int = 4000,
    threads: int | None = None,
    executor: Executor | None = None,
    timeout: float | None = None,
    progress: bool | Progress = False,
) -> CheckReport:
    r"""Test claims about the stationary law of a chain, one by one.

    The tests apply to pre-normalization states h, (width, batch) arrays: draws of
    `bnmc.invariant.sample`, states of another program (`samples`), or the states that another
    program returns for a state (`step`).

    Parameters
    ----------
    chain : Chain
        With a norm, width >= 4 and batch >= 2; without `samples` also as in `bnmc.mixing.tv_bound`.
    samples : (N, width, batch) array_like, optional
        Independent pre-normalization states, N >= 200: real and finite, of any precision.
    step : callable, optional
        A function of one state h, a (width, batch) array, that returns the next state, with new
        weights at every call.  It is called on each of `samples`, or otherwise on draws of
        `bnmc.invariant.sample`; in the latter case the returned states are tested.
    chains : int, default 1000
        Number of states to draw if `samples` is omitted, of as many chains, >= 200.
    atol : float, default 0.01
        Largest total-variation distance, as in `bnmc.invariant.sample`, in [1e-6, 1).
    ahead : int, default 1
        Layers between the states that invariance compares, >= 1.  A larger number increases the
        power for slowly mixing chains.
    alpha : float, default 1e-3
        Upper bound of the probability that any claim fails for a correct chain, in (0, 1).
    rng : optional
        Anything `numpy.random.default_rng` takes (SPEC 7), from which one 64-bit key is drawn, or
        the ``key`` of a result.
    max_layers : int, default 4000
        As in `bnmc.invariant.sample`.
    threads, executor
        As in `bnmc.invariant.sample`, which draws the states.
    timeout : float, optional
        Seconds, > 0, after which the report is that of the first samples, at least 200.
        Drawing states has no time limit, as for `bnmc.invariant.sample`.
    progress : bool or callable, default False
        True for a bar on standard error (extra ``cli``), or a function of (done, total): of tasks
        while states are drawn, then of samples.

    Returns
    -------
    CheckReport
        ``print`` shows the claims that fail and some others, ``print(report.table())`` all of
        them; ``ok`` is True if no claim fails.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For an argument that is not allowed, and for a `step` that does not return finite real
        numbers in the shape of a state.
    ResultTooLargeError
        If `chains` states do not fit in memory.
    ZeroVarianceError
        For a row with zero variance, or a sample whose activations are all 0, which has zero
        variance in the next layer.  Its ``chain`` is the number of the sample.
    NonFiniteError
        If the activation overflows.
    NotMixing, PartialEstimateError
        As `bnmc.invariant.sample`, if `samples` is omitted.  `PartialEstimateError` also if
        `timeout` ends before 200 samples are tested.

    Notes
    -----
    With d the width, n the batch, x = N(h), a = σ(x) and G = aᵀa/d, the next state is h′ = skip x +
    gain W a + b 1ᵀ; for other orders see `bnmc.Chain`.  The table assumes gain 1, skip 0 and no
    bias; with a bias b, G stands for G + ``bias_variance`` 11ᵀ/gain².  Each claim has one or more
    rows in the report:

    ============ ==================================================================================
    uniqueness   certified draws from two starts, the law "gaussian" and samples near a line, agree
                 in functions of G; only without `samples` and `step`
    invariance   functions of G and of hᵀh have the same mean `ahead` layers later; a layer is
                 `step`, or otherwise drawn by the library
    moments      E hᵀh/d = E G, orthogonal to 1 and along 1
    rows         are independent and Gaussian given G, whatever G: E h_ri⁴ = 3 E h_ri² h_si² for
                 r ≠ s, and likewise for norms; are uncorrelated; are symmetric in sign (Lemma 4 of
                 Daneshmand et al., arXiv:2003.01652); are exchangeable
    batch        the samples of a batch are exchangeable
    samples      each state is independent of the next one
    one step     with `step`: given h, rows of h′ are independent N(0, G), and calls independent;
                 with orthogonal weights W a has the Gram matrix of a
    ============ ==================================================================================

    Claims that do not hold for a chain are left out: Gaussian rows for other weights, and sign
    symmetry for user-defined weights and for a skip connection, unless σ is odd and no norm
    subtracts means over the features.

    Each statistic is a mean of independent differences whose expectation is 0, tested by Student's
    t with Hall's (1992) correction for skewness.  If a row has several statistics, its p-value is
    the least one times their number (Bonferroni).  Verdicts are those of Holm's method at level
    `alpha`.

    The tests use the central limit theorem, and the draws of the library have the quasi-stationary
    law of their certificate only within `atol`.  `CheckReport.assumes` lists the conditions
    under which this is the stationary law.  The table shows the percentage of failing reports on
    correct chains with 200 samples, the fewest, at `alpha` of 5, 1 and 0.1 %:

    ================================================== ======= ===== ===== =====
    chain                                              reports   5 %   1 % 0.1 %
    ================================================== ======= ===== ===== =====
    relu, width 10, batch 3, given                        5000  3.84  0.74  0.06
    sigmoid, uncentred, width 10, batch 4, given          2000  4.45  0.95  0.15
    tanh, width 4, batch 5, given                         2000  4.90  1.15  0.20
    relu, width 20, batch 3, drawn at `atol` 0.05         1500  3.40  0.73  0.00
    ================================================== ======= ===== ===== =====

    The next table shows sufficient numbers of states at `alpha` 0.001, for relu and batches of 5
    (uniform weights: 3).  With them, the test misses the fault with probability 10⁻⁶:

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

    The following rows have no test but intervals at level 0.95.  G* is the fixed point of
    `bnmc.MeanField`; rows with G* are left out if there is none.

    - The total-variation distance of h from d rows N(0, G*), beside ε² of
      `bnmc.bounds.bridging.lemma_5`, which does not bound it.  The upper bound is the mean distance
      of N(0, G)^d.  The lower bound is Kolmogorov's distance of the laws of
      ‖G*^{-½}hᵀhG*^{-½}/d − I‖, with the band of Dvoretzky, Kiefer and Wolfowitz for both samples.
    - The squared Wasserstein distance W₂² of one row given G from N(0, G*), and the orthogonality
      gap beside that of G*.  For linear chains, in the m dimensions that N leaves, the mean square
      of the gap is shown beside its leading order in 1/d, and the gap and W₂² of W H beside the
      bounds of `bnmc.bounds.orthogonalizes`.
    - The variance of eigenvalues over n/d, its value for the law of Marchenko and Pastur.  After
      one step, hᵀh/d whitened by G has this variance to leading order: (n−1)(n+2)/n². At
      stationarity the eigenvalues of PGP over their mean, P = I − 11ᵀ/n, vary more, because of the
      previous layers: at n = 20 and d = 500 their variance over n/d is 5.05 (linear), 4.4 (tanh)
      and 2.3 (relu).

    Examples
    --------
    >>> import bnmc
    >>> import numpy as np
    >>> chain = bnmc.Chain(width=60, batch=4, activation="relu")
    >>> bnmc.invariant.check(chain, chains=400, atol=0.05, rng=0).ok
    True

    A program whose weights have a variance that is 5 % too large:

    >>> rng = np.random.default_rng(0)
    >>> def step(h):
    ...     x = (h - h.mean(axis=1, keepdims=True)) / h.std(axis=1, keepdims=True)
    ...     return np.sqrt(1.05 / 60) * rng.standard_normal((60, 60)) @ np.maximum(x, 0.0)
    >>> report = bnmc.invariant.check(chain, step=step, chains=400, atol=0.05, rng=0)
    >>> report.ok, "one step: variance relative to G" in [row.claim for row in report.failures]
    (False, True)
    """
    if samples is None:
        require(chain, COUPLED, "pass samples= of your own")
    require(chain, _NEEDS, "bnmc.testing.assert_same_law tests its layers")
    if step is not None and not callable(step):
        raise ArgumentTypeError("step", step, "a function of a (width, batch) array, or None")
    chains = integer("chains", chains, low=_LEAST_SAMPLES)
    atol = real("atol", atol, low=1e-6, below=1.0)
    max_layers = integer("max_layers", max_layers, low=1, high=2**30)
    ahead = integer("ahead", ahead, low=1)
    alpha = real("alpha", alpha, above=0.0, below=1.0)
    parallel = Parallel.of(threads, executor, progress, timeout)
    chain.activation.check()
    given = None
    if samples is not None:
        given = as_states("samples", samples, ("N", chain.width, chain.batch), chain)
        if len(given) < _LEAST_SAMPLES:
            raise ArgumentError("samples", given.shape, f"at least {_LEAST_SAMPLES} samples")
    key = draw_key(rng)
    generator = np.random.default_rng(key)

    rounding = rounding_of(0.0 if samples is None else samples)
    is_of_last = step is not None and samples is None
    evidence = _EvidenceOfBlocks(chain, step, ahead, generator, rounding, is_of_last)
    source = "given"
    assumes: tuple[str, ...] = ()
    if given is None:
        draw = partial(
            sample, chain, chains, atol, rng=generator, max_layers=max_layers, **parallel.options
        )
        # Drawn states, their Gram matrices and a second draw.
        needed = 8 * chains * chain.batch * (chain.width + 5 * chain.batch)
        require_memory("chains", needed, "fewer samples suffice at large width")
        draws = draw()
        given = draws.preactivations()
        law = draws.certificate.law
        source = f"of layer {draws.layer}, within {draws.atol:g} of the {law} law"
        assumes = draws.assumes
        if step is None:
            other = draw(initial=near_a_line(chain, generator))
            evidence.note(claims.uniqueness(draws.gram, other.gram))
    if step is not None:
        source += ", taken on by `step`"
    with reporting(parallel.progress, "check", "samples") as report:
        block = 2 * max(1, BLOCK_NUMBERS // (2 * chain.width * chain.batch))
        for first, last in ranges(len(given), block):
            evidence.add(given[first:last], first)
            report(last, len(given))
            if last < len(given) and parallel.stop():
                if last < _LEAST_SAMPLES:
                    raise parallel.stop.error(f"only {last} samples are tested")
                break
    return CheckReport(
        chain, claims.judged(evidence.claims(), alpha), alpha, last, source, key, assumes
    )


@dataclass
class _EvidenceOfBlocks:
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
    is_of_last : bool
        Whether the states to test are those after the steps, rather than before.
    """

    chain: Chain
    step: Step | None
    ahead: int
    generator: np.random.Generator
    rounding: float
    is_of_last: bool
    _evidence: defaultdict[str, list[Evidence]] = field(default_factory=lambda: defaultdict(list))
    _examined: list[tuple[Float64Array, Float64Array, Float64Array]] = field(default_factory=list)

    def note(self, by_claim: dict[str, Evidence]) -> None:
        """Add evidence by claim."""
        for claim, evidence in by_claim.items():
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
                by_claim, spread = claims.of_one_step(self.chain, before, after.y, self.rounding)
        if self.step is not None:
            self.note(by_claim)
        self.note(claims.invariance(before, after))
        examined = after if self.is_of_last else before
        self.note(claims.of_state(self.chain, examined))
        self._examined.append((examined.gram, examined.square, spread))

    def claims(self) -> Iterator[Claim]:
        """Yield the claims, with and without tests, before verdicts."""
        gram, square, spread = (
            np.concatenate(parts) for parts in zip(*self._examined, strict=True)
        )
        self.note(claims.serial(square))
        for claim, parts in self._evidence.items():
            yield claims.assessed(claim, Evidence.joined(parts), min(self.rounding, COARSE))
        yield from distances(self.chain, gram, square, spread, self.generator)

    def _next(self, states: NDArray[Any], layer: Layer) -> NDArray[Any]:
        """Return the next states, drawn or by the caller's step."""
        if self.step is None:
            return next_states(self.chain, layer, self.generator)
        shape = self.chain.width, self.chain.batch
        returned = []
        for state in states:
            value = self.step(state.copy())
            returned.append(as_states("step(h)", value, shape, self.chain))
            self.rounding = max(self.rounding, rounding_of(value))
        return np.stack(returned)


# --- distances of the stationary law from independent rows N(0, G*)

#: Eigenvalues of G* below this share of the largest are rounding errors of the quadrature.
_NULL = 1e-9


def distances(
    chain: Chain,
    gram: Float64Array,
    square: Float64Array,
    one_step: Float64Array,
    generator: np.random.Generator,
) -> Iterator[Claim]:
    """Yield the rows without a test.

    Parameters
    ----------
    chain : Chain
    gram, square : (samples, n, n) ndarray of float64
        Gram matrices of the activations, and of h / gain, both over the width.
    one_step : (samples,) ndarray of float64
        Variance of the whitened spectrum after one step over that of Marchenko and Pastur's law.
    generator : numpy.random.Generator
        For draws from N(0, G*) and N(0, G).
    """
    yield from _from_star(chain, gram, square, generator)
    yield claims.reported("spectrum, one step: variance, in units of n/d", one_step)
    centred = gm.eigenvalues(gm.centre(gram))[:, 1:]
    mean = centred.mean(axis=1)
    if chain.batch > 2 and (mean > _NULL * np.trace(gram, 0, 1, 2)).all():
        ratio = chain.batch / chain.width
        yield claims.reported(
            "spectrum of G, centred: variance, in units of n/d",
            centred.var(axis=1) / mean**2 / ratio,
        )


@lru_cache(maxsize=16)
def _fixed_point(chain: Chain) -> FixedPoint | None:
    """Return the fixed point of the mean field, or None if there is none."""
    try:
        return MeanField(chain).fixed_point()
    except (ArgumentError, PartialEstimateError):
        return None


@lru_cache(maxsize=16)
def _epsilon_squared(chain: Chain, star: FixedPoint) -> float | None:
    """Return ε² of Lemma 5 with constant 1, or None if the lemma does not apply to the chain."""
    if not chain.normalization.hides_common_part:
        return None
    try:
        gamma = bridging.distortion(chain.activation, chain.batch)
        bound = bridging.lemma_5(
            width=chain.width, batch=chain.batch, star=star.gram, distortion=gamma
        )
    except (ArgumentError, ArgumentTypeError, SingularGramError):
        return None
    return float(bound)


def _from_star(
    chain: Chain, gram: Float64Array, square: Float64Array, generator: np.random.Generator
) -> Iterator[Claim]:
    """Yield the rows about G*, whitened by G* in its range, if there is a fixed point."""
    star = _fixed_point(chain) if chain.is_gaussian else None
    if star is None:
        return
    values, vectors = np.linalg.eigh(star.gram)
    regular = values > _NULL * values[-1]
    whiten = vectors[:, regular] / np.sqrt(values[regular])
    m = whiten.shape[1]
    relative = whiten.T @ gram @ whiten
    spectrum = np.linalg.eigvalsh(relative)
    printed = _epsilon_squared(chain, star)
    if chain.width >= m:
        wishart = _wishart(chain.width, m, len(gram), generator)
        above = _given_gram(spectrum, wishart, chain.width)
        yield claims.reported("distance of h from N(0, G*)ᵈ, at most", above, printed)
        yield _kolmogorov(
            "distance of h from N(0, G*)ᵈ, at least",
            claims.squares(whiten.T @ square @ whiten - np.eye(m)),
            claims.squares(wishart - np.eye(m)),
            printed,
        )
    wasserstein = random_matrix.wasserstein(gram, star.gram) ** 2
    yield claims.reported("W₂² of a row given G from N(0, G*)", wasserstein)
    if chain.activation.is_linear and m > 1:
        yield from _of_linear(chain.width, np.maximum(spectrum, 0.0))
    else:
        gaps, limit = gm.orthogonality_gap(gram), float(gm.orthogonality_gap(star.gram))
        yield claims.reported("orthogonality gap of G, beside that of G*", gaps, limit)


def _wishart(d: int, m: int, count: int, generator: np.random.Generator) -> Float64Array:
    """Draw ZᵀZ/d for d × m standard normal Z, d >= m, by Bartlett's factor."""
    factor = np.tril(generator.standard_normal((count, m, m)), -1)
    diagonal = np.sqrt(generator.chisquare(d - np.arange(m), size=(count, m)))
    factor[:, range(m), range(m)] = diagonal
    return factor @ factor.swapaxes(1, 2) / d


def _given_gram(spectrum: Float64Array, wishart: Float64Array, d: int) -> Float64Array:
    """Draw (1 − q(h)/p(h))₊, h ~ p, whose mean is the total variation of p from q.

    The d rows are N(0, diag λ) under p and N(0, I) under q.  With S = `wishart`, their second
    moments whitened by p, ln q/p = ½ d Σ_i (ln λ_i − (λ_i − 1) S_ii).
    """
    with np.errstate(divide="ignore"):
        logs = np.log(np.maximum(spectrum, 0.0)).sum(axis=1)
    quadratic = ((spectrum - 1.0) * np.diagonal(wishart, 0, 1, 2)).sum(axis=1)
    return -np.expm1(np.minimum(0.5 * d * (logs - quadratic), 0.0))


def _kolmogorov(
    claim: str, first: Float64Array, second: Float64Array, printed: float | None
) -> Claim:
    """Report Kolmogorov's distance of two samples, with the Dvoretzky–Kiefer–Wolfowitz band."""
    points = np.concatenate([first, second])
    shares = [np.searchsorted(np.sort(x), points, "right") / len(x) for x in (first, second)]
    distance = float(np.abs(shares[0] - shares[1]).max())
    # Each sample deviates by more than half of this with probability (1 − level)/2.
    band = 2.0 * math.sqrt(math.log(4.0 / (1.0 - claims.LEVEL)) / (2.0 * len(first)))
    interval = max(0.0, distance - band), min(1.0, distance + band)
    return Claim(claim, distance, printed, None, interval)


def _of_linear(d: int, spectrum: Float64Array) -> Iterator[Claim]:
    """Yield the rows for linear chains, with m the dimension that centring leaves."""
    m = spectrum.shape[1]
    shares = spectrum / spectrum.sum(axis=1, keepdims=True)
    squared = np.square(shares - 1.0 / m).sum(axis=1)
    gaps = np.sqrt(squared)
    leading = float(orthogonalizes.stationary_squared_gap(d, m))
    yield claims.reported(
        "orthogonality gap squared, beside (m−1)(m+2)²/(4m(m+1)d)", squared, leading
    )
    bound = 2.0 * m * float(gaps.mean())
    distance = orthogonalizes.wasserstein_squared(spectrum)
    yield claims.reported("W₂² of W H from N(0, I/m), beside 2m E V", distance, bound)
    least = float(shares.min())
    if least > _NULL:
        plateau = 3.0 * m / (least * math.sqrt(d))
        yield claims.reported("orthogonality gap, beside 3m/(α√d)", gaps, plateau)
