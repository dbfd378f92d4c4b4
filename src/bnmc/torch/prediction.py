"""The law of a model's own numbers in random networks of its layers, widths and batch.

`Prediction` puts three columns side by side: measured in the model, simulated at its widths, and
infinite width. Both predictions start from the batch itself. They run when they are first read.
Beside a model that is no `Network` stand fresh networks of the model itself (`fresh.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from bnmc._support.text import Result, fitting, text_table, wrapped
from bnmc.chain.chain import Chain, Network, Residual, Stage, layer_after, layer_at
from bnmc.chain.layers import Linear
from bnmc.errors import BnmcError
from bnmc.gradients.backpropagation import backpropagate
from bnmc.mean_field.field import MeanField
from bnmc.simulation.run import simulate
from bnmc.torch.fresh import Fresh
from bnmc.torch.reading import ModelNetwork
from bnmc.torch.representations import FloatArray

#: A gradient of a loss by outputs (samples, outputs), as a function of them.
Gradient = Callable[[FloatArray], FloatArray]

#: The quantities of the Gram matrix of the input of a layer.
_OF_GRAM = ("scale", "correlation", "spread")

#: The largest number of rows in a table.
_SHOWN = 24

#: Networks that are simulated at most, and at least.
_MOST, _LEAST = 200, 40

#: Nanoseconds of all networks, of a weight, of a number of a layer, and of a factorization, about.
_TIME, _PER_WEIGHT, _PER_NUMBER, _PER_FACTOR = 1e10, 30.0, 300.0, 8.0

#: Bytes of the Gram matrices that exist at a time.
_BYTES = 1 << 26

#: A number departs if its distance from the middle of a band is above this many half widths.
_FAR = 3.0

#: Spreads of cosines below this one are rounding errors, about the root of that of float64.
_ROUNDING = 1e-7

#: Accuracy of the mean field in a table of four digits.
_RTOL = 1e-2


@dataclass(frozen=True, eq=False, repr=False)
class Prediction(Result):
    """What random networks of a model's layers, widths and batch give, beside what it gives.

    Column k of an array is the k-th weight layer: `scale`, `correlation` and `spread` describe its
    input, "gradient" its weight. The simulation and the mean field run when they are first read.
    If the model has dropout, or is no `bnmc.Network`, copies of the model with new weights of the
    same law stand beside it. In the second case the columns are the measured layers: their outputs,
    and all their weights.

    Attributes
    ----------
    network : Network or None
        What was simulated, `bnmc.torch.network_of`; None if the model cannot be read.
    layers : tuple of str
        Names of the weight layers, or of the measured layers.
    measured : dict of str to (networks, layers) ndarray of float64
        "scale", root mean square of the input of the layer; "correlation" and "spread", mean and
        standard deviation of the cosines between two samples that are not zero; and if there is a
        loss, "gradient": ln of the norm of the gradient by the weight, over that of the last layer.
    reasons : tuple of str
        Why the model is no `bnmc.Network`; empty if it is one.
    copies : bool
        Whether copies of the model are beside it, and not simulated networks.

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> from bnmc.torch import measure
    >>> seed = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2))
    >>> prediction = measure(model, torch.randn(8, 20)).prediction
    >>> prediction.measured["scale"].shape, prediction.bands["scale"].shape
    ((1, 2), (2, 2))
    >>> low, high = prediction.bands["scale"][1]
    >>> bool(low < prediction.measured["scale"][0, 1] < high)
    True
    """

    network: Network | None
    layers: tuple[str, ...] = ()
    measured: dict[str, FloatArray] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()
    copies: bool = False
    _start: Any = None
    _direction: FloatArray | Gradient | None = None
    _factors: tuple[float, ...] = ()
    _fresh: Fresh | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes; a loss of the user's may have no pickle, so it is used before."""
        _ = self.simulated
        return {**self.__dict__, "_direction": None, "_fresh": None}

    def __repr__(self) -> str:
        if not self.applies:
            return f"<no Prediction: {'; '.join(self.reasons)}>"
        return f"<Prediction of {len(self.layers)} layers: {', '.join(self.measured)}>"

    @property
    def applies(self) -> bool:
        """Whether there is a prediction."""
        return bool(self.measured)

    @cached_property
    def simulated(self) -> dict[str, FloatArray]:
        """The same numbers of simulated networks, each (chains, layers).

        Empty if there is no prediction. The law is that of the model: uniform weights as PyTorch
        draws them, and biases by the number of inputs. If these take too long, weights are
        Gaussian with the same variance.
        """
        if not self.applies:
            return {}
        if self._fresh is not None:
            return _numbers_of(*self._fresh.observed())
        assert self.network is not None
        network, chains = _affordable(self.network)
        gram_bytes = 8 * (network.depth + 1) * network.batch**2
        size = max(1, min(chains, _BYTES // gram_bytes))
        parts = [
            self._simulated(network, min(size, chains - first), first)
            for first in range(0, chains, size)
        ]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    @cached_property
    def bands(self) -> dict[str, FloatArray]:
        """Lower and upper end of the band that holds 90 % of the networks, (layers, 2)."""
        return {name: band_of(values) for name, values in self.simulated.items()}

    @cached_property
    def infinite(self) -> dict[str, FloatArray]:
        """Scale, correlation and spread at infinite width, (layers,); empty without a mean field.

        They are `bnmc.MeanField.trajectory` of the network, from the Gram matrix of the batch.
        """
        if not self.applies or self.copies:
            return {}
        assert self.network is not None
        start = simulate(self.network.until(0), initial=self._start, rng=0).gram[0, 0]
        try:
            below = self.network.until(self.network.depth - 1)
            grams = MeanField(below).trajectory(start, rtol=_RTOL, rng=0).gram
        except BnmcError:
            return {}
        return _numbers_of_grams(grams)

    @property
    def departures(self) -> tuple[str, ...]:
        """The first layer where each mean is far from what fresh networks give, in sentences.

        Far means: further from the middle of the band of 90 % than 3 half widths of it.
        """
        sentences = []
        for name, band in self.bands.items():
            values = self.measured[name].mean(axis=0)
            middle, half = band.mean(axis=1), np.diff(band, axis=1)[:, 0] / 2.0
            # The first input is the batch itself, and its band is a point.
            apart = np.abs(values - middle) > np.maximum(_FAR * half, 1e-4 * np.abs(middle))
            if name == "spread":  # the root of a difference, which is a rounding error below
                apart &= values > _ROUNDING
            if apart.any():
                layer = int(np.argmax(apart))
                low, high = _shown(name, band[layer, 0]), _shown(name, band[layer, 1])
                sentences.append(
                    f"{name} at {self.layers[layer]!r} is {_shown(name, values[layer])}; 90 % of "
                    f"fresh networks have {low} to {high}"
                )
        return tuple(sentences)

    def rows_in(self, blocks: Sequence[str]) -> dict[str, list[int]]:
        """Return the rows of the layers in each of some blocks, by the name of the block."""
        return {
            block: [
                row
                for row, name in enumerate(self.layers)
                if name == block or name.startswith(f"{block}.")
            ]
            for block in blocks
        }

    def table(self, blocks: Sequence[str] = ()) -> str:
        """Return a table: measured numbers, bands of 90 %, and infinite width.

        Parameters
        ----------
        blocks : sequence of str, default ()
            Names of blocks. Of more than 24 layers, the table has the first one in each block, and
            the last one; without blocks, 24 at equal distances.

        Returns
        -------
        str
        """
        more = len(self.reasons) - 1
        tail = f" (prediction.reasons has {more} more)" if more > 0 else ""
        if not self.applies:
            return wrapped(f"no prediction (the verdict needs none): {self.reasons[-1]}{tail}")
        shown = shown_of(len(self.layers))
        first = [rows[0] for rows in self.rows_in(blocks).values() if rows]
        if first and len(self.layers) > _SHOWN:
            shown = sorted({*first, len(self.layers) - 1})
        head = "layer" if self.reasons else "weight layer"
        columns: list[tuple[str, str, Sequence[str]]] = [
            (head, head, [self.layers[row] for row in shown])
        ]
        for name, values in self.measured.items():
            means, bands = values.mean(axis=0)[shown], self.bands[name][shown]
            columns.append((name, name, [_shown(name, mean) for mean in means]))
            columns.append((name, "90 %", [_band(name, band) for band in bands]))
            infinite = self.infinite.get(name, np.array([]))
            if name != "spread" and np.isfinite(infinite).any():
                columns.append(("∞", "∞", [_shown(name, value) for value in infinite[shown]]))
        columns, gone = fitting(columns, ("spread", "∞"))
        chains = len(self.simulated["scale"])
        rows = list(zip(*(cells for _, _, cells in columns), strict=True))
        networks = "copies with new weights" if self.copies else "random networks of these layers"
        of_layer = "output of each layer" if self.reasons else "input of each weight layer"
        about = (
            f"beside {chains} {networks}, for this batch: the {of_layer}, and the norm of the "
            "gradient over that of the last layer"
        )
        why = f"no infinite-width prediction: {self.reasons[0]}{tail}" if self.reasons else ""
        lines = [wrapped(why)] if why else []
        lines += [wrapped(about), text_table([head for _, head, _ in columns], rows, align="<>")]
        lines += [*left_out(len(self.layers), shown=len(rows)), *gone]
        return "\n".join([*lines, *(wrapped(f"departs: {text}") for text in self.departures)])

    def to_dict(self) -> dict[str, Any]:
        """Return layers, measured means, bands, infinite width and reasons, for JSON."""
        rows = []
        for layer, label in enumerate(self.layers if self.applies else ()):
            row: dict[str, Any] = {"layer": label}
            for name, values in self.measured.items():
                row[name] = float(values[:, layer].mean())
                row[f"{name}_band"] = self.bands[name][layer].tolist()
                if name in self.infinite:
                    row[f"{name}_infinite"] = float(self.infinite[name][layer])
            rows.append(row)
        network = None if self.network is None else repr(self.network)
        return {"network": network, "rows": rows, "reasons": list(self.reasons)}

    def _simulated(self, network: Network, chains: int, rng: int) -> dict[str, FloatArray]:
        """Return the numbers of some networks."""
        options: dict[str, Any] = {"chains": chains, "initial": self._start, "rng": rng}
        run: Any
        if self._direction is None:
            run = simulate(network, **options)
            return _numbers_of_grams(run.gram[:, :-1])
        name = "loss_gradient" if callable(self._direction) else "loss"
        options[name] = self._direction
        run = backpropagate(network, observables=("gram",), **options)
        first = simulate(network.until(0), initial=self._start, rng=0).gram
        grams = np.concatenate([np.repeat(first, chains, axis=0), run.gram[:, :-1]], axis=1)
        gains = [layer_at(network, number).linear.gain for number in range(1, network.depth + 1)]
        with np.errstate(invalid="ignore"):
            # The weight of the model is gain/factor times a matrix of variance 1/fan_in.
            logs = run.log_gradient_norm - np.log(np.divide(gains, self._factors))
            return _numbers_of_grams(grams) | {"gradient": logs - logs[:, -1:]}


def shown_of(rows: int) -> list[int]:
    """Return the rows that a table shows: all, or 24 of them at equal distances."""
    return sorted({round(k * (rows - 1) / (_SHOWN - 1)) for k in range(_SHOWN)})


def left_out(rows: int, what: str = "layers", shown: int = _SHOWN) -> list[str]:
    """Return a line of a table that says how many rows it shows, if these are not all."""
    return [f"{shown} of {rows} {what} are shown"] if rows > shown else []


def predicted(
    reading: ModelNetwork,
    batch: FloatArray,
    grams: FloatArray,
    gradients: FloatArray | None,
    direction: FloatArray | Gradient | None,
    fresh: Fresh | None,
) -> Prediction:
    """Return the prediction for a network and a batch, (features, samples).

    Parameters
    ----------
    reading : ModelNetwork
        With a network.
    grams : (networks, layers, samples, samples) ndarray
        Gram matrices of the inputs of the weight layers.
    gradients : (networks, layers) ndarray or None
        Norms of the gradients by the weights; None without a loss.
    direction : callable or (outputs, samples) ndarray or None
        Gradient of the loss by the output of the last weight layer; as a function of this output,
        (samples, outputs), if it is that of the model.
    fresh : Fresh or None
        Copies of the model with new weights, beside it in place of simulated networks.
    """
    network = reading.network
    assert network is not None
    measured = _numbers_of(grams, gradients)
    if fresh is not None:
        return Prediction(network, reading.layers, measured, copies=True, _fresh=fresh)
    return Prediction(
        network, reading.layers, measured, _start=batch, _direction=direction,
        _factors=reading.factors,
    )  # fmt: skip


def beside_copies(
    layers: tuple[str, ...],
    grams: FloatArray,
    gradients: FloatArray | None,
    reasons: tuple[str, ...],
    fresh: Fresh | None,
) -> Prediction:
    """Return what copies of a model with new weights give, beside its measured layers.

    `grams` and `gradients` are of the outputs and of all weights of the layers; without copies,
    `reasons` say why.
    """
    if fresh is None:
        return Prediction(None, reasons=reasons)
    numbers = _numbers_of(grams, gradients)
    return Prediction(None, layers, numbers, reasons, copies=True, _fresh=fresh)


def is_affordable(network: Network) -> bool:
    """Whether enough networks for a band can be simulated in some seconds."""
    return _affordable(network)[1] >= _LEAST


def _numbers_of(grams: FloatArray, gradients: FloatArray | None) -> dict[str, FloatArray]:
    """Return the numbers of Gram matrices, and ln of the gradients over that of the last layer."""
    numbers = _numbers_of_grams(grams)
    if gradients is not None:
        with np.errstate(divide="ignore", invalid="ignore"):
            numbers["gradient"] = np.log(gradients) - np.log(gradients[:, -1:])
    return numbers


def _numbers_of_grams(grams: FloatArray) -> dict[str, FloatArray]:
    """Return scale, mean and spread of the cosines of Gram matrices (..., n, n)."""
    n = grams.shape[-1]
    squares = np.diagonal(grams, axis1=-2, axis2=-1)
    roots = np.sqrt(squares)
    pairs = (roots[..., :, None] > 0.0) & (roots[..., None, :] > 0.0) & ~np.eye(n, dtype=bool)
    with np.errstate(divide="ignore", invalid="ignore"):
        cosines = np.where(pairs, grams / roots[..., :, None] / roots[..., None, :], 0.0)
        count = pairs.sum(axis=(-2, -1))
        mean = cosines.sum(axis=(-2, -1)) / count
        second = np.square(cosines).sum(axis=(-2, -1)) / count
    spread = np.sqrt(np.maximum(second - mean * mean, 0.0))
    return dict(zip(_OF_GRAM, (np.sqrt(squares.mean(axis=-1)), mean, spread), strict=True))


def band_of(values: FloatArray) -> FloatArray:
    """Return the order statistics between which a new value lies with probability 0.9."""
    with np.errstate(invalid="ignore"):
        ends = np.quantile(values, [0.05, 0.95], axis=0, method="weibull")
    return np.moveaxis(ends, 0, -1)


def _affordable(network: Network) -> tuple[Network, int]:
    """Return the network and a number of chains, with Gaussian weights if others take too long."""
    n, widths = network.batch, network.widths
    numbers = _PER_NUMBER * n * sum(widths) + _PER_FACTOR * network.depth * n**3
    weights = sum(before * width for before, width in pairwise(widths))
    if (numbers + weights * (_PER_WEIGHT + n / 4.0)) * _MOST <= _TIME:
        return network, _MOST
    by_rows = numbers + sum(widths) * n * n
    return _gaussian(network), min(_MOST, int(_TIME // by_rows))


def _gaussian(network: Network) -> Network:
    """Return a network with Gaussian weights and biases of the same variances."""
    stages: list[Stage] = [(network.first, 0)]
    number = 0
    for stage in network.stages:
        inner = stage.branch.stages if isinstance(stage, Residual) else (stage,)
        chains = [
            part[0]
            for part in inner
            if not isinstance(part, Residual)  # `network_of` reads no block inside a block
            for _ in range(part[1])
        ]
        layers = [layer_at(network, number + k) for k in range(1, len(chains) + 1)]
        number += len(chains)
        made = [
            (_with_gaussian(chain, layer.linear), 1)
            for chain, layer in zip(chains, layers, strict=True)
        ]
        if isinstance(stage, Residual):
            projection = stage.projection
            if projection is not None:
                width = layer_at(network, number - len(chains)).linear.width
                projection = _with_gaussian(projection, layer_after(projection, width).linear)
            stages.append(dataclasses.replace(stage, branch=Network(*made), projection=projection))
        else:
            stages += made
    return Network(*stages)


def _with_gaussian(chain: Chain, linear: Linear) -> Chain:
    if chain.layers[1].linear.law.rows_given_gram:
        return chain
    return dataclasses.replace(
        chain, weights="gaussian", gain=linear.gain, bias_variance=linear.bias_variance
    )


def _shown(name: str, value: Any, digits: int = 3) -> str:
    """Return a number; a gradient as a factor."""
    if np.isnan(value):
        return "-"
    text = f"{np.exp(value) if name == 'gradient' else value:.{digits}g}"
    return f"{float(text):g}"  # 7500, and not 7.5e+03


def _band(name: str, band: FloatArray) -> str:
    """Return a band to two digits; a band that is a point as one number."""
    return " to ".join(dict.fromkeys(_shown(name, end, 2) for end in band))
