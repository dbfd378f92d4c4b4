"""The division of a run into tiles: their sizes, and the progress of a run in tiles."""

from concurrent.futures import ThreadPoolExecutor

import pytest

import bnmc
from bnmc.simulation import plan
from bnmc.simulation.job import Recorded
from bnmc.simulation.tiles import TILE_BYTES, Grid, grid_of

CHAIN = bnmc.Chain(20, 3, "relu")


@pytest.mark.parametrize("chains", [1, 7, 40])
@pytest.mark.parametrize("size", [800, 100_000])
def test_a_tile_has_as_many_layers_as_its_bytes_allow(chains, size):
    """All chains of a part count: one layer more would be too many bytes."""
    grid = grid_of(chains, Recorded(0, 1, 10**6), 3, 1e-12, size, 1.0)
    layer = grid.part * size
    assert grid.part == -(-chains // min(3, chains))
    assert TILE_BYTES - layer < grid.block * layer <= TILE_BYTES


@pytest.mark.parametrize("every", [1, 5])
@pytest.mark.parametrize("chains", [1, 7, 40])
def test_a_tile_has_as_many_layers_as_its_time_allows(chains, every):
    grid = grid_of(chains, Recorded(0, every, 10**6), 3, 1e-4, 8, 1.0)
    layer = grid.part * every * 1e-4
    assert 1.0 - layer < grid.block * layer <= 1.0 + 1e-9


def test_a_tile_has_a_layer_at_least_and_no_more_than_there_are():
    assert grid_of(5, Recorded(0, 1, 99), 2, 1e3, 8, 1.0).block == 1
    assert grid_of(5, Recorded(0, 1, 99), 2, 1e-12, 10**9, 1.0).block == 1
    assert grid_of(5, Recorded(0, 1, 99), 2, 1e-12, 8, 1.0).block == 100


@pytest.mark.parametrize("where", ["executor", "store"])
@pytest.mark.parametrize("start", [0, 50])
def test_the_progress_of_a_continued_run_counts_its_own_layers(start, where, monkeypatch, tmp_path):
    """Two parts, one after the other: layers are counted in the mean over parts."""
    monkeypatch.setattr(plan, "grid_of", lambda chains, recorded, *_: Grid(chains, recorded, 1, 6))
    state = bnmc.simulate(CHAIN, start, chains=2, rng=0).final_state
    reports = []
    with ThreadPoolExecutor(1) as pool:
        way = {"executor": pool} if where == "executor" else {"store": tmp_path / "run.zarr"}
        bnmc.simulate(
            CHAIN, 17, initial=state, threads=1, progress=lambda *one: reports.append(one), **way
        )
    done, totals = zip(*reports, strict=True)
    assert set(totals) == {17}
    # Blocks end at layers 5, 11 and 17 of this run.
    ends = [0, 5, 11, 17]
    possible = {(a + b) // 2 for a in ends for b in ends}
    assert set(done) <= possible
    assert list(done) == sorted(done)
    assert done[-1] == 17
