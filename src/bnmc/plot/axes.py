"""Figures, axes and marks in the style that all pictures share, and the check of results."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from bnmc._support.arguments import choice, integer
from bnmc._support.extras import import_extra
from bnmc.chain.chain import Chain, Network
from bnmc.errors import ArgumentError, ArgumentTypeError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

#: Colours for any kind of colour vision (Okabe and Ito, *Color universal design*, 2008).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")

#: The colour of each named activation, in every picture.
_OF_ACTIVATIONS = {
    "relu": "#0072B2", "tanh": "#D55E00", "sigmoid": "#009E73", "sin": "#CC79A7",
    "selu": "#E69F00", "celu": "#56B4E9", "linear": "#555555", "gelu": "#9C27B0",
    "silu": "#6B3E00", "elu": "#1F1FB4", "leaky_relu": "#7AB800", "abs": "#B00030",
    "erf": "#8C8C00",
}  # fmt: skip

#: Widths of a column and of a page of a paper, in inches, and the height of axes over their width.
_PAPER = {"column": 3.3, "page": 6.8}
_ASPECT = 0.75

#: Size of letters in figures of these widths, in points.
_LETTERS = 8

#: Held while a file with fonts is written, since Matplotlib has one setting of it.
_WRITING = threading.Lock()

#: Multiples of powers of ten for the ticks of a logarithmic axis, for shorter and shorter axes.
_MULTIPLES: tuple[tuple[float, ...], ...] = (
    (1.0, 2.0, 5.0),
    (1.0, 2.0, 3.0, 5.0, 7.0),
    (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0),
    tuple(np.arange(10, 100, 5) / 10.0),
    tuple(np.arange(10, 100) / 10.0),
)


def figure(*, columns: int = 1, width: str | None = None) -> tuple[Figure, list[Axes]]:
    """Return an empty figure and its axes, in the style of this package.

    Its method ``savefig`` writes PDF and PostScript files with fonts of Type 42 (TrueType).

    Parameters
    ----------
    columns : int, default 1
        Number of axes, side by side, >= 1.
    width : {"column", "page"}, optional
        Width of a column (3.3 inches) or of a page (6.8 inches) of a paper, with labels of 8
        points.  Default: 6.4 inches for each of the axes.

    Returns
    -------
    matplotlib.figure.Figure
    list of matplotlib.axes.Axes

    Raises
    ------
    MissingExtraError
        If Matplotlib is not installed.
    ArgumentError, ArgumentTypeError, UnknownNameError
        If `columns` is no integer >= 1, or `width` is no such name.

    Examples
    --------
    >>> from bnmc.plot import figure
    >>> picture, (left, right) = figure(columns=2, width="page")
    >>> line = left.plot([1, 2], [3, 4])
    >>> picture.get_size_inches()
    array([6.8 , 2.55])
    """
    columns = integer("columns", columns, low=1)
    total = 6.4 * columns if width is None else _PAPER[choice("width", width, _PAPER)]
    picture = empty_figure(figsize=(total, _ASPECT * total / columns), dpi=150)
    axes = list(picture.subplots(1, columns, squeeze=False)[0])
    for ax in axes:
        style(ax)
        if width is not None:
            ax.tick_params(labelsize=_LETTERS)
            for text in (ax.xaxis.label, ax.yaxis.label):
                text.set_fontsize(_LETTERS)
    return picture, axes


def empty_figure(**options: Any) -> Figure:
    """Return a figure without axes, whose files in PDF and PostScript have fonts of Type 42."""
    made: Figure = import_extra("matplotlib.figure", "plot").Figure(layout="constrained", **options)
    made.savefig = functools.partial(_save, made)  # type: ignore[method-assign]
    return made


def _save(figure: Figure, file: Any, **options: Any) -> None:
    """Save a figure; publishers refuse fonts of Type 3, which are Matplotlib's default."""
    kind = str(options.get("format") or (Path(file).suffix if isinstance(file, str | Path) else ""))
    save = functools.partial(type(figure).savefig, figure, file, **options)
    if kind.lower().removeprefix(".") not in ("pdf", "ps", "eps"):
        save()
        return
    with (
        _WRITING,
        import_extra("matplotlib", "plot").rc_context({"pdf.fonttype": 42, "ps.fonttype": 42}),
    ):
        save()


def colours_of(activations: Iterable[Any]) -> list[str]:
    """Return a colour for each activation; others than the named ones get the unused of `COLOURS`.

    A name may have an argument: "tanh(x/2)" has the colour of "tanh".
    """
    named = [_OF_ACTIVATIONS.get(str(name).partition("(")[0]) for name in activations]
    unused = [colour for colour in COLOURS if colour not in named] or list(COLOURS)
    others = iter(range(len(named)))
    return [colour or unused[next(others) % len(unused)] for colour in named]


