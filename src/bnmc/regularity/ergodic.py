"""Ergodic averages of an ensemble: the regularity constant and what Figs. 8 and 9 show."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from bnmc._support.arguments import integer, items, real
from bnmc._support.keys import draw_key
from bnmc._support.machine import available_processors
from bnmc._support.progress import Progress, Reporter, as_progress
from bnmc.chain.chain import Chain
from bnmc.errors import ArgumentError, ArgumentTypeError, PartialEstimateError
from bnmc.estimate.estimate import Estimate
from bnmc.regularity.ensembles import (
    PACE,
    ROUND_LAYERS,
    Ensemble,
    Float64Array,
    FusedEnsemble,
    SimulatedEnsemble,
    is_fused,
)
from bnmc.simulation.engine.state import MOST_CHAINS

__all__ = ["Averages", "Figures", "averages", "constant", "figures"]

#: Measured layers that would fit into the burn-in, over the square root of the smaller side of x,
#: for a target of 1 %.  At layer 24 √d α is 0.2 % below its limit at width 4, 0.15 % or less at
#: widths 8 to 64, and what is missing falls at least like 1/depth.
BURN_IN, BURN_IN_RTOL = 6, 0.01


@dataclass(frozen=True)
class Averages:
    """Expectations under the invariant law, of ``M = x xᵀ / n``.

    Attributes
    ----------
    chain : Chain
    layers : tuple of (int, int)
        The first and the last of the layers that were averaged over.
    alpha : Estimate
        The regularity constant ``E Tr(diag(M²)²) / E Tr(M³)`` (Fig. 8 of the paper).
    rank_bound : Estimate
        ``E r``, ``r = (Tr M)²/‖M‖_F²`` (`bnmc.gram.rank_bound`).
    soft_rank : Estimate
        The mean number of eigenvalues of M of at least `tau` (`bnmc.gram.soft_rank`).
    squared_norm : Estimate
        ``E‖M‖_F²`` (Fig. 9 of the paper).
    cubes, squares : Estimate
        ``E Tr(M³)`` and ``E Tr(diag(M²)²)``.
    tau : float
        Threshold of the soft rank.
    """

    chain: Chain
    layers: tuple[int, int]
    alpha: Estimate
    rank_bound: Estimate
    soft_rank: Estimate
    squared_norm: Estimate
    cubes: Estimate
    squares: Estimate
    tau: float

    @property
    def scaled_norm(self) -> Estimate:
        """``E‖M‖_F² / d^1.5``, which the paper bounds by ``1/(2√(1−α))`` for small γ."""
        factor = self.chain.width**-1.5
        norm = self.squared_norm
        low, high = norm.ci
        scaled = factor * norm.value, factor * norm.stderr, (factor * low, factor * high)
        return Estimate(*scaled, norm.n, norm.method, norm.level)


@dataclass(frozen=True, eq=False)
class Figures:
    """The quantities of Figures 8 and 9 of the paper against the width.

    Attributes
    ----------
    gamma : float
        Strength of the weights; infinite without a skip connection.
    widths : (widths,) ndarray of int
    averages : tuple of Averages
        One of each width.
    """

    gamma: float
    widths: NDArray[np.int64]
    averages: tuple[Averages, ...]

    def value(self, name: str) -> Float64Array:
        """Return the estimates of a quantity, an attribute of `Averages`: (widths,)."""
        return np.array([estimate.value for estimate in self._of(name)])

    def stderr(self, name: str) -> Float64Array:
        """Return their standard errors: (widths,)."""
        return np.array([estimate.stderr for estimate in self._of(name)])

    def _of(self, name: str) -> list[Estimate]:
        known = [*_JUDGED, "scaled_norm"]
        if name not in known:
            raise ArgumentError("name", name, ", ".join(known))
        return [getattr(one, name) for one in self.averages]


def constant(
    chain: Chain,
    *,
    rng: Any = None,
    rtol: float = 0.01,
    chains: int = 64,
    depth: int = 200_000,
    burn_in: int | None = None,
    threads: int | None = None,
    progress: bool | Progress = False,
) -> Estimate:
    """Regularity constant ``α = E Tr(diag(M²)²) / E Tr(M³)`` of a chain's invariant law.

    Parameters
    ----------
    chain : Chain
        With norm "batch" or "batch-uncentred".  M is of x, before the activation; the paper's
        chains, `Chain.bn_residual`, are linear.
    rng : optional
        Anything `numpy.random.default_rng` takes (SPEC 7).
    rtol : float, default 0.01
        Largest standard error, as a part of α; > 0.
    chains : int, default 64
        Number of independent chains, >= 2.  Of linear chains without a skip connection 32 cost
        the same as one.
    depth : int, default 200000
        Most layers to go, >= 4.
    burn_in : int, optional
        Layers before the first measured one, in 2 … depth/2.  Unless given,
        24 (1 + skip²/gain²) √min(width, batch), times 0.01/rtol where that is more than 1.
    threads : int, optional
        All processors unless given.  Results do not depend on it.
    progress : bool or callable
        True for a bar on standard error (extra ``cli``), or a function of (done, total) layers.
        The total grows where the ensemble must go on.

    Returns
    -------
    Estimate
        The interval is Student's over chains and rests on the central limit theorem; `n` is the
        number of chains, and `method` says which layers were averaged over.

    Raises
    ------
    PartialEstimateError
        If the target is not met within `depth` layers; `partial` is the estimate.
    ArgumentError, ArgumentTypeError
        For an argument that is not allowed, before any work.
    ResultTooLargeError
        If the state of the chains would not fit in memory, before any work.
    ZeroVarianceError
        For a row that cannot be normalised.

    See Also
    --------
    averages : Also ranks and norms; the module says how averages are taken.

    Examples
    --------
    >>> import bnmc
    >>> alpha = constant(bnmc.Chain.bn_linear(8, 8), rng=0)
    >>> round(alpha.value, 2), alpha.stderr < 0.01 * alpha.value
    (0.91, True)
    """
    run = _Run(chain, rng, rtol, chains, depth, burn_in, threads, progress, tau=None)
    return run.constant()


def averages(
    chain: Chain,
    *,
    tau: float = 0.5,
    rng: Any = None,
    rtol: float = 0.01,
    chains: int = 64,
    depth: int = 200_000,
    burn_in: int | None = None,
    threads: int | None = None,
    progress: bool | Progress = False,
) -> Averages:
    """Ergodic averages of all that Figures 8 and 9 of the rank-collapse paper are about.

    Parameters
    ----------
    chain, rng, chains, depth, burn_in, threads, progress
        As in `constant`.
    tau : float, default 0.5
        Threshold of the soft rank, > 0.
    rtol : float, default 0.01
        Largest standard error of each of the averages, as a part of it; > 0.

    Returns
    -------
    Averages

    Raises
    ------
    PartialEstimateError
        If the target is not met within `depth` layers; `partial` holds the averages.
    ArgumentError, ArgumentTypeError, ResultTooLargeError, ZeroVarianceError
        As in `constant`.

    Examples
    --------
    >>> import bnmc
    >>> found = averages(bnmc.Chain.bn_linear(8, 8), rng=0)
    >>> print(f"{found.rank_bound:.2f}, {found.scaled_norm:.2f}")
    2.24 ± 0.01, 1.29 ± 0.01
    """
    tau = real("tau", tau, above=0.0)
    return _Run(chain, rng, rtol, chains, depth, burn_in, threads, progress, tau).averages()


def figures(
    widths: Iterable[int] = (4, 8, 16, 32, 64, 128, 256),
    *,
    gamma: float = math.inf,
    tau: float = 0.5,
    rng: Any = None,
    rtol: float = 0.01,
    chains: int = 64,
    depth: int = 200_000,
    threads: int | None = None,
    progress: bool | Progress = False,
) -> Figures:
    """Figures 8 and 9 of the rank-collapse paper: the averages against the width d, with n = d.

    Parameters
    ----------
    widths : iterable of int
        Widths d >= 1.
    gamma : float, default inf
        γ > 0 of `Chain.bn_residual`; inf stands for no skip connection.  Chains need
        about 1/γ² times as many layers.
    tau, rng, rtol, chains, depth, threads, progress
        As in `averages`; progress counts the layers of the widths that are done or under way.

    Returns
    -------
    Figures

    Raises
    ------
    PartialEstimateError
        If the target is not met within `depth` layers at some width, which it names; `partial`
        holds the figures up to there, the averages of that width included.
    ArgumentError, ArgumentTypeError, ResultTooLargeError
        As in `constant`.

    Examples
    --------
    >>> found = figures([4, 8], rng=0)
    >>> found.value("alpha").round(2)
    array([0.95, 0.91])
    >>> bool((found.stderr("alpha") < 0.01 * found.value("alpha")).all())
    True
    """
    tau = real("tau", tau, above=0.0)
    progress = as_progress(progress)
    generator = np.random.default_rng(draw_key(rng))
    runs = [
        _Run(chain, generator, rtol, chains, depth, None, threads, False, tau)
        for chain in _chains_of(widths, gamma)
    ]
    found: list[Averages] = []

    def so_far() -> Figures:
        done = [one.chain.width for one in found]
        return Figures(float(gamma), np.array(done, np.int64), tuple(found))

    with Reporter(progress, "figures", "layers") as report:
        before = 0
        for run in runs:
            run.progress = _later(report, before)
            try:
                found.append(run.averages())
            except PartialEstimateError as error:
                found.append(cast(Averages, error.partial))
                reason = f"width {run.chain.width}: {error.reason}"
                raise PartialEstimateError(reason, so_far()) from None
            before += run.layer
    return so_far()


def _chains_of(widths: Iterable[int], gamma: float) -> list[Chain]:
    found = [
        Chain.bn_residual(width, width, gamma=gamma)
        for width in (
            integer("widths", width, low=1)
            for width in items("widths", widths, "an iterable of integers")
        )
    ]
    if not found:
        raise ArgumentError("widths", found, "at least one width")
    return found


def _later(report: Progress, before: int) -> Progress:
    """Report what comes after so much."""
    return lambda done, total: report(before + done, before + total)


#: What `averages` estimates, and what the chains are asked for.
_JUDGED = ("alpha", "rank_bound", "soft_rank", "squared_norm", "cubes", "squares")


class _Run:
    """An ensemble on its way through the layers, whose every argument has been checked."""

    def __init__(
        self,
        chain: Chain,
        rng: Any,
        rtol: float,
        chains: int,
        depth: int,
        burn_in: int | None,
        threads: int | None,
        progress: bool | Progress,
        tau: float | None,
    ) -> None:
        if not isinstance(chain, Chain):
            raise ArgumentTypeError("chain", chain, "a bnmc.Chain")
        if chain.norm == "none":
            allowed = "a chain with norm 'batch' or 'batch-uncentred'"
            raise ArgumentError("chain", chain, allowed, "M has no unit diagonal without")
        self.chain = chain
        self.tau = tau
        self.chains = integer("chains", chains, low=2, high=MOST_CHAINS)
        self.depth = integer("depth", depth, low=4, high=2**32 - 1)
        self.rtol = real("rtol", rtol, above=0.0)
        # With a skip connection a layer changes the directions of rows by about gain / skip.
        pace = PACE * (1 + min(abs(chain.skip / chain.gain), 1e6) ** 2)
        if burn_in is None:
            scale = math.sqrt(min(chain.width, chain.batch)) * max(1.0, BURN_IN_RTOL / self.rtol)
            self.burn_in = math.ceil(min(BURN_IN * pace * scale, 1e18))
            if self.burn_in > self.depth // 2:
                allowed = f"at least {2 * self.burn_in} for this chain and rtol"
                raise ArgumentError("depth", depth, allowed, "or a burn_in of your own")
        else:
            self.burn_in = integer("burn_in", burn_in, low=2, high=self.depth // 2)
        self.every = min(math.ceil(pace), self.burn_in // 2)
        self.threads = (
            available_processors() if threads is None else integer("threads", threads, low=1)
        )
        self.progress = as_progress(progress)
        kind = FusedEnsemble if is_fused(chain) else SimulatedEnsemble
        self.ensemble: Ensemble = kind(chain, self.chains, draw_key(rng), self.threads)
        self.layer = 0

    def constant(self) -> Estimate:
        """Go on until α is known well enough."""
        for found, reason in self._tries(("alpha",)):
            if not reason:
                return found["alpha"]
        raise PartialEstimateError(reason, found["alpha"])

    def averages(self) -> Averages:
        """Go on until everything is known well enough."""
        assert self.tau is not None
        for found, reason in self._tries(_JUDGED):
            quantities = {name: found[name] for name in _JUDGED}
            result = Averages(self.chain, self.layers, **quantities, tau=self.tau)
            if not reason:
                return result
        raise PartialEstimateError(reason, result)

    def _tries(self, judged: tuple[str, ...]) -> Iterator[tuple[dict[str, Estimate], str]]:
        """Yield estimates from ever more layers, and what they lack, until depth is reached."""
        with (
            Reporter(self.progress, "regularity", "layers") as report,
            ThreadPoolExecutor(self.threads, thread_name_prefix="bnmc") as pool,
        ):
            total = self.burn_in + self._length(self.burn_in)
            for layers in _rounds(self.burn_in, ROUND_LAYERS):
                self.ensemble.measured(pool, layers, 1, None)
                self._moved(layers, total, report)
            # Each try begins where the one before ended.
            while total <= self.depth:
                self.layers = self.layer + 1, total
                half = (total - self.layer) // 2
                halves = [self._half(half, pool, total, report) for _ in range(2)]
                yield self._judge(halves, judged)
                total = self.layer + self._length(self.layer)

    def _length(self, before: int) -> int:
        """Return how many layers are measured after so many: two halves of whole slots."""
        return before // (2 * self.every) * 2 * self.every

    def _half(
        self, layers: int, pool: ThreadPoolExecutor, total: int, report: Progress
    ) -> dict[str, Float64Array]:
        """Go through half of the layers of a try; return each chain's averages by name."""
        sums: dict[str, Float64Array] = {}
        slots = layers // self.every
        for part in _rounds(slots, max(1, ROUND_LAYERS // self.every)):
            for name, values in self.ensemble.measured(pool, self.every, part, self.tau).items():
                sums[name] = sums.get(name, 0.0) + values
            self._moved(part * self.every, total, report)
        return {name: values / slots for name, values in sums.items()}

    def _moved(self, layers: int, total: int, report: Progress) -> None:
        self.layer += layers
        report(self.layer, total)

    def _judge(
        self, halves: list[dict[str, Float64Array]], judged: tuple[str, ...]
    ) -> tuple[dict[str, Estimate], str]:
        """Estimate everything; say in words what is wrong with what is judged, if anything is."""
        samples = {name: np.stack([half[name] for half in halves]) for name in halves[0]}
        samples["alpha"] = _ratio(samples["squares"], samples["cubes"])
        first, last = self.layers
        method = f"ergodic averages of {self.chains} chains over layers {first} to {last}"
        found, lacks = {}, []
        for name, values in samples.items():
            found[name] = mean = Estimate.from_samples(values.mean(axis=0), method=method)
            drift = Estimate.from_samples(values[1] - values[0])
            if name not in judged:
                continue
            target = self.rtol * abs(mean.value)
            if mean.stderr > target:
                lacks.append(f"{name} has a standard error of {mean.stderr:.2g} > {target:.2g}")
            if abs(drift.value) > max(target / 3, 3 * drift.stderr):
                lacks.append(f"{name} still drifts, by {drift}")
        if not self.ensemble.settled:
            lacks.append("the rank of the start has not yet fallen")
        return found, f"after {self.layer} layers: {', '.join(lacks)}" if lacks else ""


def _ratio(numerators: Float64Array, denominators: Float64Array) -> Float64Array:
    """Samples, (halves, chains), whose mean is the ratio of the means (the delta method)."""
    mean = denominators.mean()
    ratio = numerators.mean() / mean
    samples: Float64Array = ratio + (numerators - ratio * denominators) / mean
    return samples


def _rounds(total: int, most: int) -> Iterator[int]:
    """Cut a number into parts of at most so many."""
    for first in range(0, total, most):
        yield min(most, total - first)
