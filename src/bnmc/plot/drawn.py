"""`Drawn`, `Curves` and `Kernels`: the bases of results that draw themselves."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from itertools import cycle
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from bnmc.estimate.estimate import Estimates
from bnmc.plot import axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Drawn(ABC):
    """A result that draws itself on axes."""

    def plot(self, *, ax: Axes | None = None) -> Axes:
        """Draw the result.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            Axes to draw on; by default those of a new figure.

        Returns
        -------
        matplotlib.axes.Axes

        Raises
        ------
        MissingExtraError
            Without Matplotlib (extra ``plot``).
        """
        if ax is None:
            ax = axes.figure()[1][0]
            ax.set_title(self._about, fontsize="medium")
        self._draw(ax)
        return ax

    @property
    def _about(self) -> str:
        """Title of a new figure."""
        return ""

    @abstractmethod
    def _draw(self, ax: Axes) -> None:
        """Draw the result on axes."""


class Curves(Drawn):
    """A result with curves over an axis.

    An array (chains, n) is the band that contains 90 % of the chains, with their median; estimates
    have bars, their intervals.
    """

    #: The attribute with the axis, and its label.
    _axis: ClassVar[tuple[str, str]]
    #: Labels of the curves by attribute.
    _curves: ClassVar[Mapping[str, str]]
    #: The scale of the axis of the curves, "linear" or "log".
    _scale: ClassVar[str] = "linear"

    def _draw(self, ax: Axes) -> None:
        attribute, label = self._axis
        x = np.asarray(getattr(self, attribute))
        for (name, text), colour in zip(self._curves.items(), axes.COLOURS, strict=False):
            _draw_curve(ax, x, getattr(self, name), text, colour)
        ax.set_xlabel(label)
        ax.set_yscale(self._scale)
        ax.legend(fontsize="small")


def _draw_curve(ax: Axes, x: Any, values: Any, text: str, colour: str) -> None:
    if isinstance(values, Estimates | tuple):
        numbers = np.transpose([(estimate.value, *estimate.ci) for estimate in values])
        axes.estimates(ax, x, *numbers, colour=colour, label=text)
    elif values.ndim == 2:
        low, middle, high = np.quantile(values, [0.05, 0.5, 0.95], axis=0)
        axes.band(ax, x, middle, low, high, colour=colour, label=text)
    else:
        ax.plot(x, values, color=colour, label=text)


class Kernels(Drawn):
    """A result with the kernel of each network, `kernels`: an image of their median."""

    kernels: Any

    def _draw(self, ax: Axes) -> None:
        image = ax.imshow(np.median(self.kernels, axis=0))
        label = f"kernel, median of {len(self.kernels)} networks"
        ax.figure.colorbar(image, ax=ax, label=label)
        ax.grid(visible=False)
        ax.locator_params(integer=True)
        ax.set(xlabel="sample", ylabel="sample")


#: Most curves of `draw_outputs`.
_MOST_CURVES = 24


def draw_outputs(ax: Axes, x: Any, middle: Any, low: Any, high: Any) -> None:
    """Draw outputs over time, arrays (times, points), as curves with bands: the first 24 points."""
    for point, colour in zip(range(min(middle.shape[1], _MOST_CURVES)), cycle(axes.COLOURS)):
        axes.band(ax, x, middle[:, point], low[:, point], high[:, point], colour=colour)
