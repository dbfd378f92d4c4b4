"""``bnmc backprop``: gradients of random networks against depth."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from bnmc.cli import options
from bnmc.cli.outputs import require_destination, save
from bnmc.cli.report import chosen_seed, print_json, progress_report
from bnmc.cli.statuses import INTERRUPTED, OK

__all__ = ["backprop"]


def backprop(
    width: options.Width = 1000,
    batch: options.Batch = 10,
    activation: options.Activation = "relu",
    norm: options.Norm = "batch",
    skip: options.Skip = 0.0,
    gain: options.GainOfLaw = None,
    weights: options.Weights = "gaussian",
    eps: options.Eps = 0.0,
    depth: Annotated[int, typer.Option(help="Layers.")] = 50,
    chains: Annotated[int, typer.Option(help="Independent networks.")] = 64,
    loss: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="gaussian (a gradient with independent normal entries at the last layer), "
            "cross-entropy or squared (of a Gaussian readout).",
        ),
    ] = "gaussian",
    classes: Annotated[
        int | None,
        typer.Option(
            help="Outputs of the readout; sample i has the class i modulo this number. Default: 10 "
            "with cross-entropy and squared."
        ),
    ] = None,
    seed: options.Seed = None,
    sampler: Annotated[
        str, typer.Option(metavar="NAME", help="auto, conditional or weights.")
    ] = "auto",
    dtype: Annotated[str, typer.Option(metavar="TYPE", help="float64 or float32.")] = "float64",
    threads: options.Threads = None,
    store: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder for finished networks. If the command was interrupted, the same command "
            "continues from there.",
        ),
    ] = None,
    timeout: options.Timeout = None,
    plot: options.Plot = None,
    force: options.Force = False,
    as_json: options.Json = False,
    progress: options.ProgressFlag = None,
) -> None:
    """Measure how gradients explode or vanish with depth.

    The table shows, for the weights W of some layers, the mean over networks of the logarithm of
    the Frobenius norm of the gradient ∂L/∂W, and its standard error. Below are the growth of the
    squared norm per layer towards the input, and its value at infinite width.

    The samples are independent and Gaussian; bnmc.backpropagate takes any others.

    Ctrl-C ends a run with the networks that are finished, which are shown and drawn all the same;
    the exit status is then 130.

    Example: bnmc backprop --activation tanh --depth 100 --plot gradients.png

    Example: bnmc backprop --loss cross-entropy --classes 2 --width 500 --seed 0 --json
    """
    from bnmc.chain.chain import Chain
    from bnmc.errors import Interrupted
    from bnmc.gradients import backpropagate

    if plot is not None:
        require_destination("plot", plot, force)
    chain = Chain(
        width, batch, activation, norm=norm, skip=skip, gain=gain, weights=weights, eps=eps
    )
    if store is None or seed is not None:
        seed = chosen_seed(seed)
    status = OK
    try:
        found = backpropagate(
            chain, depth, chains=chains, loss=loss, rng=seed, sampler=sampler, observables=(),
            dtype=dtype, threads=threads, store=store, timeout=timeout,
            progress=progress_report(progress, "network"), **_of_readout(loss, classes, batch),
        )  # fmt: skip
    except Interrupted as stop:
        if stop.partial is None:
            raise
        found, status = stop.partial, INTERRUPTED
    if as_json:
        print_json({"seed": seed, **found.to_dict()})
    else:
        # Without a seed, the random numbers are those of the store.
        repeated_by = f"key {found.key} of the store" if seed is None else f"seed {seed}"
        print(f"{found}\n{repeated_by}", flush=True)
    if plot is not None:
        save(found.plot().figure, plot)
    raise typer.Exit(status)


def _of_readout(loss: str, classes: int | None, batch: int) -> dict[str, Any]:
    """Return labels and number of classes of a loss after a readout."""
    if loss not in ("cross-entropy", "squared"):
        return {"classes": classes}
    from bnmc._support.arguments import integer

    count = integer("classes", 10 if classes is None else classes, low=2)
    return {"classes": count, "labels": [number % count for number in range(batch)]}
