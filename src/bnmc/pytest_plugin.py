"""Fixtures for tests of other packages; pytest loads them wherever bnmc is installed.

``bnmc_rng``
    A `numpy.random.Generator` of a test's own: its seed is that of ``--bnmc-seed`` (0 unless given)
    and the test's name, so that it depends neither on other tests nor on their order.  With
    ``--bnmc-seed=random`` every run has another seed; what fails says which.
``bnmc_roofline``
    Call it as `bnmc.testing.roofline`: it times a function in turns with the peaks of the machine,
    and the ratio is shown at the end of the run.  With pytest-benchmark it is in the extra info of
    the test's benchmark, too.

Importing this module imports nothing but pytest: what it needs, fixtures import.
"""

from __future__ import annotations

import secrets
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import numpy as np

    from bnmc.testing.machine_limits import Roofline


_SEED = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.getgroup("bnmc").addoption(
        "--bnmc-seed",
        default="0",
        metavar="SEED",
        help="seed of the fixture bnmc_rng: an integer >= 0 (default: 0), or 'random'",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Settle the seed: workers of pytest-xdist take that of the main process."""
    given = getattr(config, "workerinput", {}).get("bnmc_seed", config.getoption("--bnmc-seed"))
    text = str(secrets.randbits(32)) if given == "random" else str(given)
    if not (text.isascii() and text.isdigit()):
        raise pytest.UsageError(f"--bnmc-seed: got {text!r}, allowed: an integer >= 0, or 'random'")
    config.stash[_SEED] = int(text)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Hand the seed to a worker of pytest-xdist."""
    node.workerinput["bnmc_seed"] = node.config.stash[_SEED]


@pytest.fixture
def bnmc_rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """A generator of this test's own; see `bnmc.pytest_plugin`."""
    import numpy as np

    seed = request.config.stash[_SEED]
    request.node.add_report_section("setup", "bnmc", f"run this again with --bnmc-seed={seed}")
    return np.random.default_rng([seed, zlib.crc32(request.node.nodeid.encode())])


@pytest.fixture
def bnmc_roofline(request: pytest.FixtureRequest) -> Callable[..., Roofline]:
    """`bnmc.testing.roofline`, with its result in the report; see `bnmc.pytest_plugin`."""
    from bnmc.testing.machine_limits import roofline

    benchmark = None
    if request.config.pluginmanager.hasplugin("benchmark"):
        benchmark = request.getfixturevalue("benchmark")

    def measure(run: Callable[[], object], **layer: Any) -> Roofline:
        found = roofline(run, **layer)
        line = f"{found.ratio:.2f} of the roofline, {found.seconds:.3g} s a layer"
        request.node.user_properties.append(("bnmc_roofline", f"{request.node.nodeid}: {line}"))
        if benchmark is not None:
            benchmark.extra_info["roofline"] = found.ratio
            benchmark(run)
        return found

    return measure


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Show what was measured."""
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
