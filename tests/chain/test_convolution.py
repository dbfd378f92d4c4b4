"""The value that describes a convolution, and chains that have one."""

import pickle

import numpy as np
import pytest
from numpy_network import convolved, covariance

import bnmc
from bnmc.chain.chain import MOST_WIDTH
from bnmc.chain.layers import CovarianceMap
from bnmc.errors import ArgumentError, ArgumentTypeError

# Heights, widths and kernels of even and odd sizes, and a kernel as large as the image.
SIZES = [((3, 4), (3, 3)), ((3, 4), (1, 1)), ((1, 5), (1, 2)), ((4, 3), (2, 3)), ((2, 2), (2, 2))]


@pytest.mark.parametrize(("shape", "kernel"), SIZES)
def test_the_covariance_is_that_of_loops(shape, kernel):
    columns = 2 * shape[0] * shape[1]
    rows = np.random.default_rng(1).standard_normal((3, columns + 2, columns))
    grams = np.swapaxes(rows, 1, 2) @ rows
    result = bnmc.Convolution(shape, kernel).covariance(grams)
    expected = [covariance(each, shape, kernel) for each in grams]
    np.testing.assert_allclose(result, expected, rtol=1e-13, atol=1e-13)
    np.testing.assert_array_equal(result, np.swapaxes(result, 1, 2))
    with_bias = CovarianceMap(bnmc.Convolution(shape, kernel), 0.5)
    np.testing.assert_allclose(with_bias(grams), result + 0.5, rtol=1e-15)


@pytest.mark.parametrize(("shape", "kernel"), SIZES)
def test_weights_multiply_what_unfold_returns(shape, kernel):
    convolution, rng = bnmc.Convolution(shape, kernel), np.random.default_rng(3)
    columns = 2 * convolution.positions
    a = rng.standard_normal((5, 3, columns))
    weights = rng.standard_normal((4, 3, *kernel))
    seen = convolution.unfold(a)
    result = np.moveaxis(weights, 1, -1).reshape(4, -1) @ seen
    expected = convolved(weights, a.reshape(5, 3, 2, *shape)).reshape(5, 4, columns)
    np.testing.assert_allclose(result, expected, rtol=1e-12, atol=1e-13)
    # fold is the transpose: <fold(y), a> = <y, unfold(a)>.
    y = rng.standard_normal(seen.shape)
    products = (convolution.fold(y) * a).sum(axis=(1, 2))
    np.testing.assert_allclose(products, (y * seen).sum(axis=(1, 2)), rtol=1e-12)


def test_one_tap_leaves_a_gram_matrix_as_it_is():
    gram = np.cov(np.random.default_rng(2).standard_normal((6, 9)))
    np.testing.assert_array_equal(bnmc.Convolution((2, 3), (1, 1)).covariance(gram), gram)


def test_a_kernel_of_even_size_sees_one_pixel_more_behind_than_before():
    convolution = bnmc.Convolution((1, 4), (1, 2))
    np.testing.assert_array_equal(convolution.neighbours(4), [[0, 1, 2, 3], [1, 2, 3, 0]])
    three = bnmc.Convolution((3, 1), (3, 1)).neighbours(6)
    np.testing.assert_array_equal(three, [[2, 0, 1, 5, 3, 4], range(6), [1, 2, 0, 4, 5, 3]])


def test_a_chain_counts_channels_columns_and_weights():
    chain = bnmc.Chain.conv(5, 2, "tanh", shape=(3, 4), kernel=(3, 2), norm="rms", gain=2.0)
    assert (chain.width, chain.batch, chain.fan_in) == (5, 24, 30)
    assert chain.norm == "rms"
    assert chain.gain == 2.0
    assert bnmc.Chain(5, 24).fan_in == 5
    for other in (chain, pickle.loads(pickle.dumps(chain))):
        assert other == eval(repr(chain), {**vars(bnmc), "Chain": bnmc.Chain})
    different = bnmc.Chain.conv(5, 2, "tanh", shape=(3, 4), kernel=(2, 3), norm="rms", gain=2.0)
    assert chain != different
    assert chain != bnmc.Chain(5, 24, "tanh", norm="rms", gain=2.0)
    assert not bnmc.Chain.conv(4, 1, "linear", norm="none").is_vanilla_linear


def test_the_constructor_takes_a_convolution():
    convolution = bnmc.Convolution((2, 2), (1, 2))
    chain = bnmc.Chain(4, 8, "relu", weights="uniform", convolution=convolution)
    assert chain.convolution == convolution
    with pytest.raises(ArgumentError, match="batch: got 6, allowed: a multiple of 4"):
        bnmc.Chain(4, 6, "relu", convolution=convolution)
    with pytest.raises(ArgumentError, match="weights: got 'haar'"):
        bnmc.Chain(4, 8, "relu", weights="haar", convolution=convolution)
    with pytest.raises(ArgumentTypeError, match="convolution: "):
        bnmc.Chain(4, 8, "relu", convolution=(2, 2))


def test_pytorch_counts_the_taps_in_the_fan():
    """nn.Conv2d as it comes: weights and biases uniform on ±1/√(channels · taps)."""
    chain = bnmc.Chain.conv(8, 2, "relu", shape=(4, 4), kernel=(3, 3))
    torch = bnmc.Chain(8, 32, "relu", weights="pytorch", convolution=chain.convolution)
    assert torch.bias_variance == pytest.approx(1.0 / (3.0 * 8 * 9))
    assert torch.gain**2 == pytest.approx(1.0 / 3.0)
    assert "bias" not in repr(torch)


def test_the_fan_has_at_most_as_many_weights_as_a_row():
    most = MOST_WIDTH // 9
    assert bnmc.Chain.conv(most, 1, "relu").width == most
    with pytest.raises(ArgumentError, match=rf"^width: got {most + 1}, .* {most}\b(?!\.)"):
        bnmc.Chain.conv(most + 1, 1, "relu")
