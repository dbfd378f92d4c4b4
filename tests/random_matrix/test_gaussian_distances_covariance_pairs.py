"""Pairs of covariances in all three distances: rows, singular matrices, stacks, bad arguments."""

import math

import numpy as np
import pytest
from random_matrix_checks import covariance, one_dimensional_tv
from scipy import linalg

import bnmc
from bnmc import random_matrix as rm
from bnmc.errors import ArgumentError

PAIRS = [rm.kl, rm.wasserstein, rm.total_variation]


def test_rows_are_copies():
    """`rows` rows are one row of covariance I ⊗ S."""
    rng = np.random.default_rng(0)
    S1, S2 = covariance(rng, 3), covariance(rng, 3)
    for function in PAIRS:
        copied = function(np.kron(np.eye(4), S1), np.kron(np.eye(4), S2))
        assert function(S1, S2, rows=4) == pytest.approx(copied, rel=1e-12, abs=0)


def test_singular_matrices():
    """Different ranges: TV 1 and KL infinite. A common range: the laws restricted to it."""
    rng = np.random.default_rng(1)
    basis = np.linalg.qr(rng.standard_normal((5, 5)))[0][:, :3]
    S1, S2 = covariance(rng, 3), covariance(rng, 3)
    lifted1, lifted2 = basis @ S1 @ basis.T, basis @ S2 @ basis.T
    for function in PAIRS:
        assert function(lifted1, lifted2) == pytest.approx(function(S1, S2), rel=1e-11, abs=0)
        assert function(lifted1, lifted1) <= 1e-13
        assert function(np.zeros((2, 2)), np.zeros((2, 2))) == 0
    smaller = basis[:, :2] @ basis[:, :2].T
    elsewhere = np.linalg.qr(rng.standard_normal((5, 3)))[0]
    others = [smaller, elsewhere @ elsewhere.T, np.eye(5), np.zeros((5, 5))]
    for other in others:
        for pair in ((lifted1, other), (other, lifted1)):
            assert rm.kl(*pair) == math.inf
            assert rm.total_variation(*pair) == 1
    # the Gram matrices of centred samples are singular, to rounding
    x = rng.standard_normal((2, 50, 6))
    G, H = bnmc.gram.centre(bnmc.gram.gram(x))
    helmert = linalg.helmert(6)
    for function in PAIRS:
        regular = function(helmert @ G @ helmert.T, helmert @ H @ helmert.T)
        assert function(G, H) == pytest.approx(regular, rel=1e-11, abs=0)


@pytest.mark.parametrize("function", PAIRS)
def test_stacks_of_pairs(function):
    rng = np.random.default_rng(6)
    stack = np.stack([[covariance(rng, 3) for _ in range(3)] for _ in range(2)])
    stack[1, 2] = covariance(rng, 3, rank=2)
    other = covariance(rng, 3)
    alone = np.array([[function(S, other) for S in line] for line in stack])
    np.testing.assert_allclose(function(stack, other), alone, rtol=1e-12)
    assert function(other, stack[:, :1], rows=[1, 2, 3]).shape == (2, 3)
    assert function(stack[:0], other).shape == (0, 3)
    assert function(other, other.astype(np.float32)).shape == ()


def test_single_precision_is_judged_by_its_own_rounding():
    """An eigenvalue of 1e-8 beside 1 is zero to the rounding of float32, not to that of float64."""
    G, H = np.diag(np.float32([1, 1e-8])), np.diag(np.float32([2, 4e-8]))
    assert rm.kl(G, H) == pytest.approx(rm.kl([[1.0]], [[2.0]]), rel=1e-14, abs=0)
    assert rm.wasserstein(G, H) == pytest.approx(math.sqrt(2) - 1, rel=1e-14, abs=0)
    assert rm.total_variation(G, H) == pytest.approx(one_dimensional_tv(2.0, 1), abs=1e-14)
    for function in PAIRS:
        assert function(G, H.astype(float)) == function(G, H)
        assert function(G.astype(float), H.astype(float)) > function(G, H) + 1e-9


def test_bad_magnitudes_and_tolerances():
    for function in (rm.kl, rm.total_variation):
        with pytest.raises(ArgumentError, match="^S2: got 1e-201, .* 1e200"):
            function([[1.0]], [[1e-201]])
    assert rm.total_variation([[1e-150]], [[1e49]]) == 1
    assert rm.total_variation([[1e150]], [[1e150]]) == 0
    assert rm.total_variation([[1, 1e-200], [1e-200, 1]], np.eye(2)) <= 1e-100
    for atol in (0, -1, math.nan):
        with pytest.raises(ArgumentError, match="^atol: got "):
            rm.total_variation([[1.0]], [[2.0]], atol=atol)
