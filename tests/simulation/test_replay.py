"""Layers made again from their counters."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from oracle import FORMULAS

import bnmc
from bnmc.chain.chain import Chain
from bnmc.simulation.engine.replay import replaying, representation


def unit_normals(generator, shape):
    return generator.standard_normal(shape)


CHAINS = {
    "conditional": (Chain(1100, 3, "tanh"), "conditional"),
    "uncentred": (Chain(70, 4, "relu", norm="batch-uncentred", eps=0.1), "conditional"),
    "without a norm": (Chain(70, 3, "tanh", norm="none", gain=0.7), "conditional"),
    "skip": (Chain(70, 3, "tanh", skip=0.5, gain=2.0), "conditional"),
    "weights": (Chain(70, 3, "relu"), "weights"),
    "uniform weights and skip": (Chain(600, 3, "tanh", skip=1.0, weights="uniform"), "weights"),
    "weights of a function": (Chain(600, 3, "relu", weights=unit_normals), "weights"),
    "no norm": (Chain(80, 3, "relu", norm="none", gain=2.0**-20), "conditional"),
}


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_representation_gives_the_recorded_gram_matrix(name, dtype):
    chain, sampler = CHAINS[name]
    options = {"chains": 2, "rng": 1, "sampler": sampler, "dtype": dtype}
    state = bnmc.simulate(chain, 4, **options).final_state
    recorded = bnmc.simulate(chain, 5, **options).gram[:, 5]
    replay = replaying(state)
    for index in range(2):
        a = FORMULAS[chain.activation.name](representation(replay, index).astype(np.float64))
        # Sums of at most 1100 products, each rounded to the dtype of the rows.
        rtol = 1e-12 if dtype == "float64" else 1e-4
        gram = a @ a.T / chain.width
        assert_allclose(gram, recorded[index], rtol=rtol, atol=rtol * np.abs(gram).max())


def test_several_inputs_go_through_the_same_network():
    chain = Chain(90, 3, "relu")
    x = np.random.default_rng(0).standard_normal((2, 90, 3))
    state = bnmc.simulate(chain, 2, inputs=2, initial=x, rng=1).final_state
    run = bnmc.simulate(chain, 3, inputs=2, initial=x, rng=1, observables="cross_gram")
    a = FORMULAS["relu"](representation(replaying(state), 0))
    blocks = (a @ a.T / 90).reshape(2, 3, 2, 3).swapaxes(1, 2)
    assert_allclose(blocks, run["cross_gram"][0, 3], rtol=1e-12, atol=1e-13)


def test_layers_that_are_not_row_by_row_are_refused():
    state = bnmc.simulate(Chain(70, 3, "tanh", norm="rms"), 1, rng=0).final_state
    with pytest.raises(bnmc.errors.ArgumentError, match="^norm: got 'rms'"):
        replaying(state)


def test_a_row_without_variance_is_named():
    chain = Chain(4, 2, "abs")
    state = bnmc.simulate(chain, 0, rng=0).final_state
    equal = np.ones((1, 2, 2))
    state.arrays["gram"][:] = equal
    with pytest.raises(bnmc.errors.ZeroVarianceError, match="row 0"):
        representation(replaying(state), 0)
