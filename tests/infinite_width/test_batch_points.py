"""Quasi-Monte Carlo points: means against the closed integrals, and single points by matrices."""

from unittest import mock

import numpy as np
import pytest
from infinite_width_checks import assert_unbiased, law_of

from bnmc import Activation
from bnmc.chain.activations import slope_at
from bnmc.chain.norms import as_norm
from bnmc.errors import ArgumentError, NonFiniteError
from bnmc.infinite_width.batch_integrals import Homogeneous, Pair
from bnmc.infinite_width.batch_points import (
    _LINEAR,
    ActivatedPoints,
    Linear,
    Sampled,
    _Outputs,
    _Rows,
    mean_slopes,
    normal_points,
)
from bnmc.mean_field.map.points import require_rows_vary


def test_points_are_standard_normal_and_symmetric():
    points = normal_points(5, 4096, np.random.default_rng(0))
    assert points.shape == (4096, 5)
    assert (points[:2048] == -points[2048:]).all()
    np.testing.assert_allclose(points.T @ points / 4096, np.eye(5), atol=0.02)


def assert_closed_means(layer_of, dimensions, exact, laws, theta, between, theta_between):
    """Assert that means over points are those of a layer that integrates."""

    def means(layer):
        return [*layer.own(laws[0], theta), *layer.across(Pair(*laws, between, theta_between))]

    replicates = [
        means(layer_of(normal_points(dimensions, 2048, np.random.default_rng(seed))))
        for seed in range(16)
    ]
    for estimates, expected in zip(zip(*replicates, strict=True), means(exact), strict=True):
        assert_unbiased(estimates, expected)


@pytest.mark.parametrize(
    ("samples", "control"), [(6, None), (5, None), (6, Homogeneous(-0.2, 0.9))]
)
def test_means_are_those_of_the_closed_integrals(samples, control):
    rng = np.random.default_rng(1)
    x, root = rng.standard_normal((14, 7 + samples)), rng.standard_normal((7 + samples, 4))
    gram, theta = x.T @ x, root @ root.T
    laws = [law_of(gram[:7, :7]), law_of(gram[7:, 7:])]
    assert_closed_means(
        lambda normals: Sampled(Activation.named("relu"), normals, control), 12,
        Homogeneous(0.0, 1.0), laws, theta[:7, :7], gram[:7, 7:], theta[:7, 7:],
    )  # fmt: skip


@pytest.mark.parametrize("name", ["leaky_relu", "sigmoid"])
def test_controls_have_the_mean_slopes(name):
    activation, points = Activation.named(name), np.linspace(0.0, 9.0, 200_001)
    density = np.exp(-(points**2) / 2) * np.sqrt(2 / np.pi)
    slopes = [np.trapezoid(slope_at(activation, x) * density, points) for x in (-points, points)]
    control = mean_slopes(activation).slope(np.array([-1.0, 1.0]))
    np.testing.assert_allclose(control, slopes, atol=2e-3)  # 1024 quantiles have variance .9987


