"""The theorems of the bridging paper: the formulas as printed, and simulated chains."""

import math

import numpy as np
import pytest
from bridging_checks import SETTINGS, contradicts, fixed_point
from oracle import normal_threshold

import bnmc
from bnmc import gram as gm
from bnmc.bounds import bridging


def shifted(x):
    return 1.0 + x


def log_radius(layer, a, t, epsilon):
    return (
        t * (math.exp(-a * layer / 2) + epsilon * math.log(1 / epsilon))
        if epsilon < 1
        else math.inf
    )


@pytest.mark.parametrize("s", SETTINGS, ids=str)
def test_formulas(s):
    """Each formula is written out from the print, for one setting of the numbers."""
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

    assert bridging.equation_6(**where, depth=layer) == pytest.approx(
        math.exp(3 * n * layer / (2 * d))
    )
    poster = bridging.poster_theorem(**where, depth=layer, alpha=a, condition=v, constant=C)
    expected = v * (1 - a) ** (layer / 2) + n / math.sqrt(d) * math.sqrt(math.log(d / n) / a)
    assert poster == pytest.approx(C * expected, rel=1e-13)


def test_formula_of_corollary_8():
    star = fixed_point("relu", 5)
    for G in (star, star.gram):
        bulk = bridging.corollary_8(width=[500, 2000], alpha=0.4, star=G, constant=2)
        level = star.b * (1 - star.c)
        np.testing.assert_allclose(bulk.lower, level * (1 - 2 * np.sqrt(5 / np.array([500, 2000]))))
        np.testing.assert_allclose(bulk.upper, level * (1 + 2 * np.sqrt(5 / np.array([500, 2000]))))
        np.testing.assert_allclose(bulk.depth, np.log(np.array([500, 2000]) / 0.4))


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
