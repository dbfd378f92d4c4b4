"""The release: it builds, it installs, and a package that depends on it works.

The source distribution is built from this folder, and the wheel from the source distribution.
Nothing is downloaded: a new environment finds all other packages where the tests find them.
"""

import importlib
import inspect
import os
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from numba.core.caching import _CacheLocator

import bnmc
from bnmc import kernels
from bnmc._kernels.cpu import elementwise

ROOT = Path(__file__).parents[1]
DOWNSTREAM = Path(__file__).with_name("downstream")
#: The imports of the downstream package and its tests.
NEEDED = "numpy, scipy, numba, pytest, hypothesis, hatchling"

pytestmark = pytest.mark.skipif(
    not (ROOT / "pyproject.toml").exists(), reason="the tests are not in the source tree"
)


def test_an_older_python_gets_a_sentence(monkeypatch):
    """And no traceback of a module that it lacks."""
    monkeypatch.setattr(sys, "version_info", (3, 10, 13))
    with pytest.raises(SystemExit, match=r"bnmc needs Python >= 3\.11, and this is Python 3\."):
        runpy.run_path(str(ROOT / "wheels" / "backend.py"))


def test_tests_and_benchmarks_use_one_torch_that_users_may_have():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    (oldest,) = extras["torch"]
    exacts = set()
    for extra in ("test", "bench"):
        (exact,) = (entry for entry in extras[extra] if entry.startswith("torch"))
        exacts.add(exact)
    (exact,) = exacts
    numbers = [
        [int(part) for part in text.partition(sign)[2].split(".")]
        for text, sign in ((oldest, ">="), (exact, "=="))
    ]
    assert numbers[0] <= numbers[1]


def run(*command, cwd, environment=None):
    """Run a program without `PYTHONPATH`; return its output."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**inherited, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Return a folder with the source distribution and the wheel."""
    folder = tmp_path_factory.mktemp("dist")
    command = sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT
    # Compiling the kernels of a wheel takes minutes: `make smoke` does it.
    run(*command, cwd=folder, environment={"BNMC_KERNELS": "none"})
    return folder


