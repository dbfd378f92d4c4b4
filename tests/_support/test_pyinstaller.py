"""The hook for PyInstaller, with a substitute for it.

A real build takes minutes; `_kernels/test_kernel_cache.py` runs the package without its files.
"""

import runpy
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
from programs import PACKAGE

from bnmc._support.pyinstaller import hook_folders

PROJECT = PACKAGE.parents[1] / "pyproject.toml"


def test_the_hook_adds_all_that_is_collected(monkeypatch):
    (folder,) = hook_folders()
    collected = {"bnmc": ([("digits.npz", "bnmc")], [], ["bnmc.gram", "bnmc.mixing"])}
    substitute = SimpleNamespace(collect_all=collected.__getitem__)
    monkeypatch.setitem(sys.modules, "PyInstaller.utils.hooks", substitute)
    added = {}
    api = SimpleNamespace(
        add_datas=lambda data: added.update(data=data),
        add_binaries=lambda binaries: added.update(binaries=binaries),
        add_imports=lambda *modules: added.update(modules=list(modules)),
    )
    runpy.run_path(str(Path(folder, "hook-bnmc.py")))["hook"](api)
    assert tuple(added.values()) == collected["bnmc"]


@pytest.mark.skipif(not PROJECT.exists(), reason="the tests are not in the source tree")
def test_pyinstaller_finds_the_hook():
    points = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["entry-points"]
    assert points["pyinstaller40"] == {
        "hook-dirs": f"{hook_folders.__module__}:{hook_folders.__name__}"
    }
