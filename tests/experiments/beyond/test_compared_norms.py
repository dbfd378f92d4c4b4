"""Norms over depth, beside closed forms of relu."""

import numpy as np
import pytest
from experiment_checks import errors, relu_map
from figure_sizes import FIGURES

from bnmc.errors import ArgumentError
from bnmc.experiments import beyond
from bnmc.experiments.pictures import curve

SIZES = FIGURES["norms"].sizes
N, DEPTH = SIZES["batch"], SIZES["depth"]

FIGURE = "norms"


def test_correlations_of_pairs_follow_the_map_of_relu(data):
    c, _ = relu_map(0.0)
    for layer in range(1, DEPTH + 1):
        c, _ = relu_map(c)
        for norm in SIZES["norms"][1:]:
            part = data.sel(norm=norm, layer=layer)
            assert float(part["correlation_predicted"]) == pytest.approx(c, rel=1e-8)
            gap = c * np.sqrt(N * (N - 1)) / N
            assert float(part["gap_predicted"]) == pytest.approx(gap, rel=1e-8)
            assert float(part["soft_rank_predicted"]) == (N if 1 - c >= 0.1 else 1)


def test_batch_normalization_is_at_its_fixed_point(data):
    part, (J, slope) = data.sel(norm="batch"), relu_map(-1 / (N - 1))
    assert part["correlation_predicted"].values == pytest.approx(np.full(DEPTH, J), rel=1e-8)
    rate = (slope + N - 1) / ((N - 3) * (1 - J)) - 1 / (N - 3)
    logs = 0.5 * np.log(rate) * (DEPTH - 2 - np.arange(DEPTH - 1))
    np.testing.assert_allclose(part["log_norm_predicted"].values[:-1], logs, rtol=1e-8)
    assert np.isnan(part["log_norm_predicted"].values[-1])


def test_gradients_of_relu_keep_their_size_without_batch_normalization(data):
    """E σ′² = E σ² of a standard normal number, so the factor of squared gradients is 1."""
    for norm in SIZES["norms"][1:]:
        logs = data["log_norm_predicted"].sel(norm=norm).values[:-1]
        np.testing.assert_allclose(logs, 0.0, atol=1e-8)


@pytest.mark.parametrize("name", ["gap", "correlation", "log_norm"])
def test_networks_follow_the_mean_field(data, name):
    stderr, quantile = errors(curve(data, name), SIZES["chains"])
    # Means are off by order 1/width in each layer, as are logarithms of norms.
    allowed = quantile * stderr + 2 * N * (np.arange(DEPTH) + 1) / SIZES["width"]
    difference = np.abs(data[name] - data[f"{name}_predicted"]).values
    assert (difference[:, :-1] <= allowed[:, :-1]).all()


def test_gradients_of_tanh_whose_size_changes():
    """The variance of tanh without norm approaches 1 from layer to layer, with its own factors."""
    norms = "none", "rms"
    sizes = {"width": 400, "batch": 3, "depth": 5, "chains": 8}
    data = beyond.norms(norms=norms, activation="tanh", rng=4, **sizes).data
    z, weights = np.polynomial.hermite_e.hermegauss(60)
    weights = weights / weights.sum()
    gain2 = 1 / (weights @ np.tanh(z) ** 2)
    assert data.attrs["gain"] ** 2 == pytest.approx(gain2, rel=1e-6)
    # With this gain the variance is 1 in all layers, and δ grows by gain² E σ′².
    growth = gain2 * (weights @ np.cosh(z) ** -4.0)
    logs = 0.5 * np.log(growth) * (3 - np.arange(4))
    for norm in norms:
        np.testing.assert_allclose(
            data["log_norm_predicted"].sel(norm=norm).values[:-1], logs, atol=1e-5
        )
    band = curve(data, "log_norm")
    stderr, quantile = errors(band, 8)
    assert (np.abs(band[:, :-1, 0] - logs) <= quantile * stderr[:, :-1] + 10 / 400).all()


def test_intervals_have_possible_values_only(data, figure):
    """Ranks are at least 1 and at most the batch; the band of the picture ends there, too."""
    assert float(data["soft_rank_high"].max()) == N
    assert float(data["gap_high"].max()) <= np.sqrt(1 - 1 / N)
    sizes = {"norms": ("none",), "width": 30, "batch": 4, "depth": 40, "chains": 2}
    low = beyond.norms(rng=1, **sizes).data
    assert 1.0 <= float(low["soft_rank_low"].min()) < float(low["soft_rank"].min() + 1)
    assert float(low["correlation_high"].max()) <= 1.0


def test_norms_without_a_prediction_have_none():
    norms = "batch-uncentred", "batch"
    result = beyond.norms(norms=norms, width=20, batch=3, depth=4, chains=2, rng=5)
    predicted = result.data["gap_predicted"]
    assert np.isnan(predicted.sel(norm="batch-uncentred")).all()
    assert np.isnan(result.data["log_norm_predicted"]).all()
    assert [row[3] is None for row in result.table.rows] == 4 * [True] + 3 * [False] + [True]
    assert float(result.data["correlation_predicted"][1, 0]) == pytest.approx(relu_map(-0.5)[0])


def test_gradients_that_vanish_are_refused():
    sizes = {"activation": "tanh", "width": 20, "batch": 2, "depth": 4, "chains": 2}
    with pytest.raises(ArgumentError, match='^width: got 20.*norm "batch"'):
        beyond.norms(norms=("batch",), rng=6, **sizes)


def test_layers_are_integers_on_all_axes(figure):
    for ax in figure.plot().axes:
        ax.set_xlim(0, 2)  # as for a depth of two layers
        assert all(tick == round(tick) for tick in ax.get_xticks())
