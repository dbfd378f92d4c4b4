"""The documentation: its code runs, its names and links exist, and no public name is missing."""

import doctest
import importlib
import inspect
import itertools
import json
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import tomllib
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from test_public_api import MODULES, PUBLIC, RETURNED

import bnmc
from bnmc import cli, experiments
from bnmc.experiments.registry import FIGURES, function_of

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(path for path in DOCS.glob("*.rst"))
#: Pages whose code takes more than a few seconds: it compiles kernels, starts processes,
#: couples hundreds of chains, or measures networks of 30 layers.
HEAVY = {
    "cluster", "embedding", "gradients", "mixing", "other_papers", "questions", "results",
    "testing", "torch",
}  # fmt: skip
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.IGNORE_EXCEPTION_DETAIL

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.skipif(not DOCS.is_dir(), reason="the documentation is not here")


def text_of(page):
    return page.read_text(encoding="utf-8")


# ---------------------------------------------------------------- code


def with_prompt(page):
    return ">>> " in text_of(page)


@pytest.mark.untraced
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.slow] if page.stem in HEAVY else [], id=page.stem)
        for page in filter(with_prompt, PAGES)
    ],
)
def test_examples_run(page):
    if ">>> import torch" in text_of(page):
        pytest.importorskip("torch")
    example = doctest.DocTestParser().get_doctest(text_of(page), {}, page.stem, str(page), 0)
    said = []
    results = doctest.DocTestRunner(optionflags=OPTIONS).run(example, out=said.append)
    assert results.attempted > 0
    assert results.failed == 0, "".join(said)


class Command(NamedTuple):
    """A command of a page, with the output and exit status that the page shows."""

    words: str
    shown: str
    status: int


def commands(page):
    """Yield the commands after ``$ bnmc``, with the lines below and the result of ``$ echo $?``."""
    lines = [line.strip() for line in text_of(page).splitlines()]
    for number, line in enumerate(lines):
        if line.startswith("$ bnmc "):
            below = itertools.takewhile(
                lambda line: line and not line.startswith(("$ ", "```")), lines[number + 1 :]
            )
            shown = "\n".join(below)
            after = lines[number + 1 + len(shown.splitlines()) :]
            status = int(after[1]) if after[0] == "$ echo $?" else 0
            yield Command(line.removeprefix("$ bnmc ").partition("  #")[0].strip(), shown, status)


README = ROOT / "README.md"
#: Commands of all pages.  Of equal commands this takes the one whose output a page shows.
COMMANDS = {
    command.words: command
    for command in sorted({command for page in [*PAGES, README] for command in commands(page)})
    if command.words != "demo"  # tests/cli/test_app.py runs it
}
#: Beginnings of commands that take seconds.
LONG = ("certify --width 1000", "inspect", "rates", "simulate --activation", "simulate --input")


def quick(name, **options):
    """Stand in for `experiments.run`."""
    data = pytest.importorskip("xarray").Dataset()
    table = experiments.Table(("width",), ((1,),))
    return experiments.Experiment(name, name, data, table, (), lambda _, figure: figure.subplots())


