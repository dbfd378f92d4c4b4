"""What a figure is made of: its function, columns over named axes, and a table.

A figure is a function of a `Run` and its sizes under the decorator `figure`.  It measures in parts
(`Run.parts`), adds columns to `Results`, and returns `Results.experiment`.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from bnmc._support.arithmetic import ignoring
from bnmc._support.extras import import_extra, require_extras
from bnmc._support.progress import Progress as Progress
from bnmc._support.version import __version__
from bnmc.chain.activations import Activation
from bnmc.errors import ArgumentError, ArgumentTypeError
from bnmc.estimate.estimate import Estimate
from bnmc.experiments import sizes as of_sizes
from bnmc.experiments.experiment import Dataset as Dataset
from bnmc.experiments.experiment import Drawing as Drawing
from bnmc.experiments.experiment import Experiment as Experiment
from bnmc.experiments.experiment import Table as Table
from bnmc.experiments.runs import Point as Point
from bnmc.experiments.runs import Run as Run
from bnmc.experiments.statistics import banded, mean_of_band

Float64Array = NDArray[np.float64]

# A figure imports the types of its function from here: `Run`, `Progress`, `Experiment` and so on.

_Sizes = TypeVar("_Sizes", bound=tuple[Any, ...])


class Axis(NamedTuple):
    """Labels of an axis, what they are, and their unit: "1" for numbers, "" for texts."""

    labels: Iterable[Any]
    text: str
    units: str = "1"


#: What the axes are, and their units, for those that are no `Axis`.
_AXES = {
    "activation": ("activation", ""),
    "network": ("network", ""),
    "weights": ("law of weights", ""),
    "norm": ("normalization", ""),
    "batch": ("batch n", "samples"),
    "width": ("width d", "neurons"),
    "layer": ("layer", "1"),
    "weight_layer": ("layer", "1"),
    "depth": ("hidden layers", "1"),
    "epoch": ("epochs of training", "1"),
    "end": ("end of the interval", ""),
}

#: What the ends of an interval of 95 % are called.
_ENDS = {"": "", "_low": ", lower end of 95 %", "_high": ", upper end of 95 %"}

#: The section of the docstring that all figures have.
_PARAMETERS = """\
Parameters
----------
full : bool, default False
    Whether to use the sizes of the paper, or larger ones.  The default sizes take seconds.
rng : optional, default 0
    Seed or generator: anything `numpy.random.default_rng` takes (SPEC 7).
progress : bool or callable
    True shows a bar on standard error (extra ``cli``).  A function is called with (done, total).
threads : int, optional
    Number of threads, >= 1.  Default: all processors.  Results do not depend on it.
executor : concurrent.futures.Executor or Dask Client, optional
    Executor that runs the simulations in place of threads.  Results do not depend on it.
store : path, optional
    Folder for finished parts.  If a run was interrupted, the same call continues it and returns
    the same results.
timeout : float, optional
    Seconds, > 0, after which no further part begins: `PartialEstimateError` is raised.  With
    `store`, the same call continues with the next part.
"""

#: A further parameter of the figures that train networks.
_DATA = """\
data : path, optional
    Folder with the training files of MNIST or Fashion-MNIST (IDX format, also .gz) or of CIFAR-10
    (binary version).  Default: handwritten digits that the package includes.
