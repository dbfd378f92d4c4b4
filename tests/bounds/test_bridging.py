"""The statements of the bridging paper: the formulas as printed, and what chains say about them.

A count of exceedances contradicts a stated probability p when a binomial variable of that p is as
large with probability below `oracle.FALSE_ALARM` over the number of comparisons. Where a statement
is shown to fail, the count is of an event whose stated probability makes it that unlikely.

α is not known; 1 − rate of the fixed point, its limit at large width, stands for it.
"""

import itertools
import math

import numpy as np
import pytest
from oracle import FALSE_ALARM, normal_threshold
from scipy import optimize, spatial, stats

import bnmc
from bnmc import gram as gm
from bnmc.bounds import bridging
from bnmc.bounds.bridging import activation_distortion, sphere_optimizer
from bnmc.bounds.gaussian import spectral_deviation
from bnmc.errors import ArgumentError, ArgumentTypeError, SingularGramError

NAMED = ("linear", "relu", "leaky_relu", "abs", "tanh", "sigmoid", "sin", "erf")
NAMED += ("elu", "celu", "selu", "gelu", "silu")


def shifted(x):
    return 1.0 + x


def fixed_point(activation, n):
    return bnmc.MeanField(bnmc.Chain(100, n, activation)).fixed_point()


def contradicts(count, trials, probability, comparisons=1):
    """Whether so many exceedances are beyond all odds at that probability."""
    return stats.binom.sf(count - 1, trials, probability) < FALSE_ALARM / comparisons


# ---------------------------------------------------------------- the formulas as printed

SETTINGS = [
    {"l": 0, "d": 1e4, "n": 5, "a": 0.4, "t": 2.0, "v": 2.5, "g": 1.0, "C": 1.0},
    {"l": 7, "d": 2000, "n": 10, "a": 0.2, "t": 0.5, "v": 2.7, "g": 0.8, "C": 3.0},
    {"l": 30, "d": 1e6, "n": 3, "a": 1.0, "t": 10.0, "v": 55.0, "g": 1.2, "C": 0.5},
    {"l": 100, "d": 50, "n": 8, "a": 0.01, "t": 1.5, "v": 1.0, "g": 1.0, "C": 2.0},
]


def log_radius(layer, a, t, epsilon):
    return (
        t * (math.exp(-a * layer / 2) + epsilon * math.log(1 / epsilon))
        if epsilon < 1
        else math.inf
    )


