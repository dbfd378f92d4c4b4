"""``bnmc info``: versions, processors, GPU and cache."""

from __future__ import annotations

from bnmc.cli import options
from bnmc.cli.report import print_json, print_table

__all__ = ["info"]


def info(as_json: options.Json = False) -> None:
    """Versions, threads, GPU and cache.

    Example: bnmc info --json
    """
    import os
    import platform
    from importlib import metadata

    from numba import config

    from bnmc._kernels.compiling import host_cpu
    from bnmc._kernels.gpu.device import why_not
    from bnmc._support.machine import available_processors
    from bnmc._support.version import __version__

    versions = {"bnmc": __version__, "python": platform.python_version()}
    for name in ("numba", "llvmlite", "numpy", "scipy", "numba-cuda"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "not installed"
    facts = {
        **versions,
        "processor": host_cpu(),
        "processors": available_processors(),
        "threading layer": str(getattr(config, "THREADING_LAYER", "default")),
        "gpu": why_not() or "available",
        "kernel cache": os.environ.get("NUMBA_CACHE_DIR", "beside the package, or the user's"),
    }
    if as_json:
        print_json(facts)
        return
    print_table(["what", "value"], [[name, str(value)] for name, value in facts.items()])
