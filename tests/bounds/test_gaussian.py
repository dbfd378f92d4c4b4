"""Bounds of the total variation distance of Gaussian laws, against independent computations."""

import math

import numpy as np
import pytest
from random_matrix_checks import one_dimensional_tv
from scipy import linalg

from bnmc import gram as gm
from bnmc import random_matrix
from bnmc.bounds.gaussian import spectral_deviation, total_variation
from bnmc.errors import SingularGramError


def random_gram(rng, *lead, n, width=None):
    x = rng.standard_normal((*lead, 3 * n if width is None else width, n))
    return gm.cross_gram(x, x)


# ---------------------------------------------------------------- the theorem


@pytest.mark.parametrize("rows", [1, 2, 10, 1000])
@pytest.mark.parametrize("n", [1, 4])
def test_the_bounds_enclose_the_distance_of_multiples(n, rows):
    """Exact distances, from nearly equal to nearly singular laws, including n = 1."""
    base = random_gram(np.random.default_rng(n), n=n)
    for change in (1e-5, 1e-3, 0.03, 0.3, 1.0, 10.0, 1e3):
        for variance in (1 + change, 1 / (1 + change)):
            exact = one_dimensional_tv(variance, n * rows)
            lower, upper = total_variation(base, variance * base, rows=rows)
            assert lower <= exact <= upper
            deviation = math.sqrt(n * rows) * abs(variance - 1)
            assert lower == pytest.approx(min(deviation, 1) / 100, rel=1e-9)
            assert upper == pytest.approx(min(1.5 * deviation, 1), rel=1e-9)


@pytest.mark.parametrize("rows", [1, 6])
def test_the_bounds_enclose_the_distance_of_random_matrices(rows):
    rng = np.random.default_rng(5)
    for amount in (1e-3, 0.3, 0.6, 1.0):
        first = random_gram(rng, n=3)
        second = (1 - amount) * first + amount * random_gram(rng, n=3)
        lower, upper = total_variation(first, second, rows=rows)
        assert lower <= random_matrix.total_variation(first, second, rows=rows) <= upper


def test_singular_second_covariance():
    """The laws are mutually singular, TV = 1, and the theorem's bounds hold."""
    lower, upper = total_variation(np.eye(2), [[1.0, 1.0], [1.0, 1.0]])
    assert (lower, upper) == (0.01, 1.0)


def test_equal_laws():
    G = random_gram(np.random.default_rng(0), n=5)
    assert total_variation(G, G, rows=10**6) == (0.0, 0.0)


# ---------------------------------------------------------------- the deviation


@pytest.mark.parametrize("n", [1, 2, 7])
def test_deviation_is_that_of_the_generalised_eigenvalues(n):
    rng = np.random.default_rng(n)
    first, second = random_gram(rng, 5, n=n), random_gram(rng, 5, n=n)
    eigenvalues = [linalg.eigh(b, a, eigvals_only=True) for a, b in zip(first, second, strict=True)]
    expected = np.linalg.norm(np.array(eigenvalues) - 1, axis=-1)
    np.testing.assert_allclose(spectral_deviation(first, second), expected, rtol=1e-10)


def test_deviation_of_nearly_equal_matrices_keeps_its_digits():
    """A change of one exactly representable entry by 2⁻⁴⁰: λ = 2⁻⁴⁰ (S1⁻¹)₀₀, twice a zero."""
    first = np.array([[2.0, 0.5, 0.25], [0.5, 1.0, 0.0], [0.25, 0.0, 4.0]])
    second = first.copy()
    second[0, 0] += 2.0**-40
    expected = 2.0**-40 * np.linalg.inv(first)[0, 0]
    assert spectral_deviation(first, second) == pytest.approx(expected, rel=1e-13)


def test_deviation_and_the_frobenius_norm_of_the_quotient():
    rng = np.random.default_rng(3)
    first, second = random_gram(rng, 50, n=4, width=5), random_gram(rng, 50, n=4, width=5)
    symmetric, plain = spectral_deviation(first, second), gm.relative_deviation(first, second)
    ratio = plain / symmetric
    assert ((ratio >= 1 - 1e-10) & (ratio <= np.sqrt(gm.condition(first)) * (1 + 1e-10))).all()
    assert ratio.max() > 1.5


@pytest.mark.parametrize("exponent", [-900, 900])
def test_the_scale_common_to_both_does_not_matter(exponent):
    rng = np.random.default_rng(8)
    first, second = random_gram(rng, n=3), random_gram(rng, n=3)
    scaled = spectral_deviation(np.ldexp(first, exponent), np.ldexp(second, exponent))
    assert scaled == pytest.approx(spectral_deviation(first, second), rel=1e-13)


def test_a_deviation_beyond_float64_is_infinite():
    assert spectral_deviation([[1e-200]], [[1e200]]) == np.inf
    assert total_variation([[1e-200]], [[1e200]]) == (0.01, 1.0)


# ---------------------------------------------------------------- shapes and errors


def test_stacks_and_rows_broadcast():
    rng = np.random.default_rng(4)
    first, second = random_gram(rng, 3, 1, n=2), random_gram(rng, 4, n=2)
    rows = np.array([1, 5])[:, None, None]
    lower, upper = total_variation(first, second, rows=rows)
    assert lower.shape == upper.shape == (2, 3, 4)
    for i, j, k in np.ndindex(2, 3, 4):
        alone = total_variation(first[j, 0], second[k], rows=int(rows[i, 0, 0]))
        np.testing.assert_allclose(alone, (lower[i, j, k], upper[i, j, k]), rtol=1e-13)


def test_singular_covariances_are_named():
    stack = np.array([np.eye(2), [[1.0, 1.0], [1.0, 1.0]]])
    with pytest.raises(SingularGramError, match=r"S1\[1\]") as caught:
        total_variation(stack, np.eye(2))
    assert (caught.value.argument, caught.value.index) == ("S1", (1,))
    with pytest.raises(SingularGramError, match="S1: singular"):
        spectral_deviation(np.zeros((2, 2)), np.eye(2))
    # The matrix is singular to the rounding of float32, but not of float64.
    nearly = np.diag([1.0, 1e-7])
    assert spectral_deviation(nearly, nearly) == 0
    with pytest.raises(SingularGramError):
        spectral_deviation(nearly.astype(np.float32), nearly)
