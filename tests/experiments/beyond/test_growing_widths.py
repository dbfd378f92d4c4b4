"""Networks of growing width: slopes, memory, and a network beside one with drawn weights."""

import numpy as np
from experiment_checks import CERTAIN, slope_error
from numpy.testing import assert_allclose
from numpy_network import Networks
from scipy import special

import bnmc
from bnmc.experiments.beyond import growing_widths
from bnmc.implicit import GaussianMatrix

FIGURE = "wider-than-memory"


def test_slopes_are_minus_one_half(data):
    """To the errors of a normal estimate, and to the order 1/d of the mean at width 64."""
    for name in data["quantity"].values:
        part = data.sel(quantity=name)
        allowed = -special.ndtri(CERTAIN / 2) * slope_error(part, "slope") + 0.05
        assert abs(float(part["slope"]) + 0.5) < allowed < 0.4


def test_memory(data):
    """Two blocks of 12 d² weights; 4 directions a side of matrices of 16 d rows and columns."""
    width = data["width"].values
    assert_allclose(data["weights"], 4 * 2 * 12 * width**2)
    assert_allclose(data["memory"], 4 * 2 * 2 * 4 * 16 * width)


def test_an_mlp_is_that_of_its_weights(monkeypatch):
    """The weights are decided after the pass."""
    matrices, loss = [], np.random.default_rng(1).standard_normal((16, 4))

    def matrix(*shape, **options):
        matrices.append(GaussianMatrix(*shape, **options))
        return matrices[-1]

    monkeypatch.setattr(growing_widths, "GaussianMatrix", matrix)
    monkeypatch.setattr(growing_widths, "_random_loss", lambda shape, rng: loss.reshape(shape))
    x = np.eye(4) + 0.5
    measured = growing_widths._perceptron(16, 3, x, np.random.default_rng(0))
    # Gradients of samples add up to 0 through a batch norm: 3 directions.
    assert [matrix.asked for matrix in matrices[1:]] == [(4, 3)] * 2
    first, *weights = (matrix.dense()[None] for matrix in matrices)
    networks = Networks(
        bnmc.Chain(16, 4, "relu"), 2, 1, None, initial=first[0] @ x, weights=weights
    )  # fmt: skip
    assert_allclose(measured["MLP, Gram matrix"], networks.gram(2)[0], rtol=1e-12)
    second = networks.backward(networks._made[-1].back(loss[None], 0.0))[0][0]
    delta = networks._made[0].back(weights[0].mT @ second, 0.0)[0]
    assert_allclose(measured["MLP, gradients"], delta.T @ delta, rtol=1e-9)


def test_a_random_loss():
    gradient = growing_widths._random_loss((40_000, 3), np.random.default_rng(0))
    signs = np.array([1.0, -1.0, 1.0])
    # The relative standard deviation of the mean square of 40,000 normals is .007.
    assert_allclose(gradient.T @ gradient, np.outer(signs, signs), rtol=0.035)
