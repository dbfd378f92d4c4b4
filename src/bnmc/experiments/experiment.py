"""`Experiment` and `Table`: the result of an experiment, as data, text, JSON and a picture."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from bnmc._support.extras import import_extra
from bnmc._support.text import Result, first_of, plain, text_table
from bnmc.estimate.estimate import Estimate
from bnmc.experiments.statistics import EXACT
from bnmc.plot.axes import empty_figure

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

Dataset: TypeAlias = "xarray.Dataset"
Drawing: TypeAlias = "Figure"


@dataclass(frozen=True)
class Table(Result):
    """A small table; ``print`` shows it aligned.

    Attributes
    ----------
    columns : tuple of str
        Names of the columns, with units if the numbers have any.
    rows : tuple of tuple
        Cells: a string, a number, an `Estimate`, or None for an empty cell.

    Examples
    --------
    >>> from bnmc.experiments import Table
    >>> print(Table(("width", "error"), ((100, 0.25), (400, 0.125))))
    width  error
    100     0.25
    400    0.125
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]

    def cells(self) -> list[list[str]]:
        """Return the rows as text: an estimate with its interval, a share as counts and percent."""
        return [[_text(cell) for cell in row] for row in self.rows]

    def to_dict(self) -> list[dict[str, Any]]:
        """Return one dict per row, made of values that JSON has."""
        return [
            {name: plain(cell) for name, cell in zip(self.columns, row, strict=True)}
            for row in self.rows
        ]

    def __str__(self) -> str:
        """Return the first rows, in 25 lines."""
        return self.text(23)

    def text(self, most: int) -> str:
        """Return a text with so many rows."""
        cells, more = first_of(self.cells(), most, "rows")
        return "\n".join([text_table(self.columns, cells), *more])


@dataclass(frozen=True, eq=False)
class Experiment(Result):
    """The result of an experiment; ``print`` shows its table and its findings.

    Attributes
    ----------
    name : str
        One of `bnmc.experiments.names`.
    title : str
        Title of the picture.
    data : xarray.Dataset
        All numbers of the picture.  Variables have a ``long_name`` and ``units``.  Attributes tell
        how to repeat the run: ``seed`` (for ``rng=int(seed)``), settings and version.
    table : Table
        The main numbers.
    findings : tuple of str
        Results in sentences: measured numbers, their intervals, and the theory.

    Examples
    --------
    >>> import bnmc
    >>> found = bnmc.experiments.run("stability-atlas")  # doctest: +SKIP
    >>> found.table.columns[0], found.findings[0]  # doctest: +SKIP
    """

    name: str
    title: str
    data: xarray.Dataset
    table: Table
    findings: tuple[str, ...]
    draw: Callable[[xarray.Dataset, Figure], None] = field(repr=False)

    def plot(self, figure: Figure | None = None) -> Figure:
        """Draw the experiment.

        Parameters
        ----------
        figure : matplotlib.figure.Figure or SubFigure, optional
            Figure to draw on.  Default: a new one.

        Returns
        -------
        matplotlib.figure.Figure
            ``.savefig("name.png")`` writes a file.

        Raises
        ------
        MissingExtraError
            If Matplotlib (extra ``plot``) is not installed.
        """
        if figure is None:
            figure = empty_figure(dpi=150)
        self.draw(self.data, figure)
        for text in figure.findobj(import_extra("matplotlib.text", "plot").Text):
            # Numbers in texts get the minus sign that Matplotlib writes at ticks.
            text.set_text(re.sub(r"(?<=[ \[])-(?=\d)", "−", text.get_text()))
        return figure

    def to_dict(self) -> dict[str, Any]:
        """Return everything as strings, finite numbers, lists and dicts, for JSON.

        An infinite number becomes the string "Infinity" or "-Infinity", which `float` reads.  NaN
        becomes None.
        """
        document: dict[str, Any] = self.data.to_dict()
        return {
            "name": self.name,
            "title": self.title,
            "attributes": plain(document["attrs"]),
            "rows": self.table.to_dict(),
            "findings": list(self.findings),
            "coordinates": plain(document["coords"]),
            "variables": plain(document["data_vars"]),
        }

    def __str__(self) -> str:
        """Return the first rows and findings, in 25 lines."""
        return self.text(11, 7)

    def text(self, rows: int, findings: int) -> str:
        """Return a text with so many rows and findings."""
        shown, more = first_of(self.findings, findings, "findings")
        return "\n".join([self.title, "", self.table.text(rows), "", *shown, *more])


def _text(cell: Any) -> str:
    if cell is None:
        return ""
    if isinstance(cell, Estimate) and cell.method == EXACT:
        low, high = (100.0 * end for end in cell.ci)
        count = f"{cell.value * cell.n:.0f} of {cell.n}"
        return f"{count}, {100.0 * cell.value:.0f} % [{low:.0f}, {high:.0f}]"
    if isinstance(cell, Estimate):
        return f"{cell.value:.5g} [{cell.ci[0]:.5g}, {cell.ci[1]:.5g}]"
    if isinstance(cell, (float, np.floating)):
        return f"{cell:.5g}"
    return str(cell)
