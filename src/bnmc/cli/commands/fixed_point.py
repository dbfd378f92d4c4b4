"""``bnmc fixed-point``: the fixed point of the mean field."""

from __future__ import annotations

import math
from typing import Annotated, Any

import typer

from bnmc.cli import options
from bnmc.cli.report import number_text, print_json, print_table

__all__ = ["fixed_point"]


def fixed_point(
    batch: options.Batch = 10,
    activation: options.Activation = "relu",
    norm: options.Norm = "batch",
    gain: options.Gain = 1.0,
    width: Annotated[
        int | None,
        typer.Option(
            help="Number of neurons per layer, for the predicted distance at finite width. "
            "Default: no prediction."
        ),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Compute the fixed point at infinite width.

    The table shows the Gram matrix of the fixed point, its rates and its stability.

    Example: bnmc fixed-point --activation tanh --batch 64 --width 1000
    """
    from bnmc.chain.chain import Chain
    from bnmc.mean_field.field import MeanField

    size = max(batch, 2) * 1000 if width is None else width
    chain = Chain(size, batch, activation, norm=norm, gain=gain)
    found = MeanField(chain).fixed_point()
    facts: dict[str, Any] = {
        "diagonal": found.b,
        "correlation": found.c,
        "rate": found.rate,
        "timescale": -1.0 / math.log(found.rate) if 0.0 < found.rate < 1.0 else None,
        "stable": found.stable,
        "eigenvalues": [_plain_eigenvalue(value) for value in found.eigenvalues],
        "backward_rate": found.backward_rate,
        "cross_batch": found.cross_batch,
        "cross_batch_rate": found.cross_batch_rate,
        "error": found.error,
    }
    if width is not None:
        law = MeanField(chain).fluctuations()
        facts["distance"] = math.sqrt(law.mean_square(width).value)
        facts["least_width"] = law.least_width
    if as_json:
        print_json({"activation": activation, "batch": batch, "norm": norm, "gain": gain, **facts})
        return
    print(f'{activation}, batch {batch}, norm "{norm}": fixed point of the mean field\n')
    # Numbers below the error are rounding errors of 0.
    if abs(found.cross_batch) < found.error:
        facts["cross_batch"] = 0.0
    print_table(
        ["quantity", "value"], [[_label(name, norm), _value_text(v)] for name, v in facts.items()]
    )
    if not found.stable:
        print(
            "\nThe fixed point is unstable: networks leave its neighbourhood. The backward rate is "
            "the one at the fixed point, so it does not describe these networks."
        )
    elif math.isinf(found.backward_rate):
        print("\nThe backward rate is infinite: the squared gradient norm has no finite mean.")


def _label(name: str, norm: str) -> str:
    if name == "eigenvalues" and norm == "batch":
        return "eigenvalues λ_L, λ_M"
    return name.replace("_", " ")


def _plain_eigenvalue(value: complex) -> float | list[float]:
    return value.real if value.imag == 0 else [value.real, value.imag]


def _value_text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(_value_text(entry) for entry in value) or "none"
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return number_text(value)
