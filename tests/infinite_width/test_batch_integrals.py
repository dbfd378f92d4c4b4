"""Closed integrals of batch normalization against random rows, closed forms and the fixed point.

The rows of the Monte Carlo means have 6 or more dimensions, so that 1/variance has a finite second
moment.  Of the means of 400,000 rows, |z| > 6.5 has probability 1e-10, and there are about 400.
"""

import numpy as np
import pytest
from infinite_width_checks import law_of
from slow_cases import pairs, some

import bnmc
from bnmc import Chain
from bnmc.errors import ArgumentError, ZeroVarianceError
from bnmc.infinite_width.batch_integrals import (
    Homogeneous,
    Pair,
    batch_law,
    joint_factor,
    require_finite_tangents,
)

ROWS = 400_000
SLOPES = {"relu": (0.0, 1.0), "linear": (1.0, 1.0), "leaky": (-0.3, 1.0)}


def derivative_times(rows, slopes, root):
    """Return σ(N(u)), and J(u) times a matrix, for rows u: by the formula of J."""
    c = rows - rows.mean(axis=1, keepdims=True)
    size = c.std(axis=1, keepdims=True)
    x = c / size
    slope = np.where(x > 0, slopes[1], slopes[0])
    inner = root - root.mean(axis=0)
    inner = inner - x[:, :, None] * (x @ inner / x.shape[1])[:, None, :]
    return slope * x, (slope / size)[:, :, None] * inner


