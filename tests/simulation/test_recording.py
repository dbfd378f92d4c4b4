"""What is recorded of a run: the size of the result, before any work."""

import pytest

import bnmc
from bnmc.errors import ResultTooLargeError
from bnmc.simulation import recording

CHAIN = bnmc.Chain(12, 3, "relu")


@pytest.mark.parametrize("reduce", [(), "chain", "layer", ("chain", "layer")])
def test_the_size_that_is_stated_is_that_of_the_values_that_are_kept(reduce, monkeypatch):
    """Moments are a mean and a variance of each value that is kept."""
    options = {"chains": 5, "inputs": 2, "rng": 0, "reduce": reduce}
    names = ["gram", "rank_bound", "eigenvalues"]
    run = bnmc.simulate(CHAIN, 7, observables=names, **options)
    if reduce:
        kept = [part for one in run.moments.values() for part in (one.mean, one.variance)]
    else:
        kept = list(run.observables.values())

    monkeypatch.setattr(recording, "available_memory", lambda: -1)

    def stated(observables):
        with pytest.raises(ResultTooLargeError) as caught:
            bnmc.simulate(CHAIN, 7, observables=observables, **options)
        return caught.value.requested

    assert stated(names) - stated([]) == sum(values.nbytes for values in kept)
