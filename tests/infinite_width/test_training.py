"""`descent` against matrix exponentials, Runge and Kutta, and a wide network that is trained."""

import contextlib
import itertools
import math
import signal

import numpy as np
import pytest
from scipy import linalg
from slow_cases import slow

from bnmc.errors import ArgumentError, PartialEstimateError
from bnmc.infinite_width import alignment, complexity, descent, ntk, posterior, training

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


@pytest.mark.parametrize(
    ("kernel", "outputs"),
    [*itertools.product([1e-300, 1.0, 1e12], [1, 2]), (1e308, 1), slow(1e308, 2)],
)
def test_cross_entropy_at_any_scale_of_the_kernel(kernel, outputs):
    """Logits x of equal samples have dx/ds = outputs/(1 + e^x), so x + e^x − 1 = outputs · s."""
    y = np.ones(2) if outputs == 1 else np.array([[0.0, 1.0]] * 2)
    with at_most(seconds=60.0):
        run = descent(kernel * np.eye(2), y, [0.0, 1.0], loss="cross-entropy",
                      test_kernel=[[0.5 * kernel, 0.0]])  # fmt: skip
    logits = run.outputs[1] if outputs == 1 else run.outputs[1] @ [-1.0, 1.0]
    np.testing.assert_allclose(logits + np.expm1(logits), kernel / 2 * outputs, rtol=1e-6)
    np.testing.assert_allclose(run.test[1], run.outputs[1, :1] / 2)


@contextlib.contextmanager
def at_most(seconds):
    """Raise if the body takes more seconds of the processor."""

    def stop(*_):
        raise TimeoutError(f"more than {seconds} s")

    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)


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

    with monkeypatch.context() as patch:
        patch.setattr(training, "_MOST_STEPS", 20)
        with pytest.raises(PartialEstimateError, match="more than 20 steps"):
            descent(np.eye(2), np.ones(2), [1.0], loss="cross-entropy")
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
        distances = []
        for _ in range(30):
            first, last = trained(rng, x, y, width, rate, steps)
            # Discrete steps: (1 − ηG/n)^k = exp(−t G/n · …) in the eigenbasis would differ by
            # O(η), so the limit is made of the same discrete steps.
            limit = y + np.linalg.matrix_power(np.eye(5) - rate / 5 * theta, steps) @ (first - y)
            flow = descent(theta, y, [steps], learning_rate=rate, initial=first).outputs[0]
            assert np.abs(flow - limit).max() < 0.02 * np.abs(first - y).max()
            distances.append(math.log(np.linalg.norm(last - limit)))
        logs.append(np.array(distances))
    span = math.log(8)
    slope = (logs[1].mean() - logs[0].mean()) / span
    error = math.sqrt((logs[0].var(ddof=1) + logs[1].var(ddof=1)) / 30) / span
    assert abs(slope + 0.5) < 6.5 * error + 0.06
    assert error < 0.08


N, M = 4, 3
TIMES = [0.0, 0.4, 5.0]


def matrices(seed):
    factor = np.random.default_rng(seed).standard_normal((N + M, 9))
    return factor @ factor.T


def training_map(tangent, time):
    """Return the matrix that maps initial outputs to trained ones, and the effect of labels.

    Both are columns of `descent` for unit vectors.
    """
    options = {"learning_rate": 0.3, "test_kernel": tangent[N:, :N]}

    def trained(y, start):
        start = {"initial": start[:N], "test_initial": start[N:]}
        run = descent(tangent[:N, :N], y, [time], **start, **options)
        return np.concatenate([run.outputs[0], run.test[0]])

    joint = [trained(np.zeros(N), unit) for unit in np.eye(N + M)]
    effect = [trained(unit, np.zeros(N + M)) for unit in np.eye(N)]
    return np.transpose(joint), np.transpose(effect)


@pytest.mark.parametrize("outputs", [(), (2,)])
def test_mean_and_covariance_by_linearity(outputs):
    tangent, prior = matrices(0), matrices(1)
    y = np.random.default_rng(2).standard_normal((N, *outputs))
    train = posterior(tangent[:N, :N], prior[:N, :N], y, TIMES, learning_rate=0.3)
    test = posterior(
        tangent[:N, :N], prior[:N, :N], y, TIMES, learning_rate=0.3, test_tangent=tangent[N:, :N],
        test_prior=prior[N:, :N], test_covariance=prior[N:, N:],
    )  # fmt: skip
    for k, time in enumerate(TIMES):
        joint, effect = training_map(tangent, time)
        covariance = joint @ prior @ joint.T
        mean = np.tensordot(effect, y, 1)
        assert train.mean[k] == pytest.approx(mean[:N], abs=1e-10)
        assert test.mean[k] == pytest.approx(mean[N:], abs=1e-10)
        assert train.covariance[k] == pytest.approx(covariance[:N, :N], abs=1e-10)
        assert test.covariance[k] == pytest.approx(covariance[N:, N:], abs=1e-10)


