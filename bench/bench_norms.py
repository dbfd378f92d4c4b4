"""What a norm over the features costs over batch normalization: its second pass over the rows.

All candidates are `simulate` with the conditional sampler, relu and one thread, without recorded
layers between.  Runs have 200 layers: samples of layer normalization before relu become equal, and
after thousands of layers float32 chains would continue in float64.  The clock counts the time of
the processor in this process, which other programs on the machine change less than the time on the
wall.
"""

import pytest

import bnmc
from bench.roofline import DTYPES
from bench.turns import LAYER, Candidate

#: Layers of a run, so that its beginning takes a small part of its time.
LAYERS = 200

#: Candidates by name: arguments of `Chain`.
CHAINS = {
    "batch": {"norm": "batch"},
    "layer": {"norm": "layer"},
    "rms": {"norm": "rms"},
    "group(8)": {"norm": "group(8)"},
    "layer after the activation": {"norm": "layer", "order": "activation-norm"},
    "uncentred batch": {"norm": "batch-uncentred"},
    "uncentred batch, bias": {"norm": "batch-uncentred", "bias_variance": 0.1},
}

#: A layer of a norm over the features takes at most so many times as long as batch normalization.
LIMIT = 2.2
LIMITED = ("layer", "rms", "group(8)")


@pytest.mark.parametrize("dtype", DTYPES)
def test_norms(turns, dtype):
    width, batch, layers = turns.of((1000, 10, LAYERS), (1000, 10, LAYERS), (16, 3, 3))
    turns.group = f"A layer at ({width}, {batch}), relu, {dtype}, one thread, processor time"
    candidates = [
        Candidate(name, runs(bnmc.Chain(width, batch, "relu", **options), layers, dtype), layers,
                  LAYER)
        for name, options in CHAINS.items()
    ]  # fmt: skip
    rounds, seconds = turns.of((9, 0.15), (5, 0.05))
    timings = turns(candidates, rounds=rounds, seconds=seconds, by_processor=True)
    for name, timing in timings.items():
        limit = LIMIT if name in LIMITED else None
        turns.hold(name, "over batch", timings["batch"].speed_over(timing), at_most=limit)


def runs(chain, layers, dtype):
    """For `Candidate.make`: so many chains."""
    return lambda chains: lambda: bnmc.simulate(
        chain, layers, chains=chains, rng=0, sampler="conditional", dtype=dtype, every=layers,
        threads=1,
    )  # fmt: skip
