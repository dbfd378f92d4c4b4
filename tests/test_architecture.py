"""The structure of the package: levels, imports, names and sizes, and the folders of the tests."""

from pathlib import Path

import architecture
import pytest

import bnmc

# The checks read sources and run none of them.
pytestmark = pytest.mark.untraced

ROOT = Path(bnmc.__file__).parent
TESTS = Path(__file__).parent
CONTRIBUTING = TESTS.parent / "CONTRIBUTING.md"
#: Folders of files that may import any name of the package without an underscore.
READERS = tuple(TESTS.parent / name for name in ("tests", "bench", "docs", "wheels"))

#: Every package and module of `bnmc`, from the highest level to the lowest.  A package imports only
#: from lower levels.  The map in CONTRIBUTING.md is compared with this table.
TABLE = {
    10: ("cli",),
    9: ("experiments",),
    8: ("invariant", "torch", "training"),
    7: ("mixing", "gradients", "infinite_width"),
    6: ("mean_field", "regularity", "pytest_plugin"),
    5: ("simulation", "testing", "implicit"),
    4: ("plot", "kernels", "bounds", "random_matrix", "_claims"),
    3: ("chain", "gram", "estimate"),
    2: ("_support",),
    1: ("_kernels",),
    0: ("errors",),
}
LEVELS = {name: level for level, names in TABLE.items() for name in names}
PRIVATE = ("_kernels", "_support", "_claims")
#: Modules, not packages, that users import, so that they have an `__all__`.
PUBLIC_MODULES = (
    *("errors.py", "gram.py", "kernels/c.py", "kernels/cuda.py", "bounds/bridging.py"),
    *("bounds/gaussian.py", "bounds/limits.py", "bounds/orthogonalizes.py"),
    *("bounds/rank_collapse.py", "testing/examples.py"),
)
#: Words that name nothing.
VAGUE = ("one", "found", "own", "kept", "drawn", "known")
MOST_NAMES = 27
MOST_LEVELS = 11
MOST_LINES = 120

#: Folders of the tests that test no package: a program that uses `bnmc`, reference results, and
#: tests of runs that are killed, cut and damaged.
OTHER_FOLDERS = ("downstream", "reference", "reliability")
#: Test files that belong to no single file, each with the reason.
CROSS_CUTTING = {
    "test_architecture.py": "reads the sources of all packages",
    "test_bad_input.py": "calls all public functions with invalid arguments",
    "test_bench.py": "runs the benchmarks at tiny sizes",
    "test_concurrency.py": "runs simulations and estimators in several threads and processes",
    "test_docs.py": "runs the code of the documentation",
    "test_downstream.py": "builds and installs the package",
    "test_faults.py": "tests the tool that puts faults into the package",
    "test_tracing.py": "tests when coverage is switched off",
    "test_fuzz.py": "calls public functions and commands at random",
    "test_estimators.py": "compares the page about estimators with functions of several packages",
    "test_keys.py": "repeats results of several packages from their keys",
    "test_parallel.py": "runs long functions of several packages on executors",
    "test_memory.py": "measures the memory of functions of several packages",
    "test_pages.py": "compares tables and pictures of the documentation with the package",
    "test_public_api.py": "lists all public names",
    "test_results.py": "makes results of all packages",
    "test_ranges.py": "calls all public functions at the ends of the ranges of their arguments",
    "test_readme.py": "runs the program of the README",
    "experiments/limits/test_full_sizes.py": "runs all figures of the limits on files of data",
    "experiments/training/test_full_sizes.py": "runs all training figures on files of data",
    "_kernels/test_gpu_ptx.py": "compiles all GPU kernels to PTX",
    "_support/test_workers_on_clusters.py": "runs workers.py on Dask and MPI, which start slowly",
    "mean_field/test_published.py": "compares the mean field with constants that papers print",
    "experiments/test_authors.py": "compares all experiments with the numbers of the papers' code",
    "experiments/test_figures.py": "checks what all figures share",
    "_claims/test_evidence.py": "tests claims.py for the p-values of evidence",
    "estimate/test_intervals.py": "tests estimate.py for the coverage of intervals",
    "invariant/test_distances.py": "tests claim_check.py for the rows without a test",
    "gradients/test_law.py": "compares the law of `backpropagate` with networks of real weights",
    "gradients/test_networks.py": "tests the NumPy networks by finite differences",
    "simulation/test_closed_forms.py": "compares all samplers with closed forms",
    "simulation/test_convolutions.py": "starts and samplers of convolutional chains",
    "simulation/test_formula.py": "compares the layers of all samplers with NumPy and PyTorch",
    "simulation/test_identity.py": "compares stores of runs that differ",
    "simulation/test_law.py": "compares the laws of all samplers",
    "simulation/test_layers_that_differ.py": "layers of one run that differ from each other",
    "simulation/test_blocks.py": "networks with residual blocks, forward and backward",
    "simulation/test_state_gram.py": "Gram matrices of h of all samplers and backends",
    "simulation/test_passes.py": "layers that take two passes, or another order, with all samplers",
    "simulation/test_precision.py": "compares float32 rows and exact scales with float64",
    "simulation/test_properties.py": "checks symmetries and invariants of all samplers",
}


