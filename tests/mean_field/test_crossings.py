"""The stability atlas, and the fixed points that break the permutation symmetry.

Oracles share no code with the implementation: Gegenbauer series for the crossings, product
quadrature on the sphere with finite differences for whole spectra, plain Monte Carlo, and
simulation. Statistical tests allow 6.5 standard errors (normal law, at least 100 blocks) a number:
a false alarm has probability 8e-11 a number; those on few chains use Student's law, at 1e-6 a test.
"""

import dataclasses
import json
import math
import pickle
from itertools import pairwise

import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy import integrate, special, stats

import bnmc
from bnmc._support.json import dumps
from bnmc.chain.activations import Activation
from bnmc.errors import ArgumentError, ArgumentTypeError, PartialEstimateError, UnknownNameError
from bnmc.mean_field.blocks.block_fixed_point import block_symmetric, partial_collapse
from bnmc.mean_field.blocks.block_map import BlockMap, _ratios
from bnmc.mean_field.fixed_point.crossings import Crossing, _crossing, atlas, stability
from bnmc.mean_field.fixed_point.stability_plot import plot_stability

SIGMAS = 6.5


def named(name):
    return Activation.named(name)


def exponential(x):
    return math.exp(x)


def hard_swish(x):
    return x * min(max(x + 3.0, 0.0), 6.0) / 6.0


def hard_tanh(x):
    return min(max(x, -1.0), 1.0)


HARD_SWISH = Activation(hard_swish, kinks=(-3.0, 3.0))
EXP = Activation(exponential, name="exp")


def symmetric_point(activation, n):
    return bnmc.MeanField(bnmc.Chain(1, n, activation)).fixed_point()


# --- the atlas -------------------------------------------------------------------------------


def series_lambda_l(sigma, n, terms=60):
    """λ_L from Gauss-Gegenbauer nodes and E f(x) g(y) = Σ f_k g_k P_k(ρ) dim_k."""
    m = n - 1
    alpha = m / 2 - 1
    t, weight = special.roots_gegenbauer(2 * terms, alpha)
    weight = weight / weight.sum()
    points = np.append(t, -1 / m)
    p = np.ones((terms, points.size))
    p[1] = points
    for k in range(1, terms - 1):
        p[k + 1] = (2 * (k + alpha) * points * p[k] - k * p[k - 1]) / (k + 2 * alpha)
    norms = p[:, :-1] ** 2 @ weight
    x = math.sqrt(m) * t
    value = sigma(x) - weight @ sigma(x)

    def pair(f, g):
        left, right = (p[:, :-1] @ (weight * h) for h in (f, g))
        return float(np.sum(left * right * p[:, -1] / norms))

    mu = weight @ value**2 - pair(value, value)
    own = weight @ (value**2 * (x**2 - 1))
    cross = pair(value * (x**2 - 1), value)
    return n / (2 * mu * (n - 2)) * ((1 - 2 / n) * own - 2 * (1 - 1 / n) * cross)


@pytest.mark.parametrize(("activation", "first"), [("silu", 26), ("gelu", 39)])
def test_crossing_is_where_an_independent_series_puts_it(activation, first):
    before, after = (series_lambda_l(named(activation), n) for n in (first - 1, first))
    assert before < 1 < after
    found = stability(activation, [10, 100])
    (crossing,) = found.crossings
    assert crossing == Crossing(first, False, 0, crossing.value)
    assert crossing.value == pytest.approx(after, abs=1e-11)
    assert symmetric_point(activation, first - 1).eigenvalues[0] == pytest.approx(before, abs=1e-11)


#: What the docstring of `atlas` tabulates for the built-in activations.
SURVEY = {
    "linear": (1.0, 1.0, None),
    "relu": (1.0, 0.733471, None),
    "leaky_relu": (1.0, 0.741218, None),
    "abs": (1.0, 0.0, None),
    "tanh": (0.461071, 0.930470, None),
    "sigmoid": (0.719201, 0.984167, None),
    "sin": (0.313035, 0.850918, None),
    "erf": (0.408567, 0.913583, None),
    "elu": (0.860232, 0.936727, None),
    "celu": (0.860232, 0.936727, None),
    "selu": (0.782648, 0.970680, None),
    "gelu": (1.062116, 0.723288, 39),
    "silu": (1.100947, 0.798510, 26),
}


