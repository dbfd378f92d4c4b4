"""Starts of chains that do not fit in memory are refused before a copy is made."""

import numpy as np
import pytest

from bnmc import Chain, FirstLayer
from bnmc._support import array_arguments
from bnmc.chain.start import prepare
from bnmc.errors import ResultTooLargeError

ROW = np.arange(3.0)


@pytest.fixture(autouse=True)
def _memory_has_100_megabytes(monkeypatch):
    monkeypatch.setattr(array_arguments, "available_memory", lambda: 100_000_000)


def test_features_beyond_the_memory():
    """A view that repeats one row takes no memory, and its copy does."""
    with pytest.raises(ResultTooLargeError, match="^x: the result needs 28.8 GiB"):
        FirstLayer(np.broadcast_to(ROW, (2**30, 3)))
    assert FirstLayer(np.broadcast_to(ROW, (2**10, 3))).x.shape == (2**10, 3)


@pytest.mark.parametrize(
    ("batch", "initial", "argument"),
    [
        (3, np.broadcast_to(ROW, (2**30, 3)), "initial"),
        (30_000, "gaussian", "batch"),
        (30_000, FirstLayer(np.ones((1, 30_000))), "batch"),
    ],
)
def test_starts_beyond_the_memory(batch, initial, argument):
    with pytest.raises(ResultTooLargeError) as caught:
        prepare(Chain(2**30, batch), initial, 1, None)
    assert caught.value.argument == argument
