"""``bnmc stability``: the batch sizes at which the fixed point is stable."""

from __future__ import annotations

from typing import Annotated

import typer

from bnmc.cli import options
from bnmc.cli.outputs import require_destination, save
from bnmc.cli.report import print_json

__all__ = ["stability"]


def stability(
    activation: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Activation; repeat the option for several. Default: relu, tanh and silu.",
        ),
    ] = None,
    batches: Annotated[
        str, typer.Option(metavar="N,N,…", help="Batch sizes, separated by commas.")
    ] = "3,4,5,8,12,16,24,32,48,64",
    norm: options.Norm = "batch",
    plot: options.Plot = None,
    force: options.Force = False,
    as_json: options.Json = False,
) -> None:
    """Compute the batch sizes with a stable fixed point.

    Example: bnmc stability --activation silu --activation relu --batches 8,16,32,64
    """
    from bnmc.errors import ArgumentError
    from bnmc.mean_field import atlas, plot_stability

    if plot is not None:
        require_destination("plot", plot, force)
    try:
        sizes = [int(size) for size in batches.split(",")]
    except ValueError:
        raise ArgumentError("batches", batches, "integers, separated by commas") from None
    entries = atlas(activation or ["relu", "tanh", "silu"], sizes, norm=norm)
    if plot is not None:
        save(plot_stability(entries).figure, plot)
    if as_json:
        print_json(
            {
                "norm": norm,
                "activations": [
                    {
                        "activation": entry.activation,
                        "batches": entry.batches.tolist(),
                        "rates": entry.rates.tolist(),
                        "stable": entry.stable.tolist(),
                        "eigenvalues": entry.eigenvalues.tolist(),
                        "crossings": [[one.batch, one.stable] for one in entry.crossings],
                    }
                    for entry in entries
                ],
            }
        )
        return
    print("\n\n".join(map(str, entries)))
