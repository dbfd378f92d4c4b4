"""The key of a result, and its text, repeat the result."""

import json
import pickle

import numpy as np
import pytest

import bnmc
from bnmc import Chain, MeanField, errors
from bnmc._support import text
from bnmc._support.arguments import Key, draw_key, generator

CHAIN = Chain(12, 4, "relu")
UNEVEN = np.diag([1.0, 2.0, 3.0, 4.0])

#: Results with the attribute `key`: what a call with `rng` returns, and its numbers.
RESULTS = {
    "simulate": (
        lambda rng: bnmc.simulate(CHAIN, 3, chains=2, rng=rng), lambda result: result.gram
    ),
    "backpropagate": (
        lambda rng: bnmc.backpropagate(CHAIN, 3, chains=2, rng=rng),
        lambda result: result.log_gradient_norm,
    ),
    "train": (
        lambda rng: bnmc.train(
            CHAIN, np.eye(4), [0, 1, 0, 1], steps=2, learning_rate=0.1, depth=2, chains=2, rng=rng
        ),
        lambda result: result.outputs,
    ),
    "tangent_kernel": (
        lambda rng: bnmc.gradients.tangent_kernel(CHAIN, 3, chains=2, rng=rng),
        lambda result: result.kernels,
    ),
    "jacobian": (
        lambda rng: bnmc.gradients.jacobian(CHAIN, 3, chains=2, rng=rng),
        lambda result: result.log_singular_values,
    ),
    "extreme_singular_values": (
        lambda rng: bnmc.gradients.extreme_singular_values(CHAIN, 3, chains=2, rng=rng),
        lambda result: result.squares,
    ),
    "largest_rate": (
        lambda rng: bnmc.training.largest_rate(
            CHAIN, np.ones((3, CHAIN.batch)) + np.eye(3, CHAIN.batch), depth=2, chains=2, rng=rng
        ),
        lambda result: result.eigenvalues,
    ),
    "tv_bound": (
        lambda rng: bnmc.mixing.tv_bound(CHAIN, 4, chains=20, rng=rng),
        lambda result: result.meeting_times,
    ),
    "sample": (
        lambda rng: bnmc.invariant.sample(CHAIN, 2, atol=0.3, rng=rng),
        lambda result: result.preactivations(),
    ),
    "check": (
        lambda rng: bnmc.invariant.check(CHAIN, chains=200, atol=0.3, rng=rng),
        lambda result: [claim.p_value for claim in result.rows],
    ),
    "compare": (
        lambda rng: bnmc.mixing.compare(CHAIN, rng=rng, chains={"contraction": 4, "tv_bound": 4}),
        lambda result: [str(row) for row in result.rows],
    ),
    "nngp": (
        lambda rng: bnmc.infinite_width.nngp(
            np.eye(3), 2, activation="relu", method="monte-carlo", chains=2, width=4, rng=rng
        ),
        lambda result: result.kernels,
    ),
    "step": (
        lambda rng: MeanField(Chain(12, 4, "tanh")).step(UNEVEN, rtol=0.1, rng=rng),
        lambda result: result.gram,
    ),
    "trajectory": (
        lambda rng: MeanField(Chain(12, 4, "tanh")).trajectory(
            UNEVEN, 2, rtol=0.1, rng=rng, fluctuations=True, fluctuation_rtol=0.5
        ),
        lambda result: [*result.gram.flat, *result.fluctuations.mean_square(100).value],
    ),
    "GaussianMatrix": (
        lambda rng: bnmc.implicit.GaussianMatrix(6, 5, rng=rng), lambda result: result @ np.eye(5)
    ),
    "HaarMatrix": (
        lambda rng: bnmc.implicit.HaarMatrix(6, rng=rng), lambda result: result @ np.eye(6)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RESULTS)
def test_a_key_and_its_text_repeat_a_result(name):
    made, numbers = RESULTS[name]
    first = made(np.random.default_rng(5))
    for rng in (first.key, str(first.key)):
        again = made(rng)
        assert again.key == first.key
        np.testing.assert_array_equal(numbers(again), numbers(first))


def test_a_key_is_an_integer_whose_text_is_read():
    key = draw_key(0)
    assert isinstance(key, int)
    assert (repr(key), f"{key}") == (str(key), str(key))
    assert Key.of(str(key)) == draw_key(key) == draw_key(str(key)) == key
    assert pickle.loads(pickle.dumps(key)) == key
    assert np.uint64(key) == int(key) == key
    assert json.loads(text.dumps({"key": key})) == {"key": str(key)}
    assert str(Key(2**64 - 1)) == "key:ffffffffffffffff"
    assert generator(key).random() == generator(str(key)).random()


@pytest.mark.parametrize("wrong", ["key:12", "3", "", "key:" + 15 * "0" + "G", "KEY:" + 16 * "0"])
def test_other_texts_are_no_keys(wrong):
    with pytest.raises(errors.ArgumentTypeError, match="a seed >= 0, a key"):
        bnmc.simulate(CHAIN, 3, rng=wrong)
