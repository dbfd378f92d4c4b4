"""The pytest plugin: seeds, roofline, and that it costs nothing where it is not used."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from bnmc import pytest_plugin

pytest_plugins = ["pytester"]


PLUGIN = ("-p", "bnmc.pytest_plugin", "-p", "no:cacheprovider")


DRAWS = """
import pytest

@pytest.mark.parametrize("number", range(2))
def test_draw(bnmc_rng, number):
    print("drew", number, bnmc_rng.integers(1 << 60))
"""


@pytest.fixture
def numbers(pytester):
    pytester.makepyfile(DRAWS)

    def draw(*options):
        result = pytester.runpytest_inprocess(*PLUGIN, "-s", *options)
        result.assert_outcomes(passed=2)
        lines = [line.partition("drew ")[2] for line in result.outlines if "drew " in line]
        assert len(lines) == 2
        return lines

    return draw


def test_a_seed_gives_the_same_numbers(numbers):
    plain = numbers()
    assert len({line.split()[1] for line in plain}) == 2  # tests have numbers of their own
    assert numbers("--bnmc-seed=0") == plain
    assert numbers("-k", "draw") == plain
    other = numbers("--bnmc-seed=7")
    assert other == numbers("--bnmc-seed", "7")
    assert not set(other) & set(plain)
    assert numbers("--bnmc-seed=random") != numbers("--bnmc-seed=random")


def test_a_failure_says_how_to_see_it_again(pytester):
    pytester.makepyfile("def test_it(bnmc_rng): assert bnmc_rng.integers(5) < 0")
    result = pytester.runpytest_inprocess(*PLUGIN, "--bnmc-seed=random")
    result.assert_outcomes(failed=1)
    result.stdout.re_match_lines([r"run this again with --bnmc-seed=\d+"])


@pytest.mark.parametrize("seed", ["-1", "seven", "1.5", ""])
def test_bad_seeds_are_refused(pytester, seed):
    result = pytester.runpytest_inprocess(*PLUGIN, f"--bnmc-seed={seed}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--bnmc-seed: got*allowed: an integer >= 0, or 'random'*"])


def test_workers_have_the_seed_of_the_main_process(pytester):
    """As pytest-xdist hands it over, without its processes."""
    pytest.importorskip("xdist")
    pytester.makepyfile(DRAWS)
    main = pytester.parseconfigure(*PLUGIN, "--bnmc-seed=random")
    node = SimpleNamespace(config=main, workerinput={})
    assert main.pluginmanager.hasplugin("xdist")
    main.pluginmanager.get_plugin("bnmc.pytest_plugin").pytest_configure_node(node)
    worker = pytester.parseconfig(*PLUGIN, "--bnmc-seed=random")
    worker.workerinput = node.workerinput
    pytest_plugin.pytest_configure(worker)
    assert worker.stash[pytest_plugin._SEED] == main.stash[pytest_plugin._SEED]


MEASURES = """
import numpy as np

def test_speed(bnmc_roofline):
    a = np.ones((100, 10))
    found = bnmc_roofline(lambda: a.T @ a, width=100, batch=10, rounds=1)
    assert found.ratio > 0.0
"""


@pytest.mark.usefixtures("numba_stays")
@pytest.mark.parametrize("options", [(), ("-p", "no:benchmark"), ("--benchmark-disable",)])
def test_the_ratio_to_the_roofline_is_shown(pytester, options):
    if options != ("-p", "no:benchmark"):
        pytest.importorskip("pytest_benchmark")
    pytester.makepyfile(MEASURES)
    # Benchmarks write nothing in a worker of pytest-xdist.
    if not options and "PYTEST_XDIST_WORKER" not in os.environ:
        options = ("--benchmark-json=found.json", "--benchmark-max-time=0.01")
    result = pytester.runpytest_inprocess(*PLUGIN, *options)
    result.assert_outcomes(passed=1)
    result.stdout.re_match_lines([r".*test_speed: \d+\.\d\d of the roofline, .* s a layer"])
    file = pytester.path / "found.json"
    if "--benchmark-json=found.json" in options:
        assert '"roofline": ' in file.read_text()


WARMS = """
import bnmc
from bnmc._kernels.compile_time import compile_seconds

def test_time(bnmc_warm):
    chain = bnmc.Chain(8, 3, lambda x: x / (1.0 + x * x))
    bnmc_warm(bnmc.Chain(8, 3, "relu"), chain, observables="orthogonality_gap", threads=1)
    warmed = compile_seconds()
    bnmc.simulate(chain, 9, rng=5, observables="orthogonality_gap", threads=1)
    assert compile_seconds() == warmed > 0.0
"""


def test_warm_chains_compile_nothing_more(pytester):
    pytester.makepyfile(WARMS)
    pytester.runpytest_inprocess(*PLUGIN).assert_outcomes(passed=1)


def test_pytest_starts_without_numba():
    code = (
        "import sys, bnmc.pytest_plugin\n"
        "heavy = {'numba', 'llvmlite', 'numpy', 'scipy', 'hypothesis'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