@pytest.mark.untraced
@pytest.mark.parametrize(
    "command",
    [
        pytest.param(
            command,
            id=command.words,
            marks=[pytest.mark.slow] if command.words.startswith(LONG) else [],
        )
        for command in COMMANDS.values()
    ],
)
def test_commands_run(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    batch = np.random.default_rng(0).standard_normal((20, 6))
    np.save("batch.npy", batch)
    np.savetxt("batch.csv", batch.T, delimiter=",")
    words = command.words.split()
    if words[0] == "inspect":
        pytest.importorskip("torch")
        shutil.copy(DOCS / "scripts" / "my_model.py", tmp_path)
        runpy.run_path("my_model.py", run_name="__main__")  # writes the batch
        monkeypatch.setitem(sys.modules, "my_model", None)  # so that it is no module afterwards
        del sys.modules["my_model"]
    if words[0] == "figure" and words[1] in experiments.names():
        monkeypatch.setattr(experiments, "run", quick)  # `make docs` runs the real ones
    assert cli.main(words) == command.status
    printed = "".join(capsys.readouterr())
    # Compilation and long work are reported, on some machines, by lines that no page shows.
    printed = re.sub(r"^bnmc: (?!error).*\n?", "", printed, flags=re.MULTILINE).strip()
    assert printed
    if command.shown:
        assert doctest.OutputChecker().check_output(command.shown, printed, OPTIONS), printed
    for name in re.findall(r"--plot (\S+)", command.words):
        assert Path(name).stat().st_size > 1000


def test_commands_with_their_output_are_found():
    """Without this test, a page whose commands are not found would pass."""
    examples = {
        command.words.split()[0]: command
        for command in commands(DOCS / "commands.rst")
        if command.shown
    }
    assert examples["fixed-point"].status == 2
    assert examples["certify"].status == 3
    assert examples["stability"].shown.endswith("...")
    assert "figure" in examples
    assert "SGD does not train" in examples["inspect"].shown
    assert {command.words for command in commands(README)} == {
        "fixed-point --activation relu --batch 64"
    }


def test_every_block_of_code_is_run():
    """A block that is neither a doctest nor a command is in this list, and has its own test."""
    others = {
        ("start", "console"), ("questions", "console"), ("commands", "console"),
        ("cluster", "python"), ("cluster", "bash"),
        ("cluster", "console"),  # test_a_killed_script_resumes
        ("embedding", "console"), ("embedding", "python"),  # tests/kernels/test_c.py
        ("gradients", "console"), ("faq", "console"), ("index", "console"),
        ("installation", "console"),
        ("testing", "python"), ("testing", "console"),  # test_a_test_...
        ("practitioners", "python"),  # test_pages.py
        ("results", "bibtex"),  # test_pages.py
    }  # fmt: skip
    blocks = {
        (page.stem, language)
        for page in PAGES
        for language in re.findall(r"\.\. code-block:: (\w+)", text_of(page))
    }
    assert blocks == others
    included = {
        name for page in PAGES for name in re.findall(r"literalinclude:: (\S+)", text_of(page))
    }
    # `tests/kernels/test_c.py` compiles and runs the C program; tests below run the scripts.
    # `test_commands_run` runs the model.
    names = ("my_model", "on_dask", "on_mpi", "on_ray", "stored")
    scripts = {f"scripts/{name}.py" for name in names}
    programs = {f"../tests/kernels/{name}.c" for name in ("embedding", "host")}
    assert included == programs | scripts


TESTING = DOCS / "testing.rst"


def blocks(page, language):
    """Return the blocks of a page in a language."""
    texts = re.findall(rf"code-block:: {language}\n\n((?:    .*\n|\n)+)", text_of(page))
    return [inspect.cleandoc("\n" + block) for block in texts]


@pytest.mark.usefixtures("numba_stays")
def test_a_test_with_the_plugin(pytester):
    (code,) = (block for block in blocks(TESTING, "python") if "bnmc_roofline" in block)
    pytester.makepyfile(test_mine=code)
    options = "-q", "-p", "no:cacheprovider", "-p", "bnmc.pytest_plugin"
    done = pytester.runpytest_inprocess(*options, "test_mine.py")
    assert done.ret == pytest.ExitCode.OK
    done.stdout.fnmatch_lines(["*of the roofline*"])


@pytest.mark.usefixtures("numba_stays")
def test_a_test_of_a_module(pytester):
    """The first file fails with the lines of the page, and passes with the second module."""
    pytest.importorskip("torch")
    file, module = blocks(TESTING, "python")[:2]
    command, *shown = blocks(TESTING, "console")[0].splitlines()
    options = *command.split()[2:-1], "-p", "no:cacheprovider"
    pytester.makepyfile(test_own_norm=file)
    done = pytester.runpytest_inprocess(*options, "test_own_norm.py")
    assert doctest.OutputChecker().check_output("\n".join(shown), done.stdout.str(), OPTIONS)
    mended = re.sub(r"class OwnNorm(?:.*\n)*?(?=\n\n)", f"{module}\n", file)
    pytester.makepyfile(test_mended=mended)
    assert pytester.runpytest_inprocess(*options, "test_mended.py").ret == pytest.ExitCode.OK


class FakeRay(types.ModuleType):
    """The part of Ray that the script uses: remote functions whose references have futures."""

    def __init__(self):
        super().__init__("ray")
        self._pool = ThreadPoolExecutor(2)
        self.calls = 0

    def init(self):
        pass

    def cluster_resources(self):
        return {"CPU": 2.0, "memory": 1e9}

    def remote(self, function):
        def call(*arguments):
            self.calls += 1
            future = self._pool.submit(function, *arguments)
            return types.SimpleNamespace(future=lambda: future)

        return types.SimpleNamespace(remote=call)


def test_ray_adapter(monkeypatch, capsys):
    ray = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", ray)
    program = compile(text_of(DOCS / "scripts" / "on_ray.py"), "on_ray.py", "exec")
    space = {"__name__": "__main__"}
    exec(program, space)
    assert ray.calls > 1
    alone = bnmc.simulate(bnmc.Chain(200, 5, "relu"), 20, chains=32, rng=0)
    np.testing.assert_array_equal(space["run"].gram, alone.gram)
    assert "32 chains" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dask", "mpi"])
def test_scripts_for_clusters(name, tmp_path):
    pytest.importorskip({"dask": "distributed", "mpi": "mpi4py"}[name])
    script = DOCS / "scripts" / f"on_{name}.py"
    command = [sys.executable, str(script)]
    if name == "mpi":
        # If there is only one MPI process, it runs the tasks itself.
        command[1:1] = ["-m", "mpi4py.futures"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "32 chains, 21 layers" in done.stdout


@pytest.mark.slow
def test_a_killed_script_resumes(tmp_path):
    pytest.importorskip("distributed")
    command = [sys.executable, str(DOCS / "scripts" / "stored.py")]
    environment = os.environ | {"NO_COLOR": "1"}
    streams = {"cwd": tmp_path, "env": environment, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **streams) as process:
        assert any(re.search(r", [1-9]\d* of 1000 layers", line) for line in process.stderr)
        process.kill()
    assert process.returncode == -signal.SIGKILL
    done = subprocess.run(command, stdout=subprocess.PIPE, timeout=300, **streams)
    assert done.returncode == 0, done.stderr
    assert re.search(r"simulate(, forecast .*)?: \d+ % found in the store, continuing", done.stderr)
    assert "400 chains, 1001 layers" in done.stdout


NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))
#: Smaller sizes than those of the first cell.
SMALL = {
    "bridging_paper": {"ACTIVATIONS": ("relu", "tanh"), "DEPTH": 100, "NETWORKS": 20, "PAIRS": 100},
    "which_activation_mixes_fastest": {
        "BATCH": 16, "WIDTHS": (1000,), "LAYERS": 200, "PAIRS": 20, "RIVALS": ("tanh",),
        "CERTIFIED": ("tanh",),
    },
    "wider_than_memory": {"SIDE": 1000, "MATRICES": 100, "WIDTHS": (50, 100), "STEPS": 2},
}  # fmt: skip


