"""Which layers a run records, against the definition."""

import numpy as np
import pytest

from bnmc.simulation.job import Recorded


@pytest.mark.parametrize(
    "recorded",
    [Recorded(0, 1, 0), Recorded(0, 1, 12), Recorded(2, 3, 12), Recorded(0, 5, 11),
     Recorded(12, 4, 12), Recorded(1, 100, 12), Recorded(7, 2, 9)],
)  # fmt: skip
def test_slots_number_the_recorded_layers_of_each_block(recorded):
    due = {*range(recorded.first, recorded.last, recorded.every), recorded.last}
    assert recorded.count == len(due)
    assert recorded.layers(0, recorded.count).tolist() == sorted(due)
    for first in range(recorded.last + 1):
        for last in range(first, recorded.last + 2):
            numbers = iter(range(len(due)))
            expected = [next(numbers) if layer in due else -1 for layer in range(first, last)]
            found = recorded.slots(first, last)
            assert found.tolist() == expected
            assert found.dtype == np.int64
        assert recorded.before(first) == sum(layer < first for layer in due)
