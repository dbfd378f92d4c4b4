"""Iterates of layers that differ: single steps, one after the other, and wide networks."""

import numpy as np
import pytest
from numpy_network import layers_of

import bnmc
from bnmc.chain.start import Representation
from bnmc.mean_field import MeanField
from bnmc.mean_field.map.iteration import iterates
from bnmc.simulation.observables import OBSERVABLES
from bnmc.simulation.runs import Recorded, Run
from bnmc.simulation.segment import Segment

START = np.random.default_rng(0).standard_normal((8, 4))
G0 = START.T @ START / 8

#: Layers of all three methods.
OPTIONS = [
    ("tanh", {"norm": "none", "gain": 1.3, "bias_variance": 0.3}),
    ("relu", {}),
    ("gelu", {"norm": "layer", "eps": 0.1}),
    ("silu", {"norm": "rms", "order": "activation-norm", "gain": 2.0}),
    ("relu", {"norm": "batch-uncentred", "eps": 0.1, "bias_variance": 0.2}),
    ("tanh", {"eps": 0.05}),
]


def chains(width, options=OPTIONS):
    return [bnmc.Chain(width, 4, activation, **rest) for activation, rest in options]


def passed(some):
    return iterates([chain.layers[1] for chain in some], len(some), G0, 3, 1e-9, 10**7)


@pytest.mark.parametrize(
    ("places", "method"),
    [((0, 2, 3), "pairwise"), ((2, 1, 0, 4), "homogeneous"), ((1, 5, 0, 4), "lattice")],
)
def test_layers_that_differ_are_steps_one_after_the_other(places, method):
    some = [chains(8)[place] for place in places]
    run, states = passed(some), [G0]
    for chain in some:
        states.append(MeanField(chain).step(states[-1], rtol=1e-9, rng=1).gram)
    assert run.method == method
    assert (run.nodes > 0) == (run.key is not None) == (method == "lattice")
    if method == "lattice":
        assert run.error <= 1e-9
        np.testing.assert_allclose(run.gram, states, rtol=0, atol=1e-7)
    else:
        np.testing.assert_array_equal(run.gram, states)
    back = passed(some[::-1])
    assert np.abs(back.gram[-1] - run.gram[-1]).max() > 0.01


def test_wide_networks_have_these_gram_matrices():
    """The mean of 20 networks, with a bias of the order 1/width.

    One of 96 entries is off by 10 standard errors with a probability of 5e-7.
    """
    width, networks = 4000, 20
    start = np.tile(START, (width // len(START), 1))  # aᵀa/width is G0
    first = bnmc.Chain(width, 4, "linear", norm="none")
    run = Run(
        first, "conditional", networks, None, "float64", 3 + (5 << 32),
        observables=(OBSERVABLES["gram"],), recorded=Recorded(1, 1, len(OPTIONS)),
        network=layers_of([first, *chains(width)]), backend="cpu",
    )  # fmt: skip
    grams = np.zeros((networks, len(OPTIONS), 4, 4))
    segment, values = Segment(run, 1), {"gram": grams}
    segment.begin(Representation(start[None], start[None]), values)
    segment.advance(len(OPTIONS), values, 0)
    limit = passed(chains(8)).gram[1:]
    stderr = grams.std(axis=0, ddof=1) / np.sqrt(networks)
    far = np.abs(grams.mean(axis=0) - limit)
    assert (far < 10.0 * stderr + 20.0 / width).all()
    assert stderr.max() < 0.01
