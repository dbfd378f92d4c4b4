"""Runs in memory and in stores that the other files damage, and their comparison bit by bit."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import bnmc
from bnmc.simulation import run as simulating

SEED = 2026
#: Of the stores of these benchmarks: short runs are to have many tiles.
TILE_SECONDS = 2e-3
DEPTH = 12_000
CHAIN = {"width": 20, "batch": 4, "activation": "relu"}
OBSERVABLES = ["gram", "eigenvalues"]


def run(path: Path | None = None, **options: Any) -> bnmc.Trajectory:
    """The run of these benchmarks, in memory or in a store."""
    settings = {
        "depth": DEPTH, "every": 10, "chains": 4, "rng": SEED, "observables": OBSERVABLES,
        "threads": 1, **options,
    }  # fmt: skip
    return bnmc.simulate(bnmc.Chain(**CHAIN), store=path, **settings)


def same(found: bnmc.Trajectory, expected: bnmc.Trajectory) -> bool:
    """Whether two runs have the same bits, their final states included."""
    pairs = [(found[name], expected[name]) for name in OBSERVABLES]
    states = found.final_state.arrays, expected.final_state.arrays
    pairs += [(states[0][name], states[1][name]) for name in states[1]]
    return found.complete and all(np.array_equal(one, other) for one, other in pairs)


@contextlib.contextmanager
def many_tiles() -> Iterator[Path]:
    """A folder for stores, which have many tiles meanwhile."""
    former = simulating.STORED_TILE_SECONDS
    simulating.STORED_TILE_SECONDS = TILE_SECONDS
    try:
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder)
    finally:
        simulating.STORED_TILE_SECONDS = former


def die_with_parent() -> None:
    """Let the kernel kill this process when the thread that started it ends (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() == 1:
            os._exit(1)


def journal(path: Path) -> list[bytes]:
    """The finished tiles of a store, without a line that was being written."""
    file = path / "progress" / "journal"
    lines = file.read_bytes().splitlines(keepends=True) if file.exists() else []
    return [line for line in lines if line.endswith(b"\n")]


def damaged(path: Path, expected: bnmc.Trajectory) -> int:
    """How many blocks of the journal have other data than an uninterrupted run."""
    import json

    import zarr

    group = zarr.open_group(path, mode="r", zarr_format=3)
    part, block = (int(group.attrs[name]) for name in ("part", "block"))
    wrong = 0
    for line in journal(path):
        entry = json.loads(line.partition(b" ")[2])
        chains = slice(entry["part"] * part, (entry["part"] + 1) * part)
        slots = slice(entry["block"] * block, (entry["block"] + 1) * block)
        wrong += not all(
            np.array_equal(group[name][chains, slots], expected[name][chains, slots])
            for name in OBSERVABLES
        )
    return wrong
