"""``bnmc simulate``: a batch of inputs through many random networks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bnmc.cli import options
from bnmc.cli.outputs import raise_first, require_destination, require_packages
from bnmc.cli.statuses import INTERRUPTED, OK

__all__ = ["simulate"]


def simulate(
    input_: Annotated[
        Path | None,
        typer.Option(
            "--input",
            "-i",
            metavar="FILE",
            help="Inputs in a .npy, .npz or .csv file of features × samples. Default: handwritten "
            "digits.",
        ),
    ] = None,
    array: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the array in an .npz file.")
    ] = None,
    samples_first: Annotated[
        bool, typer.Option("--samples-first", help="Read the file as samples × features.")
    ] = False,
    batch: Annotated[
        int | None,
        typer.Option(
            help="Number of samples, the first ones. Default: all samples of a file, or 10 digits."
        ),
    ] = None,
    first_layer: Annotated[
        bool,
        typer.Option(
            "--first-layer",
            help="Multiply the input by a Gaussian matrix (width × features, variance 1/features) "
            "even if its number of features equals the width. Digits, and inputs with another "
            "number of features, are always multiplied by it.",
        ),
    ] = False,
    chains: Annotated[int, typer.Option(help="Number of independent networks.")] = 64,
    width: options.Width = 1000,
    depth: Annotated[int, typer.Option(help="Number of layers.")] = 50,
    activation: options.Activation = "relu",
    norm: options.Norm = "batch",
    skip: options.Skip = 0.0,
    gain: options.GainOfLaw = None,
    weights: options.Weights = "gaussian",
    eps: options.Eps = 0.0,
    seed: options.Seed = None,
    sampler: Annotated[
        str, typer.Option(metavar="NAME", help="Sampler: auto, conditional or weights.")
    ] = "auto",
    dtype: Annotated[
        str, typer.Option(metavar="TYPE", help="Precision: float64 or float32.")
    ] = "float64",
    threads: options.Threads = None,
    every: Annotated[int, typer.Option(help="Number of layers between recorded layers.")] = 1,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="File (.npz, .nc or .zarr) for all recorded layers, with their Gram matrices.",
        ),
    ] = None,
    store: options.Store = None,
    timeout: options.Timeout = None,
    plot: options.Plot = None,
    force: options.Force = False,
    as_json: options.Json = False,
    progress: options.ProgressFlag = None,
) -> None:
    """Simulate many random networks on a batch of inputs.

    The table shows means over the networks, with standard errors: the Frobenius distance between
    the Gram matrix G of a layer and its limit G* at infinite width; the orthogonality gap, which is
    0 for orthogonal samples; the smallest and the largest eigenvalue of G.

    Ctrl-C ends the run after its finished layers, which are printed and written. The exit status
    is then 130.

    Example: bnmc simulate --activation tanh --depth 100 --plot tanh.png

    Example: bnmc simulate --input batch.npy --width 500 --chains 256 --seed 0 --output run.npz

    Example: bnmc simulate --input batch.csv --samples-first --norm none --activation linear --json
    """
    settings = dict(locals())
    from bnmc.errors import ArgumentError
    from bnmc.simulation.export import extras_of

    require_packages(plot=plot, output=output, others=extras_of(store) if store else {})
    for name, path in (("output", output), ("plot", plot)):
        if path is not None:
            require_destination(name, path, force)
    if output is not None and store is not None and output.resolve() == store.resolve():
        raise ArgumentError("output", str(output), "a path other than that of the store")
    from bnmc.cli.ensemble import print_report, run_ensemble, write_files

    done = run_ensemble(settings)
    failures = write_files(done)
    print_report(done)
    raise_first(failures)
    raise typer.Exit(INTERRUPTED if done.interrupted else OK)
