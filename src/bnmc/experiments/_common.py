"""Means over independent networks with their intervals, and how they are drawn."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnmc.errors import ArgumentTypeError
from bnmc.estimate.estimate import Estimate
from bnmc.experiments._experiment import Variable
from bnmc.plot.axes import band

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes

__all__ = [
    "LEVEL",
    "banded",
    "chosen",
    "curve",
    "draw_band",
    "ends",
    "label_widths",
    "logarithmic",
    "with_ends",
]


#: Level of all intervals.
LEVEL = 0.95

_Sizes = TypeVar("_Sizes")


def chosen(sizes: tuple[_Sizes, _Sizes], full: object) -> _Sizes:
    """Return the first sizes, or the second if `full`."""
    if not isinstance(full, (bool, np.bool_)):
        raise ArgumentTypeError("full", full, "a bool")
    return sizes[bool(full)]


def banded(samples: ArrayLike) -> NDArray[np.float64]:
    """Return means over the first axis, of independent networks, and the ends of their intervals.

    The last axis of what is returned has mean, lower and upper end.
    """
    from scipy.special import stdtrit

    values = np.asarray(samples, dtype=np.float64)
    mean = values.mean(axis=0)
    stderr = values.std(axis=0, ddof=1) / np.sqrt(len(values))
    reach = float(stdtrit(len(values) - 1, (1 + LEVEL) / 2)) * stderr
    return np.stack([mean, mean - reach, mean + reach], axis=-1)


def ends(found: Iterable[Estimate]) -> NDArray[np.float64]:
    """Return the values and intervals of estimates: (estimates, 3)."""
    return np.array([(one.value, *one.ci) for one in found])


def with_ends(
    name: str, dims: tuple[str, ...], values: ArrayLike, long_name: str
) -> dict[str, Variable]:
    """Return variables for means and the ends of their intervals, (..., 3)."""
    mean, low, high = np.moveaxis(np.asarray(values, dtype=np.float64), -1, 0)
    return {
        name: Variable(dims, mean, long_name),
        f"{name}_low": Variable(dims, low, f"{long_name}, lower end of 95 %"),
        f"{name}_high": Variable(dims, high, f"{long_name}, upper end of 95 %"),
    }


def curve(data: xarray.Dataset, name: str) -> NDArray[np.float64]:
    """Return what `with_ends` took."""
    return np.stack([data[name], data[f"{name}_low"], data[f"{name}_high"]], axis=-1)


def draw_band(
    ax: Axes, x: ArrayLike, found: NDArray[np.float64], colour: Any, label: str | None, **line: Any
) -> None:
    """Draw what `banded` returned, (points, 3)."""
    mean, low, high = found.T
    if ax.get_yscale() == "log":  # what is not positive has no place there
        low = np.maximum(low, np.finfo(float).tiny)
    band(ax, x, mean, low, high, colour=colour, label=label, **line)


def logarithmic(ax: Axes) -> None:
    """Make the vertical axis logarithmic; write 0.1, 0.2, 0.5 … where it has few decades."""
    from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter

    ax.set_yscale("log")
    low, high = ax.get_ylim()
    if high < 1000 * low:
        ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        ax.yaxis.set_major_formatter(FormatStrFormatter("%g"))
        ax.yaxis.set_minor_formatter(NullFormatter())


def label_widths(ax: Axes, widths: Sequence[int] | NDArray[Any]) -> None:
    """Make the horizontal axis logarithmic, with the widths on it."""
    ax.set_xscale("log", base=2)
    ax.set_xticks(widths, [str(width) for width in widths])
    ax.xaxis.set_minor_locator(_no_ticks())
    ax.set_xlabel("width $d$")


def _no_ticks() -> Any:
    from matplotlib.ticker import NullLocator

    return NullLocator()
