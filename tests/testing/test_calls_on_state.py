"""What is read off the calls on one state."""

import itertools
import math

import numpy as np
import pytest
from oracle import FALSE_ALARM
from scipy import stats

import bnmc
from bnmc._claims.layer import Layer, rounding_noise
from bnmc.testing.calls_on_state import LEVERAGE, CallPairs, CallsOnState, RowPairs, RowSequence


@pytest.mark.parametrize("small", [0.0, 0.015, 0.1])
def test_directions_of_readings_are_orthonormal(small):
    """Two rows with leverages of .99 to 1: their readings keep the norms of rows of Z.

    Rows of less leverage are not read.
    """
    h = small * np.random.default_rng(1).standard_normal((20, 2))
    h[3], h[11] = (1.0, 0.2), (-0.1, 1.0)
    layer = Layer.of(bnmc.Chain(20, 2, "linear", norm="none"), h[None], 0)
    state = CallsOnState("apart", layer, np.zeros_like(layer.gram[0]), np.random.default_rng(0))
    leverages = np.diagonal(h @ np.linalg.inv(h.T @ h) @ h.T)
    assert (np.sort(leverages)[-2] >= LEVERAGE) == (small < 0.1)
    assert (leverages.max() < 0.9999) == (small > 0.0)
    state.add(np.random.default_rng(2).standard_normal((4, 20, 20)) @ h)
    squares = np.square(state.readings).reshape(-1, 2).sum(axis=1)
    np.testing.assert_allclose(squares, state.norms if small < 0.1 else [], rtol=1e-12)


def state_of_close_entries(gap):
    """A state of a step in float32 with a row (1, 1 + gap, 1), and the step's rows of 50 calls.

    Three samples are two in all rows.
    """
    chain = bnmc.Chain(10, 3, "linear")
    rng = np.random.default_rng(1)
    h = rng.standard_normal((10, 3))
    h[:, 2] = h[:, 0]
    h[4] = (1.0 / 3.0) * np.array([1.0, 1.0 + gap, 1.0])
    layer = Layer.of(chain, h[None], 0)
    noise = rounding_noise(chain, layer, float(np.finfo(np.float32).eps))[0]
    state = CallsOnState("lost digits", layer, noise, np.random.default_rng(0))
    single = h.astype(np.float32)
    x = single - single.mean(axis=1, keepdims=True, dtype=np.float32)
    x /= np.sqrt(np.square(x).mean(axis=1, keepdims=True, dtype=np.float32))
    weights = rng.standard_normal((50, 10, 10)).astype(np.float32) / np.float32(np.sqrt(10))
    return state, (weights @ x).astype(np.float64)


@pytest.mark.parametrize("gap", [1e-1, 1e-3, 1e-5])
def test_lost_digits_of_a_step_in_single_precision_are_rounding_errors(gap):
    state, rows = state_of_close_entries(gap)
    state.add(rows)
    assert state.rank == 1
    assert 0.0 < state.outside <= 1.0


def test_a_state_whose_digits_are_lost_shows_no_law():
    assert state_of_close_entries(1e-6)[0].rank == 0


def normal_rows(calls, width, rank, seed=0):
    z = np.random.default_rng(seed).standard_normal((calls, width, rank))
    return z, np.square(z).sum(axis=2)


def added(z, norms, width, rank, blocks):
    sequence = RowSequence(width, rank, np.random.default_rng(1))
    for first, last in itertools.pairwise(blocks):
        sequence.add(z[first:last], norms[first:last])
    return sequence


def assert_products(products, pairs):
    """Assert that the sums are those over pairs of vectors, by the formulas."""
    u = [b @ a / math.sqrt(a @ a) for a, b in pairs]
    ratio = sum(a @ b for a, b in pairs) / sum(a @ a for a, _ in pairs)
    sums = products.total, products.square, products.correlation, products.length
    assert products.count == len(pairs)
    length = sum(math.sqrt(a @ a) for a, _ in pairs)
    assert sums == pytest.approx((sum(u), np.square(u).sum(), ratio, length), rel=1e-10)


