"""Figures at small sizes, each run once for all tests."""

import functools

import figure_sizes
import pytest


@pytest.fixture(scope="session")
def small():
    """Return a function that runs the figure of a name on two threads."""
    return functools.cache(functools.partial(figure_sizes.run, threads=2))