@pytest.mark.parametrize("s", SETTINGS, ids=str)
def test_formulas(s):
    """Each written out from the print, for one setting of the numbers."""
    layer, d, n, a, t, v, g, C = s.values()
    where = {"width": d, "batch": n}
    deep = {"depth": layer, "alpha": a, "t": t}
    square = n**2 * g**2 * v / d

    def same(result, radius, probability):
        assert result.radius == pytest.approx(radius, rel=1e-13)
        assert result.probability == pytest.approx(min(1, probability), rel=1e-13)

    for statement in (bridging.theorem_1, bridging.corollary_2):
        epsilon = n * math.sqrt(v) / math.sqrt(d)
        result = statement(**where, **deep, inverse_norm=v, constant=C)
        same(result, C * log_radius(layer, a, t, epsilon), 1 / t**2)
    matrix = {**where, "inverse_norm": v, "distortion": g}
    result = bridging.theorem_3(**matrix, **deep, constant=C)
    same(result, log_radius(layer, a, t, n * g * math.sqrt(v / d)), C / t**2)
    same(bridging.corollary_4(**matrix, t=t, constant=C), t * math.sqrt(square), C / t**2)
    for statement in (bridging.corollary_6, bridging.corollary_7):
        result = statement(**where, **deep, constant=C)
        same(result, C * log_radius(layer, a, t, n / math.sqrt(d)), 1 / t**2)

    assert bridging.lemma_5(**matrix, constant=C) == pytest.approx(min(1, C * square), rel=1e-13)
    exponent = (t * d / 2) / (g**2 * v * n**2 * (1 + math.sqrt(t / n)))
    assert bridging.lemma_9(**matrix, t=t) == pytest.approx(
        min(1, n * math.exp(-exponent)), rel=1e-12, abs=1e-300
    )
    assert bridging.lemma_10(t=t, total_variation=0.003) == pytest.approx(min(1, 0.3 / t))
    scale = 3 * n**2 * v * g**2 / d
    eq36 = scale * math.log(d / (3 * n**2 * g**2 * v)) if scale < 1 else 1
    eq47 = scale * (1 + math.log(d / (3 * n * g**2 * v))) if d > 3 * n * g**2 * v else 1
    assert bridging.lemma_11(**matrix) == pytest.approx(eq36, rel=1e-12)
    assert bridging.equation_47(**matrix) == pytest.approx(min(1, eq47), rel=1e-12)
    assert bridging.lemma_12(**matrix, depth=layer, alpha=a, constant=C) == pytest.approx(
        min(1, math.exp(-layer * a) + C * square), rel=1e-13
    )
    assert bridging.equation_6(**where, depth=layer) == pytest.approx(
        math.exp(3 * n * layer / (2 * d))
    )
    poster = bridging.poster_theorem(**where, depth=layer, alpha=a, condition=v, constant=C)
    expected = v * (1 - a) ** (layer / 2) + n / math.sqrt(d) * math.sqrt(math.log(d / n) / a)
    assert poster == pytest.approx(C * expected, rel=1e-13)

    largest = n * g**2 * v
    bernstein = (
        2 * n * math.exp(-(t * d / 2) / ((largest - 1) * n + math.sqrt(t / n) * largest * n / 3))
    )
    assert bridging.gram_concentration(**matrix, t=t) == pytest.approx(
        min(1, n * (largest - 1) / (d * t), bernstein), rel=1e-12, abs=1e-300
    )
    assert bridging.one_step_total_variation(**matrix, rows=7) == pytest.approx(
        min(1, 1.5 * math.sqrt(7 * n * (largest - 1) / d)), rel=1e-13
    )


def test_equation_19_and_corollary_8():
    first, second = np.diag([1.0, 2.0]), np.diag([1.5, 1.0])
    lower, upper = bridging.equation_19(first, second)
    assert (lower, upper) == (pytest.approx(0.5 / 100), pytest.approx(0.5 * 1.5))
    star = fixed_point("relu", 5)
    for G in (star, star.gram):
        bulk = bridging.corollary_8(width=[500, 2000], alpha=0.4, star=G, constant=2)
        level = star.b * (1 - star.c)
        np.testing.assert_allclose(bulk.lower, level * (1 - 2 * np.sqrt(5 / np.array([500, 2000]))))
        np.testing.assert_allclose(bulk.upper, level * (1 + 2 * np.sqrt(5 / np.array([500, 2000]))))
        np.testing.assert_allclose(bulk.depth, np.log(np.array([500, 2000]) / 0.4))


def test_where_the_statements_say_nothing():
    """ε >= 1 gives an infinite radius, never a NaN; below 1/e the bound falls with the width."""
    width = np.array([1.0, 24.9, 25.0, 25.1, 200.0, 1e4, 1e8])
    result = bridging.corollary_7(depth=1e9, width=width, batch=5, alpha=0.5, t=[[0.0], [3.0]])
    assert result.radius.shape == result.probability.shape == (2, 7)
    np.testing.assert_array_equal(np.isinf(result.radius), np.tile(width <= 25, (2, 1)))
    assert (result.radius[0, 3:] == 0).all()
    assert (np.diff(result.radius[1, 4:]) < 0).all()
    # The print is not monotone: just above ε = 1 it is nearly 0.
    assert result.radius[1, 3] < result.radius[1, 4]
    assert bridging.lemma_11(width=75, batch=5, inverse_norm=1, distortion=1) == 1
    assert bridging.equation_47(width=15, batch=5, inverse_norm=1, distortion=1) == 1
    assert bridging.poster_theorem(depth=3, width=5, batch=5, alpha=1, condition=1) == np.inf
    assert bridging.equation_6(depth=1e9, width=1, batch=9) == np.inf
    assert bridging.gram_concentration(width=9, batch=1, t=0, inverse_norm=1, distortion=1) == 1
    assert bridging.gram_concentration(width=9, batch=1, t=1, inverse_norm=1, distortion=1) == 0
    assert bridging.lemma_10(t=0, total_variation=0) == 1


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
    return (
        [result.radius, result.probability]
        if isinstance(result, bridging.Concentration)
        else [result]
    )


