"""``bnmc bench``: the speed of this machine."""

from __future__ import annotations

from typing import Any

from bnmc._support.text import Table
from bnmc.cli.command import Report, command


@command("width", "batch", "activation")
def bench(
    chain: Any,
    seconds: float = 0.5,
    *,
    threads: int | None,
    progress: bool,
) -> Report:
    """Measure the speed of simulation on this machine.

    The reference is NumPy, which draws the weight matrix of each layer and multiplies.

    Example: bnmc bench --width 4000 --batch 10

    Parameters
    ----------
    seconds
        Seconds per measurement (16 measurements).
    """
    from bnmc._kernels.processor import host_cpu
    from bnmc.cli.speed import layer_speeds

    rows = layer_speeds(chain, seconds=seconds, threads=threads, progress=progress)
    heads = ["program", "layers per second", "normals per second", "speed / NumPy"]
    cells = [
        [str(row["what"]), *(f"{value:.3g}" for value in list(row.values())[1:])] for row in rows
    ]
    last = f"\nprocessor {host_cpu()}; layers of all networks together, medians of 3 rounds"
    document = {"chain": repr(chain), "processor": host_cpu(), "rows": rows}
    return Report(document, [f"{chain}\n", Table(heads, cells), last])
