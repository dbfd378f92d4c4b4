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
    "BiasVariance",
    "Eps",
    "Force",
    "Gain",
    "Hours",
    "Json",
    "Norm",
    "Order",
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

Width = Annotated[int, typer.Option(help="Number of neurons per layer.")]

Batch = Annotated[int, typer.Option(help="Number of samples in the batch.")]

Activation = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="Activation: linear, relu, leaky_relu, abs, tanh, sigmoid, sin, erf, elu, celu, selu, "
        "gelu or silu.",
    ),
]

Norm = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="Normalization: batch, batch-uncentred, layer, rms, group(8) (8 groups) or none.",
    ),
]

Order = Annotated[
    str,
    typer.Option(metavar="NAME", help="norm-activation, activation-norm or pre-activation."),
]

BiasVariance = Annotated[float, typer.Option(help="Variance of the biases.")]

Skip = Annotated[float, typer.Option(help="Factor of the skip connection; 0 for none.")]

Gain = Annotated[float, typer.Option(help="Factor of the weights.")]

#: The gain of a command that has `Weights`.
GainOfLaw = Annotated[
    float | None,
    typer.Option(
        help="Factor of the weights. Default: 1; for --weights pytorch 1/√3.",
        show_default=False,
    ),
]

Weights = Annotated[
    str,
    typer.Option(
        metavar="LAW",
        help="Law of the weights: gaussian, uniform, rademacher, haar, or pytorch (the default of "
        "nn.Linear, with its bias).",
    ),
]

Eps = Annotated[
    float,
    typer.Option(
        help="Constant that the normalization adds to the variance; PyTorch's default is 1e-5."
    ),
]

Seed = Annotated[
    int | None,
    typer.Option(help="Seed of the random numbers. Default: a random seed, which is printed."),
]

Threads = Annotated[
    int | None,
    typer.Option(help="Number of threads; results do not depend on it. Default: all processors."),
]

Plot = Annotated[
    Path | None, typer.Option(metavar="FILE", help="File for the picture: .png, .pdf or .svg.")
]

Force = Annotated[bool, typer.Option("--force", help="Replace existing files.")]

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of the table.")]

Store = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Folder (.zarr) for finished parts. After an interruption, the same command resumes.",
    ),
]

Timeout = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        help="Time limit in seconds; the report then contains the finished layers.",
    ),
]

Hours = Annotated[
    float,
    typer.Option(help="Longest duration allowed; a longer forecast raises an error."),
]

ProgressFlag = Annotated[
    bool | None,
    typer.Option(
        "--progress/--no-progress",
        help="Progress on standard error. Default: only if standard error is a terminal.",
        show_default=False,
    ),
]
