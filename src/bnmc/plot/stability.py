"""The picture of the eigenvalues of `stability` and `atlas`; needs the extra ``plot``."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from bnmc._support.extras import import_extra
from bnmc._support.keywords import explains_keywords
from bnmc.errors import ArgumentError
from bnmc.plot import axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Styles of line, one per kind of eigenvalue.
_STYLES = ("-", "--", ":", "-.")

# Markers for activations of the same colour.  "o" is reserved for crossings.
_MARKERS = ("", "s", "^", "D", "v", "P", "X", "*", "<", ">", "p", "h")


@explains_keywords
def plot_stability(entries: Any, *, ax: Axes | None = None) -> Axes:
    """Draw the moduli of the eigenvalues against the batch size, and the crossings of 1.

    Parameters
    ----------
    entries : Stability or iterable of Stability
        Results of `stability` or `atlas`, all of one norm. Each activation has its colour; if there
        are more than six, activations of the same colour have different markers. Each kind of
        eigenvalue has its style of line. A dot with the batch size marks each change of stability.
        If an eigenvalue exceeds 1, the range above 1 is grey and labelled "unstable".
    ax : matplotlib.axes.Axes, optional
        The axes to draw on; by default those of a new figure.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    MissingExtraError
        If Matplotlib is not installed.
    ArgumentError, ArgumentTypeError
        If `entries` are not results of `stability`, are empty, or have different norms.

    Examples
    --------
    >>> from bnmc.mean_field import plot_stability
    >>> from bnmc.mean_field import atlas
    >>> ax = plot_stability(atlas(["relu", "silu"], [4, 8, 16, 32, 64]))
    >>> ax.get_xscale(), ax.get_xlabel(), ax.get_ylabel()
    ('log', 'batch size $n$', 'modulus of the eigenvalue')
    """
    lines = import_extra("matplotlib.lines", "plot")
    results = _of_one_norm(entries)
    if ax is None:
        picture, (ax,) = axes.figure()
        picture.set_size_inches(8.2, 4.8)  # the legend is beside the axes
    labels = max((entry.labels for entry in results), key=len)
    activations = []
    colours = axes.colours_of(entry.activation for entry in results)
    for index, entry in enumerate(results):
        # Pairs of a colour and a marker repeat after 72 activations.
        look: dict[str, Any] = {
            "color": colours[index],
            "marker": _MARKERS[index // len(axes.COLOURS) % len(_MARKERS)],
            "markersize": 4.5,
        }
        activations.append(lines.Line2D([], [], label=entry.activation, **look))
        _draw_entry(ax, entry, look)
    kinds = [
        lines.Line2D([], [], color="black", linestyle=style, label=_symbol(label))
        for label, style in zip(labels, _STYLES, strict=False)
    ]
    axes.mark_unstable(ax)
    ax.set_xscale("log")
    axes.plain_ticks(ax.xaxis, _apart(sorted({int(n) for entry in results for n in entry.batches})))
    ax.set_xlabel("batch size $n$")
    ax.set_ylabel("modulus of the eigenvalue")
    ax.set_title(f"Stability of the symmetric fixed point, {axes.norm_in_words(results[0].norm)}")
    ax.legend(
        handles=[*activations, *kinds], loc="upper left", bbox_to_anchor=(1.01, 1.0),
        borderaxespad=0.0, frameon=False,
    )  # fmt: skip
    return ax


def _draw_entry(ax: Axes, entry: Any, look: dict[str, Any]) -> None:
    """Draw the eigenvalues and crossings of one activation, with a colour and a marker."""
    for kind, label in enumerate(entry.labels):
        exists = ~np.isnan(entry.eigenvalues[:, kind])
        ax.plot(
            entry.batches[exists],
            np.abs(entry.eigenvalues[exists, kind]),
            linestyle=_STYLES[kind % len(_STYLES)],
            label=f"{entry.activation} {_symbol(label)}",
            **look,
        )
    for crossing in entry.crossings:
        height = abs(crossing.value)
        ax.plot([crossing.batch], [height], "o", color=look["color"])
        ax.annotate(
            f"n = {crossing.batch}",
            (crossing.batch, height),
            xytext=(0, 6),
            textcoords="offset points",
            ha="right",
            color=look["color"],
        )


def _symbol(label: str) -> str:
    """Return the name of an eigenvalue in Matplotlib's mathematical notation."""
    return f"${label}$".replace("λ", r"\lambda")


def _apart(batches: list[int]) -> list[int]:
    """Return increasing batch sizes whose labels do not overlap on a logarithmic axis."""
    span = math.log(batches[-1] / batches[0])
    labelled = batches[:1]
    for batch in batches[1:]:
        # The width of a digit is about 1 % of the axis.
        if math.log(batch / labelled[-1]) >= span * (0.015 + 0.014 * len(str(batch))):
            labelled.append(batch)
    return labelled


def _of_one_norm(entries: Any) -> list[Any]:
    names = ("activation", "norm", "labels", "batches", "eigenvalues", "crossings")
    allowed = "a Stability or several"
    results = axes.as_results("entries", entries, "Stability", allowed, *names)
    norms = sorted({entry.norm for entry in results})
    if len(norms) > 1:
        raise ArgumentError("entries", norms, "results of one norm")
    return results
