"""Fixtures of the tests of stores."""

import pytest

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
