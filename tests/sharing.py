"""Processes of pytest-xdist share the work that each file needs.

Each worker collects all tests, so it imports all files.  Pytest compiles them with other assertions
and keeps the result beside them, but two workers that start at once would compile each file twice.

Meanwhile the process that hands tests to workers parses the package for the report of coverage.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest
from _pytest.assertion import rewrite
from coverage import python
from tracing import runs_no_tests, switched_off

ROOT = Path(__file__).resolve().parents[1]
TESTPATHS = pytest.Config.ArgsSource.TESTPATHS


def files(config: pytest.Config) -> list[Path]:
    """Return the files that this process compiles for all: none if it runs alone or some tests."""
    worker = getattr(config, "workerinput", {"workercount": 1})
    if worker["workercount"] == 1 or sys.dont_write_bytecode or config.args_source is not TESTPATHS:
        return []
    everything = sorted([*ROOT.glob("src/bnmc/**/*.py"), *ROOT.glob("tests/**/test_*.py")])
    return everything[int(worker["workerid"].removeprefix("gw")) :: worker["workercount"]]


def rewrite_files(config: pytest.Config) -> None:
    """Rewrite the assertions of the files of this worker, if no earlier run did."""
    state = config.stash[rewrite.assertstate_key]
    with switched_off():
        for file in files(config):
            cached = rewrite.get_cache_dir(file) / (file.stem + rewrite.PYC_TAIL)
            if not cached.exists() and rewrite.try_makedirs(cached.parent):
                key, code = rewrite._rewrite_test(file, config)
                rewrite._write_pyc(state, code, key, cached)


class _Parser(python.PythonParser):
    """A parser that parses each file once, and keeps no syntax trees."""

    parsed: ClassVar[dict[tuple[str, str], dict[str, Any]]] = {}

    def parse_source(self) -> None:
        """Find the statements of the file."""
        key = self.filename, self.exclude
        if key not in self.parsed:
            super().parse_source()
            self._ast_root = None
            self.parsed[key] = vars(self)
        vars(self).update(self.parsed[key])


def parse_package(config: pytest.Config) -> None:
    """Parse the package for the report, which would keep one processor busy at the end."""
    plugin = config.pluginmanager.get_plugin("_cov")
    controller = plugin and plugin.cov_controller
    if not (controller and runs_no_tests(config) and config.args_source is TESTPATHS):
        return
    python.PythonParser = _Parser
    exclude = controller.cov._exclude_regex("exclude")
    with switched_off():
        for file in ROOT.glob("src/bnmc/**/*.py"):
            _Parser(filename=str(file), exclude=exclude).parse_source()