@pytest.mark.parametrize("blocks", [(0, 8), (0, 2, 4, 8)])
@pytest.mark.parametrize("width", [1, 2, 5, 6])
def test_products_of_rows_are_those_of_the_formula(width, blocks):
    z, norms = normal_rows(8, width, 3)
    sequence = added(z, norms, width, 3, blocks)
    rows = z.reshape(-1, 3)
    lags = {1, 2, width // 2, (width + 1) // 2, width}
    assert set(sequence.lags) == {lag for lag in lags if 1 <= lag <= width}
    for lag, products in sequence.lags.items():
        assert_products(products, [(rows[i], rows[i + lag]) for i in range(len(rows) - lag)])
    assert_products(sequence.calls, [(z[t].ravel(), z[t + 1].ravel()) for t in range(7)])


def test_products_in_random_orders_are_those_of_the_formula():
    z, norms = normal_rows(6, 5, 3)
    generator, pairs = np.random.default_rng(1), []
    for first, last in ((0, 2), (2, 6)):
        order = generator.permutation(5)
        pairs += [pair for call in z[first:last] for pair in itertools.pairwise(call[order])]
    assert len(pairs) == 24
    assert_products(added(z, norms, 5, 3, (0, 2, 6)).orders, pairs)


def test_a_random_order_pairs_all_rows_of_a_call_once():
    """Neighbours are orthogonal in any order if the rows are, and equal if the rows are."""
    z = np.broadcast_to(np.eye(6), (4, 6, 6)).copy()
    sequence = added(z, np.ones((4, 6)), 6, 6, (0, 2, 4))
    assert (sequence.orders.count, sequence.orders.square) == (4 * 5, 0.0)
    z[:, :, :] = np.eye(6)[0]
    sequence = added(z, np.ones((4, 6)), 6, 6, (0, 2, 4))
    assert (sequence.orders.total, sequence.orders.square) == (4 * 5, 4 * 5)


def test_random_orders_are_drawn_anew():
    """Rows equal in pairs that are far apart become neighbours in some blocks, not in all."""
    z = np.concatenate([np.eye(20), np.eye(20)])[None].repeat(2, axis=0)
    sequence, squares = RowSequence(40, 20, np.random.default_rng(1)), []
    for _ in range(30):
        before = sequence.orders.square
        sequence.add(z, np.ones((2, 40)))
        squares.append(sequence.orders.square - before)
    # A row has its twin beside it with probability 2/40: one pair of 20 in a call, on average.
    # Numbers of pairs in 30 orders are nearly a Poisson variable; the two calls may share an order.
    assert len(set(squares)) > 2
    low, high = stats.poisson(30).ppf([5e-7, 1 - 5e-7])
    assert low <= sum(squares) / 2 <= high


def test_products_of_independent_rows_are_independent_normals():
    """Sums of u of 2000 short sequences, normal and uncorrelated for all lags together."""
    sums = []
    for seed in range(2000):
        z, norms = normal_rows(2, 4, 2, seed)
        sequence = added(z, norms, 4, 2, (0, 2))
        parts = [*sequence.lags.values(), sequence.orders, sequence.calls]
        sums.append([(p.total / math.sqrt(p.count), stats.chi2.cdf(p.square, p.count))
                     for p in parts])  # fmt: skip
    values = np.array(sums)
    for total, square in values.transpose(1, 2, 0):
        # Massart's inequality: 2 exp(−2 · 2000 t²) = FALSE_ALARM/10.
        limit = math.sqrt(math.log(20 / FALSE_ALARM) / 4000)
        assert stats.kstest(total, "norm").statistic < limit
        assert stats.kstest(square, "uniform").statistic < limit


def test_pairs_of_rows():
    z, _ = normal_rows(5, 4, 3)
    pairs = RowPairs(4, np.random.default_rng(0))
    pairs.add(z[:2])
    pairs.add(z[2:])
    expected = sum(call @ call.T for call in z)
    np.testing.assert_allclose(pairs.gram, expected, rtol=1e-12, atol=1e-12)
    assert pairs.columns == 15


def test_the_largest_correlation_of_calls():
    z, _ = normal_rows(300, 5, 2)
    z[290] = -2.0 * z[100]
    pairs = CallPairs(10, np.random.default_rng(0))
    pairs.add(z)
    # Pairs within the first 256 calls, and within the last 44.
    assert pairs.pairs == 256 * 255 // 2 + 44 * 43 // 2
    flat = z.reshape(300, 10)
    unit = flat / np.linalg.norm(flat, axis=1, keepdims=True)
    among = [
        (unit[s] @ unit[t]) ** 2
        for first, last in ((0, 256), (256, 300))
        for t in range(first, last)
        for s in range(first, t)
    ]
    assert pairs.largest == pytest.approx(max(among), rel=1e-12)
    pairs.add(z[[100, 290]])
    assert pairs.largest == pytest.approx(1.0, rel=1e-12)


def test_rows_and_entries_that_are_compared():
    generator = np.random.default_rng(0)
    assert RowPairs(7, generator).rows.tolist() == list(range(7))
    many = RowPairs(1000, generator).rows
    assert len(set(many.tolist())) == 256
    assert (np.diff(many) > 0).all()
    assert CallPairs(1000, generator).places.size == 64
    assert CallPairs(3, generator).places.tolist() == [0, 1, 2]
