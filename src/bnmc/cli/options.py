"""Options that several commands share: of the chain, of the run, and of the report.

The type of a parameter of a command is one of these names. The help of an option is in its type.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = [
    "Activation",
    "Batch",
    "Eps",
    "Force",
    "Gain",
    "Hours",
    "Json",
    "Norm",
    "Plot",
    "ProgressFlag",
    "Seed",
    "Skip",
    "Store",
    "Threads",
    "Timeout",
    "Weights",
    "Width",
]

Width = Annotated[int, typer.Option(help="Neurons of a layer.")]

Batch = Annotated[int, typer.Option(help="Samples of a batch.")]

Activation = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="linear, relu, leaky_relu, abs, tanh, sigmoid, sin, erf, elu, celu, selu, gelu or "
        "silu.",
    ),
]

Norm = Annotated[
    str,
    typer.Option(
        metavar="NAME", help="batch, batch-uncentred, layer, rms, group(8) (8 groups), or none."
    ),
]

Skip = Annotated[float, typer.Option(help="Factor of the skip connection.")]

Gain = Annotated[float, typer.Option(help="Factor of the weights.")]

#: The gain of a command that has `Weights`.
GainOfLaw = Annotated[
    float | None,
    typer.Option(
        help="Factor of the weights. Default: 1, or 1/√3 with the weights pytorch.",
        show_default=False,
    ),
]

Weights = Annotated[
    str,
    typer.Option(
        metavar="LAW",
        help="gaussian, uniform, rademacher, haar or pytorch (nn.Linear's default, with bias).",
    ),
]

Eps = Annotated[float, typer.Option(help="Added to the variance; layers have 1e-5.")]

Seed = Annotated[
    int | None, typer.Option(help="Repeats a run. Default: a new one, which is printed.")
]

Threads = Annotated[
    int | None, typer.Option(help="All processors unless given. Results do not depend on it.")
]

Plot = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Draw a picture: .png, .pdf, .svg.")
]

Force = Annotated[bool, typer.Option("--force", help="Replace files that exist.")]

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of the table.")]

Store = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Keep what is finished in a .zarr store, and go on from there if the same command was "
        "interrupted.",
    ),
]

Timeout = Annotated[
    float | None, typer.Option(metavar="SECONDS", help="Stop then, with what is finished.")
]

Hours = Annotated[
    float,
    typer.Option(help="Longest duration allowed; a longer forecast raises an error."),
]

ProgressFlag = Annotated[
    bool | None,
    typer.Option(
        "--progress/--no-progress",
        help="Show progress on standard error. Default: if that is a terminal.",
        show_default=False,
    ),
]
