"""A command line as a fixture: what it prints, its document, and its refusal."""

import json
import os
import re
import shlex

import pytest

from bnmc import cli
from bnmc._support import progress


@pytest.fixture
def run(capsys, tmp_path, monkeypatch):
    """Run a command line in an empty folder and return its status and what it printed.

    However slow the machine is, no line about the time is printed.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(progress, "PATIENT_SECONDS", 3600.0)

    def run(line):
        status = cli.main(shlex.split(line))
        return status, *capsys.readouterr()

    return run


@pytest.fixture
def printed(run):
    """Run a command line that succeeds without a word on standard error, and return its output."""

    def printed(line):
        status, out, err = run(line)
        assert (status, err) == (0, "")
        return out

    return printed


@pytest.fixture
def document_of(printed):
    """Run a command line with ``--json`` and return its document, which has finite numbers only."""
    return lambda line: json.loads(printed(f"{line} --json"), parse_constant=pytest.fail)


@pytest.fixture
def refusal(run):
    """Run a command line that is not allowed; return its error, one line. It makes no file."""

    def files():  # without compiled modules: whether Python writes them depends on the machine
        return sorted(set(os.listdir()) - {"__pycache__"})

    def refusal(line):
        before = files()
        status, out, err = run(line)
        assert (status, out) == (2, "")
        assert re.fullmatch(r"bnmc: error: [^\n]+\n", err)
        assert files() == before
        return err

    return refusal
