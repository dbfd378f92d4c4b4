"""`bnmc.gram` against the formulas, written out in loops, and against their consequences."""

import math
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import bnmc
from bnmc import gram as gm
from bnmc.errors import ArgumentError, ArgumentTypeError, LayoutWarning, SingularGramError

# Samples may outnumber features here.
pytestmark = pytest.mark.filterwarnings("ignore::bnmc.errors.LayoutWarning")

FUNCTIONS_OF_TWO = [gm.distance, gm.relative_deviation]
FUNCTIONS_OF_G = [
    *(gm.orthogonality_gap, gm.rank_bound, gm.eigenvalues, gm.condition, gm.correlation),
    *(gm.centre, gm.validate_gram, partial(gm.soft_rank, tau=0.25, width=7)),
]
EVERY_FUNCTION_OF_G = pytest.mark.parametrize(
    "function", FUNCTIONS_OF_G, ids=lambda f: getattr(f, "__name__", "soft_rank")
)

# Representations whose entries and products float64 holds exactly.
representations = hnp.arrays(
    np.float64,
    hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=8),
    elements=st.integers(-8, 8),
).filter(lambda x: x.any())


def random_gram(rng, *lead, n, width=None):
    width = 3 * n if width is None else width
    x = rng.standard_normal((*lead, width, n))
    return gm.cross_gram(x, x)


# ---------------------------------------------------------------- the formulas, in loops


def test_gram_is_the_mean_of_products():
    a = np.random.default_rng(0).standard_normal((5, 3))
    expected = [[sum(a[k, i] * a[k, j] for k in range(5)) / 5 for j in range(3)] for i in range(3)]
    np.testing.assert_allclose(gm.gram(a), expected, rtol=1e-14, atol=1e-15)


def test_cross_gram_is_the_mean_of_products():
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((5, 3)), rng.standard_normal((5, 2))
    expected = [[sum(a[k, i] * b[k, j] for k in range(5)) / 5 for j in range(2)] for i in range(3)]
    np.testing.assert_allclose(gm.cross_gram(a, b), expected, rtol=1e-14, atol=1e-15)


def test_distance_and_gap_in_loops():
    rng = np.random.default_rng(2)
    G, H = random_gram(rng, n=4), random_gram(rng, n=4)
    pairs = [(i, j) for i in range(4) for j in range(4)]
    distance = math.sqrt(sum((G[i, j] - H[i, j]) ** 2 for i, j in pairs))
    trace = sum(G[i, i] for i in range(4))
    gap = math.sqrt(sum((G[i, j] / trace - (i == j) / 4) ** 2 for i, j in pairs))
    assert gm.distance(G, H) == pytest.approx(distance, rel=1e-14)
    assert gm.orthogonality_gap(G) == pytest.approx(gap, rel=1e-13)


def test_the_gap_is_the_one_of_the_paper_for_representations():
    """V(H) = ‖HᵀH/‖H‖_F² − I/n‖_F, written for H."""
    H = np.random.default_rng(3).standard_normal((9, 4))
    V = np.linalg.norm(H.T @ H / np.linalg.norm(H) ** 2 - np.eye(4) / 4)
    assert gm.orthogonality_gap(gm.gram(H)) == pytest.approx(V, rel=1e-13)


@pytest.mark.parametrize(("width", "n"), [(6, 6), (4, 9), (9, 4)])
@pytest.mark.parametrize("tau", [0.01, 0.3, 1.0])
def test_ranks_against_singular_values_and_M(width, n, tau):
    """The definitions of the rank-collapse paper, for H itself."""
    H = np.random.default_rng(width * n).standard_normal((width, n))
    sigma = np.linalg.svd(H, compute_uv=False)
    M = H @ H.T / n
    assert gm.soft_rank(gm.gram(H), tau, width=width) == np.count_nonzero(sigma**2 / n >= tau)
    assert gm.rank_bound(gm.gram(H)) == pytest.approx(np.trace(M) ** 2 / np.linalg.norm(M) ** 2)


