"""Parts of the fixed point of rows that are uniform on a sphere."""

import math

import numpy as np
import pytest

from bnmc.mean_field.fixed_point.symmetric import _mean_length, is_odd


@pytest.mark.parametrize("dimension", [1, 2, 3, 150, 298, 299, 300, 301, 400, 3_000, 10**6, 10**9])
def test_mean_lengths_of_neighbouring_dimensions(dimension):
    """Γ(m/2 + 1) = (m/2) Γ(m/2), so the lengths L of m and m + 1 have L² L'² = m/(m + 1).

    From 300 dimensions on they are a series: its last term is 2e-14 there, the next one 2e-16.
    """
    product = _mean_length(dimension) * _mean_length(dimension + 1)
    units = 16 if dimension < 299 else 4  # the Gamma function has a relative error of some units
    assert abs(product**2 * (dimension + 1) / dimension - 1) < 2 * units * np.finfo(float).eps


def test_mean_lengths_in_closed_form():
    """E|z| of one, two and three normals, and 1 − 1/(4m) of many."""
    assert _mean_length(1) == pytest.approx(math.sqrt(2 / math.pi), rel=1e-15)
    assert _mean_length(2) == pytest.approx(math.sqrt(math.pi) / 2, rel=1e-15)
    assert _mean_length(3) == pytest.approx(math.sqrt(8 / (3 * math.pi)), rel=1e-15)
    assert _mean_length(1e9) == pytest.approx(1 - 0.25e-9, rel=1e-15)
    assert _mean_length(math.inf) == 1.0


def test_a_function_is_odd_only_if_it_is_so_everywhere():
    """One that is odd near 0 alone, one that is not odd near 0 alone, and one that is odd."""
    breaks = np.array([-8.0, 0.0, 8.0])
    assert is_odd(np.tanh, breaks)
    assert not is_odd(lambda x: np.clip(x, -1.0, 2.0), breaks)
    assert not is_odd(lambda x: np.where(np.abs(x) < 1.0, np.abs(x), x), breaks)
