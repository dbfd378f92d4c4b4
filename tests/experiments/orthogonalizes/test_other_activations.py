"""Fig. 6 beside theory and plain NumPy networks.

Intervals of 95 % are widened to `CERTAIN`, where all comparisons of a test together fail with
probability at most 1e-6 if the theory holds.
"""

import math

import numpy as np
import numpy_network
import pytest
from experiment_checks import CERTAIN, errors, require_mean, slope_error
from scipy import special

from bnmc import Chain
from bnmc.experiments import orthogonalizes
from bnmc.experiments.pictures import curve

FIGURE = "orthogonalizes-6"


def test_linear_networks_have_the_closed_form(data):
    bands = curve(data, "deviation")[0]
    error, allowed = errors(bands, 32)
    theory = data.linear_theory.values
    chi = math.exp(special.gammaln(5) - special.gammaln(4.5)) / math.sqrt(4.5)
    widths = data.width.values
    closed = 4 * chi * np.sqrt(3 * 6**2 / (4 * 4 * 5 * widths))
    np.testing.assert_allclose(theory, closed, rtol=1e-12)
    assert np.all(np.abs(bands[:, 0] - theory) <= allowed * error + theory * 4 / widths)


def test_every_activation_keeps_to_its_mean_to_order_one_over_root_d(data):
    allowed = special.stdtrit(31, 1 - CERTAIN / 2)  # errors are those of 32 networks
    for name in data.activation.values:
        entry = data.sel(activation=name)
        # As in Fig. 2b, with an excess of up to 8/d from width 64 on.
        bent = math.log1p(8 / 64) / math.log(16)
        assert abs(float(entry.slope) + 0.5) <= allowed * slope_error(entry, "slope") + bent


def test_the_table_has_the_deviations_with_their_intervals(figure):
    bands = curve(figure.data, "deviation").reshape(-1, 3)
    for (name, width, entry, limit, count), band in zip(figure.table.rows, bands, strict=True):
        np.testing.assert_array_equal((entry.value, *entry.ci), band)
        theory = figure.data.linear_theory.sel(width=width)
        assert limit == (float(theory) if name == "linear" else None)
        assert count == entry.n == figure.data.alive.sel(activation=name, width=width)


def test_means_are_the_fixed_points_to_order_1_over_d(data):
    linear = data.mean_gram.sel(activation="linear", width=1024).values
    relu = data.mean_gram.sel(activation="relu", width=1024).values
    # An entry has a standard deviation of .05 at most, so its mean over 32 networks one of
    # .009, however long layers remember; 5.5 of these are allowed.
    np.testing.assert_allclose(linear, np.eye(4), atol=0.05)
    c = 0.4796748154548388  # c = E relu relu of unit normals with correlation c, solved apart
    np.testing.assert_allclose(relu, 0.5 * (c + (1 - c) * np.eye(4)), atol=0.05)


def test_activations_see_rows_of_length_1():
    """Beside plain networks; the two differ by less than 4 % or the test fails."""
    data = orthogonalizes.fig_6(
        activations=["tanh(x/2)"], widths=(32, 64), layers=100, chains=200, rng=7
    ).data.sel(activation="tanh(x/2)")

    # Rows of four entries of mean square 1 have length 2.
    plain = deviations(plain_grams(lambda x: np.tanh(x / 2), 32, 200, 100, 18))
    spread = require_mean((curve(data, "deviation")[0], 200), plain)
    assert special.stdtrit(199, 1 - CERTAIN / 2) * spread < 0.04 * plain.mean()


@pytest.mark.slow
def test_networks_that_lost_a_sample_are_left_out():
    """Of relu at width 14 a seventh has by layer 600: a sample dies in one layer of 2^14."""
    data = orthogonalizes.fig_6(
        activations=["relu"], widths=(14, 32), layers=300, chains=250, rng=6
    ).data.sel(activation="relu")
    lost = 250 - data.alive.values
    assert lost[1] == 0

    grams = plain_grams(lambda x: np.maximum(x, 0.0), 14, 300, 300, 16)
    alive = np.einsum("cii->ci", grams[:, -1]).min(axis=1) > 0
    # Both counts are binomial; two-sided, by the normal law.
    share = (lost[0] + (~alive).sum()) / 550
    spread = math.sqrt(share * (1 - share) * (1 / 250 + 1 / 300))
    # The normal law serves for counts of some tens.
    assert min(lost[0], (~alive).sum(), alive.sum()) > 30
    assert abs(lost[0] / 250 - (~alive).mean()) <= special.ndtri(1 - CERTAIN / 2) * spread

    deviation = curve(data, "deviation")[0]
    require_mean((deviation, int(data.alive[0])), deviations(grams[alive]))


def plain_grams(function, width, count, layers, seed):
    """Return Gram matrices of plain networks after so many layers of burn-in, and as many more."""
    chain = Chain(width, 4, "linear", norm="batch-uncentred")
    rng = np.random.default_rng(seed)
    return numpy_network.grams(chain, 2 * layers, count, rng, function=function)[:, layers:]


def deviations(grams):
    return np.linalg.norm(grams - grams.mean(axis=(0, 1)), axis=(-2, -1)).mean(axis=1)
