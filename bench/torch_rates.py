"""Growth of squared gradients in PyTorch networks beside the backward rate of the mean field.

`bnmc.torch.measure` measures networks Linear, BatchNorm1d, activation with three initializations:
PyTorch's default, Gaussian and orthogonal (Haar) weights. The mean field has infinite width. So its
rate differs from that of a network by a bias of order batch/width, which many networks resolve.
`over_width` shows this bias at several widths, and the rate of `bnmc.backpropagate`, which is exact
in law at the width of the networks. A standard error of m networks has m − 1 degrees of freedom. Of
right rates, 6 % are more than 3 standard errors away with 4 networks, and 0.9 % with 16.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch

import bnmc
from bench.report import Cell, Floor, Report, Table
from bnmc.torch import Measurement, haar_, measure

ACTIVATIONS = {
    "relu": torch.nn.ReLU, "tanh": torch.nn.Tanh, "sigmoid": torch.nn.Sigmoid,
    "gelu": torch.nn.GELU, "silu": torch.nn.SiLU, "selu": torch.nn.SELU,
}  # fmt: skip
BATCHES = (8, 16, 32)
WIDTH, DEPTH, NETWORKS = 256, 24, 16

#: The cases whose bias is followed over the width: the largest ones that were found.
FOLLOWED = (("relu", 32, "haar"), ("sigmoid", 16, "gaussian"), ("sigmoid", 32, "default"))
WIDTHS = (64, 128, 256)


def gaussian(model: Any) -> Any:
    """Draw Gaussian weights of variance 1/fan_in; batch normalization hides the biases."""
    for module in model:
        if isinstance(module, torch.nn.Linear):
            torch.nn.init.normal_(module.weight, std=1.0 / math.sqrt(module.weight.shape[1]))
    return model


RESETS: dict[str, Any] = {"default": None, "gaussian": gaussian, "haar": haar_}


def benchmark(*, quick: bool) -> Report:
    """Compare all cases at one width; quick runs leave out half of the activations."""
    report = Report("torch-rates")
    width, networks = (64, 4) if quick else (WIDTH, NETWORKS)
    rows: list[list[Cell]] = []
    scores: list[float] = []
    for activation in tuple(ACTIVATIONS)[: 3 if quick else None]:
        for batch in BATCHES:
            for reset in RESETS:
                found = measured(activation, batch, reset, width, networks)
                if not found.prediction.applies:
                    reason = found.prediction.reasons[0].partition(",")[0].partition("(")[0]
                    rows.append([activation, batch, reset, None, None, None, None, reason])
                    continue
                rate, predicted = found.rate(), found.prediction.values["backward_rate"]
                score = math.log(rate.value / predicted) * rate.value / rate.stderr
                scores.append(score)
                rows.append([
                    activation, batch, reset, predicted, rate.value, rate.stderr, score, "",
                ])  # fmt: skip
    headers = [
        "activation", "batch", "weights", "predicted", "measured", "standard error",
        "errors between", "no prediction",
    ]  # fmt: skip
    near = sum(abs(score) <= 3 for score in scores)
    title = (
        f"Width {width}, depth {DEPTH}, {networks} networks: {near} of {len(scores)} measured "
        "rates within 3 standard errors of infinite width"
    )
    report.tables.append(Table(title, headers, rows))
    return report


def over_width(*, quick: bool) -> Report:
    """Follow some cases over the width: the bias of the mean field, measured and exact."""
    report = Report("torch-rates-width")
    widths, networks = (WIDTHS[:2], 4) if quick else (WIDTHS, NETWORKS)
    rows: list[list[Cell]] = []
    for activation, batch, reset in FOLLOWED:
        for width in widths:
            found = measured(activation, batch, reset, width, networks)
            chain = found.prediction.chain
            assert chain is not None
            rate, predicted = found.rate(), found.prediction.values["backward_rate"]
            exact = exact_rate(chain)
            bias = math.log(exact.value / predicted)
            between = math.log(rate.value / exact.value) / math.hypot(
                rate.stderr / rate.value, exact.stderr / exact.value
            )
            rows.append([
                activation, batch, reset, width, predicted, rate.value, rate.stderr, exact.value,
                exact.stderr, bias * width / batch, between,
            ])  # fmt: skip
            report.floors.append(Floor(
                f"6 less the errors from the exact rate: {activation} {batch} {reset}, {width}",
                6.0 - abs(between), 0.0,
            ))  # fmt: skip
    headers = [
        "activation", "batch", "weights", "width", "predicted", "measured", "its error",
        "exact in law", "its error", "log bias x width / batch", "errors between",
    ]  # fmt: skip
    report.tables.append(Table("Infinite width beside finite widths", headers, rows))
    return report


def measured(activation: str, batch: int, reset: str, width: int, networks: int) -> Measurement:
    """Return the measurement of some networks; the loss has random directions."""
    torch.set_num_threads(1)  # the same bits on every machine
    torch.manual_seed(batch)
    layers: list[Any] = []
    for _ in range(DEPTH):
        layers += [
            torch.nn.Linear(width, width), torch.nn.BatchNorm1d(width, eps=1e-12),
            ACTIVATIONS[activation](),
        ]  # fmt: skip
    model = torch.nn.Sequential(*layers, torch.nn.Linear(width, 10)).double()
    directions = torch.randn(batch, 10, dtype=torch.float64)

    def loss(output: Any) -> Any:
        return (output * directions).sum(dim=1)

    inputs = torch.randn(batch, width, dtype=torch.float64)
    return measure(
        model, inputs, loss=loss, networks=networks, reset=RESETS[reset], cosines=False
    )  # fmt: skip


def exact_rate(chain: bnmc.Chain) -> Any:
    """Return the growth in the same layers of networks that are exact in law at this width.

    The k-th weight of the model is W_{k-1} of the chain after layer 0, the first activation.
    """
    first, last = DEPTH // 4, 3 * DEPTH // 4
    run = bnmc.backpropagate(
        dataclasses.replace(chain, eps=0.0), DEPTH, chains=100, rng=0, observables=()
    )
    return run.rate(first=first - 1, last=last - 1)
