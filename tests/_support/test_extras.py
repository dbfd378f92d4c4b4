"""Optional dependencies: imported, or named with their extra."""

import inspect
import re
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

import bnmc
from bnmc import errors, experiments
from bnmc._support.extras import LazyExtra, import_extra, require_extras
from bnmc.experiments.registry import function_of


def test_import_extra_returns_the_module():
    assert import_extra("numpy.linalg", "plot") is np.linalg


@pytest.mark.parametrize("module", ["no_such_module", "no_such_module.inner", "numpy.no_such"])
def test_import_extra_names_the_extra(module):
    with pytest.raises(errors.MissingExtraError, match=r'pip install "bnmc\[plot\]"') as caught:
        import_extra(module, "plot")
    assert caught.value.extra == "plot"
    assert caught.value.module == module


def test_import_extra_does_not_hide_what_an_installed_module_lacks(tmp_path, monkeypatch):
    (tmp_path / "needs_more.py").write_text("import no_such_dependency\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_dependency") as caught:
        import_extra("needs_more", "plot")
    assert not isinstance(caught.value, errors.MissingExtraError)


def test_a_lazy_extra_is_imported_at_the_first_use_of_an_attribute(tmp_path, monkeypatch):
    (tmp_path / "used_later.py").write_text("NUMBER = 7\n")
    monkeypatch.syspath_prepend(tmp_path)
    module = LazyExtra("used_later", "plot")
    assert not hasattr(module, "__wrapped__")  # as doctest asks
    assert "used_later" not in sys.modules
    assert module.NUMBER == 7
    with pytest.raises(errors.MissingExtraError, match="extra 'torch'"):
        LazyExtra("no_such_module", "torch").nn  # noqa: B018


def test_one_error_names_all_missing_extras():
    needed = {"numpy": "plot", "no_such_module": "plot", "no_such.inner": "torch", "nor": "torch"}
    with pytest.raises(errors.MissingExtraError) as caught:
        require_extras(needed)
    assert caught.value.module == "no_such_module, no_such.inner, nor"
    assert caught.value.command == 'pip install "bnmc[plot,torch]"'
    assert 'pip install ".[plot,torch]" in a checkout' in str(caught.value)
    require_extras({"numpy": "plot", "scipy.linalg": "torch"})


def test_the_extra_of_the_demo_has_what_its_figures_and_pictures_need():
    root = Path(bnmc.__file__).parents[2]
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (entry,) = project["optional-dependencies"]["demo"]
    listed = set(entry.removeprefix("bnmc[").removesuffix("]").split(","))
    of_figures = (experiments.extras_of(name).values() for name in ("digits", "bridging-1a"))
    assert {"cli", "plot"}.union(*of_figures) <= listed


@pytest.mark.parametrize("name", experiments.names())
def test_figures_say_whether_they_need_pytorch(name):
    """The files that train or measure networks of PyTorch are named in the figure's file."""
    source = inspect.getsource(sys.modules[function_of(name).__module__])
    trains = re.search(r"experiments\.(training(\.| import )runs|outlooks\.outcomes)", source)
    assert ("torch" in experiments.extras_of(name)) == bool(trains)