@pytest.mark.parametrize("name", STATEMENTS)
def test_arguments_broadcast_and_extremes_stay_numbers(name):
    """All corners of the allowed ranges at once: no NaN, no warning, and each as when alone."""
    arguments = STATEMENTS[name].split()
    grids = np.meshgrid(*(EXTREMES[a] for a in arguments), indexing="ij", sparse=True)
    statement = getattr(bridging, name)
    values = numbers_of(statement(**dict(zip(arguments, grids, strict=True))))
    for value in values:
        assert value.shape == tuple(len(EXTREMES[a]) for a in arguments)
        assert not np.isnan(value).any()
        assert (value >= 0).all()
    for index in itertools.islice(np.ndindex(values[0].shape), 0, None, 7):
        one = {a: EXTREMES[a][i] for a, i in zip(arguments, index, strict=True)}
        for value, alone in zip(values, numbers_of(statement(**one)), strict=True):
            assert isinstance(alone, np.float64)
            np.testing.assert_allclose(alone, value[index], rtol=1e-13)


def valid(name):
    """Arguments of a statement, all 1 but where that is too small for anything."""
    return {a: {"width": 1000, "t": 2}.get(a, 1) for a in STATEMENTS[name].split()}


@pytest.mark.parametrize("name", STATEMENTS)
def test_refusals(name):
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


# ---------------------------------------------------------------- G* in place of numbers


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


def test_refusals_of_star():
    where = {"width": 5000, "distortion": 1}
    for degenerate in (fixed_point("tanh", 2), fixed_point("linear", 5), np.ones((3, 3))):
        n = 3 if isinstance(degenerate, np.ndarray) else degenerate.batch
        with pytest.raises(SingularGramError, match="star"):
            bridging.lemma_5(**where, batch=n, star=degenerate)
    star = fixed_point("relu", 4)
    with pytest.raises(ArgumentError, match="batch: got 5"):
        bridging.lemma_5(**where, batch=5, star=star)
    with pytest.raises(ArgumentTypeError, match="inverse_norm"):
        bridging.lemma_5(**where, batch=4, star=star, inverse_norm=1)
    with pytest.raises(ArgumentTypeError, match="condition"):
        bridging.poster_theorem(depth=1, width=9, batch=4, alpha=1)
    with pytest.raises(ArgumentError, match="star"):
        bridging.corollary_8(width=9, alpha=1, star=[[1.0]])
    with pytest.raises(SingularGramError, match="star"):
        bridging.corollary_8(width=9, alpha=1, star=np.zeros((2, 2)))


# ---------------------------------------------------------------- chains: where the print holds

TS = np.array([2.0, 4.0, 10.0])


