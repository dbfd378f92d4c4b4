"""A command line as a fixture."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bnmc import cli
from bnmc._support import progress as _progress

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command line in an empty folder and return its status and what it printed.

    However slow the machine is, no line about the time is printed.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(_progress, "PATIENT_SECONDS", 3600.0)

    def run(*arguments: str) -> tuple[int, str, str]:
        status = cli.main(arguments)
        return status, *capsys.readouterr()

    return run


@pytest.fixture
def document_of(run: Run) -> Callable[..., Any]:
    """Run a command line with ``--json`` and return its document, which has finite numbers only."""

    def document_of(*arguments: str) -> Any:
        status, out, err = run(*arguments, "--json")
        assert (status, err) == (0, "")
        return json.loads(out, parse_constant=lambda name: pytest.fail(name))

    return document_of
