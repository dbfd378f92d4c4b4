"""The picture of predicted fluctuations along a path."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from bnmc.errors import ArgumentTypeError
from bnmc.plot.axes import COLOURS, band, figure, label_layers

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Predicted", "predicted_band"]


class Predicted(Protocol):
    """Predictions to draw: `bnmc.mean_field.PathFluctuations`, or an object with its attributes."""

    @property
    def layers(self) -> NDArray[np.int64]:
        """Layers, shape (layers,)."""

    def band(self, width: int, observable: Any = None, *, level: float = 0.9) -> NDArray[Any]:
        """Return the lower and the upper end of the band, shape (2, layers)."""


def predicted_band(
    fluctuations: Predicted,
    width: int,
    observable: Any = None,
    *,
    level: float = 0.9,
    label: str | None = None,
    colour: str = COLOURS[0],
    ax: Axes | None = None,
) -> Axes:
    r"""Draw the predicted median and band of an observable against depth.

    Parameters
    ----------
    fluctuations : PathFluctuations
        The attribute ``fluctuations`` of the result of
        ``MeanField.trajectory(..., fluctuations=True)``.
    width : int
        Width d, >= 1.
    observable : callable or (batch, batch) array_like, optional
        As in `bnmc.mean_field.PathFluctuations.band`. Default: the distance
        :math:`\|G_l - F^l(G_0)\|_F` from the mean field.
    level : float, default 0.9
        Probability of the band, in (0, 1).
    label : str, optional
        Label of the median in the legend.
    colour : str, default "#0072B2"
        Colour of median and band.
    ax : matplotlib.axes.Axes, optional
        Axes to draw in. Default: those of a new figure.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    MissingExtraError
        If Matplotlib is not installed.
    ArgumentError, ArgumentTypeError
        If `fluctuations` are no predictions, or an argument is not allowed.

    Examples
    --------
    >>> import bnmc, numpy as np
    >>> from bnmc.plot import predicted_band
    >>> mean_field = bnmc.MeanField(bnmc.Chain(1000, 3, "tanh"))
    >>> path = mean_field.trajectory(np.diag([1.0, 2.0, 3.0]), 5, rng=0, fluctuations=True)
    >>> ax = predicted_band(path.fluctuations, width=1000)
    >>> ax.get_xlabel(), len(ax.lines), len(ax.collections)
    ('layer', 1, 1)
    """
    if not (hasattr(fluctuations, "band") and hasattr(fluctuations, "layers")):
        raise ArgumentTypeError("fluctuations", fluctuations, "a PathFluctuations")
    low, high = fluctuations.band(width, observable, level=level)
    # The median is the limit of bands of small probability.
    middle = fluctuations.band(width, observable, level=1e-6).mean(axis=0)
    if ax is None:
        ax = figure()[1][0]
        ax.set_title(f"predicted, width {width}, band {level:.0%}", fontsize="medium")
    band(ax, fluctuations.layers, middle, low, high, colour=colour, label=label)
    label_layers(ax)
    ax.set_ylabel(r"$\|G_\ell - F^\ell(G_0)\|_F$" if observable is None else "observable")
    return ax