"""


# --- the function


def figure(
    name: str, default: _Sizes, *, trains: bool = False, torch: bool = False, **full: Any
) -> Callable[[Callable[[Run, _Sizes], Experiment]], Callable[..., Experiment]]:
    """Make a public figure of a function of a run and sizes.

    Parameters
    ----------
    name : str
        Name of the figure.
    default : NamedTuple
        The default sizes.
    trains : bool, default False
        Whether the figure takes images.
    torch : bool, default False
        Whether it needs PyTorch.
    **full
        The sizes that differ with ``full=True``.

    Returns
    -------
    callable
        Decorates the function.  The public one takes `full`, `rng`, `progress`, `threads`,
        `executor`, `store`, `timeout`, `data` if it `trains`, and each size, by name.  Its
        docstring describes them before the section "Returns".  Its attribute `sizes` is the pair
        of default and full sizes, and `extras` has the optional packages, with the extra of each.
    """
    of_paper: _Sizes = default._replace(**full)  # type: ignore[attr-defined]
    extras = {"xarray": "xarray"} | ({"torch": "torch"} if torch else {})

    def made(function: Callable[[Run, _Sizes], Experiment]) -> Callable[..., Experiment]:
        @functools.wraps(function)
        def public(
            *,
            full: bool = False,
            rng: Any = 0,
            progress: Any = False,
            threads: Any = None,
            executor: Any = None,
            store: Any = None,
            timeout: Any = None,
            data: Any = None,
            **sizes: Any,
        ) -> Experiment:
            require_extras(extras)
            if data is not None and not trains:
                raise ArgumentError("data", str(data), f"None: {name!r} trains no network")
            if not isinstance(full, (bool, np.bool_)):
                raise ArgumentTypeError("full", full, "a bool")
            chosen = of_sizes.checked(of_paper if full else default, sizes)
            run = Run(
                name, of_sizes.facts(chosen), bool(full), rng, progress, threads, executor, store,
                data, timeout,
            )  # fmt: skip
            return ignoring(function)(run, chosen)  # type: ignore[arg-type]

        public.__dict__ |= {
            "sizes": (default, of_paper), "extras": extras,
            "__signature__": _signature(public, default, trains),
        }  # fmt: skip
        about, returns, rest = (inspect.getdoc(function) or "").partition("Returns\n-------\n")
        section = _PARAMETERS + _DATA * trains + of_sizes.documented(default, of_paper)
        public.__doc__ = f"{about}{section}\n{returns}{rest}"
        return public

    return made


def _signature(
    public: Callable[..., Any], sizes: tuple[Any, ...], trains: bool
) -> inspect.Signature:
    """Return the arguments of a public figure by name; the default of a size depends on `full`."""
    *named, _ = inspect.signature(public, follow_wrapped=False).parameters.values()
    named = [argument for argument in named if trains or argument.name != "data"]
    of_size = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None)
        for name in sizes._fields  # type: ignore[attr-defined]
    ]
    return inspect.Signature([*named, *of_size], return_annotation=Experiment)


# --- columns


@dataclass(frozen=True)
class Column:
    """A quantity over some axes.

    Attributes
    ----------
    name : str
        Name of its variable.
    axes : dict of str to list
        Labels by axis.
    values : ndarray
        Numbers or estimates, one axis for each of `axes`.  If `chains` is not 0, one axis more,
        of length 3: means over so many networks with the ends of their intervals.
    text : str
        Description.
    units : str
        "1" for numbers without a unit.
    chains : int
    within : tuple of float
        The least and the largest possible value; intervals end there.
    """

    name: str
    axes: dict[str, list[Any]]
    values: NDArray[Any]
    text: str
    units: str = "1"
    chains: int = 0
    within: tuple[float, float] = (-math.inf, math.inf)

    def at(self, **places: int) -> Column:
        """Return the column at places, by number, of some axes."""
        index = tuple(places.get(axis, slice(None)) for axis in self.axes)
        axes = {axis: labels for axis, labels in self.axes.items() if axis not in places}
        return replace(self, axes=axes, values=np.asarray(self.values[index]))

    def means(self) -> Column:
        """Return the column without its intervals."""
        return replace(self, values=self.ends()[..., 0], chains=0)

    def ends(self) -> Float64Array:
        """Return values and ends of intervals along a new last axis of length 3 or, without, 1."""
        if self.chains:
            ends = np.clip(self.values[..., 1:], *self.within)
            return np.concatenate([self.values[..., :1], ends], axis=-1)
        if self.values.dtype != object:
            return self.values[..., None]
        ends = [_ends(value) for value in self.values.ravel()]
        return np.reshape(ends, (*self.values.shape, 3))

    def cells(self) -> dict[Point, Any]:
        """Return by point a number, an estimate, or None instead of NaN."""
        cells = {}
        for place, labels in zip(
            np.ndindex(*map(len, self.axes.values())),
            itertools.product(*self.axes.values()),
            strict=True,
        ):
            value: Any = self.values[place]
            if self.chains:
                value = self._estimate(value) if np.isfinite(value).all() else None
            elif isinstance(value, np.generic):
                value = value.item()
            cells[tuple(map(_label, labels))] = value if value == value else None
        return cells

    def _estimate(self, band: Float64Array) -> Estimate:
        """Return one mean over networks with an interval of possible values."""
        estimate = mean_of_band(band, self.chains)
        low, high = np.clip(estimate.ci, *self.within)
        return replace(estimate, ci=(float(low), float(high)))


class Results:
    """The columns of a figure over named axes, and the experiment that is made of them.

    Parameters
    ----------
    run : Run
    **axes : Axis or iterable
        Labels by axis.
    """

    def __init__(self, run: Run, **axes: Axis | Iterable[Any]) -> None:
        self._run = run
        self._axes = {
            name: axis if isinstance(axis, Axis) else Axis(axis, *_AXES[name])
            for name, axis in axes.items()
        }
        self.axes = {name: list(axis.labels) for name, axis in self._axes.items()}
        self._columns: list[Column] = []

    def points(self, *dims: str) -> list[Point]:
        """Return the labels of all points of some axes, the last axis changing first."""
        return list(itertools.product(*(self.axes[axis] for axis in dims)))

    def add(
        self,
        name: str,
        dims: tuple[str, ...],
        values: Any,
        text: str,
        units: str = "1",
        chains: int = 0,
        within: tuple[float, float] = (-math.inf, math.inf),
    ) -> Column:
        """Add numbers or estimates over some axes.

        Parameters
        ----------
        name : str
            Name of the variable.  If there are intervals, the variables of their ends are
            ``name_low`` and ``name_high``.
        dims : tuple of str
            Names of the axes.
        values : array_like or mapping
            A mapping has as keys the points of the first axes, and as values numbers, estimates, or
            arrays over the other axes.  Missing points are NaN.
        text : str
            Description.
        units : str, default "1"
        chains : int, default 0
            If it is not 0, `values` have a last axis with the mean over so many networks and the
            ends of its interval, as `banded` returns them.
        within : tuple of float, default (-inf, inf)
            The least and the largest possible value, where such intervals end.
        """
        column = replace(
            self.column(dims, values, chains), name=name, text=text, units=units, within=within
        )
        self._columns.append(column)
        return column

    def column(self, dims: tuple[str, ...], values: Any, chains: int = 0) -> Column:
        """Return a column for a table, of numbers, estimates or texts, that is not in the data.

        The arguments are those of `add`.
        """
        if isinstance(values, Mapping):
            values = self._stacked(dims, values)
        axes = {axis: self.axes[axis] for axis in dims}
        return Column("", axes, np.asarray(values), "", chains=chains)

    def add_means(
        self,
        name: str,
        dims: tuple[str, ...],
        samples: Mapping[Point, Float64Array],
        text: str,
        units: str = "1",
        within: tuple[float, float] = (-math.inf, math.inf),
    ) -> Column:
        """Add means over networks, with Student's intervals, of arrays (networks, …) by point.

        `within` are the least and the largest possible value, where intervals end.
        """
        count = len(next(iter(samples.values())))
        return self.add(name, dims, each(samples, banded), text, units, count, within)

    def add_range(
        self,
        name: str,
        dims: tuple[str, ...],
        samples: Mapping[Point, Float64Array],
        text: str,
        units: str = "1",
    ) -> Column:
        """Add means over networks of arrays (networks, …) by point, and 90 % of the networks."""
        for end, level, words in (
            ("_band_low", 0.05, "5 % of networks"), ("_band_high", 0.95, "95 % of networks"),
        ):  # fmt: skip
            ends = each(samples, functools.partial(np.quantile, q=level, axis=0))
            self.add(name + end, dims, ends, words, units)
        return self.add(name, dims, each(samples, lambda values: values.mean(axis=0)), text, units)

    def experiment(
        self,
        title: str,
        table: Table,
        findings: Iterable[str],
        draw: Callable[[Dataset, Drawing], None],
        **attributes: Any,
    ) -> Experiment:
        """Return the experiment of all columns; attributes are numbers, texts or lists of them."""
        run = self._run
        about = {
            "bnmc_version": __version__, "numpy_version": np.__version__, "seed": str(run.seed),
            "full": int(run.full), **attributes,
        }  # fmt: skip
        coordinates = {
            name: ((name,), list(map(_label, axis)), _about(*self._axes[name][1:]))
            for name, axis in self.axes.items()
        }
        variables = {}
        for column in self._columns:
            ends = column.ends()
            for place, (suffix, words) in enumerate(list(_ENDS.items())[: ends.shape[-1]]):
                content = _about(column.text + words, column.units)
                variables[column.name + suffix] = tuple(column.axes), ends[..., place], content
        data = import_extra("xarray", "xarray").Dataset(variables, coordinates, about)
        return Experiment(run.name, title, data, table, tuple(findings), draw)

    def _stacked(self, dims: tuple[str, ...], values: Mapping[Point, Any]) -> NDArray[Any]:
        """Return values by point as an array."""
        leading = dims[: len(next(iter(values), dims))]
        given = next(iter(values.values()), np.nan)
        is_number = not isinstance(given, Estimate)
        missing = np.full(np.shape(given), np.nan) if is_number else None
        items = [values.get(point, missing) for point in self.points(*leading)]
        stacked = np.array(items, dtype=None if is_number else object)
        shape = tuple(len(self.axes[axis]) for axis in leading)
        return stacked.reshape(shape + stacked.shape[1:])


def entry(made: Mapping[Point, Any], key: Any) -> dict[Point, Any]:
    """Return by point one entry of parts that are tuples or dicts."""
    return each(made, lambda part: part[key])


def each(made: Mapping[Point, Any], function: Callable[[Any], Any]) -> dict[Point, Any]:
    """Return by point a function of parts, or of entries of them."""
    return {point: function(part) for point, part in made.items()}


def table_of(
    columns: Mapping[str, Column], heads: Iterable[str] = (), missing: str | None = None
) -> Table:
    """Return a table: labels of the axes that the columns share, then the columns by head.

    Rows without any number are left out.

    Parameters
    ----------
    columns : mapping of str to Column
    heads : iterable of str, optional
        Heads of the axes.  Default: their names.
    missing : str, optional
        What a cell contains instead of NaN.  Default: nothing.
    """
    axes = next(iter(columns.values())).axes
    cells = [column.cells() for column in columns.values()]
    rows = [(*point, *(of_column[point] for of_column in cells)) for point in cells[0]]
    return Table(
        (*(heads or axes), *columns),
        tuple(
            tuple(missing if cell is None else cell for cell in row)
            for row in rows
            if any(cell is not None for cell in row[len(axes) :])
        ),
    )


def _ends(value: Any) -> tuple[float, float, float]:
    """Return an estimate and the ends of its interval; NaN instead of None."""
    if value is None:
        return np.nan, np.nan, np.nan
    low, high = value.ci
    return value.value, low, high


def _label(label: Any) -> Any:
    return label.name if isinstance(label, Activation) else label


def _about(text: str, units: str) -> dict[str, str]:
    return {"long_name": text} | ({"units": units} if units else {})
