"""The result of a simulation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bnmc._support.extras import import_extra
from bnmc._support.text import Result, Table
from bnmc.chain.chain import Chain, Network, options_of, shown_of
from bnmc.errors import ArgumentError, UnknownNameError
from bnmc.estimate.estimate import with_error

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes

    from bnmc.simulation.engine.state import State

#: What `Trajectory.attributes` contains as it is.
_OF_CHAIN = ("width", "batch", "norm", "skip", "gain", "eps", "order", "bias_variance")
_OF_RUN = ("sampler", "dtype", "backend", "cpu", "chains")

# Heads of the columns of a table that are not the name of the observable.
_HEADS = {"distance": "‖G − G*‖"}
_MOST_ROWS = 12


@dataclass(frozen=True, eq=False)
class Moments:
    """Mean and variance of an observable over chains, layers or both.

    Attributes
    ----------
    count : int
        Number of values in each mean.
    mean, variance : ndarray of float64
        The variance is divided by count - 1; it is NaN for a single value.
    """

    count: int
    mean: NDArray[np.float64]
    variance: NDArray[np.float64]

    @property
    def stderr(self) -> NDArray[np.float64]:
        """Standard error of the mean for independent values, such as those of chains."""
        return np.sqrt(self.variance / self.count)


class Recordings(Result):
    """Recorded observables: items by name, and attributes."""

    observables: Mapping[str, NDArray[np.float64]]

    def __getitem__(self, name: str) -> NDArray[np.float64]:
        if name not in self.observables:
            names = [*self.observables, *vars(self).get("moments", ())]
            raise UnknownNameError("name", name, names)
        return self.observables[name]

    def __getattr__(self, name: str) -> NDArray[np.float64]:
        if not name.startswith("_") and name in self.__dict__.get("observables", {}):
            return self.observables[name]
        message = f"{name!r} was not recorded; add it to observables="
        raise AttributeError(self._missing(name, message))


@dataclass(frozen=True, eq=False)
class Trajectory(Recordings):
    """The recorded layers of an ensemble of chains.

    An observable is an item, ``run["gram"]``, and an attribute, ``run.gram``: an array of shape
    (chains, layers, ...), with an axis of inputs after these if the run has several.  If the run is
    reduced, the observable is in `moments` instead.  `plot` draws an observable against the layer;
    `bnmc.plot.trajectory` draws several runs, `bnmc.plot.overview` the distance and the
    eigenvalues, and `bnmc.plot.spectrum` the eigenvalues of a layer.

    Attributes
    ----------
    network : Network
        Its layers up to the last one; that of a chain has one stage.
    layers : (layers,) ndarray of int
        The recorded layers.
    observables : dict of ndarray
        Values by name.
    moments : dict of Moments
        Means and variances by name, for a run with ``reduce=``.
    dims : dict of tuple of str
        The names of the axes of each observable.
    key : int
        The 64-bit key of all random numbers: as `rng` it repeats the run.
    sampler : str
        "conditional", "weights", or "mixed" if layers of a network need different ones.
    dtype : str
        Precision of the rows, "float64" or "float32"; results are float64.
    backend : str
        "cpu".
    cpu : str
        The kind of processor: on the same kind, the same key gives the same bits.  If "eigenvalues"
        or a soft rank is recorded, the BLAS of NumPy follows, with its kernel and threads if the
        package threadpoolctl is installed: the last bits of these two depend on it.  No other value
        and no state depends on it.
    chains : int
    widened : tuple of int
        The chains of a float32 run that continued in float64, because float32 rows did not resolve
        their Gram matrix (for example, nearly equal samples).
    unresolved : tuple of int
        For a float32 run with a skip connection or with weights: the chains with recorded Gram
        matrices that float32 rows did not resolve, as samples are nearly or exactly dependent.
    inputs : int or None
        Number of input batches, None for one without an axis of its own.
    complete : bool
        Whether the run reached the last layer; False if `timeout` or Ctrl-C ended it.
    state : State or None
        The state of the chains; None if the run ended in the middle of a layer.

    Examples
    --------
    >>> import bnmc
    >>> run = bnmc.simulate(bnmc.Chain(100, 4, "relu"), 3, chains=2, rng=0)
    >>> run.gram.shape, run.layers
    ((2, 4, 4, 4), array([0, 1, 2, 3]))
    >>> deeper = bnmc.simulate(run.chain, 5, initial=run.final_state)
    >>> deeper.layers
    array([3, 4, 5, 6, 7, 8])
    """

    network: Network
    layers: NDArray[np.int64]
    observables: Mapping[str, NDArray[np.float64]]
    moments: Mapping[str, Moments]
    dims: Mapping[str, tuple[str, ...]]
    key: int
    sampler: str
    dtype: str
    backend: str
    cpu: str
    chains: int
    widened: tuple[int, ...]
    unresolved: tuple[int, ...]
    inputs: int | None
    complete: bool
    state: State | None = field(repr=False)

    def __getitem__(self, name: str) -> NDArray[np.float64]:
        if name in self.moments:
            raise ArgumentError("name", name, f"run.moments[{name!r}], as the run was reduced")
        return super().__getitem__(name)

    def __repr__(self) -> str:
        span = f" ({self.layers[0]} to {self.layers[-1]})" if len(self.layers) else ""
        recorded = ", ".join([*self.observables, *(f"{name} (moments)" for name in self.moments)])
        return (
            f"<Trajectory of {self.chains} chains, {len(self.layers)} layers{span}"
            f"{'' if self.complete else ', interrupted'}: {recorded}; {shown_of(self.network)}>"
        )

    def __str__(self) -> str:
        """Return the chain and `table`, or the `repr` if the table has no numbers."""
        table = self.table()
        if len(table.heads) < 2:
            return repr(self)
        networks = "1 network" if self.chains == 1 else f"{self.chains} networks"
        lines = [
            f"{shown_of(self.network)}: {networks}, {len(self.layers)} recorded layers",
            str(table),
        ]
        if not self.complete and len(self.layers):
            lines.append(f"incomplete: the run ended after layer {self.layers[-1]}")
        return "\n".join(lines)

    @property
    def chain(self) -> Chain:
        """The chain, whose layer repeats.

        Raises
        ------
        ArgumentTypeError
            If layers differ.
        """
        return self.network.chain

    @property
    def final_state(self) -> State:
        """The state that continues the run: ``simulate(chain, more, initial=run.final_state)``."""
        if self.state is None:
            raise ArgumentError("run", "ended in the middle of a layer", "a run with a final state")
        return self.state

    def mean(self, name: str) -> NDArray[np.float64]:
        """Return the mean of an observable over chains, (layers, ...).

        For a run with ``reduce=`` it is the mean over the reduced axes.
        """
        return self._over_chains(name).mean

    def stderr(self, name: str) -> NDArray[np.float64]:
        """Return the standard error of `mean`, as if the averaged values were independent.

        Chains are independent; layers of one chain are not.  For a single chain the standard error
        is unknown: NaN.
        """
        return self._over_chains(name).stderr

    def plot(
        self,
        observable: Any = None,
        *,
        star: Any = None,
        ax: Axes | None = None,
        level: float = 0.9,
    ) -> Axes:
        """Draw an observable against depth.

        Parameters
        ----------
        observable : str, FixedPoint or array_like, optional
            As in `bnmc.plot.trajectory`.  Default: the distance if `star` is given, else the first
            recorded observable; of Gram matrices the orthogonality gap.
        star, ax, level
            As in `bnmc.plot.trajectory`.

        Returns
        -------
        matplotlib.axes.Axes

        Raises
        ------
        MissingExtraError, ArgumentError, ArgumentTypeError
            As `bnmc.plot.trajectory`.

        Examples
        --------
        >>> import bnmc
        >>> run = bnmc.simulate(bnmc.Chain(300, 4), 20, chains=16, rng=0)
        >>> run.plot().get_ylabel()
        'orthogonality gap'
        """
        from bnmc.plot.runs import trajectory

        if observable is None:
            first = [*self.observables, *self.moments][0]
            observable = "orthogonality_gap" if first == "gram" else first
            observable = observable if star is None else "distance"
        return trajectory(self, observable, star=star, ax=ax, level=level)

    def table(self) -> Table:
        """Return the means over the chains, with standard errors, at some layers.

        Its columns are the observables with one number per layer, and the smallest and the largest
        eigenvalue if eigenvalues were recorded. Its rows are at most 12 layers: the first, the last
        and round ones between.
        """
        rows = self._rows()
        heads = [_HEADS.get(name, name.replace("_", " ")) for name in rows[0]] if rows else []
        cells = [[str(row["layer"]), *map(_cell, list(row.values())[1:])] for row in rows]
        return Table(heads, cells)

    def to_dict(self) -> dict[str, Any]:
        """Return the rows of `table` and the facts that repeat the run, for `json.dumps`.

        Returns
        -------
        dict
            A number of "rows" is a dict of its "mean" and its "stderr", which is None for a single
            chain.
        """
        facts = self.attributes()
        return {
            "chain": options_of(self.network),
            **{name: facts[name] for name in ("chains", "key", "sampler", "dtype", "cpu")},
            "complete": self.complete, "rows": self._rows(),
        }  # fmt: skip

    def _rows(self) -> list[dict[str, Any]]:
        columns: dict[str, tuple[NDArray[np.float64], NDArray[np.float64]]] = {}
        for name in (*self.observables, *self.moments):
            axes = tuple(axis for axis in self.dims[name] if axis != "chain")
            if axes == ("layer",):
                columns[name] = self.mean(name), self.stderr(name)
            elif name == "eigenvalues" and axes == ("layer", "mode"):
                mean, stderr = self.mean(name), self.stderr(name)
                columns["smallest_eigenvalue"] = mean[:, 0], stderr[:, 0]
                columns["largest_eigenvalue"] = mean[:, -1], stderr[:, -1]
        return [
            {"layer": int(self.layers[row])}
            | {name: _number(mean[row], error[row]) for name, (mean, error) in columns.items()}
            for row in _shown(self.layers)
        ]

    def _over_chains(self, name: str) -> Moments:
        if name in self.moments:
            return self.moments[name]
        values = self[name]
        with np.errstate(invalid="ignore", divide="ignore"):
            squares = np.square(values - values.mean(axis=0)).sum(axis=0)
            variance = squares / (len(values) - 1) if len(values) > 1 else squares * np.nan
        return Moments(len(values), values.mean(axis=0), variance)

    def to_xarray(self) -> xarray.Dataset:
        """Return the run as an `xarray.Dataset`; needs the extra ``xarray``.

        Moments become variables ``name_mean`` and ``name_variance``.  Chain, key and versions are
        attributes.  Of a run in a store, values are read when they are asked for.
        """
        xr = import_extra("xarray", "xarray")
        stored: Any = self.observables
        if hasattr(stored, "to_xarray"):
            dataset: xarray.Dataset = stored.to_xarray()
            dataset.attrs = self.attributes()
            return dataset
        variables: dict[str, Any] = {
            name: (self.dims[name], values) for name, values in self.observables.items()
        }
        for name, moments in self.moments.items():
            variables[f"{name}_mean"] = (self.dims[name], moments.mean)
            variables[f"{name}_variance"] = (self.dims[name], moments.variance)
        used = {axis for axes, _ in variables.values() for axis in axes}
        numbers = {"layer": self.layers, "chain": np.arange(self.chains)}
        coordinates = {axis: numbers[axis] for axis in numbers if axis in used}
        return xr.Dataset(variables, coordinates, self.attributes())

    def to_datatree(self) -> xarray.DataTree:
        """Return the run as an `xarray.DataTree` with the group ``run``, as ArviZ has them."""
        xr = import_extra("xarray", "xarray")
        return xr.DataTree.from_dict({"run": self.to_xarray()})

    def attributes(self) -> dict[str, Any]:
        """Return chain, key, sampler, dtype, processor and version of bnmc, as plain values."""
        from bnmc._support.version import __version__

        return {
            "bnmc_version": __version__,
            "chain": repr(shown_of(self.network)),
            **(_options_of(self.chain) if self.network.is_repeated else {}),
            "key": str(self.key),
            "inputs": 0 if self.inputs is None else self.inputs,
            **{name: getattr(self, name) for name in _OF_RUN},
        }


def _options_of(chain: Chain) -> dict[str, Any]:
    return {
        "activation": chain.activation.name,
        "weights": chain.weights if isinstance(chain.weights, str) else "user",
        "convolution": repr(chain.convolution),
        **{name: getattr(chain, name) for name in _OF_CHAIN},
    }


def _shown(layers: NDArray[np.int64]) -> list[int]:
    """Return at most `_MOST_ROWS` indices: of the first, the last, and round layers between."""
    if not len(layers):
        return []
    for steps in ((1, 2, 5), (1,)):
        round_layers = [step * 10**power for power in range(10) for step in steps]
        nearest = {int(np.abs(layers - layer).argmin()) for layer in round_layers}
        if len(nearest) <= _MOST_ROWS - 2:
            break
    return sorted(nearest | {0, len(layers) - 1})


def _number(mean: float, stderr: float) -> dict[str, float | None]:
    return {"mean": float(mean), "stderr": None if np.isnan(stderr) else float(stderr)}


def _cell(number: dict[str, float]) -> str:
    mean, stderr = number["mean"], number["stderr"]
    if not stderr:
        return f"{mean:.6g}"
    # Further digits of the mean would be rounding errors.
    return with_error(mean, stderr) if stderr > 1e-7 * abs(mean) else f"{mean:.6g} ± {stderr:.1g}"
