"""`bnmc.warmup`: later calls compile nothing."""

from unittest import mock

import numpy as np

import bnmc
from bnmc._kernels.cpu import backward, backward_matrices, backward_rows, layers, orthogonal
from bnmc.gradients.warming import Warmed, Warmup
from bnmc.simulation import run as simulating
from bnmc.simulation import segment


def signatures():
    return {
        (module.__name__, name): set(value.signatures)
        for module in (layers, orthogonal, backward, backward_matrices, backward_rows)
        for name, value in vars(module).items()
        if hasattr(value, "stats")
    }


# Threads share each layer, however narrow, and also in a short run.
@mock.patch.object(segment, "SHARED_LAYER_SECONDS", 0.0)
@mock.patch.object(simulating, "BRIEF_SECONDS", 0.0)
def test_later_runs_compile_nothing():
    result = bnmc.warmup(activations=["relu"], samplers=("conditional", "weights", "factor", "c"))
    assert [each.sampler for each in result.compiled] == ["conditional", "weights", "factor", "c"]
    assert [each.activation for each in result.compiled] == ["relu", "relu", None, "relu"]
    assert result.seconds == sum(each.seconds for each in result.compiled) > 0.0

    before = signatures()
    start = np.random.default_rng(0).standard_normal((6_200, 3))
    for chain in (
        bnmc.Chain(6_200, 3, "relu", eps=0.1),
        bnmc.Chain(6_200, 3, "relu", norm="batch-uncentred", skip=0.5),
    ):
        bnmc.simulate(chain, 1, initial=start, sampler="conditional", threads=2)
    narrow = bnmc.Chain(700, 5, "relu", weights="uniform")
    bnmc.simulate(narrow, 2, inputs=2, chains=3, threads=2, reduce=("chain", "layer"))
    wide = bnmc.Chain(1500, 3, "relu")
    bnmc.simulate(wide, 1, sampler="weights", threads=2)
    bnmc.simulate(bnmc.Chain(10, 3, norm="none"), 2)
    assert signatures() == before


def test_later_backward_passes_and_orthogonal_weights_compile_nothing():
    names = ("haar", "backward", "haar-backward")
    result = bnmc.warmup(activations="relu", samplers=names)
    assert [each.sampler for each in result.compiled] == list(names)
    before = signatures()
    for weights in ("gaussian", "haar"):
        for options in ({"eps": 0.1}, {"skip": 0.5}, {"norm": "batch-uncentred"}):
            chain = bnmc.Chain(700, 3, "relu", weights=weights, **options)
            bnmc.simulate(chain, 2, sampler="conditional", inputs=2, threads=2)
            bnmc.backpropagate(chain, 2, inputs=2, observables="hidden_delta")
            labels = {"loss": "cross-entropy", "labels": [0, 1, 2]}
            bnmc.backpropagate(chain, 2, chains=2, threads=2, **labels)
    assert signatures() == before


def test_what_is_said():
    result = Warmup((Warmed("factor", None, "float64", 1.5), Warmed("c", "relu", "float32", 2.25)))
    assert str(result).splitlines()[1].split() == ["c", "relu", "float32", "2.25", "s"]
    assert str(result).splitlines()[-1].split() == ["together", "3.75", "s"]
