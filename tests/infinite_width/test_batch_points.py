"""Quasi-Monte Carlo points and means against the closed integrals."""

import numpy as np
import pytest

from bnmc import Activation, Chain
from bnmc.chain.activations import slope_at
from bnmc.errors import NonFiniteError
from bnmc.infinite_width.batch_integrals import Homogeneous, batch_law
from bnmc.infinite_width.batch_points import Sampled, mean_slopes, normal_points


def test_points_are_standard_normal_and_symmetric():
    points = normal_points(5, 4096, np.random.default_rng(0))
    assert points.shape == (4096, 5)
    assert (points[:2048] == -points[2048:]).all()
    np.testing.assert_allclose(points.T @ points / 4096, np.eye(5), atol=0.02)


@pytest.mark.parametrize(
    ("samples", "control"), [(6, None), (5, None), (6, Homogeneous(-0.2, 0.9))]
)
def test_means_are_those_of_the_closed_integrals(samples, control):
    rng = np.random.default_rng(1)
    x, root = rng.standard_normal((14, 7 + samples)), rng.standard_normal((7 + samples, 4))
    gram, theta = x.T @ x, root @ root.T
    laws = [
        batch_law(Chain(1, n, "relu").layers[1].rows, gram[at, at], 0, "x")
        for n, at in ((7, slice(0, 7)), (samples, slice(7, None)))
    ]
    exact = (
        *Homogeneous(0.0, 1.0).own(laws[0], theta[:7, :7]),
        *Homogeneous(0.0, 1.0).across(*laws, gram[:7, 7:], theta[:7, 7:]),
    )
    replicates = []
    for one in range(16):
        normals = normal_points(12, 2048, np.random.default_rng(one))
        layer = Sampled(Activation.named("relu"), normals, control)
        own = layer.own(laws[0], theta[:7, :7])
        replicates.append((*own, *layer.across(*laws, gram[:7, 7:], theta[:7, 7:])))
    for at, expected in enumerate(exact):
        found = np.array([one[at] for one in replicates])
        off = np.linalg.norm(found.mean(axis=0) - expected)
        error = np.linalg.norm(found.std(axis=0, ddof=1)) / np.sqrt(16)
        # If all entries had one common error, t with 15 degrees of freedom: |t| > 10 has 5e-8.
        assert off < 10.0 * error
        assert error < 0.02 * np.linalg.norm(expected)


@pytest.mark.parametrize("name", ["leaky_relu", "sigmoid"])
def test_controls_have_the_mean_slopes(name):
    activation, points = Activation.named(name), np.linspace(0.0, 9.0, 200_001)
    density = np.exp(-(points**2) / 2) * np.sqrt(2 / np.pi)
    slopes = [np.trapezoid(slope_at(activation, x) * density, points) for x in (-points, points)]
    found = mean_slopes(activation)
    np.testing.assert_allclose(
        found.slope(np.array([-1.0, 1.0])), slopes, atol=2e-3
    )  # 1024 quantiles have the variance .9987


def test_a_control_of_the_function_itself_leaves_no_error():
    x = np.random.default_rng(2).standard_normal((9, 6))
    law, theta = batch_law(Chain(1, 6, "relu").layers[1].rows, x.T @ x, 0, "x"), np.eye(6)
    normals = normal_points(5, 64, np.random.default_rng(3))
    found = Sampled(Activation.named("relu"), normals, Homogeneous(0.0, 1.0)).own(law, theta)
    for one, expected in zip(found, Homogeneous(0.0, 1.0).own(law, theta), strict=True):
        np.testing.assert_allclose(one, expected, rtol=1e-12, atol=1e-14)


def test_a_function_that_overflows_raises():
    law = batch_law(Chain(1, 4, "relu").layers[1].rows, np.eye(4), 0, "x")
    steep = Activation(lambda x: np.exp(1000.0 * x), name="steep")
    with pytest.raises(NonFiniteError):
        Sampled(steep, normal_points(3, 64, np.random.default_rng(0))).own(law, None)
