"""The command line as a process: help, statuses, interruption, pipes and terminals."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bnmc
from bnmc._kernels.scalar.activations import BUILTIN
from bnmc._support import progress
from bnmc.chain import NORMS, WEIGHTS

SMALL = ("--width", "50", "--depth", "6", "--chains", "8", "--seed", "0", "--batch", "4")


Run = Callable[..., tuple[int, str, str]]


def listen() -> None:
    """Let a process be interrupted even if this one runs in the background and cannot be."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def started(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "bnmc", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=listen if os.name == "posix" else None, **options,
    )  # fmt: skip


def _seconds_of_children() -> float:
    """Processor time of processes that have ended, which other work on the machine leaves alone."""
    spent = os.times()
    return spent.children_user + spent.children_system


class TestProcess:
    def test_help_comes_at_once(self) -> None:
        script = "import sys; from bnmc.cli import main; main(['simulate', '-h']); " \
            "assert not {'numpy', 'numba'} & set(sys.modules)"  # fmt: skip
        begun = _seconds_of_children()
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "--first-layer" in done.stdout
        assert _seconds_of_children() - begun < 1.0  # 0.15, of the processor

    def test_the_import_is_cheap(self) -> None:
        script = "import sys, bnmc.cli; assert not {'numpy', 'numba', 'typer'} & set(sys.modules)"
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    def test_help_names_all_there_is(self, run: Run) -> None:
        _, out, _ = run("simulate", "--help")
        words = set(re.findall(r"[\w-]+", out))
        assert {*BUILTIN, *NORMS, *WEIGHTS} <= words

    @pytest.mark.parametrize("command", ["simulate", "demo"])
    def test_help_has_examples(self, run: Run, command: str) -> None:
        assert f"Example: bnmc {command}" in " ".join(run(command, "--help")[1].split())

    def test_features_that_are_not_the_width_are_pointed_out(
        self, run: Run, tmp_path: Path
    ) -> None:
        np.save(tmp_path / "x.npy", np.random.default_rng(0).standard_normal((12, 4)))
        arguments = ("simulate", "--depth", "1", "--chains", "2", "--input", f"{tmp_path}/x.npy")
        status, out, err = run(*arguments, "--width", "8")
        assert status == 0
        assert "4 samples × 12 features (through a random first layer)" in out
        assert "12 samples × 4 features" in run(*arguments, "--width", "4", "--samples-first")[1]
        assert "12 features and the width is 8" in err
        assert "--width 12" in err
        for quiet in (("--width", "12"), ("--width", "8", "--first-layer")):
            assert run(*arguments, *quiet)[2] == ""

    def test_version_and_no_command(self, run: Run) -> None:
        assert run("--version") == (0, f"bnmc {bnmc.__version__}\n", "")
        status, out, err = run()
        assert (status, err) == (0, "")
        assert "simulate" in out

    def test_without_typer(self) -> None:
        script = (
            "import sys; sys.modules['typer'] = None\n"
            "from bnmc.cli import main\nsys.exit(main(['demo']))"
        )
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        assert done.returncode == 2
        assert done.stderr.startswith("bnmc: error: typer is not installed")
        assert "bnmc[cli]" in done.stderr
        assert done.stderr.count("\n") == 1

    @pytest.mark.parametrize(
        ("module", "options", "extra"),
        [
            ("matplotlib.figure", ("--plot", "x.png"), "plot"),
            ("h5netcdf", ("--output", "x.nc"), "xarray"),
            ("zarr", ("--output", "x.zarr"), "xarray"),
        ],
    )
    def test_missing_extras_are_named(
        self, run: Run, monkeypatch: pytest.MonkeyPatch, module: str, options: Any, extra: str
    ) -> None:
        monkeypatch.setitem(sys.modules, module, None)
        status, out, err = run("simulate", *SMALL, *options)
        assert (status, out) == (2, "")
        assert f"bnmc[{extra}]" in err

    @pytest.mark.parametrize(
        ("arguments", "modules", "extras"),
        [
            (("simulate", *SMALL, "--output", "x.nc"), ("h5netcdf",), "xarray,plot"),
            (("figure", "rank-collapse-1"), ("xarray", "torch"), "xarray,torch,plot"),
            (("figure", "limits-kl"), ("xarray",), "xarray,plot"),
            (("inspect", "m:f", "--input", "x.npy"), ("torch",), "torch,plot"),
            (("compare-norms",), ("xarray",), "xarray,plot"),
        ],
    )
    def test_one_message_names_all_missing_extras(
        self, run: Run, monkeypatch: pytest.MonkeyPatch, arguments: Any, modules: Any, extras: str
    ) -> None:
        for module in (*modules, "matplotlib"):
            monkeypatch.setitem(sys.modules, module, None)
        status, out, err = run(*arguments, "--plot", "x.png")
        assert (status, out) == (2, "")
        assert f'pip install "bnmc[{extras}]"' in err
        assert f'pip install ".[{extras}]" in a checkout' in err

    def test_interrupt(self, tmp_path: Path) -> None:
        process = started(
            "simulate", "--depth", "4000000", "--every", "100000", "--chains", "64", "--progress",
            "--threads", "1", "--output", "run.npz", cwd=tmp_path,
        )  # fmt: skip
        assert process.stderr is not None
        first = process.stderr.readline()
        if first.startswith("bnmc: compiling"):  # the cache is empty
            first = process.stderr.readline()
        assert first.startswith("bnmc: simulate: ")  # it is at work
        process.send_signal(signal.SIGINT)
        try:
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
        assert process.returncode == 130
        assert err.splitlines()[-1] == "bnmc: interrupted"
        assert "Traceback" not in err
        # What was finished is shown and written.
        assert "incomplete: the run ended after layer" in out
        with np.load(tmp_path / "run.npz") as stored:
            assert 1 <= len(stored["layer"]) < 41
            assert len(stored["gram"][0]) == len(stored["layer"])
            assert np.isfinite(stored["gram"]).all()

    def test_reader_that_stops_reading(self, tmp_path: Path) -> None:
        process = started("simulate", *SMALL, cwd=tmp_path)
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""
        process.stderr.close()
        assert process.wait(timeout=60) == 1

    def test_bad_input_is_one_line_on_standard_error(self, tmp_path: Path) -> None:
        done = started("simulate", "--activation", "rleu", cwd=tmp_path)
        out, err = done.communicate(timeout=60)
        assert (done.returncode, out) == (2, "")
        assert err.count("\n") == 1
        assert err.startswith("bnmc: error: activation: got 'rleu'")

    @pytest.mark.slow
    def test_encoding_that_lacks_the_symbols(self, tmp_path: Path) -> None:
        environment = os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
        process = started("simulate", *SMALL, cwd=tmp_path, env=environment)
        out, err = process.communicate(timeout=60)
        assert (process.returncode, err) == (0, "")
        assert "orthogonality gap" in out

    @pytest.mark.skipif(os.name != "posix", reason="needs a pseudoterminal")
    def test_terminal_gets_lines_and_a_bar(self, tmp_path: Path) -> None:
        import pty

        master, terminal = pty.openpty()
        environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "120"}
        environment.pop("NO_COLOR", None)
        process = subprocess.Popen(
            [sys.executable, "-m", "bnmc", "simulate", *SMALL, "--depth", "3000"],
            stdin=terminal, stdout=terminal, stderr=terminal, cwd=tmp_path, env=environment,
        )  # fmt: skip
        os.close(terminal)
        printed = b""
        while True:
            try:
                chunk = os.read(master, 4096)
            except OSError:  # how Linux says that the other end was closed
                break
            if not chunk:
                break
            printed += chunk
        os.close(master)
        assert process.wait(timeout=60) == 0
        assert "┃".encode() in printed
        assert b"\x1b[1m" in printed
        assert b"layers" in printed

    def test_progress_elsewhere_is_in_lines(
        self, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(progress, "PATIENT_SECONDS", 0.0)
        status, _, err = run("simulate", *SMALL, "--progress")
        assert status == 0
        assert err.startswith("bnmc: simulate: 0 s\n")
        assert "\x1b" not in err
