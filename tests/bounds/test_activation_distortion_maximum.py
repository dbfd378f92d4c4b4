"""The certified maximum in one variable, against a search."""

import math

import numpy as np
import pytest
from bridging_checks import bump, wave
from scipy import optimize

import bnmc
from bnmc.bounds import activation_distortion


def affine(x):
    return 1.0 + x / 2


@pytest.mark.parametrize("slope", [-0.3, 0.0, 0.2, 0.55, 0.8, 2.0])
@pytest.mark.parametrize(
    ("function", "curvature"), [(affine, 0), (math.tanh, 0.76981), (wave, 9), (bump, 16)]
)
def test_the_certified_maximum_in_one_variable(function, curvature, slope):
    """The bound of σ(x)² − slope x² is at least the maximum, and within the requested gap."""
    reach = 3.0
    sigma = bnmc.chain.activations.as_activation(function)

    def height(x):
        return function(x) ** 2 - slope * x * x

    x = np.linspace(-reach, reach, 3001)
    start = x[np.argmax([height(point) for point in x])]
    nearby = np.clip([start - 0.002, start + 0.002], -reach, reach)
    inside = -optimize.minimize_scalar(
        lambda point: -height(point), bounds=nearby, method="bounded", options={"xatol": 1e-12}
    ).fun
    exact = max(inside, height(-reach), height(reach))
    found = activation_distortion.largest_excess(sigma, reach, slope, curvature)
    assert exact <= found <= exact + 1e-7
