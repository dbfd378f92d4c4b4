"""Fixed points with two blocks of samples.

Oracles share no code with the implementation: Laplace integrals, plain Monte Carlo and simulation.
Tests on few chains use Student's law, with a false alarm of probability 1e-6 per test.
"""

import math
import pickle
from unittest import mock

import numpy as np
import pytest
from mean_field_oracles import arc_cosine, assert_mean, fixed_point, sampled_rows, sign
from scipy import integrate, stats
from slow_cases import some

import bnmc
from bnmc.chain.activations import Activation
from bnmc.errors import PartialEstimateError
from bnmc.mean_field.blocks import block_fixed_point
from bnmc.mean_field.blocks.block_fixed_point import block_symmetric, partial_collapse


def assert_is_fixed(point, activation, seed):
    """F(G) = G, by plain Monte Carlo: squares, and products of the means of the blocks."""
    k, m = point.sizes
    chain = bnmc.Chain(1, k + m, activation)
    value = sampled_rows(chain, point.gram, 120_000, np.random.default_rng(seed))
    parts = value[:, :k], value[:, k:]
    a, b = (part.mean(axis=1) for part in parts)
    samples = [*((part**2).mean(axis=1) for part in parts), a**2, b**2, a * b]
    expected = [
        *point.diagonal,
        (point.diagonal[0] + (k - 1) * point.inside[0]) / k,
        (point.diagonal[1] + (m - 1) * point.inside[1]) / m,
        point.between,
    ]
    assert_mean(np.stack(samples, axis=1), expected)


@pytest.mark.untraced
@pytest.mark.parametrize(
    ("find", "options"),
    [
        (block_symmetric, {"batch": 26}),
        # Halves of a biased sigmoid are such a minority, too.
        pytest.param(block_symmetric, {"batch": 25, "minority": 2}, marks=pytest.mark.slow),
        (partial_collapse, {"batch": 32, "distinct": 10}),
    ],
    ids=["outlier", "two", "collapse"],
)
def test_fixed_points_of_silu_are_fixed(find, options):
    points = find("silu", **options)
    assert points
    for point in points:
        assert_is_fixed(point, "silu", 2)
        assert point.error < 1e-6
        assert sum(point.multiplicities) == point.batch * (point.batch - 1) // 2 - 1
        moduli = np.abs(point.eigenvalues)
        assert (np.diff(moduli) <= 0).all()
        assert point.rate == moduli[0]
        assert point.stable == (point.rate < 1)


def test_outlier_coexists_with_the_stable_symmetric_point():
    """Hysteresis: at n = 24 and 25 silu has both, and at 23 the symmetric point alone."""
    assert block_symmetric("silu", 23) == ()
    for n in (24, 25):
        assert fixed_point("silu", n).stable
        outlier, saddle = block_symmetric("silu", n)
        assert outlier.stable
        assert outlier.diagonal[0] > 2 * outlier.diagonal[1]
        # The saddle between them lies on the same side: the bifurcation is transcritical.
        assert not saddle.stable
        assert 1 < saddle.diagonal[0] / saddle.diagonal[1] < 1.3
        assert saddle.modes[0] == "ratios"
    _, saddle = block_symmetric("silu", 26)
    assert saddle.diagonal[0] < saddle.diagonal[1]


def rectified_image(n, alpha, beta):
    """F for relu and one sample apart, by a Laplace integral over arc-cosine kernels.

    φφᵀ = n ∫ wwᵀ exp(−t|w|²) dt, and under the weight w is normal with (G⁻¹ + 2t)⁻¹.
    """
    e = math.sqrt((n - 1) / n), -math.sqrt(1 / (n * (n - 1)))

    # t = u/(1−u) has no infinite range.
    def integrand(u):
        t = u / (1 - u)
        s, b = alpha / (1 + 2 * t * alpha), beta / (1 + 2 * t * beta)
        first, other = b * e[0] ** 2, b * e[1] ** 2 + s * (1 - 1 / (n - 1))
        scale = n * (1 + 2 * t * alpha) ** (1 - n / 2) / math.sqrt(1 + 2 * t * beta)
        sizes = np.array([first, other, math.sqrt(first * other), other])
        rho = np.array([first, other, b * e[0] * e[1], b * e[1] ** 2 - s / (n - 1)]) / sizes
        return scale * sizes * arc_cosine(np.minimum(rho, 1.0))[0] / 2 / (1 - u) ** 2

    return integrate.quad_vec(integrand, 0, 1, epsrel=1e-11)[0]


