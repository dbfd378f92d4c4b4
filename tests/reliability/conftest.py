"""Options of the tests of reliability: how many cases each counts."""

import pytest
from reliability.stored_runs import TILE_SECONDS

from bnmc.gradients import parts as backward
from bnmc.simulation import run as simulating

#: Options, with the counts of `make test-slow`: few, so that all take minutes.
COUNTS = {
    "kills": (4, "kills of a process that writes a store"),
    "worker-kills": (2, "kills of workers of Dask"),
    "names": (6, "kills of processes that resume a store under three names"),
    "cuts": (200, "cuttings of runs"),
    "files": (60, "damaged and hostile files"),
    "calls": (1000, "hostile calls"),
    "layers": (100, "random layers that have the law of their chain"),
    "full-disks": (2, "full disks"),
    "soak-layers": (10_000_000, "layers of a long run"),
    "stream-gib": (1, "GiB of random words, and of normals, for PractRand"),
    "first-case": (0, "number of the first case, to repeat or to continue"),
    "case-seed": (2026, "seed of the cases; seed and number determine a case"),
}


def pytest_addoption(parser):
    group = parser.getgroup("reliability")
    for name, (count, text) in COUNTS.items():
        group.addoption(f"--{name}", type=int, default=count, help=f"{text} ({count})")
    group.addoption(
        "--stream-program", default="RNG_test stdin32 -tlmin 1GB",
        help="command that tests the words of its standard input (RNG_test of PractRand)",
    )  # fmt: skip


def pytest_collection_modifyitems(items):
    for item in items:
        if "reliability" in item.path.parts:
            item.add_marker(pytest.mark.slow)


@pytest.fixture
def option(request):
    """Return the value of an option, or its default if pytest read this file after its options."""
    return lambda name: request.config.getoption(f"--{name}", COUNTS[name][0])


@pytest.fixture
def numbers(option):
    """Return the numbers of the cases of an option."""
    return lambda name: range(option("first-case"), option("first-case") + option(name))


@pytest.fixture
def stores(tmp_path, monkeypatch):
    """Return a folder for stores, which have many tiles and parts meanwhile."""
    monkeypatch.setattr(simulating, "STORED_TILE_SECONDS", TILE_SECONDS)
    monkeypatch.setattr(backward, "PART_SECONDS", TILE_SECONDS)
    return tmp_path