@pytest.mark.parametrize(
    ("activation", "width"), [("relu", 1000), ("tanh", 2000), ("celu", 1000), ("sigmoid", 1000)]
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
    settled = {key: relative[key] for key in ("width", "batch", "t", "star")}
    late = layers[:, 0] >= 30
    cases = [
        (bridging.theorem_1(**relative), np.abs(eigenvalues / limits - 1).max(axis=-1)),
        (bridging.corollary_2(**relative), np.abs(eigenvalues / others - 1).max(axis=-1)),
        (
            bridging.theorem_3(**relative, distortion=gamma),
            gm.relative_deviation(star.gram, G),
        ),
        (bridging.corollary_6(**arguments), np.linalg.norm(eigenvalues - limits, axis=-1)),
        (bridging.corollary_7(**arguments), gm.distance(G, star.gram)),
    ]
    comparisons = len(cases) * (depth + 1) * len(TS)
    for bound, deviation in cases:
        assert bound.radius.shape == (depth + 1, len(TS))
        counts = (deviation[:, :, None] >= bound.radius).sum(axis=0)
        assert not contradicts(counts, chains, bound.probability, comparisons).any()
    # Corollary 4 has no depth: in late layers it holds.
    bound = bridging.corollary_4(**settled, distortion=gamma)
    deviation = gm.relative_deviation(G, other)
    counts = (deviation[:, late, None] >= bound.radius).sum(axis=0)
    assert not contradicts(counts, chains, bound.probability, comparisons).any()
    # At layer 0, where it is stated as well, it is not true.
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
    bulk = np.linalg.eigvalsh(run.gram[:, -1])[:, :-1]  # c* > 0: the largest is the one apart
    outside = ((bulk < wide.lower) | (bulk > wide.upper)).any(axis=1).sum()
    assert not contradicts(outside, chains, 0.01)
    outside = ((bulk < narrow.lower) | (bulk > narrow.upper)).any(axis=1).sum()
    assert contradicts(outside, chains, 0.5)


@pytest.mark.parametrize(("activation", "n", "width"), [("relu", 5, 300), ("tanh", 3, 2000)])
def test_one_layer_concentrates(activation, n, width):
    """Lemma 9 for the symmetric deviation, and its corrected form; layer 0 is its setting."""
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
        assert bound[-1] < 1e-3  # the levels reach where it says something
    # The expectation behind the first bound, for both norms.
    for samples in (squared, plain):
        error = samples.std(ddof=1) / math.sqrt(chains)
        assert samples.mean() - normal_threshold(2) * error <= variance
    assert bridging.gram_concentration(**where, t=1.25 * variance) <= 0.8 * (1 + 1e-12)


@pytest.mark.parametrize("width", [10, 100])
@pytest.mark.parametrize("rows", [1, 4])
def test_a_few_rows_forget_the_layer(width, rows):
    """The law of rows of h′ for n = 2 and relu is a mixture that can be written out.

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


def test_all_rows_together_are_told_nothing():
    width = np.geomspace(10, 1e12, 20)
    for n in (2, 3, 50):
        bound = bridging.one_step_total_variation(
            width=width, batch=n, rows=width, inverse_norm=1, distortion=1
        )
        np.testing.assert_array_equal(bound, 1)


# ---------------------------------------------------------------- the vanilla chain


def vanilla_norms(n, width, depth, chains, order):
    start = math.sqrt(width) * np.eye(width, n)
    run = bnmc.simulate(
        bnmc.Chain.vanilla(width, n), depth, chains=chains, initial=start, rng=5, observables="gram"
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
    """At n = 8 and l = d/(3n) the bound is √e, and the mean is above it."""
    n, width, chains = 8, 960, 2000
    norms = vanilla_norms(n, width, width // (3 * n), chains, order="fro")[:, -1]
    error = norms.std(ddof=1) / math.sqrt(chains)
    bound = bridging.equation_6(depth=width // (3 * n), width=width, batch=n)
    assert bound == pytest.approx(math.sqrt(math.e))
    assert norms.mean() - normal_threshold() * error > bound


# ---------------------------------------------------------------- chains: where the print fails


def test_theorem_3_lacks_a_power_of_alpha():
    """σ(x) = 1 + x, ε = .6: in units of ε ln 1/ε the stationary deviation grows like √n/2.

    That is the centred linear chain's, n³/(4d) for the mean square, but for terms of rank two.
    """
    activation = bnmc.Activation(shifted)
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
    # Doubling n multiplies by 1.35; a mean is known to 2 %, so this is six standard errors away.
    assert ratios[32].mean() > 1.15 * ratios[16].mean() > 1.15**2 * ratios[8].mean()
    # For t = 2.5 and the constant 1 the stated probability is .16.
    assert contradicts((ratios[32] >= 2.5).sum(), 8, 2.5**-2)


def test_the_transient_part_does_not_scale_with_t():
    """A start with two samples that nearly are equal, at layer 0."""
    n, width = 5, 50_000
    star, gamma = fixed_point("selu", n), bridging.distortion("selu", n)
    start = np.random.default_rng(2).standard_normal((width, n))
    start[:, 1] = start[:, 0] + 0.01 * start[:, 1]
    G = bnmc.simulate(bnmc.Chain(width, n, "selu"), 0, initial=start, rng=0).gram[0, 0]
    arguments = {"depth": 0, "width": width, "batch": n, "alpha": 1 - star.rate, "star": star}
    bound = bridging.theorem_3(**arguments, distortion=gamma, t=2)
    assert gm.relative_deviation(star.gram, G) > bound.radius  # whatever the network
    assert bound.probability == 0.25


def test_assumption_1_is_about_the_start():
    """Samples a hair's breadth apart: the deviation that α excludes lasts for layers."""
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
    # Half of the distance is between the candidate law and the invariant one, at any depth.
    assert bridging.lemma_12(**where, depth=1e6, alpha=0.4) < distance / 2
    # Lemma 10 is not refuted: with the true distance it says nothing below t = 30, n times the
    # largest deviation seen.
    deviation = gm.relative_deviation(star.gram, G)
    level = deviation.max()
    assert bridging.lemma_10(t=level, total_variation=distance) == 1


def test_equation_19_fails_in_both_directions():
    """In one dimension the distance is known: N(0, 1) and N(0, v)."""

    def distance(variance):
        crossing = math.log(variance) / (1 - 1 / variance)
        law = stats.chi2(1)
        return abs(law.cdf(crossing) - law.cdf(crossing / variance))

    _, upper = bridging.equation_19([[1.0]], [[1.01]])
    assert upper < distance(1.01)
    lower, _ = bridging.equation_19([[1.0]], [[30.0]])
    assert lower > 1 > distance(30)


def test_equal_spectra_are_not_equal_norms():
    """The step "by fact 1" of Lemma 9's proof."""
    C, G = np.diag([1.0, 25.0]), np.array([[1.0, 2.5], [2.5, 25.0]])
    plain = np.linalg.norm(np.linalg.inv(C) @ G - np.eye(2))
    assert plain > 3.5 * spectral_deviation(C, G)


def test_distortion_says_nothing_inside_the_sphere():
    gamma = bridging.distortion(bnmc.Activation(np.cos), 4, curvature=1)
    assert gamma.upper < 1  # and cos 0 = 1


# ---------------------------------------------------------------- distortion


def below_envelope(sigma, n):
    """How far σ² is below its least concave majorant in x², over |x| <= √n."""
    s = np.linspace(0, n, 20_001)
    phi = np.maximum(sigma(np.sqrt(s)) ** 2, sigma(-np.sqrt(s)) ** 2)
    corners = np.sort(spatial.ConvexHull(np.column_stack([s, phi])).vertices)
    chord = np.interp(s[corners], s[[0, -1]], phi[[0, -1]])
    upper = corners[phi[corners] >= chord - 1e-12]
    return (np.interp(s, s[upper], phi[upper]) - phi).max()


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("n", [1, 2, 3, 10, 1000])
def test_distortion_of_named_activations(name, n):
    result = bridging.distortion(name, n)
    x = result.maximiser
    assert x.shape == (n,)
    assert np.linalg.norm(x) == pytest.approx(math.sqrt(n), rel=1e-14)
    values = bnmc.Activation.named(name)(x)
    assert np.linalg.norm(values) / np.linalg.norm(x) == pytest.approx(result.lower, rel=1e-13)
    assert 0 < result.lower <= result.upper
    # Tight, but for the one entry of selu's maximiser that is off the concave envelope.
    gap = below_envelope(bnmc.Activation.named(name), n) / n if name == "selu" else 0
    assert result.upper**2 - result.lower**2 <= gap + 2e-7
    directions = np.random.default_rng(n).standard_normal((2000, n))
    points = directions * (math.sqrt(n) / np.linalg.norm(directions, axis=1, keepdims=True))
    attained = np.linalg.norm(bnmc.Activation.named(name)(points), axis=1) / math.sqrt(n)
    assert attained.max() <= result.upper


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("linear", 1), ("relu", 1), ("leaky_relu", 1), ("abs", 1), ("celu", 1), ("elu", 1),
        ("tanh", math.tanh(1)), ("sigmoid", 1 / (1 + math.exp(-1))), ("sin", math.sin(1)),
        ("erf", math.erf(1)), ("gelu", stats.norm.cdf(math.sqrt(7))),
        ("silu", 1 / (1 + math.exp(-math.sqrt(7)))),
    ],
)  # fmt: skip
def test_distortion_in_closed_form(name, expected):
    """σ(x)²/… concave in x²: all entries ±1; convex: one entry √n, the others 0."""
    result = bridging.distortion(name, 7)
    assert result.lower == pytest.approx(expected, rel=1e-9)
    assert result.lower <= expected * (1 + 1e-14)
    assert result.upper >= expected * (1 - 1e-14)


