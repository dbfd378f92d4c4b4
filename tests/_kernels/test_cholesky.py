"""The factor of the covariance of a layer's rows: regular, singular, with copies, at any scale."""

import numpy as np
import pytest
from oracle import layer_spec, projector, semidefinite_cholesky

from bnmc._kernels.cpu import memory
from bnmc._kernels.cpu import rows as cpu_rows
from bnmc._kernels.scalar import cholesky, codes

EPS = np.finfo(np.float64).eps


def wishart(order, degrees, seed=0, scale=1.0):
    """A Gram matrix of `degrees` rows, exactly symmetric, singular where they are fewer."""
    rows = np.random.default_rng(seed).standard_normal((degrees, order))
    matrix = scale * (rows.T @ rows) / degrees
    return (matrix + matrix.T) / 2


def law_of(batch, inputs=1, norm=codes.NORM_NONE, skip=0.0, gain=1.0, eps=0.0):
    return layer_spec(100, batch, inputs, norm, skip, gain, eps)


def factorised(gram, law, dtype=np.float64):
    """The factor, its buffers, and what `factorise` returns."""
    work = memory.work(law.batch, law.columns // law.batch, np.dtype(dtype))
    least = cpu_rows.factorise(gram, law, work)
    n = law.columns
    assert not work.factor[n:].any()
    assert not work.factor[:, n:].any()
    return work.factor[:n, :n].astype(np.float64), work, least


def assert_reproduces(factor, covariance, units=8.0):
    """L Lᵀ = C to rounding: each entry relative to the scales of its row and column."""
    sizes = np.sqrt(np.diag(covariance).clip(0))
    error = np.abs(factor @ factor.T - covariance)
    assert np.all(error <= units * len(covariance) * EPS * np.outer(sizes, sizes).clip(1e-300))


# --- centring


@pytest.mark.parametrize(("batch", "inputs"), [(1, 1), (2, 1), (5, 1), (4, 2), (3, 3), (10, 2)])
def test_centring_is_a_projection_on_both_sides(batch, inputs):
    columns = batch * inputs
    gram = wishart(columns, columns + 3) + 2.0
    out, p = np.zeros((columns, columns)), projector(batch, inputs)
    cholesky.centre(gram, batch, np.zeros((inputs, columns)), out)
    for g in range(inputs):
        block = out[g * batch : (g + 1) * batch, g * batch : (g + 1) * batch]
        np.testing.assert_array_equal(block, block.T)
    # The factor of the centred matrix has its product.
    law = law_of(batch, inputs, codes.NORM_CENTRED)
    factor, _, _ = factorised(gram, law)
    for centred in (out, factor @ factor.T / scale_of(gram, law) ** 2):
        atol = 20 * columns * EPS * gram.max()
        np.testing.assert_allclose(centred, p @ gram @ p, rtol=0, atol=atol)


def scale_of(gram, law):
    """The power of two by which a factor is scaled where no norm sees the scale."""
    if law.norm == codes.NORM_NONE or law.skip != 0.0 or law.eps != 0.0:
        return law.gain
    centred = law.norm == codes.NORM_CENTRED
    p = projector(law.batch, law.columns // law.batch) if centred else np.eye(law.columns)
    return cholesky.scale_of(np.diag(p @ gram @ p))


@pytest.mark.parametrize("largest", [0.0, 1e-300, 1e-5, 0.49, 0.5, 1.0, 2.0, 2.01, 7.7, 1e300])
def test_the_scale_is_a_power_of_two_that_brings_the_diagonal_to_about_one(largest):
    scale = cholesky.scale_of(np.array([0.3 * largest, largest, 0.0]))
    assert np.log2(scale) % 1.0 == 0.0
    if largest > 0.0:
        assert 0.5 <= scale**2 * largest <= 2.0 or 0.5 <= scale * (scale * largest) <= 2.0
    else:
        assert scale == 1.0


# --- regular


# The last ones have several panels: multiples of a panel and not, of four and not.
@pytest.mark.parametrize("order", [1, 2, 3, 4, 5, 7, 8, 13, 40, 64, 65, 70, 131, 192])
def test_regular_matrices(order):
    gram = wishart(order, 10 * order)
    factor, work, least = factorised(gram, law_of(order))
    np.testing.assert_array_equal(factor, np.tril(factor))
    assert work.regular.all()
    assert np.all(np.diag(factor) > 0)
    np.testing.assert_allclose(factor, np.linalg.cholesky(gram), rtol=0, atol=1e-13)
    assert_reproduces(factor, gram)
    assert least == pytest.approx((np.diag(factor) ** 2 / np.diag(gram)).min(), rel=1e-12)


@pytest.mark.parametrize(("batch", "inputs"), [(2, 1), (5, 1), (4, 2), (9, 2), (3, 4)])
def test_centred_matrices_lose_one_dimension_a_batch(batch, inputs):
    columns = batch * inputs
    gram = wishart(columns, 5 * columns) + 1.0
    law = law_of(batch, inputs, codes.NORM_CENTRED)
    factor, work, _ = factorised(gram, law)
    p = projector(batch, inputs)
    centred = p @ gram @ p
    scale = scale_of(gram, law)
    assert_reproduces(factor / scale, centred, units=30 * gram.max() / centred.diagonal().min())
    last = np.arange(columns) % batch == batch - 1
    np.testing.assert_array_equal(work.regular, ~last)
    assert not factor[:, last].any()
    reference = semidefinite_cholesky(centred)
    np.testing.assert_allclose(factor / scale, reference, rtol=0, atol=1e-11)


@pytest.mark.parametrize("weights", [(1.0, 4.0, 9.0, 16.0), (9.0, 9.0, 9.0, 9.0)])
def test_a_pivot_under_a_centring_norm_is_relative_to_the_sample_or_the_mean(weights):
    """P G P is rounded to the precision of the means, so that the larger of both is the measure."""
    gram = np.diag(weights)
    p = projector(4)
    centred = p @ gram @ p
    _, _, least = factorised(gram, law_of(4, 1, codes.NORM_CENTRED))
    pivots = np.diag(semidefinite_cholesky(centred))[:3] ** 2
    measure = np.maximum(weights, np.mean(weights))[:3]
    assert least == pytest.approx((pivots / measure).min(), rel=1e-12)


def test_a_skip_connection_keeps_the_gain():
    """What is added to the rows is centred too, but their scale is seen beside its own."""
    gram = wishart(4, 40)
    law = law_of(4, 1, codes.NORM_CENTRED, skip=1.0, gain=-0.5)
    factor, work, _ = factorised(gram, law)
    np.testing.assert_array_equal(work.regular, [True, True, True, False])
    p = projector(4)
    np.testing.assert_allclose(factor @ factor.T, 0.25 * p @ gram @ p, rtol=0, atol=1e-14)
    assert factor[0, 0] < 0


def test_the_gain_counts_unless_the_norm_hides_it():
    gram = wishart(3, 30, scale=1e6)
    exact = np.linalg.cholesky(gram)
    for norm, eps, expected in (
        (codes.NORM_NONE, 0.0, 3.0 * exact),
        (codes.NORM_UNCENTRED, 1e-5, 3.0 * exact),
        (codes.NORM_UNCENTRED, 0.0, scale_of(gram, law_of(3, 1, codes.NORM_UNCENTRED)) * exact),
    ):
        factor, _, _ = factorised(gram, law_of(3, 1, norm, gain=3.0, eps=eps))
        np.testing.assert_allclose(factor, expected, rtol=1e-12)


def test_a_float32_factor_is_that_of_float64_rounded():
    gram = wishart(6, 20)
    single, _, _ = factorised(gram, law_of(6), dtype=np.float32)
    double, _, _ = factorised(gram, law_of(6))
    np.testing.assert_array_equal(single, double.astype(np.float32))


@pytest.mark.parametrize("scale", [1e-290, 1e-30, 1.0, 1e30, 1e290])
def test_no_scale_loses_anything(scale):
    """Under a norm, rows of any G are drawn at a scale near 1, also as float32."""
    gram = wishart(5, 20, seed=3)
    law = law_of(5, 1, codes.NORM_CENTRED)
    reference, _, _ = factorised(gram, law, dtype=np.float32)
    factor, _, _ = factorised(gram * scale, law, dtype=np.float32)
    np.testing.assert_allclose(factor / factor[0, 0], reference / reference[0, 0], atol=1e-6)
    assert 0.3 < np.abs(factor).max() < 3.0


# --- singular


@pytest.mark.parametrize(("order", "rank"), [(2, 1), (4, 1), (4, 3), (10, 5), (20, 3), (150, 90)])
def test_rank_deficient_matrices(order, rank):
    gram = wishart(order, rank, seed=order)
    factor, work, least = factorised(gram, law_of(order))
    np.testing.assert_array_equal(work.regular, np.arange(order) < rank)
    assert not factor[:, ~work.regular].any()
    # The part of a Schur complement that is dropped is of the size of rounding, divided by
    # pivots: 1e-10 is the square root of that.
    np.testing.assert_allclose(factor @ factor.T, gram, rtol=0, atol=1e-10)
    assert least < 1e-10


@pytest.mark.parametrize("norm", [codes.NORM_NONE, codes.NORM_UNCENTRED, codes.NORM_CENTRED])
def test_zero_matrices_have_the_factor_zero(norm):
    factor, work, least = factorised(np.zeros((5, 5)), law_of(5, 1, norm))
    assert not factor.any()
    assert not work.regular.any()
    assert least == 0.0


def test_equal_samples_centred_leave_nothing():
    """All rows are constant, so every row is without variance: not even rounding is drawn."""
    for value in (1.0, 1 / 3, 0.1, 1e-200, 1e200):
        gram = np.full((7, 7), value)
        factor, work, _ = factorised(gram, law_of(7, 1, codes.NORM_CENTRED))
        assert not work.regular.any()
        assert not factor.any()


@pytest.mark.parametrize("norm", [codes.NORM_NONE, codes.NORM_CENTRED])
@pytest.mark.parametrize(
    ("order", "places", "first"), [(6, [3, 4, 5], [0, 1, 0]), (150, [70, 149], [3, 66])]
)
def test_copies_have_equal_rows_to_the_bit(order, places, first, norm):
    """Of samples before them, also in other panels: their Gram matrix repeats rows exactly."""
    a, copies = np.random.default_rng(4).standard_normal((400, order)), np.arange(order)
    copies[places] = first
    small = a.T @ a / 400
    small = (small + small.T) / 2
    gram = small[np.ix_(copies, copies)]
    law = law_of(order, 1, norm)
    factor, work, _ = factorised(gram, law)
    np.testing.assert_array_equal(work.twin, copies)
    np.testing.assert_array_equal(factor, factor[copies])
    assert not work.regular[places].any()
    p = projector(order) if norm == codes.NORM_CENTRED else np.eye(order)
    product = factor @ factor.T / scale_of(gram, law) ** 2
    np.testing.assert_allclose(product, p @ gram @ p, rtol=0, atol=1e-13)


@pytest.mark.parametrize("norm", [codes.NORM_UNCENTRED, codes.NORM_CENTRED])
def test_a_sample_that_two_batches_share(norm):
    """Centred by other means it is two samples; where whole batches are copies it is one."""
    a = np.random.default_rng(6).standard_normal((50, 5))
    p = projector(3, 2) if norm == codes.NORM_CENTRED else np.eye(6)
    for columns, twins in (
        ([0, 1, 2, 0, 3, 4], [0, 1, 2, 3 if norm == codes.NORM_CENTRED else 0, 4, 5]),
        ([0, 1, 2, 0, 1, 2], [0, 1, 2, 0, 1, 2]),
    ):
        rows = a[:, columns]
        small = a.T @ a / 50
        gram = ((small + small.T) / 2)[np.ix_(columns, columns)]
        law = law_of(3, 2, norm)
        factor, work, _ = factorised(gram, law)
        np.testing.assert_array_equal(work.twin, twins)
        product = factor @ factor.T / scale_of(gram, law) ** 2
        np.testing.assert_allclose(product, p @ (rows.T @ rows / 50) @ p, rtol=0, atol=1e-13)


def test_twins_are_samples_with_equal_products():
    gram = np.array(
        [[2.0, 1.0, 2.0, -2.0], [1.0, 2.0, 1.0, -1.0], [2.0, 1.0, 2.0, -2.0], [-2.0, -1.0, -2.0, 2]]
    )
    _, work, _ = factorised(gram, law_of(4))
    # Of equal length only samples 0 and 2 are equal: 1 is another, 3 is the opposite.
    np.testing.assert_array_equal(work.twin, [0, 1, 0, 3])


@pytest.mark.parametrize("entry", [0.0, 1e-17, 1e-9])
def test_a_sample_at_the_mean_of_the_others_gets_no_variance_from_rounding(entry):
    """Of rank one, and centring leaves 1e-17 where the sample's own variance is far less."""
    for seed in range(10):
        size = np.random.default_rng(seed).uniform(0.5, 1.5)
        v = size * np.array([-1.0, entry, 1.0])
        _, work, _ = factorised(np.outer(v, v), law_of(3, 1, codes.NORM_CENTRED))
        np.testing.assert_array_equal(work.regular, [True, False, False])


def test_the_factor_is_continuous_where_the_matrix_is_regular():
    """No pivot is chosen by the data: swapping nearly equal diagonals swaps nothing."""
    gram = np.full((6, 6), 0.3) + 0.7 * np.eye(6)
    base, _, _ = factorised(gram, law_of(6))
    for seed in range(20):
        noise = np.random.default_rng(seed).standard_normal((6, 6)) * 1e-9
        factor, _, _ = factorised(gram + noise + noise.T, law_of(6))
        assert np.abs(factor - base).max() < 1e-7


def test_a_small_pivot_is_kept_as_long_as_it_is_more_than_rounding():
    """No jitter and no cut-off: a direction of variance 1e-12 is drawn with that variance."""
    for size in (1e-4, 1e-8, 1e-12):
        gram = np.array([[1.0, 1.0], [1.0, 1.0 + size]])
        factor, work, _ = factorised(gram, law_of(2))
        assert work.regular.all()
        assert factor[1, 1] ** 2 == pytest.approx(size, rel=1e-3)


def test_samples_of_different_length_are_no_twins():
    """a₀ = (1, 1) and a₁ = (1, 0) have a₀·a₁ = |a₁|², but not |a₀|²; and the other way round."""
    for gram in ([[2.0, 1.0], [1.0, 1.0]], [[1.0, 1.0], [1.0, 2.0]]):
        factor, work, _ = factorised(np.array(gram), law_of(2))
        np.testing.assert_array_equal(work.twin, [0, 1])
        assert work.regular.all()
        np.testing.assert_allclose(factor @ factor.T, gram, rtol=1e-15)
