"""Fig. 2 beside Marchenko-Pastur, exact variances and linear response."""

import numpy as np
import pytest
from experiment_checks import require_near, stderr_of
from numpy.testing import assert_allclose

import bnmc
from bnmc.experiments.bridging.common import bulk
from bnmc.experiments.bridging.spectra import stationary_spread

FIGURE = "bridging-2"


def test_one_step_is_exact_and_layer_20_is_wider(figure):
    data, n = figure.data, 20
    of_linear = data.sel(activation="linear")
    # The square of λ = (n-1)/(n+1) in 20 layers; corrections of order n/d are within 3 %.
    factor = ((n - 1) / (n + 1)) ** 2
    stationary = (n - 2) / n / (1 - factor)
    theory = stationary * (1 - factor**21)
    errors, expected = stderr_of(of_linear, "variance", 100), np.array([(n - 2) / n, theory])
    require_near(of_linear["variance"], errors, 100, expected, np.array([0.0, 0.03 * theory]))
    error = stderr_of(of_linear, "predicted", 100)
    require_near(of_linear["predicted"], error, 100, stationary)
    assert "(n - 2)/n = 0.9 in one step" in figure.findings[-1]
    relu = data.sel(activation="relu")
    error = np.hypot(stderr_of(relu, "variance", 100)[1], stderr_of(relu, "predicted", 100))
    predicted = float(relu["predicted"])
    require_near(relu["variance"][1], error, 100, predicted, 0.03 * predicted)


def test_densities(data):
    n, d = 20, 2000
    z = data["bin"].values
    width = z[1] - z[0]
    assert_allclose(data["density"].sum("bin") * width, 1.0, atol=0.01)
    low, high = (1 - np.sqrt(n / d)) ** 2, (1 + np.sqrt(n / d)) ** 2
    inside = np.maximum((high - z**2) * (z**2 - low), 0.0)
    assert_allclose(data["marchenko_pastur"], np.sqrt(inside) / (np.pi * n / d * z), atol=1e-10)


def test_a_deviation_lasts_as_its_sector_does():
    n = 6
    basis = bulk(np.eye(n))  # identity of n - 1 dimensions
    assert_allclose(basis, np.eye(n - 1), atol=1e-14)
    star = bnmc.MeanField(bnmc.Chain(100, n, "relu")).fixed_point()
    slow, fast = star.eigenvalues
    rng = np.random.default_rng(0)
    P = np.eye(n) - 1 / n
    v = rng.standard_normal(n)
    light = P @ np.diag(v - v.mean()) @ P
    S = rng.standard_normal((n, n))
    S = P @ (S + S.T) @ P
    S -= np.trace(S) / (n - 1) * P
    w = np.linalg.solve((1 - 2 / n) * np.eye(n), np.diag(S))
    heavy = S - P @ np.diag(w) @ P
    assert np.abs(np.diag(heavy)).max() < 1e-12
    for part, rate in ((light, slow), (heavy, fast)):
        part = 0.01 * part
        single = np.eye(n - 1) + bulk(np.stack([part, -part]))
        prediction = stationary_spread(single, star, 0.5)
        expected = (part**2).sum() / (1 - rate**2) / (n - 1) / 0.5
        assert prediction.mean() == pytest.approx(expected, rel=1e-9)
