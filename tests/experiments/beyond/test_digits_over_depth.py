"""Digits beside plain networks and the stationary distance of the mean field."""

import numpy as np
import pytest
from experiment_checks import reach, require_near
from figure_sizes import FIGURES

import bnmc
from bnmc.experiments.training.images import digits

FIGURE = "digits"

SIZES = FIGURES["digits"].sizes


def test_the_first_layer_is_that_of_plain_networks(figure):
    count, width, n = 400, SIZES["width"], SIZES["batch"]
    h = np.random.default_rng(3).standard_normal((count, width, 64)) @ digits(n)
    h = (h - h.mean(axis=-1, keepdims=True)) / h.std(axis=-1, keepdims=True)
    for name, a in (("linear", h), ("relu", np.maximum(h, 0.0))):
        star = bnmc.MeanField(bnmc.Chain(width, n, name)).fixed_point()
        assert float(figure.data["rate"].sel(activation=name)) == star.rate
        grams = np.swapaxes(a, -1, -2) @ a / width
        plain = np.linalg.norm(grams - star.gram, axis=(-2, -1))
        column = figure.table.columns.index(f"{name}: ‖G − G*‖")
        first = figure.table.rows[0][column]
        error = np.hypot(first.stderr, plain.std(ddof=1) / np.sqrt(count))
        require_near(first.value, error, SIZES["chains"], plain.mean())


def test_the_last_layer_has_the_stationary_distance(figure):
    width, n = SIZES["width"], SIZES["batch"]
    for name in ("linear", "relu"):
        law = bnmc.MeanField(bnmc.Chain(width, n, name)).fluctuations()
        expected = law.mean_distance(width).value
        last = figure.table.rows[-1][figure.table.columns.index(f"{name}: ‖G − G*‖")]
        # Corrections are of relative order n/d.
        assert abs(last.value - expected) < reach(last) + 2 * n / width * expected
        distance = float(figure.data["distance"].sel(activation=name)[-1])
        assert distance == pytest.approx(last.value, rel=1e-12)
    assert [row[0] for row in figure.table.rows] == [0, 1, 2, 5, 10, 12]
