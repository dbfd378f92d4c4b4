"""Ergodic averages of an ensemble: the regularity constant and what Figs. 8 and 9 show."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnmc._kernels.scalar.codes import MOST_CHAINS
from bnmc._support.arguments import Float64Array, draw_key, finite_array, integer, items, real
from bnmc._support.progress import Progress, reporting
from bnmc._support.text import Result
from bnmc._support.workers import Parallel, ranges
from bnmc.chain.chain import Chain
from bnmc.chain.needs import FULLY_CONNECTED, NORM_OVER_BATCH, ROWS_ALONE, require
from bnmc.errors import ArgumentError, PartialEstimateError
from bnmc.estimate.estimate import Estimate
from bnmc.plot import axes
from bnmc.plot.drawn import Drawn
from bnmc.regularity import ensembles

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def constant(
    chain: Chain,
    *,
    rng: Any = None,
    rtol: float = 0.01,
    chains: int = 64,
    depth: int = 200_000,
    burn_in: int | None = None,
    threads: int | None = None,
    executor: Executor | None = None,
    timeout: float | None = None,
    progress: bool | Progress = False,
) -> Estimate:
    """Regularity constant ``α = E Tr(diag(M²)²) / E Tr(M³)`` under the stationary law of a chain.

    Parameters
    ----------
    chain : Chain
        A chain with norm "batch" or "batch-uncentred".  M is computed from x, before the
        activation.  The chains of the paper, `Chain.bn_residual`, are linear.
    rng : optional
        Anything `numpy.random.default_rng` takes (SPEC 7).
    rtol : float, default 0.01
        Target relative standard error of α, > 0.
    chains : int, default 64
        Number of independent chains, >= 2.  32 linear chains without a skip connection cost as
        much as one.
    depth : int, default 200000
        Largest number of layers, >= 4.
    burn_in : int, optional
        Layers before the first measured one, from 2 to depth/2.  The default is
        24 (1 + skip²/gain²) √min(width, batch), times 0.01/rtol if that factor exceeds 1.
    threads : int, optional
        Number of threads; the default is the number of processors.  Results do not depend on it.
    executor : concurrent.futures.Executor or Dask Client, optional
        Executor that takes the chains in place of threads.  Results do not depend on it.
    timeout : float, optional
        Seconds, > 0, after which no further layers are added.  If the target is not met,
        `PartialEstimateError` has the estimate so far.
    progress : bool or callable, default False
        True for a bar on standard error (extra ``cli``), or a function of (done, total) layers.
        The total grows if the ensemble needs more layers.

    Returns
    -------
    Estimate
        The interval is Student's over chains and rests on the central limit theorem; `n` is the
        number of chains, and `method` names the layers of the average.

    Raises
    ------
    PartialEstimateError
        If the target is not met within `depth` layers; `partial` is the estimate.
    ArgumentError, ArgumentTypeError
        If an argument is not allowed, before any work.
    ResultTooLargeError
        If the state of the chains would not fit in memory, before any work.
    ZeroVarianceError
        If a row has no variance.

    See Also
    --------
    averages : Also ranks and norms.  The package docstring describes the averages.

    Examples
    --------
    >>> from bnmc.regularity import constant
    >>> import bnmc
    >>> alpha = constant(bnmc.Chain(8, 8, "linear", norm="batch-uncentred"), rng=0)
    >>> round(alpha.value, 2), alpha.stderr < 0.01 * alpha.value
    (0.91, True)
    """
    parallel = Parallel.of(threads, executor, progress, timeout)
    run = ErgodicRun(chain, rng, rtol, chains, depth, burn_in, parallel, tau=None)
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
    executor: Executor | None = None,
    timeout: float | None = None,
    progress: bool | Progress = False,
) -> Averages:
    """Ergodic averages of all quantities in Figures 8 and 9 of the rank-collapse paper.

    Parameters
    ----------
    chain, rng, chains, depth, burn_in, threads, executor, timeout, progress
        As in `constant`.
    tau : float, default 0.5
        Threshold of the soft rank, > 0.
    rtol : float, default 0.01
        Target relative standard error of each average, > 0.

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
    >>> from bnmc.regularity import averages
    >>> import bnmc
    >>> found = averages(bnmc.Chain(8, 8, "linear", norm="batch-uncentred"), rng=0)
    >>> print(f"{found.rank_bound:.2f}, {found.scaled_norm:.2f}")
    2.24 ± 0.01, 1.29 ± 0.01
    """
    parallel = Parallel.of(threads, executor, progress, timeout)
    return ErgodicRun(chain, rng, rtol, chains, depth, burn_in, parallel, tau).averages()


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
    executor: Executor | None = None,
    timeout: float | None = None,
    progress: bool | Progress = False,
) -> Figures:
    """Figures 8 and 9 of the rank-collapse paper: the averages against the width d, with n = d.

    Parameters
    ----------
    widths : iterable of int, default (4, 8, 16, 32, 64, 128, 256)
        Widths d >= 1.
    gamma : float, default inf
        Weight scale γ > 0 of `Chain.bn_residual`; inf removes the skip connection.  Chains need
        about 1/γ² times as many layers.
    tau, rng, rtol, chains, depth, threads, executor, timeout, progress
        As in `averages`; progress counts layers of all widths so far.

    Returns
    -------
    Figures

    Raises
    ------
    PartialEstimateError
        If the target is not met within `depth` layers at some width.  The message names the width;
        `partial` holds the figures up to this width.
    ArgumentError, ArgumentTypeError, ResultTooLargeError
        As in `constant`.

    Examples
    --------
    >>> from bnmc.regularity import figures
    >>> found = figures([4, 8], rng=0)
    >>> found.value("alpha").round(2)
    array([0.95, 0.91])
    >>> bool((found.stderr("alpha") < 0.01 * found.value("alpha")).all())
    True
    """
    parallel = Parallel.of(threads, executor, progress, timeout)
    generator = np.random.default_rng(draw_key(rng))
    runs = [
        ErgodicRun(chain, generator, rtol, chains, depth, None, parallel, tau)
        for chain in _chains_of(widths, gamma)
    ]
    finished: list[Averages] = []

    def so_far() -> Figures:
        done = [averages.chain.width for averages in finished]
        return Figures(float(gamma), np.array(done, np.int64), tuple(finished))

    with reporting(parallel.progress, "figures", "layers") as report:
        before = 0
        for run in runs:
            run.parallel = replace(parallel, progress=_later(report, before))
            try:
                finished.append(run.averages())
            except PartialEstimateError as error:
                finished.append(cast(Averages, error.partial))
                reason = f"width {run.chain.width}: {error.reason}"
                raise PartialEstimateError(reason, so_far()) from None
            before += run.layer
    return so_far()


def _chains_of(widths: Iterable[int], gamma: float) -> list[Chain]:
    sizes = [
        integer("widths", w, low=1) for w in items("widths", widths, "an iterable of integers")
    ]
    if not sizes:
        raise ArgumentError("widths", sizes, "at least one width")
    return [Chain.bn_residual(width, width, gamma=gamma) for width in sizes]


def _later(report: Progress, before: int) -> Progress:
    """Return a report of layers that come after the first `before`."""
    return lambda done, total: report(before + done, before + total)


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
    For the identity every p is 1/d.  A matrix of rank one keeps rank one:

    >>> import numpy as np
    >>> from bnmc.regularity import one_step_second_moment
    >>> print(one_step_second_moment(np.eye(4)).round(12), one_step_second_moment(np.ones((4, 4))))
    7.0 16.0
    """
    matrices = finite_array("H", H, shape=(..., "d", "n")).astype(np.float64, copy=False)
    singular = np.linalg.svd(matrices, compute_uv=False)
    largest = singular.max(axis=-1, keepdims=True)
    if (largest <= 0).any():
        raise ArgumentError("H", 0.0, "matrices other than zero")
    spectra = np.square(singular / largest)
    *leading, count = spectra.shape
    sums = [np.square(_shares(spectrum)).sum() for spectrum in spectra.reshape(-1, count)]
    d = matrices.shape[-2]
    return np.asarray(d + d * (d - 1) * np.reshape(sums, leading))


