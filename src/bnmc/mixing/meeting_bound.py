"""TODO-DOC bnmc.mixing.meeting_bound."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bnmc._support.arguments import real
from bnmc.mixing.rate import RateEstimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["TVBound"]


@dataclass(frozen=True)
class TVBound:
    """An upper bound of ‖μ_l − μ*‖_tv for each layer l; ``print`` shows it as a table.

    Attributes
    ----------
    layers : (depth + 1,) ndarray of int
        0 to depth.
    bound : (depth + 1,) ndarray of float64
        Means of J_l = max(0, ⌈(τ − lag − l)/lag⌉) over replicates; not increasing, and above 1
        where it says nothing.
    stderr : (depth + 1,) ndarray of float64
        Standard errors of these means.
    ci : (depth + 1, 2) ndarray of float64
        Confidence intervals of E J_l, at each layer alone; see Notes.
    survival : (depth + 1,) ndarray of float64
        Share of the replicates that have not met l layers after they were coupled.
    survival_ci : (depth + 1, 2) ndarray of float64
        Clopper-Pearson intervals of its expectation P(τ − lag > l): exact, at each layer alone.
    survival_band : float
        Half width of a band that holds for all layers at once (Dvoretzky, Kiefer and Wolfowitz,
        with Massart's constant).
    meeting_times : (replicates,) ndarray of int
        τ, the layer of the chain ahead at which a pair met; for one that has not, the last layer
        it was seen at.
    lag : int
        Layers by which the chain ahead is ahead.
    rate_estimate : RateEstimate
        Factor by which P(τ > t) falls with each layer t, where pairs meet. Far in the tail it is
        at least the chain's own rate, which `bnmc.mixing.contraction` estimates; in the few layers
        in which fast chains meet it may be less.
    tries, refusals : int
        Maximal couplings that were tried, and refused.
    unmet : int
        Replicates that have not met: their τ is too small, and with it bound and survival. Not 0
        only in what a `NotMixing` error carries.
    level : float
        Level of the intervals and of the band.
    key : int
        The 64-bit key of all random numbers.

    Notes
    -----
    J_l is not bounded, so an interval for its mean needs an assumption. Where at least 100
    replicates have a J_l other than the commonest, c (0 in deep layers), the interval is Student's,
    by the central limit theorem, with the term of next order in the skewness of J_l added to its
    upper end (Hall, *On the removal of skewness by transformation*, 1992). Elsewhere it adds to c
    the excess, of which the probability has a Clopper-Pearson interval, and the mean is at least 1
    and at most the larger of such an upper end for it and of 1/(1 − rate^lag), that mean if the
    tail of τ is geometric, at the upper end of
    the rate; and it takes away, likewise, the probability that J_l < c, times 1 to c.
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
        """``1 − rate``: what stands for α of Assumption 1 of *On bridging …*."""
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
        """Return numbers, lists and dicts, which `json.dumps` takes."""
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
            Where to draw; a new figure unless given.

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
        # What a logarithmic axis has no place for is below everything that it shows.
        least = 0.1 / self.replicates
        ax.fill_between(
            self.layers, np.maximum(low, least), high, color=colour, alpha=0.25, label=label
        )
        ax.set_yscale("log")
        # Above it nothing is said.
        ax.axhline(1.0, color="grey", linewidth=0.8, linestyle="--")
        shown = max(least, 0.5 * float(low.min())) if low.min() > 0.0 else least
        ax.set_ylim(shown, 2.0 * max(1.0, float(self.bound[0])))
        ax.set_title(f"Distance from the invariant law, at most: {self.replicates} pairs")
        ax.set_xlabel(r"layer $\ell$")
        ax.set_ylabel(r"bound of $\|\mu_\ell - \mu_*\|_{tv}$")
        ax.legend()
        return ax
