"""Puts compiled kernels into a wheel, if BNMC_KERNELS=compiled; see `backend.py`."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from importlib import metadata
from os import environ
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompiledKernels(BuildHookInterface):
    """Compiles the kernels of the commonest runs into a folder of the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and tag the wheel by the platform."""
        self.folder = None
        if version == "editable" or environ.get("BNMC_KERNELS") != "compiled":
            return
        self.folder = tempfile.mkdtemp(prefix="bnmc-kernels-")
        program = Path(self.root, "wheels", "kernels.py")
        subprocess.run([sys.executable, str(program), self.folder], check=True)
        build_data["force_include"][self.folder] = "bnmc/_kernels/compiled"
        build_data["pure_python"] = False
        build_data["tag"] = platform_tag()

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the folder that the wheel has a copy of."""
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


def platform_tag() -> str:
    """Return the tag of the installed Numba.

    The kernels require this very version of Numba for this version of Python, and nothing else
    of the system.
    """
    lines = (metadata.distribution("numba").read_text("WHEEL") or "").splitlines()
    tags = [line.partition(": ")[2] for line in lines if line.startswith("Tag: ")]
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    platforms = [tag.rsplit("-", 1)[-1] for tag in tags if tag.endswith("_x86_64")]
    return f"{python}-{python}-{platforms[0] if platforms else 'linux_x86_64'}"
