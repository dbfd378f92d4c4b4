"""Spectra of Jacobians and of the Fisher matrix: values that are known."""

import numpy as np
import pytest

from bnmc.experiments.gradients import fisher, isometry_spectrum


# It takes seconds; the numbers of the figure at small sizes are approved each time.
@pytest.mark.slow
def test_spectra_of_linear_networks_are_known():
    """Haar without norm: isometries.  Gaussian: variance l at infinite width, ln s by exponents.

    For products of d × d matrices the largest exponent is ½(ψ(d/2) + ln 2/d), about −1/(2d).
    """
    made = isometry_spectrum(
        width=30, batch=6, depth=3, deep=150, chains=8, activation="linear"
    ).data.sel(norm="none")
    haar, gaussian = made.sel(weights="haar"), made.sel(weights="gaussian")
    assert np.abs(haar["dispersion"]).max() < 1e-12
    assert np.abs(haar["log_largest"]).max() < 1e-12
    layers = made["layer"].values
    assert gaussian["limit"].values == pytest.approx(layers)
    assert gaussian["dispersion"].values == pytest.approx(layers, rel=0.25)
    last = gaussian.isel(deep_layer=-1)
    error = float(last["log_largest_high"] - last["log_largest_low"]) / 4
    assert abs(float(last["log_largest"]) + 150 / 60) < 8 * error + 0.5
    assert float(last["log_ratio"]) > 0.5


@pytest.mark.slow
def test_batch_normalization_makes_small_changes_grow_and_lowers_the_rank():
    made = isometry_spectrum(width=16, batch=6, depth=2, deep=400, chains=6).data
    deep = made.sel(norm="batch", weights="gaussian").isel(deep_layer=-1)
    assert float(deep["log_largest_low"]) > 0.1 * 400
    assert float(deep["log_ratio"]) > 1.0


def test_the_formula_holds_without_batch_normalization():
    made = fisher(width=200, batches=(8, 16), chains=10, norms=("none", "layer")).data
    assert made["eigenvalue"].values == pytest.approx(made["formula"].values, rel=0.05)
    assert (made["centred"].values < 0.4 * made["eigenvalue"].values).all()


def test_small_batches_leave_the_formula():
    made = fisher(width=100, batches=(6,), chains=20, norms=("batch",)).data
    assert made["eigenvalue"].item() > 1.5 * made["formula"].item()
