"""Alignment and complexity against their definitions."""

import numpy as np
import pytest

from bnmc.errors import ArgumentError, ArgumentTypeError, SingularGramError
from bnmc.infinite_width import alignment, complexity


def kernel(n, rank, seed=0):
    factor = np.random.default_rng(seed).standard_normal((n, rank))
    return factor @ factor.T


def test_alignment_by_definition():
    G, y = kernel(6, 8), np.arange(6.0)
    found = alignment(G, y)
    assert (np.diff(found.eigenvalues) <= 0).all()
    assert found.squares.sum() == pytest.approx(y @ y)
    # yᵀ G^k y = Σ λ^k (yᵀv)²
    for k in (1, 2, 3):
        moment = y @ np.linalg.matrix_power(G, k) @ y
        assert found.eigenvalues**k @ found.squares == pytest.approx(moment)
    columns = alignment(G, np.stack([y, 2 * y], axis=1))
    assert columns.squares == pytest.approx(np.stack([found.squares, 4 * found.squares], axis=1))


def test_complexity_by_definition():
    G, y = kernel(6, 8), np.arange(6.0)
    assert complexity(G, y) == pytest.approx(np.sqrt(2 * y @ np.linalg.solve(G, y) / 6))


def test_complexity_of_a_singular_kernel_raises():
    with pytest.raises(SingularGramError):
        complexity(kernel(6, 3), np.ones(6))


@pytest.mark.parametrize(
    ("G", "y", "kind"),
    [
        (np.eye(2), np.ones(3), ArgumentError),
        (np.eye(2), np.ones((2, 2, 2)), ArgumentError),
        (np.eye(2), "yes", ArgumentTypeError),
        (np.ones((2, 3)), np.ones(2), ArgumentError),
        (np.diag([1.0, -1.0]), np.ones(2), ArgumentError),
        ([[1.0, 0.5], [0.0, 1.0]], np.ones(2), ArgumentError),
        ([[1.0, np.inf], [np.inf, 1.0]], np.ones(2), ArgumentError),
    ],
)
def test_bad_input_raises(G, y, kind):
    with pytest.raises(kind):
        alignment(G, y)
