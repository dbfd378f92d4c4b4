"""Ergodic averages of an ensemble, over more layers until they are precise enough."""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnmc._kernels.scalar.codes import MOST_CHAINS
from bnmc._support.arguments import draw_key, integer, real
from bnmc._support.progress import Progress, Reporter, as_progress
from bnmc._support.workers import ranges, thread_count
from bnmc.chain.chain import Chain
from bnmc.chain.needs import FULLY_CONNECTED, ROWS_ALONE, Need, require
from bnmc.errors import ArgumentError, PartialEstimateError
from bnmc.estimate.estimate import Estimate
from bnmc.regularity import ensembles
from bnmc.regularity.ensembles import Float64Array

#: The quantities that `averages` estimates.
_QUANTITIES = ("alpha", "rank_bound", "soft_rank", "squared_norm", "cubes", "squares")


@dataclass(frozen=True)
class Averages:
    """Expectations under the stationary law, for ``M = x xᵀ / n``.

    Attributes
    ----------
    chain : Chain
    layers : tuple of (int, int)
        First and last layer of the average.
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

    Examples
    --------
    >>> import bnmc
    >>> found = bnmc.regularity.averages(bnmc.Chain.bn_linear(8, 8), rng=0)
    >>> print(f"{found.rank_bound:.2f}")
    2.24 ± 0.01
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
        Strength γ of the weights; infinite without a skip connection.
    widths : (widths,) ndarray of int
    averages : tuple of Averages
        One for each width.

    Examples
    --------
    >>> import bnmc
    >>> bnmc.regularity.figures([4, 8], rng=0).value("alpha").round(2)
    array([0.95, 0.91])
    """

    gamma: float
    widths: NDArray[np.int64]
    averages: tuple[Averages, ...]

    def value(self, name: str) -> Float64Array:
        """Return the estimates of a quantity, named as in `Averages`: (widths,)."""
        return np.array([estimate.value for estimate in self._of(name)])

    def stderr(self, name: str) -> Float64Array:
        """Return the standard errors of a quantity: (widths,)."""
        return np.array([estimate.stderr for estimate in self._of(name)])

    def _of(self, name: str) -> list[Estimate]:
        names = [*_QUANTITIES, "scaled_norm"]
        if name not in names:
            raise ArgumentError("name", name, ", ".join(names))
        return [getattr(averages, name) for averages in self.averages]


#: Burn-in in units of the measured layers, over the square root of the smaller side of x, for a
#: target of 1 %.  At layer 24 √d, α is 0.2 % below its limit at width 4 and at most 0.15 % at
#: widths 8 to 64; the difference falls at least like 1/depth.
_BURN_IN, _BURN_IN_RTOL = 6, 0.01


#: What the averages need of a chain.
_NEEDS = (
    FULLY_CONNECTED,
    Need(
        "norm",
        lambda chain: chain.normalization.axis == "batch",
        '"batch" or "batch-uncentred"',
        "M has no unit diagonal without; {instead}",
    ),
    *ROWS_ALONE,
)


