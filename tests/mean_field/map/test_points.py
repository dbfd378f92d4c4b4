"""The map of a norm over the batch after the activation: closed forms, simulation, errors."""

import numpy as np
import pytest

import bnmc
from bnmc.errors import ArgumentError, PartialEstimateError, ZeroVarianceError
from bnmc.mean_field import MeanField


def after(name, batch=4, **options):
    return MeanField(bnmc.Chain(8, batch, name, order="activation-norm", **options))


@pytest.mark.parametrize("batch", [2, 4])
def test_dead_rows_of_relu(batch):
    """Independent samples are all negative with probability 2⁻ⁿ, and other rows have mean square 1.

    The diagonal is within 25 standard errors, Student with 7 degrees of freedom: 4e-8.
    """
    step = after("relu", batch, eps=1e-12).step(np.eye(batch), rng=0, rtol=1e-3, max_nodes=10**6)
    diagonal, stderr = step.gram.diagonal().mean(), step.stderr.diagonal().max()
    assert abs(diagonal - (1.0 - 0.5**batch)) < 25 * stderr
    assert 0 < stderr < 2e-3
    np.testing.assert_allclose(step.gram.sum(axis=0), 0.0, atol=1e-12)


def test_two_samples_are_signs():
    """N of two numbers is ±(1, −1), for any activation that increases."""
    step = after("tanh", 2).step([[2.0, 0.3], [0.3, 1.0]], rng=0)
    np.testing.assert_allclose(step, [[1.0, -1.0], [-1.0, 1.0]], rtol=1e-12)


def test_a_linear_activation_commutes_with_the_norm():
    """The map of the norm before a linear activation is an exact integral."""
    gram = np.array([[2.0, 0.5, -0.3], [0.5, 1.0, 0.2], [-0.3, 0.2, 0.7]])
    for options in ({}, {"norm": "batch-uncentred", "eps": 0.4, "bias_variance": 0.3, "gain": 2.0}):
        step = after("linear", 3, **options).step(gram, rng=0)
        exact = MeanField(bnmc.Chain(8, 3, "linear", **options)).step(gram)
        assert (step.method, exact.method) == ("points", "homogeneous")
        off = np.abs(step.gram - exact.gram)
        assert (off < 25 * step.stderr + 1e-12).all()
        assert step.error <= 1e-3 * 3**0.5


def test_errors_are_those_of_other_seeds():
    """The spread of 40 seeds is the standard error: a chi-squared of 39 degrees of freedom."""
    gram = np.eye(5) + 0.3
    steps = [after("gelu", 5).step(gram, rng=seed, rtol=1.0) for seed in range(40)]
    entries = np.array([step.gram[0, 1] for step in steps])
    stated = np.mean([step.stderr[0, 1] ** 2 for step in steps]) ** 0.5
    assert 0.5 < entries.std(ddof=1) / stated < 1.7  # quantiles of 1e-7, with stated ones of 280
    again = after("gelu", 5).step(gram, rng=3, rtol=1.0).gram
    np.testing.assert_array_equal(again, steps[3].gram)
    fine = after("gelu", 5).step(gram, rng=0, rtol=5e-4)
    assert fine.nodes > steps[0].nodes
    assert fine.error <= 5e-4


def test_rows_that_have_no_variance():
    with pytest.raises(ArgumentError, match="activation: got 'relu'.*without eps"):
        after("relu").step(np.eye(4))
    with pytest.raises(ZeroVarianceError):
        after("abs", 2).trajectory(np.eye(2), 2)  # N(|h|) is ±(1, −1), whose moduli are equal
    with pytest.raises(PartialEstimateError) as raised:
        after("relu", eps=0.1).step(np.eye(4), rtol=1e-5, max_nodes=1000, rng=0)
    assert raised.value.partial.nodes == 512
    uncentred = after("relu", 3, norm="batch-uncentred", eps=0.1).step(np.zeros((3, 3)), rng=0)
    np.testing.assert_array_equal(uncentred, np.zeros((3, 3)))
