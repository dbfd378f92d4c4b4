"""The benchmarks: every name that they import from the package exists."""

import ast
import importlib
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[1] / "bench"
FILES = sorted(BENCH.rglob("*.py"))


@pytest.mark.skipif(not FILES, reason="the benchmarks are not here")
def test_imports():
    missing = []
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for module, name in imported(node):
                if module.split(".")[0] == "bnmc" and not is_there(module, name):
                    missing.append(f"{path.name}:{node.lineno}: {module}: {name}")
    assert not missing, "\n".join(missing)


def imported(node):
    """Yield modules with the name imported from each, None for the module itself."""
    if isinstance(node, ast.Import):
        yield from ((alias.name, None) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield from ((node.module, alias.name) for alias in node.names)


def is_there(module, name):
    try:
        found = importlib.import_module(module)
        if name is not None and not hasattr(found, name):
            importlib.import_module(f"{module}.{name}")
    except ImportError:
        return False
    return True


def test_missing_names_are_found():
    assert is_there("bnmc.kernels", "c")
    assert not is_there("bnmc.kernels", "no_such_name")
    assert not is_there("bnmc.no_such_module", None)
