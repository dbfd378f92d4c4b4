"""The demonstration: digits settle at the mean field, and Fig. 1a of *On bridging …*.

Joudaki, Daneshmand and Bach, *On bridging the gap between mean field and finite width in deep
random neural networks with batch normalization* (arXiv 2205.13076), show in Fig. 1a that the error
of the mean field grows with depth in linear networks without normalization, and stays put with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnmc._support.arguments import integer
from bnmc._support.progress import Progress
from bnmc.chain.chain import Chain
from bnmc.chain.start import FirstLayer
from bnmc.experiments.digits import digits
from bnmc.mean_field import FixedPoint, MeanField
from bnmc.plot import axes, runs
from bnmc.plot import runs as plot_runs
from bnmc.simulation.observables import Distance
from bnmc.simulation.run import simulate
from bnmc.simulation.trajectory import Trajectory

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "Comparison",
    "Settling",
    "compare",
    "draw",
    "error_propagation",
    "settle",
    "vanilla_error",
]


WIDTH = 1000
DIGITS, DIGITS_DEPTH, DIGITS_NETWORKS = 10, 40, 64

#: Of Fig. 1a.
SAMPLES = 5

#: How many networks without normalization stand beside one with it: their error has heavy tails.
VANILLA_FACTOR = 5
LINEAR_COLOUR, VANILLA_COLOUR, RELU_COLOUR = axes.COLOURS[:3]


@dataclass(frozen=True)
class Settling:
    """Digits in networks with batch normalization.

    Attributes
    ----------
    runs : dict of Trajectory
        By activation; recorded are "distance" (from the fixed point) and "orthogonality_gap".
    stars : dict of FixedPoint
        By activation.
    """

    runs: dict[str, Trajectory]
    stars: dict[str, FixedPoint]


@dataclass(frozen=True)
class Comparison:
    """Linear networks with and without batch normalization, from the same orthogonal inputs.

    Attributes
    ----------
    normalised, vanilla : Trajectory
        Recorded is "distance" from layer 1 on: from the fixed point, and from the identity.
    """

    normalised: Trajectory
    vanilla: Trajectory


def settle(
    seed: int = 0, *, threads: int | None = None, progress: bool | Progress = False
) -> Settling:
    """Take ten handwritten digits through networks of width 1000, with ReLU and without.

    Parameters
    ----------
    seed : int
    threads : int, optional
    progress : bool or callable
        As for `bnmc.simulate`.

    Returns
    -------
    Settling

    Examples
    --------
    >>> settling = settle()
    >>> settling.runs["relu"]["distance"].shape, settling.stars["relu"].stable
    ((64, 41), True)
    """
    inputs = FirstLayer(digits(DIGITS))
    chains = {name: Chain(WIDTH, DIGITS, name) for name in ("relu", "linear")}
    stars = {name: MeanField(chain).fixed_point() for name, chain in chains.items()}
    runs = {
        name: simulate(
            chain, DIGITS_DEPTH, chains=DIGITS_NETWORKS, initial=inputs, rng=seed,
            observables=[Distance(stars[name].gram), "orthogonality_gap"], threads=threads,
            progress=progress,
        )
        for name, chain in chains.items()
    }  # fmt: skip
    return Settling(runs, stars)


def compare(
    depth: int = 1000,
    chains: int = 200,
    seed: int = 0,
    *,
    threads: int | None = None,
    progress: bool | Progress = False,
) -> Comparison:
    """Simulate what Fig. 1a shows: linear networks, 5 samples, width 1000.

    Parameters
    ----------
    depth : int
        Layers, >= 1.
    chains : int
        Networks with batch normalization, >= 1; there are five times as many without.
    seed : int
    threads : int, optional
    progress : bool or callable
        As for `bnmc.simulate`.

    Returns
    -------
    Comparison

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If an argument is not allowed.

    Examples
    --------
    >>> comparison = compare(depth=20, chains=8)
    >>> comparison.normalised["distance"].shape, comparison.vanilla["distance"].shape
    ((8, 20), (40, 20))
    """
    depth = integer("depth", depth, low=1)
    chains = integer("chains", chains, low=1)
    samples = np.random.default_rng(seed).standard_normal((WIDTH, SAMPLES))
    orthogonal = np.linalg.qr(samples)[0] * np.sqrt(WIDTH)  # G_0 = I, the vanilla fixed point

    def run(chain: Chain, star: ArrayLike, networks: int) -> Trajectory:
        return simulate(
            chain, depth, chains=networks, initial=orthogonal, rng=seed, burn_in=1,
            observables=Distance(star), threads=threads, progress=progress,
        )  # fmt: skip

    normalised = Chain(WIDTH, SAMPLES)
    return Comparison(
        run(normalised, MeanField(normalised).fixed_point().gram, chains),
        run(Chain.vanilla(WIDTH, SAMPLES), np.eye(SAMPLES), VANILLA_FACTOR * chains),
    )


def vanilla_error(width: int, batch: int, layers: ArrayLike) -> NDArray[np.float64]:
    r"""Root mean square of :math:`\|G_l - I\|_F` in linear networks without normalization.

    Exact for Gaussian weights and :math:`G_0 = I`: with d the width and n the batch,

    .. math:: E\|G_l - I\|_F^2 = \tfrac{n(n+2)}{3} (1 + 2/d)^l - \tfrac{n(n-1)}{3} (1 - 1/d)^l - n.

    Parameters
    ----------
    width, batch : int
    layers : array_like of int

    Returns
    -------
    ndarray of float64, of the shape of `layers`

    Examples
    --------
    >>> vanilla_error(1000, 5, [0, 1, 1000]).round(4)
    array([0.    , 0.1732, 8.8647])
    """
    depth, n = np.asarray(layers, dtype=np.float64), batch
    # n(n+2)/3 − n(n−1)/3 − n = 0, so powers minus one lose nothing where the error is small.
    grown = np.expm1(depth * np.log1p(2 / width)) * n * (n + 2) / 3
    decay = np.expm1(depth * np.log1p(-1 / width)) if width > 1 else -np.sign(depth)
    shrunk = decay * n * (n - 1) / 3
    error: NDArray[np.float64] = np.sqrt(grown - shrunk)
    return error


def error_propagation(width: int, layers: ArrayLike) -> NDArray[np.float64]:
    """Growth exp(depth / width) of the error of the mean field, eq. (6) of *On bridging …*.

    Parameters
    ----------
    width : int
    layers : array_like of int

    Returns
    -------
    ndarray of float64, of the shape of `layers`

    Examples
    --------
    >>> error_propagation(1000, [0, 1000]).round(4)
    array([1.    , 2.7183])
    """
    growth: NDArray[np.float64] = np.exp(np.asarray(layers, dtype=np.float64) / width)
    return growth


def draw(settling: Settling, comparison: Comparison) -> Figure:
    """Draw both parts side by side.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    MissingExtraError
        Without Matplotlib.

    Examples
    --------
    >>> len(draw(settle(), compare(depth=20, chains=8)).axes)
    2
    """
    drawn, (left, right) = axes.figure(columns=2)
    _draw_settling(left, settling)
    _draw_comparison(right, comparison)
    return drawn


def _draw_settling(ax: Axes, settling: Settling) -> None:
    ax.set_prop_cycle(color=[LINEAR_COLOUR, RELU_COLOUR])
    runs = settling.runs
    plot_runs.trajectory(
        {"batch norm, linear": runs["linear"], "batch norm, ReLU": runs["relu"]}, ax=ax
    )
    ax.set_title("Digits settle where the mean field says", loc="left", weight="bold")
    ax.set_ylabel("distance from the fixed point, " + plot_runs.LABELS["distance"])
    _caption(ax, f"{DIGITS} digits, width {WIDTH}; mean and 90 % of {DIGITS_NETWORKS} networks")


def _draw_comparison(ax: Axes, comparison: Comparison) -> None:
    vanilla, normalised = comparison.vanilla, comparison.normalised
    width, n, layers = vanilla.chain.width, vanilla.chain.batch, vanilla.layers
    ax.set_prop_cycle(color=[LINEAR_COLOUR, VANILLA_COLOUR])
    runs.trajectory({"batch norm": normalised, "no normalization": vanilla}, ax=ax)
    exact = vanilla_error(width, n, layers)
    ax.plot(layers, exact, "k--", linewidth=1.2, label="no normalization, exact r.m.s.")
    scale = np.sqrt(n * (n + 2) / 3)
    ax.plot(
        layers, scale * error_propagation(width, layers), color="0.35", linestyle=":",
        label="eq. (6), ∝ exp(depth / width)",
    )  # fmt: skip
    ax.set_title(
        "The error grows without batch norm and stays put with it", loc="left", weight="bold"
    )
    ax.set_ylabel("error of the mean field, " + runs.LABELS["distance"])
    _caption(
        ax,
        f"linear, {n} samples, width {width}; mean and 90 % of "
        f"{normalised.chains} and {vanilla.chains} networks",
    )
    ax.legend(loc="center right", bbox_to_anchor=(1.0, 0.4), fontsize="small")


def _caption(ax: Axes, text: str) -> None:
    ax.set_xlabel(f"layer\n{text}")