def test_survey_knows_all_built_in_activations():
    from bnmc._kernels.scalar.activations import BUILTIN

    assert set(SURVEY) == set(BUILTIN)
    for row, (_, _, first) in SURVEY.items():
        if row not in ("elu", "celu"):
            line = next(x for x in atlas.__doc__.splitlines() if x.strip().startswith(f"{row} "))
            assert (str(first) if first else "") == " ".join(line.split()[3:])


@pytest.mark.parametrize("activation", SURVEY)
def test_survey(activation):
    limit_l, limit_m, first = SURVEY[activation]
    found = stability(activation, [4, 10, 30, 100, 2500, 10_000])
    assert [crossing.batch for crossing in found.crossings] == ([] if first is None else [first])
    # Corrections are g/n + O(1/n²): extrapolated from 2500 and 10 000, 1/n² of the smaller is left.
    limit = (4 * found.eigenvalues[-1] - found.eigenvalues[-2]) / 3
    assert limit == pytest.approx([limit_l, limit_m], abs=5e-6)
    # And the limits themselves, by a quadrature of their definition.
    x, weight = special.roots_legendre(400)
    x = np.concatenate([6 * x - 6, 6 * x + 6])
    weight = 6 * np.concatenate([weight, weight]) * np.exp(-0.5 * x**2) / math.sqrt(2 * math.pi)
    value = named(activation)(x)
    value = value - weight @ value
    variance = weight @ value**2
    written = [weight @ (value**2 * (x**2 - 1)) / (2 * variance), (weight @ (value * x)) ** 2]
    assert written == pytest.approx([limit_l, limit_m * variance], abs=1e-6)


@pytest.mark.parametrize(
    ("function", "kinks", "first"),
    [
        (hard_swish, (-3.0, 3.0), 20),
        (lambda x: math.log1p(math.exp(x)), (), 43),
        (lambda x: x * x, (), 8),
        (lambda x: max(x, 0.0) ** 2, (0.0,), 7),
        (exponential, (), 7),
    ],
)
def test_survey_of_other_activations(function, kinks, first):
    found = stability(Activation(function, kinks=kinks), [4, 100])
    assert [crossing.batch for crossing in found.crossings] == [first]


def test_batches_in_any_order_and_small_ones():
    found = stability("tanh", [8, 2, 3, 8])
    assert found.batches.tolist() == [2, 3, 8]
    values = found.eigenvalues
    assert values[1:, 0].tolist() == [p.eigenvalues[0] for p in found.points[1:]]
    assert values[2, 1] == found.points[2].eigenvalues[1]
    assert found.rates.tolist() == [p.rate for p in found.points]
    assert found.stable.all()
    assert stability("tanh", [2]).eigenvalues.shape == (1, 0)
    assert stability("tanh", [2]).labels == ()


def test_what_does_not_exist_is_no_zero():
    """A batch of 3 has no λ_M, and one of 2 no λ_L either: NaN, a dash, and null in JSON."""
    found = stability("relu", [2, 3, 4])
    assert np.isnan(found.eigenvalues).tolist() == [[True, True], [False, True], [False, False]]
    rows = [line.split() for line in str(found).splitlines()[2:]]
    assert [row[1:3].count("-") for row in rows] == [2, 1, 0]
    assert rows[1] == ["3", f"{found.points[1].eigenvalues[0]:.6f}", "-", rows[1][1]]
    document = json.loads(dumps(found.eigenvalues.tolist()))
    assert document[0] == [None, None]
    assert document[1] == [found.points[1].eigenvalues[0], None]


def test_uncentred():
    found = stability("linear", [4, 8], norm="batch-uncentred")
    assert found.rates == pytest.approx([4 / 6, 8 / 10], abs=1e-12)
    assert found.labels[0] == "λ_1"


@pytest.mark.parametrize("stable_above", [True, False])
def test_bisection_finds_the_integer(stable_above):
    template = symmetric_point("tanh", 5)
    asked = []

    def at(batch):
        asked.append(batch)
        rate = 0.5 if (batch >= 613) == stable_above else 1.25
        return dataclasses.replace(template, batch=batch, rate=rate, eigenvalues=(0.1, -rate))

    found = _crossing(at, at(4), at(10_000))
    assert found == Crossing(613, stable_above, 1, -0.5 if stable_above else -1.25)
    assert len(asked) <= 2 + 14


