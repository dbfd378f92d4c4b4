"""The command line as a process: help, statuses, interruption, pipes and terminals."""

import importlib
import os
import re
import signal
import subprocess
import sys

import numpy as np
import pytest

import bnmc
from bnmc._kernels.scalar.activations import BUILTIN
from bnmc._support import progress
from bnmc.chain import NORMS, WEIGHTS
from bnmc.cli.application import COMMANDS

SMALL = "simulate --width 50 --depth 6 --chains 8 --seed 0 --batch 4"


def listen():
    """Let a process be interrupted even if this one runs in the background and cannot be."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def started(tmp_path):
    """Start a command line as a process in an empty folder."""
    return lambda line, **options: subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "bnmc", *line.split()], cwd=tmp_path, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        preexec_fn=listen if os.name == "posix" else None, **options,
    )  # fmt: skip


def python(script, *flags):
    """Run a script in a process of its own, and return its status and what it printed."""
    done = subprocess.run([sys.executable, *flags, "-c", script], capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def _seconds_of_children():
    """Processor time of processes that have ended, which other work on the machine leaves alone."""
    spent = os.times()
    return spent.children_user + spent.children_system


def test_help_comes_at_once():
    begun = _seconds_of_children()
    status, out, err = python(
        "import sys; from bnmc.cli import main; assert 'typer' not in sys.modules; "
        "main(['simulate', '-h']); assert not {'numpy', 'numba'} & set(sys.modules)"
    )
    assert status == 0, err
    assert "--first-layer" in out
    assert _seconds_of_children() - begun < 1.0  # 0.15, of the processor


def test_help_names_all_there_is(printed):
    words = set(re.findall(r"[\w-]+", printed("simulate --help")))
    assert {*BUILTIN, *NORMS, *WEIGHTS} <= words


def test_options_do_not_depend_on_docstrings(printed):
    script = "from bnmc.cli import main; [main([name, '--help']) for name in {}]"
    names = [name.replace("_", "-") for name in COMMANDS]
    _, out, _ = python(script.format(names), "-OO")
    options = re.compile(r"^  (?:-\w, )?(--[\w-]+(?: / --[\w-]+)?)", re.MULTILINE)
    documented = "".join(printed(f"{name} --help").partition("\nOptions:")[2] for name in names)
    assert options.findall(out) == options.findall(documented)
    assert len(options.findall(out)) > 100


def test_version_and_no_command(printed):
    assert printed("--version") == f"bnmc {bnmc.__version__}\n"
    assert "simulate" in printed("")


def test_without_typer():
    status, _, err = python(
        "import sys; sys.modules['typer'] = None\n"
        "from bnmc.cli import main\nsys.exit(main(['demo']))"
    )
    assert status == 2
    assert err.startswith("bnmc: error: typer is not installed")
    assert "bnmc[cli]" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("line", "modules", "extras"),
    [
        (f"{SMALL} --plot x.png", ["matplotlib.figure"], "plot"),
        (f"{SMALL} --output x.nc", ["h5netcdf"], "xarray"),
        (f"{SMALL} --output x.zarr", ["zarr"], "xarray"),
        (f"{SMALL} --output x.nc --plot x.png", ["h5netcdf", "matplotlib"], "xarray,plot"),
        ("figure rank-collapse-1 --plot x.png", ["xarray", "torch", "matplotlib"],
         "xarray,torch,plot"),
        ("figure limits-kl --plot x.png", ["xarray", "matplotlib"], "xarray,plot"),
        ("inspect m:f --input x.npy --plot x.png", ["torch", "matplotlib"], "torch,plot"),
        ("compare-norms --plot x.png", ["xarray", "matplotlib"], "xarray,plot"),
    ],
)  # fmt: skip
def test_one_message_names_all_missing_extras(refusal, monkeypatch, line, modules, extras):
    importlib.import_module("scipy.stats")  # asks sys.modules for torch while it is imported
    for module in modules:
        monkeypatch.setitem(sys.modules, module, None)
    err = refusal(line)
    assert f'pip install "bnmc[{extras}]"' in err
    assert f'pip install ".[{extras}]" in a checkout' in err


def test_interrupt(started, tmp_path):
    process = started(
        "simulate --depth 4000000 --every 100000 --chains 16 --progress --threads 1 "
        "--output run.npz"
    )
    # Lines come after 2 s, 4 s, and so on; the first of them may have no finished layers yet.
    finished = re.compile(
        r"bnmc: simulate, forecast [\d.]+ (min|h): .*, [1-9]\d* of 4000000 layers"
    )
    assert any(finished.match(line) for line in process.stderr)
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


def test_reader_that_stops_reading(started):
    process = started("figure --list")
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(timeout=60) == 1


@pytest.mark.slow
def test_encoding_that_lacks_the_symbols(started):
    environment = os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    process = started(SMALL, env=environment)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert "orthogonality gap" in out


@pytest.mark.skipif(os.name != "posix", reason="needs a pseudoterminal")
def test_terminal_gets_lines_and_a_bar(tmp_path):
    import pty

    master, terminal = pty.openpty()
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "120"}
    environment.pop("NO_COLOR", None)
    process = subprocess.Popen(
        [sys.executable, "-m", "bnmc", *SMALL.split(), "--depth", "3000"],
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


def test_progress_elsewhere_is_in_lines(run, monkeypatch):
    monkeypatch.setattr(progress, "PATIENT_SECONDS", 0.0)
    status, _, err = run(f"{SMALL} --progress")
    assert status == 0
    assert err.startswith("bnmc: simulate: 0 s\n")
    assert "\x1b" not in err
