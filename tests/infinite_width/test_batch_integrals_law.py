"""The law of rows of batches: joint factors, and batches that cannot be normalized."""

import numpy as np
import pytest

from bnmc import Chain
from bnmc.errors import ArgumentError, ZeroVarianceError
from bnmc.infinite_width.batch_integrals import batch_law, joint_factor, require_finite_tangents


def law_of(x):
    return batch_law(Chain(1, x.shape[1], "relu").layers[1].rows, x.T @ x, 0, "x")


def centred(x):
    return x - x.mean(axis=1, keepdims=True)


def test_the_factor_has_the_covariances_of_centred_rows():
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((9, 4)), rng.standard_normal((9, 6))
    left, right = law_of(x), law_of(y)
    assert left.trace == pytest.approx(np.trace(centred(x).T @ centred(x)))
    assert (left.size, left.rank, right.rank) == (4, 3, 5)
    factor = joint_factor(left, right, x.T @ y)
    assert factor.shape == (8, 8)
    a, b = left.vectors @ factor[:3], right.vectors @ factor[3:]
    expected = centred(x).T @ centred(y) / np.sqrt(left.trace * right.trace)
    np.testing.assert_allclose(a @ b.T, expected, atol=1e-14)
    np.testing.assert_allclose(a @ a.T, centred(x).T @ centred(x) / left.trace, atol=1e-14)


def test_the_same_batch_twice_has_the_rank_of_one():
    x = np.random.default_rng(1).standard_normal((9, 5))
    law = law_of(x)
    assert joint_factor(law, law, x.T @ x).shape == (8, 4)


def test_batches_without_variance_raise():
    chain = Chain(1, 4, "relu")
    with pytest.raises(ArgumentError, match="other"):
        batch_law(chain.layers[1].rows, np.ones((4, 4)), 0, "other")
    with pytest.raises(ZeroVarianceError):
        batch_law(chain.layers[1].rows, np.ones((4, 4)), 3, "other")


@pytest.mark.parametrize(("samples", "features"), [(3, 9), (5, 2)])
def test_two_dimensions_have_an_infinite_tangent_kernel(samples, features):
    law = law_of(np.random.default_rng(2).standard_normal((features, samples)))
    with pytest.raises(ArgumentError, match="infinite"):
        require_finite_tangents(law, "x")
