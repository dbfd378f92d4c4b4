"""Pictures of backward passes: gradient norms against depth."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from bnmc._support.arguments import real
from bnmc.chain.chain import Chain
from bnmc.errors import ArgumentTypeError
from bnmc.plot.axes import figure, label_layers
from bnmc.plot.protocols import about_chain

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["gradient_norms"]


class BackwardRun(Protocol):
    """A backward pass to draw: `Backpropagation`, or any object with its attributes."""

    @property
    def chain(self) -> Chain:
        """The chain."""

    @property
    def log_gradient_norm(self) -> NDArray[np.float64]:
        """½ ln ‖∂L/∂W_l‖², shape (chains, depth)."""


def gradient_norms(
    run: BackwardRun,
    *,
    rate: float | None = None,
    label: str | None = None,
    ax: Axes | None = None,
    level: float = 0.9,
) -> Axes:
    r"""Draw the logarithm of the gradient norm against depth: its mean over chains, and a band.

    Parameters
    ----------
    run : Backpropagation
    rate : float, optional
        Growth of the squared gradient norm per layer towards the input, > 0, for example
        `bnmc.mean_field.FixedPoint.backward_rate`. A dashed line of slope
        :math:`-\tfrac12 \ln(\text{rate})` per layer goes through the mean of the middle layer.
    label : str, optional
        Label of the run in the legend.
    ax : matplotlib.axes.Axes, optional
        Axes to draw in. Default: those of a new figure.
    level : float, default 0.9
        Fraction of the chains in the band, in (0, 1). The edges of the band are the quantiles
        (1 ± level)/2. A single chain has no band.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    MissingExtraError
        If Matplotlib is not installed.
    ArgumentError, ArgumentTypeError
        If `run` is no backward pass, or `rate` or `level` is not allowed.

    Notes
    -----
    Layers in which the gradient of a chain is zero have no mean of logarithms and are left out.

    Examples
    --------
    >>> from bnmc.plot import gradient_norms
    >>> import bnmc
    >>> run = bnmc.backpropagate(bnmc.Chain(300, 10, "relu"), 30, chains=16, rng=0)
    >>> ax = gradient_norms(run, rate=1.696)
    >>> ax.get_xlabel()
    'layer $\\ell$'
    """
    if not hasattr(run, "log_gradient_norm") or not hasattr(run, "chain"):
        raise ArgumentTypeError("run", cast(Any, run), "a result of bnmc.backpropagate")
    level = real("level", level, above=0.0, below=1.0)
    rate = None if rate is None else real("rate", rate, above=0.0)
    norms = run.log_gradient_norm
    chains, depth = norms.shape
    layers = np.arange(depth)
    if ax is None:
        ax = figure()[1][0]
        shown = f"mean and {100 * level:g} % of {chains} networks" if chains > 1 else "1 network"
        ax.set_title(f"{about_chain(run.chain)}: {shown}", fontsize="medium")
    known = np.where(np.isfinite(norms).all(axis=0), norms, np.nan)
    mean = known.mean(axis=0)
    (line,) = ax.plot(layers, mean, label=label or "measured")
    colour: Any = line.get_color()
    if chains > 1:
        low, high = np.quantile(known, [(1 - level) / 2, (1 + level) / 2], axis=0)
        ax.fill_between(layers, low, high, color=colour, alpha=0.2, linewidth=0)
    middle = depth // 2
    if rate is not None and np.isfinite(mean[middle]):
        predicted = mean[middle] - 0.5 * math.log(rate) * (layers - middle)
        ax.plot(
            layers, predicted, "--", color="black", linewidth=1.0,
            label=f"infinite width: squared norm ×{rate:.4g} per layer, towards the input",
        )  # fmt: skip
    label_layers(ax, r"layer $\ell$")
    ax.set_ylabel(r"$\ln\, \|\partial L / \partial W_\ell\|_F$")
    ax.legend(fontsize="small")
    return ax
