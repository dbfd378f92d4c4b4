"""The regularity constant and the one-step laws of the rank-collapse paper.

Daneshmand, Kohler, Bach, Hofmann and Lucchi (arXiv 2003.01652) show that batch normalization keeps
the rank of a linear network of width d at the order of √d.  Their bound rests on the regularity
constant of the invariant law (Definition 3),

    ``α = E Tr(diag(M²)²) / E Tr(M³)``,    ``M = x xᵀ / n``  (d × d, unit diagonal),

which they estimate by ergodic averages (Fig. 8), beside ``E‖M‖_F²`` (Fig. 9).  `constant` estimates
α, `averages` everything the two figures show, and `figures` for a range of widths; all with
standard errors.  `one_step_change` and `one_step_second_moment` are the laws of one layer, for
small γ and for γ = ∞.

How the averages are taken
--------------------------
An ensemble of independent chains starts from Gaussian samples.  It goes through `burn_in` layers,
and then through about as many again, of which every few are measured.  Each chain gives one average
of each quantity, and chains are independent: so the standard errors, of the averages over chains,
hold whatever the autocorrelation within a chain.  That of α is the delta method's.  What is left of
the start shows as a drift, the difference of the second and the first half of the measured layers,
chain by chain.  Where the drift is more than a third of the target and not within three of its
standard errors, or a standard error exceeds the target, all layers so far become the burn-in and
the ensemble goes on, through as many layers again.

Linear chains with Gaussian weights and no skip connection (γ = ∞) have kernels of their own, which
work on the non-zero spectrum of M alone.  A chain of width d keeps about √(2d) directions: all
others shrink to zero, exponentially fast.  It is started with 3√d + 8 of them (or all there are, if
that is less), and an estimate counts only when one has died in every chain, so that the number at
the start plays no role.  Directions are left out when they are below 1e-20 of the trace in all of
32 chains.  Those that stay come back from there, but not from 1e-14 of the trace in a float64 Gram
matrix of a fixed basis: so at d = 8 one chain in twenty loses its fourth direction for good within
30 000 layers, and has r = 2.15 and α = .920 from there on, in place of 2.245 and .912.  (So there
are invariant laws of lower rank beside that of full-rank inputs, which is meant here.)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnmc import gram
from bnmc._kernels import memory
from bnmc._kernels import regularity as kernels
from bnmc._machine import available_memory, available_processors
from bnmc._progress import Progress, Reporter, as_progress
from bnmc._samplers import MOST_CHAINS, State
from bnmc._validate import finite_array, integer, items, real
from bnmc.bounds.rank_collapse import lemma_7 as one_step_change
from bnmc.chain import Chain
from bnmc.errors import (
    ArgumentError,
    ArgumentTypeError,
    PartialEstimateError,
    ResultTooLargeError,
)
from bnmc.estimate import Estimate
from bnmc.simulation import draw_key, simulate

__all__ = [
    "Averages",
    "Figures",
    "averages",
    "constant",
    "figures",
    "one_step_change",
    "one_step_second_moment",
]

Float64Array = NDArray[np.float64]

#: Layers from one measured layer to the next without a skip connection.  Autocorrelation times are
#: 2 to 3 layers for α and 2 to 6 for r, at widths 4 to 32.
PACE = 4
#: Measured layers that would fit into the burn-in, over the square root of the smaller side of x,
#: for a target of 1 %.  At layer 24 √d α is 0.2 % below its limit at width 4, 0.15 % or less at
#: widths 8 to 64, and what is missing falls at least like 1/depth.
BURN_IN, BURN_IN_RTOL = 6, 0.01
#: Layers of a call of a kernel, after which dead directions are left out.
ROUND_LAYERS = 32
#: The share of the trace below which a direction is dead, if it is so in all lanes.
DEAD = 1e-20


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


def one_step_second_moment(H: ArrayLike) -> Float64Array:
    r"""Mean of ``‖M₊‖_F²`` after one layer without skip connection (γ = ∞), exactly.

    With x = N(W H), uncentred, W of shape (d, d) with i.i.d. Gaussian entries, ``M₊ = x xᵀ / n``
    has ones on its diagonal and elsewhere squared cosines of independent directions, so that

    .. math:: E‖M_+‖_F^2 = d + d (d - 1) \sum_i p_i^2, \qquad
              p_i = E \frac{s_i^2 z_i^2}{\sum_j s_j^2 z_j^2}
              = \int_0^\infty \frac{s_i^2}{1 + 2 t s_i^2} \prod_j (1 + 2 t s_j^2)^{-1/2} dt,

    where s are the singular values of H and z i.i.d. standard normal; the p sum to 1.

    Parameters
    ----------
    H : (..., d, n) array_like
        Representations, of any rank and scale, not zero.  For norm "batch", centre the rows.

    Returns
    -------
    (...) ndarray of float64
        In [2d − 1, d²] for n >= d, to a relative error of about 1e-13.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If `H` is not an array of finite real matrices other than zero.

    Notes
    -----
    In log t the integrands are analytic in the strip ``|Im| < π``, so the trapezoidal rule
    converges like exp(−2π²/h) in its step h; it is cut off where less than 1e-17 is left.

    Examples
    --------
    Of the identity every p is 1/d, and a matrix of rank one stays one:

    >>> print(one_step_second_moment(np.eye(4)).round(12), one_step_second_moment(np.ones((4, 4))))
    7.0 16.0
    """
    matrices = finite_array("H", H, shape=(..., "d", "n")).astype(np.float64, copy=False)
    singular = np.linalg.svd(matrices, compute_uv=False)
    largest = singular.max(axis=-1, keepdims=True)
    if (largest <= 0).any():
        raise ArgumentError("H", 0.0, "matrices other than zero")
    spectra = np.square(singular / largest)
    moments: Float64Array = np.empty(spectra.shape[:-1])
    for index in np.ndindex(*moments.shape):
        moments[index] = np.square(_shares(spectra[index])).sum()
    d = matrices.shape[-2]
    moments *= d * (d - 1)
    moments += d
    return moments


def _shares(spectrum: Float64Array) -> Float64Array:
    """P of `one_step_second_moment`, for squares of singular values of which the largest is 1."""
    step = 0.4
    t = np.exp(np.arange(-44.0, 84.0, step))[:, None]
    grown = 1 + 2 * t * spectrum
    product = np.exp(-0.5 * np.log(grown).sum(axis=1, keepdims=True))
    shares: Float64Array = step * (t * spectrum / grown * product).sum(axis=0)
    shares /= shares.sum()
    return shares


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
_MOMENTS = ("squared_norm", "cubes", "squares")


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
        kind = _Fused if _is_fused(chain) else _Simulated
        self.ensemble: _Ensemble = kind(chain, self.chains, draw_key(rng), self.threads)
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


class _Ensemble(Protocol):
    """Independent chains, at some layer."""

    def measured(
        self, pool: ThreadPoolExecutor, every: int, slots: int, tau: float | None
    ) -> Mapping[str, Float64Array]:
        """Go through slots * every layers; measure the last of every `every`.

        Returns sums over the measured layers, (chains,), by name; with `tau` those of ranks too.
        """
        ...

    @property
    def settled(self) -> bool:
        """Whether nothing that is known of the start stands in the way of an estimate."""
        ...


def _is_fused(chain: Chain) -> bool:
    linear = chain.activation.name == "linear" and chain.activation.builtin
    return linear and chain.is_gaussian and chain.skip == 0.0


class _Fused:
    """Linear chains without a skip connection: kernels of their own, in groups of lanes."""

    def __init__(self, chain: Chain, chains: int, key: int, threads: int) -> None:
        self.chains = chains
        # Rows that are centred have no part along the ones: all is in the space orthogonal to them.
        dimensions = chain.batch - 1 if chain.norm == "batch" else chain.batch
        self.most = min(chain.width, dimensions)
        self.rank = min(self.most, 3 * math.ceil(math.sqrt(chain.width)) + 8)
        count = -(-chains // kernels.LANES)
        matrices = count + (2 + ROUND_LAYERS // PACE) * min(threads, count)
        numbers = matrices * self.rank**2 + min(threads, count) * (chain.width + 8) * self.rank
        size, available = 8 * kernels.LANES * numbers, available_memory()
        if size > available:
            raise ResultTooLargeError("chain", size, available, "a smaller width, or fewer chains=")
        self.groups = [_Group(chain, self.rank, number, key) for number in range(count)]

    def measured(
        self, pool: ThreadPoolExecutor, every: int, slots: int, tau: float | None
    ) -> Mapping[str, Float64Array]:
        parts = list(pool.map(lambda group: group.measured(every, slots, tau), self.groups))
        return {
            name: np.concatenate([part[name] for part in parts])[: self.chains] for name in parts[0]
        }

    @property
    def settled(self) -> bool:
        return self.rank == self.most or all(group.order < self.rank for group in self.groups)


class _Group:
    """Chains side by side, a lane each; of their Gram matrices only the spectrum is meant."""

    def __init__(self, chain: Chain, rank: int, number: int, key: int) -> None:
        self.chain = chain
        self.number = number
        self.key_words = np.uint32(key & 0xFFFFFFFF), np.uint32(key >> 32)
        self.layer = 0
        self.order = rank
        self.gram = np.repeat(np.eye(rank), kernels.LANES)

    def measured(self, every: int, slots: int, tau: float | None) -> dict[str, Float64Array]:
        """As of an ensemble."""
        chain, order, lanes = self.chain, self.order, kernels.LANES
        shape = kernels.Shape(
            chain.width, order, chain.batch, chain.batch * chain.eps / chain.gain**2
        )
        quads = -(-chain.width // kernels.QUAD)
        moments = np.empty((slots, len(_MOMENTS), lanes))
        grams = np.empty((0 if tau is None else slots, self.gram.size))
        kernels.linear_layers(
            shape, self.gram, self.number, self.layer, every, moments, grams, *self.key_words,
            np.empty(kernels.QUAD * kernels.PART), np.empty(order * kernels.QUAD * lanes),
            np.empty_like(self.gram), np.empty(quads * kernels.QUAD * order * lanes),
        )  # fmt: skip
        self.layer += every * slots
        self._bury()
        return _summed(moments, grams.reshape(-1, order, order, lanes), chain, tau)

    def _bury(self) -> None:
        """Leave out the last directions, sorted as they are, where they are dead in every lane."""
        matrices = self.gram.reshape(self.order, self.order, kernels.LANES)
        sizes = np.einsum("iil->il", matrices)
        shares = (sizes / sizes.sum(axis=0)).max(axis=1)
        self.order = int(np.flatnonzero(shares > DEAD)[-1]) + 1
        self.gram = matrices[: self.order, : self.order].flatten()


class _Simulated:
    """All other chains: `bnmc.simulate` takes them on, and the rows of measured layers are kept."""

    def __init__(self, chain: Chain, chains: int, key: int, threads: int) -> None:
        self.chain = chain
        self.chains = chains
        self.threads = threads
        run = simulate(
            chain, 0, chains=chains, rng=np.random.default_rng(key), observables=(), threads=threads
        )
        self.state = run.final_state

    def measured(
        self, pool: ThreadPoolExecutor, every: int, slots: int, tau: float | None
    ) -> Mapping[str, Float64Array]:
        sums: dict[str, Float64Array] = {}
        for _ in range(slots):
            self.state = self._taken(self.state, every)
            for name, values in self._moments(pool, tau).items():
                sums[name] = sums.get(name, 0.0) + values
        return sums

    @property
    def settled(self) -> bool:
        return True

    def _taken(self, state: State, layers: int) -> State:
        run = simulate(
            state.chain, layers, initial=state, every=layers, observables=(), threads=self.threads
        )
        return run.final_state

    def _rows(self) -> Float64Array:
        """Return x of a layer of the invariant law: (chains, batch, width)."""
        state = self.state
        if self.chain.skip == 0.0:
            # The states of these chains have no x.  A layer with a skip connection from x = 0 is a
            # layer without one, has the law of the next layer of the chain, and keeps its x.
            chain = self.chain
            with_skip = Chain(
                chain.width, chain.batch, "linear", norm=chain.norm, skip=1.0, gain=chain.gain,
                weights=chain.weights, eps=chain.eps,
            )  # fmt: skip
            x = np.zeros((self.chains, chain.batch, memory.stride(chain.width)))
            arrays = {**state.arrays, "x": x}
            state = self._taken(replace(state, chain=with_skip, arrays=arrays), 1)
        rows: Float64Array = state.arrays["x"][:, :, : self.chain.width]
        return rows

    def _moments(self, pool: ThreadPoolExecutor, tau: float | None) -> dict[str, Float64Array]:
        width, order = self.chain.width, self.chain.batch
        shape = kernels.Shape(width, order, order, 0.0)

        def of_group(x: Float64Array) -> dict[str, Float64Array]:
            lanes = np.zeros((width, order, kernels.LANES))
            lanes[:, :, : len(x)] = x.transpose(2, 1, 0)
            gram_, moments = np.empty(order**2 * kernels.LANES), np.empty((1, 3, kernels.LANES))
            kernels.measure(shape, lanes.reshape(-1), gram_, moments[0])
            grams = gram_.reshape(1, order, order, kernels.LANES)[..., : len(x)]
            return _summed(moments[..., : len(x)], grams, self.chain, tau)

        x = self._rows()
        groups = [x[first : first + kernels.LANES] for first in range(0, len(x), kernels.LANES)]
        parts = list(pool.map(of_group, groups))
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _summed(
    moments: Float64Array, grams: Float64Array, chain: Chain, tau: float | None
) -> dict[str, Float64Array]:
    """Sums over slots of moments, (slots, 3, lanes), and of ranks, if tau is given."""
    sums = dict(zip(_MOMENTS, moments.sum(axis=0), strict=True))
    if tau is not None:
        order = grams.shape[1]
        matrices = np.moveaxis(grams, -1, 1)
        sums["rank_bound"] = gram.rank_bound(matrices).sum(axis=0)
        # A threshold is in units of the batch, which here has been rotated into fewer samples.
        soft_ranks = gram.soft_rank(matrices, tau * chain.batch / order, width=chain.width)
        sums["soft_rank"] = soft_ranks.sum(axis=0).astype(np.float64)
    return sums
