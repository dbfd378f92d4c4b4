"""``bnmc bench``: the speed of this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from bnmc.cli import options
from bnmc.cli.report import print_json, print_table, progress_report

__all__ = ["bench"]


def bench(
    width: options.Width = 1000,
    batch: options.Batch = 10,
    activation: options.Activation = "relu",
    seconds: Annotated[
        float, typer.Option(help="Seconds per measurement (16 measurements).")
    ] = 0.5,
    threads: options.Threads = None,
    as_json: options.Json = False,
    progress: options.ProgressFlag = None,
) -> None:
    """Measure the speed of simulation on this machine.

    The reference is NumPy, which draws the weight matrix of each layer and multiplies.

    Example: bnmc bench --width 4000 --batch 10
    """
    from bnmc._kernels.processor import host_cpu
    from bnmc.chain.chain import Chain
    from bnmc.cli.speed import layer_speeds

    chain = Chain(width, batch, activation)
    report = progress_report(progress, "measurement")
    rows = layer_speeds(chain, seconds=seconds, threads=threads, progress=report)
    if as_json:
        print_json({"chain": repr(chain), "processor": host_cpu(), "rows": rows})
        return
    print(f"{chain}\n")
    print_table(
        ["program", "layers per second", "normals per second", "speed / NumPy"],
        [[str(row["what"]), *(f"{value:.3g}" for value in list(row.values())[1:])] for row in rows],
    )
    print(f"\nprocessor {host_cpu()}; layers of all networks together, medians of 3 rounds")