def wave(x):
    return math.sin(3 * x) + 0.3 * x


def bump(x):
    return math.exp(-8 * (x - 1.4) ** 2)


@pytest.mark.parametrize(
    ("function", "curvature"), [("selu", None), ("gelu", None), (wave, 9), (bump, 16)]
)
@pytest.mark.parametrize("n", [2, 3])
def test_distortion_against_a_search_of_the_sphere(function, curvature, n):
    """Every local maximum that a fine net of the sphere leads to is below; the best is found."""
    sigma = bnmc.chain.activations.as_activation(function)
    result = bridging.distortion(sigma, n, curvature=curvature)

    def point(angles):
        x = [math.sqrt(n)]
        for angle in np.atleast_1d(angles):
            x = [*x[:-1], x[-1] * math.cos(angle), x[-1] * math.sin(angle)]
        return np.array(x)

    def height(angles):
        return np.sum(np.square(sigma(point(angles)))) / n

    turns = np.linspace(-math.pi, math.pi, 721 if n == 2 else 91)
    net = list(itertools.product(turns, repeat=n - 1))
    points = np.array([point(angles) for angles in net])
    heights = np.sum(np.square(sigma(points)), axis=1) / n
    best = max(
        -optimize.minimize(
            lambda angles: -height(angles), net[k], method="Nelder-Mead",
            options={"xatol": 1e-9, "fatol": 1e-13},
        ).fun
        for k in np.argsort(heights)[-12:]
    )  # fmt: skip
    assert math.sqrt(best) <= result.upper
    assert result.lower == pytest.approx(math.sqrt(best), rel=1e-6)


