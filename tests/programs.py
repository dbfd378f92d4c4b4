"""Programs in fresh processes, and in this one."""

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path

import bnmc

PACKAGE = Path(bnmc.__file__).parent


def finished(*arguments, package=PACKAGE, **environment):
    """Run Python with arguments to its end, without an error; return what it printed.

    The process has the package of a folder, and of the variables of Numba those that are given.
    """
    path = [str(package.parent), *(entry for entry in sys.path if entry != str(PACKAGE.parent))]
    inherited = {name: value for name, value in os.environ.items() if "NUMBA" not in name}
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        env={**inherited, "PYTHONPATH": os.pathsep.join(path), **environment},
        capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done


def printed_here(program):
    """Return what a program prints in this process."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(program, {"__name__": "__main__"})
    return printed.getvalue()