def test_relative_deviation_is_the_norm_of_the_quotient():
    rng = np.random.default_rng(4)
    G, H = random_gram(rng, n=5), random_gram(rng, n=5)
    expected = np.linalg.norm(np.linalg.inv(G) @ H - np.eye(5))
    assert gm.relative_deviation(G, H) == pytest.approx(expected, rel=1e-11)
    # as stated: not below the root of the sum of squared eigenvalues
    assert gm.relative_deviation(G, H) >= np.linalg.norm(
        np.linalg.eigvals(np.linalg.inv(G) @ H) - 1
    )


def test_centre_is_the_projection():
    G = random_gram(np.random.default_rng(5), n=5)
    P = np.eye(5) - np.ones((5, 5)) / 5
    np.testing.assert_allclose(gm.centre(G), P @ G @ P, rtol=0, atol=1e-15 * 50)
    np.testing.assert_array_equal(gm.centre(G), gm.centre(G).T)


def test_spectrum_of_a_known_matrix():
    """The exchangeable matrix b((1−c)I + c 11ᵀ) has b(1−c), n−1 times, and b(1+(n−1)c)."""
    n, b, c = 6, 0.5, 0.3
    G = b * ((1 - c) * np.eye(n) + c)
    simple, repeated = b * (1 + (n - 1) * c), b * (1 - c)
    np.testing.assert_allclose(gm.eigenvalues(G), [repeated] * (n - 1) + [simple], rtol=1e-13)
    assert gm.condition(G) == pytest.approx(simple / repeated, rel=1e-13)
    np.testing.assert_allclose(gm.correlation(G), (1 - c) * np.eye(n) + c, rtol=1e-15)
    gap = c * math.sqrt((n - 1) / n)  # ‖c(11ᵀ − I)/n‖_F
    assert gm.orthogonality_gap(G) == pytest.approx(gap, rel=1e-13)
    assert gm.rank_bound(G) == pytest.approx(n / (1 + (n - 1) * c**2), rel=1e-13)


@pytest.mark.parametrize("n", [1, 2, 7])
def test_orthogonal_and_collinear_samples_are_the_extremes(n):
    assert gm.orthogonality_gap(np.eye(n)) == pytest.approx(0, abs=1e-15)
    assert gm.orthogonality_gap(np.ones((n, n))) == pytest.approx(math.sqrt(1 - 1 / n), abs=1e-15)
    assert gm.rank_bound(np.eye(n)) == pytest.approx(n, rel=1e-14)
    assert gm.rank_bound(np.ones((n, n))) == pytest.approx(1, rel=1e-14)


# ---------------------------------------------------------------- consequences of the formulas


@given(representations, st.randoms(use_true_random=False))
def test_permuting_samples(x, random):
    order = list(range(x.shape[1]))
    random.shuffle(order)
    G, permuted = gm.gram(x), gm.gram(x[:, order])
    np.testing.assert_array_equal(permuted, G[np.ix_(order, order)])
    close = {"rtol": 1e-12, "atol": 1e-12 * np.trace(G)}
    for name in ("orthogonality_gap", "rank_bound", "eigenvalues"):
        np.testing.assert_allclose(getattr(gm, name)(permuted), getattr(gm, name)(G), **close)
    np.testing.assert_allclose(gm.centre(permuted), gm.centre(G)[np.ix_(order, order)], **close)
    if np.diagonal(G).all():
        correlation = gm.correlation(G)[np.ix_(order, order)]
        np.testing.assert_array_equal(gm.correlation(permuted), correlation)


@given(representations, st.integers(-400, 400))
def test_scaling_by_a_power_of_two(x, exponent):
    """Results that depend on the scale are multiplied exactly; the others keep every bit."""
    G = gm.gram(x)
    n = len(G)
    scaled = np.ldexp(G, exponent)
    factor = 2.0**exponent
    np.testing.assert_array_equal(gm.orthogonality_gap(scaled), gm.orthogonality_gap(G))
    np.testing.assert_array_equal(gm.rank_bound(scaled), gm.rank_bound(G))
    np.testing.assert_array_equal(gm.centre(scaled), factor * gm.centre(G))
    np.testing.assert_allclose(
        gm.distance(scaled, np.zeros((n, n))), factor * np.linalg.norm(G), rtol=1e-14
    )
    np.testing.assert_allclose(
        gm.eigenvalues(scaled), factor * gm.eigenvalues(G), rtol=0, atol=1e-12 * np.trace(scaled)
    )


