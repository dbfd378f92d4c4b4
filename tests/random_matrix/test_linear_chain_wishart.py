"""Moments of Wishart matrices against pairings and simulation, and the vanilla deviation."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from random_matrix_checks import EPS, assert_mean, covariance
from scipy import linalg

from bnmc import random_matrix as rm
from bnmc.errors import ArgumentError, SingularGramError


def expectation_of_product(S, factors):
    """E of a product of entries of Z, rows i.i.d. N(0, S), by Isserlis: the sum over pairings."""
    if not factors:
        return 1.0
    (row, column), rest = factors[0], factors[1:]
    return sum(
        S[column, other_column] * expectation_of_product(S, rest[:i] + rest[i + 1 :])
        for i, (other_row, other_column) in enumerate(rest)
        if other_row == row
    )


def wishart_expectation(S, d, pairs):
    """E of Π G_ab over the pairs (a, b), G = ZᵀZ/d, each G a sum over rows."""
    rows = itertools.product(range(d), repeat=len(pairs))
    total = sum(
        expectation_of_product(
            S, [f for r, (a, b) in zip(choice, pairs, strict=True) for f in ((r, a), (r, b))]
        )
        for choice in rows
    )
    return total / d ** len(pairs)


@pytest.mark.parametrize("d", [1, 2, 3])
def test_wishart_moments_by_pairings(d):
    n = 2
    S = covariance(np.random.default_rng(d), n)
    moments = rm.WishartMoments(S, d)
    square = np.array(
        [
            [sum(wishart_expectation(S, d, [(a, c), (c, b)]) for c in range(n)) for b in range(n)]
            for a in range(n)
        ]
    )
    squared_trace = sum(
        wishart_expectation(S, d, [(a, a), (b, b)]) for a in range(n) for b in range(n)
    )
    cube = sum(
        wishart_expectation(S, d, [(a, b), (b, c), (c, a)])
        for a, b, c in itertools.product(range(n), repeat=3)
    )
    np.testing.assert_allclose(moments.square, square, rtol=1e-13)
    assert moments.trace_of_square == pytest.approx(np.trace(square), rel=1e-13, abs=0)
    assert moments.squared_trace == pytest.approx(squared_trace, rel=1e-13, abs=0)
    assert moments.trace_of_cube == pytest.approx(cube, rel=1e-13, abs=0)
    deviation = np.trace(square) - np.trace(S @ S)  # E‖G − S‖² = E‖G‖² − ‖S‖²
    assert moments.deviation == pytest.approx(deviation, rel=1e-12, abs=0)


def test_wishart_moments_by_simulation():
    rng = np.random.default_rng(7)
    n, d = 3, 9
    S = covariance(rng, n)
    Z = rng.standard_normal((100_000, d, n)) @ linalg.cholesky(S)
    G = np.swapaxes(Z, 1, 2) @ Z / d
    moments = rm.WishartMoments(S, d)
    assert_mean(G @ G, moments.square)
    assert_mean(np.linalg.inv(G), moments.inverse)
    assert_mean(np.linalg.norm(G - S, axis=(1, 2)) ** 2, moments.deviation)
    assert_mean(np.trace(G @ G @ G, axis1=1, axis2=2), moments.trace_of_cube)
    assert_mean(np.trace(G, axis1=1, axis2=2) ** 2, moments.squared_trace)


def test_wishart_moments_of_stacks_and_of_one_sample():
    stack = np.stack([covariance(np.random.default_rng(seed), 3) for seed in range(4)])
    names = ["square", "trace_of_square", "squared_trace", "deviation", "trace_of_cube", "inverse"]
    for name in names:
        together = getattr(rm.WishartMoments(stack.reshape(2, 2, 3, 3), 12), name)
        alone = [getattr(rm.WishartMoments(S, 12), name) for S in stack]
        np.testing.assert_allclose(together.reshape(np.shape(alone)), alone, rtol=1e-12, atol=1e-14)
    # χ²_d / d has moments 1, 1 + 2/d, (1 + 2/d)(1 + 4/d), and d/(d − 2) for the inverse
    one = rm.WishartMoments([[1.0]], 10)
    assert [one.trace_of_square, one.squared_trace] == pytest.approx([1.2, 1.2])
    assert one.trace_of_cube == pytest.approx(1.2 * 1.4)
    assert one.inverse == pytest.approx(np.array([[10 / 8]]))


def test_bad_arguments_of_wishart_moments():
    with pytest.raises(ArgumentError, match="^width: got 3, allowed: an integer > 3"):
        _ = rm.WishartMoments(np.eye(2), 3).inverse
    for S in (np.ones((2, 2)), np.zeros((2, 2))):
        with pytest.raises(SingularGramError, match=r"^S\[1\]: singular"):
            _ = rm.WishartMoments([np.eye(2), S], 9).inverse
    for name in ("square", "trace_of_cube"):
        with pytest.raises(ArgumentError, match="^S: got 1e.200, .*overflow"):
            getattr(rm.WishartMoments(1e200 * np.eye(2), 9), name)
    with pytest.raises(ArgumentError, match="^S: got .*overflow"):
        _ = rm.WishartMoments([[1e-320]], 9).inverse


def exact_deviation(d, n, depth):
    """The recursion of E Tr G² and E (Tr G)² from G = I, in fractions."""
    square, trace = Fraction(n), Fraction(n * n)
    for _ in range(depth):
        square, trace = (
            square * (1 + Fraction(1, d)) + trace / d,
            trace + 2 * square / Fraction(d),
        )
    return float(square - n)


@pytest.mark.parametrize(("d", "n"), [(1, 1), (1, 4), (2, 3), (50, 10), (7, 30)])
def test_vanilla_deviation_is_the_recursion(d, n):
    depths = np.array([0, 1, 2, 5, 40])
    exact = [exact_deviation(d, n, depth) for depth in depths.tolist()]
    np.testing.assert_allclose(rm.vanilla_deviation(d, n, depths), exact, rtol=1e-13)
    assert rm.vanilla_deviation(d, n, 1) == pytest.approx(
        float(rm.WishartMoments(np.eye(n), d).deviation), rel=1e-14, abs=0
    )


def test_linear_covariance():
    """One layer, the identity at any depth, the recursion, and a simulation."""
    S = np.array([[2.0, 0.5], [0.5, 1.0]])
    one = rm.linear_covariance(S, 7, 1)
    expected = np.einsum("ik,jm->ijkm", S, S) + np.einsum("im,jk->ijkm", S, S)
    np.testing.assert_allclose(one, expected / 7, rtol=1e-14)
    for d, n, depth in ((1, 3, 2), (5, 2, 30), (100, 4, 7)):
        total = np.einsum("ijij", rm.linear_covariance(np.eye(n), d, depth))
        assert total == pytest.approx(float(rm.vanilla_deviation(d, n, depth)), rel=1e-13)
    assert not rm.linear_covariance(S, 7, 0).any()
    # 20 000 chains of 3 layers of width 200; the standard error of a covariance is at most 1.5 %
    # of the largest variance, and 8 of them exclude chance.
    rng, chains, width = np.random.default_rng(9), 20_000, 200
    G = np.repeat(S[None], chains, axis=0)
    for _ in range(3):
        rows = rng.standard_normal((chains, width, 2)) @ np.linalg.cholesky(G).swapaxes(1, 2)
        G = rows.swapaxes(1, 2) @ rows / width
    found = np.cov(G.reshape(chains, 4).T).reshape(2, 2, 2, 2)
    exact = rm.linear_covariance(S, width, 3)
    np.testing.assert_allclose(found, exact, rtol=0, atol=8 * 0.015 * exact.max())
    far = rm.linear_covariance(np.diag([1.0, 0.0]), 1, 10**6)
    assert far[0, 0, 0, 0] == np.inf
    assert np.count_nonzero(far) == 1


# mpmath, mp.dps = 80: n*(n+2)/3*(1+2/d)**l - n*(n-1)/3*(1-1/d)**l - n
@pytest.mark.parametrize(
    ("d", "n", "depth", "exact"),
    [
        (10**15, 10, 1, 1.1e-13),
        (10**15, 10, 10**9, 0.000110000065000058268),
        (10**6, 3, 10**8, 3.61226435990425171e87),
        (1000, 10, 350_000, 2.01648929476934006e305),
        (7, 4, 3, 10.4839650145772595),
    ],
)
def test_vanilla_deviation_of_wide_and_deep_chains(d, n, depth, exact):
    """An exponent x = 2l/d carries its rounding, ε x, over to the result."""
    rtol = 8 * EPS * max(1, 2 * depth / d)
    assert rm.vanilla_deviation(d, n, depth) == pytest.approx(exact, rel=rtol, abs=0)


def test_vanilla_deviation_beyond_float64_is_infinite():
    assert rm.vanilla_deviation(10, 10, [0, 2**53]).tolist() == [0, math.inf]
