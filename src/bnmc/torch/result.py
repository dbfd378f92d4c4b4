"""`Measurement`: the result of `bnmc.torch.measure`."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bnmc._support.arguments import real
from bnmc._support.extras import import_extra
from bnmc._support.text import text_table
from bnmc.errors import ArgumentError, PartialEstimateError
from bnmc.estimate.estimate import Estimate, growth_estimate, layers_of_growth
from bnmc.torch.prediction import Prediction
from bnmc.torch.reading import ModelChain
from bnmc.torch.representations import SOFT_THRESHOLD
from bnmc.torch.verdicts import Findings, verdict

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

__all__ = ["Measurement"]

FloatArray = NDArray[np.float64]

#: The largest number of layers in a table.
_SHOWN = 24

#: The columns of the table: heads and attributes.
_COLUMNS = {
    "rank": "rank", "soft rank": "soft_rank", "rank bound": "rank_bound",
    "gap": "orthogonality_gap", "correlation": "mean_correlation", "isometry": "isometry",
    "scale": "scale", "‖∂L/∂W‖": "layer_gradient_norm",
}  # fmt: skip


@dataclass(frozen=True, eq=False, repr=False)
class Measurement:
    """The representations of a batch in the layers of a model, and gradients of a loss.

    ``print`` shows the table and the verdict. Arrays have the shape (networks, layers, ...).

    Attributes
    ----------
    model : str
        Class of the model.
    samples : int
        Number n of samples of the batch.
    layers : tuple of str
        Names of the layers. The second call of a module has the name of the module and "#2".
    layouts : tuple of str
        Shape of the output of each layer, in words.
    view : {"sample", "position"}
        The rows of a representation: whole samples, flattened, or all positions of all samples
        with their features. n' and d' are the numbers of rows and features.
    gram : (networks, layers, n, n) ndarray of float64
        Gram matrices of the flattened samples, `bnmc.gram.gram`; also the mean over positions of
        the Gram matrices of the positions.
    spectrum : tuple of (networks, min(n', d')) ndarray of float64
        For each layer the squared singular values of the rows, divided by d', ascending.
    rank : (networks, layers) ndarray of int
        Number of singular values above `rank_threshold` times the largest one.
    rank_threshold : (layers,) ndarray of float64
        max(n', d') times the rounding unit of the dtype of the output.
    soft_rank : (networks, layers) ndarray of int
        `bnmc.gram.soft_rank` at τ = `soft_threshold` of the rows divided by `scale`, so that it
        does not depend on the scale: the number of squared singular values of at least τ n'.
    soft_threshold : float
        0.5.
    rank_bound, orthogonality_gap : (networks, layers) ndarray of float64
        `bnmc.gram.rank_bound` and `bnmc.gram.orthogonality_gap` of the rows.
    mean_correlation : (networks, layers) ndarray of float64
        Mean cosine of the angle between two different rows that are not zero.
    isometry : (networks, layers) ndarray of float64
        det(G)^(1/n') / (Tr(G)/n') of the Gram matrix G of the rows, in [0, 1]; 0 if the rows are
        linearly dependent. 1 for orthogonal rows of equal norms.
    scale : (networks, layers) ndarray of float64
        Root mean square of the output.
    loss : (networks,) ndarray of float64 or None
        Mean loss of the batch.
    parameters : tuple of str
        Names of the parameters that have ``requires_grad``; empty without a loss.
    gradient_norm : (networks, parameters) ndarray of float64 or None
        Frobenius norms of the gradients of the mean loss.
    gradient_cosine : (networks, parameters, n, n) ndarray of float64 or None
        Cosines between the gradients of the losses of single samples. NaN where a sample has no
        gradient. None if the loss is one number of the batch, or if there are many parameters and
        ``cosines=True`` was not given.
    layer_gradient_norm : (networks, layers) ndarray of float64 or None
        Norms of the gradients by the weights (arrays of two or more axes) of each layer. NaN for
        layers without weights.
    comparable : tuple of int
        The layers whose weights have the same shapes, the most frequent ones. The growth of
        gradients refers to these layers.
    reading : ModelChain
        The chain of the model, and what does not fit.
    prediction : Prediction
        The mean field beside the measurement, or the reason why it does not apply.
    notes : tuple of str
        Remarks on the measurement.

    Notes
    -----
    If an output is zero everywhere, rank, soft rank, rank bound, isometry and scale are 0, and
    `orthogonality_gap` and `mean_correlation` are NaN.

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> from bnmc.torch import measure
    >>> blocks = [nn.Sequential(nn.Linear(32, 32), nn.BatchNorm1d(32), nn.ReLU()) for _ in range(3)]
    >>> found = measure(nn.Sequential(*blocks, nn.Linear(32, 2)), torch.randn(8, 32))
    >>> found.layers, found.gram.shape, found.loss is None
    (('0', '1', '2'), (1, 3, 8, 8), True)
    """

    model: str
    samples: int
    layers: tuple[str, ...]
    layouts: tuple[str, ...]
    view: str
    gram: FloatArray
    spectrum: tuple[FloatArray, ...] = field(repr=False)
    rank: NDArray[np.int64]
    rank_threshold: FloatArray
    soft_rank: NDArray[np.int64]
    rank_bound: FloatArray
    orthogonality_gap: FloatArray
    mean_correlation: FloatArray
    isometry: FloatArray
    scale: FloatArray
    loss: FloatArray | None
    parameters: tuple[str, ...]
    gradient_norm: FloatArray | None
    gradient_cosine: FloatArray | None
    layer_gradient_norm: FloatArray | None
    comparable: tuple[int, ...]
    reading: ModelChain
    prediction: Prediction
    notes: tuple[str, ...]
    soft_threshold: float = SOFT_THRESHOLD

    @property
    def networks(self) -> int:
        """Number of networks."""
        return len(self.scale)

    @property
    def verdict(self) -> str:
        """One or two sentences on gradients and ranks."""
        return verdict(self._findings())

    def __repr__(self) -> str:
        gradients = "" if self.gradient_norm is None else ", with gradients"
        return (
            f"<Measurement of {self.model}: {self.networks} network{'s'[: self.networks > 1]}, "
            f"{len(self.layers)} layers, {self.samples} samples{gradients}>"
        )

    def __str__(self) -> str:
        return f"{self.table()}\n\n{self.verdict}"

    def table(self) -> str:
        """Return a table as text: one line for each layer, and the mean field below.

        Numbers are means over networks. With several networks, the standard errors follow after ±.
        Of more than 24 layers it shows 24.

        Returns
        -------
        str
        """
        shown = sorted({
            round(k * (len(self.layers) - 1) / (_SHOWN - 1)) for k in range(_SHOWN)
        })  # fmt: skip
        columns = {
            head: values
            for head, name in _COLUMNS.items()
            if (values := getattr(self, name)) is not None
        }
        rows = [
            [self.layers[layer], *(_mean(values[:, layer]) for values in columns.values())]
            for layer in shown
        ]
        if self.prediction.applies:
            predicted = self.prediction.values
            rows.append(["infinite width", *(
                f"{predicted[name]:.4g}" if name in predicted else ""
                for head, name in _COLUMNS.items() if head in columns
            )])  # fmt: skip
        networks = "1 network" if self.networks == 1 else f"{self.networks} networks"
        lines = [f"{self.model}, {networks}; rows are {self.view}s", *self._layout_lines()]
        lines.append(text_table(["layer", *columns], rows, align="<>"))
        lines.append(
            f"rank: singular values above {self.rank_threshold.max():.1e} of the largest; soft "
            f"rank: squares of at least {self.soft_threshold} n in units of the scale"
        )
        if self.loss is not None:
            lines.append(f"loss: {_mean(self.loss)}")
        lines.append(self.prediction.sentence(self._growth()))
        lines.extend(f"note: {note}" for note in self.notes)
        return "\n".join(lines)

    def rate(
        self, *, first: int | None = None, last: int | None = None, level: float = 0.95
    ) -> Estimate:
        r"""Return the growth of the squared gradient norm per layer, towards the input.

        With g_k the norm of the gradient by the weights of the k-th comparable layer, it is
        ``exp(2 E[ln g_first − ln g_last] / (last − first))``, by the mean over networks. At
        infinite width it tends to `bnmc.mean_field.FixedPoint.backward_rate`.

        Parameters
        ----------
        first, last : int, optional
            Positions in `comparable`. The defaults are a quarter and three quarters of their
            number, as in `bnmc.gradients.Backpropagation.rate`.
        level : float, default 0.95
            Level of the interval, which is Student's, for the logarithm.

        Returns
        -------
        Estimate

        Raises
        ------
        ArgumentError
            If there is no loss, or not ``0 <= first < last < len(comparable)``.
        PartialEstimateError
            If there are fewer than two networks, or a gradient is zero.
        """
        if self.layer_gradient_norm is None:
            raise ArgumentError("loss", None, "a loss, to measure gradients")
        level = real("level", level, above=0.0, below=1.0)
        begin, end = layers_of_growth(first, last, len(self.comparable))
        norms = self.layer_gradient_norm[:, list(self.comparable)]
        if not (norms[:, [begin, end]] > 0.0).all():
            raise PartialEstimateError("the gradient of a layer is zero", None)
        growth = 2.0 * np.log(norms[:, begin] / norms[:, end]) / (end - begin)
        names = [self.layers[self.comparable[place]] for place in (begin, end)]
        method = f"growth of gradient norms, {names[0]} to {names[1]}"
        return growth_estimate(growth, level, method, "networks")

    def plot(self) -> Figure:
        """Draw ranks and correlations, and gradient norms, against the layers.

        Returns
        -------
        matplotlib.figure.Figure

        Raises
        ------
        MissingExtraError
            Without Matplotlib (extra ``plot``).
        """
        from bnmc.plot.measurements import measurement

        rate = self.prediction.values.get("backward_rate") if self.prediction.applies else None
        return measurement(self, rate=rate)

    def to_xarray(self) -> xarray.Dataset:
        """Return the result as a dataset (extra ``xarray``).

        Returns
        -------
        xarray.Dataset
            `gram` has the dimensions (network, layer, sample_i, sample_j), `gradient_norm` has
            (network, parameter), and numbers of layers have (network, layer).
        """
        xr: Any = import_extra("xarray", "xarray")
        data: dict[str, Any] = {"gram": (("network", "layer", "sample_i", "sample_j"), self.gram)}
        for name in (
            "rank", "soft_rank", "rank_bound", "orthogonality_gap", "mean_correlation", "isometry",
            "scale", "layer_gradient_norm",
        ):  # fmt: skip
            if getattr(self, name) is not None:
                data[name] = (("network", "layer"), getattr(self, name))
        data["rank_threshold"] = (("layer",), self.rank_threshold)
        if self.gradient_norm is not None:
            data["loss"] = (("network",), self.loss)
            data["gradient_norm"] = (("network", "parameter"), self.gradient_norm)
        if self.gradient_cosine is not None:
            axes = ("network", "parameter", "sample_i", "sample_j")
            data["gradient_cosine"] = (axes, self.gradient_cosine)
        coordinates: dict[str, Any] = {
            "network": np.arange(self.networks), "layer": list(self.layers),
        }  # fmt: skip
        if self.parameters:
            coordinates["parameter"] = list(self.parameters)
        attributes = {
            "model": self.model, "view": self.view, "soft_threshold": self.soft_threshold,
            "verdict": self.verdict,
        }  # fmt: skip
        dataset: xarray.Dataset = xr.Dataset(data, coordinates, attributes)
        return dataset

    def to_dict(self) -> dict[str, Any]:
        """Return the table, the prediction and the verdict, for JSON.

        Returns
        -------
        dict
            Means over networks, and standard errors if there are several; None for NaN.
        """
        rows = []
        for layer, name in enumerate(self.layers):
            row: dict[str, Any] = {"layer": name, "layout": self.layouts[layer]}
            for attribute in _COLUMNS.values():
                values = getattr(self, attribute)
                if values is not None:
                    row[attribute] = _known(values[:, layer].mean())
                    if self.networks > 1:
                        row[f"{attribute}_stderr"] = _known(_error(values[:, layer]))
            rows.append(row)
        gradients = None
        if self.gradient_norm is not None:
            means = self.gradient_norm.mean(axis=0).tolist()
            gradients = dict(zip(self.parameters, means, strict=True))
        return {
            "model": self.model, "networks": self.networks, "samples": self.samples,
            "view": self.view, "table": rows, "gradient_norm": gradients,
            "loss": None if self.loss is None else float(self.loss.mean()),
            "chain": None if self.reading.chain is None else repr(self.reading.chain),
            "unfit": list(self.reading.unfit), "prediction": self.prediction.to_dict(),
            "notes": list(self.notes), "verdict": self.verdict,
        }  # fmt: skip

    def _layout_lines(self) -> list[str]:
        """Return one line for each run of layers with the same layout."""
        lines: list[str] = []
        begin = 0
        for layer, layout in enumerate(self.layouts):
            last = layer + 1 == len(self.layouts)
            if last or self.layouts[layer + 1] != layout:
                names = self.layers[begin] if begin == layer else (
                    f"{self.layers[begin]} to {self.layers[layer]}"
                )  # fmt: skip
                lines.append(f"layout of {names}: {layout}")
                begin = layer + 1
        return lines

    def _growth(self) -> tuple[float, float] | None:
        """Return growth per layer and its standard error (NaN for one network), if known."""
        try:
            rate = self.rate()
        except ArgumentError:
            return None
        except PartialEstimateError as error:
            partial: Any = error.partial
            return None if partial is None else (float(partial), math.nan)
        return rate.value, rate.stderr

    def _findings(self) -> Findings:
        norms = None
        if self.layer_gradient_norm is not None and len(self.comparable) > 1:
            norms = self.layer_gradient_norm[:, list(self.comparable)]
        return Findings(
            gradient_norms=norms, rank=self.rank, soft_rank=self.soft_rank,
            mean_correlation=self.mean_correlation,
            most=np.array([values.shape[1] for values in self.spectrum]), view=self.view,
            threshold=float(self.rank_threshold.max()),
        )  # fmt: skip


def _mean(values: NDArray[Any]) -> str:
    """Return mean and standard error over networks."""
    mean = float(values.mean())
    if math.isnan(mean):
        return "-"
    text = f"{mean:.4g}"
    return text if len(values) == 1 else f"{text} ± {_error(values):.1g}"


def _error(values: NDArray[Any]) -> float:
    return float(values.std(ddof=1)) / math.sqrt(len(values))


def _known(value: Any) -> float | None:
    number = float(value)
    return None if math.isnan(number) else number
