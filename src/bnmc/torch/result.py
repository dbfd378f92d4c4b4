"""`Measurement`: the result of `bnmc.torch.measure`, with its table and its verdict in words."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bnmc._support.arguments import real
from bnmc._support.extras import import_extra
from bnmc._support.text import Result, fitting, text_table, wrapped
from bnmc.errors import ArgumentError, PartialEstimateError
from bnmc.estimate.estimate import Estimate, growth_estimate, layers_of_growth
from bnmc.torch.facts import Facts
from bnmc.torch.outlook import (
    Outlook,
    compared,
    distance_from_healthy,
    factor,
    is_cured,
    is_doubtful,
    outlook_of,
    said,
)
from bnmc.torch.prediction import Prediction, band_of, left_out, shown_of
from bnmc.torch.reading import ModelNetwork
from bnmc.torch.representations import SOFT_THRESHOLD, FloatArray

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

#: The numbers of each layer, with their heads in the table; "" for those that it does not show.
_HEADS = {
    "effective_rank": "effective rank", "rank": "rank", "soft_rank": "soft rank", "rank_bound": "",
    "orthogonality_gap": "gap", "mean_correlation": "correlation", "isometry": "", "scale": "scale",
    "state_gradient_ratio": "‖∂L/∂h‖", "layer_gradient_norm": "‖∂L/∂W‖",
}  # fmt: skip

#: Columns that a table leaves out if it is too wide, the first one first.
_LEAST_USEFUL = ("gap", "rank", "soft rank", "scale")

#: From so many networks on, order statistics are the ends of a band of 90 %.
_OF_BAND = 19


@dataclass(frozen=True, eq=False, repr=False)
class Measurement(Result):
    """The representations of a batch in the layers of a model, and gradients of a loss.

    ``print`` shows the verdict, other cures if some were tried, and the tables. Arrays have the
    shape (networks, layers, ...).

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
        Number of eigenvalues of the Gram matrix of the rows, the squared singular values, of at
        least `soft_threshold` times their mean, over min(n', d') of them.
    soft_threshold : float
        0.1.
    effective_rank : (networks, layers) ndarray of float64
        exp of the entropy of the normalized singular values.
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
    state_gradient_ratio : (networks, layers) ndarray of float64 or None
        Norms of the gradients by the outputs of the layers, ∂L/∂h, over that of the last layer with
        the most frequent shape of the output. NaN for layers that the loss does not depend on.
    comparable : tuple of int
        The layers whose weights have the same shapes, the most frequent ones. The growth of
        gradients refers to these layers.
    reading : ModelNetwork
        The network of the model, and what does not fit.
    prediction : Prediction
        What random networks of these layers, widths and batch give, or why there is none.
    notes : tuple of str
        Remarks on the measurement.
    largest_rate : (networks,) ndarray of float64 or None
        The largest learning rate at which gradient descent of the linearized model is stable, 2/λ
        with λ the largest eigenvalue of the Gauss-Newton matrix of the loss.
    draws : tuple of Facts
        The facts of each network. If one fact of a single network, other by a factor of 3, would
        change the outlook, those of 7 copies with new weights follow.
    tried : dict of str to Facts
        With ``tries=True``: the facts after each cure of the weights, if the model needs one.
    fall : float or None
        With ``tries=True``: the loss after 20 steps of Adam at the best rate, over the chance.
    after : Facts or None
        With ``tries=True``: the facts after these steps.
    by_width : dict of int to Measurement
        With ``widths=``: the same architecture at each width.

    Notes
    -----
    If an output is zero everywhere, all ranks, the rank bound, isometry and scale are 0, and
    `orthogonality_gap` and `mean_correlation` are NaN.

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> from bnmc.torch import measure
    >>> blocks = [nn.Sequential(nn.Linear(32, 32), nn.BatchNorm1d(32), nn.ReLU()) for _ in range(3)]
    >>> measurement = measure(nn.Sequential(*blocks, nn.Linear(32, 2)), torch.randn(8, 32))
    >>> measurement.layers, measurement.gram.shape, measurement.loss is None
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
    effective_rank: FloatArray
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
    state_gradient_ratio: FloatArray | None
    comparable: tuple[int, ...]
    reading: ModelNetwork
    prediction: Prediction
    notes: tuple[str, ...]
    draws: tuple[Facts, ...]
    fall: float | None = None
    after: Facts | None = None
    tried: dict[str, Facts] = field(default_factory=dict)
    by_width: dict[int, Measurement] = field(default_factory=dict)
    soft_threshold: float = SOFT_THRESHOLD
    largest_rate: FloatArray | None = None

    @property
    def networks(self) -> int:
        """Number of networks."""
        return len(self.scale)

    @property
    def facts(self) -> Facts:
        """The facts of the first network, from which the outlook follows."""
        return self.draws[0]

    @property
    def outlook(self) -> Outlook:
        """Whether SGD and Adam train the model, by rules that training decided."""
        return outlook_of(self.draws, self.fall, self.after)

    @property
    def cures(self) -> tuple[str, ...]:
        """What to try: cures that were tried and help, then others, the worst fault first.

        A cure after which a fact is near its threshold is not sure to help, so it comes last.
        """
        best_first = sorted(self.tried.items(), key=lambda item: distance_from_healthy(item[1]))
        helpful = [(name, after) for name, after in best_first if is_cured(self.facts, after)]
        sure = [
            compared(name, self.facts, after) for name, after in helpful if not is_doubtful(after)
        ]
        unsure = [
            compared(name, self.facts, after) for name, after in helpful if is_doubtful(after)
        ]
        others = self.outlook.cures
        if unsure and not sure:
            name = next(name for name, after in helpful if is_doubtful(after))
            hedged = f"{others[0]}; {name} was tried, and helps, but not surely"
            others = hedged, *others[1:]
        return (*sure, *others, *unsure)

    @property
    def verdict(self) -> str:
        """At most three sentences: what is wrong, the numbers, and what to try.

        With `largest_rate` there is one more: the rate, the smallest one of several networks. If
        batch norms are in eval mode, the first sentence says so, and is one more.
        """
        cures = self.cures
        sentences = said(
            self.outlook, self.facts, f"{self.view}s", cures[0] if cures else "", self.fall
        )
        if self.largest_rate is None:
            return sentences
        rate = f"{self.largest_rate.min():.3g}, in the linearized model"
        return f"{sentences} The largest stable learning rate of gradient descent is {rate}."

    def __repr__(self) -> str:
        gradients = "" if self.gradient_norm is None else ", with gradients"
        return (
            f"<Measurement of {self.model}: {self.networks} network{'s'[: self.networks > 1]}, "
            f"{len(self.layers)} layers, {self.samples} samples{gradients}>"
        )

    def __str__(self) -> str:
        return "\n".join(self.parts())

    def parts(self) -> Iterator[str]:
        """Yield what ``print`` shows in three parts, so that the first ones need not wait.

        Yields
        ------
        str
            Verdict and cures; the table of layers; random networks beside them, which then run.
        """
        others = self.cures[1:] if self.tried else ()  # the verdict ends with the first
        cures = ["other cures:", *(wrapped(f"- {cure}", "  ") for cure in others)]
        yield "\n".join([wrapped(self.verdict), *(cures if others else []), ""])
        yield self._table_of_layers()
        shown = [self.layers[layer] for layer in shown_of(len(self.layers))]
        lines = [self.prediction.table(shown)]
        if self.by_width:
            lines.append(_table_of_widths(self, self.by_width))
        yield "\n".join([*lines, *(wrapped(f"note: {note}") for note in self.notes)])

    def table(self) -> str:
        """Return a table as text: one line for each layer, and the prediction below.

        Numbers are means over networks. With several networks, the standard errors follow after ±.
        Of more than 24 layers it shows 24. `to_dict` has all layers and numbers.

        Returns
        -------
        str
        """
        return "\n".join(islice(self.parts(), 1, None))

    def _table_of_layers(self) -> str:
        """Return the measured numbers, one line for each layer."""
        shown = shown_of(len(self.layers))
        columns: list[tuple[str, str, Sequence[str]]] = [
            ("layer", "layer", [self.layers[layer] for layer in shown])
        ]
        for name, values in self._columns().items():
            cell = _ratio if name == "state_gradient_ratio" else _mean
            columns.append((_HEADS[name], _HEADS[name], [cell(values[:, k]) for k in shown]))
        columns, gone = fitting([column for column in columns if column[0]], _LEAST_USEFUL)
        rows = list(zip(*(cells for _, _, cells in columns), strict=True))
        networks = "1 network" if self.networks == 1 else f"{self.networks} networks"
        lines = [f"{self.model}, {networks}; rows are {self.view}s", *self._layout_lines()]
        lines.append(text_table([head for _, head, _ in columns], rows, align="<>"))
        lines += [*left_out(len(self.layers)), *gone]
        lines.append(wrapped(
            f"rank: number of singular values above {self.rank_threshold.max():.1e} times the "
            "largest; soft rank: number of eigenvalues of the Gram matrix of at least "
            f"{self.soft_threshold} times their mean"
        ))  # fmt: skip
        if self.state_gradient_ratio is not None:
            lines.append(
                "‖∂L/∂h‖: gradients of activations, over that of the last block of the most "
                "frequent shape"
            )
        if self.loss is not None:
            lines.append(f"loss: {_mean(self.loss)}")
        return "\n".join(lines)

    def backward_rate(
        self, *, first: int | None = None, last: int | None = None, level: float = 0.95
    ) -> Estimate:
        r"""Return the growth of the squared gradient norm per layer, towards the input.

        With g_k the norm of the gradient by the weights of the k-th comparable layer, it is
        ``exp(2 E[ln g_first − ln g_last] / (last − first))``, by the mean over networks. In deep
        networks of infinite width it tends to `bnmc.mean_field.FixedPoint.backward_rate`.

        Parameters
        ----------
        first, last : int, optional
            Positions in `comparable`. The defaults are a quarter and three quarters of their
            number, as in `bnmc.gradients.Backpropagation.backward_rate`.
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

    @property
    def gradient_band(self) -> FloatArray | None:
        """Band that holds `layer_gradient_norm` of 90 % of fresh networks, (layers, 2).

        It is that of `prediction`, relative to the gradient of the last weight layer as measured.
        NaN for layers that do not have exactly one weight layer; None without a prediction.
        """
        norms, beside = self.layer_gradient_norm, self.prediction
        if norms is None or "gradient" not in beside.bands:
            return None
        band = np.full((len(self.layers), 2), np.nan)
        for layer, rows in enumerate(beside.rows_in(self.layers).values()):
            if len(rows) == 1:
                with np.errstate(divide="ignore", invalid="ignore"):
                    last = np.log(norms[:, layer]) - beside.measured["gradient"][:, rows[0]]
                    band[layer] = np.exp(last.mean() + beside.bands["gradient"][rows[0]])
        return band

    def plot(self) -> Figure:
        """Draw ranks and gradient norms against the layers.

        The ticks have the names of the table. Behind the gradient norms is the band of 90 % of
        fresh networks, if there is a `prediction`.

        Returns
        -------
        matplotlib.figure.Figure

        Raises
        ------
        MissingExtraError
            Without Matplotlib (extra ``plot``).
        """
        from bnmc.plot.gradients import measurement

        return measurement(self)

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
        data |= {name: (("network", "layer"), values) for name, values in self._columns().items()}
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
            for attribute, values in self._columns().items():
                row[attribute] = _or_none(values[:, layer].mean())
                if self.networks > 1:
                    row[f"{attribute}_stderr"] = _or_none(_error(values[:, layer]))
            rows.append(row)
        gradients = None
        if self.gradient_norm is not None:
            means = self.gradient_norm.mean(axis=0).tolist()
            gradients = dict(zip(self.parameters, means, strict=True))
        return {
            "model": self.model, "networks": self.networks, "samples": self.samples,
            "view": self.view, "rows": rows, "gradient_norm": gradients,
            "loss": None if self.loss is None else float(self.loss.mean()),
            "unfit": list(self.reading.unfit), "prediction": self.prediction.to_dict(),
            "notes": list(self.notes), "facts": self.facts.to_dict(),
            "outlook": self.outlook.to_dict(), "verdict": self.verdict,
            "cures": list(self.cures),
            "by_width": {str(width): each.to_dict() for width, each in self.by_width.items()},
        }  # fmt: skip

    def _layout_lines(self) -> list[str]:
        """Return one line for each run of layers with the same layout."""
        lines = []
        for layout, pairs in groupby(zip(self.layers, self.layouts, strict=True), itemgetter(1)):
            names = [name for name, _ in pairs]
            extent = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
            lines.append(f"layout of {extent}: {layout}")
        return lines

    def _columns(self) -> dict[str, NDArray[Any]]:
        """Return the numbers of each layer, (networks, layers), by attribute."""
        numbers = {name: getattr(self, name) for name in _HEADS}
        return {name: values for name, values in numbers.items() if values is not None}


def _table_of_widths(measurement: Measurement, wider: Mapping[int, Measurement]) -> str:
    """Return a table of the layers of a model, beside those of the architecture at other widths.

    Of several networks it shows the mean, and from 19 networks on the band that holds 90 %.
    """
    columns: list[tuple[str, str, Sequence[str]]] = [("layer", "layer", measurement.layers)]
    others = {width: _numbers_of(each) for width, each in wider.items()}
    for name, values in _numbers_of(measurement).items():
        columns.append((name, name, _cells(values)))
        for width, each in others.items():
            columns.append((name, f"width {width}", _cells(each[name])))
    columns, gone = fitting(columns, ("scale", "correlation"))
    heads = [head for _, head, _ in columns]
    rows = list(zip(*(cells for _, _, cells in columns), strict=True))
    shown = [rows[layer] for layer in shown_of(len(rows))]
    networks = [each.networks for each in wider.values()]
    count = "a random network" if networks[0] == 1 else f"{networks[0]} random networks"
    about = (
        f"beside {count} of this architecture at each width, with Gaussian weights of its variances"
    )
    gradient = "; gradients are over that of the last layer" if "gradient" in heads else ""
    return "\n".join([wrapped(about + gradient), text_table(heads, shown, align="<>"), *gone])


def _numbers_of(measurement: Measurement) -> dict[str, FloatArray]:
    """Return what widths are compared by: (networks, layers) arrays, by name."""
    numbers = {"scale": measurement.scale, "correlation": measurement.mean_correlation}
    norms = measurement.layer_gradient_norm
    if norms is not None:
        with np.errstate(divide="ignore", invalid="ignore"):
            numbers["gradient"] = norms / norms[:, -1:]
    return numbers


def _cells(values: FloatArray) -> list[str]:
    """Return the mean of each layer, or the band of many networks."""
    if len(values) < _OF_BAND:
        return [f"{mean:.3g}" for mean in values.mean(axis=0)]
    return [f"{low:.2g} to {high:.2g}" for low, high in band_of(values)]


def _mean(values: NDArray[Any]) -> str:
    """Return mean and standard error over networks."""
    mean = float(values.mean())
    if math.isnan(mean):
        return "-"
    return f"{mean:.4g}" if len(values) == 1 else f"{mean:.3g} ± {_error(values):.1g}"


def _ratio(values: NDArray[Any]) -> str:
    """Return a factor to two digits, as the verdict has it, and the standard error."""
    mean = float(values.mean())
    if math.isnan(mean):
        return "-"
    text = f"×{factor(mean)}"
    return text if len(values) == 1 else f"{text} ± {_error(values):.1g}"


def _error(values: NDArray[Any]) -> float:
    return float(values.std(ddof=1)) / math.sqrt(len(values))


def _or_none(value: Any) -> float | None:
    number = float(value)
    return None if math.isnan(number) else number
