"""The spectrum of deep networks, against simulation."""

import numpy as np
import pytest
from slow_cases import slow

from bnmc import Chain, MeanField, simulate
from bnmc.errors import ArgumentError
from bnmc.mean_field import StationaryBulk
from bnmc.random_matrix import MarchenkoPastur

LEVELS = [0.05, 0.25, 0.5, 0.75, 0.95]


@pytest.mark.parametrize(
    ("activation", "batch", "width"), [("relu", 20, 500), slow("tanh", 16, 1000)]
)
def test_quantiles_of_simulated_networks(activation, batch, width):
    """200 networks: 3000 eigenvalues, whose quantiles have errors of less than .01."""
    chain = Chain(width, batch, activation)
    run = simulate(chain, 60, chains=200, every=60, rng=0)
    eigenvalues = np.linalg.eigvalsh(run["gram"][:, -1])
    spectrum = MeanField(chain).fluctuations().bulk(width)
    outside = eigenvalues[:, -1] if spectrum.outlier > 1 else eigenvalues[:, 0]
    assert outside.mean() == pytest.approx(spectrum.outlier, rel=0.03, abs=0.02)
    centred = np.eye(batch) - 1 / batch
    inside = np.linalg.eigvalsh(centred @ run["gram"][:, -1] @ centred)[:, 1:].ravel()
    inside /= inside.mean()
    law, single = spectrum.bulk, MarchenkoPastur(batch / width)
    measured = np.quantile(inside, LEVELS)
    np.testing.assert_allclose(measured, law.ppf(LEVELS) / law.mean(), rtol=0, atol=0.025)
    assert abs(measured - single.ppf(LEVELS)).max() > 0.07


def test_quantiles_of_a_large_simulation():
    """Numbers of networks that were simulated elsewhere."""
    law = MeanField(Chain(5000, 50, "tanh")).fluctuations().bulk(5000).bulk
    quantiles = law.ppf([0.05, 0.5, 0.95]) / law.mean()
    np.testing.assert_allclose(quantiles, [0.641, 0.981, 1.420], rtol=0, atol=0.01)


def test_the_picture_has_the_density_and_the_eigenvalue_outside():
    law = StationaryBulk(width=80, batch=4, b=1.0, c=0.5, spread=5.0)
    ax = law.plot()
    density, outside = ax.get_lines()
    # Of mean b (1 − c) = 0.5, variance v n/d = 0.25 times the square of the mean, and mass 1.
    x, y = density.get_data()
    moments = [np.trapezoid(y * x**k, x) for k in range(3)]
    np.testing.assert_allclose(moments, [1.0, 0.5, 0.25 * 1.25], rtol=2e-3)
    assert set(outside.get_xdata()) == {2.5}  # b (1 + 3 c)


def test_norms_that_do_not_centre():
    law = MeanField(Chain(500, 8, "tanh", norm="batch-uncentred")).fluctuations()
    with pytest.raises(ArgumentError, match="norm"):
        law.bulk(500)