@pytest.mark.parametrize("n", some([52, 64, 256], 52))
def test_relu_has_a_second_attractor(n):
    """From a batch of 52 on one sample can stand out, beside the symmetric point, also stable."""
    outlier, saddle = block_symmetric("relu", n)
    assert fixed_point("relu", n).stable
    assert outlier.stable
    assert not saddle.stable
    assert outlier.diagonal[0] > saddle.diagonal[0] > 1.05 * saddle.diagonal[1]
    for point in (outlier, saddle):
        alpha = point.diagonal[1] - point.inside[1]
        mean = (point.diagonal[1] + (n - 2) * point.inside[1]) / (n - 1)
        beta = (n - 1) / n * (point.diagonal[0] + mean - 2 * point.between)
        entries = [point.diagonal[0], point.diagonal[1], point.between, point.inside[1]]
        assert rectified_image(n, alpha, beta) == pytest.approx(entries, rel=1e-9)


def test_relu_has_none_at_smaller_batches():
    assert block_symmetric("relu", 51) == ()


@pytest.mark.untraced
def test_attractors_of_silu_past_the_crossing_are_collapsed():
    """n = 32: no outlier is stable, but 7 to 15 distinct samples beside coinciding ones are."""
    assert not any(point.stable for point in block_symmetric("silu", 32))
    stable = {
        distinct: [point.stable for point in partial_collapse("silu", 32, distinct=distinct)]
        for distinct in (1, 6, 7, 15, 16)
    }
    assert stable == {1: [False], 6: [False], 7: [True], 15: [True], 16: [False]}
    # What limits them: coinciding samples part, or distinct ones do not stay alike.
    assert partial_collapse("silu", 32, distinct=6)[0].modes[0] == "split of block 1"
    assert partial_collapse("silu", 32, distinct=16)[0].modes[0] == "one of block 0"


@pytest.mark.untraced
@pytest.mark.parametrize("activation", some(["relu", "tanh", "linear"], "relu"))
def test_stable_activations_have_no_other_attractor(activation):
    for n in (3, 8, 32):
        assert block_symmetric(activation, n) == ()
    if activation != "relu":  # its corner makes the search long
        assert block_symmetric(activation, 8, minority=2) == ()
    for point in partial_collapse(activation, 8, distinct=4):
        assert not point.stable


def test_a_biased_sigmoid_splits_in_halves():
    """Blocks of one size have no order: each pair of levels comes once, the larger first."""
    biased = Activation(lambda x: 1 / (1 + math.exp(3 - 1.5 * x)))
    assert not fixed_point(biased, 8).stable
    (halves,) = block_symmetric(biased, 8, minority=4)
    assert halves.stable
    assert halves.diagonal[0] > 3 * halves.diagonal[1]
    assert_is_fixed(halves, biased, 3)


def test_collapse_to_low_rank_is_never_stable():
    """E 1/|w|² is infinite in one and two dimensions, unless σ is flat there or jumps."""
    for distinct in (1, 2):
        (point,) = partial_collapse("silu", 9, distinct=distinct)
        assert point.rate == math.inf
        assert point.modes[0] == "split of block 1"
        assert point.error < 1e-9
    step = Activation(lambda x: 1.0 if x > 1.7 else 0.0, kinks=(1.7,))
    (flat,) = partial_collapse(step, 6, distinct=1)
    split = flat.modes.index("split of block 1")
    assert flat.eigenvalues[split] == 0.0
    (jumps,) = partial_collapse(Activation(sign), 9, distinct=5, rtol=0.1)
    assert jumps.rate == math.inf


