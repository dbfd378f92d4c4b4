"""Starts of chains: rows without variance, the layout of arrays, and those beyond the memory."""

import numpy as np
import pytest

import bnmc
from bnmc import Chain, FirstLayer
from bnmc._support import machine
from bnmc.chain.start import prepare
from bnmc.errors import ArgumentError, ResultTooLargeError, ZeroVarianceError


@pytest.mark.parametrize("constant", range(3))
@pytest.mark.parametrize(("norm", "value"), [("batch", 2.0), ("batch-uncentred", 0.0)])
def test_one_input_of_equal_samples_is_enough_for_rows_without_variance(norm, value, constant):
    """Each input batch is normalized on its own: the others do not help the one."""
    chain = bnmc.Chain(20, 4, "relu", norm=norm)
    x = np.random.default_rng(0).normal(size=(3, 6, 4))
    prepare(chain.repeat(0), bnmc.FirstLayer(x), 1, 3)
    x[constant] = value * np.arange(6.0)[:, None]
    with pytest.raises(ZeroVarianceError):
        prepare(chain.repeat(0), bnmc.FirstLayer(x), 1, 3)
    x[constant, 5, 1] += 1e-3  # one entry differs
    prepare(chain.repeat(0), bnmc.FirstLayer(x), 1, 3)
    # Rows keep their variance where the norm adds to it, or does not divide by it.
    x[constant] = value
    prepare(bnmc.Chain(20, 4, "relu", norm=norm, eps=0.1).repeat(0), bnmc.FirstLayer(x), 1, 3)
    prepare(bnmc.Chain(20, 4, "relu", norm="none").repeat(0), bnmc.FirstLayer(x), 1, 3)


def test_a_sample_has_no_variance_over_the_features_only_if_all_of_it_is_zero():
    chain = bnmc.Chain(20, 3, "relu", norm="layer")
    x = np.arange(1.0, 13.0).reshape(4, 3)
    x[0] = 0.0
    result = prepare(chain.repeat(0), bnmc.FirstLayer(x), 1, None)
    correlation = result.matrix / result.matrix[0, 0]
    np.testing.assert_allclose(correlation, x.T @ x / (x.T @ x)[0, 0], rtol=1e-15)
    x[:, 1] = 0.0
    with pytest.raises(ZeroVarianceError) as caught:
        prepare(chain.repeat(0), bnmc.FirstLayer(x), 1, None)
    assert caught.value.sample == 1


@pytest.mark.parametrize(
    ("inputs", "shape", "helps"),
    [
        (None, (7, 4), True),
        (None, (7, 5), False),
        (2, (2, 7, 4), True),
        (2, (2, 4, 7), False),
        (2, (3, 2, 7, 4), False),
    ],
)
def test_a_first_layer_is_advised_where_it_takes_the_array(inputs, shape, helps):
    """It takes any number of features, which are the axis before the samples."""
    chain = bnmc.Chain(20, 4, "relu")
    with pytest.raises(ArgumentError) as caught:
        prepare(chain.repeat(0), np.ones(shape), 1, inputs)
    assert ("wrap it in bnmc.FirstLayer" in str(caught.value)) == helps


@pytest.mark.parametrize("initial", [np.ones((4, 20)), bnmc.FirstLayer(np.ones((4, 7)))])
def test_a_transposed_start_is_recognized(initial):
    with pytest.raises(ArgumentError, match=r"pass x\.T"):
        prepare(bnmc.Chain(20, 4, "relu").repeat(0), initial, 1, None)


@pytest.mark.parametrize("batch", [3, 8, 17])
def test_the_layout_of_an_array_changes_no_bit(batch):
    """NumPy sums eight entries at a time along the last axis in memory, and in order elsewhere."""
    chain = bnmc.Chain(20, batch, "relu")
    x = np.random.default_rng(1).normal(size=(20, batch))
    expected = prepare(chain.repeat(0), x, 1, None)
    strided = np.zeros((20, 2 * batch))[:, ::2]
    strided[:] = x
    for other in (np.asfortranarray(x), strided):
        result = prepare(chain.repeat(0), other, 1, None)
        np.testing.assert_array_equal(result.x, expected.x)
        np.testing.assert_array_equal(result.a, expected.a)


ROW = np.arange(3.0)


@pytest.fixture
def _memory_has_100_megabytes(monkeypatch):
    monkeypatch.setattr(machine, "available_memory", lambda: 100_000_000)


@pytest.mark.usefixtures("_memory_has_100_megabytes")
def test_features_beyond_the_memory():
    """A view that repeats one row takes no memory, and its copy does."""
    with pytest.raises(ResultTooLargeError, match="^x: the result needs 28.8 GiB"):
        FirstLayer(np.broadcast_to(ROW, (2**30, 3)))
    assert FirstLayer(np.broadcast_to(ROW, (2**10, 3))).x.shape == (2**10, 3)


@pytest.mark.usefixtures("_memory_has_100_megabytes")
@pytest.mark.parametrize(
    ("batch", "initial", "argument"),
    [
        (3, np.broadcast_to(ROW, (2**30, 3)), "initial"),
        (30_000, "gaussian", "batch"),
        (30_000, FirstLayer(np.ones((1, 30_000))), "batch"),
    ],
)
def test_starts_beyond_the_memory(batch, initial, argument):
    with pytest.raises(ResultTooLargeError) as caught:
        prepare(Chain(2**30, batch).repeat(0), initial, 1, None)
    assert caught.value.argument == argument