@given(representations)
def test_rank_bound_is_a_bound(x):
    bound = gm.rank_bound(gm.gram(x))
    assert 1 - 1e-12 <= bound <= np.linalg.matrix_rank(x) + 1e-12


@given(representations, st.floats(1e-6, 1))
def test_soft_rank_bound_of_normalized_rows(x, tau):
    """Lemma 1 of the rank-collapse paper: rank_τ >= (1−τ)² r if Tr M = width."""
    rows = x[x.any(axis=1)]
    rows = rows / np.sqrt(np.mean(rows**2, axis=1, keepdims=True))
    G = gm.gram(rows)
    soft_rank = gm.soft_rank(G, tau, width=len(rows))
    assert soft_rank >= (1 - tau) ** 2 * gm.rank_bound(G) - 1e-12
    assert soft_rank <= np.linalg.matrix_rank(x)


@given(representations)
def test_gap_and_rank_bound_tell_the_same(x):
    """‖G/Tr G‖_F² = gap² + 1/n, since I/n is orthogonal to the difference."""
    G = gm.gram(x)
    gap, n = gm.orthogonality_gap(G), len(G)
    assert 0 <= gap <= math.sqrt(1 - 1 / n) + 1e-12
    assert 1 / gm.rank_bound(G) == pytest.approx(gap**2 + 1 / n, rel=1e-12)


@given(representations)
def test_gram_matrices_are_valid(x):
    G = gm.gram(x)
    np.testing.assert_array_equal(G, np.swapaxes(G, -2, -1))
    np.testing.assert_array_equal(gm.validate_gram(G), G)
    np.testing.assert_array_equal(gm.cross_gram(x, x), G)
    stacked = gm.gram(np.concatenate([x, x[:, ::-1]], axis=1))
    n = x.shape[1]
    np.testing.assert_array_equal(stacked[:n, n:], gm.cross_gram(x, x[:, ::-1]))


@given(representations)
def test_centring_the_samples_centres_the_gram_matrix(x):
    centred = x - x.mean(axis=1, keepdims=True)
    np.testing.assert_allclose(gm.gram(centred), gm.centre(gm.gram(x)), rtol=0, atol=1e-12)
    twice = gm.centre(gm.centre(gm.gram(x)))
    np.testing.assert_allclose(twice, gm.centre(gm.gram(x)), rtol=0, atol=1e-12)


# ---------------------------------------------------------------- broadcasting and dtypes


@EVERY_FUNCTION_OF_G
def test_stacks_are_done_matrix_by_matrix(function):
    stack = random_gram(np.random.default_rng(6), 2, 3, n=4)
    one_by_one = np.array([[function(G) for G in layers] for layers in stack])
    np.testing.assert_array_equal(function(stack), one_by_one)
    assert function(stack[:0]).shape == (0, *one_by_one.shape[1:])


@pytest.mark.parametrize("function", FUNCTIONS_OF_TWO)
def test_two_stacks_broadcast(function):
    rng = np.random.default_rng(7)
    stack, star = random_gram(rng, 2, 3, n=4), random_gram(rng, n=4)
    one_by_one = np.array([[function(G, star) for G in layers] for layers in stack])
    np.testing.assert_allclose(function(stack, star), one_by_one, rtol=1e-13)
    assert function(star, stack[:, :1]).shape == (2, 1)
    assert function(stack[:, :1], stack[:1]).shape == (2, 3)


def test_gram_of_stacks():
    rng = np.random.default_rng(8)
    a, b = rng.standard_normal((2, 3, 7, 4)), rng.standard_normal((3, 7, 5))
    square = np.einsum("...ki,...kj->...ij", a, a) / 7
    np.testing.assert_allclose(gm.gram(a[0]), square[0], atol=1e-14)
    np.testing.assert_allclose(gm.cross_gram(a, a), square, atol=1e-14)
    cross = np.einsum("...ki,...kj->...ij", a, b) / 7
    np.testing.assert_allclose(gm.cross_gram(a, b), cross, atol=1e-14)
    np.testing.assert_array_equal(gm.gram(a[0]), np.swapaxes(gm.gram(a[0]), -2, -1))