def test_table():
    text = str(stability("silu", [20, 30]))
    header, heads, stable, unstable, crossing = text.splitlines()
    assert header == 'silu, norm "batch"'
    assert heads.split() == ["batch", "λ_L", "λ_M", "rate"]
    assert stable.split()[0] == "20"
    assert "unstable" not in stable
    assert unstable.split()[0] == "30"
    assert unstable.endswith("unstable")
    assert crossing == "unstable from batch 26 on (λ_L)"
    back = dataclasses.replace(
        stability("silu", [20]), crossings=(Crossing(7, True, 1, 0.9), Crossing(9, False, 0, 1.1))
    )
    assert str(back).splitlines()[-2:] == [
        "stable from batch 7 on (λ_M)",
        "unstable from batch 9 on (λ_L)",
    ]


def test_results_are_values():
    found = stability("tanh", [4, 8])
    assert pickle.loads(pickle.dumps(found)) == found
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.norm = "none"


@pytest.mark.parametrize("batches", [[], [1], [4, 1.5], "48", 8, [True]])
def test_bad_batches(batches):
    with pytest.raises((ArgumentError, ArgumentTypeError), match="^batches"):
        stability("tanh", batches)


def test_bad_arguments_of_the_atlas():
    with pytest.raises(UnknownNameError, match="did you mean 'silu'"):
        stability("slu", [4])
    with pytest.raises(UnknownNameError, match="^norm"):
        stability("tanh", [4], norm="layer")
    with pytest.raises(ArgumentError, match="^norm"):
        stability("tanh", [4], norm="none")
    for activations in ("tanh", 3, named("tanh")):
        with pytest.raises(ArgumentTypeError, match="^activations"):
            atlas(activations, [4])
    assert atlas([], [4]) == ()


# --- the map on blocks -----------------------------------------------------------------------


def gram_of_levels(sizes, levels):
    """α_0 and α_1 on the vectors of a block that sum to 0, β on the contrast."""
    n = sum(sizes)
    gram = np.zeros((n, n))
    contrast = np.concatenate(
        [np.full(size, sign / size) for size, sign in zip(sizes, (1, -1), strict=True)]
    )
    contrast /= np.linalg.norm(contrast)
    start = 0
    for size, level in zip(sizes, levels, strict=False):
        rows = slice(start, start + size)
        gram[rows, rows] = level * (np.eye(size) - 1 / size)
        start += size
    return gram + levels[2] * np.outer(contrast, contrast)


def sphere(dimension, order):
    """Points and weights of a product rule on the unit sphere."""
    if dimension == 2:
        angle = math.pi * (np.arange(2 * order) + 0.5) / order
        return np.stack([np.cos(angle), np.sin(angle)], axis=1), np.full(2 * order, 0.5 / order)
    t, outer = special.roots_gegenbauer(order, dimension / 2 - 1)
    points, inner = sphere(dimension - 1, order)
    rest = np.sqrt(1 - t**2)[:, None, None] * points
    first = np.broadcast_to(t[:, None, None], (*rest.shape[:2], 1))
    joined = np.concatenate([first, rest], axis=2).reshape(-1, dimension)
    return joined, np.outer(outer / outer.sum(), inner).ravel()


def whole_spectrum(sigma, gram, order):
    """Eigenvalues of the Jacobian of P F P on symmetric matrices orthogonal to 1, descending."""
    n = len(gram)
    basis = np.linalg.qr(np.eye(n) - 1 / n)[0][:, : n - 1]
    points, weight = sphere(n - 1, order)

    def image(level):
        w = points @ np.linalg.cholesky(level).T @ basis.T
        value = sigma(math.sqrt(n) * w / np.linalg.norm(w, axis=1, keepdims=True)) @ basis
        return np.einsum("p,pi,pj->ij", weight, value, value, optimize=True)

    centre = basis.T @ gram @ basis
    rows, columns = np.triu_indices(n - 1)
    # Orthonormal coordinates of symmetric matrices, and central differences.
    scale = np.where(rows == columns, 1.0, math.sqrt(2))
    step, jacobian = 1e-4, []
    for row, column, size in zip(rows, columns, scale, strict=True):
        delta = np.zeros((n - 1, n - 1))
        delta[row, column] = delta[column, row] = 1 / size
        change = (image(centre + step * delta) - image(centre - step * delta)) / (2 * step)
        jacobian.append(scale * change[rows, columns])
    return np.sort_complex(np.linalg.eigvals(np.array(jacobian).T))[::-1]


