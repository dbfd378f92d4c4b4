"""Axes, curves, points and ticks that the pictures of the experiments share."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, SupportsFloat

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnmc.plot.axes import COLOURS, band, estimates, style

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


#: The largest width of a figure, in inches: on a page, small letters then have 8 points.
_PAGE = 9.6

#: Longer labels of vertical axes have two lines.
_LABEL = 30


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
        Size of one of the axes, in inches.  Those of wide figures are smaller, and a single row of
        three or more, if it is wider than a page, is drawn as rows of two.

    Returns
    -------
    (rows, columns) ndarray of matplotlib.axes.Axes
    """
    folds = rows == 1 and columns > 2 and width * columns > _PAGE
    shape = (-(-columns // 2), 2) if folds else (rows, columns)
    smaller = min(0.85 if folds else 1.0, _PAGE / (width * shape[1]))
    if hasattr(figure, "set_size_inches"):
        figure.set_size_inches(min(width * shape[1], _PAGE), height * shape[0] * max(smaller, 0.8))
    axes: NDArray[Any] = figure.subplots(*shape, squeeze=False)
    for ax in axes.flat:
        style(ax)
    for ax in axes.flat[rows * columns :]:
        ax.remove()
    return axes.reshape(rows, -1)[:, :columns]


def label_outer(axes: NDArray[Any], used: int, x: str, y: str) -> None:
    """Label the left and bottom axes of a grid, and hide all after the first `used` axes."""
    for index, ax in enumerate(axes.flat):
        ax.set_visible(index < used)
        if index >= used - axes.shape[1]:
            ax.set_xlabel(x)
        if ax.get_subplotspec().is_first_col():
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
    y = y or ax.get_ylabel()
    if len(y) > _LABEL and "$" not in y:
        y = textwrap.fill(y, len(y) // 2 + 4)
    ax.set(xlabel=x or ax.get_xlabel(), ylabel=y, **settings)
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


def legend_below(figure: Figure, ax: Axes) -> None:
    """Show the legend of some axes below the figure, or beside the third of three axes."""
    handles, labels = ax.get_legend_handles_labels()
    place: Any = ax.get_subplotspec()
    if len(figure.axes) == 3 and place.get_gridspec().nrows == 2:
        figure.legend(handles, labels, loc="center", bbox_to_anchor=(0.76, 0.27))
        return
    inches = 0.6 + 0.08 * max(map(len, labels))
    rows = math.ceil(len(labels) / max(1, figure.bbox.width / figure.dpi // inches))
    columns = math.ceil(len(labels) / rows)
    figure.legend(handles, labels, loc="outside lower center", ncols=columns)


def draw_band(
    ax: Axes, x: ArrayLike, values: NDArray[np.float64], colour: Any, label: str | None, **line: Any
) -> None:
    """Draw means and their intervals, an array of shape (points, 3)."""
    mean, low, high = values.T
    if "linewidth" not in line:  # curves that coincide are drawn inside each other
        line["linewidth"] = max(2.1 - 0.3 * len(ax.lines), 1.2)
    if "marker" in line:
        line.setdefault("markersize", max(8.0 - 1.5 * len(ax.lines), 3.5))
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
