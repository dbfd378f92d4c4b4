"""The starts that a chain is coupled with: distinct laws, and orders of a given batch."""

import numpy as np
import pytest

import bnmc
from bnmc.chain.start import Covariance, Representation, prepare
from bnmc.mixing.starts import SAME_START, other_starts

CHAIN = bnmc.Chain(40, 5, "relu")
LAWS = {
    "samples near a line",
    "one sample that stands out",
    "a block of samples that nearly coincide",
}
ORDERS = {"the batch in reverse order", "the batch shifted by one sample"}


def test_a_law_that_all_orders_share_is_not_reordered():
    start = prepare(CHAIN, "gaussian", 1, None)
    found = other_starts(CHAIN, start)
    assert set(found) == {SAME_START, *LAWS}
    assert found[SAME_START] is start


def test_a_batch_comes_in_other_orders():
    x = np.random.default_rng(0).standard_normal((40, 5))
    start = prepare(CHAIN, x, 1, None)
    found = other_starts(CHAIN, start)
    assert set(found) == {SAME_START, "independent samples", *LAWS, *ORDERS}
    for name, order in zip(sorted(ORDERS), ([4, 3, 2, 1, 0], [4, 0, 1, 2, 3]), strict=True):
        assert isinstance(found[name], Representation)
        np.testing.assert_array_equal(found[name].x, start.x[..., order])
        np.testing.assert_array_equal(found[name].a, start.a[..., order])


def test_a_first_layer_comes_in_other_orders():
    x = np.random.default_rng(1).standard_normal((7, 5))
    start = prepare(CHAIN, bnmc.FirstLayer(x), 1, None)
    found = other_starts(CHAIN, start)
    reverse = found["the batch in reverse order"]
    expected = prepare(CHAIN, bnmc.FirstLayer(x[:, ::-1]), 1, None)
    np.testing.assert_allclose(reverse.matrix, expected.matrix, rtol=1e-12)


def test_two_samples_have_one_other_order_and_no_blocks():
    chain = bnmc.Chain(40, 2, "relu")
    start = prepare(chain, np.random.default_rng(2).standard_normal((40, 2)), 1, None)
    expected = {SAME_START, "independent samples", "samples near a line", min(sorted(ORDERS))}
    assert set(other_starts(chain, start)) == expected


@pytest.mark.parametrize("batch", [2, 3, 10])
def test_covariances_are_positive_definite_and_apart(batch):
    chain = bnmc.Chain(40, batch, "relu")
    found = other_starts(chain, Covariance(np.eye(batch)))
    matrices = [start.matrix for start in found.values()]
    assert min(np.linalg.eigvalsh(matrix).min() for matrix in matrices) >= 0.0099
    centre = np.eye(batch) - 1.0 / batch
    shapes = [centre @ matrix @ centre for matrix in matrices]
    shapes = [shape / np.trace(shape) for shape in shapes]
    if batch > 2:  # of two centred samples, the normalization sees only the scale
        for one, shape in enumerate(shapes):
            for other in shapes[:one]:
                assert np.abs(shape - other).max() > 0.05


@pytest.mark.parametrize("batch", [2, 3, 10])
def test_samples_near_a_line_stand_at_even_places(batch):
    """They are p_i v and independent parts of variance 0.01, with p from 1 to 2 in equal steps."""
    start = prepare(bnmc.Chain(40, batch, "relu"), "gaussian", 1, None)
    found = other_starts(bnmc.Chain(40, batch, "relu"), start)["samples near a line"].matrix
    on_line = found - 0.01 * np.eye(batch)
    assert np.linalg.matrix_rank(on_line, tol=1e-12) == 1
    places = np.sqrt(np.diagonal(on_line))
    assert places == pytest.approx([1.0 + k / (batch - 1) for k in range(batch)], rel=1e-12)
