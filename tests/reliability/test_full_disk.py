"""Disks that are full: a run ends with an error of the library, and resumes with the same bits."""

import json
import random
import shutil
import subprocess
import sys

import pytest
from reliability.stored_runs import run, same

PROGRAM = """
import json, resource, signal, sys
from pathlib import Path

sys.path[:0] = {path!r}
from reliability import processes, stored_runs
from bnmc.errors import StoreError
from bnmc.simulation import run as simulating

processes.die_with_parent()
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
simulating.STORED_TILE_SECONDS = stored_runs.TILE_SECONDS
if {limit}:
    resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
try:
    stored_runs.run(Path({store!r}))
    end = "complete"
except StoreError as error:
    end = f"StoreError: {{error}}"
print(json.dumps(end))
"""


def test_a_full_disk_ends_a_run_and_loses_nothing(stores, option):
    """Fill a disk, or where none can be mounted let files be no longer than a limit."""
    rng = random.Random(option("case-seed"))
    expected = run()
    disk = stores / "disk"
    disk.mkdir()
    has_disk = mounted(disk)
    path = disk / "run.zarr"
    try:
        for _ in range(option("full-disks")):
            if has_disk:  # of what would be 768 kB and more
                size = rng.randrange(100, 700) << 10
                subprocess.run(["mount", "-o", f"remount,size={size}", str(disk)], check=True)
            # A file of the limit's length is that of a tile or a chunk.
            limit = 0 if has_disk else rng.randrange(500, 4000)
            program = PROGRAM.format(path=sys.path, store=str(path), limit=limit)
            done = subprocess.run(
                [sys.executable, "-c", program], capture_output=True, text=True, check=True
            )
            assert json.loads(done.stdout).startswith("StoreError")
            if has_disk:
                subprocess.run(["mount", "-o", "remount,size=1g", str(disk)], check=True)
            assert same(run(path), expected)
            shutil.rmtree(path, ignore_errors=True)
    finally:
        if has_disk:
            subprocess.run(["umount", str(disk)], check=True)


def mounted(path):
    """Mount a small disk, if this is allowed."""
    command = ["mount", "-t", "tmpfs", "-o", "size=100k", "tmpfs", str(path)]
    try:
        return subprocess.run(command, capture_output=True).returncode == 0
    except OSError:
        return False


pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs limits of POSIX")
