"""`posterior` against `descent` of every initial output, and against Gaussian conditioning."""

import numpy as np
import pytest

from bnmc.errors import ArgumentError
from bnmc.infinite_width import descent, posterior

N, M = 4, 3
TIMES = [0.0, 0.4, 5.0]


def matrices(seed):
    factor = np.random.default_rng(seed).standard_normal((N + M, 9))
    return factor @ factor.T


def training_map(tangent, time):
    """Return the matrix that maps initial outputs to trained ones, and the effect of labels.

    Both are columns of `descent` for unit vectors.
    """
    joint, effect = np.empty((N + M, N + M)), np.empty((N + M, N))
    for i, unit in enumerate(np.eye(N + M)):
        run = descent(
            tangent[:N, :N], np.zeros(N), [time], learning_rate=0.3, initial=unit[:N],
            test_kernel=tangent[N:, :N], test_initial=unit[N:],
        )  # fmt: skip
        joint[:, i] = np.concatenate([run.outputs[0], run.test[0]])
    for i, unit in enumerate(np.eye(N)):
        run = descent(tangent[:N, :N], unit, [time], learning_rate=0.3, test_kernel=tangent[N:, :N])
        effect[:, i] = np.concatenate([run.outputs[0], run.test[0]])
    return joint, effect


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
    K, across, own = prior[:N, :N], prior[N:, :N], prior[N:, N:]
    law = posterior(K, K, y, [1e7], test_tangent=across, test_prior=across, test_covariance=own)
    assert law.mean[0] == pytest.approx(across @ np.linalg.solve(K, y), rel=1e-8)
    expected = own - across @ np.linalg.solve(K, across.T)
    assert law.covariance[0] == pytest.approx(expected, abs=1e-8)


def test_incomplete_test_arguments_raise():
    with pytest.raises(ArgumentError, match="test_prior"):
        posterior(np.eye(2), np.eye(2), [1.0, 2.0], [1.0], test_tangent=np.ones((1, 2)))
    with pytest.raises(ArgumentError, match="prior"):
        posterior(np.eye(2), np.diag([1.0, -1.0]), [1.0, 2.0], [1.0])
