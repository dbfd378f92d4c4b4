"""What an experiment returns, and what all experiments are made with."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from types import SimpleNamespace, TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnmc._support.extras import import_extra
from bnmc._support.json import plain
from bnmc._support.keys import draw_key
from bnmc._support.progress import Progress, Reporter, as_progress
from bnmc.errors import ArgumentTypeError
from bnmc.estimate.estimate import Estimate
from bnmc.experiments._kept import opened

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

__all__ = [
    "Experiment",
    "Parts",
    "Sources",
    "Store",
    "Table",
    "Variable",
    "axes_of",
    "dataset",
    "estimated",
    "interval",
    "label_outer",
    "rms",
    "sized",
    "slope",
    "split",
    "with_parameters",
]


@dataclass(frozen=True)
class Table:
    """A small table; ``print`` shows it aligned.

    Attributes
    ----------
    columns : tuple of str
        Names, with units where there are any.
    rows : tuple of tuple
        Cells: a string, a number, an `Estimate`, or None where there is nothing.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]

    def cells(self) -> list[list[str]]:
        """Return the rows as text: an estimate with its interval."""
        return [[_text(cell) for cell in row] for row in self.rows]

    def to_dict(self) -> list[dict[str, Any]]:
        """Return a dict for each row, of what JSON has."""
        return [
            {name: plain(cell) for name, cell in zip(self.columns, row, strict=True)}
            for row in self.rows
        ]

    def __str__(self) -> str:
        lines = [list(self.columns), *self.cells()]
        widths = [max(len(line[column]) for line in lines) for column in range(len(self.columns))]
        return "\n".join(
            "  ".join(
                [line[0].ljust(widths[0])]
                + [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
            ).rstrip()
            for line in lines
        )


@dataclass(frozen=True, eq=False)
class Experiment:
    """An experiment that was run: ``print`` shows its table and what it found.

    Attributes
    ----------
    name : str
        As in `bnmc.experiments.names`.
    title : str
        What the picture shows.
    data : xarray.Dataset
        All that is drawn; variables have a ``long_name`` and ``units``.  Attributes say how to
        repeat the run: ``seed`` (for ``rng=int(seed)``), settings and version.
    table : Table
    findings : tuple of str
        What the picture shows, in sentences with measured numbers, intervals and theory.
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
            Where to draw; a new one unless given.

        Returns
        -------
        matplotlib.figure.Figure
            ``.savefig("name.png")`` makes a file.

        Raises
        ------
        MissingExtraError
            Without Matplotlib (extra ``plot``).
        """
        if figure is None:
            made = import_extra("matplotlib.figure", "plot").Figure(layout="constrained", dpi=150)
            figure = made
        self.draw(self.data, figure)
        return figure

    def to_dict(self) -> dict[str, Any]:
        """Return everything as strings, finite numbers, lists and dicts, which JSON has.

        An infinite number is the string "Infinity" or "-Infinity", which `float` reads; one that is
        not a number is None.
        """
        document: dict[str, Any] = self.data.to_dict()
        return {
            "name": self.name,
            "title": self.title,
            "attributes": plain(document["attrs"]),
            "table": self.table.to_dict(),
            "findings": list(self.findings),
            "coordinates": plain(document["coords"]),
            "variables": plain(document["data_vars"]),
        }

    def __str__(self) -> str:
        return "\n".join([self.title, "", str(self.table), "", *self.findings])


class Variable(NamedTuple):
    """One variable of a dataset: its axes, values, what it is called and its units."""

    dims: tuple[str, ...]
    values: ArrayLike
    long_name: str
    units: str = "1"


_Run = TypeVar("_Run", bound=Callable[..., Experiment])

_Made = TypeVar("_Made")

Store: TypeAlias = str | PathLike[str] | None

#: What every experiment takes.
_PARAMETERS = """\
Parameters
----------
full : bool, default False
    Whether to take the sizes of the paper, or larger ones, in place of those that take seconds.
rng : optional
    Anything `numpy.random.default_rng` takes (SPEC 7); 0 unless given.
progress : bool or callable
    True for a bar on standard error (extra ``cli``), or a function of (done, total).
threads : int, optional
    All processors unless given.  Results do not depend on it.
store : path, optional
    A folder for finished parts: the same call goes on after one that was interrupted, and ends
    with the same results.

"""


def with_parameters(run: _Run) -> _Run:
    """Add the section of the parameters, which all experiments share, to a docstring."""
    about, returns, rest = inspect.cleandoc(run.__doc__ or "").partition("Returns\n-------\n")
    run.__doc__ = about + _PARAMETERS + returns + rest
    return run


class Sources:
    """Random numbers of an experiment: a seed that repeats it, and a generator for its runs."""

    def __init__(self, rng: Any) -> None:
        is_seed = isinstance(rng, (int, np.integer)) and not isinstance(rng, bool) and rng >= 0
        self.seed = int(rng) if is_seed else draw_key(rng)
        self.generator = np.random.default_rng(self.seed)


def dataset(
    variables: Mapping[str, Variable],
    coordinates: Mapping[str, Variable],
    sources: Sources,
    full: bool,
    settings: Mapping[str, Any],
) -> xarray.Dataset:
    """Make the data of an experiment; settings are plain values, or sequences of them."""
    from bnmc._support.version import __version__

    xr = import_extra("xarray", "xarray")

    def made(parts: Mapping[str, Variable]) -> dict[str, Any]:
        return {
            name: (one.dims, np.asarray(one.values), {"long_name": one.long_name} | _units(one))
            for name, one in parts.items()
        }

    attributes = {
        "bnmc_version": __version__,
        "numpy_version": np.__version__,
        "seed": str(sources.seed),
        "full": int(full),
        **settings,
    }
    built: xarray.Dataset = xr.Dataset(made(variables), made(coordinates), attributes)
    return built


class Parts:
    """The runs that an experiment consists of, as a context: their progress, and keeping them.

    Parameters
    ----------
    progress : bool or callable
        As the user passed it.
    label : str
        The experiment's name.
    weights : sequence of float
        About how long each run takes, relative to the others.
    sources : Sources
        Where runs get their random numbers.
    full : bool
    store : path, optional
        Where finished runs are kept.
    """

    def __init__(
        self,
        progress: bool | Progress,
        label: str,
        weights: Sequence[float],
        sources: Sources,
        full: bool = False,
        store: Store = None,
    ) -> None:
        import_extra("xarray", "xarray")  # what is missing is said before any work
        self._sources = sources
        self._kept = opened(store, label, full, sources.seed)
        self._reporter = Reporter(as_progress(progress), label, "%")
        self._ends = np.concatenate([[0.0], np.cumsum(weights) / sum(weights)])
        self._part = -1
        self._last = -1
        self._runs = 0

    def __enter__(self) -> Parts:
        self._report = self._reporter.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self._tell(1.0)
        self._reporter.__exit__(kind, error, trace)

    def next(self) -> Progress:
        """Begin the next run, and return what to pass as its `progress`."""
        self._part = min(self._part + 1, len(self._ends) - 2)
        low, high = self._ends[self._part : self._part + 2]
        self._tell(low)
        return lambda done, total: self._tell(low + (high - low) * done / max(total, 1))

    def run(self, make: Callable[..., _Made], *arguments: Any, **named: Any) -> _Made:
        """Return ``make(*arguments, progress=…, **named)``, the next run, or what is kept of it."""
        progress, number = self.next(), self._runs
        self._runs += 1
        generator = self._sources.generator.bit_generator
        found = None if self._kept is None else self._kept.get(number)
        made: _Made
        if found is None:
            made = make(*arguments, progress=progress, **named)
            if self._kept is not None:
                self._kept.put(number, (made, generator.state))
        else:  # what follows has the random numbers that it would have had
            made, generator.state = found
        return made

    def _tell(self, part: float) -> None:
        done = max(self._last, math.floor(100 * part + 1e-9))
        if done != self._last:
            self._last = done
            self._report(done, 100)


def slope(
    x: ArrayLike, y: Sequence[Estimate], *, level: float = 0.95, method: str = "slope in logs"
) -> Estimate:
    """Return the slope of log y against log x by weighted least squares.

    The values are independent, and their logarithms nearly normal with the standard errors that
    they have; the interval is normal.
    """
    from scipy.special import ndtri

    logs = np.log(np.asarray(x, dtype=np.float64))
    values = np.log([one.value for one in y])
    weights = np.array([(one.value / one.stderr) ** 2 for one in y])
    centred = logs - np.average(logs, weights=weights)
    information = float(weights @ centred**2)
    value = float(weights @ (centred * values)) / information
    stderr = information**-0.5
    reach = float(ndtri((1 + level) / 2)) * stderr
    return Estimate(value, stderr, (value - reach, value + reach), len(y), method, level)


def rms(samples: ArrayLike, *, level: float = 0.95) -> Estimate:
    """Return the root mean square of independent samples, with the roots of the mean's interval."""
    found = Estimate.from_samples(np.square(samples), level=level)
    value = math.sqrt(found.value)
    low, high = (math.sqrt(max(end, 0.0)) for end in found.ci)
    stderr = found.stderr / (2.0 * value) if value else 0.0
    return Estimate(value, stderr, (low, high), found.n, "root mean square", level)


def split(found: Any) -> dict[str, NDArray[np.float64]]:
    """Return arrays of the values and the ends of the intervals of (nested) lists of estimates."""
    if isinstance(found, (list, tuple)):
        parts = [split(one) for one in found]
        return {name: np.array([part[name] for part in parts]) for name in ("value", "low", "high")}
    value = found.value if isinstance(found, Estimate) else found.rate
    low, high = found.ci
    return {"value": np.float64(value), "low": np.float64(low), "high": np.float64(high)}  # type: ignore[dict-item]


def interval(found: Estimate) -> str:
    """Write an estimate with its interval, to what the interval tells."""
    low, high = found.ci
    digits = 2
    if math.isfinite(high - low) and high > low and found.value:
        size = max(abs(low), abs(high))
        digits = min(max(math.ceil(math.log10(size / (high - low))) + 2, 2), 6)
    return f"{found.value:.{digits}g} [{low:.{digits}g}, {high:.{digits}g}]"


def sized(
    name: str,
    full: bool,
    default: Mapping[str, Mapping[str, Any]],
    of_paper: Mapping[str, Mapping[str, Any]],
) -> SimpleNamespace:
    """Return the sizes of an experiment as attributes: the default ones, and what full changes."""
    if not isinstance(full, (bool, np.bool_)):
        raise ArgumentTypeError("full", full, "a bool")
    return SimpleNamespace(**({**default[name], **of_paper[name]} if full else default[name]))


def estimated(
    name: str, dims: tuple[str, ...], found: Any, long_name: str, units: str = "1"
) -> dict[str, Variable]:
    """Return variables for (nested lists of) estimates and the ends of their intervals."""
    parts = split(found)
    return {
        name: Variable(dims, parts["value"], long_name, units),
        f"{name}_low": Variable(dims, parts["low"], f"{long_name}, lower end of 95 %", units),
        f"{name}_high": Variable(dims, parts["high"], f"{long_name}, upper end of 95 %", units),
    }


def label_outer(axes: NDArray[Any], used: int, x: str, y: str) -> None:
    """Label the outer axes of a grid, and hide those that are not used."""
    for index, ax in enumerate(axes.flat):
        ax.set_visible(index < used)
        if index >= used - axes.shape[1]:
            ax.set_xlabel(x)
        if index % axes.shape[1] == 0:
            ax.set_ylabel(y)


def _units(one: Variable) -> dict[str, str]:
    return {"units": one.units} if one.units else {}


def _text(cell: Any) -> str:
    if cell is None:
        return ""
    if isinstance(cell, Estimate):
        return f"{cell.value:.5g} [{cell.ci[0]:.5g}, {cell.ci[1]:.5g}]"
    if isinstance(cell, (float, np.floating)):
        return f"{cell:.5g}"
    return str(cell)


def axes_of(
    figure: Figure, columns: int, rows: int = 1, *, width: float = 5.2, height: float = 4.0
) -> NDArray[Any]:
    """Lay out a figure in the style of `bnmc.plot.runs`; return its axes, (rows, columns)."""
    from bnmc.plot.axes import style

    if hasattr(figure, "set_size_inches"):
        figure.set_size_inches(width * columns, height * rows)
    axes: NDArray[Any] = figure.subplots(rows, columns, squeeze=False)
    for ax in axes.flat:
        style(ax)
    return axes
