"""``bnmc info``: versions, processors, GPU and cache."""

from __future__ import annotations

from bnmc.cli.command import Report, command, table_of


@command()
def info() -> Report:
    """Print versions, processors, GPU and the kernel cache.

    Example: bnmc info --json
    """
    import platform
    from importlib import metadata

    from numba import config

    from bnmc._kernels.gpu.device import why_not
    from bnmc._kernels.kernel_cache import carried, kept
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
    facts = {
        **versions,
        "processor": host_cpu(),
        "processors": available_processors(),
        "threading layer": str(getattr(config, "THREADING_LAYER", "default")),
        "gpu": why_not() or "available",
        "kernels of the wheel": (
            "none" if in_wheel is None else f"{in_wheel.entries} for {in_wheel.folder.name}"
        ),
        "kernel cache": "none: no folder is writable" if on_disk is None else str(on_disk.folder),
        "kernels in the cache": 0 if on_disk is None else on_disk.entries,
        "megabytes in the cache": 0.0 if on_disk is None else round(on_disk.bytes / 1e6, 1),
    }
    return Report(facts, [table_of(facts, "item")])
