"""The division of a run into tiles: their sizes, and the progress of a run in tiles."""

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from unittest import mock

import pytest

import bnmc
from bnmc.simulation import run as simulating
from bnmc.simulation import segment
from bnmc.simulation.runs import Recorded, Run
from bnmc.simulation.tiles import TILE_BYTES, Grid, grid_of

CHAIN = bnmc.Chain(20, 3, "relu")


def grid(chains, recorded, parts, seconds, size, of_tile):
    """Return the grid of a run whose layers take so many seconds and bytes."""
    run = SimpleNamespace(chains=chains, recorded=recorded, seconds=seconds, numbers=size // 8)
    return grid_of(run, parts, of_tile)


@pytest.mark.parametrize("chains", [1, 7, 40])
@pytest.mark.parametrize("size", [800, 100_000])
def test_a_tile_has_as_many_layers_as_its_bytes_allow(chains, size):
    """All chains of a part count: one layer more would be too many bytes."""
    cut = grid(chains, Recorded(0, 1, 10**6), 3, 1e-12, size, 1.0)
    layer = cut.part * size
    assert cut.part == -(-chains // min(3, chains))
    assert TILE_BYTES - layer < cut.block * layer <= TILE_BYTES


@pytest.mark.parametrize("every", [1, 5])
@pytest.mark.parametrize("chains", [1, 7, 40])
def test_a_tile_has_as_many_layers_as_its_time_allows(chains, every):
    cut = grid(chains, Recorded(0, every, 10**6), 3, 1e-4, 8, 1.0)
    layer = cut.part * every * 1e-4
    assert 1.0 - layer < cut.block * layer <= 1.0 + 1e-9


def test_a_tile_has_a_layer_at_least_and_no_more_than_there_are():
    assert grid(5, Recorded(0, 1, 99), 2, 1e3, 8, 1.0).block == 1
    assert grid(5, Recorded(0, 1, 99), 2, 1e-12, 10**9, 1.0).block == 1
    assert grid(5, Recorded(0, 1, 99), 2, 1e-12, 8, 1.0).block == 100


@pytest.mark.parametrize("where", ["executor", "store"])
@pytest.mark.parametrize("start", [0, 50])
def test_the_progress_of_a_continued_run_counts_its_own_layers(start, where, monkeypatch, tmp_path):
    """Two parts, one after the other: layers are counted in the mean over parts."""
    monkeypatch.setattr(
        simulating, "grid_of", lambda run, *_: Grid.of_slots(run.chains, run.recorded, 1, 6)
    )
    state = bnmc.simulate(CHAIN, start, chains=2, rng=0).final_state
    reports = []
    with ThreadPoolExecutor(1) as pool:
        way = {"executor": pool} if where == "executor" else {"store": tmp_path / "run.zarr"}
        bnmc.simulate(
            CHAIN,
            17,
            initial=state,
            threads=1,
            progress=lambda *report: reports.append(report),
            **way,
        )
    done, totals = zip(*reports, strict=True)
    assert set(totals) == {17}
    # Blocks end at layers 5, 11 and 17 of this run.
    ends = [0, 5, 11, 17]
    possible = {(a + b) // 2 for a in ends for b in ends}
    assert set(done) <= possible
    assert list(done) == sorted(done)
    assert done[-1] == 17


# --- blocks of layers in one process: the memory of their frames


@pytest.mark.parametrize("chains", [1, 6])
def test_a_block_has_as_many_layers_as_its_bytes_allow(chains):
    """All chains count: one layer more would be too many bytes."""
    chain, inputs, made = bnmc.Chain(12, 4, "relu"), 2, []
    original = Run.frames

    def frames(self, layers):
        result = original(self, layers)
        made.append(result.gram.nbytes)
        return result

    with (
        mock.patch.object(segment, "FRAME_BYTES", 1 << 15),
        mock.patch.object(segment, "TASK_SECONDS", 1e9),
        mock.patch.object(Run, "frames", frames),
    ):
        run = bnmc.simulate(chain, 500, chains=chains, inputs=inputs, rng=0, threads=2)
    assert run.complete
    layer = 8 * chains * (inputs * 4) ** 2
    assert (1 << 15) - layer < max(made) <= 1 << 15