def spike(x):
    return 5.0 if x > 1.5 else 0.0


def step(x):
    return 2.0 if x >= 0.3 else 0.0


def test_distortion_of_functions_that_jump():
    """At n = 4 one entry fits beyond 1.5, where duality would have 4/1.5² = 1.78 of them."""
    result = bridging.distortion(bnmc.Activation(spike, kinks=(1.5,)), 4, curvature=0)
    assert result.lower == pytest.approx(2.5)
    assert result.upper == pytest.approx(5 / 1.5, rel=1e-8)
    result = bridging.distortion(bnmc.Activation(step, kinks=(0.3,)), 4, curvature=0)
    assert (result.lower, result.upper) == (pytest.approx(2), pytest.approx(2, rel=1e-8))
    twice = bnmc.Activation(step, kinks=(0.3, float(np.nextafter(0.3, 1))))
    assert bridging.distortion(twice, 4, curvature=0).upper == pytest.approx(2, rel=1e-8)


def affine(x):
    return 1.0 + x / 2


@pytest.mark.parametrize("slope", [-0.3, 0.0, 0.2, 0.55, 0.8, 2.0])
@pytest.mark.parametrize(
    ("function", "curvature"), [(affine, 0), (math.tanh, 0.76981), (wave, 9), (bump, 16)]
)
def test_the_certified_maximum_in_one_variable(function, curvature, slope):
    """Of σ(x)² − slope x²: from above, and within the gap that is asked for."""
    reach = 3.0
    sigma = bnmc.chain.activations.as_activation(function)

    def height(x):
        return function(x) ** 2 - slope * x * x

    x = np.linspace(-reach, reach, 3001)
    start = x[np.argmax([height(point) for point in x])]
    nearby = np.clip([start - 0.002, start + 0.002], -reach, reach)
    inside = -optimize.minimize_scalar(
        lambda point: -height(point), bounds=nearby, method="bounded", options={"xatol": 1e-12}
    ).fun
    exact = max(inside, height(-reach), height(reach))
    found = sphere_optimizer.largest_excess(sigma, reach, slope, curvature)
    assert exact <= found <= exact + 1e-7