def none(breaches):
    assert not breaches, "\n" + "\n".join(breaches)


# --- bnmc


CROOKED_LEVELS = {"upper": 2, "lower": 1}
#: Each check, and its arguments for `bnmc` and for the small package `crooked` below.
CHECKS = [
    (architecture.misplaced, (LEVELS,), (CROOKED_LEVELS,)),
    (architecture.crowded, (LEVELS, MOST_NAMES, MOST_LEVELS), (CROOKED_LEVELS, 3, 2)),
    (architecture.upward, (LEVELS,), (CROOKED_LEVELS,)),
    (architecture.upward, (LEVELS, True), (CROOKED_LEVELS, True)),
    (architecture.face_imports, (), ()),
    (architecture.circles, (), ()),
    (architecture.underscores, (PRIVATE,), ((),)),
    (architecture.listed_outside, (PUBLIC_MODULES,), ((),)),
    (architecture.private_imports, (), ()),
    (architecture.unused_outside, (READERS,), ((),)),
    (architecture.vague_names, (VAGUE,), (VAGUE,)),
    (architecture.namesakes, (), ()),
    (architecture.undocumented, (), ()),
    (architecture.long_functions, (MOST_LINES,), (2,)),
]


@pytest.mark.parametrize(("check", "arguments"), [(check, ours) for check, ours, _ in CHECKS])
def test_the_package(check, arguments):
    none(check(ROOT, *arguments))


@pytest.mark.parametrize("folder", [TESTS, TESTS.parent / "bench"], ids=lambda path: path.name)
def test_identifiers_of_tests_and_benchmarks_are_the_names_of_things(folder):
    none(architecture.vague_names(folder, VAGUE))


def test_the_tests_have_the_packages_and_files_of_the_sources():
    none(architecture.untested(ROOT, TESTS, OTHER_FOLDERS, CROSS_CUTTING))


@pytest.mark.skipif(not CONTRIBUTING.exists(), reason="the tests are not in the source tree")
def test_the_map_for_contributors_is_the_table_of_levels():
    none(architecture.map_differences(LEVELS, CONTRIBUTING))


# --- the checks themselves, each on a package that breaks its rule

SOUND = {
    "__init__.py": "from crooked.upper.work import work\n",
    "upper/__init__.py": '"""Works on data.  Read `work.py` first."""\n__all__ = ["work"]\n',
    "upper/work.py": "from crooked.lower import data\n\ndef work():\n    return data.DATA\n",
    "lower/__init__.py": '"""Holds data.  Read `data.py` first."""\n',
    "lower/data.py": "DATA = 3\n",
}


def tree(folder, contents):
    for name, text in contents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def written(tmp_path):
    """Return a function that writes the sound package, with files that differ from it."""
    return lambda **changes: tree(
        tmp_path / "crooked",
        SOUND | {f"{name.replace('__', '/')}.py": text for name, text in changes.items()},
    )


@pytest.mark.parametrize(("check", "arguments"), [(check, small) for check, _, small in CHECKS])
def test_a_sound_package_has_no_breach(check, arguments, written):
    none(check(written(), *arguments))


def test_too_many_packages_and_levels_are_found(written):
    names, levels = architecture.crowded(written(), CROOKED_LEVELS, 2, 1)
    assert "3 packages and modules" in names
    assert "upper" in names
    assert "2 levels" in levels