@pytest.mark.parametrize(
    ("activation", "sizes", "levels", "order"),
    [
        ("silu", (1, 3), (0.0, 1.0, 2.5), 30),
        (EXP, (2, 2), (1.4, 0.8, 2.0), 30),
        ("tanh", (1, 4), (0.0, 1.0, 0.6), 26),
        ("silu", (2, 3), (1.0, 0.5, 2.0), 20),
        ("sigmoid", (2, 4), (0.7, 1.0, 1.8), 12),
    ],
)
def test_modes_are_the_whole_spectrum(activation, sizes, levels, order):
    """Irreducible blocks of integrals against brute force without any symmetry."""
    sigma = activation if isinstance(activation, Activation) else named(activation)
    modes = BlockMap(sigma, sizes, 16).modes(np.array(levels))
    found = np.concatenate([[0.0], *(np.repeat(mode.value, mode.multiplicity) for mode in modes)])
    expected = whole_spectrum(sigma, gram_of_levels(sizes, levels), order)
    # The differences are off by ε² times a third derivative of order 1, and rounding by 1e-16/ε.
    np.testing.assert_allclose(np.sort_complex(found)[::-1], expected, atol=2e-7)


SYMMETRIC = [
    ("silu", (1, 2)),
    ("silu", (1, 3)),
    ("silu", (2, 2)),
    ("silu", (1, 31)),
    ("silu", (10, 22)),
    ("tanh", (1, 6)),
    ("tanh", (3, 4)),
    ("relu", (1, 3)),
    ("relu", (2, 5)),
    (HARD_SWISH, (4, 8)),
    (Activation(lambda x: 1000.0 + math.tanh(x)), (1, 9)),
]


@pytest.mark.parametrize(("activation", "sizes"), SYMMETRIC)
def test_symmetric_point_in_blocks(activation, sizes):
    """The levels of G* are fixed, every mode is λ_L or λ_M, and there are as many as there are.

    Deviations stay below the estimate of the error: the difference to a coarser quadrature, the
    tail of the series, and rounding, which an offset of 1000 magnifies.
    """
    n = sum(sizes)
    star = symmetric_point(activation, n)
    sigma = bnmc.Chain(1, n, activation).activation
    mu = star.b * (1 - star.c)
    levels = np.array([mu if sizes[0] > 1 else 0.0, mu, mu])
    fine, coarse = (BlockMap(sigma, sizes, order) for order in (16, 11))
    image, other = fine.image(levels), coarse.image(levels)
    estimate = np.abs(image.levels - other.levels).max() + image.error * mu
    estimate += 1e-13 * max(mu, star.b / 1000)
    np.testing.assert_allclose(image.levels, levels, atol=estimate)
    entries = [*image.diagonal, image.between]
    entries += [x for x, size in zip(image.inside, sizes, strict=True) if size > 1]
    expected = [star.b, star.b, *[star.b * star.c] * (len(entries) - 2)]
    assert entries == pytest.approx(expected, abs=10 * estimate + 1e-14 * star.b)

    modes = fine.modes(levels)
    assert sum(mode.multiplicity for mode in modes) == n * (n - 1) // 2 - 1
    values, others = (
        [mode.value for mode in sorted(found, key=lambda mode: (mode.name, mode.value.real))]
        for found in (modes, coarse.modes(levels))
    )
    rough = max(abs(a - b) for a, b in zip(values, others, strict=True))
    allowed = rough + 10 * estimate / mu
    assert allowed < 1e-3
    for eigenvalue, multiplicity in zip(star.eigenvalues, star.multiplicities, strict=True):
        near = [mode for mode in modes if abs(mode.value - eigenvalue) < allowed]
        assert sum(mode.multiplicity for mode in near) == multiplicity


@pytest.mark.parametrize(("activation", "n"), [("silu", 26), ("gelu", 10), ("tanh", 32)])
def test_slope_of_the_one_dimensional_map_is_lambda_l(activation, n):
    """d log r′/d log r at r = 1, by finite differences: λ_L without its formula."""
    block_map = BlockMap(named(activation), (1, n - 1), 16)
    step = 1e-4

    def image(logarithm):
        levels = block_map.image(np.array([0.0, math.exp(-logarithm), 1.0])).levels
        return math.log(levels[2] / levels[1])

    slope = (image(step) - image(-step)) / (2 * step)
    # Third derivatives are of order 1: ε²/6, and rounding by 1e-15/ε.
    assert slope == pytest.approx(symmetric_point(activation, n).eigenvalues[0], abs=5e-8)
    assert image(0.0) == pytest.approx(0.0, abs=1e-13)


