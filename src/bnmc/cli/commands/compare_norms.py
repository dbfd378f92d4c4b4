"""``bnmc compare-norms``: rank, orthogonality, correlation and gradients, for several norms."""

from __future__ import annotations

from typing import Annotated

import typer

from bnmc.cli import options
from bnmc.cli.outputs import require_destination, require_packages, save
from bnmc.cli.report import chosen_seed, print_json, print_table, progress_report

__all__ = ["compare_norms"]


def compare_norms(
    width: options.Width = 400,
    batch: options.Batch = 8,
    depth: Annotated[int, typer.Option(help="Number of layers, at least 4.")] = 30,
    chains: Annotated[int, typer.Option(help="Number of networks per norm, at least 2.")] = 8,
    activation: options.Activation = "relu",
    norm: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Normalization as in bnmc simulate; repeat the option for several. Default: "
            "batch, layer, rms, group(8) and none.",
            show_default=False,
        ),
    ] = None,
    seed: options.Seed = None,
    threads: options.Threads = None,
    plot: options.Plot = None,
    force: options.Force = False,
    as_json: options.Json = False,
    progress: options.ProgressFlag = None,
) -> None:
    """Compare ranks and gradients of networks by their norm.

    The table and the picture show soft rank, orthogonality gap, mean correlation and gradient norms
    against depth, beside the mean field. The samples are independent and Gaussian. The gain is such
    that networks without a norm keep their variance.

    Example: bnmc compare-norms --activation tanh --depth 50 --plot norms.png

    Example: bnmc compare-norms --norm batch --norm layer --width 1000 --seed 0 --json
    """
    from bnmc._support.arguments import integer
    from bnmc.experiments.beyond import compared_norms
    from bnmc.experiments.parts import Call

    require_packages(plot=plot, others={"xarray": "xarray"})
    if plot is not None:
        require_destination("plot", plot, force)
    sizes = compared_norms.Sizes(
        tuple(dict.fromkeys(norm or compared_norms.NORMS)), activation, width,
        integer("batch", batch, low=3), integer("depth", depth, low=4),
        integer("chains", chains, low=2),
    )  # fmt: skip
    seed = chosen_seed(seed)
    call = Call("norms", rng=seed, progress=progress_report(progress, "%"), threads=threads)
    found = compared_norms.experiment(sizes, call)
    if as_json:
        print_json({**found.to_dict(), "seed": seed})
    else:
        print(f"{found.title}\n")
        print_table(list(found.table.columns), found.table.cells())
        print("\n".join(["", *found.findings, f"seed {seed}"]), flush=True)
    if plot is not None:
        save(found.plot(), plot)
