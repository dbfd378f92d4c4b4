"""Pictures of measurements of PyTorch models: ranks and gradient norms against the layers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from bnmc._support.arguments import real
from bnmc.errors import ArgumentTypeError
from bnmc.plot.axes import COLOURS, band, figure, label_layers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["measurement"]


class Measured(Protocol):
    """A measurement to draw: `bnmc.torch.Measurement`, or any object with its attributes."""

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the layers."""

    @property
    def rank(self) -> NDArray[Any]:
        """Ranks, shape (networks, layers)."""

    @property
    def soft_rank(self) -> NDArray[Any]:
        """Soft ranks, of the same shape."""

    @property
    def rank_bound(self) -> NDArray[Any]:
        """Rank bounds, of the same shape."""

    @property
    def layer_gradient_norm(self) -> NDArray[np.float64] | None:
        """Gradient norms, of the same shape; None without a loss."""

    @property
    def comparable(self) -> tuple[int, ...]:
        """Layers whose gradients can be compared."""


def measurement(found: Measured, *, rate: float | None = None) -> Figure:
    r"""Draw ranks, and gradient norms if there are any, against the layers.

    Lines are means over networks, and bands reach from the smallest to the largest value.

    Parameters
    ----------
    found : bnmc.torch.Measurement
    rate : float, optional
        Growth of the squared gradient norm per layer towards the input, > 0. A dashed line of this
        slope goes through the middle one of the comparable layers.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    MissingExtraError
        If Matplotlib is not installed.
    ArgumentError, ArgumentTypeError
        If `found` is no measurement, or `rate` is not allowed.

    Examples
    --------
    >>> import torch, bnmc
    >>> from bnmc.plot import measurement
    >>> model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    >>> drawn = measurement(bnmc.torch.measure(model, torch.randn(4, 8)))
    >>> len(drawn.axes)
    1
    """
    if not all(hasattr(found, name) for name in ("layers", "soft_rank", "layer_gradient_norm")):
        raise ArgumentTypeError("found", cast(Any, found), "a result of bnmc.torch.measure")
    rate = None if rate is None else real("rate", rate, above=0.0)
    norms = found.layer_gradient_norm
    drawn, axes = figure(columns=1 if norms is None else 2)
    depth = np.arange(1, len(found.layers) + 1)
    curves = {"rank": found.rank, "soft rank": found.soft_rank, "rank bound": found.rank_bound}
    for (label, values), colour in zip(curves.items(), COLOURS, strict=False):
        _curve(axes[0], depth, values, colour, label)
    axes[0].set_ylabel("rank")
    axes[0].set_ylim(bottom=0.0)
    if norms is not None:
        _gradients(axes[1], depth, norms, found.comparable, rate)
    for ax in axes:
        label_layers(ax)
        if ax.get_legend_handles_labels()[0]:
            ax.legend(fontsize="small")
    return drawn


def _gradients(
    ax: Axes,
    depth: NDArray[Any],
    norms: NDArray[np.float64],
    comparable: tuple[int, ...],
    rate: float | None,
) -> None:
    present = np.array([all(0.0 < one < math.inf for one in column) for column in norms.T])
    ax.set_ylabel(r"$\|\partial L / \partial W\|_F$")
    if not present.any():
        return
    ax.set_yscale("log")
    _curve(ax, depth[present], norms[:, present], COLOURS[0], "measured")
    compared = [layer for layer in comparable if present[layer]]
    if rate is not None and len(compared) > 1:
        middle = compared[len(compared) // 2]
        centre = math.exp(float(np.log(norms[:, middle]).mean()))
        steps = np.array([compared.index(layer) for layer in compared]) - len(compared) // 2
        ax.plot(
            depth[compared], centre * rate ** (-0.5 * steps), "--", color="black", linewidth=1.0,
            label=f"infinite width: squares ×{rate:.4g} per layer, towards the input",
        )  # fmt: skip


def _curve(ax: Axes, x: NDArray[Any], values: NDArray[Any], colour: str, label: str) -> None:
    if len(values) == 1:
        ax.plot(x, values[0], "o-", markersize=3, color=colour, label=label)
    else:
        low, high = values.min(axis=0), values.max(axis=0)
        band(ax, x, values.mean(axis=0), low, high, colour=colour, label=label)
