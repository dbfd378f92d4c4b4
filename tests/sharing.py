"""Workers of pytest-xdist share the work of rewriting the assertions of all files.

Each worker collects all tests, so it imports all files.  Pytest compiles them with other assertions
and keeps the result beside them, but two workers that start at once would compile each file twice.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from _pytest.assertion import rewrite
from tracing import switched_off

ROOT = Path(__file__).parents[1]


def files(config: pytest.Config) -> list[Path]:
    """Return the files that this process compiles for all: none if it runs alone or some tests."""
    worker = getattr(config, "workerinput", {"workercount": 1})
    if (
        worker["workercount"] == 1
        or sys.dont_write_bytecode
        or config.args_source is not pytest.Config.ArgsSource.TESTPATHS
    ):
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
