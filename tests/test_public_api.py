"""The public names: what the lists say is there, documented, and nothing else."""

import importlib
import inspect
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import bnmc

ROOT = Path(bnmc.__file__).parent

#: Public modules: those of `bnmc.__all__`, and what these name themselves.
MODULES = sorted(
    {"bnmc", "bnmc.kernels.c", "bnmc.kernels.cuda"}
    | {f"bnmc.{name}" for name in bnmc.__all__ if inspect.ismodule(getattr(bnmc, name))}
)


def names_of(module):
    return [name for name in module.__all__ if not name.startswith("__")]


@pytest.mark.parametrize("name", MODULES)
def test_names_are_there_once_in_order_and_documented(name):
    module = importlib.import_module(name)
    listed = module.__all__
    assert len(set(listed)) == len(listed)
    assert listed == sorted(listed, key=lambda one: (order_of(one), one))
    assert module.__doc__
    for one in names_of(module):
        value = getattr(module, one)
        if inspect.isclass(value) or callable(value) or inspect.ismodule(value):
            assert inspect.getdoc(value), f"{name}.{one}"


def order_of(name):
    """Ruff's order: constants, classes, all others."""
    if name.isupper() and len(name) > 1:
        return 0
    return 1 if name[:1].isupper() else 2


@pytest.mark.parametrize("name", MODULES)
def test_functions_say_what_they_take_and_return(name):
    """numpydoc's sections, and an example, for what is called."""
    module = importlib.import_module(name)
    for one in names_of(module):
        value = getattr(module, one)
        if not inspect.isfunction(inspect.unwrap(value)) or inspect.isclass(value):
            continue
        text = inspect.getdoc(value)
        parameters = inspect.signature(inspect.unwrap(value)).parameters
        plain = one in ("activate",)  # a function of kernels, whose dispatch is Numba's
        if plain:
            continue
        assert ">>> " in text, f"{name}.{one} has no example"
        assert not parameters or "Parameters\n" in text, f"{name}.{one}"


def test_the_package_lists_what_its_docstrings_promise():
    """A public module of the package is in the list, or stands behind a name that is."""
    behind = set(bnmc._HOMES.values()) | set(bnmc._MODULES)
    # The command line, the pytest plugin and files are reached by other ways.
    other = {"cli", "estimate", "files", "pytest_plugin", "store"}
    found = {one.name for one in pkgutil.iter_modules([str(ROOT)]) if not one.name.startswith("_")}
    assert found == behind | other
    assert set(bnmc._HOMES) | set(bnmc._MODULES) | {"__version__"} == set(bnmc.__all__)
    assert set(dir(bnmc)) >= set(bnmc.__all__)
    for name, home in bnmc._HOMES.items():
        assert name in importlib.import_module(f"bnmc.{home}").__all__, name


def test_what_type_checkers_see_is_the_same():
    """The names under TYPE_CHECKING are those of the lists."""
    text = (ROOT / "__init__.py").read_text()
    block = re.search(r"if TYPE_CHECKING:\n(.*?)\n_HOMES", text, re.DOTALL).group(1)
    words = set(re.findall(r"\w+", re.sub(r"from [\w.]+ import", "", block)))
    assert words == set(bnmc.__all__) - {"__version__"}
    assert (ROOT / "py.typed").is_file()


def test_unknown_names_are_refused():
    with pytest.raises(AttributeError, match="no attribute 'simulat'"):
        bnmc.simulat  # noqa: B018


USER = """
import numpy as np
import bnmc
from bnmc import kernels
from bnmc.kernels import c

chain = bnmc.Chain(10, 2, "relu")
gram = np.eye(2)
status: int = kernels.conditional_layer(
    kernels.activation("relu"), kernels.law(chain), gram, 1, 0, np.uint64(7), gram,
    kernels.workspace(chain),
)
words: tuple[int, int, int, int] = kernels.philox(0, 0, 0, 0, 0, 0)
address: int = c.table("relu").address
text: str = c.header()
seconds: float = bnmc.warmup(activations="relu").seconds
key: int = bnmc.simulate(chain, 3).key
bnmc.testing.assert_same_law(lambda h: h, chain)
"""

WRONG = """
import numpy as np
import bnmc
from bnmc import kernels

kernels.gram(3, np.eye(2), np.eye(2), np.eye(2))
kernels.normals(np.eye(2), 0, 0, 0, 0, 7, kernels.ROWS)
text: str = kernels.failed_row(np.eye(2))
bnmc.warmup(dtypes=3)
"""


def test_types_are_those_of_the_annotations(tmp_path):
    """mypy --strict reads of compiled functions what they are called with, without stubs."""
    (tmp_path / "user.py").write_text(USER)
    (tmp_path / "wrong.py").write_text(WRONG)
    # As `make lint` runs it, whose cache of NumPy and SciPy it finds.
    command = [sys.executable, "-m", "mypy", "--strict"]
    command += [str(tmp_path / name) for name in ("user.py", "wrong.py")]
    environment = {**os.environ, "MYPYPATH": "src"}
    done = subprocess.run(
        command, cwd=ROOT.parents[1], env=environment, capture_output=True, text=True
    )
    lines = [line for line in done.stdout.splitlines() if "error:" in line]
    places = [re.search(r"(\w+)\.py:(\d+): error", line).groups() for line in lines]
    assert set(places) == {("wrong", str(line)) for line in (6, 7, 8, 9)}, done.stdout + done.stderr