def rows_of(sigma, gram, count, rng):
    """σ(φ) for rows drawn from N(0, G)."""
    values, vectors = np.linalg.eigh(gram)
    w = rng.standard_normal((count, len(gram))) * np.sqrt(np.clip(values, 0, None)) @ vectors.T
    w -= w.mean(axis=1, keepdims=True)
    return sigma(w / np.sqrt((w**2).mean(axis=1, keepdims=True)))


def assert_mean(samples, expected, error=0.0):
    """Mean of independent samples along axis 0, a number a column, within SIGMAS and an error."""
    allowed = SIGMAS * samples.std(axis=0, ddof=1) / math.sqrt(len(samples)) + error
    np.testing.assert_array_less(np.abs(samples.mean(axis=0) - expected), allowed)


@pytest.mark.parametrize(
    ("activation", "sizes", "levels"),
    [
        (Activation(hard_tanh), (1, 6), (0.0, 1.0, 3.0)),
        (Activation(hard_tanh), (3, 4), (1.0, 0.4, 3.0)),
        (HARD_SWISH, (4, 5), (1.5, 0.0, 2.0)),
        (Activation(lambda x: 1.0 if x > 0.3 else 0.0), (2, 3), (1.0, 2.0, 0.5)),
        (Activation(lambda x: 50.0 + math.tanh(2 * x)), (2, 30), (4.0, 0.1, 9.0)),
    ],
    ids=["corner", "corners", "collapsed", "jump", "offset"],
)
def test_image_by_plain_monte_carlo(activation, sizes, levels):
    image = BlockMap(activation, sizes, 16).image(np.array(levels))
    gram = gram_of_levels(sizes, levels)
    value = rows_of(activation, gram, 200_000, np.random.default_rng(1))
    first, second = value[:, : sizes[0]], value[:, sizes[0] :]
    samples, expected = [first[:, 0] * second[:, 0]], [image.between]
    for index, block in enumerate((first, second)):
        samples.append(block[:, 0] ** 2)
        expected.append(image.diagonal[index])
        if block.shape[1] > 1:
            samples.append(block[:, 0] * block[:, 1])
            expected.append(image.inside[index])
            if levels[index] > 0:
                samples.append(0.5 * (block[:, 0] - block[:, 1]) ** 2)
                expected.append(image.levels[index])
    contrast = first.mean(axis=1) - second.mean(axis=1)
    samples.append(contrast**2 * sizes[0] * sizes[1] / sum(sizes))
    expected.append(image.levels[2])
    blocks = np.stack(samples, axis=1).reshape(400, -1, len(samples)).mean(axis=1)
    assert_mean(blocks, expected, image.error * image.levels.max() + 1e-12 * image.between)


@pytest.mark.parametrize(("activation", "sizes"), [("silu", (10, 22)), (HARD_SWISH, (8, 18))])
def test_modes_of_a_collapsed_block_are_limits(activation, sizes):
    """Two derivations: first order in the difference of samples, and the Gaussian score."""
    block_map = BlockMap(bnmc.Chain(1, 3, activation).activation, sizes, 12)
    collapsed = {
        (mode.name, round(mode.value.real, 6)): mode.value
        for mode in block_map.modes(np.array([1.0, 0.0, 3.6]))
    }
    near = [mode.value for mode in block_map.modes(np.array([1.0, 1e-10, 3.6]))]
    for value in collapsed.values():
        assert min(abs(value - other) for other in near) < 1e-6
    split = next(value for (name, _), value in collapsed.items() if name.startswith("split"))
    # Of a regular block three modes tend to it: ratios, one and pairs.
    assert sum(abs(split - other) < 1e-5 for other in near) == 3


def test_series_of_pairs():
    """p_k(ρ)/p_k(1) and the recurrence: cosines on the circle, Legendre polynomials on S²."""
    k = np.arange(20)
    np.testing.assert_allclose([r[0] for r in _ratios(2)[:20]], np.cos(2 * math.pi / 3 * k))
    legendre = [special.eval_legendre(i, -1 / 3) for i in k]
    np.testing.assert_allclose([r[0] for r in _ratios(3)[:20]], legendre, atol=1e-14)
    assert [r[:2] for r in _ratios(1)] == [(1.0, 1.0), (-1.0, 0.0)]
    for dimension in (2, 3, 9):
        later = [r[1] for r in _ratios(dimension)]
        assert later == sorted(later, reverse=True)
        assert all(b >= abs(a[0]) for a, b in zip(_ratios(dimension)[1:], later, strict=False))


