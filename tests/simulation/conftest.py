"""Fixtures of the tests of stores and tiles."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import bnmc
from bnmc.simulation import run as simulating
from bnmc.simulation import tiles


@pytest.fixture
def small_tiles(monkeypatch):
    """Cut runs into many tiles: of two chains, through seven recorded layers."""

    def grid_of(run, parts, of_tile):
        block = min(7, run.recorded.count)
        return tiles.Grid.of_slots(run.chains, run.recorded, min(2, run.chains), block)

    monkeypatch.setattr(simulating, "grid_of", grid_of)


@pytest.fixture
def path(tmp_path):
    """Return a free path of a store."""
    return tmp_path / "run.zarr"


@pytest.fixture
def require_same_bits(path, monkeypatch):
    """Return a function that runs a network whole, and in tiles by threads, executors and stores.

    It requires the same bits, and returns the arguments of the run that the store holds.
    """

    def require(network, **options):
        options = {"chains": 5, "rng": 3, "observables": ["gram", "soft_rank"], **options}
        expected = bnmc.simulate(network, threads=1, **options)
        assert expected.sampler == "mixed"
        # Each layer is a tile.
        for name in ("TILE_SECONDS", "STORED_TILE_SECONDS"):
            monkeypatch.setattr(simulating, name, 1e-9)
        with ThreadPoolExecutor(2) as executor:
            ways = {"threads": 2}, {"executor": executor}, {"store": path}, {"store": path}
            others = [bnmc.simulate(network, **options, **way) for way in ways]
        for run in others:
            for name in options["observables"]:
                np.testing.assert_array_equal(run[name], expected[name])
        assert len(list((path / "progress").glob("*-*"))) >= network.depth
        return {**options, "store": path}

    return require
