"""Corollary 3 beside theory and plain NumPy networks.

Intervals of 95 % are widened to `CERTAIN`, where all comparisons of a test together fail with
probability at most 1e-6 if the theory holds.
"""

import math

import numpy as np
import pytest
from experiment_checks import CERTAIN, errors, networks, reach, slope_error
from scipy import special

from bnmc.experiments.orthogonalizes import gaussian_distance
from bnmc.experiments.pictures import curve

FIGURE = "orthogonalizes-wasserstein"


def test_the_plateau_has_its_closed_form_and_slope_minus_one(figure):
    for width, _, distance, theory, _ in figure.table.rows:
        closed = 3 * 6**2 / (16 * 5 * width)
        assert theory == pytest.approx(closed, rel=1e-12)
        assert abs(distance.value - closed) <= reach(distance) + closed * 8 / width
    slope = float(figure.data.slope)
    stderr = slope_error(figure.data, "slope")
    bent = math.log1p(8 / 32) / math.log(2**10)
    assert abs(slope + 1) <= special.stdtrit(19, 1 - CERTAIN / 2) * stderr + bent


def test_it_decays_as_the_chain_of_infinite_width_does(data):
    distance = curve(data, "distance")[-1, :8]
    theory = data.theory.values[-1, :8]
    error, allowed = errors(distance, 20)
    assert np.all(np.abs(distance[:, 0] - theory) <= allowed * error + 0.02 * theory)
    wide = gaussian_distance._distances_at_infinite_width(4, 20)
    assert wide[-1] / wide[-2] == pytest.approx((4 / 6) ** 2, abs=2 * math.sqrt(wide[-2]))


def test_the_bounds_bound_it(data):
    there = np.isfinite(data.distance.values)
    assert np.all(data.distance.values[there] <= data.lemma_2.values[there])
    assert np.all(data.lemma_2.values[there] <= data.corollary_3.values[there])


def test_narrow_networks_agree_with_plain_ones(figure):
    start = np.diag(np.sqrt([1.0, 0.2, 0.2, 0.2]))
    shares = networks(start, 32, 40, 200, seed=14)
    plain = np.square(np.sqrt(shares) - 0.5).sum(axis=-1)[:, 20:].mean(axis=1)
    distance = figure.table.rows[0][2]
    error = plain.std(ddof=1) / math.sqrt(len(plain))
    assert abs(distance.value - plain.mean()) <= reach(distance) * (1 + error / distance.stderr)


def test_the_theory_of_the_first_layer_is_that_of_independent_directions(monkeypatch):
    """From orthogonal samples E V² of the first layer is (1 − 1/n)/d, and W² ≃ (n/4) V².

    There d independent directions u are averaged, and E‖u uᵀ − I/n‖² = 1 − 1/n.  Later layers
    keep the share (n/(n + 2))² of the squared distance, and each adds as much as the first.
    """
    monkeypatch.setattr(gaussian_distance, "_SPREAD", 1.0)
    n, d = 4, 32
    wide = gaussian_distance._distances_at_infinite_width(n, 6)
    np.testing.assert_allclose(wide, 0, atol=1e-15)
    theory = gaussian_distance._theory(d, n, wide)
    first = n / 4 * (1 - 1 / n) / d
    expected = first * np.cumsum((n / (n + 2)) ** (2 * np.arange(6)))
    np.testing.assert_allclose(theory, expected, rtol=1e-12)
