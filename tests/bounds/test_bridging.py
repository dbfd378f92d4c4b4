"""The statements of the bridging paper: formulas as printed, arguments, and simulated chains."""

import itertools
import math

import numpy as np
import pytest
from bridging_checks import SETTINGS, contradicts, fixed_point
from oracle import FALSE_ALARM, normal_threshold
from random_matrix_checks import one_dimensional_tv
from scipy import stats
from slow_cases import slow

import bnmc
from bnmc import gram as gm
from bnmc.bounds import bridging
from bnmc.bounds.gaussian import spectral_deviation
from bnmc.errors import ArgumentError, ArgumentTypeError, SingularGramError

EXTREMES = {
    "depth": (0, 1e30),
    "width": (1, 1e30),
    "batch": (1, 1e30),
    "alpha": (1e-30, 1),
    "t": (0, 1e-300, 1e30),
    "inverse_norm": (1e-30, 1e30),
    "distortion": (1e-30, 1e30),
    "constant": (1e-30, 1e30),
    "rows": (1, 1e30),
    "condition": (1, 1e30),
    "total_variation": (0, 1),
}


STATEMENTS = {
    "equation_6": "depth width batch",
    "theorem_1": "depth width batch alpha t inverse_norm constant",
    "corollary_2": "depth width batch alpha t inverse_norm constant",
    "theorem_3": "depth width batch alpha t inverse_norm distortion constant",
    "corollary_4": "width batch t inverse_norm distortion constant",
    "corollary_6": "depth width batch alpha t constant",
    "corollary_7": "depth width batch alpha t constant",
    "poster_theorem": "depth width batch alpha condition constant",
    "lemma_5": "width batch inverse_norm distortion constant",
    "lemma_9": "width batch t inverse_norm distortion",
    "gram_concentration": "width batch t inverse_norm distortion",
    "lemma_10": "t total_variation",
    "lemma_11": "width batch inverse_norm distortion",
    "equation_47": "width batch inverse_norm distortion",
    "one_step_total_variation": "width batch rows inverse_norm distortion",
    "lemma_12": "depth width batch alpha inverse_norm distortion constant",
}


def numbers_of(result):
    is_pair = isinstance(result, bridging.Concentration)
    return [result.radius, result.probability] if is_pair else [result]


def printed(setting):
    """Return the numbers of each statement, written out from the print."""
    layer, d, n, a, t, v, g, C = setting.values()
    square, largest = n**2 * g**2 * v / d, n * g**2 * v
    spread = (largest - 1) * n + math.sqrt(t / n) * largest * n / 3
    bernstein = 2 * n * math.exp(-(t * d / 2) / spread)
    poster = v * (1 - a) ** (layer / 2) + n / math.sqrt(d) * math.sqrt(math.log(d / n) / a)

    def radius(epsilon):
        decay = math.exp(-a * layer / 2)
        return t * (decay + epsilon * math.log(1 / epsilon)) if epsilon < 1 else math.inf

    numbers = {
        "equation_6": [math.exp(3 * n * layer / (2 * d))],
        "theorem_1": [C * radius(n * math.sqrt(v) / math.sqrt(d)), 1 / t**2],
        "theorem_3": [radius(n * g * math.sqrt(v / d)), C / t**2],
        "corollary_4": [t * math.sqrt(square), C / t**2],
        "corollary_6": [C * radius(n / math.sqrt(d)), 1 / t**2],
        "poster_theorem": [C * poster],
        "lemma_5": [C * square],
        "lemma_9": [n * math.exp(-(t * d / 2) / (g**2 * v * n**2 * (1 + math.sqrt(t / n))))],
        "gram_concentration": [min(n * (largest - 1) / (d * t), bernstein)],
        "lemma_10": [0.3 / t],
        "lemma_11": [3 * square * math.log(1 / (3 * square)) if 3 * square < 1 else 1],
        "equation_47": [3 * square * (1 + math.log(n / (3 * square))) if 3 * square < n else 1],
        "one_step_total_variation": [1.5 * math.sqrt(7 * n * (largest - 1) / d)],
        "lemma_12": [math.exp(-layer * a) + C * square],
    }
    for name, values in numbers.items():
        if name not in ("equation_6", "poster_theorem"):
            values[-1] = min(1, values[-1])
    same = {"corollary_2": "theorem_1", "corollary_7": "corollary_6"}
    return numbers | {name: numbers[other] for name, other in same.items()}


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize("name", STATEMENTS)
def test_formulas(name, setting):
    more = {"condition": setting["inverse_norm"], "rows": 7, "total_variation": 0.003}
    arguments = {argument: (setting | more)[argument] for argument in STATEMENTS[name].split()}
    numbers = numbers_of(getattr(bridging, name)(**arguments))
    assert numbers == pytest.approx(printed(setting)[name], rel=1e-13, abs=1e-300)


