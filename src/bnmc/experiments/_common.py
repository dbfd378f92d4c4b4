"""Means over independent networks with their intervals, and how they are drawn."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnmc.estimate import Estimate
from bnmc.experiments._experiment import Variable
from bnmc.plot import band

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["END", "LEVEL", "banded", "draw_band", "ends", "label_widths", "logarithmic", "worded"]

#: Level of all intervals.
LEVEL = 0.95

#: The axis of a mean and its interval.
END = Variable(("end",), ["mean", "low", "high"], "mean, and the ends of its 95 % interval", "")


def banded(samples: ArrayLike) -> NDArray[np.float64]:
    """Return means over the first axis, of independent networks, and Student's intervals.

    The last axis of what is returned is `END`.
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


def worded(found: Estimate, spec: str = ".4g") -> str:
    """Write an estimate with its interval."""
    low, high = found.ci
    return f"{found.value:{spec}} [{low:{spec}}, {high:{spec}}]"


def draw_band(
    ax: Axes, x: ArrayLike, curve: NDArray[np.float64], colour: str, label: str | None, **line: Any
) -> None:
    """Draw what `banded` returned, (points, 3)."""
    mean, low, high = curve.T
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