@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "uint8"])
def test_results_are_float64_whatever_comes_in(dtype):
    x = np.random.default_rng(9).integers(0, 9, (6, 3)).astype(dtype)
    G = gm.gram(x)
    np.testing.assert_array_equal(G, gm.gram(x.astype(float)))
    for result in (
        gm.orthogonality_gap(G),
        gm.distance(x, x),
        gm.eigenvalues(np.eye(3, dtype=dtype)),
    ):
        assert result.dtype == np.float64


def test_input_is_neither_changed_nor_kept():
    x = np.random.default_rng(10).standard_normal((8, 6))[::2, ::2]
    x.flags.writeable = False
    G = gm.gram(x)
    before = G.copy()
    G.flags.writeable = False
    for function in FUNCTIONS_OF_G:
        function(G)
    gm.distance(G, G)
    gm.relative_deviation(G, G)
    np.testing.assert_array_equal(G, before)


def test_float32_is_judged_by_the_precision_of_float32():
    rng = np.random.default_rng(11)
    x = rng.standard_normal((4000, 6)).astype(np.float32)
    G = (x.T @ x) / np.float32(4000)
    G += np.float32(1e-6) * rng.standard_normal((6, 6)).astype(np.float32)
    gm.validate_gram(G)
    with pytest.raises(ArgumentError, match="symmetric"):
        gm.validate_gram(G.astype(np.float64))
    nearly_singular = np.diag(np.float32([1, 1e-7]))
    assert gm.condition(nearly_singular) == np.inf
    assert gm.condition(nearly_singular.astype(np.float64)) == pytest.approx(1e7, rel=1e-6)


def test_what_counts_as_rounding():
    """1024 units of 2.2e-16, that is 2.3e-13 of the largest entry or eigenvalue."""
    for scale in (1e-100, 1.0, 1e100):
        symmetric_to_rounding = scale * np.array([[1, 0.5], [0.5 + 2e-13, 1]])
        semidefinite_to_rounding = scale * np.diag([1, -2e-13])
        gm.validate_gram(symmetric_to_rounding)
        gm.validate_gram(semidefinite_to_rounding)
        with pytest.raises(ArgumentError, match="symmetric"):
            gm.validate_gram(scale * np.array([[1, 0.5], [0.5 + 3e-13, 1]]))
        with pytest.raises(ArgumentError, match="no negative eigenvalue"):
            gm.validate_gram(scale * np.diag([1, -3e-13]))


# ---------------------------------------------------------------- results in given arrays


@pytest.mark.parametrize(
    "function", [gm.gram, lambda a, **to: gm.cross_gram(a, a + 1, **to), gm.correlation, gm.centre]
)
def test_results_go_to_an_array_of_the_caller(function):
    given = random_gram(np.random.default_rng(3), 2, n=4)
    expected = function(given)
    out = np.full((2, 4, 4), np.nan)
    assert function(given, out=out) is out
    np.testing.assert_array_equal(out, expected)
    strided = np.full((4, 2, 4), np.nan).swapaxes(0, 1)
    np.testing.assert_allclose(function(given, out=strided), expected, rtol=0, atol=1e-14)
    assert function(given, out=given) is given
    np.testing.assert_allclose(given, expected, rtol=0, atol=1e-14)

    for wrong, error in (
        (np.zeros((4, 4)), ArgumentError),
        (np.broadcast_to(0.0, (2, 4, 4)), ArgumentError),
        (np.zeros((2, 4, 4), np.float32), ArgumentTypeError),
        ([[0.0] * 4] * 4, ArgumentTypeError),
    ):
        with pytest.raises(error) as caught:
            function(expected, out=wrong)
        assert caught.value.argument == "out"


def test_a_product_of_stacks_goes_where_it_broadcasts():
    rng = np.random.default_rng(4)
    a, b = rng.standard_normal((3, 1, 6, 2)), rng.standard_normal((5, 6, 4))
    out = np.empty((3, 5, 2, 4))
    assert gm.cross_gram(a, b, out=out) is out
    np.testing.assert_array_equal(out, gm.cross_gram(a, b))


# ---------------------------------------------------------------- edges