UPWARD = {
    "plain": "from crooked.upper import work\n",
    "of a name": "from crooked.upper.work import work\n",
    "dotted": "import crooked.upper.work\n",
    "relative": "from ..upper import work\n",
    "in a function": "def f():\n    from crooked.upper import work\n",
    "in an else": "if not TYPE_CHECKING:\n    pass\nelse:\n    import crooked.upper.work\n",
    "by name": "import importlib\nimportlib.import_module('crooked.upper.work')\n",
    "by a formatted name": "def f(x):\n    return import_module(f'crooked.upper.{x}')\n",
}


@pytest.mark.parametrize("kind", UPWARD)
def test_an_upward_import_is_found(written, kind):
    root = written(lower__data=UPWARD[kind])
    breaches = architecture.upward(root, CROOKED_LEVELS)
    assert breaches
    assert all(breach.startswith("lower/data.py:") for breach in breaches)
    assert any(" imports upper/" in breach for breach in breaches)
    assert "lower is on level 1, upper on level 2" in breaches[0]
    assert not architecture.upward(root, CROOKED_LEVELS, typing=True)


def test_an_upward_import_for_annotations_is_found(written):
    text = "if TYPE_CHECKING:\n    from crooked.upper.work import work\n"
    root = written(lower__data=text)
    assert architecture.upward(root, CROOKED_LEVELS, typing=True)
    assert not architecture.upward(root, CROOKED_LEVELS)


TYPING = "if TYPE_CHECKING:\n    from crooked.lower import first\n"
MORE = "DATA, MORE = 3, 4\n\ndef other():\n    return MORE\n"
LONG = 'def f():\n    """Three\n    lines.\n    """\n\n    # why\n    a = 1\n    b = 2\n'
CIRCLE = "circle of imports: lower/data.py, lower/first.py"
LISTED = "__all__ = ['work']\n"
#: A check, the files that differ from the sound package, and parts of the texts of the breaches.
BREACHES = [
    (lambda root: architecture.misplaced(root, {**CROOKED_LEVELS, "gone": 1}), {"new.py": ""},
     ["crooked/new has no level", "crooked/gone has a level but no file"]),
    (lambda root: architecture.upward(root, {"upper": 1, "lower": 1}), {},
     ["upper/work.py:1 imports lower/", "upper/work.py:1 imports lower/"]),
    *[(architecture.face_imports, {"lower/data.py": text}, ["lower/data.py:1 imports __init__.py"])
      for text in ("import crooked\n", "from crooked import DATA\n")],
    # An import of a module from the package is none of the package.
    (architecture.face_imports, {"upper/work.py": "from crooked import lower"}, []),
    (architecture.circles,
     {"lower/data.py": "from crooked.lower import first\n",
      "lower/first.py": "from crooked.lower import second\n",
      "lower/second.py": "def f():\n    from crooked.lower import data\n"},
     [f"{CIRCLE}, lower/second.py"]),
    # The import of `lower.data` by another package runs the `__init__` of `lower`.
    (architecture.circles,
     {"upper/__init__.py": "from crooked.lower.data import DATA\n",
      "lower/__init__.py": "from crooked.lower import first\n",
      "lower/first.py": "from crooked.upper import DATA\n"},
     ["lower/__init__.py, lower/first.py, upper/__init__.py"]),
    (architecture.circles,
     {"lower/data.py": TYPING, "lower/first.py": "from crooked.lower import data\n"}, [CIRCLE]),
    (lambda root: architecture.underscores(root, ["_free"]),
     {"_free/__init__.py": "", "_ours.py": "", "upper/_first.py": ""},
     ["crooked/_ours begins with an underscore", "crooked/upper/_first begins with an underscore"]),
    *[(lambda root, files=files: architecture.listed_outside(root, files),
       {"lower/data.py": "DATA = 3\n__all__ = ['DATA']\n"}, breaches)
      for files, breaches in (((), ["lower/data.py has an `__all__`"]), (["lower/data.py"], []))],
    *[(architecture.private_imports, {"upper/work.py": text}, breaches)
      for text, breaches in (
          ("from crooked.lower.data import _DATA\n", ["imports crooked.lower.data._DATA"]),
          ("from ..lower.data import _DATA\n", ["imports crooked.lower.data._DATA"]),
          ("from crooked.lower import data\nA = data._DATA\n", ["reads data._DATA"]),
          # A private attribute of a value is none of a module.
          ("from crooked.lower.data import DATA\nA = DATA._part\n", []),
      )],
    (lambda root: architecture.unused_outside(root, ()), {"lower/data.py": MORE},
     ["lower/data.py: only this file uses MORE, which has no underscore",
      "lower/data.py: only this file uses other, which has no underscore"]),
    (lambda root: architecture.unused_outside(root, ()),
     {"lower/data.py": MORE + "__all__ = ['DATA']\n"}, []),
    *[(lambda root: architecture.vague_names(root, VAGUE), {"lower/data.py": text},
       [f"lower/data.py:{line}: "])
      for text, line in (
          ("DATA = 3\nfound = DATA\n", 2),
          ("DATA = [one for one in range(3)]\n", 1),
          ("def DATA(found):\n    return found\n", 1),
          ("def DATA():\n    for found in range(3):\n        print(found)\n", 2),
      )],
    *[(architecture.namesakes, {"upper/__init__.py": text + LISTED},
       ["upper/work.py has the name of 'work', which upper/__init__.py exports"])
      for text in (
          "from crooked.upper.work import work\n", "def work():\n    pass\n", "work = 3\n",
          "_LAZY = {'work': 'crooked.upper.work'}\n",
          "from crooked.upper.work import work as work\n",
      )],
    # A package may export a module.
    (architecture.namesakes,
     {"upper/__init__.py": "from crooked.upper import work\n" + LISTED}, []),
    *[(architecture.undocumented, {"upper/__init__.py": text}, breaches)
      for text, breaches in (
          ("", ["fewer than two sentences", "names no file"]),
          ('"""Works. Read it."""', ["names no file"]),
          ('"""Works. Read `gone.py` first."""', ["names no file"]),
          ('"""Read `work.py` first."""', ["fewer than two sentences"]),
          ('"""Works. Start with `work`."""', []),
          ('"""Works. Well."""\n# Read `work.py` first.\n', []),
      )],
    *[(lambda root, most=most: architecture.long_functions(root, most), {"lower/data.py": LONG},
       breaches)
      for most, breaches in ((3, []), (2, ["lower/data.py: f has 3 lines of code, from 1"]))],
]  # fmt: skip


