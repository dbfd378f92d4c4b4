"""``bnmc bench`` and ``bnmc info``: the speed of this machine, and what is installed on it."""

from __future__ import annotations

from typing import Any

from bnmc._support.text import Table
from bnmc.cli.command import Report, command, table_of


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
        [str(row["what"]), *(_digits(value) for value in list(row.values())[1:])] for row in rows
    ]
    last = f"\nprocessor {host_cpu()}; layers of all networks together, medians of 3 rounds"
    document = {"chain": chain, "processor": host_cpu(), "rows": rows}
    return Report(document, [f"{chain}\n", Table(heads, cells, "<>"), last])


def _digits(value: float) -> str:
    """Return three significant digits without an exponent, in groups of three above 9999."""
    text = f"{value:.3g}"
    if value < 1000:
        return text
    return f"{float(text):,.0f}".replace(",", " " if value >= 10_000 else "")


@command()
def info() -> Report:
    """Print versions, processors, GPU and the kernel cache.

    Example: bnmc info --json
    """
    import platform
    from importlib import metadata

    from numba import config

    from bnmc._kernels.gpu.device import why_not
    from bnmc._kernels.kernel_cache import carried, kept, unusable_folders
    from bnmc._kernels.processor import host_cpu
    from bnmc._support.machine import available_processors
    from bnmc._support.version import __version__

    versions = {"bnmc": __version__, "python": platform.python_version()}
    for name in ("numba", "llvmlite", "numpy", "scipy", "numba-cuda"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "not installed"
    on_disk, in_wheel = kept(), carried()
    no_gpu = (why_not() or "").partition(": Error")[0]  # without the paragraph of the driver
    facts = {
        **versions,
        "processor": host_cpu(),
        "processors": available_processors(),
        "threading layer": str(getattr(config, "THREADING_LAYER", "default")),
        "gpu": f"none ({no_gpu})" if no_gpu else "available",
        "kernels of the wheel": (
            "none" if in_wheel is None else f"{in_wheel.entries} for {in_wheel.folder.name}"
        ),
        "kernel cache": (
            f"none: {'; '.join(unusable_folders())}" if on_disk is None else str(on_disk.folder)
        ),
        "kernels in the cache": 0 if on_disk is None else on_disk.entries,
        "megabytes in the cache": 0.0 if on_disk is None else round(on_disk.bytes / 1e6, 1),
    }
    return Report(facts, [table_of(facts, "item")])