# --- fixed points ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("find", "options"),
    [
        (block_symmetric, {"batch": 26}),
        (block_symmetric, {"batch": 25, "minority": 2}),
        (partial_collapse, {"batch": 32, "distinct": 10}),
    ],
    ids=["outlier", "two", "collapse"],
)
def test_fixed_points_of_silu_are_fixed(find, options):
    """F(G) = G, by plain Monte Carlo."""
    points = find("silu", **options)
    assert points
    for point in points:
        value = rows_of(named("silu"), point.gram, 120_000, np.random.default_rng(2))
        a, b = value[:, : point.sizes[0]], value[:, point.sizes[0] :]
        k, m = point.sizes
        samples = np.stack(
            [
                (a**2).mean(axis=1),
                (b**2).mean(axis=1),
                a.mean(axis=1) ** 2,
                b.mean(axis=1) ** 2,
                a.mean(axis=1) * b.mean(axis=1),
            ],
            axis=1,
        )
        expected = [
            *point.diagonal,
            (point.diagonal[0] + (k - 1) * point.inside[0]) / k,
            (point.diagonal[1] + (m - 1) * point.inside[1]) / m,
            point.between,
        ]
        assert_mean(samples.reshape(400, -1, 5).mean(axis=1), expected)
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
        assert symmetric_point("silu", n).stable
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
    e = np.array([math.sqrt((n - 1) / n), -math.sqrt(1 / (n * (n - 1)))])

    def kernels(t):
        s, b = alpha / (1 + 2 * t * alpha), beta / (1 + 2 * t * beta)
        first, other = b * e[0] ** 2, b * e[1] ** 2 + s * (1 - 1 / (n - 1))
        scale = n * (1 + 2 * t * alpha) ** (1 - n / 2) / math.sqrt(1 + 2 * t * beta)
        pairs = [
            (first, first, first),
            (other, other, other),
            (b * e[0] * e[1], first, other),
            (b * e[1] ** 2 - s / (n - 1), other, other),
        ]
        for covariance, x, y in pairs:
            rho = min(1.0, covariance / math.sqrt(x * y))
            angle = math.pi - math.acos(rho)
            yield (
                scale * math.sqrt(x * y) * (math.sqrt(1 - rho * rho) + angle * rho) / (2 * math.pi)
            )

    # t = u/(1−u) has no infinite range.
    def integrand(u, index):
        return list(kernels(u / (1 - u)))[index] / (1 - u) ** 2

    return [
        integrate.quad(integrand, 0, 1, args=(i,), epsrel=1e-11, limit=200)[0] for i in range(4)
    ]


@pytest.mark.parametrize("n", [52, 64, 256])
def test_relu_has_a_second_attractor(n):
    """From a batch of 52 on one sample can stand out, beside the symmetric point, also stable."""
    outlier, saddle = block_symmetric("relu", n)
    assert symmetric_point("relu", n).stable
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


def test_attractors_of_silu_past_the_crossing_are_collapsed():
    """n = 32: no outlier is stable, but 7 to 15 distinct samples beside coinciding ones are."""
    assert not any(point.stable for point in block_symmetric("silu", 32))
    stable = {
        distinct: [point.stable for point in partial_collapse("silu", 32, distinct=distinct)]
        for distinct in (1, 2, 6, 7, 10, 15, 16)
    }
    assert stable == {
        1: [False], 2: [False], 6: [False], 7: [True], 10: [True], 15: [True], 16: [False]
    }  # fmt: skip
    # What limits them: coinciding samples part, or distinct ones do not stay alike.
    assert partial_collapse("silu", 32, distinct=6)[0].modes[0] == "split of block 1"
    assert partial_collapse("silu", 32, distinct=16)[0].modes[0] == "one of block 0"


@pytest.mark.parametrize("activation", ["relu", "tanh", "linear"])
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
    assert not symmetric_point(biased, 8).stable
    (halves,) = block_symmetric(biased, 8, minority=4)
    assert halves.stable
    assert halves.diagonal[0] > 3 * halves.diagonal[1]
    value = rows_of(biased, halves.gram, 100_000, np.random.default_rng(3))
    samples = np.stack([(value[:, :4] ** 2).mean(axis=1), (value[:, 4:] ** 2).mean(axis=1)], axis=1)
    assert_mean(samples.reshape(400, -1, 2).mean(axis=1), halves.diagonal)


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
    sign = Activation(lambda x: 1.0 if x > 0 else -1.0)
    (jumps,) = partial_collapse(sign, 9, distinct=5, rtol=0.1)
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