def test_gram_and_values():
    (point,) = partial_collapse("silu", 9, distinct=3)
    gram = point.gram
    assert gram.shape == (9, 9)
    np.testing.assert_array_equal(np.diag(gram), np.repeat(point.diagonal, (3, 6)))
    assert gram[0, 1] == point.inside[0]
    assert gram[3, 8] == point.inside[1] == point.diagonal[1]
    assert gram[0, 8] == gram[8, 0] == point.between
    assert (point.batch, point.activation, point.collapsed) == (9, "silu", True)
    assert pickle.loads(pickle.dumps(point)) == point


def test_errors_contain_the_distance_of_the_fixed_points_of_two_quadratures():
    """A change of the map of size δ moves a fixed point by δ/(1 − λ), λ the slowest eigenvalue.

    So the error must compare fixed points, not two images of one matrix.
    """

    def points(*orders):
        with mock.patch.object(block_fixed_point, "_ORDERS", orders):
            return block_symmetric("silu", batch=26, rtol=1.0)

    fine, coarse = points(16, 5, 5), points(5, 5, 5)
    assert len(fine) == len(coarse) == 2
    for point, other in zip(fine, coarse, strict=True):
        values, others = ((*p.diagonal, *p.inside, p.between) for p in (point, other))
        distance = np.abs(np.subtract(values, others)).max() / max(point.diagonal)
        assert distance > 1e-5
        assert distance <= point.error < 2.0 * distance


def test_errors_of_fixed_points_are_told():
    with pytest.raises(PartialEstimateError, match="rtol is 1.0e-16") as caught:
        block_symmetric("silu", 26, rtol=1e-16)
    assert [point.sizes for point in caught.value.partial] == [(1, 25)] * 2


def distinct_samples(gram):
    """How many samples share their row with no other, and how many groups share one."""
    squared = np.diag(gram)[:, None] + np.diag(gram) - 2 * gram
    same = squared < 1e-6 * np.trace(gram)
    sizes = same.sum(axis=1)
    return int((sizes == 1).sum()), len({tuple(row) for row in same[sizes > 1]})


def test_a_batch_of_silu_collapses():
    """From Gaussian data, at width 500: some samples stay distinct, all others coincide.

    The mean field has stable states of 7 to 15 distinct ones.
    """
    run = bnmc.simulate(bnmc.Chain(500, 32, "silu"), 800, chains=6, rng=11, every=800)
    for gram in run.gram[:, -1]:
        distinct, groups = distinct_samples(gram)
        assert groups == 1
        assert 7 <= distinct <= 15
    stays = bnmc.simulate(bnmc.Chain(500, 16, "silu"), 800, chains=6, rng=11, every=800)
    assert [distinct_samples(gram) for gram in stays.gram[:, -1]] == [(16, 0)] * 6


def started_at(point, width, chains, rng, apart=0.0):
    """Rows of N(0, G), (chains, width, batch), the coinciding samples moved apart by noise."""
    k = point.sizes[0]
    small = point.gram[: k + 1, : k + 1]
    root = np.linalg.cholesky(small)
    rows = rng.standard_normal((chains, width, k + 1)) @ root.T
    labels = np.minimum(np.arange(point.batch), k)
    rows = rows[..., labels]
    rows[..., k:] += apart * rng.standard_normal((chains, width, point.batch - k))
    return rows


