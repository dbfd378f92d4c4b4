"""TODO-DOC bnmc.plot.runs.axes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from bnmc._support.arguments import integer
from bnmc._support.extras import import_extra

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

__all__ = ["COLOURS", "band", "estimates", "figure", "plain_ticks", "style"]

#: Colours that people with any kind of colour vision tell apart (Okabe and Ito).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


def figure(*, columns: int = 1) -> tuple[Figure, list[Axes]]:
    """Return an empty figure and its axes, in the style of this module.

    Parameters
    ----------
    columns : int, default 1
        How many axes, side by side.

    Returns
    -------
    matplotlib.figure.Figure
    list of matplotlib.axes.Axes

    Raises
    ------
    MissingExtraError
        Without Matplotlib.
    ArgumentError, ArgumentTypeError
        If `columns` is no integer >= 1.

    Examples
    --------
    >>> drawn, (left, right) = figure(columns=2)
    >>> line = left.plot([1, 2], [3, 4])
    """
    columns = integer("columns", columns, low=1)
    drawn = import_extra("matplotlib.figure", "plot").Figure(
        figsize=(6.4 * columns, 4.8), layout="constrained", dpi=150
    )
    axes = list(drawn.subplots(1, columns, squeeze=False)[0])
    for ax in axes:
        style(ax)
    return drawn, axes


def style(ax: Axes) -> None:
    """Give axes the style of this module: its colours, a light grid, two spines.

    Parameters
    ----------
    ax : matplotlib.axes.Axes

    Examples
    --------
    >>> ax = figure()[1][0]
    >>> style(ax)
    """
    ax.set_prop_cycle(color=COLOURS)
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(alpha=0.25, linewidth=0.6)


def band(
    ax: Axes,
    x: ArrayLike,
    mean: ArrayLike,
    low: ArrayLike,
    high: ArrayLike,
    *,
    colour: str,
    label: str | None = None,
    **line: Any,
) -> None:
    """Draw a curve in a band of its colour.

    Parameters
    ----------
    ax : matplotlib.axes.Axes
    x, mean, low, high : (n,) array_like
        Points, the curve there, and the edges of its band.
    colour : str
    label : str, optional
        For the legend.
    **line
        What `matplotlib.axes.Axes.plot` takes.

    Examples
    --------
    >>> ax = figure()[1][0]
    >>> band(ax, [0, 1], [2.0, 3.0], [1.5, 2.5], [2.5, 3.5], colour=COLOURS[0], label="mean")
    >>> len(ax.lines), len(ax.collections)
    (1, 1)
    """
    ax.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
    ax.plot(x, mean, color=colour, label=label, **line)


def estimates(
    ax: Axes,
    x: ArrayLike,
    values: ArrayLike,
    low: ArrayLike,
    high: ArrayLike,
    *,
    colour: str,
    label: str | None = None,
    **line: Any,
) -> None:
    """Draw points with intervals.

    Parameters
    ----------
    ax : matplotlib.axes.Axes
    x, values, low, high : (n,) array_like
        Points, the estimates there, and the ends of their intervals; NaN where there are none.
    colour : str
    label : str, optional
        For the legend.
    **line
        What `matplotlib.axes.Axes.errorbar` takes.

    Examples
    --------
    >>> ax = figure()[1][0]
    >>> estimates(ax, [1, 2], [2.0, 3.0], [1.5, 2.9], [2.5, 3.1], colour=COLOURS[0])
    >>> len(ax.containers)
    1
    """
    middle = np.asarray(values, dtype=np.float64)
    reach = np.maximum([middle - np.asarray(low), np.asarray(high) - middle], 0.0)
    settings: dict[str, Any] = {"fmt": "o", "markersize": 4, "capsize": 2.5} | line
    ax.errorbar(x, middle, yerr=reach, color=colour, label=label, **settings)


def plain_ticks(axis: Axis, ticks: ArrayLike | None = None) -> None:
    """Write 200, 500, 1000 … at a logarithmic axis, not 2 × 10².

    Parameters
    ----------
    axis : matplotlib.axis.Axis
        Such as ``ax.xaxis``; its scale has been set.
    ticks : (n,) array_like, optional
        Where to write; at 1, 2 and 5 times powers of ten unless given.

    Examples
    --------
    >>> ax = figure()[1][0]
    >>> ax.set_xscale("log")
    >>> plain_ticks(ax.xaxis, [100, 400])
    >>> ax.get_xticks().tolist()
    [100.0, 400.0]
    """
    ticker = import_extra("matplotlib.ticker", "plot")
    if ticks is None:
        axis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
    else:
        axis.set_major_locator(ticker.FixedLocator(np.asarray(ticks, dtype=np.float64)))
    axis.set_major_formatter(ticker.FormatStrFormatter("%g"))
    axis.set_minor_formatter(ticker.NullFormatter())
    axis.set_minor_locator(ticker.NullLocator())