def label_ends(
    ax: Axes, ends: Sequence[float], labels: Sequence[str], colours: Sequence[str]
) -> None:
    """Label curves at their ends at x = 0, with lines from the labels to the ends.

    The axes need their final limits, with room for the labels at negative x.
    """
    low, high = ax.get_ylim()
    gap = 0.066 * (high - low)
    left, right = ax.get_xlim()
    place = -0.04 * (right - left)
    order = np.argsort(ends)
    heights = np.asarray(ends, dtype=np.float64)[order]
    spread = np.maximum.accumulate(heights - gap * np.arange(len(order))) + gap * np.arange(
        len(order)
    )
    spread -= max(0.0, spread[-1] - (high - gap))
    for rank, height in zip(order, spread, strict=True):
        ax.annotate(
            labels[rank], (0.0, ends[rank]), (place, height), color=colours[rank], ha="right",
            va="center", fontsize="small",
            # The lines begin at the right ends of the labels.
            arrowprops={
                "arrowstyle": "-", "color": colours[rank], "linewidth": 0.6, "relpos": (1.0, 0.5)
            },
        )  # fmt: skip


def style(ax: Axes) -> None:
    """Give axes the style of this package: its colours, a light grid and two spines.

    Parameters
    ----------
    ax : matplotlib.axes.Axes

    Examples
    --------
    >>> from bnmc.plot import figure, style
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
    """Draw a curve and a band in its colour.

    Parameters
    ----------
    ax : matplotlib.axes.Axes
    x : (n,) array_like
        Points.
    mean : (n,) array_like
        Values of the curve.
    low, high : (n,) array_like
        Edges of the band.
    colour : str
        Colour of the curve; the band is transparent.
    label : str, optional
        Label of the curve in the legend.
    **line
        Arguments of `matplotlib.axes.Axes.plot`.

    Examples
    --------
    >>> from bnmc.plot import COLOURS, band, figure
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
    """Draw estimates with intervals.

    Parameters
    ----------
    ax : matplotlib.axes.Axes
    x : (n,) array_like
        Points.
    values : (n,) array_like
        Estimates; NaN for a missing one.
    low, high : (n,) array_like
        Ends of the intervals.
    colour : str
        Colour of marks and intervals.
    label : str, optional
        Label in the legend.
    **line
        Arguments of `matplotlib.axes.Axes.errorbar`.

    Examples
    --------
    >>> from bnmc.plot import COLOURS, estimates, figure
    >>> ax = figure()[1][0]
    >>> estimates(ax, [1, 2], [2.0, 3.0], [1.5, 2.9], [2.5, 3.1], colour=COLOURS[0])
    >>> len(ax.containers)
    1
    """
    middle = np.asarray(values, dtype=np.float64)
    reach = np.maximum([middle - np.asarray(low), np.asarray(high) - middle], 0.0)
    settings: dict[str, Any] = {"fmt": "o", "markersize": 4, "capsize": 2.5} | line
    ax.errorbar(x, middle, yerr=reach, color=colour, label=label, **settings)


