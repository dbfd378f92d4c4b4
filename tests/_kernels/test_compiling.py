"""Compiled code on disk: found by the next process, never stale, never shared, not required.

Each test has a cache directory of its own and runs programs in fresh processes.  Where any kernel
will do, it is the one that applies an activation: it compiles in a moment.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import bnmc

PACKAGE = Path(bnmc.__file__).parent

REPORT = """
import json

def report(*results):
    from bnmc._kernels.cpu import blocks, elementwise, layers, numbers, rows, wishart
    modules = blocks, elementwise, layers, numbers, rows, wishart
    kernels = [f for m in modules for f in vars(m).values() if hasattr(f, "stats")]
    stats = {f.py_func.__name__: f.stats for f in kernels}
    hits = {name: sum(s.cache_hits.values()) for name, s in stats.items()}
    misses = {name: sum(s.cache_misses.values()) for name, s in stats.items()}
    caches = sorted({type(f._cache).__name__ for f in kernels})
    print(json.dumps({
        "results": results, "caches": caches,
        "hits": {name: count for name, count in hits.items() if count},
        "misses": {name: count for name, count in misses.items() if count},
    }))
"""


def run(code, *, package=PACKAGE, **environment):
    """Run a program, which ends with `report(...)`, in a fresh process; return what it reports."""
    path = [str(package.parent), *(p for p in sys.path if p != str(PACKAGE.parent))]
    inherited = {name: value for name, value in os.environ.items() if "NUMBA" not in name}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", REPORT + code],
        env={**inherited, "PYTHONPATH": os.pathsep.join(path), **environment},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


SIMULATE = """
import numpy as np
from bnmc import Chain, simulate
factor = 1.5
functions = [lambda x: factor * x, lambda x: x * x * x]
if {reverse}: functions.reverse()
x = np.linspace(-1, 2, 30).reshape(10, 3) ** 2
results = []
for activation, depth in (("linear", 2), (functions[0], 0), (functions[1], 0)):
    sampler = "conditional" if activation == "linear" else "weights"
    chain = Chain(10, 3, activation, norm="none")
    gram = simulate(chain, depth, initial=x, rng=0, sampler=sampler).gram
    results.append(gram.tobytes().hex())
report(*results)
"""


def test_a_second_process_compiles_nothing(tmp_path):
    """Nor does it mistake two lambdas of one line for each other, whichever comes first."""
    cold = run(SIMULATE.format(reverse=False), NUMBA_CACHE_DIR=str(tmp_path))
    assert cold["caches"] == ["KernelCache"]
    assert len(set(cold["results"])) == 3
    warm = run(SIMULATE.format(reverse=True), NUMBA_CACHE_DIR=str(tmp_path))
    assert not warm["misses"]
    # A kernel that is found brings all that it calls.
    assert cold["misses"]["factor_layers"] == warm["hits"]["factor_layers"] == 1
    assert cold["misses"]["apply"] == warm["hits"]["apply"] >= 2
    assert [warm["results"][i] for i in (0, 2, 1)] == cold["results"]


APPLY = """
from bnmc import Activation
relu, own = Activation.named("relu"), Activation(lambda x: {formula})
report(float(relu(2.0)), float(own(3.0)))
"""


def test_a_function_that_was_edited_is_compiled_anew(tmp_path):
    """On the same line of the same program, with the same name."""
    first = run(APPLY.format(formula="x + 1.0"), NUMBA_CACHE_DIR=str(tmp_path))
    assert first["results"] == [2.0, 4.0]
    other = run(APPLY.format(formula="x + 2.0"), NUMBA_CACHE_DIR=str(tmp_path))
    assert other["results"] == [2.0, 5.0]
    assert other["hits"]["apply"] == other["misses"]["apply"] == 1
    again = run(APPLY.format(formula="x + 1.0"), NUMBA_CACHE_DIR=str(tmp_path))
    assert again["results"] == [2.0, 4.0]
    assert not again["misses"]


@pytest.fixture
def copied(tmp_path):
    """Return a copy of the package."""
    ignored = shutil.ignore_patterns("__pycache__", "*.nbi", "*.nbc")
    return Path(shutil.copytree(PACKAGE, tmp_path / "copy" / "bnmc", ignore=ignored))


def kernel_files():
    return sorted(str(path.relative_to(PACKAGE)) for path in PACKAGE.glob("_kernels/**/*.py"))


def test_an_edit_of_a_callee_invalidates_the_cache(copied, tmp_path):
    """The activation lives in another file than the kernel that calls it, which stays."""
    environment = {"package": copied, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    code = "from bnmc import Activation\nreport(float(Activation.named('linear')(2.0)))\n"
    before = run(code, **environment)
    assert (before["results"], before["misses"]) == ([2.0], {"apply": 1})
    path = copied / "_kernels" / "scalar" / "activations.py"
    head, found, tail = path.read_text().partition("def linear(x):")
    assert found
    path.write_text(head + found + tail.replace("return x", "return x + x", 1))
    after = run(code, **environment)
    assert (after["results"], after["misses"]) == ([4.0], {"apply": 1})
    assert not after["hits"]
    again = run(code, **environment)
    assert (again["results"], again["hits"]) == ([4.0], {"apply": 1})


def test_every_file_of_the_kernels_is_in_the_digest(copied):
    """The digest that stamps the cache, of the folder as it is and with each file changed."""
    files = kernel_files()
    assert len(files) > 8
    program = (
        "import sys\nfrom pathlib import Path\nfrom bnmc._kernels.compiling import source_digest\n"
        "digests = [source_digest()]\n"
        "for name in sys.argv[2:]:\n"
        "    path = Path(sys.argv[1]) / name\n"
        "    path.write_text(path.read_text() + '# An edit.\\n')\n"
        "    source_digest.cache_clear()\n"
        "    digests.append(source_digest())\n"
        "print(len(set(digests)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(copied), *files],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(copied.parent), *sys.path])},
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) == len(files) + 1


def test_a_read_only_installation_works_without_a_cache(copied, tmp_path):
    """Where no directory can be made: files stand in the way, which stops root as well."""
    folders = [path for path in copied.glob("_kernels/**") if path.is_dir()]
    for folder in (copied, *folders):
        (folder / "__pycache__").write_text("in the way")
    (tmp_path / "home").write_text("in the way")
    home = str(tmp_path / "home")
    environment = {"package": copied, "HOME": home, "XDG_CACHE_HOME": home, "LOCALAPPDATA": home}
    code = "from bnmc import Activation\nreport(float(Activation.named('linear')(2.0)))\n"
    done = run(code, **environment)
    assert (done["results"], done["caches"]) == ([2.0], ["NullCache"])
    assert not list(copied.rglob("*.nb[ci]"))