def test_errors_of_fixed_points_are_told():
    with pytest.raises(PartialEstimateError, match="rtol is 1.0e-16") as caught:
        block_symmetric("silu", 26, rtol=1e-16)
    assert [point.sizes for point in caught.value.partial] == [(1, 25)] * 2


@pytest.mark.parametrize(
    ("find", "options", "argument"),
    [
        (block_symmetric, {"batch": 2}, "batch"),
        (block_symmetric, {"batch": 8, "minority": 0}, "minority"),
        (block_symmetric, {"batch": 8, "minority": 5}, "minority"),
        (block_symmetric, {"batch": 8, "minority": 1.0}, "minority"),
        (block_symmetric, {"batch": 8, "rtol": 0}, "rtol"),
        (partial_collapse, {"batch": 8, "distinct": 7}, "distinct"),
        (partial_collapse, {"batch": 8, "distinct": 0}, "distinct"),
        (partial_collapse, {"batch": 2, "distinct": 1}, "batch"),
        (partial_collapse, {"batch": 8, "distinct": 3, "rtol": math.nan}, "rtol"),
    ],
)
def test_bad_arguments_of_blocks(find, options, argument):
    with pytest.raises((ArgumentError, ArgumentTypeError), match=f"^{argument}"):
        find("silu", **options)


@pytest.mark.parametrize(
    "function", [lambda x: 3.0, lambda x: math.nan, lambda x: math.sin(1e6 * x)]
)
def test_activations_without_blocks(function):
    with pytest.raises(ArgumentError, match="^activation"):
        block_symmetric(Activation(function), 8)
    with pytest.raises(ArgumentError, match="^activation"):
        partial_collapse(Activation(function), 8, distinct=3)


# --- simulation ------------------------------------------------------------------------------


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


def test_collapsed_fixed_point_by_simulation():
    """Stationary means at widths d and 4d, extrapolated to 1/d = 0, over 16 chains each."""
    (point,) = partial_collapse("silu", 32, distinct=10)
    k = point.sizes[0]
    rng = np.random.default_rng(5)
    means = []
    for width in (1500, 6000):
        run = bnmc.simulate(
            bnmc.Chain(width, 32, "silu"),
            70,
            initial=started_at(point, width, 16, rng),
            rng=rng,
            burn_in=40,
        )
        grams = run.gram.mean(axis=1)
        free = grams[:, :k, :k]
        trace = np.trace(free, axis1=1, axis2=2)
        means.append(
            np.stack(
                [
                    trace / k,
                    (free.sum(axis=(1, 2)) - trace) / (k * (k - 1)),
                    grams[:, :k, -1].mean(axis=1),
                    grams[:, -1, -1],
                ],
                axis=1,
            )
        )
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
    ("activation", "n", "width", "depth"), [("abs", 24, 4000, 60), ("relu", 64, 20_000, 30)]
)
def test_start_decides_between_two_attractors(activation, n, width, depth):
    """One network, two batches: a sample that stands out goes on to, all alike stay alike."""
    outlier, saddle = block_symmetric(activation, n)
    star = symmetric_point(activation, n)
    assert star.stable
    assert outlier.stable
    rows = np.random.default_rng(4).standard_normal((width, n))
    root = np.linalg.cholesky(outlier.gram)
    run = bnmc.simulate(
        bnmc.Chain(width, n, activation),
        depth,
        inputs=2,
        initial=np.stack([rows @ root.T, rows]),
        rng=6,
        burn_in=depth,
    )
    apart, alike = (np.diag(gram) for gram in run.gram[0, -1])
    # Between them lies the saddle: the first sample is above it there, and below it here.
    assert apart.argmax() == 0
    assert apart[0] > 2 * saddle.diagonal[0]
    assert apart[1:].max() < saddle.diagonal[0]
    assert alike.max() < saddle.diagonal[0]
    assert alike.mean() == pytest.approx(star.b, rel=0.05)


@pytest.mark.parametrize(("distinct", "parts"), [(4, True), (10, False)])
def test_coinciding_samples_part_as_predicted(distinct, parts):
    """What is left of their differences shrinks or grows: 16 chains, Student's law."""
    (point,) = partial_collapse("silu", 32, distinct=distinct)
    rng = np.random.default_rng(8)
    run = bnmc.simulate(
        bnmc.Chain(4000, 32, "silu"),
        16,
        initial=started_at(point, 4000, 16, rng, apart=1e-4),
        rng=rng,
    )
    cluster = run.gram[:, :, distinct:, distinct:]
    spread = np.trace(cluster, axis1=2, axis2=3) - cluster.sum(axis=(2, 3)) / point.sizes[1]
    slopes = np.log(spread[:, 16] / spread[:, 4]) / 12
    split = point.eigenvalues[point.modes.index("split of block 1")]
    score = slopes.mean() / slopes.std(ddof=1) * math.sqrt(16)
    assert (split > 1) == parts
    assert math.copysign(score, 1 if parts else -1) == score
    assert abs(score) > stats.t.isf(1e-6, 15)


