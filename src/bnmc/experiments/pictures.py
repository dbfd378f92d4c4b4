"""Axes, curves, points and ticks that the pictures of the experiments share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, SupportsFloat

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnmc.plot.axes import COLOURS, band, estimates, style

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


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


def curve(data: xarray.Dataset, name: str, kind: str = "") -> NDArray[np.float64]:
    """Return a variable and the ends of its intervals, stacked along a new last axis.

    ``kind="_band"``: the ends between which 90 % of the networks are.
    """
    return np.stack([data[name], data[f"{name}{kind}_low"], data[f"{name}{kind}_high"]], axis=-1)


def lines(
    ax: Axes,
    data: xarray.Dataset,
    name: str,
    x: str,
    by: str,
    *,
    kind: str = "",
    text: str = "{}",
    colours: Sequence[Any] = COLOURS,
    **line: Any,
) -> None:
    """Draw a variable with its intervals against the axis `x`, a curve for each label of `by`.

    Parameters
    ----------
    ax : matplotlib.axes.Axes
    data : xarray.Dataset
        The variable has the axes `x` and `by` there.
    name, x, by : str
    kind : str, default ""
        As `curve` takes it.
    text : str, default "{}"
        Format of the labels in the legend.
    colours : sequence, optional
        Colours in turn.
    **line
        As Matplotlib's ``plot`` takes it.
    """
    for k, label in enumerate(data[by].values):
        values = curve(data.sel({by: label}), name, kind)
        colour = colours[k % len(colours)]
        draw_band(ax, data[x].values, values, colour, text.format(label), **line)


def points(ax: Axes, data: xarray.Dataset, name: str, x: str, **line: Any) -> None:
    """Draw a variable over one axis with its intervals, as `bnmc.plot.axes.estimates` does."""
    estimates(ax, data[x].values, *curve(data, name).T, **line)


def shades(count: int) -> list[str]:
    """Return colours from dark to light, for labels in an order."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return list(map(to_hex, colormaps["viridis"](np.linspace(0.0, 0.85, count))))


def finish(
    ax: Axes, title: str, x: str = "", y: str = "", *, legend: bool = False, **settings: Any
) -> None:
    """Set a title at the left, labels, limits and scales of axes, and a legend in small letters."""
    labels = {"xlabel": x or ax.get_xlabel(), "ylabel": y or ax.get_ylabel()}
    ax.set(**labels, **settings)
    ax.set_title(title, loc="left")
    if legend:
        ax.legend(fontsize="small")


def signed(value: SupportsFloat, digits: int) -> str:
    """Return a number with a minus sign, as Matplotlib writes ticks, in place of a hyphen."""
    return f"{float(value):.{digits}f}".replace("-", "\N{MINUS SIGN}")


def about(data: xarray.Dataset, text: str, space: str = " ") -> str:
    """Return a heading: a format of the data's attributes, and what curves and bands are."""
    chains = data.attrs.get("chains")
    return f"{text.format(**data.attrs)}:{space}mean of {chains} networks, 95 % interval"


def legend_below(figure: Figure, ax: Axes, columns: int | None = None) -> None:
    """Show the legend of some axes below the figure, by default in one row."""
    handles, labels = ax.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=columns or len(labels))


def draw_band(
    ax: Axes, x: ArrayLike, values: NDArray[np.float64], colour: Any, label: str | None, **line: Any
) -> None:
    """Draw means and their intervals, an array of shape (points, 3)."""
    mean, low, high = values.T
    if ax.get_yscale() == "log":  # a logarithmic axis cannot show values <= 0
        low = np.maximum(low, np.finfo(float).tiny)
    band(ax, x, mean, low, high, colour=colour, label=label, **line)


def part_linear(ax: Axes, axis: str, threshold: float) -> None:
    """Make an axis that has its label logarithmic beyond ±threshold, and linear in a grey band."""
    getattr(ax, f"set_{axis}scale")("symlog", linthresh=threshold)
    limits, label = (getattr(ax, f"get_{axis}{name}")() for name in ("lim", "label"))
    span = ax.axhspan if axis == "y" else ax.axvspan
    span(-threshold, threshold, color="black", alpha=0.08, linewidth=0)
    ax.set(**{f"{axis}lim": limits, f"{axis}label": f"{label} (grey: linear)"})


def label_widths(ax: Axes, widths: Sequence[int] | NDArray[Any]) -> None:
    """Make the horizontal axis logarithmic, with one tick per width."""
    from matplotlib.ticker import NullLocator

    ax.set_xscale("log", base=2)
    ax.set_xticks(widths, [str(width) for width in widths])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlabel("width $d$")