@pytest.mark.parametrize("name", STATEMENTS)
def test_arguments_broadcast_and_extremes_stay_numbers(name):
    """All corners of the ranges in one call: no NaN, no warning, and the values of single calls."""
    arguments = STATEMENTS[name].split()
    grids = np.meshgrid(*(EXTREMES[a] for a in arguments), indexing="ij", sparse=True)
    statement = getattr(bridging, name)
    values = numbers_of(statement(**dict(zip(arguments, grids, strict=True))))
    for value in values:
        assert value.shape == tuple(len(EXTREMES[a]) for a in arguments)
        assert not np.isnan(value).any()
        assert (value >= 0).all()
    for index in itertools.islice(np.ndindex(values[0].shape), 0, None, 7):
        single = {a: EXTREMES[a][i] for a, i in zip(arguments, index, strict=True)}
        for value, alone in zip(values, numbers_of(statement(**single)), strict=True):
            assert isinstance(alone, np.float64)
            np.testing.assert_allclose(alone, value[index], rtol=1e-13)


def valid(name):
    """Arguments of a statement. All are 1, except the width and t."""
    return {a: {"width": 1000, "t": 2}.get(a, 1) for a in STATEMENTS[name].split()}


@pytest.mark.parametrize("name", STATEMENTS)
def test_bad_arguments(name):
    statement = getattr(bridging, name)
    statement(**valid(name))
    for argument in STATEMENTS[name].split():
        low, *_, high = EXTREMES[argument]
        for wrong, error in [
            (np.nan, ArgumentError),
            (-1, ArgumentError),
            (low - 1e-12 * max(low, 1), ArgumentError),
            (high * 1.001, ArgumentError),
            ("many", ArgumentTypeError),
        ]:
            with pytest.raises(error) as caught:
                statement(**{**valid(name), argument: wrong})
            assert caught.value.argument == argument
    first, second = STATEMENTS[name].split()[:2]
    with pytest.raises(ArgumentError, match="broadcast"):
        statement(**{**valid(name), first: [1, 1], second: [1, 1, 1]})


@pytest.mark.parametrize("activation", ["relu", "tanh", "sigmoid"])
def test_star_stands_for_its_numbers(activation):
    star = fixed_point(activation, 6)
    spectrum = np.linalg.eigvalsh(star.gram)
    gamma = bridging.distortion(activation, 6)
    where = {"width": 5000, "batch": 6}
    expected = bridging.lemma_11(**where, inverse_norm=1 / spectrum[0], distortion=gamma.upper)
    condition = spectrum[-1] / spectrum[0]
    deep = {"depth": 9, "alpha": 0.3, **where}
    poster = bridging.poster_theorem(**deep, condition=condition)
    for G in (star, star.gram, star.gram.tolist()):
        assert bridging.lemma_11(**where, star=G, distortion=gamma) == pytest.approx(expected)
        assert bridging.poster_theorem(**deep, star=G) == pytest.approx(poster)


def test_bad_stars():
    for star in (fixed_point("tanh", 2), fixed_point("linear", 5)):
        with pytest.raises(SingularGramError, match="star"):
            bridging.lemma_5(width=5000, distortion=1, batch=star.batch, star=star)


def test_formula_of_corollary_8():
    star, width = fixed_point("relu", 5), np.array([500, 2000])
    level, half = star.b * (1 - star.c), 2 * np.sqrt(5 / width)
    expected = level * (1 - half), level * (1 + half), np.log(width / 0.4)
    for G in (star, star.gram):
        bulk = bridging.corollary_8(width=width, alpha=0.4, star=G, constant=2)
        np.testing.assert_allclose((bulk.lower, bulk.upper, bulk.depth), expected)