# Both slopes of the leaky one count; the next test has all three.
@pytest.mark.parametrize("name", some(SLOPES, "leaky"))
def test_random_rows(name):
    slopes = SLOPES[name]
    rng = np.random.default_rng(3)
    x = rng.standard_normal((14, 15)) * np.linspace(0.5, 2.0, 15)
    root = rng.standard_normal((15, 3))
    gram, theta = x.T @ x, root @ root.T
    layer = Homogeneous(*slopes)
    left, right = law_of(gram[:7, :7]), law_of(gram[7:, 7:])
    single = layer.own(left, theta[:7, :7])
    across = layer.across(Pair(left, right, gram[:7, 7:], theta[:7, 7:]))
    assert layer.error < 1e-7
    sums = np.zeros((2, 4), dtype=object)
    for _ in range(20):
        rows = rng.standard_normal((ROWS // 20, 14)) @ x
        a, ja = derivative_times(rows[:, :7], slopes, root[:7])
        b, jb = derivative_times(rows[:, 7:], slopes, root[7:])
        products = (
            a[:, :, None] * a[:, None], ja @ ja.swapaxes(1, 2),
            a[:, :, None] * b[:, None], ja @ jb.swapaxes(1, 2),
        )  # fmt: skip
        for at, product in enumerate(products):
            sums[0, at] += product.sum(axis=0) / ROWS
            sums[1, at] += (product**2).sum(axis=0) / ROWS
    for exact, mean, square in zip((*single, *across), *sums, strict=True):
        error = np.sqrt((square - mean**2) / ROWS) + 1e-12
        assert np.abs((exact - mean) / error).max() < 6.5


@pytest.mark.parametrize("name", SLOPES)
def test_a_batch_with_itself_by_two_variables(name):
    rng = np.random.default_rng(4)
    x, root = rng.standard_normal((9, 6)), rng.standard_normal((6, 6))
    gram, theta = x.T @ x, root @ root.T
    layer, law = Homogeneous(*SLOPES[name]), law_of(gram)
    single, double = layer.own(law, theta), layer.across(Pair(law, law, gram, theta))
    np.testing.assert_allclose(double[0], single[0], atol=1e-9)
    np.testing.assert_allclose(double[1], single[1], atol=1e-8 * np.abs(single[1]).max())


@pytest.mark.parametrize(("name", "spread"), pairs(SLOPES, [1.0, 1e-2, 1e-6], every=3))
def test_a_batch_that_determines_another_by_two_variables(name, spread):
    """Of 3 features each, the other batch has the same samples in another order.

    The integrand decays as z^(−½) only, so that rounding errors at large z would be seen.
    """
    rng = np.random.default_rng(5)
    x, root = rng.standard_normal((3, 5)), rng.standard_normal((5, 5))
    x[1:] *= np.sqrt(spread)
    order = [3, 0, 4, 1, 2]
    gram, theta = x.T @ x, root @ root.T
    layer, law, other = Homogeneous(*SLOPES[name]), law_of(gram), law_of(gram[order][:, order])
    means = layer.own(law, theta), layer.across(Pair(law, other, gram[:, order], theta[:, order]))
    assert layer.error < 1e-7
    for single, double in zip(*means, strict=True):
        error = np.abs(double - single[:, order]).max()
        assert error < 1e-6 * np.abs(single).max()


def test_a_nearly_flat_batch_takes_no_variance_from_one_that_is_independent():
    """Independent rows: the covariances are products of means, the same in both orders."""
    rng = np.random.default_rng(6)
    flat, x, root = (rng.standard_normal((4, 5)) for _ in range(3))
    flat[1:] *= 1e-7
    x[1:] *= 0.1
    laws = law_of(flat.T @ flat), law_of(x.T @ x)
    none, theta = np.zeros((5, 5)), root.T @ root
    layer = Homogeneous(0.0, 1.0)
    means = layer.across(Pair(*laws, none, theta)), layer.across(Pair(*laws[::-1], none, theta.T))
    assert layer.error < 1e-7
    for first, second in zip(*means, strict=True):
        np.testing.assert_allclose(first, second.T, rtol=0, atol=1e-9 * np.abs(second).max())


@pytest.mark.parametrize("n", [4, 5, 12, 40])
def test_the_linear_network_of_equivalent_samples(n):
    # For rows with covariance P, E J P Jᵀ = n (n − 2) / ((n − 1) (n − 3)) P.
    P = np.eye(n) - 1.0 / n
    layer = Homogeneous(1.0, 1.0)
    value, slope = layer.own(law_of(P), P)
    np.testing.assert_allclose(value, n / (n - 1) * P, atol=1e-13)
    np.testing.assert_allclose(slope, n * (n - 2) / ((n - 1) * (n - 3)) * P, atol=1e-12)


@pytest.mark.parametrize(("n", "name"), [(5, "relu"), (10, "relu"), (10, "linear")])
def test_gradients_grow_at_the_backward_rate_of_the_fixed_point(n, name):
    point = bnmc.MeanField(Chain(1, n, name)).fixed_point()
    P = np.eye(n) - 1.0 / n
    _, slope = Homogeneous(*SLOPES[name]).own(law_of(point.gram), P)
    assert np.trace(P @ slope) / (n - 1) == pytest.approx(point.backward_rate, rel=1e-10)


def test_independent_batches_have_the_product_of_means():
    # E relu(√n û_i) = √(n/(2π (n−1))) √(2/(n−1)) Γ(…): it is that of one coordinate of a sphere.
    n = 6
    P = np.eye(n) - 1.0 / n
    t = np.random.default_rng(5).standard_normal((200_000, n))
    t -= t.mean(axis=1, keepdims=True)
    mean = np.maximum(t / t.std(axis=1, keepdims=True), 0.0).mean()
    value, slope = Homogeneous(0.0, 1.0).across(Pair(law_of(P), law_of(P), 0.0 * P, 0.0 * P))
    assert np.ptp(value) < 1e-12
    assert value[0, 0] == pytest.approx(mean**2, rel=5e-3)  # 1.2 million coordinates
    assert not slope.any()


def test_one_dimension_has_no_derivative():
    gram = np.array([[1.0, 0.2], [0.2, 2.0]])
    value, slope = Homogeneous(0.0, 1.0).own(law_of(gram), gram)
    np.testing.assert_allclose(value, 0.5 * np.eye(2), atol=1e-12)
    assert not slope.any()
    _, slope = Homogeneous(0.0, 1.0).across(Pair(law_of(gram), law_of(gram), gram, gram))
    assert not slope.any()


def test_a_sample_at_the_mean_of_its_batch():
    # Its normalized value is 0, so that its entries are 0; σ′ counts as the mean of both sides.
    x = np.random.default_rng(6).standard_normal((8, 6))
    x[:, 0] = x[:, 1:].mean(axis=1)
    value, slope = Homogeneous(0.0, 1.0).own(law_of(x.T @ x), np.eye(6))
    assert np.isfinite(slope).all()
    np.testing.assert_allclose(value[0], 0.0, atol=1e-7)


def centred(x):
    return x - x.mean(axis=1, keepdims=True)


def test_the_factor_has_the_covariances_of_centred_rows():
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((9, 4)), rng.standard_normal((9, 6))
    left, right = law_of(x.T @ x), law_of(y.T @ y)
    assert left.trace == pytest.approx(np.trace(centred(x).T @ centred(x)))
    assert (left.size, left.rank, right.rank) == (4, 3, 5)
    factor = joint_factor(Pair(left, right, x.T @ y, None))
    assert factor.shape == (8, 8)
    a, b = left.vectors @ factor[:3], right.vectors @ factor[3:]
    expected = centred(x).T @ centred(y) / np.sqrt(left.trace * right.trace)
    np.testing.assert_allclose(a @ b.T, expected, atol=1e-14)
    np.testing.assert_allclose(a @ a.T, centred(x).T @ centred(x) / left.trace, atol=1e-14)


def test_the_same_batch_twice_has_the_rank_of_one():
    x = np.random.default_rng(1).standard_normal((9, 5))
    law = law_of(x.T @ x)
    assert joint_factor(Pair(law, law, x.T @ x, None)).shape == (8, 4)


def test_batches_without_variance_raise():
    chain = Chain(1, 4, "relu")
    with pytest.raises(ArgumentError, match="other"):
        batch_law(chain.layers[1].rows, np.ones((4, 4)), 0, "other")
    with pytest.raises(ZeroVarianceError):
        batch_law(chain.layers[1].rows, np.ones((4, 4)), 3, "other")


def test_the_error_is_the_largest_so_far():
    rng = np.random.default_rng(3)
    laws = [law_of(x.T @ x) for x in (rng.standard_normal((9, 4)), rng.standard_normal((4, 9)))]
    errors = []
    for law in laws:
        single = Homogeneous(0.0, 1.0)
        single.own(law, None)
        errors.append(single.error)
    assert 0.0 < min(errors) < max(errors)
    layer = Homogeneous(0.0, 1.0)
    for law in (*laws, *laws):
        layer.own(law, None)
        assert layer.error in errors
    assert layer.error == max(errors)


@pytest.mark.parametrize(("samples", "features"), [(3, 9), (5, 2)])
def test_two_dimensions_have_an_infinite_tangent_kernel(samples, features):
    x = np.random.default_rng(2).standard_normal((features, samples))
    with pytest.raises(ArgumentError, match="infinite"):
        require_finite_tangents(law_of(x.T @ x), "x")
