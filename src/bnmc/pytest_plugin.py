"""Fixtures for tests of other packages; pytest loads them if bnmc is installed.

``bnmc_rng``
    A `numpy.random.Generator` for one test.  Its seed is made of ``--bnmc-seed`` (default: 0) and
    the name of the test, so it does not depend on other tests.  With ``--bnmc-seed=random`` every
    run has another seed; the report of a failed test shows it.
``bnmc_roofline``
    A function with the arguments of `bnmc.testing.roofline`.  The ratio is shown at the end of the
    run and, with pytest-benchmark, stored in the extra info of the benchmark.
``bnmc_warm``
    A function of chains, and of options of `bnmc.simulate`.  It takes each chain through two layers
    and so compiles its kernels, before a test measures a time.  It has the scope of the session.

This module imports only pytest; the fixtures import everything else.
"""

from __future__ import annotations

import secrets
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import numpy as np

    from bnmc.chain.chain import Chain
    from bnmc.testing.machine_limits import Roofline

#: Key of the seed in the stash of the configuration.
_SEED = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option ``--bnmc-seed``."""
    parser.getgroup("bnmc").addoption(
        "--bnmc-seed",
        default="0",
        metavar="SEED",
        help="seed of the fixture bnmc_rng: an integer >= 0 (default: 0), or 'random'",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Choose the seed; workers of pytest-xdist use the seed of the main process."""
    given = getattr(config, "workerinput", {}).get("bnmc_seed", config.getoption("--bnmc-seed"))
    text = str(secrets.randbits(32)) if given == "random" else str(given)
    if not (text.isascii() and text.isdigit()):
        raise pytest.UsageError(f"--bnmc-seed: got {text!r}, allowed: an integer >= 0, or 'random'")
    config.stash[_SEED] = int(text)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Pass the seed to a worker of pytest-xdist."""
    node.workerinput["bnmc_seed"] = node.config.stash[_SEED]


@pytest.fixture
def bnmc_rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """A random generator for one test; see `bnmc.pytest_plugin`."""
    import numpy as np

    seed = request.config.stash[_SEED]
    request.node.add_report_section("setup", "bnmc", f"run this again with --bnmc-seed={seed}")
    return np.random.default_rng([seed, zlib.crc32(request.node.nodeid.encode())])


@pytest.fixture
def bnmc_roofline(request: pytest.FixtureRequest) -> Callable[..., Roofline]:
    """`bnmc.testing.roofline` with the ratio in the report; see `bnmc.pytest_plugin`."""
    from bnmc.testing.machine_limits import roofline

    benchmark = None
    if request.config.pluginmanager.hasplugin("benchmark"):
        benchmark = request.getfixturevalue("benchmark")

    def measure(run: Callable[[], object], **layer: Any) -> Roofline:
        measured = roofline(run, **layer)
        line = f"{measured.ratio:.2f} of the roofline, {measured.seconds:.3g} s a layer"
        request.node.user_properties.append(("bnmc_roofline", f"{request.node.nodeid}: {line}"))
        if benchmark is not None:
            benchmark.extra_info["roofline"] = measured.ratio
            benchmark(run)
        return measured

    return measure


@pytest.fixture(scope="session")
def bnmc_warm() -> Callable[..., None]:
    """Compile the kernels of chains; see `bnmc.pytest_plugin`."""
    from bnmc.simulation.run import simulate

    def warm(*chains: Chain, **options: Any) -> None:
        for chain in chains:
            simulate(chain, 2, **{"rng": 0, **options})

    return warm


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Show the ratios of all tests."""
    lines = [
        value
        for outcome in ("passed", "failed")
        for report in terminalreporter.stats.get(outcome, [])
        for name, value in report.user_properties
        if name == "bnmc_roofline" and report.when == "call"
    ]
    if lines:
        terminalreporter.section("bnmc: ratio to the roofline of one core")
        for line in lines:
            terminalreporter.write_line(line)
