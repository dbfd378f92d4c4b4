"""``bnmc width``: the width at which a chain is within a distance of the mean field."""

from __future__ import annotations

from typing import Annotated

import typer

from bnmc.cli import options
from bnmc.cli.report import print_json

__all__ = ["width"]


def width(
    distance: Annotated[
        float,
        typer.Option(
            help="Root-mean-square Frobenius distance between the stationary Gram matrix and the "
            "fixed point of the mean field."
        ),
    ] = 0.1,
    batch: options.Batch = 10,
    activation: options.Activation = "relu",
    norm: options.Norm = "batch",
    as_json: options.Json = False,
) -> None:
    """Predict the width for a distance from the mean field.

    The prediction is the leading order in 1/width.

    Example: bnmc width --distance 0.1 --activation tanh --batch 32
    """
    from bnmc.chain.chain import Chain
    from bnmc.mean_field.field import MeanField

    chain = Chain(max(batch, 2) * 1000, batch, activation, norm=norm)
    law = MeanField(chain).fluctuations()
    found = law.width_for(distance)
    if as_json:
        print_json(
            {
                "activation": activation,
                "batch": batch,
                "norm": norm,
                "distance": distance,
                "width": found,
                "least_width": law.least_width,
            }
        )
        return
    print(
        f'{activation}, batch {batch}, norm "{norm}": distance {distance:g} from the mean field at '
        f"width {found}"
    )
    if found < law.least_width:
        print(f"This prediction is inaccurate. Predictions hold from width {law.least_width} on.")
