"""`descent` against matrix exponentials, Runge and Kutta, and a wide network that is trained."""

import math

import numpy as np
import pytest
from scipy import linalg

from bnmc.errors import ArgumentError, ArgumentTypeError, PartialEstimateError, UnknownNameError
from bnmc.infinite_width import descent, ntk, training

TIMES = np.array([0.0, 0.3, 2.0, 2.0, 50.0])


def kernels(n=5, tests=3, rank=8, seed=0):
    factor = np.random.default_rng(seed).standard_normal((n + tests, rank))
    whole = factor @ factor.T
    return whole[:n, :n], whole[n:, :n]


def runge_kutta(f, start, time, steps=4000):
    """Integrate a system from 0 to `time` by the classical method."""
    h, state = time / steps, start
    for _ in range(steps):
        a = f(state)
        b = f(state + h / 2 * a)
        c = f(state + h / 2 * b)
        state = state + h / 6 * (a + 2 * b + 2 * c + f(state + h * c))
    return state


@pytest.mark.parametrize("outputs", [(), (2,)])
@pytest.mark.parametrize("rank", [8, 3])
def test_squared_loss_by_the_matrix_exponential(outputs, rank):
    G, across = kernels(rank=rank)
    rng = np.random.default_rng(1)
    y, start = rng.standard_normal((2, 5, *outputs))
    test_start = rng.standard_normal((3, *outputs))
    run = descent(
        G, y, TIMES, learning_rate=0.7, initial=start, test_kernel=across, test_initial=test_start
    )
    for k, t in enumerate(TIMES):
        decay = linalg.expm(-0.7 * t / 5 * G)
        expected = y + np.tensordot(decay, start - y, 1)
        assert run.outputs[k] == pytest.approx(expected, rel=1e-10, abs=1e-11)
        assert run.loss[k] == pytest.approx(((expected - y) ** 2).sum() / 10, abs=1e-11)
        # ∫₀ᵗ exp(−s η G / n) ds η / n, from one exponential of a block matrix
        block = np.block([[-0.7 / 5 * G, np.eye(5)], [np.zeros((5, 10))]])
        integral = 0.7 / 5 * linalg.expm(t * block)[:5, 5:]
        expected = test_start + np.tensordot(across @ integral, y - start, 1)
        assert run.test[k] == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("outputs", [(), (3,)])
def test_cross_entropy_by_runge_and_kutta(outputs):
    G, across = kernels()
    rng = np.random.default_rng(2)
    y = rng.integers(0, 2, 5) * 1.0 if not outputs else np.eye(3)[rng.integers(0, 3, 5)]
    start = rng.standard_normal(y.shape)
    options = {"initial": start, "test_kernel": across, "loss": "cross-entropy"}
    run = descent(G, y, [0.0, 1.5, 3.0], learning_rate=0.5, **options)

    def probabilities(f):
        if not outputs:
            return 1 / (1 + np.exp(-f))
        return np.exp(f) / np.exp(f).sum(axis=1, keepdims=True)

    def flow(whole):
        force = 0.5 / 5 * (y - probabilities(whole[:5]))
        return np.concatenate([G @ force, across @ force])

    whole = runge_kutta(flow, np.concatenate([start, np.zeros((3, *outputs))]), 3.0)
    assert run.outputs[-1] == pytest.approx(whole[:5], abs=1e-8)
    assert run.test[-1] == pytest.approx(whole[5:], abs=1e-8)
    assert run.outputs[0] == pytest.approx(start)
    p = probabilities(whole[:5])
    chosen = np.where(y == 1, p, 1 - p) if not outputs else (p * y).sum(axis=1)
    assert run.loss[-1] == pytest.approx(-np.log(chosen).mean(), abs=1e-8)


def test_no_time_no_change():
    G, _ = kernels()
    run = descent(G, np.ones(5), [0.0, 0.0], loss="cross-entropy")
    assert (run.outputs == 0).all()
    assert run.loss == pytest.approx(math.log(2))
    assert run.test is None