def test_training_the_last_layer_conditions_the_gaussian_process():
    prior, y = matrices(3), np.arange(float(N))
    K, across, tests = prior[:N, :N], prior[N:, :N], prior[N:, N:]
    law = posterior(K, K, y, [1e7], test_tangent=across, test_prior=across, test_covariance=tests)
    assert law.mean[0] == pytest.approx(across @ np.linalg.solve(K, y), rel=1e-8)
    expected = tests - across @ np.linalg.solve(K, across.T)
    assert law.covariance[0] == pytest.approx(expected, abs=1e-8)


def test_alignment_by_definition():
    G, y = kernels(6, 0)[0], np.arange(6.0)
    aligned = alignment(G, y)
    assert (np.diff(aligned.eigenvalues) <= 0).all()
    assert aligned.squares.sum() == pytest.approx(y @ y)
    # yᵀ G^k y = Σ λ^k (yᵀv)²
    for k in (1, 2, 3):
        moment = y @ np.linalg.matrix_power(G, k) @ y
        assert aligned.eigenvalues**k @ aligned.squares == pytest.approx(moment)
    columns = alignment(G, np.stack([y, 2 * y], axis=1))
    assert columns.squares == pytest.approx(
        np.stack([aligned.squares, 4 * aligned.squares], axis=1)
    )


def test_complexity_by_definition():
    G, y = kernels(6, 0)[0], np.arange(6.0)
    assert complexity(G, y) == pytest.approx(np.sqrt(2 * y @ np.linalg.solve(G, y) / 6))


X = np.random.default_rng(0).standard_normal((5, 4))
KERNEL, CROSS, LABELS = X @ X.T + np.eye(5), X[:2] @ X.T, X[:, 0]
FIELDS = {"test_tangent": CROSS, "test_prior": CROSS, "test_covariance": KERNEL[:2, :2]}


@pytest.mark.parametrize("kernel", [2.0**-500, 2.0**500, 2.0**1018])
@pytest.mark.parametrize("y", [2.0**-500, 1.0, 2.0**500])
def test_kernels_and_labels_of_any_scale(kernel, y):
    """Powers of 2 change no digit of what they multiply, beyond the squares that float64 holds."""
    times, scaled = np.array([0.0, 0.3, 2.0]), kernel * KERNEL
    accuracy = 1e-13  # of products that vanish in float64 beside others
    of_kernel = alignment(KERNEL, LABELS)
    values, squares = of_kernel.eigenvalues, of_kernel.squares
    result = alignment(scaled, y * LABELS)
    np.testing.assert_allclose(result.eigenvalues, kernel * values, rtol=accuracy)
    np.testing.assert_allclose(result.squares, y * y * squares, rtol=100 * accuracy)
    if y == 1.0 or kernel > 1.0:
        expected = complexity(KERNEL, LABELS) * (y / math.sqrt(kernel))
        assert complexity(scaled, y * LABELS) == pytest.approx(expected, rel=accuracy)
    expected = descent(KERNEL, LABELS, times, test_kernel=CROSS)
    run = descent(scaled, y * LABELS, times / kernel, test_kernel=kernel * CROSS)
    np.testing.assert_allclose(run.outputs, y * expected.outputs, rtol=accuracy, atol=y * accuracy)
    np.testing.assert_allclose(run.test, y * expected.test, rtol=accuracy, atol=y * accuracy)
    np.testing.assert_allclose(run.loss, y * y * expected.loss, rtol=accuracy)
    for among in ({}, FIELDS):
        expected = posterior(KERNEL, KERNEL, LABELS, times, **among)
        tests = {name: kernel * matrix for name, matrix in among.items()}
        law = posterior(scaled, scaled, y * LABELS, times / kernel, **tests)
        np.testing.assert_allclose(law.mean, y * expected.mean, rtol=accuracy, atol=y * accuracy)
        covariance = kernel * expected.covariance
        np.testing.assert_allclose(law.covariance, covariance, rtol=accuracy, atol=kernel * 1e-9)


@pytest.mark.parametrize("large", [1e308, 1.7e308])
def test_the_posterior_at_the_end_of_float64_has_no_warning(large):
    """Where the flow has ended, labels are met exactly, and no variance is left."""
    law = posterior(large * np.eye(3), large * np.eye(3), [1.0, 2.0, large], [large])
    np.testing.assert_array_equal(law.mean, [[1.0, 2.0, large]])
    assert not law.covariance.any()
    with pytest.raises(ArgumentError, match="for which the result does not overflow float64"):
        posterior(
            np.eye(3),
            np.eye(3),
            [large] * 3,
            [large],
            test_tangent=np.ones((1, 3)),
            test_prior=np.ones((1, 3)),
            test_covariance=np.eye(1),
        )


@pytest.mark.parametrize("call", [
    lambda large: alignment(np.full((3, 3), large), np.ones(3)),
    lambda large: alignment(np.eye(3), large * np.ones(3)),
    lambda large: complexity(1e-300 * np.eye(3), large * np.ones(3)),
    lambda large: descent(np.eye(3), large * np.ones(3), [0.0, 1.0]),
    lambda large: descent(np.eye(3), np.ones(3), [1e9], test_kernel=np.full((1, 3), large)),
    lambda large: descent(large * np.eye(3), np.ones(3), [1e9], loss="cross-entropy"),
])  # fmt: skip
def test_results_that_overflow_raise(call):
    with pytest.raises(ArgumentError, match="for which the result does not overflow float64"):
        call(1e308)
