"""What an application needs of bnmc, as `--collect-all bnmc` finds it.

`bnmc` imports its parts by name, when they are first used, so PyInstaller sees none of them.  The
kernels of a wheel are data.  Sources identify compiled code, as they do outside of an application.
"""

from __future__ import annotations

import importlib
from typing import Any


def hook(hook_api: Any) -> None:
    """Add modules, sources, data and metadata to an application."""
    hooks = importlib.import_module("PyInstaller.utils.hooks")
    data, binaries, modules = hooks.collect_all("bnmc")
    hook_api.add_datas(data)
    hook_api.add_binaries(binaries)
    hook_api.add_imports(*modules)
