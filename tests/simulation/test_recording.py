"""What is recorded of a run: the number of values, before any work."""

import pytest

import bnmc
from bnmc.simulation.ensemble import ensemble_of
from bnmc.simulation.recording import recording_of

CHAIN = bnmc.Chain(12, 3, "relu")


@pytest.mark.parametrize("inputs", [None, 2])
def test_the_numbers_of_a_layer_are_those_that_are_kept(inputs):
    """The memory of a run is estimated from them."""
    names = ["gram", "rank_bound", "eigenvalues", *(["cross_gram"] if inputs else [])]
    options = {"chains": 5, "inputs": inputs, "rng": 0}
    run = bnmc.simulate(CHAIN, 7, observables=names, **options)
    ensemble = ensemble_of(CHAIN, "gaussian", sampler="auto", dtype="float64", **options)
    recording = recording_of(
        ensemble, 7, observables=names, every=1, burn_in=0, reduce=(), out=None
    )
    kept = sum(values.size for values in run.observables.values())
    assert recording.per_value * 5 * 8 == kept
