"""What is read off the calls on one state."""

import numpy as np
import pytest

import bnmc
from bnmc._claims.layer import Layer
from bnmc.testing.calls_on_state import LEVERAGE, CallsOnState


@pytest.mark.parametrize("small", [0.0, 0.015])
def test_directions_of_readings_are_orthonormal(small):
    """Two rows with leverages of .99 to 1: their readings keep the norms of rows of Z."""
    h = small * np.random.default_rng(1).standard_normal((20, 2))
    h[3], h[11] = (1.0, 0.2), (-0.1, 1.0)
    layer = Layer.of(bnmc.Chain(20, 2, "linear", norm="none"), h[None], 0)
    state = CallsOnState("two rows apart", layer, 2.0**-52)
    leverages = np.diagonal(h @ np.linalg.inv(h.T @ h) @ h.T)
    assert np.sort(leverages)[-2] >= LEVERAGE
    assert (leverages.max() < 0.9999) == (small > 0.0)
    state.add(np.random.default_rng(2).standard_normal((4, 20, 20)) @ h)
    squares = np.square(state.readings).reshape(-1, 2).sum(axis=1)
    np.testing.assert_allclose(squares, state.norms, rtol=1e-12)


def test_rows_of_less_leverage_are_not_read():
    h = 0.1 * np.random.default_rng(1).standard_normal((20, 2))
    h[3], h[11] = (1.0, 0.2), (-0.1, 1.0)
    layer = Layer.of(bnmc.Chain(20, 2, "linear", norm="none"), h[None], 0)
    state = CallsOnState("two rows nearly apart", layer, 2.0**-52)
    state.add(np.random.default_rng(2).standard_normal((4, 20, 20)) @ h)
    assert state.readings.size == 0


@pytest.mark.parametrize("gap", [1e-1, 1e-3, 1e-5, 1e-6])
def test_lost_digits_of_a_step_in_single_precision_are_rounding_errors(gap):
    """Rows (1, 1 + gap, 1): their differences have few digits in float32, but three are equal."""
    chain = bnmc.Chain(10, 3, "linear")
    rng = np.random.default_rng(1)
    h = rng.standard_normal((10, 3))
    h[:, 2] = h[:, 0]
    h[4] = (1.0 / 3.0) * np.array([1.0, 1.0 + gap, 1.0])
    layer = Layer.of(chain, h[None], 0)
    state = CallsOnState("lost digits", layer, float(np.finfo(np.float32).eps))
    single = h.astype(np.float32)
    x = single - single.mean(axis=1, keepdims=True, dtype=np.float32)
    x /= np.sqrt(np.square(x).mean(axis=1, keepdims=True, dtype=np.float32))
    weights = rng.standard_normal((50, 10, 10)).astype(np.float32) / np.float32(np.sqrt(10))
    state.add((weights @ x).astype(np.float64))
    assert state.rank == 1
    assert 0.0 < state.outside <= 1.0