# --- the picture -----------------------------------------------------------------------------


def test_plot_shows_moduli_and_crossings():
    entries = atlas(["silu", "tanh"], [2, 3, 4, 16, 64])
    ax = plot_stability(entries)
    assert ax.get_xscale() == "log"
    assert ax.get_xlabel()
    assert ax.get_ylabel()
    lines = {line.get_label(): line for line in ax.lines}
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels == ["silu", "tanh", r"$\lambda_L$", r"$\lambda_M$"]
    for entry in entries:
        for kind, symbol in enumerate((r"\lambda_L", r"\lambda_M")):
            line = lines[f"{entry.activation} ${symbol}$"]
            np.testing.assert_array_equal(line.get_xdata(), entry.batches[1 + kind :])
            expected = np.abs(entry.eigenvalues[1 + kind :, kind])
            np.testing.assert_array_equal(line.get_ydata(), expected)
    (crossing,) = entries[0].crossings
    dots = [line for line in ax.lines if line.get_marker() == "o"]
    assert {line.get_marker() for line in ax.lines} == {"", "None", "o"}  # few have no others
    assert [(d.get_xdata()[0], d.get_ydata()[0]) for d in dots] == [(26, crossing.value)]
    assert [text.get_text() for text in ax.texts] == ["n = 26"]
    assert any(list(line.get_ydata()) == [1.0, 1.0] for line in ax.lines)
    ax.figure.canvas.draw()


def test_plot_of_all_activations_has_no_two_alike():
    entries = atlas(SURVEY, [3, 4, 8])
    ax = plot_stability(entries)
    legend = ax.get_legend()
    labels = [text.get_text() for text in legend.get_texts()]
    assert labels == [*SURVEY, r"$\lambda_L$", r"$\lambda_M$"]
    looks = [(line.get_color(), line.get_marker()) for line in legend.get_lines()[:-2]]
    assert len(set(looks)) == len(SURVEY)
    lines = {line.get_label(): line for line in ax.lines}
    for name, look in zip(SURVEY, looks, strict=True):
        drawn = [lines[rf"{name} $\lambda_{kind}$"] for kind in "LM"]
        assert [(line.get_color(), line.get_marker()) for line in drawn] == [look] * 2
        assert [line.get_linestyle() for line in drawn] == ["-", "--"]
    ax.figure.canvas.draw()
    assert legend.get_window_extent().x0 > ax.get_window_extent().x1
    assert ax.get_window_extent().width > 0.7 * ax.figure.bbox.width


@pytest.mark.parametrize(
    ("batches", "labels"),
    [
        (
            [3, 4, 5, 8, 12, 16, 24, 32, 48, 64],
            ["3", "4", "5", "8", "12", "16", "24", "32", "48", "64"],
        ),
        ([4, 10, 11, 12, 13, 14, 100, 1000], ["4", "10", "13", "100", "1000"]),
        ([8], ["8"]),
    ],
)
def test_plot_labels_batches_that_stay_apart(batches, labels):
    ax = plot_stability(stability("tanh", batches))
    ax.figure.canvas.draw()
    shown = ax.get_xticklabels()
    assert [text.get_text() for text in shown] == labels
    boxes = [text.get_window_extent() for text in shown]
    assert all(a.x1 < b.x0 for a, b in pairwise(boxes))


def test_plot_takes_one_entry_and_axes():
    axes = Figure().add_subplot()
    assert plot_stability(stability("abs", [3, 4, 5]), ax=axes) is axes
    assert min(axes.lines[1].get_ydata()) > 0  # λ_M of abs is negative


@pytest.mark.parametrize("entries", [3, [3], [], "silu"])
def test_bad_entries(entries):
    with pytest.raises((ArgumentError, ArgumentTypeError), match="^entries"):
        plot_stability(entries)


def test_entries_of_one_norm():
    mixed = [stability("tanh", [4]), stability("tanh", [4], norm="batch-uncentred")]
    with pytest.raises(ArgumentError, match="one norm"):
        plot_stability(mixed)
