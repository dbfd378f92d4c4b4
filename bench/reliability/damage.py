"""Stores that are damaged at random, and disks that are full."""

from __future__ import annotations

import collections
import random
import shutil
import subprocess
from pathlib import Path

import bench.startup as startup
import bnmc
from bench.reliability.stored_runs import OBSERVABLES, SEED, damaged, many_tiles, run, same
from bench.report import Cell, Floor, Report, Table

# --- damage ---------------------------------------------------------------------------------


def add_corruption(report: Report, quick: bool) -> None:
    """Damage a complete store at random; the same call must find it and make it good."""
    wanted = 12 if quick else 100
    rng = random.Random(SEED)
    counts: collections.Counter[str] = collections.Counter()
    kinds = (truncated, flipped, deleted, swapped, torn_tile, damaged_tile)
    expected = run()
    with many_tiles() as folder:
        base = folder / "base.zarr"
        run(base)
        for number in range(wanted):
            kind = kinds[number % len(kinds)]
            path = folder / "copy.zarr"
            shutil.copytree(base, path)
            kind(path, rng)
            # What nobody repairs is wrong: else there would be nothing to find.
            is_seen = kind in (torn_tile, damaged_tile) or damaged_or_torn(path, expected)
            counts[f"{kind.__name__}, real"] += is_seen
            counts["real"] += is_seen
            repaired = same(run(path), expected) and not damaged_or_torn(path, expected)
            counts[f"{kind.__name__}, repaired"] += repaired
            counts["repaired"] += repaired
            shutil.rmtree(path)
    rows: list[list[Cell]] = [
        [kind.__name__.replace("_", " "), counts[f"{kind.__name__}, real"],
         counts[f"{kind.__name__}, repaired"]]
        for kind in kinds
    ]  # fmt: skip
    report.tables.append(Table("Damaged stores", ["kind", "damaged", "repaired"], rows))
    report.floors.append(Floor("damaged stores found and repaired", counts["repaired"], wanted))
    report.floors.append(Floor("of these, really damaged", counts["real"], wanted))


def damaged_or_torn(path: Path, expected: bnmc.Trajectory) -> bool:
    try:
        return damaged(path, expected) > 0
    except ValueError:  # what Zarr says of bytes that are no chunk
        return True


def a_chunk(path: Path, rng: random.Random) -> Path:
    return rng.choice(
        sorted(
            one for name in OBSERVABLES for one in (path / name / "c").rglob("*") if one.is_file()
        )
    )


def truncated(path: Path, rng: random.Random) -> None:
    chunk = a_chunk(path, rng)
    content = chunk.read_bytes()
    chunk.write_bytes(content[: rng.randrange(len(content))])


def flipped(path: Path, rng: random.Random) -> None:
    # The last block has room for more layers than there are; a byte of these is no damage.
    chunk = a_chunk(path, rng)
    content = bytearray(chunk.read_bytes())
    content[rng.randrange(max(1, len(content) // 50))] ^= 1 << rng.randrange(8)
    chunk.write_bytes(content)


def deleted(path: Path, rng: random.Random) -> None:
    a_chunk(path, rng).unlink()


def swapped(path: Path, rng: random.Random) -> None:
    one, other = a_chunk(path, rng), a_chunk(path, rng)
    while one.read_bytes() == other.read_bytes():
        other = a_chunk(path, rng)
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)


def torn_tile(path: Path, rng: random.Random) -> None:
    file = rng.choice(sorted((path / "progress").glob("part-*.npz")))
    content = file.read_bytes()
    file.write_bytes(content[: rng.randrange(len(content) - 1)])


def damaged_tile(path: Path, rng: random.Random) -> None:
    file = rng.choice(sorted((path / "progress").glob("part-*.npz")))
    content = bytearray(file.read_bytes())
    content[rng.randrange(len(content))] ^= 0xFF
    file.write_bytes(content)


# --- a full disk ----------------------------------------------------------------------------

FULL = """
import ctypes, json, resource, signal, sys
from pathlib import Path
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 9)
from bench.reliability import stored_runs
from bnmc.errors import StoreError

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
stored_runs.simulating.STORED_TILE_SECONDS = stored_runs.TILE_SECONDS
if {limit}:
    resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
try:
    stored_runs.run(Path({path!r}))
    end = "complete"
except StoreError as error:
    end = f"StoreError: {{error}}"
print(json.dumps(end))
"""


def add_full_disk(report: Report, quick: bool) -> None:
    """Fill a disk, or where none can be mounted let files be no longer than a limit."""
    wanted = 2 if quick else 10
    rng = random.Random(SEED)
    expected = run()
    stopped = repaired = 0
    with many_tiles() as folder:
        disk = folder / "disk"
        disk.mkdir()
        has_disk = mounted(disk)
        try:
            for _ in range(wanted):
                path = disk / "run.zarr"
                if has_disk:  # of what would be 768 kB and more
                    size = rng.randrange(100, 700) << 10
                    subprocess.run(["mount", "-o", f"remount,size={size}", str(disk)], check=True)
                # A file of the limit's length is that of a tile or a chunk.
                limit = 0 if has_disk else rng.randrange(500, 4000)
                end = startup.child(FULL.format(path=str(path), limit=limit))
                stopped += end.startswith("StoreError")
                if has_disk:
                    subprocess.run(["mount", "-o", "remount,size=1g", str(disk)], check=True)
                repaired += same(run(path), expected)
                shutil.rmtree(path, ignore_errors=True)
        finally:
            if has_disk:
                subprocess.run(["umount", str(disk)], check=True)
    how = "a tmpfs that is full" if has_disk else "files that reach RLIMIT_FSIZE"
    rows: list[list[Cell]] = [[how, wanted, stopped, repaired]]
    headers = ["how", "runs", "ended by a StoreError", "identical resumes"]
    report.tables.append(Table("Full disks", headers, rows))
    report.floors += [
        Floor("full disks that ended a run by a StoreError", stopped, wanted),
        Floor("identical resumes after a full disk", repaired, wanted),
    ]


def mounted(path: Path) -> bool:
    """Mount a small disk, if this is allowed."""
    command = ["mount", "-t", "tmpfs", "-o", "size=100k", "tmpfs", str(path)]
    try:
        return subprocess.run(command, capture_output=True).returncode == 0
    except OSError:
        return False
