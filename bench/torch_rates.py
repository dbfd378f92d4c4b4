"""Growth of squared gradients in PyTorch networks beside the backward rates of this package.

`bnmc.torch.measure` measures networks Linear, BatchNorm1d, activation with three initializations:
PyTorch's default, Gaussian and orthogonal (Haar) weights. Each rate is compared with that of
`bnmc.backpropagate`, which is exact in law at the width of the networks, and with that of the mean
field, which has infinite width. The second differs by a bias of order batch/width, which many
networks resolve; `over_width` shows this bias at several widths.

Each case has its own seed, so the cases are independent. A standard error of m networks has m − 1
degrees of freedom, so even of right rates some are more than 3 standard errors away: the title of a
table states the expected number. Finished cases are kept; a stopped benchmark continues after them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import torch
from scipy import stats

import bnmc
from bench.report import Cell, Floor, Report, Table
from bench.unfinished import Cases
from bnmc.torch import Measurement, haar_, measure

ACTIVATIONS = {
    "relu": torch.nn.ReLU, "tanh": torch.nn.Tanh, "sigmoid": torch.nn.Sigmoid,
    "gelu": torch.nn.GELU, "silu": torch.nn.SiLU, "selu": torch.nn.SELU,
}  # fmt: skip
BATCHES = (8, 16, 32)
WIDTH, DEPTH, NETWORKS, CHAINS = 128, 24, 32, 100

#: Chains of the exact law with orthogonal weights, each of which costs about 2 s at width 128.
HAAR_CHAINS = 24

#: The cases whose bias is followed over the width.
FOLLOWED = (
    ("relu", 32, "haar"), ("tanh", 32, "default"), ("sigmoid", 16, "gaussian"),
    ("sigmoid", 32, "default"), ("selu", 32, "gaussian"), ("selu", 32, "default"),
)  # fmt: skip
WIDTHS = (64, 128, 256, 512)  # orthogonal weights without the last one

#: The largest |z| that a floor allows: with 15 degrees of freedom its probability is below 1e-5.
FAR = 6.5


def gaussian(model: Any) -> Any:
    """Draw Gaussian weights of variance 1/fan_in; batch normalization hides the biases."""
    for module in model:
        if isinstance(module, torch.nn.Linear):
            torch.nn.init.normal_(module.weight, std=1.0 / math.sqrt(module.weight.shape[1]))
    return model


RESETS: dict[str, Any] = {"default": None, "gaussian": gaussian, "haar": haar_}
HEADERS = (
    "activation", "batch", "weights", "measured", "its error", "exact in law", "its error",
    "z", "infinite width", "z of it", "degrees of freedom",
)  # fmt: skip


def benchmark(*, quick: bool) -> Report:
    """Compare all cases at one width; quick runs leave out half of the activations."""
    report = Report("torch-rates")
    width, networks = (64, 4) if quick else (WIDTH, NETWORKS)
    kept = Cases(f"torch-rates-{width}-{DEPTH}-{networks}")
    cases = [
        (activation, batch, reset)
        for activation in tuple(ACTIVATIONS)[: 3 if quick else None]
        for batch in BATCHES
        for reset in RESETS
    ]
    rows = [
        kept.row(
            " ".join(map(str, case)), lambda case=case, k=k: compared(*case, width, networks, k)
        )
        for k, case in enumerate(cases)
    ]
    report.tables.append(Table(_title(rows, width, networks), HEADERS, rows))
    report.floors.append(Floor("largest |z| of the exact law", _largest(rows), FAR, at_most=True))
    kept.done()
    return report


def over_width(*, quick: bool) -> Report:
    """Follow some cases over the width: the bias of the mean field, by the exact law."""
    report = Report("torch-rates-width")
    widths, networks = (WIDTHS[:2], 4) if quick else (WIDTHS, NETWORKS // 2)
    kept = Cases(f"torch-rates-width-{DEPTH}-{networks}")
    rows: list[list[Cell]] = []
    for k, case in enumerate(FOLLOWED):
        for width in widths[: 3 if case[2] == "haar" else None]:
            name = " ".join(map(str, (*case, width)))
            seed = 1000 * (k + 1) + width
            row = kept.row(
                name,
                lambda case=case, width=width, seed=seed: compared(*case, width, networks, seed),
            )
            *labels, rate, error, exact, its, z, infinite, _, _ = row
            bias = math.log(exact / infinite) * width / case[1]
            spread = its / exact * width / case[1]
            rows.append([*labels, width, rate, error, exact, its, z, infinite, bias, spread])
    report.floors.append(Floor(
        "largest |z| of the exact law", max(abs(row[8]) for row in rows), FAR, at_most=True,
    ))  # fmt: skip
    headers = [*HEADERS[:3], "width", *HEADERS[3:9], "log bias x width / batch", "its error"]
    report.tables.append(Table("Infinite width beside finite widths", headers, rows))
    kept.done()
    return report


def compared(
    activation: str, batch: int, reset: str, width: int, networks: int, seed: int
) -> list[Cell]:
    """Return the row of one case: measured, exact in law, and at infinite width."""
    found = measured(activation, batch, reset, width, networks, seed)
    chain = found.reading.chain
    assert chain is not None
    assert not found.reading.unfit, found.reading.unfit
    rate, exact = found.rate(), exact_rate(chain, seed)
    ours, theirs = rate.stderr / rate.value, exact.stderr / exact.value
    z = math.log(rate.value / exact.value) / math.hypot(ours, theirs)
    chains = _chains(chain)
    # Welch's degrees of freedom, for the difference of two means of logarithms.
    freedom = math.hypot(ours, theirs) ** 4 / (ours**4 / (networks - 1) + theirs**4 / (chains - 1))
    infinite = far = None
    if found.prediction.applies:
        infinite = found.prediction.values["backward_rate"]
        far = math.log(rate.value / infinite) / ours
    return [
        activation, batch, reset, rate.value, rate.stderr, exact.value, exact.stderr, z, infinite,
        far, freedom,
    ]  # fmt: skip


def _title(rows: Sequence[Sequence[Any]], width: int, networks: int) -> str:
    exact = [row[7] for row in rows]
    infinite = [row[9] for row in rows if row[9] is not None]
    chance = sum(2.0 * stats.t.sf(3.0, row[10]) for row in rows)
    root = math.sqrt(sum(z * z for z in exact) / len(exact))
    return (
        f"Width {width}, depth {DEPTH}, {networks} networks: {sum(abs(z) <= 3 for z in exact)} of "
        f"{len(exact)} measured rates within 3 standard errors of the exact law (by chance "
        f"{chance:.1f} are outside; root mean square of z {root:.2f}), and "
        f"{sum(abs(z) <= 3 for z in infinite)} of {len(infinite)} of infinite width"
    )


def _largest(rows: Sequence[Sequence[Any]]) -> float:
    return float(max(abs(row[7]) for row in rows))


def measured(
    activation: str, batch: int, reset: str, width: int, networks: int, seed: int
) -> Measurement:
    """Return the measurement of some networks; the loss has random directions."""
    torch.set_num_threads(1)  # the same bits on every machine
    torch.manual_seed(seed)
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


def exact_rate(chain: bnmc.Chain, seed: int) -> Any:
    """Return the growth in the same layers of networks that are exact in law at this width.

    The k-th weight of the model is W_{k-1} of the chain after layer 0, the first activation.
    """
    first, last = DEPTH // 4, 3 * DEPTH // 4
    run = bnmc.backpropagate(
        dataclasses.replace(chain, eps=0.0), DEPTH, chains=_chains(chain), rng=seed, observables=()
    )
    return run.rate(first=first - 1, last=last - 1)


def _chains(chain: bnmc.Chain) -> int:
    return HAAR_CHAINS if chain.is_orthogonal else CHAINS
