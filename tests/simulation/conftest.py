"""Fixtures of the tests of stores."""

import pytest

from bnmc.simulation import plan, tiles


@pytest.fixture
def small_tiles(monkeypatch):
    """Cut runs into many tiles: of two chains, through seven recorded layers."""

    def grid_of(chains, recorded, parts, seconds, size, of_tile):
        return tiles.Grid(chains, recorded, min(2, chains), min(7, recorded.count))

    monkeypatch.setattr(plan, "grid_of", grid_of)


@pytest.fixture
def path(tmp_path):
    """Return a free path of a store."""
    return tmp_path / "run.zarr"
