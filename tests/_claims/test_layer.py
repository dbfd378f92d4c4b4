"""One layer of samples: errors name the sample, wherever it is."""

import numpy as np
import pytest
from scipy import linalg
from testing.correct_layers import CorrectLayer

import bnmc
from bnmc._claims.layer import LARGEST, Layer, as_states, rounding_noise
from bnmc.errors import ArgumentError, ZeroVarianceError
from bnmc.invariant import check

RELU = bnmc.Chain(6, 3, "relu", norm="batch-uncentred")


@pytest.mark.parametrize("first", [0, 40])
def test_the_sample_that_cannot_be_normalized_is_named(first):
    states = np.random.default_rng(0).standard_normal((5, 6, 3))
    Layer.of(RELU, states, first)
    states[3:, 2] = 0.0  # a row without variance
    with pytest.raises(ZeroVarianceError) as caught:
        Layer.of(RELU, states, first)
    assert (caught.value.chain, caught.value.row) == (first + 3, 2)
    states[3:] = -1.0  # all activations are 0
    with pytest.raises(ZeroVarianceError) as caught:
        Layer.of(RELU, states, first)
    assert caught.value.chain == first + 3


def test_samples_are_numbered_through_a_report():
    samples = np.random.default_rng(1).standard_normal((400, 6, 3))
    samples[377, 4] = 0.0
    with pytest.raises(ZeroVarianceError) as caught:
        check(RELU, samples=samples, rng=0)
    assert (caught.value.chain, caught.value.row) == (377, 4)


@pytest.mark.parametrize("gain", [1.0, -1e8, 1e-8])
def test_states_have_the_size_of_the_gain_to_a_power_of_thirty(gain):
    """Their fourth powers over the gain are in the range of float64: 1e-120 to 1e120."""
    chain = bnmc.Chain(4, 3, "relu", gain=gain)
    state = np.random.default_rng(0).uniform(-1.0, 1.0, (2, 4, 3))
    state[1, 2, 1] = state[0, 0, 0] = -1.0  # the largest modulus
    for size, fits in (
        (LARGEST, True), (1.001 * LARGEST, False), (1.0 / LARGEST, True), (0.999 / LARGEST, False),
        (1.0, True), (0.0, False),
    ):  # fmt: skip
        scaled = state * [[[1.0]], [[size]]] * abs(gain)
        if fits:
            states = as_states("state", scaled, (2, 4, 3), chain)
            np.testing.assert_array_equal(states, scaled)
            continue
        with pytest.raises(ArgumentError, match="over the gain") as caught:
            as_states("state", scaled, (2, 4, 3), chain)
        assert caught.value.value == pytest.approx(size, rel=1e-12)


SINGLE = float(np.finfo(np.float32).eps)


@pytest.mark.parametrize(
    "chain",
    [
        bnmc.Chain(32, 8, "relu"),
        bnmc.Chain(32, 8, "linear", skip=1.0, gain=1e-2),
        bnmc.Chain(32, 8, "sigmoid", order="activation-norm", eps=1e-5),
        bnmc.Chain(24, 5, "tanh", norm="layer", order="activation-norm"),
        bnmc.Chain.resnet(32, 4, "gelu", norm="group(4)", gain=0.1),
    ],
    ids=repr,
)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_errors_of_single_precision_are_within_the_bound(chain, scale):
    """In every direction of samples; the bound, for sums in any order, is not 1e4 times larger.

    The errors are those of a layer in NumPy with the same weights in float32 and in float64.
    """
    h = scale * np.random.default_rng(1).standard_normal((chain.width, chain.batch))
    noise = rounding_noise(chain, Layer.of(chain, h[None], 0), SINGLE)[0]
    single, double = (
        np.stack([layer(h) for _ in range(16)]).astype(np.float64)
        for layer in (
            CorrectLayer(chain, dtype, np.random.default_rng(2)) for dtype in ("float32", "float64")
        )
    )
    errors = ((single - double) / chain.gain).reshape(-1, chain.batch)
    shares = linalg.eigh(errors.T @ errors / len(errors), noise, eigvals_only=True)
    assert 1e-4 < shares[-1] < 1.0


def test_a_norm_that_divides_by_rounding_errors_has_no_bound():
    """Pairs of features that differ by less than a unit of rounding in float32."""
    chain = bnmc.Chain(4, 3, "relu", norm="group(2)")
    h = np.random.default_rng(0).standard_normal((1, 4, 3))
    h[:, 1] = h[:, 0] * (1.0 + 1e-9)
    layer = Layer.of(chain, h, 0)
    assert np.trace(rounding_noise(chain, layer, 2.0**-52)[0]) < 1e-9
    np.testing.assert_array_equal(rounding_noise(chain, layer, SINGLE)[0], LARGEST * np.eye(3))