@pytest.mark.slow
def test_collapsed_fixed_point_by_simulation():
    """Stationary means at widths d and 4d, extrapolated to 1/d = 0, over 16 chains each.

    `test_fixed_points_of_silu_are_fixed` finds a wrong fixed point each time, by Monte Carlo.
    """
    (point,) = partial_collapse("silu", 32, distinct=10)
    k = point.sizes[0]
    rng = np.random.default_rng(5)
    means = []
    for width in (1500, 6000):
        start = started_at(point, width, 16, rng)
        chain = bnmc.Chain(width, 32, "silu")
        grams = bnmc.simulate(chain, 70, initial=start, rng=rng, burn_in=40).gram.mean(axis=1)
        free = grams[:, :k, :k]
        trace = np.trace(free, axis1=1, axis2=2)
        products = (free.sum(axis=(1, 2)) - trace) / (k * (k - 1))
        between = grams[:, :k, -1].mean(axis=1)
        means.append(np.stack([trace / k, products, between, grams[:, -1, -1]], axis=1))
    small, large = means
    estimate = (4 * large.mean(axis=0) - small.mean(axis=0)) / 3
    variance = (16 * large.var(axis=0, ddof=1) + small.var(axis=0, ddof=1)) / (9 * 16)
    expected = [point.diagonal[0], point.inside[0], point.between, point.diagonal[1]]
    # Four numbers, two-sided, 1e-6 together, with the degrees of freedom of one of the means.
    allowed = stats.t.isf(1.25e-7, 15) * np.sqrt(variance)
    np.testing.assert_array_less(np.abs(estimate - expected), allowed)
    # The band is narrow enough to tell the neighbours apart.
    (other,) = partial_collapse("silu", 32, distinct=11)
    assert abs(other.diagonal[0] - point.diagonal[0]) > 2 * allowed[0]


@pytest.mark.parametrize(
    ("activation", "n", "width", "depth"),
    [("abs", 24, 4000, 60), pytest.param("relu", 64, 20_000, 30, marks=pytest.mark.slow)],
)
def test_start_decides_between_two_attractors(activation, n, width, depth):
    """One network, two batches: a sample that stands out goes on to, all alike stay alike."""
    outlier, saddle = block_symmetric(activation, n)
    fixed = fixed_point(activation, n)
    assert fixed.stable
    assert outlier.stable
    rows = np.random.default_rng(4).standard_normal((width, n))
    root = np.linalg.cholesky(outlier.gram)
    chain, start = bnmc.Chain(width, n, activation), np.stack([rows @ root.T, rows])
    run = bnmc.simulate(chain, depth, inputs=2, initial=start, rng=6, burn_in=depth)
    apart, alike = (np.diag(gram) for gram in run.gram[0, -1])
    # Between them lies the saddle: the first sample is above it there, and below it here.
    assert apart.argmax() == 0
    assert apart[0] > 2 * saddle.diagonal[0]
    assert apart[1:].max() < saddle.diagonal[0]
    assert alike.max() < saddle.diagonal[0]
    assert alike.mean() == pytest.approx(fixed.b, rel=0.05)


@pytest.mark.parametrize(
    ("distinct", "parts"), [(4, True), pytest.param(10, False, marks=pytest.mark.slow)]
)
def test_coinciding_samples_part_as_predicted(distinct, parts):
    """What is left of their differences shrinks or grows: 16 chains, Student's law."""
    (point,) = partial_collapse("silu", 32, distinct=distinct)
    rng = np.random.default_rng(8)
    start = started_at(point, 4000, 16, rng, apart=1e-4)
    run = bnmc.simulate(bnmc.Chain(4000, 32, "silu"), 16, initial=start, rng=rng)
    cluster = run.gram[:, :, distinct:, distinct:]
    spread = np.trace(cluster, axis1=2, axis2=3) - cluster.sum(axis=(2, 3)) / point.sizes[1]
    slopes = np.log(spread[:, 16] / spread[:, 4]) / 12
    split = point.eigenvalues[point.modes.index("split of block 1")]
    score = slopes.mean() / slopes.std(ddof=1) * math.sqrt(16)
    assert (split > 1) == parts
    assert math.copysign(score, 1 if parts else -1) == score
    assert abs(score) > stats.t.isf(1e-6, 15)
