"""Cases of a test of which only some run each time."""

import pytest


def some(cases, *first):
    """Return the names of cases as parameters; all but the first ones are slow."""
    assert set(first) <= set(cases)
    return [pytest.param(name, marks=[] if name in first else pytest.mark.slow) for name in cases]
