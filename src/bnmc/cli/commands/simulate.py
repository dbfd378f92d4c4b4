"""``bnmc simulate``: a batch of inputs through many random networks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bnmc.cli import options
from bnmc.cli.outputs import raise_first, require_destination
from bnmc.cli.statuses import INTERRUPTED, OK

__all__ = ["simulate"]


def simulate(
    input_: Annotated[
        Path | None,
        typer.Option(
            "--input",
            "-i",
            metavar="FILE",
            help="Inputs in a .npy, .npz or .csv file, features × samples; handwritten digits "
            "unless given.",
        ),
    ] = None,
    array: Annotated[
        str | None, typer.Option(metavar="NAME", help="Which array of an .npz file.")
    ] = None,
    samples_first: Annotated[
        bool, typer.Option("--samples-first", help="The file is samples × features.")
    ] = False,
    batch: Annotated[
        int | None,
        typer.Option(help="Use the first samples only. Default: all of a file, 10 digits."),
    ] = None,
    first_layer: Annotated[
        bool,
        typer.Option(
            "--first-layer",
            help="Take the input through a Gaussian layer of shape width × features, variance "
            "1/features, even if it has as many features as the network is wide. Digits and "
            "inputs of other numbers of features always go through it.",
        ),
    ] = False,
    chains: Annotated[int, typer.Option(help="Independent networks.")] = 64,
    width: options.Width = 1000,
    depth: Annotated[int, typer.Option(help="Layers.")] = 50,
    activation: options.Activation = "relu",
    norm: options.Norm = "batch",
    skip: options.Skip = 0.0,
    gain: options.GainOfLaw = None,
    weights: options.Weights = "gaussian",
    eps: options.Eps = 0.0,
    seed: options.Seed = None,
    sampler: Annotated[
        str, typer.Option(metavar="NAME", help="auto, conditional or weights.")
    ] = "auto",
    dtype: Annotated[str, typer.Option(metavar="TYPE", help="float64 or float32.")] = "float64",
    threads: options.Threads = None,
    every: Annotated[int, typer.Option(help="Record every so many layers.")] = 1,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write all recorded layers, with Gram matrices, to a .npz, .nc or .zarr file.",
        ),
    ] = None,
    store: options.Store = None,
    timeout: options.Timeout = None,
    plot: options.Plot = None,
    force: options.Force = False,
    as_json: options.Json = False,
    progress: options.ProgressFlag = None,
) -> None:
    """Take a batch of inputs through many random networks.

    The table shows means over the networks and their standard errors: of the Frobenius distance of
    the Gram matrix G of a layer from G*, where infinitely wide networks settle; of the
    orthogonality gap, 0 for orthogonal samples; and of the extreme eigenvalues of G.

    Ctrl-C ends a run with the layers that are finished, which are shown and written all the same;
    the exit status is then 130.

    Example: bnmc simulate --activation tanh --depth 100 --plot tanh.png

    Example: bnmc simulate --input batch.npy --width 500 --chains 256 --seed 0 --output run.npz

    Example: bnmc simulate --input batch.csv --samples-first --norm none --activation linear --json
    """
    settings = dict(locals())
    from bnmc.errors import ArgumentError

    for name, path in (("output", output), ("plot", plot)):
        if path is not None:
            require_destination(name, path, force)
    if output is not None and store is not None and output.resolve() == store.resolve():
        raise ArgumentError("output", str(output), "another path than that of the store")
    from bnmc.cli.ensemble import print_report, run_ensemble, write_files

    done = run_ensemble(settings)
    failures = write_files(done)
    print_report(done)
    raise_first(failures)
    raise typer.Exit(INTERRUPTED if done.interrupted else OK)