def test_vacuous_statements():
    """ε >= 1 gives an infinite radius. For ε < 1/e the bound decreases with the width."""
    width = np.array([1.0, 24.9, 25.0, 25.1, 200.0, 1e4, 1e8])
    result = bridging.corollary_7(depth=1e9, width=width, batch=5, alpha=0.5, t=[[0.0], [3.0]])
    assert result.radius.shape == result.probability.shape == (2, 7)
    np.testing.assert_array_equal(np.isinf(result.radius), np.tile(width <= 25, (2, 1)))
    assert (result.radius[0, 3:] == 0).all()
    assert (np.diff(result.radius[1, 4:]) < 0).all()
    # The print is not monotone: just above ε = 1 it is nearly 0.
    assert result.radius[1, 3] < result.radius[1, 4]
    assert bridging.poster_theorem(depth=3, width=5, batch=5, alpha=1, condition=1) == np.inf
    assert bridging.equation_6(depth=1e9, width=1, batch=9) == np.inf
    matrix = {"inverse_norm": 1, "distortion": 1}
    assert bridging.lemma_11(width=75, batch=5, **matrix) == 1
    assert bridging.equation_47(width=15, batch=5, **matrix) == 1
    assert bridging.gram_concentration(width=9, batch=1, t=0, **matrix) == 1
    assert bridging.gram_concentration(width=9, batch=1, t=1, **matrix) == 0
    assert bridging.lemma_10(t=0, total_variation=0) == 1


TS = np.array([2.0, 4.0, 10.0])


@pytest.mark.parametrize(
    ("activation", "width"),
    [("relu", 1000), slow("tanh", 2000), ("celu", 1000), slow("sigmoid", 1000)],
)
def test_theorems_hold_with_constant_one(activation, width):
    """Theorems 1 and 3, Corollaries 2, 4, 6, 7, the poster: every layer, from two unlike inputs.

    100 networks, two inputs each, n = 5. Every statement is below its probability at every layer
    and t; that of the poster, "high", is read as .99.
    """
    chains, depth, n = 100, 40, 5
    star, gamma = fixed_point(activation, n), bridging.distortion(activation, n)
    rng = np.random.default_rng(1)
    start = rng.standard_normal((2, width, n))
    start[1, :, 1] = 0.85 * start[1, :, 0] + math.sqrt(1 - 0.85**2) * start[1, :, 1]
    run = bnmc.simulate(
        bnmc.Chain(width, n, activation), depth, chains=chains, initial=start, inputs=2, rng=7
    )
    G, other = run.gram[:, :, 0], run.gram[:, :, 1]
    eigenvalues, others = np.linalg.eigvalsh(G), np.linalg.eigvalsh(other)
    limits = np.linalg.eigvalsh(star.gram)
    layers = np.arange(depth + 1)[:, None]
    arguments = {"depth": layers, "width": width, "batch": n, "alpha": 1 - star.rate, "t": TS}
    relative = {**arguments, "star": star}
    without_depth = {key: relative[key] for key in ("width", "batch", "t", "star")}
    late = layers[:, 0] >= 30
    cases = [
        (bridging.theorem_1(**relative), np.abs(eigenvalues / limits - 1).max(axis=-1)),
        (bridging.corollary_2(**relative), np.abs(eigenvalues / others - 1).max(axis=-1)),
        (bridging.theorem_3(**relative, distortion=gamma), gm.relative_deviation(star.gram, G)),
        (bridging.corollary_6(**arguments), np.linalg.norm(eigenvalues - limits, axis=-1)),
        (bridging.corollary_7(**arguments), gm.distance(G, star.gram)),
    ]
    comparisons = len(cases) * (depth + 1) * len(TS)
    for bound, deviation in cases:
        assert bound.radius.shape == (depth + 1, len(TS))
        counts = (deviation[:, :, None] >= bound.radius).sum(axis=0)
        assert not contradicts(counts, chains, bound.probability, comparisons).any()
    # Corollary 4 has no depth: in late layers it holds.
    bound = bridging.corollary_4(**without_depth, distortion=gamma)
    deviation = gm.relative_deviation(G, other)
    counts = (deviation[:, late, None] >= bound.radius).sum(axis=0)
    assert not contradicts(counts, chains, bound.probability, comparisons).any()
    # It is stated for layer 0 as well, but false there.
    assert (deviation[:, 0] >= bound.radius[0]).all()
    assert contradicts(chains, chains, bound.probability[0])

    del arguments["t"]
    radius = bridging.poster_theorem(**arguments, star=star)[:, 0]
    counts = (gm.distance(G, star.gram) >= radius).sum(axis=0)
    assert not contradicts(counts, chains, 0.01, depth + 1).any()


