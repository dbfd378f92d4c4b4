"""Cases of a test of which only some run each time."""

import pytest


def slow(*case):
    """Return a case as parameters that does not run each time."""
    return pytest.param(*case, marks=pytest.mark.slow)


def some(cases, *first):
    """Return the names of cases as parameters; all but the first ones are slow."""
    assert set(first) <= set(cases)
    return [pytest.param(name, marks=[] if name in first else pytest.mark.slow) for name in cases]


def pairs(rows, columns, every=2):
    """Return all pairs as parameters; each time runs every second one, or third one and so on.

    These contain each row and each column, unless there are fewer rows or columns than `every`.
    """
    return [
        pytest.param(row, column, marks=[] if (i + j) % every == 0 else pytest.mark.slow)
        for i, row in enumerate(rows)
        for j, column in enumerate(columns)
    ]