@pytest.mark.untraced
@pytest.mark.parametrize(
    "path",
    # One is slow: it simulates and draws as another one does.
    [
        pytest.param(path, id=path.stem, marks=[pytest.mark.slow] if "fastest" in path.stem else [])
        for path in NOTEBOOKS
    ],
)
def test_notebooks_run(path, tmp_path, monkeypatch):
    """The cells contain plain Python, so they run as a program, with the sizes `SMALL`."""
    pytest.importorskip("matplotlib").use("Agg")
    monkeypatch.chdir(tmp_path)
    space, sizes = {"__name__": "__main__"}, SMALL[path.stem]
    cells = [cell for cell in json.loads(text_of(path))["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(cells):
        exec(compile("".join(cell["source"]), f"{path.stem}[{number}]", "exec"), space)
        if not number:
            assert sizes.keys() <= space.keys()
            space |= sizes
    import matplotlib.pyplot as plt

    assert plt.get_fignums()
    plt.close("all")


def test_notebooks_are_there_with_their_results():
    assert len(NOTEBOOKS) == 3
    for path in NOTEBOOKS:
        cells = [cell for cell in json.loads(text_of(path))["cells"] if cell["cell_type"] == "code"]
        assert all(cell["execution_count"] for cell in cells)
        assert path.stat().st_size < 600_000


def test_binder_installs_what_the_notebooks_need():
    project = tomllib.loads(text_of(ROOT / "pyproject.toml"))["project"]
    lines = text_of(ROOT / ".binder" / "requirements.txt").split()
    (extras,) = re.findall(r"^\.\[(.+)\]$", lines[0])
    assert {"plot"} <= set(extras.split(",")) <= set(project["optional-dependencies"])
    python = text_of(ROOT / ".binder" / "runtime.txt").strip().removeprefix("python-")
    least = project["requires-python"].removeprefix(">=")
    assert tuple(map(int, python.split("."))) >= tuple(map(int, least.split(".")))
    assert f"bnmc-{bnmc.__version__}-py3-none-any.whl" in text_of(DOCS / "notebooks.rst")


# ---------------------------------------------------------------- names and pages


def referenced():
    """Return the full names in the tables of the API reference."""
    names = set()
    for page in (DOCS / "api").glob("*.rst"):
        module = None
        for line in text_of(page).splitlines():
            if match := re.match(r"\.\. (?:currentmodule|automodule):: (\S+)", line):
                module = match.group(1)
                names.add(module)
            elif match := re.match(r"   ([A-Za-z_]\w*)$", line):
                names.add(f"{module}.{match.group(1)}")
    return names


def test_every_public_name_is_in_the_reference():
    there = referenced()
    listed = {
        f"{module}.{name}"
        for table in ({module: PUBLIC[module] for module in MODULES}, RETURNED)
        for module, names in table.items()
        for name in names.split()
    }
    # Two modules have these; one page documents each.
    twice = {"bnmc.mean_field.MeanField", "bnmc.gradients.backpropagate"}
    assert not listed - there - twice - {"bnmc.__version__"}
    figures = {f"bnmc.experiments.{function}" for function, _ in FIGURES.values()}
    assert not figures - there


def test_the_reference_has_nothing_else():
    index = {"bnmc." + line for line in ("index",)}
    for full in sorted(referenced() - index):
        if full.startswith("None."):
            continue  # the list of pages
        module, _, name = full.rpartition(".")
        try:
            importlib.import_module(full)
        except ImportError:
            assert hasattr(importlib.import_module(module), name), full


def test_every_page_is_in_a_toctree():
    for folder in (DOCS, DOCS / "api"):
        listed = []
        for page in folder.glob("*.rst"):
            for tree in re.findall(r"\.\. toctree::\n((?:   .*\n|\n)+)", text_of(page)):
                lines = [line.strip() for line in tree.splitlines() if line[:4].strip(" ") != ":"]
                # An entry may have a short title, as in "Start <start>".
                listed += [line.rpartition("<")[2].rstrip(">") for line in lines if line]
        pages = {path.stem for path in folder.glob("*.rst")} - {"index"}
        assert pages <= set(listed)
        assert len(listed) == len(set(listed))
        others = {name for name in set(listed) - pages if not name.startswith("notebooks/")}
        assert others <= {"figures/index", "api/index"}


@pytest.mark.parametrize("name", ["guide", "reference", "api/index"])
def test_lists_of_pages_say_what_each_page_is(name):
    text = text_of(DOCS / f"{name}.rst")
    described = re.findall(r"^- :doc:`(?:[^`<]*<)?(\w+)>?`: \w.{15,}\.$", text, re.M)
    for tree in re.findall(r"\.\. toctree::\n((?:   .*\n|\n)+)", text):
        lines = [line.strip() for line in tree.splitlines() if line[:4].strip(" ") != ":"]
        pages = {line.rpartition("<")[2].rstrip(">") for line in lines if line}
        assert pages <= set(described), pages - set(described)


def test_links_lead_somewhere():
    generated = {"figures/index"}
    for page in PAGES:
        for target in re.findall(r":doc:`(?:[^`<]*<)?([\w/]+)>?`", text_of(page)):
            files = (DOCS / f"{target}{suffix}" for suffix in (".rst", ".ipynb"))
            assert target in generated or any(map(Path.exists, files)), (page.name, target)
        for target in re.findall(r"(?:image|literalinclude|download):: ?(\S+)", text_of(page)):
            assert (DOCS / target).exists(), (page.name, target)
        for target in re.findall(r":download:`[^`<]*<([^>]+)>`", text_of(page)):
            assert (DOCS / target).exists(), (page.name, target)
        for target in re.findall(r"^\.\. bench:: (\S+)", text_of(page), re.MULTILINE):
            assert (ROOT / "bench" / "results" / f"{target}.json").exists(), target


def test_files_that_the_pages_name_are_there():
    """Files of the tests on any page; in CONTRIBUTING.md also files and functions of `bnmc`."""
    guide = ROOT / "CONTRIBUTING.md"
    for page in [*PAGES, README, guide, ROOT / "CHANGELOG.md"]:
        for path in re.findall(r"`(tests/[\w./]*)`", text_of(page)):
            assert (ROOT / path).exists(), (page.name, path)
    package = Path(bnmc.__file__).parent
    named = r"`((?:_kernels|_support|chain|estimate|experiments|kernels|simulation)/[\w/]+\.py)`"
    paths = re.findall(named, text_of(guide))
    assert len(paths) > 10
    for path in paths:
        assert (package / path).exists(), path
    functions = re.findall(rf"`(\w+)`(?:\s+of|\s+in)\s+{named}", text_of(guide))
    assert len(functions) > 3
    for name, path in functions:
        assert re.search(rf"\b{name}\b", text_of(package / path)), (name, path)


def resolve(name):
    value = bnmc
    for part in name.split("."):
        if inspect.ismodule(value) and not hasattr(value, part):
            importlib.import_module(f"{value.__name__}.{part}")  # one that is imported by its name
        if not hasattr(value, part):
            # A field without default of a dataclass is in the annotations only.
            annotated = {key for kind in value.__mro__ for key in inspect.get_annotations(kind)}
            assert part in annotated, name
            return None
        value = getattr(value, part)
    return value


def test_names_in_the_table_of_notation():
    text = text_of(DOCS / "notation.rst")
    names = re.findall(r"``([A-Za-z_][\w.]*)(?:\((\w+)\))?``", text)
    assert len(names) > 40
    for name, argument in names:
        value = resolve(name)
        if argument:
            assert argument in inspect.signature(value).parameters, (name, argument)


def test_names_in_the_pages():
    """Names in single backticks that begin with the package exist."""
    for page in PAGES:
        for name in re.findall(r"(?<!`)`(?:[^`<]*<)?bnmc\.([\w.]+)>?`(?!`)", text_of(page)):
            resolve(name)


def extension(name):
    """Return a module of the extensions of Sphinx."""
    sys.path.insert(0, str(DOCS / "_extensions"))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(DOCS / "_extensions"))


def test_api_pages_are_for_users():
    pages = [page for page in (DOCS / "api").glob("*.rst") if "automodule" in text_of(page)]
    assert len(pages) > 10
    for page in pages:
        name = page.stem if page.stem == "bnmc" else f"bnmc.{page.stem}"
        docstring = inspect.getdoc(importlib.import_module(name))
        shown = extension("for_users").for_users(docstring)
        assert shown.split("\n")[0] == docstring.split("\n")[0]
        assert not re.search(r"may import|Read `\w+\.py`", shown), name


def test_figures_say_what_they_are():
    scripts = extension("experiment_scripts")
    for run in (experiments.names(), ()):
        made = scripts.scripts(run)
        assert len(made) == len(experiments.names())
        for name, text in made.items():
            program = compile(text, name, "exec")
            assert "Parameters" not in text
            # A script that is not run shows what the repository keeps.
            shown = program.co_consts[0]
            assert ("\n.. image:: " in shown, ".. code-block:: none" in shown) == (not run,) * 2
    assert {name.split("/")[0] for name in made} == set(scripts.topics())


def test_experiments_document_what_they_take():
    """A decorator adds the common section on parameters to the docstring of each."""
    for name in experiments.names():
        function = function_of(name)
        sections = re.split(r"\n([A-Z][a-z]+)\n-+\n", inspect.getdoc(function))
        assert sections[1::2][:2] == ["Parameters", "Returns"], name
        named = re.findall(r"^(\w+) : ", sections[2], re.MULTILINE)
        assert named == list(inspect.signature(function).parameters), name


# ---------------------------------------------------------------- other files


def test_citation():
    yaml = pytest.importorskip("yaml")
    citation = yaml.safe_load(text_of(ROOT / "CITATION.cff"))
    assert citation["cff-version"] == "1.2.0"
    assert citation["version"] == bnmc.__version__
    assert citation["license"] == "BSD-3-Clause"
    assert {"title", "message", "authors"} <= set(citation)
    assert len(citation["references"]) == 3