def test_corollary_8():
    """At n = 20, d = 500 the bulk is within 4 √(n/d), and not within 1."""
    chains, n, width = 60, 20, 500
    star = fixed_point("relu", n)
    wide = bridging.corollary_8(width=width, alpha=1 - star.rate, star=star, constant=4)
    narrow = bridging.corollary_8(width=width, alpha=1 - star.rate, star=star)
    depth = 60
    assert depth > wide.depth
    run = bnmc.simulate(bnmc.Chain(width, n, "relu"), depth, chains=chains, rng=2, burn_in=depth)
    bulk = np.linalg.eigvalsh(run.gram[:, -1])[:, :-1]  # c* > 0, so the outlier is the largest
    outside = ((bulk < wide.lower) | (bulk > wide.upper)).any(axis=1).sum()
    assert not contradicts(outside, chains, 0.01)
    outside = ((bulk < narrow.lower) | (bulk > narrow.upper)).any(axis=1).sum()
    assert contradicts(outside, chains, 0.5)


def vanilla_norms(n, width, depth, chains, order):
    start = math.sqrt(width) * np.eye(width, n)
    run = bnmc.simulate(
        bnmc.Chain(width, n, "linear", norm="none"),
        depth,
        chains=chains,
        initial=start,
        rng=5,
        observables="gram",
    )
    return np.linalg.norm(run.gram - np.eye(n), ord=order, axis=(-2, -1))


@pytest.mark.parametrize(("n", "width"), [(2, 20), (8, 100)])
def test_equation_6_bounds_the_operator_norm(n, width):
    depth, chains = 40, 1000
    norms = vanilla_norms(n, width, depth, chains, order=2)
    error = norms.std(axis=0, ddof=1) / math.sqrt(chains)
    bound = bridging.equation_6(depth=np.arange(depth + 1), width=width, batch=n)
    assert (norms.mean(axis=0) - normal_threshold(depth + 1) * error <= bound).all()


