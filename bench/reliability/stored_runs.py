"""Runs in memory and in stores that the other files damage, and their comparison bit by bit."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import bnmc
from bnmc.experiments.parts import Parts, Sources
from bnmc.gradients import parts as backward
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


def finished(path: Path) -> set[str]:
    """The files of the finished parts of a store, or of a folder of parts."""
    return {str(file.relative_to(path)) for file in path.glob("**/part-*.npz")}


def damaged(path: Path, expected: bnmc.Trajectory) -> int:
    """How many finished tiles have other data than an uninterrupted run."""
    import zarr

    group = zarr.open_group(path, mode="r", zarr_format=3)
    of_part, of_block = (int(group.attrs[name]) for name in ("part", "block"))
    wrong = 0
    for name in finished(path):
        part, block = map(int, Path(name).stem.split("-")[1:])
        chains = slice(part * of_part, (part + 1) * of_part)
        slots = slice(block * of_block, (block + 1) * of_block)
        wrong += not all(
            np.array_equal(group[name][chains, slots], expected[name][chains, slots])
            for name in OBSERVABLES
        )
    return wrong


# --- the clients of the store: runs, gradients and figures


def gradients(path: Path | None = None) -> list[Any]:
    """A backward pass in many parts, kept in a folder."""
    backward.PART_SECONDS = TILE_SECONDS
    chain = bnmc.Chain(40, 4, "tanh")
    result = bnmc.backpropagate(chain, 300, chains=60, rng=SEED, threads=1, store=path)
    return [result.log_gradient_norm]


def figure(path: Path | None = None) -> list[Any]:
    """Twelve parts of an experiment, kept in a folder."""
    chain = bnmc.Chain(**CHAIN)
    with Parts(False, "bench", [1.0] * 12, Sources(SEED), store=path) as parts:
        return [parts.run(_simulated, chain, number).observables["gram"] for number in range(12)]


def _simulated(chain: bnmc.Chain, number: int, progress: Any = False) -> bnmc.Trajectory:
    return bnmc.simulate(
        chain, 3000, every=10, rng=number, threads=1, progress=progress, observables=["gram"]
    )


def values(path: Path | None = None) -> list[Any]:
    """The values and the state of the run of these benchmarks."""
    result = run(path)
    return [*(result[name] for name in OBSERVABLES), *result.final_state.arrays.values()]


#: What writes a store or a folder at a path, and returns all values.
CLIENTS: dict[str, Callable[..., list[Any]]] = {
    "simulate": values, "backpropagate": gradients, "figure": figure
}  # fmt: skip
