"""The result of a training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bnmc._support.arguments import Float64Array, integer, real
from bnmc._support.extras import import_extra
from bnmc._support.text import plain, text_table
from bnmc.chain.chain import Network, options_of, shown_of
from bnmc.errors import ArgumentError, PartialEstimateError
from bnmc.estimate.estimate import Estimate, with_error
from bnmc.plot import axes
from bnmc.simulation.trajectory import Recordings

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes

#: Rows of the table that `print` shows.
_MOST_ROWS = 12


@dataclass(frozen=True, eq=False, repr=False)
class Training(Recordings):
    """Networks through training; `bnmc.train` returns it, and ``print`` shows a table.

    An observable is an item, ``run["gradient_norm"]``, and an attribute, ``run.gradient_norm``: an
    array of shape (chains, steps, ...).  The values of a network that diverged are NaN from the
    step on at which it did.

    Attributes
    ----------
    network : Network
        Without the readout.
    steps : (times,) ndarray of int
        The recorded steps: that many steps were made.
    loss : (chains, times) ndarray of float64
        Of all training inputs.
    outputs : (chains, times, samples, outputs) ndarray of float64
        For the training inputs.
    test_outputs : (chains, times, tests, outputs) ndarray of float64, or None
        For the test inputs.
    batch_loss : (chains, steps) ndarray of float64
        Of the samples of each step, before the step.
    observables : dict of ndarray
        Values by name.
    dims : dict of tuple of str
        Names of the axes of each observable.
    layers : tuple of int
        The layers of observables that are functions of Gram matrices.
    diverged : (chains,) ndarray of int
        The first step after which a network left the range of numbers; −1 if none did.
    targets : (samples, outputs) ndarray of float64
        Of the loss.
    parameters : tuple of str
        The names of the matrices: "layer 1", …, of the matrix that leads to the layer, "readout",
        and then "projection to layer 3" and "bias of layer 1", …
    matrices : tuple of str
        "implicit" or "drawn" for each matrix.
    asked : (chains, matrices, 2) ndarray of int
        Numbers of directions of each implicit matrix and of its transpose.
    settings : dict of str to object
        Loss, optimizer, parametrization and the other arguments of the training.
    key : int
        The 64-bit key of all random numbers: as `rng` it repeats the training.
    cpu : str
        The kind of processor and the BLAS of NumPy: with the same ones, the same key gives the same
        bits.
    complete : bool
        False if `timeout` or Ctrl-C ended the training.

    Examples
    --------
    >>> import bnmc, numpy as np
    >>> x = np.random.default_rng(0).standard_normal((10, 6))
    >>> network = bnmc.Network.of(width=[10, 500, 500], batch=6, activation="tanh", norm="none")
    >>> run = bnmc.train(network, x, [0, 1] * 3, steps=20, learning_rate=0.1, chains=4, rng=0)
    >>> run.loss.shape, run.outputs.shape
    ((4, 21), (4, 21, 6, 2))
    >>> run.estimate("loss").value < run.estimate("loss", 0).value
    True
    """

    network: Network
    steps: NDArray[np.int64]
    loss: Float64Array
    outputs: Float64Array
    test_outputs: Float64Array | None
    batch_loss: Float64Array
    observables: Mapping[str, Float64Array] = field(repr=False)
    dims: Mapping[str, tuple[str, ...]]
    layers: tuple[int, ...]
    diverged: NDArray[np.int64]
    targets: Float64Array
    parameters: tuple[str, ...]
    matrices: tuple[str, ...]
    asked: NDArray[np.int64]
    settings: Mapping[str, Any]
    key: int
    cpu: str
    complete: bool

    @property
    def chains(self) -> int:
        """Number of networks."""
        return len(self.loss)

    @property
    def survivors(self) -> NDArray[np.bool_]:
        """Whether each network stayed in the range of numbers."""
        return self.diverged < 0

    @property
    def kernel_change(self) -> Float64Array:
        """‖Θ_t − Θ_s‖/‖Θ_s‖ of the tangent kernel, (chains, times), s the first recorded step.

        Raises
        ------
        ArgumentError
            If "kernel" was not recorded.
        """
        kernel = self._kernel()
        change = np.linalg.norm(kernel - kernel[:, :1], axis=(2, 3))
        return np.asarray(change / np.linalg.norm(kernel[:, :1], axis=(2, 3)))

    @property
    def kernel_alignment(self) -> Float64Array:
        """⟨Θ, y yᵀ⟩/(‖Θ‖ ‖y‖²) of the tangent kernel and the targets y, (chains, times).

        Each output of the targets is centred over samples.  The largest value, 1, is that of a
        kernel that is a multiple of y yᵀ.

        Raises
        ------
        ArgumentError
            If "kernel" was not recorded, or centred targets are 0.
        """
        kernel = self._kernel()
        y = (self.targets - self.targets.mean(axis=0)).reshape(-1)
        if not y.any():
            raise ArgumentError("labels", "equal targets", "targets that differ between samples")
        products = np.einsum("i,ctij,j->ct", y, kernel, y)
        return np.asarray(products / np.linalg.norm(kernel, axis=(2, 3)) / (y @ y))

    @property
    def accuracy(self) -> Float64Array:
        """The part of training inputs whose largest output is that of the target, (chains, times).

        NaN for a network that diverged.
        """
        right = self.outputs.argmax(axis=-1) == self.targets.argmax(axis=-1)
        return np.where(np.isnan(self.loss), np.nan, right.mean(axis=-1))

    def values(self, name: str) -> Float64Array:
        """Return an array of the result by name, (chains, times, ...).

        Parameters
        ----------
        name : str
            "loss", "outputs", "test_outputs", "accuracy", "kernel_change", "kernel_alignment", or
            the name of an observable.

        Raises
        ------
        UnknownNameError
            If nothing has this name.
        """
        if name == "test_outputs" and self.test_outputs is None:
            raise ArgumentError("name", name, "another one, as no test inputs were given")
        if name in _VALUES:
            array: Float64Array = getattr(self, name)
            return array
        return self[name]

    def mean(self, name: str) -> Float64Array:
        """Return the mean over the networks that did not diverge, (times, ...).

        It is biased if networks diverged; see `median`.
        """
        return np.asarray(self._of_survivors(name).mean(axis=0))

    def stderr(self, name: str) -> Float64Array:
        """Return the standard error of `mean`; NaN for a single network."""
        values = self._of_survivors(name)
        if len(values) < 2:
            return np.full(values.shape[1:], np.nan)
        return np.asarray(values.std(axis=0, ddof=1) / np.sqrt(len(values)))

    def median(self, name: str) -> Float64Array:
        """Return the median over all networks, (times, ...); values of diverged ones count as ∞."""
        values = self.values(name)
        with np.errstate(invalid="ignore"):  # the mean of two infinite numbers
            return np.asarray(np.median(np.where(np.isnan(values), np.inf, values), axis=0))

    def estimate(self, name: str, step: int | None = None, *, level: float = 0.95) -> Estimate:
        """Return the mean over networks of a number at a recorded step.

        Parameters
        ----------
        name : str
            As for `values`, of an array (chains, times).
        step : int, optional
            A recorded step; the last one by default.
        level : float, default 0.95
            Level of the interval.

        Returns
        -------
        Estimate
            Over the networks that did not diverge, whose number is ``n``.

        Raises
        ------
        ArgumentError
            If the array has other axes, or the step was not recorded.
        PartialEstimateError
            If fewer than two networks did not diverge.
        """
        values = self._of_survivors(name)
        if values.ndim != 2:
            raise ArgumentError("name", name, "the name of one number for each network and step")
        last = int(self.steps[-1])
        number = last if step is None else integer("step", step, low=0, high=last)
        if number not in self.steps:
            raise ArgumentError("step", number, f"a recorded step: {self.steps.tolist()}")
        if len(values) < 2:
            raise PartialEstimateError(f"{len(values)} networks did not diverge", None)
        method = f"{name} after {number} steps"
        at = int(np.searchsorted(self.steps, number))
        return Estimate.from_samples(values[:, at], level=level, method=method)

    def plot(self, *, ax: Axes | None = None, level: float = 0.9) -> Axes:
        """Draw the loss of the training inputs against the steps.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            Axes to draw on; by default those of a new figure.
        level : float, default 0.9
            Fraction of the networks in the band around the median.

        Returns
        -------
        matplotlib.axes.Axes

        Raises
        ------
        MissingExtraError
            Without Matplotlib (extra ``plot``).
        ArgumentError
            If `level` is not in (0, 1).

        Examples
        --------
        >>> import bnmc, numpy as np
        >>> x = np.random.default_rng(0).standard_normal((10, 6))
        >>> network = bnmc.Chain(300, 6, "relu").repeat(2)
        >>> run = bnmc.train(network, x, [0, 1] * 3, steps=5, learning_rate=0.1, chains=4, rng=0)
        >>> run.plot().get_ylabel()
        'loss'
        """
        level = real("level", level, above=0.0, below=1.0)
        if ax is None:
            ax = axes.figure()[1][0]
            ax.set_title(axes.about_network(self.network), fontsize="medium")
        values = np.where(np.isnan(self.loss), np.inf, self.loss)
        quantiles = (0.5, 0.5 - level / 2, 0.5 + level / 2)
        curves = np.quantile(values, quantiles, axis=0, method="closest_observation")
        shown = np.where(np.isfinite(curves), curves, np.nan)
        axes.draw_mean(ax, self.steps, shown, "training inputs, median")
        axes.label_layers(ax, "step")
        ax.set_ylabel("loss")
        ax.set_yscale("log")
        ax.legend(fontsize="small")
        return ax

    def to_xarray(self) -> xarray.Dataset:
        """Return the result as a dataset (extra ``xarray``).

        Returns
        -------
        xarray.Dataset
            `loss`, `outputs`, `test_outputs` and the observables with the dimensions (chain, step,
            …), and `batch_loss` with (chain, batch_step).
        """
        xr: Any = import_extra("xarray", "xarray")
        data: dict[str, Any] = {
            "loss": (("chain", "step"), self.loss),
            "outputs": (("chain", "step", "sample", "output"), self.outputs),
            "batch_loss": (("chain", "batch_step"), self.batch_loss),
            "diverged": (("chain",), self.diverged),
        }
        if self.test_outputs is not None:
            data["test_outputs"] = (("chain", "step", "test", "output"), self.test_outputs)
        for name, values in self.observables.items():
            data[name] = (("chain", "step", *self.dims[name]), values)
        coordinates: dict[str, Any] = {"step": self.steps, "chain": np.arange(self.chains)}
        if any("layer" in axes for axes in self.dims.values()):
            coordinates["layer"] = list(self.layers)
        if any("matrix" in axes for axes in self.dims.values()):
            coordinates["matrix"] = list(self.parameters)
        return xr.Dataset(data, coordinates, self._facts())

    def to_dict(self) -> dict[str, Any]:
        """Return the table that `print` shows, and what repeats the training, for `json.dumps`."""
        return {
            "network": options_of(self.network), "settings": plain(dict(self.settings)),
            "chains": self.chains, "diverged": int((~self.survivors).sum()),
            "matrices": list(self.matrices), "rows": self._rows(), "complete": self.complete,
            "key": str(self.key), "cpu": self.cpu,
        }  # fmt: skip

    def __repr__(self) -> str:
        recorded = ", ".join(["loss", "outputs", *self.observables])
        return (
            f"<Training of {self.chains} networks, {self.batch_loss.shape[1]} steps"
            f"{'' if self.complete else ', interrupted'}: {recorded}; {shown_of(self.network)}>"
        )

    def __str__(self) -> str:
        rows = [
            [str(row["step"]), *(_cell(each) for name, each in row.items() if name != "step")]
            for row in self._rows()
        ]
        heads = ["step", *(name.replace("_", " ") for name in self._columns())]
        networks = "1 network" if self.chains == 1 else f"{self.chains} networks"
        lines = [
            f"{shown_of(self.network)}: {networks}, {self.batch_loss.shape[1]} steps",
            ", ".join(f"{name} {_text(value)}" for name, value in self.settings.items()),
            text_table(heads, rows, align=">"),
        ]
        if self.chains > 1:
            lines.append("mean ± standard error (median) over networks")
        thin = self.parameters[0], "readout", "bias"
        hidden = [
            kind
            for name, kind in zip(self.parameters, self.matrices, strict=True)
            if not name.startswith(thin)
        ]
        if hidden:
            count = hidden.count("implicit")
            lines.append(f"hidden matrices: {count} implicit, {len(hidden) - count} drawn")
        lost = int((~self.survivors).sum())
        if lost:
            first = int(self.diverged[~self.survivors].min())
            lines.append(f"diverged: {lost} of {networks}, the first one after {first} steps")
            lines.append("means are those of the other networks; medians count all")
        if not self.complete:
            lines.append("incomplete: the training was interrupted")
        return "\n".join(lines)

    def _kernel(self) -> Float64Array:
        if "kernel" not in self.observables:
            allowed = "with 'kernel'"
            raise ArgumentError("observables", list(self.observables), allowed)
        return self.observables["kernel"]

    def _of_survivors(self, name: str) -> Float64Array:
        values = self.values(name)[self.survivors]
        if not len(values):
            raise PartialEstimateError("all networks diverged", None)
        return values

    def _columns(self) -> list[str]:
        """Return the names of what the table shows."""
        columns = ["loss"]
        if self.settings["loss"] == "cross-entropy":
            columns.append("accuracy")
        if "kernel" in self.observables:
            columns.append("kernel_change")
        return columns

    def _rows(self) -> list[dict[str, Any]]:
        """Return step, means, standard errors and medians of some recorded steps."""
        times = len(self.steps)
        shown = sorted({round(k * (times - 1) / (_MOST_ROWS - 1)) for k in range(_MOST_ROWS)})
        some = bool(self.survivors.any())
        table = {}
        for name in self._columns():
            none = np.full(times, np.nan)
            mean, stderr = (self.mean(name), self.stderr(name)) if some else (none, none)
            table[name] = mean, stderr, self.median(name)
        return [
            {"step": int(self.steps[at])}
            | {
                name: dict(zip(("mean", "stderr", "median"), (float(x[at]) for x in each),
                               strict=True))
                for name, each in table.items()
            }
            for at in shown
        ]  # fmt: skip

    def _facts(self) -> dict[str, str]:
        settings = {name: str(value) for name, value in self.settings.items()}
        return {
            "network": repr(shown_of(self.network)), **settings,
            "matrices": ", ".join(self.matrices), "key": str(self.key), "cpu": self.cpu,
        }  # fmt: skip


#: Names of arrays that are no observables.
_VALUES = ("loss", "outputs", "test_outputs", "accuracy", "kernel_change", "kernel_alignment")


def _cell(number: Mapping[str, float]) -> str:
    mean, stderr, median = number["mean"], number["stderr"], number["median"]
    middle = f"{median:.4g}" if np.isfinite(median) else "diverged"
    if np.isnan(stderr):
        return middle
    shown = with_error(mean, stderr) if stderr > 0.0 else f"{mean:.4g}"
    return f"{shown} ({middle})"


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
