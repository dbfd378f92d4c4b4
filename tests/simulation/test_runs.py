"""A run as a value: which layers it records, and how many numbers."""

from dataclasses import replace

import numpy as np
import pytest

import bnmc
from bnmc.simulation.observables import as_observables
from bnmc.simulation.runs import Recorded
from bnmc.simulation.starting import run_of

CHAIN = bnmc.Chain(12, 3, "relu")


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
            slots = recorded.slots(first, last)
            assert slots.tolist() == expected
            assert slots.dtype == np.int64
        assert recorded.before(first) == sum(layer < first for layer in due)


@pytest.mark.parametrize("inputs", [None, 2])
def test_the_numbers_of_a_layer_are_those_that_are_recorded(inputs):
    """The memory of a run is estimated from them."""
    names = ["gram", "rank_bound", "eigenvalues", *(["cross_gram"] if inputs else [])]
    options = {"chains": 5, "inputs": inputs, "rng": 0}
    recorded = bnmc.simulate(CHAIN, 7, observables=names, **options).observables
    run = run_of(CHAIN.repeat(0), "gaussian", sampler="auto", dtype="float64", **options)
    run = replace(run, observables=as_observables(names, inputs is not None))
    assert run.numbers * 5 * 8 == sum(values.size for values in recorded.values())
