"""The demonstration ``bnmc demo``: digits converge to the mean field, and Fig. 1a beside them.

Joudaki, Daneshmand and Bach, *On bridging the gap between mean field and finite width in deep
random neural networks with batch normalization* (arXiv 2205.13076), compare linear networks in
Fig. 1a: the error of the mean field grows with depth without normalization, and stays constant with
it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bnmc._support.arguments import integer
from bnmc._support.progress import Progress
from bnmc.chain.chain import Chain
from bnmc.chain.start import FirstLayer
from bnmc.experiments.bridging.linear_networks import (
    WIDTH,
    equation_6,
    linear_cases,
    orthogonal_samples,
    simulate_errors,
)
from bnmc.experiments.digits import digits
from bnmc.mean_field import FixedPoint
from bnmc.mean_field.field import MeanField
from bnmc.plot import axes, runs
from bnmc.random_matrix import vanilla_deviation
from bnmc.simulation.observables import Distance
from bnmc.simulation.run import simulate
from bnmc.simulation.trajectory import Trajectory

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["DigitRuns", "LinearRuns", "draw", "simulate_digits", "simulate_linear"]

_DIGITS, _DIGITS_DEPTH, _DIGITS_NETWORKS = 10, 40, 64

#: Networks without normalization per network with it: their error is heavy-tailed.
_VANILLA_FACTOR = 5

_LINEAR_COLOUR, _VANILLA_COLOUR, _RELU_COLOUR = axes.COLOURS[:3]


@dataclass(frozen=True)
class DigitRuns:
    """Digits in networks with batch normalization.

    Attributes
    ----------
    runs : dict of Trajectory
        By activation, with the observables "distance" (from the fixed point) and
        "orthogonality_gap".
    fixed_points : dict of FixedPoint
        By activation.
    """

    runs: dict[str, Trajectory]
    fixed_points: dict[str, FixedPoint]


@dataclass(frozen=True)
class LinearRuns:
    """Linear networks with and without batch normalization, from the same orthogonal inputs.

    Attributes
    ----------
    normalised, vanilla : Trajectory
        From layer 1 on, with the observable "distance".  It is the distance from the fixed point;
        without normalization, from the identity.
    """

    normalised: Trajectory
    vanilla: Trajectory


def simulate_digits(
    seed: int = 0, *, threads: int | None = None, progress: bool | Progress = False
) -> DigitRuns:
    """Simulate ten handwritten digits in networks of width 1000, with ReLU and linear.

    Parameters
    ----------
    seed : int, default 0
    threads : int, optional
        Number of threads, >= 1.  Default: all processors.
    progress : bool or callable
        As for `bnmc.simulate`.

    Returns
    -------
    DigitRuns

    Examples
    --------
    >>> from bnmc.experiments.demonstration import simulate_digits
    >>> found = simulate_digits()
    >>> found.runs["relu"]["distance"].shape, found.fixed_points["relu"].stable
    ((64, 41), True)
    """
    inputs = FirstLayer(digits(_DIGITS))
    chains = {name: Chain(WIDTH, _DIGITS, name) for name in ("relu", "linear")}
    fixed_points = {name: MeanField(chain).fixed_point() for name, chain in chains.items()}
    trajectories = {
        name: simulate(
            chain, _DIGITS_DEPTH, chains=_DIGITS_NETWORKS, initial=inputs, rng=seed,
            observables=[Distance(fixed_points[name].gram), "orthogonality_gap"], threads=threads,
            progress=progress,
        )
        for name, chain in chains.items()
    }  # fmt: skip
    return DigitRuns(trajectories, fixed_points)


def simulate_linear(
    depth: int = 1000,
    chains: int = 200,
    seed: int = 0,
    *,
    threads: int | None = None,
    progress: bool | Progress = False,
) -> LinearRuns:
    """Simulate the comparison of Fig. 1a: linear networks of width 1000 with 5 samples.

    Parameters
    ----------
    depth : int, default 1000
        Layers, >= 1.
    chains : int, default 200
        Networks with batch normalization, >= 1.  There are five times as many without.
    seed : int, default 0
    threads : int, optional
        Number of threads, >= 1.  Default: all processors.
    progress : bool or callable
        As for `bnmc.simulate`.

    Returns
    -------
    LinearRuns

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If an argument is invalid.

    Examples
    --------
    >>> from bnmc.experiments.demonstration import simulate_linear
    >>> found = simulate_linear(depth=20, chains=8)
    >>> found.normalised["distance"].shape, found.vanilla["distance"].shape
    ((8, 20), (40, 20))
    """
    depth = integer("depth", depth, low=1)
    chains = integer("chains", chains, low=1)
    inputs = orthogonal_samples(np.random.default_rng(seed))
    counts = {"batch": chains, "none": _VANILLA_FACTOR * chains}
    normalised, vanilla = (
        simulate_errors(
            case, depth, networks=counts[norm], inputs=inputs, rng=seed, threads=threads,
            progress=progress,
        )
        for norm, case in linear_cases().items()
    )  # fmt: skip
    return LinearRuns(normalised, vanilla)


def draw(found: DigitRuns, comparison: LinearRuns) -> Figure:
    """Draw both parts side by side.

    Parameters
    ----------
    found : DigitRuns
    comparison : LinearRuns

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    MissingExtraError
        If Matplotlib is not installed.

    Examples
    --------
    >>> from bnmc.experiments.demonstration import draw, simulate_digits, simulate_linear
    >>> len(draw(simulate_digits(), simulate_linear(depth=20, chains=8)).axes)
    2
    """
    drawn, (left, right) = axes.figure(columns=2)
    _draw_digits(left, found)
    _draw_comparison(right, comparison)
    return drawn


def _draw_digits(ax: Axes, found: DigitRuns) -> None:
    ax.set_prop_cycle(color=[_LINEAR_COLOUR, _RELU_COLOUR])
    runs.trajectory(
        {"batch norm, linear": found.runs["linear"], "batch norm, ReLU": found.runs["relu"]}, ax=ax
    )
    ax.set_title("Digits converge to the fixed point of the mean field", loc="left", weight="bold")
    ax.set_ylabel("distance from the fixed point, " + runs.LABELS["distance"])
    ax.set_xlabel(
        f"layer\n{_DIGITS} digits, width {WIDTH}; mean and 90 % of {_DIGITS_NETWORKS} networks"
    )


def _draw_comparison(ax: Axes, comparison: LinearRuns) -> None:
    vanilla, normalised = comparison.vanilla, comparison.normalised
    width, n, layers = vanilla.chain.width, vanilla.chain.batch, vanilla.layers
    ax.set_prop_cycle(color=[_LINEAR_COLOUR, _VANILLA_COLOUR])
    runs.trajectory({"batch norm": normalised, "no normalization": vanilla}, ax=ax)
    exact = np.sqrt(vanilla_deviation(width, n, layers))
    ax.plot(layers, exact, "k--", linewidth=1.2, label="no normalization, exact r.m.s.")
    scale = np.sqrt(n * (n + 2) / 3)
    ax.plot(
        layers, scale * equation_6(width, layers), color="0.35", linestyle=":",
        label="eq. (6), ∝ exp(depth / width)",
    )  # fmt: skip
    ax.set_title(
        "The error grows without batch norm and stays constant with it", loc="left", weight="bold"
    )
    ax.set_ylabel("error of the mean field, " + runs.LABELS["distance"])
    ax.set_xlabel(
        f"layer\nlinear, {n} samples, width {width}; mean and 90 % of "
        f"{normalised.chains} and {vanilla.chains} networks"
    )
    ax.legend(loc="center right", bbox_to_anchor=(1.0, 0.4), fontsize="small")
