"""The picture of the stability atlas; needs the extra ``plot``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from bnmc.errors import ArgumentError, ArgumentTypeError
from bnmc.mean_field.stability import Stability

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot_stability"]

_STYLES = ("-", "--", ":", "-.")


def plot_stability(entries: Stability | Iterable[Stability], *, ax: Axes | None = None) -> Axes:
    """Draw the moduli of the eigenvalues against the batch size, and where they cross 1.

    Parameters
    ----------
    entries : Stability or several
        As `stability` and `atlas` return them. One colour an activation, one kind of line an
        eigenvalue; a dot where stability changes, with its batch size.
    ax : matplotlib.axes.Axes, optional
        Where to draw; a new figure unless given.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    MissingExtraError
        Without Matplotlib.
    ArgumentError, ArgumentTypeError
        If `entries` are no such results, none at all, or of different norms.

    Examples
    --------
    >>> from bnmc.mean_field.stability import atlas
    >>> ax = plot_stability(atlas(["relu", "silu"], [4, 8, 16, 32, 64]))
    >>> ax.get_xscale(), ax.get_xlabel(), ax.get_ylabel()
    ('log', 'batch size $n$', 'modulus of the eigenvalue')
    """
    from bnmc.plot import COLOURS, figure

    drawn = _several(entries)
    if ax is None:
        ax = figure()[1][0]
    for index, entry in enumerate(drawn):
        colour = COLOURS[index % len(COLOURS)]
        for kind, label in enumerate(entry.labels):
            exists = np.array([len(point.eigenvalues) > kind for point in entry.points])
            ax.plot(
                entry.batches[exists],
                np.abs(entry.eigenvalues[exists, kind]),
                _STYLES[kind % len(_STYLES)],
                color=colour,
                label=f"{entry.activation} ${label}$".replace("λ", r"\lambda"),
            )
        for crossing in entry.crossings:
            height = abs(crossing.value)
            ax.plot([crossing.batch], [height], "o", color=colour)
            ax.annotate(
                f"n = {crossing.batch}",
                (crossing.batch, height),
                xytext=(0, 6),
                textcoords="offset points",
                ha="right",
                color=colour,
            )
    ax.axhline(1.0, color="black", linewidth=0.8)
    ax.set_xscale("log")
    ax.set_xlabel("batch size $n$")
    ax.set_ylabel("modulus of the eigenvalue")
    ax.set_title(f'Stability of the symmetric fixed point, norm "{drawn[0].norm}"')
    ax.legend()
    return ax


def _several(entries: object) -> list[Stability]:
    several = [entries] if isinstance(entries, Stability) else entries
    if not isinstance(several, Iterable):
        raise ArgumentTypeError("entries", entries, "a Stability or several")
    checked = []
    for entry in several:
        if not isinstance(entry, Stability):
            raise ArgumentTypeError("entries", entry, "a Stability or several")
        checked.append(entry)
    if not checked:
        raise ArgumentError("entries", entries, "at least one Stability")
    norms = sorted({entry.norm for entry in checked})
    if len(norms) > 1:
        raise ArgumentError("entries", norms, "results of one norm")
    return checked
