"""Settings of the benchmarks: the fixture `turns`, and what files and summaries contain."""

from __future__ import annotations

import importlib.metadata
import os
import shlex
from collections.abc import Iterator
from typing import Any

import pytest

from bench.turns import FULL, QUICK, THREADS, TINY, Turns, cpu_model, floor_lines, tables

#: Of the machine, before the benchmarks begin.
LOAD = os.getloadavg() if hasattr(os, "getloadavg") else None
PACKAGES = ("bnmc", "numba", "llvmlite", "numpy", "scipy", "torch", "jax", "jaxlib", "mkl_random")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--quick", action="store_true", help="fewer, shorter rounds; missed floors do not fail"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "runs(*levels): the kinds of runs that take a benchmark")


def level_of(config: Any) -> int:
    """Return the kind of this run."""
    if config._benchmarksession.disabled:
        return TINY
    return QUICK if config.getoption("--quick") else FULL


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    """Deselect the benchmarks that this kind of run does not take."""
    level, taken, left = level_of(config), [], []
    for item in items:
        takes = all(level in marker.args for marker in item.iter_markers("runs"))
        (taken if takes else left).append(item)
    config.hook.pytest_deselected(items=left)
    items[:] = taken


@pytest.fixture
def turns(request: pytest.FixtureRequest, benchmark: Any) -> Turns:
    """What times the candidates of a test; see `bench.turns`."""
    return Turns(benchmark, level_of(request.config))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: Any) -> Iterator[None]:
    """Fail a test of a full run that missed a floor."""
    yield
    turns = item.funcargs.get("turns")
    if turns is not None and turns.missed and turns.level == FULL:
        pytest.fail("\n".join(turns.missed), pytrace=False)


def pytest_benchmark_update_machine_info(machine_info: dict[str, Any]) -> None:
    """Add the processor and the versions that the figures depend on."""
    from llvmlite import binding

    features = binding.get_host_cpu_features()
    machine_info |= {
        "cpu": {"brand_raw": cpu_model(), "llvm": binding.get_host_cpu_name()},
        "features": sorted(name for name, present in features.items() if present),
        "cores": THREADS,
        "versions": {package: _version(package) for package in PACKAGES},
    }


def pytest_benchmark_update_json(config: pytest.Config, output_json: dict[str, Any]) -> None:
    """Add the command, the load of the machine, and whether the run was quick."""
    output_json |= {
        "command": "pytest " + shlex.join(config.invocation_params.args),
        "load": LOAD,
        "quick": config.getoption("--quick"),
    }


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: Any, config: Any) -> None:
    """Show the columns of each group, then the floors."""
    session = config._benchmarksession
    benchmarks = [entry.as_dict(include_data=False) for entry in session.benchmarks if entry]
    for table in tables(benchmarks):
        rows = list(table.cells())
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        terminalreporter.section(table.title, "-")
        for row in rows:
            first, *rest = map(str.ljust, row[:1], widths[:1])
            rest = list(map(str.rjust, row[1:], widths[1:]))
            terminalreporter.write_line("  ".join([first, *rest]))
    lines = floor_lines(benchmarks)
    if lines:
        terminalreporter.section("floors")
        for line in lines:
            terminalreporter.write_line(line, red=line.startswith("MISSED"))


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