def _shares(spectrum: Float64Array) -> Float64Array:
    """P of `one_step_second_moment`, for squares of singular values with the maximum 1."""
    step = 0.4
    t = np.exp(np.arange(-44.0, 84.0, step))[:, None]
    grown = 1 + 2 * t * spectrum
    product = np.exp(-0.5 * np.log(grown).sum(axis=1, keepdims=True))
    shares = step * (t * spectrum / grown * product).sum(axis=0)
    return shares / shares.sum()


# --- averages over more layers until they are precise enough

#: The quantities that `averages` estimates.
_QUANTITIES = ("alpha", "rank_bound", "soft_rank", "squared_norm", "cubes", "squares")


@dataclass(frozen=True)
class Averages(Result):
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
    >>> found = bnmc.regularity.averages(bnmc.Chain(8, 8, "linear", norm="batch-uncentred"), rng=0)
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
class Figures(Drawn, Result):
    """The quantities of Figures 8 and 9 of the paper against the width.

    `plot` draws α and E‖M‖_F²/d^1.5 against the width, with intervals.

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

    def _draw(self, ax: Axes) -> None:
        labels = {"alpha": "α (Figure 8)", "scaled_norm": "E‖M‖²/d$^{1.5}$ (Figure 9)"}
        for (name, label), colour in zip(labels.items(), axes.COLOURS, strict=False):
            low, high = np.transpose([estimate.ci for estimate in self._of(name)])
            axes.estimates(ax, self.widths, self.value(name), low, high, colour=colour, label=label)
        ax.set_xscale("log", base=2)
        axes.plain_ticks(ax.xaxis, self.widths)
        ax.set_xlabel("width")
        ax.legend(fontsize="small")


#: Burn-in in units of the measured layers, over the square root of the smaller side of x, for a
#: target of 1 %.  At layer 24 √d, α is 0.2 % below its limit at width 4 and at most 0.15 % at
#: widths 8 to 64; the difference falls at least like 1/depth.
_BURN_IN, _BURN_IN_RTOL = 6, 0.01


def _pace_of(chain: Chain) -> float:
    """Return the layers from one measured layer to the next.

    With a skip connection a layer changes the directions of rows by about gain/skip.
    """
    return ensembles.PACE * (1 + min(abs(chain.skip / chain.gain), 1e6) ** 2)


def burn_in_of(chain: Chain, rtol: float) -> int:
    """Return the default burn-in. As many layers are measured first, and mostly suffice."""
    scale = math.sqrt(min(chain.width, chain.batch)) * max(1.0, _BURN_IN_RTOL / rtol)
    return math.ceil(min(_BURN_IN * _pace_of(chain) * scale, 1e18))


def seconds_of(chain: Chain, layers: int, chains: int) -> float:
    """Return the approximate seconds of an ensemble on one thread, to a factor of about 2."""
    every = min(math.ceil(_pace_of(chain)), layers)
    return layers * chains * ensembles.seconds_of_layer(chain, every)


#: What the averages need of a chain.
_NEEDS = (
    FULLY_CONNECTED,
    NORM_OVER_BATCH._replace(hint="M has no unit diagonal without; {instead}"),
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
        parallel: Parallel,
        tau: float | None,
    ) -> None:
        require(chain, _NEEDS, "average an observable of bnmc.simulate")
        self.chain = chain
        self.tau = None if tau is None else real("tau", tau, above=0.0)
        self.chains = integer("chains", chains, low=2, high=MOST_CHAINS)
        self.depth = integer("depth", depth, low=4, high=2**32 - 1)
        self.rtol = real("rtol", rtol, above=0.0)
        pace = _pace_of(chain)
        if burn_in is None:
            self.burn_in = burn_in_of(chain, self.rtol)
            if self.burn_in > self.depth // 2:
                allowed = f"at least {2 * self.burn_in} for this chain and rtol"
                raise ArgumentError("depth", depth, allowed, "or a burn_in of your own")
        else:
            self.burn_in = integer("burn_in", burn_in, low=2, high=self.depth // 2)
        self.every = min(math.ceil(pace), self.burn_in // 2)
        self.parallel = parallel
        key = draw_key(rng)
        self.ensemble = ensembles.ensemble_of(chain, self.chains, key, parallel)
        self.layer = 0
        self.layers = 0, 0  # measured so far

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
        parallel = self.parallel
        with (
            reporting(parallel.progress, "regularity", "layers") as report,
            ThreadPoolExecutor(parallel.threads, thread_name_prefix="bnmc") as of_run,
        ):
            pool = parallel.silent(parallel.executor or of_run)
            total = self.burn_in + self._length(self.burn_in)
            for first, last in ranges(self.burn_in, ensembles.ROUND_LAYERS):
                self.ensemble.measured(pool, last - first, 1, None)
                self._moved(last - first, total, report)
            # Each try begins at the end of the try before.
            while total <= self.depth and not (self.layers[1] and parallel.stop()):
                self.layers = self.layer + 1, total
                half = (total - self.layer) // 2
                halves = [self._half(half, pool, total, report) for _ in range(2)]
                yield self._judge(halves, judged)
                total = self.layer + self._length(self.layer)

    def _length(self, before: int) -> int:
        """Return the number of layers to measure after `before` ones: two halves of whole slots."""
        return before // (2 * self.every) * 2 * self.every

    def _half(
        self, layers: int, pool: Parallel, total: int, report: Progress
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
