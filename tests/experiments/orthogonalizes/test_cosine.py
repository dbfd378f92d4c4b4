"""Fig. 1 beside theory.

Intervals of 95 % are widened to `CERTAIN`, where all comparisons of a test together fail with
probability at most 1e-6 if the theory holds.
"""

import math
from itertools import pairwise

import numpy as np
import pytest
from experiment_checks import errors
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


def test_batch_norm_has_its_plateau(data):
    """Of order 1/√d; `test_authors` compares layers 10 and 49 with the code of the authors."""
    cosine = curve(data, "cosine")[0, -1]
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
