"""Fixtures of the tests of gradients."""

import pytest

from bnmc._kernels.cpu import backward, memory


@pytest.fixture
def dtypes_seen(monkeypatch):
    """The dtypes of buffers, forward and backward, that a run has made."""
    seen = set()
    make = backward.buffers

    def noted(width, batch, inputs, *dtypes, **options):
        if options["zeros"] is not memory.unplaced:  # else they are counted only
            seen.add(dtypes)
        return make(width, batch, inputs, *dtypes, **options)

    monkeypatch.setattr(backward, "buffers", noted)
    return seen
