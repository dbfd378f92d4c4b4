"""Layers with the norm after the activation: each point by matrices, means by closed integrals."""

from unittest import mock

import numpy as np
import pytest

from bnmc import Activation
from bnmc.chain.chain import Chain
from bnmc.errors import ArgumentError, NonFiniteError
from bnmc.infinite_width.batch_integrals import batch_law
from bnmc.infinite_width.batch_points import (
    _LINEAR,
    ActivatedPoints,
    Linear,
    _Outputs,
    _Rows,
    normal_points,
    require_rows_vary,
)

SIZES = (7, 6)


def split(matrix):
    """Return a matrix of samples as one of deviations and mean, on each side."""
    sides = [np.vstack([np.eye(n) - 1 / n, np.full((1, n), 1 / n)]) for n in matrix.shape]
    return sides[0] @ matrix @ sides[1].T


def law_of(gram):
    return batch_law(Chain(1, len(gram), "linear").layers[1].rows, split(gram), 0, "x")


def two_batches():
    """Return laws of two batches, and their covariances and tangents in split coordinates."""
    rng = np.random.default_rng(1)
    x, root = rng.standard_normal((14, 13)) + 0.4, rng.standard_normal((13, 5))
    gram, theta = x.T @ x / 14, root @ root.T
    laws = [law_of(gram[:7, :7]), law_of(gram[7:, 7:])]
    return laws, split(gram[:7, 7:]), split(theta[:7, :7]), split(theta[:7, 7:])


def jacobian(f, u):
    """Return N(f(u)) and its derivative, by central differences."""

    def outputs(row):
        y = f(row) - f(row).mean()
        return y / np.sqrt(np.mean(y**2))

    steps = 1e-6 * np.eye(len(u))
    columns = [(outputs(u + step) - outputs(u - step)) / 2e-6 for step in steps]
    return outputs(u), np.array(columns).T


@pytest.mark.parametrize(("name", "f"), [("tanh", np.tanh), ("sin", np.sin)])
def test_jacobians_are_those_of_differences(name, f):
    rng = np.random.default_rng(0)
    rows = [rng.standard_normal((5, n)) for n in SIZES]
    theta, weight = rng.standard_normal(SIZES), rng.random(5)
    ends = [
        _Outputs.of(Activation.named(name), u - u.mean(axis=1)[:, None], u.mean(axis=1), True)
        for u in rows
    ]
    expected = np.zeros(SIZES)
    for point, pair in enumerate(zip(*rows, strict=True)):
        (a, J), (b, K) = (jacobian(f, u) for u in pair)
        expected += weight[point] * J @ theta @ K.T
        for end, outputs in zip(ends, (a, b), strict=True):
            np.testing.assert_allclose(
                np.sqrt(len(outputs)) * end.unit[point], outputs, rtol=0, atol=1e-13
            )
    found = np.sqrt(SIZES[0] * SIZES[1]) * ends[0].tangents(ends[1], weight, split(theta))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-7 * np.abs(expected).max())


def test_rows_of_small_deviations_are_linear():
    """sin is rising at 1 and falling at 2, so N(sin(m + d)) is N(d) or −N(d)."""
    rng, mean = np.random.default_rng(0), np.array([1.0, 2.0])
    d = rng.standard_normal((2, 7))
    d -= d.mean(axis=1)[:, None]
    theta, weight = rng.standard_normal((7, 7)), np.ones(2)
    left = _Outputs.of(Activation.named("sin"), 1e-12 * d, mean, True)
    right = _Outputs.of(Activation.named("sin"), 1e-12 * d[::-1], mean[::-1], True)
    lengths = np.linalg.norm(d, axis=1)
    signs = np.array([[1.0], [-1.0]])
    np.testing.assert_allclose(left.unit, signs * d / lengths[:, None], rtol=1e-12)
    expected = np.zeros((7, 7))
    for k in (0, 1):
        P, Q = (np.eye(7) - 1 / 7 - np.outer(d[i], d[i]) / lengths[i] ** 2 for i in (k, 1 - k))
        expected -= P @ theta @ Q / (lengths[0] * lengths[1] * 1e-24)
    found = left.tangents(right, weight, split(theta))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10 * np.abs(expected).max())