def test_largest_and_smallest_numbers_neither_overflow_nor_vanish():
    for scale in (1e300, 1e-300):
        G = scale * np.array([[2.0, 1.0], [1.0, 2.0]])
        assert gm.orthogonality_gap(G) == pytest.approx(math.sqrt(2) / 4, rel=1e-14)
        assert gm.rank_bound(G) == pytest.approx(16 / 10, rel=1e-14)
        assert gm.condition(G) == pytest.approx(3, rel=1e-14)
        assert gm.distance(G, np.zeros((2, 2))) == pytest.approx(scale * math.sqrt(10), rel=1e-14)
        assert gm.relative_deviation(G, 2 * G) == pytest.approx(math.sqrt(2), rel=1e-13)
        np.testing.assert_allclose(gm.correlation(G), [[1, 0.5], [0.5, 1]], rtol=1e-14)
    extreme = np.full((1, 1), 1.5e308)
    assert gm.distance(extreme, 0.5 * extreme) == pytest.approx(0.75e308, rel=1e-14)


def test_sums_of_large_entries_do_not_overflow():
    matrix = np.array([[1.5, 1.0, 1.0], [1.0, 1.5, 1.0], [1.0, 1.0, 1.5]])
    scale = 2.0**1023
    assert gm.condition(matrix * scale) == gm.condition(matrix)
    np.testing.assert_array_equal(gm.centre(matrix * scale), gm.centre(matrix) * scale)
    assert gm.soft_rank(matrix * scale, 1.2 * scale, width=3) == 1
    np.testing.assert_array_equal(gm.validate_gram(matrix * scale), matrix * scale)
    for function in (gm.eigenvalues, lambda G: gm.distance(G, -G)):
        with pytest.raises(ArgumentError, match="for which the result does not overflow float64"):
            function(matrix * scale)
    with pytest.raises(ArgumentError, match="no negative eigenvalue"):
        gm.validate_gram((1.0 - np.eye(3)) * scale)


def test_singular_matrices():
    collinear = np.ones((3, 3))
    assert gm.condition(collinear) == np.inf
    assert gm.condition(np.zeros((2, 2))) == np.inf
    assert gm.eigenvalues(collinear) == pytest.approx([0, 0, 3], abs=1e-15)
    stack = np.stack([np.eye(3), collinear])
    with pytest.raises(SingularGramError) as caught:
        gm.relative_deviation(stack, np.eye(3))
    assert caught.value.index == (1,)
    assert caught.value.argument == "G"
    assert abs(caught.value.ratio) < 1e-15
    # only G has to be regular
    assert gm.relative_deviation(np.eye(3), collinear) == pytest.approx(math.sqrt(6))


def test_an_eigenvalue_at_the_threshold_of_the_soft_rank_counts():
    """λ · width / n = 1 here."""
    assert gm.soft_rank(np.eye(3), 1, width=3) == 3
    assert gm.soft_rank(np.eye(3), np.nextafter(1, 2), width=3) == 0


def test_distance_takes_cross_gram_matrices():
    assert gm.distance(np.zeros((2, 3)), np.full((2, 3), 2.0)) == pytest.approx(math.sqrt(24))


def test_a_layout_with_the_samples_in_the_rows_is_warned_of():
    a = np.random.default_rng(0).standard_normal((3, 5))
    with pytest.warns(LayoutWarning, match="5 samples × 3 features") as caught:
        gram = gm.gram(a)
    assert caught[0].filename == __file__
    np.testing.assert_array_equal(gram, gm.cross_gram(a, a))
    assert gm.gram(a[:, :3]).shape == (3, 3)


def test_samples_in_the_rows(recwarn):
    a = np.random.default_rng(0).standard_normal((2, 3, 5))  # networks, samples, features
    np.testing.assert_array_equal(gm.gram(a, samples_first=True), gm.gram(a.swapaxes(1, 2)))
    assert gm.gram(a[0], samples_first=True).shape == (3, 3)
    assert not recwarn
    with pytest.warns(LayoutWarning, match="5 samples × 3 features.*omit samples_first"):
        gm.gram(a[0].T, samples_first=True)


def test_a_fixed_point_is_its_gram_matrix():
    star = bnmc.MeanField(bnmc.Chain(100, 4, "relu")).fixed_point()
    assert gm.distance(star, star.gram) == 0.0
    assert np.asarray(star, dtype=np.float32).dtype == np.float32
