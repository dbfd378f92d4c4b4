"""Fig. 1 beside theory and plain NumPy networks.

Intervals of 95 % are widened to `CERTAIN`, where all comparisons of a test together fail with
probability at most 1e-6 if the theory holds.
"""

import math
from itertools import pairwise

import numpy as np
import pytest
from experiment_checks import errors, require_mean
from scipy import integrate, special

from bnmc.experiments.pictures import curve

FIGURE = "orthogonalizes-1"


def test_vanilla_angles_follow_the_exact_law_at_every_layer(data):
    band = curve(data, "log_squared_sine")[1]
    error, allowed = errors(band, 400)
    layers = np.arange(1, 51)
    # E log sin² of one layer: of a Beta((d−1)/2, 1/2) variable.
    exact = layers * (special.digamma(31 / 2) - special.digamma(32 / 2))
    assert np.all(np.abs(band[:, 0] - exact) <= allowed * error)
    np.testing.assert_allclose(data.vanilla_log_squared_sine, exact, rtol=1e-12)


def test_batch_norm_has_the_plateau_of_plain_networks(data):
    rng = np.random.default_rng(11)
    x = np.array([[1.0, 0.999], [0.0, 0.001]])
    cosines = []
    for _ in range(400):
        h = rng.standard_normal((32, 2)) @ x
        for _ in range(30):
            h = rng.standard_normal((32, 32)) @ (h / np.linalg.norm(h, axis=1)[:, None])
        h /= np.linalg.norm(h, axis=1)[:, None]
        cosines.append(abs(h[:, 0] @ h[:, 1]) / np.prod(np.linalg.norm(h, axis=0)))
    cosine = curve(data, "cosine")[0, -1]
    require_mean((cosine, 400), cosines)
    error, allowed = errors(cosine, 400)
    # The theory is of order 1/√d, its error of order 1/d^{3/2}.
    theory = math.sqrt(4 / (3 * math.pi * 32))
    assert float(data.cosine_plateau) == pytest.approx(theory, rel=1e-12)
    assert abs(cosine[0] - theory) <= allowed * error + 4 * theory / 32


def test_a_layer_of_infinite_width_is_the_mean_over_directions(data):
    wide = data.cosine_at_infinite_width.values
    for before, after in pairwise(wide[3:9]):
        inverse = np.linalg.inv([[1, before], [before, 1]])

        def direction(angle, inverse=inverse, determinant=1 - before**2):
            u = np.array([math.cos(angle), math.sin(angle)])
            return 1 / (2 * math.pi * math.sqrt(determinant) * (u @ inverse @ u))

        mean, _ = integrate.quad(
            lambda a: math.sin(2 * a) * direction(a), 0, 2 * math.pi, points=[math.pi / 4],
            limit=200,
        )  # fmt: skip
        assert after == pytest.approx(mean, rel=1e-6)


def test_vanilla_networks_align_where_batch_norm_separates(data):
    cosine = curve(data, "cosine")
    error, allowed = errors(cosine, 400)
    rise = cosine[1, -1, 0] - cosine[1, 0, 0]
    assert rise > allowed * math.hypot(error[1, -1], error[1, 0])
    assert cosine[0, 0, 0] > 0.9
    assert cosine[0, -1, 0] < 0.3
