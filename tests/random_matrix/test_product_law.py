"""The law of products: closed forms, drawn products of matrices, and bad arguments."""

import itertools
import math

import numpy as np
import pytest

from bnmc import errors
from bnmc.random_matrix import Factor, MarchenkoPastur, ProductLaw


@pytest.mark.parametrize("depth", [1, 4, 10])
def test_products_of_gaussian_matrices(depth):
    """The Fuss-Catalan law: its upper end, its variance and its third moment."""
    law = ProductLaw([Factor(10, 10, 1.0, [1.0])] * depth)
    end = (depth + 1) ** (depth + 1) / depth**depth
    assert law.largest == pytest.approx(end, rel=1e-8)
    assert (law.mean, law.dispersion) == pytest.approx((1.0, depth))
    x = np.geomspace(1e-12 * end, end, 40_001)
    third = math.comb(3 * (depth + 1), 3) / (3 * depth + 1)
    for power, moment in ((1, 1.0), (2, 1.0 + depth), (3, third)):
        integral = np.trapezoid(law.density(x) * x ** (power + 1), np.log(x))
        assert integral == pytest.approx(moment, rel=2e-3)


@pytest.mark.parametrize(("columns", "rows"), [(100, 300), (300, 100)])
def test_one_rectangular_matrix_has_the_law_of_marchenko_and_pastur(columns, rows):
    """JᵀJ of entries of variance 1/columns is rows/columns times a Gram matrix over rows."""
    law = ProductLaw([Factor(columns, rows, 1.0, [1.0])])
    ratio = rows / columns
    exact = MarchenkoPastur(columns / rows)
    assert law.largest == pytest.approx((1 + math.sqrt(ratio)) ** 2, rel=1e-8)
    x = np.linspace(0.8, 3.0, 7)
    assert law.density(x) == pytest.approx(exact.pdf(x / ratio) / ratio, rel=5e-3)


def test_networks_of_relu():
    """Dispersion 2 depth, as Pennington, Schoenholz and Ganguli; zeros have no density."""
    law = ProductLaw([Factor(10, 10, 2.0, [0.0, 1.0])] * 6)
    assert (law.mean, law.dispersion) == pytest.approx((1.0, 12.0))
    x = np.geomspace(1e-14, law.largest, 20_001)
    assert np.trapezoid(law.density(x) * x, np.log(x)) == pytest.approx(0.5, abs=0.01)


def test_isometries():
    law = ProductLaw([Factor(10, 10, 2.0, [1.0], is_orthogonal=True)] * 5)
    assert (law.mean, law.dispersion, law.largest) == pytest.approx((32.0, 0.0, 32.0))


SLOPES = np.array([0.0, 0.3, 1.0, 2.5])

PRODUCTS = {
    "gaussian": ([400, 300, 500], False, 400),
    "orthogonal": ([400, 400, 400], True, 400),
    "with columns of zeros": ([300, 300, 200], False, 400),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_drawn_products(name):
    """Moments and shares of one product of matrices of order 400; fluctuations are below 1 %."""
    sizes, is_orthogonal, size = PRODUCTS[name]
    rng, product, factors = np.random.default_rng(0), np.eye(sizes[0]), []
    for columns, rows in itertools.pairwise(sizes):
        w = rng.standard_normal((rows, columns)) / math.sqrt(columns)
        if is_orthogonal:
            w = np.linalg.qr(w)[0]
        slopes = np.resize(SLOPES, rows)
        product = np.sqrt(slopes)[:, None] * (1.3 * w @ product)
        factors.append(Factor(columns, rows, 1.69, SLOPES, is_orthogonal=is_orthogonal))
    law = ProductLaw(factors, size)
    squares = np.linalg.svd(product, compute_uv=False) ** 2
    mean = squares.sum() / size
    dispersion = (squares**2).sum() / size / mean**2 - 1.0
    assert law.mean == pytest.approx(mean, rel=0.04)
    assert law.dispersion == pytest.approx(dispersion, rel=0.05)
    assert law.largest == pytest.approx(squares.max(), rel=0.12)
    edges = np.quantile(squares[squares > 1e-9], [0.4, 0.6, 0.8, 0.95])
    for low, high in itertools.pairwise(edges):
        x = np.linspace(low, high, 201)
        share = ((squares > low) & (squares <= high)).sum() / size
        assert np.trapezoid(law.density(x), x) == pytest.approx(share, abs=0.015)


def test_unbounded_and_infinite_laws():
    law = ProductLaw([Factor(5, 5, 1.0, [1.0, 3.0], moments=(2.0, math.inf), is_bounded=False)])
    assert law.mean == 2.0
    assert (law.dispersion, law.largest, law.largest_over_mean) == (math.inf,) * 3


def test_means_beyond_float64():
    law = ProductLaw([Factor(5, 5, 1e200, [1.0])] * 2)
    assert law.mean == math.inf
    assert law.log_mean == pytest.approx(400 * math.log(10.0))
    assert law.largest_over_mean == pytest.approx(6.75)
    with pytest.raises(errors.ArgumentError, match="^factors"):
        law.density([1.0])