@pytest.mark.parametrize("name", NAMED)
def test_curvatures_of_named_activations(name):
    """Second differences on a fine grid on both sides of 0: below the constant, and near it."""
    sigma, known = bnmc.Activation.named(name), activation_distortion.CURVATURES[name]
    h = 1e-3
    for start, stop in ((-30.0, 0.0), (0.0, 30.0)):
        x = np.linspace(start + h, stop - h, 60_001)
        second = np.abs(sigma(x + h) - 2 * sigma(x) + sigma(x - h)) / h**2
        assert second.max() <= known + 1e-7  # rounding of σ <= 60: 4 ulp of it over h²
    if name in ("linear", "relu", "leaky_relu", "abs"):
        assert known == 0
    else:
        x = np.linspace(-5, 5, 200_001) if name not in ("elu", "celu", "selu") else np.array([-h])
        second = np.abs(sigma(x + h) - 2 * sigma(x) + sigma(x - h)) / h**2
        assert second.max() >= known * (1 - 2e-3)


def test_distortion_of_many_samples_stops_in_time():
    """A flat maximum needs more cells than there may be: the bound is wider, and holds."""
    result = bridging.distortion("celu", 10**6, curvature=3.0)
    assert 1 <= result.upper <= 1 + 1e-3
    assert result.lower == pytest.approx(1)


def narrow(x):
    return x + 3 * math.exp(-((x - 1.2345) ** 2) * 1e3)


def two_needles(x):
    """Too thin for the first cells; the finer grid that the lower bound starts from meets both."""
    return 0.5 + math.exp(-((x - 0.7774) ** 2) * 1e6) + math.exp(-((x - 1.2316) ** 2) * 1e6)


def pole(x):
    return 1 / (x - 1.0001) ** 8 if x > 1.0001 else 1e200


@pytest.mark.parametrize(
    ("activation", "batch", "curvature", "error", "named"),
    [
        (narrow, 5, 0.1, ArgumentError, "curvature"),
        (two_needles, 5, 0, ArgumentError, "curvature"),
        (math.tanh, 5, 0.1, ArgumentError, "curvature"),
        (math.tanh, 5, None, ArgumentTypeError, "curvature"),
        ("tanh", 5, -1, ArgumentError, "curvature"),
        ("tanh", 5, np.inf, ArgumentError, "curvature"),
        ("tanh", 0, None, ArgumentError, "batch"),
        ("tanh", 2.5, None, ArgumentTypeError, "batch"),
        ("tahn", 5, None, ArgumentError, "activation"),
        (3, 5, None, ArgumentTypeError, "activation"),
        (math.log, 5, 1, ArgumentError, "activation"),
        (pole, 5, 1, ArgumentError, "activation"),
    ],
)
def test_refusals_of_distortion(activation, batch, curvature, error, named):
    with pytest.raises(error) as caught:
        bridging.distortion(activation, batch, curvature=curvature)
    assert caught.value.argument == named