def test_a_control_of_the_function_itself_leaves_no_error():
    x = np.random.default_rng(2).standard_normal((9, 6))
    law, theta = law_of(x.T @ x), np.eye(6)
    normals = normal_points(5, 64, np.random.default_rng(3))
    means = Sampled(Activation.named("relu"), normals, Homogeneous(0.0, 1.0)).own(law, theta)
    for mean, expected in zip(means, Homogeneous(0.0, 1.0).own(law, theta), strict=True):
        np.testing.assert_allclose(mean, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("points", [Sampled, ActivatedPoints])
def test_a_function_that_overflows_raises(points):
    steep = Activation(lambda x: np.exp(1000.0 * x), name="steep")
    with pytest.raises(NonFiniteError):
        points(steep, normal_points(8, 64, np.random.default_rng(0))).own(two_batches()[0][0], None)


# --- the norm after the activation


SIZES = (7, 6)


def split(matrix):
    """Return a matrix of samples as one of deviations and mean, on each side."""
    sides = [np.vstack([np.eye(n) - 1 / n, np.full((1, n), 1 / n)]) for n in matrix.shape]
    return sides[0] @ matrix @ sides[1].T


def two_batches():
    """Return laws of two batches, and their covariances and tangents in split coordinates."""
    rng = np.random.default_rng(1)
    x, root = rng.standard_normal((14, 13)) + 0.4, rng.standard_normal((13, 5))
    gram, theta = x.T @ x / 14, root @ root.T
    laws = [law_of(split(block), len(block)) for block in (gram[:7, :7], gram[7:, 7:])]
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
    tangents = np.sqrt(SIZES[0] * SIZES[1]) * ends[0].tangents(ends[1], weight, split(theta))
    np.testing.assert_allclose(tangents, expected, rtol=0, atol=1e-7 * np.abs(expected).max())


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
    tangents = left.tangents(right, weight, split(theta))
    np.testing.assert_allclose(tangents, expected, rtol=0, atol=1e-10 * np.abs(expected).max())


@pytest.mark.parametrize("mean", [0.0, 0.9, 1.0, -3.0])
def test_deviations_up_to_a_part_of_the_mean_or_of_one_are_linear(mean):
    """At a kink it shows whether the deviations pass the function: half of them would be 0."""
    d = np.array([[-1.0, -0.5, 0.5, 1.0]])
    limit = _LINEAR * max(1.0, abs(mean))
    for factor, image in ((0.99, d), (1.01, np.maximum(d, 0.0))):
        outputs = _Outputs.of(
            lambda u: np.maximum(u - mean, 0.0), factor * limit * d, np.array([mean]), False
        )
        expected = image - image.mean()
        expected /= np.linalg.norm(expected)
        np.testing.assert_allclose(outputs.unit, expected, rtol=0, atol=1e-7)


def test_rows_have_the_covariances_of_the_law():
    laws, between, *_ = two_batches()
    with mock.patch.object(ActivatedPoints, "_means", lambda self, pair, rows: rows):
        rows = ActivatedPoints(Activation.named("tanh"), np.empty((0, 14))).across(
            Pair(*laws, between, None)
        )
    full = [
        np.block([[d, np.zeros((n, rows.rest.shape[1]))], [mean, rest]])
        for d, mean, n, rest in zip(rows.deviations, rows.means, SIZES, rows.rest, strict=True)
    ]
    for left, right, expected in (
        (full[0], full[0], laws[0].covariance),
        (full[1], full[1], laws[1].covariance),
        (full[0], full[1], between),
    ):
        np.testing.assert_allclose(left @ right.T, expected, rtol=0, atol=1e-12)


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


def test_means_of_activated_points_are_those_of_the_closed_integrals():
    laws, between, theta, theta_between = two_batches()
    assert_closed_means(
        lambda normals: ActivatedPoints(Activation.named("linear"), normals), 14,
        Linear(), laws, theta, between, theta_between,
    )  # fmt: skip


def test_rows_without_variance_raise():
    step = Activation(lambda x: 1.0 if x > 0.0 else 0.0, name="unit step", kinks=(0.0,))
    for activation in (Activation.named("relu"), step):
        with pytest.raises(ArgumentError, match="no variance"):
            require_rows_vary(activation, as_norm("batch"))
    for name in ("leaky_relu", "abs", "gelu", "sigmoid", "erf", "sin"):
        require_rows_vary(Activation.named(name), as_norm("batch"))
    # Two opposite numbers have one absolute value.
    layer = ActivatedPoints(Activation.named("abs"), normal_points(3, 8, np.random.default_rng(0)))
    with pytest.raises(ArgumentError, match="no variance"):
        layer.own(law_of(split(np.array([[1.0, -1.0], [-1.0, 1.0]])), 2), None)
