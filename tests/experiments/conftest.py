"""Figures at small sizes, each run once for all tests."""

import functools

import figure_sizes
import pytest


@pytest.fixture(scope="session")
def small(tmp_path_factory):
    """Return a function that runs the figure of a name on two threads.

    One figure of each file stops in the middle, and goes on from its store: its table, findings and
    picture are approved ones all the same.
    """

    def run(name):
        if name not in figure_sizes.interrupted():
            return figure_sizes.run(name, threads=2)
        return figure_sizes.run_interrupted(name, tmp_path_factory.mktemp(name) / "parts")

    return functools.cache(run)


@pytest.fixture
def figure(request, small):
    """Return the figure that the class or the file of a test names, at its small sizes."""
    return small(getattr(request.cls, "FIGURE", None) or request.module.FIGURE)


@pytest.fixture
def data(figure):
    return figure.data