@pytest.mark.parametrize(("check", "changes", "expected"), BREACHES)
def test_breaches_are_found(tmp_path, check, changes, expected):
    breaches = check(tree(tmp_path / "crooked", {**SOUND, **changes}))
    assert len(breaches) == len(expected)
    for breach, part in zip(breaches, expected, strict=True):
        assert part in breach


def test_a_name_that_the_tests_use_needs_no_underscore(tmp_path, written):
    root = written(lower__data=MORE)
    tests = tree(tmp_path / "tests", {"test_data.py": "from crooked.lower.data import MORE, other"})
    assert not architecture.unused_outside(root, [tests])


def test_differences_of_the_tests_are_found(tmp_path, written):
    root = tree(written(alone=""), {"lower/inner/__init__.py": ""})
    names = (
        "test_alone test_other lower/helper lower/test_data lower/test_data_of_users "
        "lower/test_inner lower/test_of_data lower/test_work strange/test_data reference/test_it"
    )
    tests = tree(tmp_path / "tests", {f"{name}.py": "" for name in names.split()})
    cross_cutting = {"test_other.py": "why", "test_gone.py": "why"}
    assert architecture.untested(root, tests, ["reference"], cross_cutting) == [
        "tests/upper is missing",
        "tests/strange is no package of crooked",
        "test_gone.py is listed, but missing",
        "tests/lower/test_of_data.py: no file of this name in crooked/lower/",
        "tests/lower/test_work.py: no file of this name in crooked/lower/",
        "tests/strange/test_data.py: no file of this name in crooked/strange/",
    ]
    assert "tests/test_other.py: no file of this name in crooked/" in architecture.untested(
        root, tests, ["reference"], {}
    )


def test_differences_of_the_map_are_found(tmp_path):
    page = tmp_path / "PAGE.md"
    page.write_text(
        "| level | package | purpose |\n|---|---|---|\n"
        "| 2 | `upper/` | works |\n| 2 | `lower` | holds data |\n| 1 | `new.py` | news |\n"
    )
    assert architecture.levels_in(page.read_text()) == {"upper": 2, "lower": 2, "new": 1}
    assert architecture.map_differences(CROOKED_LEVELS, page) == [
        "PAGE.md has lower on level 2, not 1",
        "PAGE.md has new on level 1, not None",
    ]