def test_equation_6_does_not_bound_the_frobenius_norm():
    """At n = 8 and l = d/(3n) the bound is √e, and the mean exceeds it."""
    n, width, chains = 8, 960, 2000
    norms = vanilla_norms(n, width, width // (3 * n), chains, order="fro")[:, -1]
    error = norms.std(ddof=1) / math.sqrt(chains)
    bound = bridging.equation_6(depth=width // (3 * n), width=width, batch=n)
    assert bound == pytest.approx(math.sqrt(math.e))
    assert norms.mean() - normal_threshold() * error > bound


def test_theorem_3_lacks_a_power_of_alpha():
    """σ(x) = 1 + x, ε = .6: in units of ε ln 1/ε the stationary deviation grows like √n/2.

    That is the centred linear chain's, n³/(4d) for the mean square, but for terms of rank two.
    """
    activation = bnmc.Activation(lambda x: 1.0 + x)
    ratios = {}
    for n, chains in ((8, 64), (16, 32), (32, 8)):
        star = fixed_point(activation, n)
        gamma = bridging.distortion(activation, n, curvature=0)
        assert gamma.upper == pytest.approx(2)
        np.testing.assert_allclose(
            np.linalg.eigvalsh(star.gram), [n / (n - 1)] * (n - 1) + [n], rtol=1e-10
        )
        assert star.rate == pytest.approx((n - 1) / (n + 1))
        width = round(n * (n - 1) * 4 / 0.6**2)
        depth = round(4 / (1 - star.rate))
        run = bnmc.simulate(
            bnmc.Chain(width, n, activation), depth, chains=chains, rng=11, burn_in=depth
        )
        deviation = gm.relative_deviation(star.gram, run.gram[:, -1])
        bound = bridging.theorem_3(
            depth=1e9, width=width, batch=n, alpha=1, t=1, star=star, distortion=gamma
        )
        assert bound.radius == pytest.approx(0.6 * math.log(1 / 0.6), rel=1e-3)
        ratios[n] = deviation / bound.radius
    # Doubling n multiplies the mean by 1.35. Its standard error is 2 %, a sixth of the margin.
    assert ratios[32].mean() > 1.15 * ratios[16].mean() > 1.15**2 * ratios[8].mean()
    # For t = 2.5 and the constant 1 the stated probability is .16.
    assert contradicts((ratios[32] >= 2.5).sum(), 8, 2.5**-2)


def test_the_transient_part_does_not_scale_with_t():
    """A start with two nearly equal samples, at layer 0."""
    n, width = 5, 50_000
    star, gamma = fixed_point("selu", n), bridging.distortion("selu", n)
    start = np.random.default_rng(2).standard_normal((width, n))
    start[:, 1] = start[:, 0] + 0.01 * start[:, 1]
    G = bnmc.simulate(bnmc.Chain(width, n, "selu"), 0, initial=start, rng=0).gram[0, 0]
    arguments = {"depth": 0, "width": width, "batch": n, "alpha": 1 - star.rate, "star": star}
    bound = bridging.theorem_3(**arguments, distortion=gamma, t=2)
    assert gm.relative_deviation(star.gram, G) > bound.radius  # for every network
    assert bound.probability == 0.25


def test_assumption_1_is_about_the_start():
    """From nearly equal samples, a deviation that α excludes persists for many layers."""
    n, width, layer, chains = 5, 1000, 15, 40
    star = fixed_point("relu", n)
    rng = np.random.default_rng(3)
    start = rng.standard_normal((width, n))
    start[:, 1] = start[:, 0] + 1e-5 * rng.standard_normal(width)
    run = bnmc.simulate(
        bnmc.Chain(width, n, "relu"), layer, chains=chains, initial=start, rng=4, burn_in=layer
    )
    deviation = gm.relative_deviation(star.gram, run.gram[:, -1])
    arguments = {"depth": layer, "width": width, "batch": n, "star": star, "distortion": 1}
    bound = bridging.theorem_3(**arguments, alpha=1 - star.rate, t=2)
    count = (deviation >= bound.radius).sum()
    assert contradicts(count, chains, bound.probability)


def test_equation_19():
    first, second = np.diag([1.0, 2.0]), np.diag([1.5, 1.0])
    lower, upper = bridging.equation_19(first, second)
    assert (lower, upper) == (pytest.approx(0.5 / 100), pytest.approx(0.5 * 1.5))


@pytest.mark.parametrize(("activation", "n", "width"), [("relu", 5, 300), ("tanh", 3, 2000)])
def test_one_layer_concentrates(activation, n, width):
    """Lemma 9 for the symmetric deviation, and its corrected form, at layer 0."""
    chains = 20_000
    star, gamma = fixed_point(activation, n), bridging.distortion(activation, n)
    G = bnmc.simulate(bnmc.Chain(width, n, activation), 0, chains=chains, rng=3).gram[:, 0]
    squared = spectral_deviation(star.gram, G) ** 2
    plain = gm.relative_deviation(star.gram, G) ** 2
    where = {"width": width, "batch": n, "star": star, "distortion": gamma}
    variance = n * (n * gamma.upper**2 / np.linalg.eigvalsh(star.gram)[0] - 1) / width
    levels = np.geomspace(np.median(squared), 80 * variance, 30)
    counts = (squared[:, None] >= levels).sum(axis=0)
    for statement in (bridging.gram_concentration, bridging.lemma_9):
        bound = statement(**where, t=levels)
        assert not contradicts(counts, chains, bound, 60).any()
        assert bound[-1] < 1e-3  # so the bound is not vacuous at all levels
    # The expectation in the first bound, for both norms.
    for samples in (squared, plain):
        error = samples.std(ddof=1) / math.sqrt(chains)
        assert samples.mean() - normal_threshold(2) * error <= variance
    assert bridging.gram_concentration(**where, t=1.25 * variance) <= 0.8 * (1 + 1e-12)


@pytest.mark.parametrize(("width", "rows"), [(10, 1), (10, 4), slow(100, 1), (100, 4)])
def test_total_variation_of_a_few_rows(width, rows):
    """For n = 2 and relu, the law of rows of h′ is an explicit mixture.

    φ(h) is (1, −1) or (−1, 1), so G = diag(K, d − K)/d with K binomial (d, ½), and G* = I/2. By
    TV = E max(0, 1 − p′/p) under N(0, G*)^rows, with Hoeffding's bound.
    """
    samples = 100_000
    x = np.random.default_rng(width).standard_normal((samples, rows, 2)) / math.sqrt(2)
    sums = (x**2).sum(axis=1)  # sufficient, (samples, 2)
    k = np.arange(1, width)  # K = 0 and d, of probability 2^{1−d}, have no density
    variances = np.stack([k, width - k], axis=-1) / width
    log_ratio = sums @ (1 - 0.5 / variances).T - rows / 2 * np.log(2 * variances).sum(axis=-1)
    mixture = np.exp(log_ratio) @ stats.binom.pmf(k, width, 0.5)
    estimate = np.maximum(0, 1 - mixture).mean()
    error = math.sqrt(math.log(1 / FALSE_ALARM) / (2 * samples))
    bound = bridging.one_step_total_variation(
        width=width, batch=2, rows=rows, star=fixed_point("relu", 2), distortion=1
    )
    assert estimate - error <= bound + 2.0 ** (1 - width)


def test_the_bound_for_all_rows_is_vacuous():
    width = np.geomspace(10, 1e12, 20)
    for n in (2, 3, 50):
        bound = bridging.one_step_total_variation(
            width=width, batch=n, rows=width, inverse_norm=1, distortion=1
        )
        np.testing.assert_array_equal(bound, 1)


def test_one_layer_is_not_close_in_total_variation():
    """Lemmas 5, 11 and 12, (47): relu, n = 4, d = 10 000, by one event of fixed size.

    Of ``d ‖G*^{−½} hᵀh/d G*^{−½} − I‖_F²``, which has mean n(n+1) for Gaussian rows and nearly
    twice as much for h′. Given G, hᵀh is Wishart.
    """
    n, width, chains, level = 4, 10_000, 6000, 25.0
    star = fixed_point("relu", n)
    rng = np.random.default_rng(9)
    G = bnmc.simulate(bnmc.Chain(width, n, "relu"), 0, chains=chains, rng=8).gram[:, 0]

    def frequency(covariances):
        factor = np.zeros((chains, n, n))
        for i in range(n):
            factor[:, i, i] = np.sqrt(rng.chisquare(width - i, chains))
            factor[:, i, :i] = rng.standard_normal((chains, i))
        root = np.linalg.cholesky(covariances) @ factor
        of_h = root @ np.swapaxes(root, -2, -1) / width
        return (width * spectral_deviation(star.gram, of_h) ** 2 >= level).mean()

    gaussian, after = frequency(np.broadcast_to(star.gram, (chains, n, n))), frequency(G)
    # Hoeffding, for each of the two frequencies.
    distance = after - gaussian - 2 * math.sqrt(math.log(2 / FALSE_ALARM) / (2 * chains))
    where = {"width": width, "batch": n, "star": star, "distortion": 1}
    assert distance > 0.3
    assert bridging.lemma_5(**where) < 0.01
    assert bridging.lemma_11(**where) < bridging.equation_47(**where) < 0.1
    # At every depth, the candidate law has at least half this distance from the stationary law.
    assert bridging.lemma_12(**where, depth=1e6, alpha=0.4) < distance / 2
    # Lemma 10 is not refuted: with the true distance it is vacuous below t = 30, n times the
    # largest observed deviation.
    deviation = gm.relative_deviation(star.gram, G)
    level = deviation.max()
    assert bridging.lemma_10(t=level, total_variation=distance) == 1


def test_equation_19_fails_in_both_directions():
    """In one dimension the distance is known: N(0, 1) and N(0, v)."""
    _, upper = bridging.equation_19([[1.0]], [[1.01]])
    assert upper < one_dimensional_tv(1.01, 1)
    lower, _ = bridging.equation_19([[1.0]], [[30.0]])
    assert lower > 1 > one_dimensional_tv(30, 1)


def test_equal_spectra_are_not_equal_norms():
    """The step "by fact 1" of Lemma 9's proof."""
    C, G = np.diag([1.0, 25.0]), np.array([[1.0, 2.5], [2.5, 25.0]])
    plain = np.linalg.norm(np.linalg.inv(C) @ G - np.eye(2))
    assert plain > 3.5 * spectral_deviation(C, G)