def test_a_kernel_of_rank_zero_moves_test_outputs_linearly():
    run = descent(np.zeros((2, 2)), [1.0, 2.0], [3.0], test_kernel=[[1.0, 1.0]])
    assert run.outputs == pytest.approx(np.zeros((1, 2)))
    assert run.test == pytest.approx(np.array([[4.5]]))


def test_a_failing_solver_raises(monkeypatch):
    class Failed:
        success, message = False, "no convergence"

    monkeypatch.setattr(training, "solve_ivp", lambda *_, **__: Failed)
    with pytest.raises(PartialEstimateError, match="no convergence"):
        descent(np.eye(2), np.ones(2), [1.0], loss="cross-entropy")


def trained(rng, x, y, width, rate, steps):
    """Train relu networks with one hidden layer by gradient descent; return first and last f."""
    n = x.shape[1]
    W, a = rng.standard_normal((width, len(x))), rng.standard_normal(width)
    scale, first = math.sqrt(2 / len(x)), None
    for _ in range(steps):
        h = scale * W @ x
        f = math.sqrt(2 / width) * a @ np.maximum(h, 0)
        first = f if first is None else first
        force = rate / n * (y - f) * math.sqrt(2 / width)
        back = a[:, None] * (h > 0) * force
        a = a + np.maximum(h, 0) @ force
        W = W + scale * back @ x.T
    return first, math.sqrt(2 / width) * a @ np.maximum(scale * W @ x, 0)


def test_wide_networks_trained_by_gradient_descent():
    # The difference from the limit is O(1/√width): the mean of its logarithm has slope −1/2 in the
    # logarithm of the width.  Its standard error is measured from 30 networks per width; 0.06 is
    # left for the next order, O(1/√256).  |t| > 6.5 (58 degrees of freedom) has probability 2e-8.
    rng = np.random.default_rng(20261122)
    x, y = rng.standard_normal((4, 5)), rng.standard_normal(5)
    theta = ntk(x, 1, activation="relu", weight_variance=2.0)
    rate, steps = 0.02, 100
    logs = []
    for width in (256, 2048):
        found = []
        for _ in range(30):
            first, last = trained(rng, x, y, width, rate, steps)
            # Discrete steps: (1 − ηG/n)^k = exp(−t G/n · …) in the eigenbasis would differ by
            # O(η), so the limit is made of the same discrete steps.
            limit = y + np.linalg.matrix_power(np.eye(5) - rate / 5 * theta, steps) @ (first - y)
            flow = descent(theta, y, [steps], learning_rate=rate, initial=first).outputs[0]
            assert np.abs(flow - limit).max() < 0.02 * np.abs(first - y).max()
            found.append(math.log(np.linalg.norm(last - limit)))
        logs.append(np.array(found))
    span = math.log(8)
    slope = (logs[1].mean() - logs[0].mean()) / span
    error = math.sqrt((logs[0].var(ddof=1) + logs[1].var(ddof=1)) / 30) / span
    assert abs(slope + 0.5) < 6.5 * error + 0.06
    assert error < 0.08


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"times": [1.0, 0.5]}, ArgumentError),
        ({"times": [-1.0]}, ArgumentError),
        ({"times": 1.0}, ArgumentError),
        ({"learning_rate": 0.0}, ArgumentError),
        ({"loss": "hinge"}, UnknownNameError),
        ({"y": [1.0, 2.0], "loss": "cross-entropy"}, ArgumentError),
        ({"y": [[1.0, 1.0], [0.0, 1.0]], "loss": "cross-entropy"}, ArgumentError),
        ({"initial": np.ones(3)}, ArgumentError),
        ({"initial": "0"}, ArgumentTypeError),
        ({"test_initial": np.ones(3)}, ArgumentError),
        ({"test_kernel": np.ones((3, 3))}, ArgumentError),
        ({"test_kernel": np.ones((3, 2)), "test_initial": np.ones(2)}, ArgumentError),
    ],
)
def test_bad_input_raises(options, kind):
    with pytest.raises(kind):
        descent(**{"kernel": np.eye(2), "y": [0.0, 1.0], "times": [1.0], **options})
