"""Results of this package that draw themselves."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

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
        from bnmc.plot.axes import figure

        if ax is None:
            ax = figure()[1][0]
        self._draw(ax)
        return ax

    @abstractmethod
    def _draw(self, ax: Axes) -> None:
        """Draw the result on axes."""
