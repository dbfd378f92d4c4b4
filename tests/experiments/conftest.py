"""Figures at small sizes, each run once for all tests."""

import functools

import figure_sizes
import pytest


@pytest.fixture(scope="session")
def small():
    """Return a function that runs the figure of a name on two threads."""
    return functools.cache(functools.partial(figure_sizes.run, threads=2))


@pytest.fixture
def figure(request, small):
    """Return the figure that the class or the file of a test names, at its small sizes."""
    return small(getattr(request.cls, "FIGURE", None) or request.module.FIGURE)


@pytest.fixture
def data(figure):
    return figure.data