@pytest.mark.parametrize("mean", [0.0, 0.9, 1.0, -3.0])
def test_deviations_up_to_a_part_of_the_mean_or_of_one_are_linear(mean):
    """At a kink it shows whether the deviations pass the function: half of them would be 0."""
    d = np.array([[-1.0, -0.5, 0.5, 1.0]])
    limit = _LINEAR * max(1.0, abs(mean))
    for factor, image in ((0.99, d), (1.01, np.maximum(d, 0.0))):
        found = _Outputs.of(
            lambda u: np.maximum(u - mean, 0.0), factor * limit * d, np.array([mean]), False
        )
        expected = image - image.mean()
        expected /= np.linalg.norm(expected)
        np.testing.assert_allclose(found.unit, expected, rtol=0, atol=1e-7)


def test_rows_have_the_covariances_of_the_law():
    laws, between, *_ = two_batches()
    with mock.patch.object(ActivatedPoints, "_means", lambda self, laws, rows, tangent: rows):
        rows = ActivatedPoints(Activation.named("tanh"), np.empty((0, 14))).across(
            *laws, between, None
        )
    maps = [np.vstack([d, m]) for d, m in zip(rows.deviations, rows.means, strict=True)]
    full = [
        np.hstack([one, np.vstack([np.zeros((n, rows.rest.shape[1])), rest])])
        for one, n, rest in zip(maps, SIZES, rows.rest, strict=True)
    ]
    for found, expected in (
        (full[0] @ full[0].T, laws[0].covariance),
        (full[1] @ full[1].T, laws[1].covariance),
        (full[0] @ full[1].T, between),
    ):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_small_rows_are_more_frequent_and_lighter():
    """E 1/|z|² = 1/(k − 2) for k dimensions, and the weights have the mean 1."""
    rows = _Rows([np.eye(5)], np.zeros((1, 5)), np.zeros((1, 0)))
    (d,), _, weight = rows.at(normal_points(6, 1 << 12, np.random.default_rng(0)), True)
    inverse = weight / np.sum(d**2, axis=1)
    np.testing.assert_allclose(inverse, 1 / 3, rtol=1e-12)
    # The weights have the variance 2/3.
    assert abs(weight.mean() - 1.0) < 5 * np.sqrt(2 / 3 / 4096)
    (d,), _, weight = rows.at(normal_points(6, 1 << 12, np.random.default_rng(0)), False)
    assert (weight == 1.0).all()


def test_means_are_those_of_the_closed_integrals():
    laws, between, theta, theta_between = two_batches()
    arguments = [("own", (laws[0], theta)), ("across", (*laws, between, theta_between))]
    exact = [one for name, given in arguments for one in getattr(Linear(), name)(*given)]
    replicates = []
    for number in range(16):
        normals = normal_points(14, 2048, np.random.default_rng(number))
        layer = ActivatedPoints(Activation.named("linear"), normals)
        replicates.append(
            [one for name, given in arguments for one in getattr(layer, name)(*given)]
        )
    for at, expected in enumerate(exact):
        found = np.array([one[at] for one in replicates])
        off = np.linalg.norm(found.mean(axis=0) - expected)
        error = np.linalg.norm(found.std(axis=0, ddof=1)) / np.sqrt(16)
        # If all entries had one common error, t with 15 degrees of freedom: |t| > 10 has 5e-8.
        assert off < 10.0 * error
        assert error < 0.02 * np.linalg.norm(expected)


def test_rows_without_variance_raise():
    step = Activation(lambda x: 1.0 if x > 0.0 else 0.0, name="unit step", kinks=(0.0,))
    for one in (Activation.named("relu"), step):
        with pytest.raises(ArgumentError, match="no variance"):
            require_rows_vary(one)
    for name in ("leaky_relu", "abs", "gelu", "sigmoid", "erf", "sin"):
        require_rows_vary(Activation.named(name))
    # Two opposite numbers have one absolute value.
    law = law_of(np.array([[1.0, -1.0], [-1.0, 1.0]]))
    with pytest.raises(ArgumentError, match="no variance"):
        ActivatedPoints(
            Activation.named("abs"), np.random.default_rng(0).standard_normal((8, 3))
        ).own(law, None)
    steep = Activation(lambda x: np.exp(1000.0 * x), name="steep")
    with pytest.raises(NonFiniteError):
        ActivatedPoints(steep, normal_points(8, 64, np.random.default_rng(0))).own(
            two_batches()[0][0], None
        )