class ErgodicRun:
    """An ensemble and the averages over its layers.

    The arguments are those of `constant`, and the threshold `tau` of the soft rank, or None.
    """

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
        require(chain, _NEEDS, "average an observable of bnmc.simulate")
        self.chain = chain
        self.tau = None if tau is None else real("tau", tau, above=0.0)
        self.chains = integer("chains", chains, low=2, high=MOST_CHAINS)
        self.depth = integer("depth", depth, low=4, high=2**32 - 1)
        self.rtol = real("rtol", rtol, above=0.0)
        # With a skip connection a layer changes the directions of rows by about gain/skip.
        pace = ensembles.PACE * (1 + min(abs(chain.skip / chain.gain), 1e6) ** 2)
        if burn_in is None:
            scale = math.sqrt(min(chain.width, chain.batch)) * max(1.0, _BURN_IN_RTOL / self.rtol)
            self.burn_in = math.ceil(min(_BURN_IN * pace * scale, 1e18))
            if self.burn_in > self.depth // 2:
                allowed = f"at least {2 * self.burn_in} for this chain and rtol"
                raise ArgumentError("depth", depth, allowed, "or a burn_in of your own")
        else:
            self.burn_in = integer("burn_in", burn_in, low=2, high=self.depth // 2)
        self.every = min(math.ceil(pace), self.burn_in // 2)
        self.threads = thread_count(threads)
        self.progress = as_progress(progress)
        key = draw_key(rng)
        self.ensemble = ensembles.ensemble_of(chain, self.chains, key, self.threads)
        self.layer = 0

    def constant(self) -> Estimate:
        """Go through layers until the standard error of α meets the target."""
        for estimates, reason in self._tries(("alpha",)):
            if not reason:
                return estimates["alpha"]
        raise PartialEstimateError(reason, estimates["alpha"])

    def averages(self) -> Averages:
        """Go through layers until all standard errors meet the target."""
        assert self.tau is not None
        for estimates, reason in self._tries(_QUANTITIES):
            quantities = {name: estimates[name] for name in _QUANTITIES}
            result = Averages(self.chain, self.layers, **quantities, tau=self.tau)
            if not reason:
                return result
        raise PartialEstimateError(reason, result)

    def _tries(self, judged: tuple[str, ...]) -> Iterator[tuple[dict[str, Estimate], str]]:
        """Yield estimates from increasing numbers of layers, up to `depth`, with their defects."""
        with (
            Reporter(self.progress, "regularity", "layers") as report,
            ThreadPoolExecutor(self.threads, thread_name_prefix="bnmc") as pool,
        ):
            total = self.burn_in + self._length(self.burn_in)
            for first, last in ranges(self.burn_in, ensembles.ROUND_LAYERS):
                self.ensemble.measured(pool, last - first, 1, None)
                self._moved(last - first, total, report)
            # Each try begins at the end of the try before.
            while total <= self.depth:
                self.layers = self.layer + 1, total
                half = (total - self.layer) // 2
                halves = [self._half(half, pool, total, report) for _ in range(2)]
                yield self._judge(halves, judged)
                total = self.layer + self._length(self.layer)

    def _length(self, before: int) -> int:
        """Return the number of layers to measure after `before` ones: two halves of whole slots."""
        return before // (2 * self.every) * 2 * self.every

    def _half(
        self, layers: int, pool: ThreadPoolExecutor, total: int, report: Progress
    ) -> dict[str, Float64Array]:
        """Go through half of the layers of a try; return the averages of each chain by name."""
        sums: dict[str, Float64Array] = {}
        slots = layers // self.every
        for first, last in ranges(slots, max(1, ensembles.ROUND_LAYERS // self.every)):
            part = self.ensemble.measured(pool, self.every, last - first, self.tau)
            for name, values in part.items():
                sums[name] = sums.get(name, 0.0) + values
            self._moved((last - first) * self.every, total, report)
        return {name: values / slots for name, values in sums.items()}

    def _moved(self, layers: int, total: int, report: Progress) -> None:
        self.layer += layers
        report(self.layer, total)

    def _judge(
        self, halves: list[dict[str, Float64Array]], judged: tuple[str, ...]
    ) -> tuple[dict[str, Estimate], str]:
        """Return all estimates, and the defects of the judged ones in words (empty if none)."""
        samples = {name: np.stack([half[name] for half in halves]) for name in halves[0]}
        samples["alpha"] = _ratio(samples["squares"], samples["cubes"])
        first, last = self.layers
        method = f"ergodic averages of {self.chains} chains over layers {first} to {last}"
        estimates, lacks = {}, []
        for name, values in samples.items():
            estimates[name] = mean = Estimate.from_samples(values.mean(axis=0), method=method)
            drift = Estimate.from_samples(values[1] - values[0])
            if name not in judged:
                continue
            target = self.rtol * abs(mean.value)
            if mean.stderr > target:
                lacks.append(f"{name} has a standard error of {mean.stderr:.2g} > {target:.2g}")
            if abs(drift.value) > max(target / 3, 3 * drift.stderr):
                lacks.append(f"{name} still drifts, by {drift}")
        if not self.ensemble.has_forgotten_start:
            lacks.append("the rank of the start has not yet fallen")
        return estimates, f"after {self.layer} layers: {', '.join(lacks)}" if lacks else ""


def _ratio(numerators: Float64Array, denominators: Float64Array) -> Float64Array:
    """Samples, (halves, chains), whose mean is the ratio of the means (the delta method)."""
    mean = denominators.mean()
    ratio = numerators.mean() / mean
    return ratio + (numerators - ratio * denominators) / mean
