"""`tv_bound`: an upper bound of the distance from the stationary law, from coupled pairs."""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnmc._kernels.scalar.codes import MOST_CHAINS
from bnmc._support.arguments import integer, real
from bnmc._support.progress import Progress
from bnmc.chain.chain import Chain
from bnmc.chain.start import FirstLayer
from bnmc.mixing.coupling import MOST_LAG, PILOT_REPLICATES, CoupledPairs
from bnmc.mixing.meetings import excess_means, not_mixing, survival, tail_rate
from bnmc.mixing.rate import RateEstimate
from bnmc.simulation.engine.pairs import Meetings

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["MOST_DEPTH", "TVBound", "tv_bound"]

#: Largest depth of a bound: the result holds a few numbers for each layer.
MOST_DEPTH = 2**20


@dataclass(frozen=True)
class TVBound:
    """Upper bounds of the distance ‖μ_l − μ*‖_tv for each layer l; ``print`` shows a table.

    Attributes
    ----------
    layers : (depth + 1,) ndarray of int
        0 to depth.
    bound : (depth + 1,) ndarray of float64
        Means of J_l = max(0, ⌈(τ − lag − l)/lag⌉) over replicates; nonincreasing.  Values of 1 or
        more are vacuous.
    stderr : (depth + 1,) ndarray of float64
        Standard errors of these means.
    ci : (depth + 1, 2) ndarray of float64
        Confidence intervals of E J_l, for each layer separately; see Notes.
    survival : (depth + 1,) ndarray of float64
        Share of the replicates that have not met l layers after the coupling began.
    survival_ci : (depth + 1, 2) ndarray of float64
        Clopper–Pearson intervals of P(τ − lag > l): exact, for each layer separately.
    survival_band : float
        Half width of a confidence band for all layers simultaneously (Dvoretzky, Kiefer and
        Wolfowitz, with Massart's constant).
    meeting_times : (replicates,) ndarray of int
        τ, the layer of the chain ahead at which a pair met; for a pair that has not met, the last
        layer of its run.
    lag : int
        Layers by which one chain of a pair is ahead of the other.
    rate_estimate : RateEstimate
        Factor by which P(τ > t) decreases per layer t, beyond the median of τ.  Far in the tail it
        is at least the rate of the chain, which `bnmc.mixing.contraction` estimates.  For chains
        whose pairs meet within a few layers it may be smaller.
    tries, refusals : int
        Number of maximal couplings that were tried, and that failed.
    unmet : int
        Number of replicates that have not met.  It is 0 except in the ``partial`` result of a
        `NotMixing` error, where bound and survival are too small.
    level : float
        Level of the intervals and of the band.
    key : int
        The 64-bit key of all random numbers.

    Notes
    -----
    J_l is unbounded, so an interval for its mean needs an assumption.  Let c be the commonest value
    of J_l (0 in deep layers).

    If at least 100 replicates have another value, the interval is Student's, by the central limit
    theorem.  Its upper end includes the next-order term in the skewness of J_l (Hall, *On the
    removal of skewness by transformation*, 1992).

    Otherwise, E J_l = c + P(J_l > c) E[J_l − c | J_l > c] − P(J_l < c) E[c − J_l | J_l < c].  Both
    probabilities have Clopper–Pearson intervals.  The first conditional mean is at least 1; its
    upper end is Student's, or 1/(1 − rate^lag) at the upper end of the rate, its value for a
    geometric tail of τ, if that is larger.  The second lies between 1 and c.
    """

    layers: NDArray[np.int64]
    bound: NDArray[np.float64]
    stderr: NDArray[np.float64]
    ci: NDArray[np.float64]
    survival: NDArray[np.float64]
    survival_ci: NDArray[np.float64]
    survival_band: float
    meeting_times: NDArray[np.int64]
    lag: int
    rate_estimate: RateEstimate
    tries: int
    refusals: int
    unmet: int
    level: float
    key: int = field(repr=False)

    @property
    def rate(self) -> float:
        """`rate_estimate.rate`: the factor per layer."""
        return self.rate_estimate.rate

    @property
    def alpha(self) -> float:
        """``1 − rate``, an estimate of α in Assumption 1 of *On bridging …*."""
        return 1.0 - self.rate

    @property
    def replicates(self) -> int:
        """Number of pairs."""
        return len(self.meeting_times)

    def layers_to(self, tolerance: float) -> int | None:
        """Return the first layer whose interval ends at or below `tolerance`; None if none does."""
        below = np.flatnonzero(self.ci[:, 1] <= real("tolerance", tolerance, above=0.0))
        return int(self.layers[below[0]]) if below.size else None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as numbers, lists and dicts, for `json.dumps`."""
        arrays = ("layers", "bound", "stderr", "ci", "survival", "survival_ci", "meeting_times")
        rate = self.rate_estimate
        return {
            **{name: getattr(self, name).tolist() for name in arrays},
            "survival_band": self.survival_band,
            "lag": self.lag,
            "rate": {"rate": rate.rate, "stderr": rate.stderr, "ci": list(rate.ci), "n": rate.n},
            "tries": self.tries,
            "refusals": self.refusals,
            "unmet": self.unmet,
            "level": self.level,
            "key": self.key,
        }

    def __str__(self) -> str:
        """The bound at layers 0, 1, 2, 4, 8, … and the last, with its interval."""
        depth = int(self.layers[-1])
        shown = sorted({0, depth} | {2**k for k in range(depth.bit_length()) if 2**k < depth})
        interval = f"{100 * self.level:g} % interval"
        lines = [
            f"Total variation distance from the invariant law, at most; {self.replicates} pairs, "
            f"lag {self.lag}",
            "(1 or more says nothing; it falls in steps that are a lag apart)",
            f"{'layer':>7}  {'bound':>9}  {interval:>20}",
        ]
        for layer in shown:
            low, high = self.ci[layer]
            lines.append(f"{layer:>7}  {self.bound[layer]:>9.4g}  {f'[{low:.4g}, {high:.4g}]':>20}")
        if self.unmet:
            lines.append(f"Too small: {self.unmet} pairs had not met.")
        return "\n".join([*lines, f"rate {self.rate_estimate}"])

    def plot(self, *, ax: Axes | None = None) -> Axes:
        """Draw the bound against the layer on a logarithmic axis, in the band of its intervals.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            Axes to draw on; by default those of a new figure.

        Returns
        -------
        matplotlib.axes.Axes

        Raises
        ------
        MissingExtraError
            Without Matplotlib (extra ``plot``).
        """
        from bnmc.plot.axes import COLOURS, figure

        if ax is None:
            ax = figure()[1][0]
        drawn = self.bound > 0.0
        colour = COLOURS[0]
        label = f"mean, in steps of the lag of {self.lag} layers"
        ax.plot(self.layers[drawn], self.bound[drawn], color=colour, label=label)
        label = f"{100 * self.level:g} % intervals"
        low, high = self.ci.T
        # A logarithmic axis has no 0: lower ends at 0 are drawn below its range.
        least = 0.1 / self.replicates
        ax.fill_between(
            self.layers, np.maximum(low, least), high, color=colour, alpha=0.25, label=label
        )
        ax.set_yscale("log")
        # Bounds above 1 are vacuous.
        ax.axhline(1.0, color="grey", linewidth=0.8, linestyle="--")
        shown = max(least, 0.5 * float(low.min())) if low.min() > 0.0 else least
        ax.set_ylim(shown, 2.0 * max(1.0, float(self.bound[0])))
        ax.set_title(f"Distance from the invariant law, at most: {self.replicates} pairs")
        ax.set_xlabel(r"layer $\ell$")
        ax.set_ylabel(r"bound of $\|\mu_\ell - \mu_*\|_{tv}$")
        ax.legend()
        return ax


def tv_bound(
    chain: Chain,
    depth: int,
    *,
    lag: int | None = None,
    replicates: int = 1000,
    initial: str | ArrayLike | FirstLayer = "gaussian",
    rng: Any = None,
    level: float = 0.95,
    max_layers: int = 4000,
    executor: Executor | None = None,
    backend: str = "cpu",
    progress: bool | Progress = False,
) -> TVBound:
    r"""Bound the total-variation distance of the law of each layer from the stationary law.

    Two copies of the chain, one ahead of the other by a lag, are coupled so that they meet and stay
    equal.  The law of the meeting times bounds the distance.

    Parameters
    ----------
    chain : Chain
        With norm "batch" or "batch-uncentred", Gaussian weights and no skip connection.
    depth : int
        The last layer l of the bound, >= 0.
    lag : int, optional
        Layers by which one copy is ahead, >= 1.  A longer lag costs more layers and gives a
        tighter bound.  By default chosen by a pilot run such that nine of ten pairs meet within
        one lag after the coupling begins.
    replicates : int, default 1000
        Number of pairs, >= 2.
    initial : str, array_like or FirstLayer, default "gaussian"
        Law of layer 0, as in `bnmc.simulate`: one batch for all chains, or a named law.
    rng : optional
        Anything `numpy.random.default_rng` takes (SPEC 7). One 64-bit key is drawn from it.
    level : float, default 0.95
        Level of the intervals, in (0, 1).
    max_layers : int, default 4000
        Number of layers, from the start of the coupling, after which a pair is given up.
    executor : concurrent.futures.Executor, optional
        Executor that runs the tasks; a task is a range of replicates.  By default a thread pool.
        Results do not depend on it.
    backend : {"cpu", "cuda"}
        "cuda" runs all replicates on the visible GPUs, one block per replicate, with the same
        random numbers.  Meeting times differ from those of "cpu" only where rounding decides.
    progress : bool or callable
        True for a bar on standard error (extra ``cli``), or a function of (done, total) tasks.

    Returns
    -------
    TVBound

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For an argument that is not allowed, and for a chain without this coupling; the message
        names an alternative.
    NotMixing
        If pairs do not meet within `max_layers`, or a Gram matrix loses rank.  Gram matrices of
        linear chains do so if the width is small compared with n²/2, for a batch of n.
        ``partial`` is the `TVBound` with the pairs that have met (None if the pilot failed),
        ``exponent`` the contraction exponent, and ``pivot_trend`` the change of log10 of the least
        pivot per layer.
    ZeroVarianceError
        For a row with zero variance.
    BackendError, ResultTooLargeError
        For "cuda", without a usable GPU or without enough memory on it.

    Notes
    -----
    Let X be ahead of Y by L layers, both with the chain's law, and let τ be the first layer t with
    X_t = Y_{t−L}; from there on they stay equal.  Then

    .. math:: \|\mu_l - \mu_*\|_{tv} \le E \max(0, \lceil (\tau - L - l)/L \rceil)

    (Biswas, Jacob and Vanetti, *Estimating convergence of Markov chains with L-lag couplings*,
    2019).  Here μ_l is the law of x_l, the normalized representation, given the law of x_0.  The
    bound also holds for the law of the Gram matrix G_l and for all later layers.  The coupling acts
    on the rows given the Gram matrix of the previous layer.  Both copies multiply the same normals
    by the Cholesky factors of their covariances G (of PGP if rows are centred; P projects out the
    mean).  Once the covariances are close, a maximal coupling of the two laws of d rows makes the
    copies equal with high probability.

    Examples
    --------
    >>> import bnmc
    >>> chain = bnmc.Chain(width=500, batch=5, activation="relu")
    >>> cert = bnmc.mixing.tv_bound(chain, depth=30, replicates=200, rng=0)
    >>> bool(cert.bound[0] > cert.bound[10] >= cert.bound[30])
    True
    """
    pairs = CoupledPairs(chain, initial, rng, max_layers, executor, progress, backend)
    depth = integer("depth", depth, low=0, high=MOST_DEPTH)
    replicates = integer("replicates", replicates, low=2, high=MOST_CHAINS - PILOT_REPLICATES)
    level = real("level", level, above=0.0, below=1.0)
    lag = pairs.choose_lag(replicates) if lag is None else integer("lag", lag, low=1, high=MOST_LAG)
    meetings = pairs.run(lag, 0, replicates)
    cert = _summary(meetings, lag, depth, pairs.max_layers, level, pairs.key)
    if cert.unmet:
        raise not_mixing(meetings, pairs.max_layers, cert)
    return cert


def _summary(
    meetings: Meetings, lag: int, depth: int, max_layers: int, level: float, key: int
) -> TVBound:
    """Return the bound; a pair that has not met counts with the last layer of its run."""
    met = meetings.layers >= 0
    times = np.where(met, meetings.layers, lag + max_layers)
    waited = times - lag
    rate = tail_rate(waited, level)
    bound, stderr, ci = excess_means(waited, lag, depth, rate)
    share, share_ci, band = survival(waited, depth, level)
    return TVBound(
        layers=np.arange(depth + 1),
        bound=bound,
        stderr=stderr,
        ci=ci,
        survival=share,
        survival_ci=share_ci,
        survival_band=band,
        meeting_times=times,
        lag=lag,
        rate_estimate=rate,
        tries=int(meetings.tries.sum()),
        refusals=int(meetings.refusals.sum()),
        unmet=int(np.count_nonzero(~met)),
        level=level,
        key=key,
    )