def label_modules(ax: Axes, names: Sequence[str]) -> None:
    """Label the horizontal axis of layers 1, 2 … with at most 8 names; long ones lose a part."""
    step = -(-len(names) // 8)
    texts = [name if len(name) <= 24 else f"{name[:5]}…{name[-18:]}" for name in names[::step]]
    slanted = sum(map(len, texts)) > 32
    ax.set_xticks(
        range(1, len(names) + 1, step), texts, rotation=40 * slanted,
        ha="right" if slanted else "center", rotation_mode="anchor", fontsize="small",
    )  # fmt: skip
    ax.set_xlabel("layer")


def label_layers(ax: Axes, label: str = "layer") -> None:
    """Label the horizontal axis with layers, with integers as ticks."""
    ticker = import_extra("matplotlib.ticker", "plot")
    ax.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
    ax.set_xlabel(label)


def mark_unstable(ax: Axes) -> None:
    """Draw a line at the factor 1; if a curve exceeds 1, mark the range above as unstable."""
    exceeded = ax.dataLim.y1 > 1.0
    ax.axhline(1.0, color="black", linewidth=0.8)
    if exceeded:
        limits = ax.get_ylim()
        ax.axhspan(1.0, max(limits), color="0.9", linewidth=0, zorder=0)
        ax.set_ylim(limits)
        ax.annotate(
            "unstable", (0.01, 1.0), xycoords=("axes fraction", "data"), xytext=(0, 3),
            textcoords="offset points", va="bottom", color="0.3",
        )  # fmt: skip


def plain_ticks(axis: Axis, ticks: ArrayLike | None = None) -> None:
    """Write the ticks of a logarithmic axis as 200, 500, 1000 … instead of 2 × 10².

    Parameters
    ----------
    axis : matplotlib.axis.Axis
        An axis, such as ``ax.xaxis``, with a logarithmic scale.
    ticks : (n,) array_like, optional
        Positions of the ticks. Default: 1, 2 and 5 times powers of ten; on an axis that has fewer
        than three of them, further multiples.

    Examples
    --------
    >>> from bnmc.plot import figure, plain_ticks
    >>> ax = figure()[1][0]
    >>> ax.set_xscale("log")
    >>> plain_ticks(ax.xaxis, [100, 400])
    >>> ax.get_xticks().tolist()
    [100.0, 400.0]
    """
    ticker = import_extra("matplotlib.ticker", "plot")
    if ticks is None:
        ax = axis.axes
        low, high = sorted(ax.get_xlim() if axis is ax.xaxis else ax.get_ylim())
        axis.set_major_locator(ticker.LogLocator(subs=_multiples(low, high)))
    else:
        axis.set_major_locator(ticker.FixedLocator(np.asarray(ticks, dtype=np.float64)))
    axis.set_major_formatter(ticker.FormatStrFormatter("%g"))
    axis.set_minor_formatter(ticker.NullFormatter())
    axis.set_minor_locator(ticker.NullLocator())


def logarithmic(ax: Axes) -> None:
    """Make the vertical axis logarithmic; below 3 decades, label 0.1, 0.2, 0.5 and so on."""
    if ax.get_yscale() != "log":
        ax.set_yscale("log")
    low, high = ax.get_ylim()
    if high < 1000 * low:
        plain_ticks(ax.yaxis)


def _multiples(low: float, high: float) -> tuple[float, ...]:
    """Return the fewest multiples of powers of ten with at least three values in an interval."""
    decades = np.arange(np.floor(np.log10(low)), np.ceil(np.log10(high)) + 1)
    for multiples in _MULTIPLES:
        values = np.multiply.outer(10.0**decades, multiples)
        if np.count_nonzero((low <= values) & (values <= high)) >= 3:
            break
    return multiples


def _has_attributes(value: Any, *names: str) -> bool:
    """Whether a value has attributes, so that it can be drawn as a result of any class."""
    try:
        return all(hasattr(value, name) for name in names)
    except Exception:  # a foreign object may raise anything
        return False


def require_attributes(argument: str, value: Any, allowed: str, *names: str) -> None:
    """Raise if an argument lacks an attribute of a result."""
    if not _has_attributes(value, *names):
        raise ArgumentTypeError(argument, value, allowed)


def as_results(argument: str, value: Any, noun: str, allowed: str, *names: str) -> list[Any]:
    """Return the results in an argument: one, or an iterable of them."""
    several = isinstance(value, Iterable) and not _has_attributes(value, *names)
    results = list(value) if several else [value]
    for result in results:
        require_attributes(argument, result, allowed, *names)
    if not results:
        raise ArgumentError(argument, value, f"at least one {noun}")
    return results


def about_chain(chain: Chain) -> str:
    """Return activation, normalization, width and batch of a chain, for a title."""
    norm = norm_in_words(chain.norm)
    return f"{chain.activation.name}, {norm}, width {chain.width}, batch {chain.batch}"


def norm_in_words(norm: str) -> str:
    """Return a normalization in words, for a title."""
    named = {"batch": "batch norm", "batch-uncentred": "uncentred batch norm", "none": "no norm"}
    return named.get(norm, norm)


def about_network(network: Network) -> str:
    """Return its chain, or if layers differ their number and the batch, for a title."""
    if network.is_repeated:
        return about_chain(network.chain)
    return f"network of {network.depth} layers, batch {network.batch}"


def about_band(networks: Iterable[int], level: float) -> str:
    """Return the meaning of line and band, for a title; a single network has no band."""
    numbers = sorted(set(networks))
    if numbers == [1]:
        return "1 network"
    return f"mean and {100 * level:g} % of {' or '.join(map(str, numbers))} networks"


def draw_mean(
    ax: Axes, x: ArrayLike, curves: Any, label: str | None = None, colour: Any = None
) -> Any:
    """Draw a mean and, if it has a width, the band between two edges; return their colour."""
    mean, low, high = curves
    (line,) = ax.plot(x, mean, color=colour, label=label)
    colour = line.get_color()
    if (high > low).any():
        ax.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
    return colour
