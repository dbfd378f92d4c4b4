"""Claims about rows: what is left of rows that cancel to rounding says nothing."""

import math

import numpy as np
import pytest

import bnmc
from bnmc._claims import claims
from bnmc._claims.layer import Layer
from bnmc.errors import ArgumentError

#: The mean square of two rows up to which they are rounding errors.
NOTHING = 1e-10


def two_rows(total):
    """Return a sample of two rows of one entry whose squares have this sum in float64."""
    first = np.nextafter(math.sqrt(total), 0.0)
    if first * first >= total:
        first = np.nextafter(first, 0.0)
    second = math.sqrt(total - first * first)  # the difference is exact
    assert first * first + second * second == total
    return np.array([[[first], [second]]])


@pytest.mark.parametrize(
    ("total", "counts"),
    [(2 * NOTHING, False), (np.nextafter(2 * NOTHING, 1.0), True), (0.0, False), (1.0, True)],
)
def test_mean_squares_up_to_a_rounding_error_say_nothing(total, counts):
    """Of one row that is not 0, the moments are the largest that two rows can have."""
    rows = two_rows(total) if total else np.zeros((1, 2, 1))
    fourth, norms = claims._fourth_moments(rows), claims._norms(rows)
    expected = 3 * 2 / (2 + 2)
    assert fourth.observed[0, 0] == pytest.approx(2.0 if counts else expected, rel=1e-9)
    assert fourth.expected[0, 0] == expected
    assert norms.observed[0, 0] == pytest.approx(2.0 if counts else 0.0, abs=1e-9)


def one_step(y):
    """Return the claims on states (calls, 4, 3) as one step of a chain from given states."""
    chain = bnmc.Chain(4, 3, "relu")
    before = np.random.default_rng(0).standard_normal(y.shape)
    return claims.of_one_step(chain, Layer.of(chain, before, 0), y, 2.0**-52)[0]


def test_the_mean_of_one_step_is_that_of_each_sample_over_rows():
    """A shift of two samples in opposite directions cancels over the batch, not over rows."""
    y = np.random.default_rng(1).standard_normal((6, 4, 3))
    y -= y.mean(axis=1, keepdims=True)
    evidence = one_step(y + np.array([1.0, -1.0, 0.0]))["one step: mean 0"]
    np.testing.assert_allclose(evidence.observed, np.tile([1.0, -1.0, 0.0], (6, 1)), atol=1e-14)
    assert not evidence.expected.any()


def test_calls_without_a_product_are_expected_to_have_none():
    """The rows of every second call are zero where those of the call before it are not."""
    y = np.random.default_rng(2).standard_normal((6, 4, 3))
    y[::2, :2] = 0.0
    y[1::2, 2:] = 0.0
    evidence = one_step(y)["one step: calls independent"]
    assert not evidence.observed[:, 1].any()
    np.testing.assert_array_equal(evidence.expected[:, 1], np.zeros(3))


def test_samples_on_which_rounding_hides_the_law_are_left_out():
    """Without any other sample, there is no evidence."""
    chain = bnmc.Chain(4, 3, "relu")
    rng = np.random.default_rng(3)
    before = Layer.of(chain, rng.standard_normal((6, 4, 3)), 0)
    y, noise = rng.standard_normal((6, 4, 3)), np.zeros((6, 3, 3))
    noise[4] = np.eye(3)
    evidence, spread = claims.of_one_step(chain, before, y, 2.0**-52, noise)
    assert {len(each.observed) for each in evidence.values()} == {5, 2}
    assert len(spread) == 5
    noise[:] = np.eye(3)
    with pytest.raises(
        ArgumentError, match="^chain: .*beyond amplified rounding errors of 2.2e-16"
    ):
        claims.of_one_step(chain, before, y, 2.0**-52, noise)


@pytest.mark.parametrize("spot", [0.0, 2.0, 4.0, None])
def test_an_activation_is_odd_if_it_is_at_all_points_of_a_grid_to_four(spot):
    sigma = bnmc.Activation(lambda x: x + 1.0 if x == spot else x) if spot is not None else "tanh"
    chain = bnmc.Chain(4, 3, sigma, skip=0.5)
    assert claims._is_symmetric(chain) == (spot is None)


@pytest.mark.parametrize(("norm", "symmetric"), [("batch", True), ("layer", False), ("rms", True)])
def test_a_centred_norm_over_the_features_has_no_sign_symmetry_beside_a_skip(norm, symmetric):
    assert claims._is_symmetric(bnmc.Chain(4, 3, "tanh", norm=norm, skip=0.5)) == symmetric