def test_what_is_in_the_distributions(built):
    (wheel,) = built.glob("bnmc-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    for name in ("__init__.py", "py.typed", "kernels/__init__.py", "pytest_plugin.py"):
        assert f"bnmc/{name}" in names
    assert not [name for name in names if name.split("/")[0] not in ("bnmc", wheel_info(names))]
    (source,) = built.glob("bnmc-*.tar.gz")
    with tarfile.open(source) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    for name in (
        "LICENSE",
        "README.md",
        "tests/downstream/pyproject.toml",
        "tests/kernels/embedding.c",
    ):
        assert name in inside


@pytest.fixture
def backend(monkeypatch):
    """Return the build backend, run from the source tree as a front end runs it."""
    monkeypatch.syspath_prepend(ROOT / "wheels")
    monkeypatch.chdir(ROOT)
    monkeypatch.delenv("BNMC_KERNELS", raising=False)
    return importlib.import_module("backend")


def compile_one(command, *, check):
    """Stand for `wheels/kernels.py`: write one file."""
    folder = Path(command[-1], "x86-64-v3")
    folder.mkdir()
    (folder / "one.nbc").write_text("code")


@pytest.mark.skipif(sys.platform != "linux", reason="wheels with kernels are made on Linux")
def test_a_wheel_with_kernels(backend, monkeypatch, tmp_path):
    monkeypatch.setattr(backend, "can_compile", lambda: True)
    monkeypatch.setattr(subprocess, "run", compile_one)
    name = backend.build_wheel(str(tmp_path))
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert re.fullmatch(rf"bnmc-.*-{python}-{python}-(many)?linux.*_x86_64\.whl", name)
    with zipfile.ZipFile(tmp_path / name) as made:
        assert "bnmc/_kernels/compiled/x86-64-v3/one.nbc" in made.namelist()
        (info,) = [name for name in made.namelist() if name.endswith("dist-info/WHEEL")]
        assert "Root-Is-Purelib: false" in made.read(info).decode()
    assert any("numba" in name for name in backend.get_requires_for_build_wheel())
    assert "BNMC_KERNELS" not in os.environ


def test_kernels_of_a_wheel_are_found_by_their_functions(monkeypatch):
    """A level compiles what another one recorded: functions by name, of which kernels are made."""
    monkeypatch.syspath_prepend(ROOT / "wheels")
    kernel_of = importlib.import_module("kernels").kernel_of
    inner = Path(bnmc.__file__).parent / "_kernels" / "cpu"
    count = 0
    for path in inner.glob("*.py"):
        module = importlib.import_module(f"bnmc._kernels.cpu.{path.stem}")
        for value in vars(module).values():
            function = getattr(value, "py_func", None)
            if getattr(value, "is_kernel", False) and function.__module__ == module.__name__:
                assert kernel_of(module.__name__, function.__qualname__) is value
                count += 1
    assert count > 30


@pytest.mark.parametrize("how", ["option", "variable", "machine"])
def test_a_wheel_without_kernels(backend, monkeypatch, tmp_path, how):
    monkeypatch.setattr(subprocess, "run", compile_one)
    monkeypatch.setattr(backend, "can_compile", lambda: how != "machine")
    options = {"kernels": "none"} if how == "option" else None
    if how == "variable":
        monkeypatch.setenv("BNMC_KERNELS", "none")
    name = backend.build_wheel(str(tmp_path), options)
    assert name.endswith("-py3-none-any.whl")
    assert not [name for name in zipfile.ZipFile(tmp_path / name).namelist() if "compiled/" in name]


def test_an_editable_installation_carries_no_kernels(backend, monkeypatch, tmp_path):
    monkeypatch.setattr(subprocess, "run", compile_one)
    monkeypatch.setenv("BNMC_KERNELS", "compiled")
    parts = inspect.signature(BuildHookInterface.__init__).parameters
    hook = importlib.import_module("hatch_hook").CompiledKernels(
        *(str(ROOT) if name == "root" else None for name in parts if name not in ("self", "app"))
    )
    for version, carries in (("editable", False), ("standard", True)):
        data = {"force_include": {}}
        hook.initialize(version, data)
        assert bool(data["force_include"]) == carries
        hook.finalize(version, data, "")


@pytest.mark.parametrize(("value", "can"), [("all", True), ("compiled", False)])
def test_a_build_that_cannot_be(backend, monkeypatch, value, can):
    monkeypatch.setattr(backend, "can_compile", lambda: can)
    with pytest.raises(SystemExit, match="kernels = "):
        backend.chosen({"kernels": value})


def wheel_info(names):
    (info,) = {name.split("/")[0] for name in names if ".dist-info/" in name}
    return info


def test_the_distributions_can_be_uploaded(built):
    run(sys.executable, "-m", "twine", "check", "--strict", *built.iterdir(), cwd=built)


def newer_interpreters():
    """Return the interpreters that are newer than this one and have the packages needed."""
    paths = []
    for minor in range(sys.version_info.minor + 1, 20):
        path = shutil.which(f"python3.{minor}")
        code = f"import {NEEDED}"
        if path and subprocess.run([path, "-c", code], capture_output=True).returncode == 0:
            paths.append(path)
    return paths


# What is in the wheel, the plugin and the cache of kernels have tests of their own.
@pytest.mark.slow
@pytest.mark.parametrize("which", ["this", "newer"])
def test_a_package_that_depends_on_it(built, tmp_path, which):
    interpreters = [sys.executable] if which == "this" else newer_interpreters()
    if not interpreters:
        pytest.skip(f"no newer interpreter has {NEEDED}")
    for interpreter in interpreters:
        python = environment(interpreter, tmp_path / Path(interpreter).name)
        install(python, *built.glob("bnmc-*.whl"), DOWNSTREAM)
        code = "import bnmc; print(bnmc.__file__)"
        installed = Path(run(python, "-c", code, cwd=tmp_path).strip()).parent
        assert tmp_path in installed.parents
        take_kernels(installed, tmp_path / "kernels")
        uses = shutil.copytree(DOWNSTREAM / "tests", tmp_path / f"uses-{python.parts[-3]}")
        # The option comes from the plugin of the installed package.
        options = "-q", "-p", "no:cacheprovider", "--bnmc-seed=3"
        kernels = {"NUMBA_CACHE_DIR": str(tmp_path / "kernels")}
        printed = run(python, "-m", "pytest", *options, uses, cwd=uses, environment=kernels)
        assert "5 passed" in printed


def environment(interpreter, folder):
    """Make an environment that finds the packages of the interpreter, except `bnmc`."""
    run(interpreter, "-m", "venv", "--without-pip", folder, cwd=folder.parent)
    python = folder / "bin" / "python" if os.name != "nt" else folder / "Scripts" / "python.exe"
    code = "import sysconfig; print(sysconfig.get_path({!r}))"
    packages = run(python, "-c", code.format("purelib"), cwd=folder).strip()
    others = {
        run(interpreter, "-c", code.format(kind), cwd=folder).strip()
        for kind in ("purelib", "platlib")
    }
    # A path in a .pth file comes after the paths of the environment.  Python reads no .pth files in
    # that path, so an editable installation of bnmc is not found.
    Path(packages, "others.pth").write_text("\n".join(sorted(others)) + "\n")
    return python


def install(python, *packages):
    run(
        sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps",
        "--no-index", "--no-build-isolation", "--ignore-installed", *packages, cwd=python.parent,
    )  # fmt: skip


def take_kernels(installed, cache):
    """Give an installed package the kernels that the tests have compiled from equal sources.

    Numba's cache has a folder for each folder of sources, and stamps its files with the time of
    the source.  What the tests have not compiled, the package compiles itself.
    """
    package = Path(bnmc.__file__).parent
    for path in installed.rglob("*.py"):
        source = package / path.relative_to(installed)
        assert path.read_bytes() == source.read_bytes()
        times = source.stat()
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    for kernel in (elementwise.apply, kernels.gram):
        source = Path(inspect.getfile(kernel.py_func)).relative_to(package)
        folder = _CacheLocator.get_suitable_cache_subpath(str(installed / source))
        # Without NUMBA_CACHE_DIR, Numba's folder is that of Python's compiled modules.
        shutil.copytree(
            kernel._cache.cache_path, cache / folder, ignore=shutil.ignore_patterns("*.pyc")
        )


ONLY_CORE = """
import sys
from importlib.machinery import PathFinder

ALLOWED = {"bnmc", "numpy", "scipy", "numba", "llvmlite"} | sys.stdlib_module_names

class OnlyCore(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        # The name of the module with Python's build variables contains the platform.
        if name.partition(".")[0] in ALLOWED or name.startswith("_sysconfigdata"):
            return PathFinder.find_spec(name, path, target)

sys.meta_path[:] = [OnlyCore if one is PathFinder else one for one in sys.meta_path]

import bnmc
bnmc.kernels.c, bnmc.kernels.cuda
import bnmc.testing
for name in bnmc.__all__:
    getattr(bnmc, name)
for name in bnmc.testing.__all__:
    getattr(bnmc.testing, name)
assert "BNMC_ABI_MAJOR" in bnmc.kernels.c.header()
chain = bnmc.Chain(10, 3, "relu")
assert abs(bnmc.MeanField(chain).fixed_point().gram.trace()) > 0.0
for call in (bnmc.testing.chains, lambda: bnmc.simulate(chain, 2, backend="cuda")):
    try:
        call()
    except (bnmc.errors.MissingExtraError, bnmc.errors.BackendError) as error:
        print(error)
"""


def test_import_with_the_core_dependencies_alone(tmp_path):
    script = tmp_path / "core.py"
    script.write_text(ONLY_CORE)
    # -S skips .pth files, one of which would replace Numba's own CUDA target by numba-cuda.
    here = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    here["NUMBA_ENABLE_CUDASIM"] = "0"
    options = "-S", "-W", "error"
    printed = run(sys.executable, *options, script, cwd=tmp_path, environment=here)
    assert 'pip install "bnmc[testing]"' in printed
    assert "numba-cuda is not installed" in printed
