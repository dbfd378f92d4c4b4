"""Axes, bands and ticks that the pictures of the experiments share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnmc.plot.axes import band, plain_ticks, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["axes_of", "draw_band", "label_outer", "label_widths", "logarithmic"]


def axes_of(
    figure: Figure, columns: int, rows: int = 1, *, width: float = 5.2, height: float = 4.0
) -> NDArray[Any]:
    """Divide a figure into axes in the style of `bnmc.plot`.

    Parameters
    ----------
    figure : matplotlib.figure.Figure or SubFigure
        A Figure is resized; a SubFigure keeps its size.
    columns, rows : int
    width, height : float
        Size of one of the axes, in inches.

    Returns
    -------
    (rows, columns) ndarray of matplotlib.axes.Axes
    """
    if hasattr(figure, "set_size_inches"):
        figure.set_size_inches(width * columns, height * rows)
    axes: NDArray[Any] = figure.subplots(rows, columns, squeeze=False)
    for ax in axes.flat:
        style(ax)
    return axes


def label_outer(axes: NDArray[Any], used: int, x: str, y: str) -> None:
    """Label the left and bottom axes of a grid, and hide all after the first `used` axes."""
    for index, ax in enumerate(axes.flat):
        ax.set_visible(index < used)
        if index >= used - axes.shape[1]:
            ax.set_xlabel(x)
        if index % axes.shape[1] == 0:
            ax.set_ylabel(y)


def draw_band(
    ax: Axes, x: ArrayLike, found: NDArray[np.float64], colour: Any, label: str | None, **line: Any
) -> None:
    """Draw means and their intervals, an array of shape (points, 3)."""
    mean, low, high = found.T
    if ax.get_yscale() == "log":  # a logarithmic axis cannot show values <= 0
        low = np.maximum(low, np.finfo(float).tiny)
    band(ax, x, mean, low, high, colour=colour, label=label, **line)


def logarithmic(ax: Axes) -> None:
    """Make the vertical axis logarithmic; on a short axis, label 0.1, 0.2, 0.5 and so on."""
    ax.set_yscale("log")
    low, high = ax.get_ylim()
    if high < 1000 * low:
        plain_ticks(ax.yaxis)


def label_widths(ax: Axes, widths: Sequence[int] | NDArray[Any]) -> None:
    """Make the horizontal axis logarithmic, with one tick per width."""
    from matplotlib.ticker import NullLocator

    ax.set_xscale("log", base=2)
    ax.set_xticks(widths, [str(width) for width in widths])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlabel("width $d$")
