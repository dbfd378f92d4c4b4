"""`bnmc.random_matrix` against the formulas, quadrature, and simulation.

A statistical test has a fixed seed and fails by chance with probability at most 1e-6: a z-test of
m means allows `sigmas(m)` standard errors.  EPS is the unit of float64; where a tolerance is a
multiple of it, the multiple is the number of operations, times the condition of the problem.
"""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, linalg, special, stats

import bnmc
from bnmc import random_matrix as rm
from bnmc.errors import ArgumentError, ArgumentTypeError, PartialEstimateError, SingularGramError
from bnmc.random_matrix import gaussians

EPS = np.finfo(float).eps
RATIOS = [1e-6, 1e-3, 0.0899, 0.0901, 0.25, 0.5, 0.999, 1.0, 1.001, 4.0, 1e3, 1e6]
seeds = st.integers(0, 2**32 - 1)


def sigmas(comparisons):
    return stats.norm.isf(0.5e-6 / comparisons)


def assert_mean(samples, exact):
    """The mean over the first axis is `exact`, by a z-test of false alarm 1e-6 in all."""
    stderr = samples.std(axis=0, ddof=1) / math.sqrt(len(samples))
    assert np.all(np.abs(samples.mean(axis=0) - exact) <= sigmas(np.size(exact)) * stderr)


def covariance(rng, n, *, rank=None):
    rows = rng.standard_normal((2 * n if rank is None else rank, n))
    return rows.T @ rows / len(rows)


# ---------------------------------------------------------------- Marchenko–Pastur


def density(x, ratio, variance=1.0):
    """The density as it is printed everywhere."""
    a, b = (variance * (1 + sign * math.sqrt(ratio)) ** 2 for sign in (-1, 1))
    inside = max(b - x, 0.0) * max(x - a, 0.0)
    return math.sqrt(inside) / (2 * math.pi * variance * ratio * x)


def mass(ratio, variance, low, high):
    """Integral of the density, with the roots at both edges taken out, and its error."""
    a, b = (variance * (1 + sign * math.sqrt(ratio)) ** 2 for sign in (-1, 1))

    def integrand(angle):
        x = a + (b - a) * math.sin(angle) ** 2
        return density(x, ratio, variance) * (b - a) * math.sin(2 * angle)

    ends = [math.asin(math.sqrt(min(max((x - a) / (b - a), 0), 1))) for x in (low, high)]
    return integrate.quad(integrand, *ends, epsabs=1e-13, epsrel=1e-13, limit=500)


@pytest.mark.parametrize("variance", [1.0, 0.3])
@pytest.mark.parametrize("ratio", [0.01, 0.25, 0.7, 0.98, 1.5, 20.0])
def test_cdf_and_sf_are_integrals_of_the_density(ratio, variance):
    law = rm.MarchenkoPastur(ratio, variance)
    a, b = law.edges
    for x in a + (b - a) * np.array([0.001, 0.1, 0.4, 0.8, 0.99]):
        below, below_error = mass(ratio, variance, a, x)
        above, above_error = mass(ratio, variance, x, b)
        atom = max(0, 1 - 1 / ratio)
        assert law.pdf(x) == pytest.approx(density(x, ratio, variance), rel=1e-11, abs=0)
        assert law.cdf(x) == pytest.approx(atom + below, abs=below_error + 1e-14)
        assert law.sf(x) == pytest.approx(above, abs=above_error + 1e-14)


# (ratio, x, cdf, sf).  mpmath, mp.dps = 50, r = mpf(ratio), th = acos((1+r-mpf(x))/(2*sqrt(r))):
# quad(lambda t: 2/pi*sin(t)**2/(1 - 2*sqrt(r)*cos(t) + r), [0, th/2, th]), [th, (th + pi)/2, pi].
EXACT = [
    (2**-20, 0.998048, 4.94066491311812166e-7, 0.999999505933508688),
    (2**-20, 1.0, 0.500103616501879196, 0.499896383498120804),
    (2**-20, 1.0003, 0.597491634061331741, 0.402508365938668259),
    (2**-20, 1.0019540, 0.999999846853227367, 1.53146772633072763e-7),
    (0.0625, 0.5625001, 9.54390853905552567e-11, 0.999999999904560915),
    (0.0625, 0.9, 0.396154992995599258, 0.603845007004400742),
    (0.0625, 1.5624, 0.999998913493128743, 1.08650687125668125e-6),
    (0.25, 0.2501, 2.40023146919964903e-6, 0.9999975997685308),
    (0.25, 0.7, 0.347295141219912304, 0.652704858780087696),
    (0.25, 2.2499999, 0.999999999991564296, 8.43570429598566189e-12),
    (1 - 2**-40, 1e-20, 6.32078881364656324e-11, 0.999999999936792112),
    (1 - 2**-40, 1e-06, 0.000636619745387443386, 0.999363380254612557),
    (1 - 2**-40, 3.0, 0.942331114377661824, 0.0576688856223381757),
    (1 - 2**-40, 3.9999999, 0.999999999998322405, 1.67759463800459448e-12),
]


@pytest.mark.parametrize(("ratio", "x", "cdf", "sf"), EXACT)
def test_cdf_and_sf_to_all_digits(ratio, x, cdf, sf):
    """Absolutely to 1e-15, and in the tails relatively as well.

    Relative to the tail, a rounding of the position within the bulk counts 3/2 times itself over
    the distance from the edge, in units of the bulk: mass ~ distance^{3/2}.
    """
    law = rm.MarchenkoPastur(ratio)
    a, b = law.edges
    for value, exact, edge in ((law.cdf(x), cdf, a), (law.sf(x), sf, b)):
        scale = max(abs(x), math.sqrt(ratio)) if ratio > 0.25 else math.sqrt(ratio)
        distance = abs(x - edge)
        relative = 8 * EPS * (1 + 1.5 * scale / distance)
        assert value == pytest.approx(exact, rel=relative, abs=0)
        assert value == pytest.approx(exact, rel=0, abs=2e-15)


def test_square_matrices_have_the_quarter_circle():
    """For γ = 1 and v: density √(4v − z²)/(πv) of the singular values, and its integral."""
    for v in (1.0, 2.5):
        law = rm.MarchenkoPastur(1.0, v).singular_values
        z = np.linspace(0, 2 * math.sqrt(v), 41)[:-1]
        quarter = (
            z * np.sqrt(4 * v - z**2) / (2 * v) + 2 * np.arcsin(z / math.sqrt(4 * v))
        ) / np.pi
        np.testing.assert_allclose(law.pdf(z), np.sqrt(4 * v - z**2) / (np.pi * v), rtol=1e-14)
        np.testing.assert_allclose(law.cdf(z), quarter, rtol=0, atol=2e-15)
        assert law.mean() == pytest.approx(8 * math.sqrt(v) / (3 * math.pi), rel=1e-14, abs=0)
    assert rm.MarchenkoPastur(1.0).pdf(0) == math.inf
    assert rm.MarchenkoPastur(0.5).pdf(0) == rm.MarchenkoPastur(2.0).pdf(0) == 0


@pytest.mark.parametrize("ratio", RATIOS)
def test_transposing_the_matrix(ratio):
    """AᵀA and AAᵀ share their eigenvalues other than 0: γ against 1/γ, scaled by γ."""
    law, other = rm.MarchenkoPastur(ratio), rm.MarchenkoPastur(1 / ratio, ratio)
    x = np.linspace(*law.edges, 21)
    # 1/γ and γ/d are rounded, which moves x by ε x, and the mass by that times its density.
    moved = 8 * EPS * (1 + 1 / (math.pi * math.sqrt(min(ratio, 1 / ratio))))
    limit = moved * min(1, 1 / ratio)
    np.testing.assert_allclose(law.sf(x), other.sf(x) / ratio, rtol=0, atol=limit)
    np.testing.assert_allclose(law.moment(3) * ratio, other.moment(3), rtol=1e-13)


@pytest.mark.parametrize("ratio", [Fraction(1, 1000), Fraction(1, 3), Fraction(1), Fraction(7, 2)])
def test_moments_are_narayana_polynomials(ratio):
    law = rm.MarchenkoPastur(float(ratio), 0.5)
    for p in (1, 2, 3, 6, 12, 20):
        narayana = sum(
            Fraction(math.comb(p, k) * math.comb(p, k - 1), p) * ratio ** (k - 1)
            for k in range(1, p + 1)
        )
        assert law.moment(p) == pytest.approx(float(narayana / 2**p), rel=2e-14, abs=0)
        assert law.singular_values.moment(2 * p) == law.moment(p)
    assert law.moment(0) == law.singular_values.moment(0) == 1
    assert law.mean() == pytest.approx(0.5, rel=1e-14, abs=0)
    assert law.var() == pytest.approx(law.moment(2) - law.mean() ** 2, rel=1e-12, abs=0)
    assert law.std() == math.sqrt(law.var())


@pytest.mark.parametrize("ratio", [0.05, 0.6, 1.0, 3.0])
@pytest.mark.parametrize("order", [0.5, 1, 3, 4.5])
def test_other_moments_by_quadrature(ratio, order):
    law = rm.MarchenkoPastur(ratio, 2.0)
    a, b = law.edges

    def integrand(angle):
        x = a + (b - a) * math.sin(angle) ** 2
        return x ** (order / 2) * density(x, ratio, 2.0) * (b - a) * math.sin(2 * angle)

    # √0 at the pole of γ = 1 is 0 times infinity: the end is left out, where x^{1/4} dθ ~ 1e-20.
    exact, error = integrate.quad(integrand, 1e-16, math.pi / 2, epsabs=1e-12, limit=200)
    assert law.singular_values.moment(order) == pytest.approx(exact, abs=error + 1e-12)
    assert law.moment(order / 2) == law.singular_values.moment(order)


def test_variance_of_singular_values():
    """v (1 − m²), m = ₂F₁(−1/2, 1/2; 2; γ) = 1 − γ/8 − γ²/64 − 5γ³/1024 …, γ <= 1."""
    for ratio in (1e-12, 1e-6, 1e-4):
        deficit = ratio / 8 + ratio**2 / 64 + 5 * ratio**3 / 1024 + 35 * ratio**4 / 16384
        law = rm.MarchenkoPastur(ratio, 3.0).singular_values
        assert law.var() == pytest.approx(3 * deficit * (2 - deficit), rel=1e-14, abs=0)
    for ratio in (0.3, 0.49999, 0.50001, 1.0):
        law = rm.MarchenkoPastur(ratio, 3.0).singular_values
        assert law.var() == pytest.approx(law.moment(2) - law.moment(1) ** 2, rel=1e-13, abs=0)
        wide = rm.MarchenkoPastur(1 / ratio, 3.0).singular_values
        assert wide.var() == pytest.approx(3 * (1 - ratio * (1 - law.var() / 3)), rel=1e-13, abs=0)
    assert law.std() == math.sqrt(law.var())


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("variance", [1.0, 3.7e-5])
def test_quantiles_invert_the_cdf(ratio, variance):
    """To rounding of the quantile, which the density carries over to the mass.

    Half a unit for an eigenvalue; for a singular value z, of density 2 z f(z²), half of the unit of
    z² before the root, the root's, and that of squaring it again: 5/4 in all.
    """
    for law in (
        rm.MarchenkoPastur(ratio, variance),
        rm.MarchenkoPastur(ratio, variance).singular_values,
    ):
        q = np.concatenate([np.linspace(0, 1, 101), 10.0 ** -np.arange(3, 17)])
        x = law.ppf(q)
        assert np.all((law.support()[0] <= x) & (x <= law.support()[1] * (1 + 4 * EPS)))
        assert np.all(np.diff(x[:101]) >= 0)
        tolerance = 8 * EPS + 1.25 * EPS * x * np.where(np.isfinite(law.pdf(x)), law.pdf(x), 0)
        assert np.all(np.abs(law.cdf(x) - np.maximum(q, law.atom)) <= tolerance)
        assert law.median() == law.ppf(0.5)
        np.testing.assert_array_equal(law.ppf(q[q <= law.atom]), 0 if law.atom else law.ppf(0.0))


@given(
    st.floats(-6, 6).map(lambda exponent: 10.0**exponent),
    st.floats(0, 1),
    st.sampled_from(["eigenvalues", "singular values"]),
)
def test_round_trips(ratio, q, kind):
    law = rm.MarchenkoPastur(ratio)
    law = law if kind == "eigenvalues" else law.singular_values
    x = law.ppf(q)
    pdf = law.pdf(x) if x > 0 else 0
    assert abs(law.cdf(x) - max(q, law.atom)) <= 8 * EPS + 1.25 * EPS * x * pdf
    assert law.cdf(x) + law.sf(x) == pytest.approx(1, abs=4 * EPS)


def test_small_quantiles_of_square_matrices():
    """Near the pole cdf(x) = 2√x/π, so ppf(q) = (πq/2)²: no digit is lost down to 1e-290."""
    q = 10.0 ** -np.arange(9, 146, 17)
    np.testing.assert_allclose(rm.MarchenkoPastur(1.0).ppf(q), (np.pi * q / 2) ** 2, rtol=1e-14)
    # Off the pole the quantile is as good as x − a allows.
    law = rm.MarchenkoPastur(1 - 2**-20)
    for level in 10.0 ** -np.arange(3, 13):
        x = law.ppf(level)
        rel = 8 * EPS * (1 + 1.5 * x / (x - law.edges[0]))
        assert law.cdf(x) == pytest.approx(level, rel=rel, abs=0)
    soft = rm.MarchenkoPastur(0.25)  # mass (16/3π) T³/near², x = a + 4 √γ T², near = 1/2
    distances = soft.ppf(1e-12) - 0.25
    cubed = 3 * math.pi / 64 * 1e-12
    assert distances == pytest.approx(2 * cubed ** (2 / 3), rel=1e-6, abs=0)


@pytest.mark.parametrize(("d", "n"), [(1200, 600), (300, 900)])
def test_eigenvalues_of_a_simulated_wishart_matrix(d, n):
    """Eigenvalues are rigid: the number N(x) below x has variance ≈ ln(n)/π² + 1/4, not n/4.

    It is asymptotically normal (Gustavsson 2005 for GUE, Su 2006 for Wishart) with a mean within
    1/4 of n F(x); constants measured at n = 50 … 200.  So at n = 600 its standard deviation is
    0.95, and with the step of N of 1, 8/n is 7 of them: a false alarm at any of n points has
    probability below 2e-9.
    """
    A = np.random.default_rng(d).standard_normal((d, n))
    spectrum = np.sort(np.linalg.eigvalsh(A.T @ A / d))[max(n - d, 0) :]
    count = np.arange(max(n - d, 0), n + 1)

    def gap(law):
        cdf = law.cdf(spectrum)
        return max(np.abs(cdf - count[1:] / n).max(), np.abs(cdf - count[:-1] / n).max())

    assert gap(rm.MarchenkoPastur(n / d)) < 8 / n
    assert gap(rm.MarchenkoPastur(1.05 * n / d)) > 8 / n
    law = rm.MarchenkoPastur(n / d).singular_values
    np.testing.assert_allclose(
        law.cdf(np.sqrt(spectrum)), rm.MarchenkoPastur(n / d).cdf(spectrum), rtol=0, atol=1e-14
    )


@pytest.mark.parametrize("ratio", [0.3, 1.0, 2.5])
def test_draws(ratio):
    """By the inequality of Dvoretzky, Kiefer, Wolfowitz and Massart, P(D > t) <= 2 exp(−2Nt²)."""
    law = rm.MarchenkoPastur(ratio).singular_values
    draws = law.rvs((200, 100), rng=1)
    assert draws.shape == (200, 100)
    x = np.sort(draws, axis=None)
    bulk = x > 0  # at the atom the cdf jumps, and no gap below it counts
    ranks = np.arange(1, x.size + 1) / x.size
    limit = math.sqrt(math.log(2e6) / (2 * x.size))
    assert np.abs(law.cdf(x) - ranks)[bulk].max() <= limit
    assert abs((~bulk).mean() - law.atom) <= limit
    assert law.rvs(rng=1).shape == ()
    assert (law.rvs(9, rng=1) != law.rvs(9, rng=2)).any()
    np.testing.assert_array_equal(law.rvs(3, rng=5), law.ppf(np.random.default_rng(5).random(3)))


def test_support_and_shapes():
    law, heavy = rm.MarchenkoPastur(0.25, 2.0), rm.MarchenkoPastur(4.0, 2.0)
    assert law.support() == law.edges == (0.5, 4.5)
    assert (heavy.support(), heavy.edges, heavy.atom) == ((0, 18), (2, 18), 0.75)
    assert heavy.singular_values.support() == (0, pytest.approx(math.sqrt(18)))
    assert heavy.singular_values.atom == 0.75
    assert (heavy.cdf(-1e-300), heavy.cdf(0), heavy.cdf(1.9)) == (0, 0.75, 0.75)
    assert (heavy.sf(-1), heavy.sf(0), heavy.sf(18.1), heavy.cdf(18.1)) == (1, 0.25, 0, 1)
    assert (heavy.ppf(0.75), heavy.ppf(0), law.ppf(0)) == (0, 0, 0.5)
    for method in (law.pdf, law.cdf, law.sf, law.ppf):
        grid = np.linspace(0, 1, 6).reshape(2, 1, 3)
        assert method(grid).shape == (2, 1, 3)
        assert method(0.5).shape == ()
        assert method([]).shape == (0,)
        one_by_one = [method(q) for q in grid.flat]
        np.testing.assert_allclose(method(grid).ravel(), one_by_one, rtol=4 * EPS)


@pytest.mark.parametrize("ratio", [1e-150, 1e-32, 1 - 2**-53, 1 + 2**-52, 1e32, 1e150])
@pytest.mark.parametrize("variance", [1e-150, 1.0, 1e150])
def test_extreme_parameters(ratio, variance):
    for law in (
        rm.MarchenkoPastur(ratio, variance),
        rm.MarchenkoPastur(ratio, variance).singular_values,
    ):
        low, high = law.edges
        assert 0 <= low <= high < math.inf
        x = law.ppf([0, 1e-300, 0.5, 1])
        assert x[0] == law.support()[0]
        assert x[3] == pytest.approx(high, rel=4 * EPS, abs=0)
        points = [-1e308, 0, 5e-324, low, high, 1e308]
        for values in (law.pdf(points), law.pdf(x), law.cdf(points), law.sf(points)):
            assert not np.isnan(values).any()
            assert (values >= 0).all()
        assert law.cdf(1e308) == 1
        assert law.mean() <= high * (1 + 4 * EPS)
        assert not math.isnan(law.moment(100))


def test_bad_arguments_of_the_laws():
    for name, value in (("ratio", 0), ("ratio", math.inf), ("ratio", 1e200), ("variance", -1.0)):
        with pytest.raises(ArgumentError, match=f"^{name}: got "):
            rm.MarchenkoPastur(**{"ratio": 1.0, name: value})
    with pytest.raises(ArgumentTypeError, match="^ratio: got '1'"):
        rm.MarchenkoPastur("1")
    with pytest.raises(ArgumentTypeError, match="^squares: got 0.5"):
        rm.SingularValueLaw(0.5)
    for law in (rm.MarchenkoPastur(0.5), rm.MarchenkoPastur(0.5).singular_values):
        for method in (law.pdf, law.cdf, law.sf):
            with pytest.raises(ArgumentError, match="^x: got nan"):
                method([0.5, math.nan])
            with pytest.raises(ArgumentTypeError, match="^x: "):
                method("0.5")
        for q in (-0.1, 1.1, math.nan):
            with pytest.raises(ArgumentError, match=f"^q: got {q}"):
                law.ppf([0.5, q])
        for order in (-1, 1e3):
            with pytest.raises(ArgumentError, match="^order: got "):
                law.moment(order)
        with pytest.raises(ArgumentError, match="^size: got -1"):
            law.rvs(-1)
        with pytest.raises(ArgumentTypeError, match="^rng: got 'seed'"):
            law.rvs(2, rng="seed")


# ---------------------------------------------------------------- Lyapunov exponents


def qr_growth(step, d, depth, chains, rng):
    """Mean of ln |R_kk| per layer of a product of `step` matrices, one row a chain."""
    frame = np.broadcast_to(np.eye(d), (chains, d, d))
    total = np.zeros((chains, d))
    for _ in range(depth):
        frame, R = np.linalg.qr(step(rng.standard_normal((chains, d, d))) @ frame)
        total += np.log(np.abs(np.diagonal(R, axis1=1, axis2=2)))
    return total / depth


def test_ginibre_exponents_are_the_formula():
    for d in (1, 2, 31, 32, 33, 400):
        k = np.arange(1, d + 1)
        exact = 0.5 * (special.digamma((d - k + 1) / 2) + np.log(2 / d))
        # the formula itself cancels: each of its terms is rounded
        np.testing.assert_allclose(
            rm.lyapunov_ginibre(d), exact, rtol=0, atol=4 * EPS * math.log(2 * d)
        )
        np.testing.assert_array_equal(
            rm.lyapunov_ginibre(d, [[1], [d]]).ravel(), rm.lyapunov_ginibre(d)[[0, -1]]
        )
    # −1/(2d) − 1/(6d²), where the formula has no digit left
    assert rm.lyapunov_ginibre(10**15, 1) == pytest.approx(-5e-16, rel=1e-14, abs=0)
    assert rm.lyapunov_ginibre(2**53, 2**53) == pytest.approx(
        0.5 * (special.digamma(0.5) + math.log(2**-52)), rel=1e-14, abs=0
    )


def test_ginibre_exponents_of_a_product():
    growth = qr_growth(lambda W: W / 2, 4, 50, 2000, np.random.default_rng(0))
    assert_mean(growth, rm.lyapunov_ginibre(4))


def test_ginibre_exponents_of_the_vanilla_chain():
    """The first n of them; a pivot of the Gram matrix grows with the square."""
    d, n, depth = 6, 3, 60
    run = bnmc.simulate(
        bnmc.Chain.vanilla(d, n), depth, chains=4000, initial=np.eye(d, n),
        observables="log_pivots", rng=3, threads=1,
    )  # fmt: skip
    pivots = run["log_pivots"]
    growth = (pivots[:, -1] - pivots[:, 0]) / (2 * depth)
    assert_mean(growth, rm.lyapunov_ginibre(d, np.arange(1, n + 1)))


# (d, γ, λ₁).  mpmath, mp.dps = 50, mu = 1/(2*mpf(g)**2): (log(2*g**2) + S)/2, S the sum of
# exp(-mu)*mu**j/factorial(j)*digamma(d/2 + j) over all j within 80*sqrt(mu) + 300 of mu.
LARGEST = [
    (1, 0.5, -0.172795319486056972),
    (2, 0.25, 0.0000188328114219624509),
    (3, 1.0, 0.516282640572382053),
    (5, 2.0**-12, 8.94069644985505725e-8),
    (10, 2.0**-10, 3.81468635171633426e-6),
    (10, 2.0**20, 14.9625760356948246),
    (1000, 2.0**-6, 0.109045482412548801),
    (10**6, 2.0**-7, 2.0638501304453006),
]


@pytest.mark.parametrize(("d", "gamma", "exact"), LARGEST)
def test_largest_exponent_of_residual_layers(d, gamma, exact):
    assert rm.lyapunov_residual(d, gamma) == pytest.approx(exact, rel=5e-15, abs=0)


@pytest.mark.parametrize("d", [1, 2, 7, 60])
@pytest.mark.parametrize("gamma", [0.1, 0.7, 5.0])
def test_largest_exponent_is_the_poisson_sum(d, gamma):
    mu = 1 / (2 * gamma**2)
    j = np.arange(int(mu + 12 * math.sqrt(mu) + 60))
    total = np.sum(stats.poisson.pmf(j, mu) * special.digamma(d / 2 + j))
    exact = 0.5 * (math.log(2 * gamma**2) + total)
    assert rm.lyapunov_residual(d, gamma) == pytest.approx(exact, abs=1e-12)


def test_largest_exponent_at_both_ends():
    """For small γ a series, the integral term by term; for large γ ln γ and a chi; 0 for γ = 0.

    With b = d/2 − 1 it is b γ² − b(b−1) γ⁴ + 4b(b−1)(b−2) γ⁶/3 less about 2b⁴γ⁸.
    """
    gammas = 10.0 ** np.array([-4, -5, -6, -8, -50, -99, -101, -140])
    for d in (1, 3, 10, 10**6):
        b = d / 2 - 1
        series = 1 - (b - 1) * gammas**2 + 4 / 3 * (b - 1) * (b - 2) * gammas**4
        rtol = 1e-14 + (d * gammas**2) ** 3
        values = rm.lyapunov_residual(d, gammas)
        assert np.all(np.abs(values - b * gammas**2 * series) <= rtol * abs(b) * gammas**2)
        large = math.log(1e9) + 0.5 * (special.digamma(d / 2) + math.log(2))
        assert rm.lyapunov_residual(d, 1e9) == pytest.approx(large, rel=1e-14, abs=0)
    assert rm.lyapunov_residual(5, 0) == 0
    assert rm.lyapunov_residual(2**53, [[1e-150], [1e150]]).shape == (2, 1)
    assert np.isfinite(rm.lyapunov_residual(2**53, [1e-150, 1e-20, 1, 1e20, 1e150])).all()


@pytest.mark.parametrize(("d", "gamma"), [(2, 1.0), (4, 0.4), (3, 3.0)])
def test_all_exponents_of_residual_layers(d, gamma):
    """Products of I + γW by QR, and the scalar recursion that claims to have the same law."""
    rng = np.random.default_rng(d)
    growth = qr_growth(lambda W: np.eye(d) + gamma * W, d, 40, 2000, rng)
    direct = [bnmc.Estimate.from_samples(column) for column in growth.T]
    recursion = [
        rm.lyapunov_residual_estimate(d, gamma, k, samples=40_000, rng=k) for k in range(1, d + 1)
    ]
    for one, other in zip(direct, recursion, strict=True):
        assert one.compatible(other, sigmas(d))
    assert direct[0].compatible(rm.lyapunov_residual(d, gamma), sigmas(1))
    assert recursion[0].stderr <= 1e-17
    assert recursion[0].value == pytest.approx(rm.lyapunov_residual(d, gamma), rel=1e-14, abs=0)


def test_the_sum_of_the_exponents_is_the_mean_log_determinant():
    d, gamma = 5, 0.8
    estimates = [rm.lyapunov_residual_estimate(d, gamma, k, rng=10 + k) for k in range(1, d + 1)]
    W = np.random.default_rng(4).standard_normal((100_000, d, d))
    determinant = bnmc.Estimate.from_samples(np.linalg.slogdet(np.eye(d) + gamma * W)[1])
    total = sum(one.value for one in estimates)
    stderr = math.hypot(determinant.stderr, *(one.stderr for one in estimates))
    assert abs(total - determinant.value) <= sigmas(1) * stderr


def test_small_steps_are_brownian():
    """λ_k → (d − 2k) γ²/2 as γ → 0: the noise of the estimate shrinks with γ² as well."""
    d, gamma = 6, 1e-7
    for k in range(1, d + 1):
        estimate = rm.lyapunov_residual_estimate(d, gamma, k, rng=k)
        assert estimate.stderr < 0.05 * gamma**2
        error = abs(estimate.value - (d - 2 * k) / 2 * gamma**2)
        assert error <= sigmas(d) * estimate.stderr + d**2 * gamma**4
        smallest = rm.lyapunov_residual_estimate(d, 1e-70, k, rng=k)
        # the same draws; γ² R_j is 1 + O(γ)
        limit = 10 * d * gamma
        assert smallest.value * 1e140 == pytest.approx(estimate.value / gamma**2, abs=limit)


def test_bad_arguments_of_the_exponents():
    for width in (0, -1, 2**53 + 1):
        with pytest.raises(ArgumentError, match=f"^width: got {width}"):
            rm.lyapunov_ginibre(width)
        with pytest.raises(ArgumentError, match=f"^width: got {width}"):
            rm.lyapunov_residual(width, 1.0)
    with pytest.raises(ArgumentTypeError, match="^width: got 3.0"):
        rm.lyapunov_ginibre(3.0)
    with pytest.raises(ArgumentError, match="^width: got 1000000000, .*pass k"):
        rm.lyapunov_ginibre(10**9)
    for k in (0, 4, [1, 4]):
        with pytest.raises(ArgumentError, match=r"^k: got [04], allowed: integers in 1 … 3"):
            rm.lyapunov_ginibre(3, k)
    for k in (1.0, "1", True, [[1], [1, 2]], 10**30):
        with pytest.raises(ArgumentTypeError, match="^k: got "):
            rm.lyapunov_ginibre(3, k)
    for gamma in (-0.1, math.nan, 1e200):
        with pytest.raises(ArgumentError, match="^gamma: got "):
            rm.lyapunov_residual(3, [1.0, gamma])
    for argument, value in (("gamma", 0.0), ("k", 4), ("k", 0), ("samples", 1)):
        arguments = {"width": 3, "gamma": 1.0, "k": 1, argument: value}
        with pytest.raises(ArgumentError, match=f"^{argument}: got {value}"):
            rm.lyapunov_residual_estimate(**arguments)
    with pytest.raises(ArgumentTypeError, match="^rng: got -1"):
        rm.lyapunov_residual_estimate(3, 1.0, 2, rng=-1)


# ---------------------------------------------------------------- Wishart matrices


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
    with pytest.raises(ArgumentError, match="^S: got .*symmetric"):
        rm.WishartMoments([[1, 2], [0, 1]], 3)
    with pytest.raises(ArgumentError, match="^width: got 0"):
        rm.WishartMoments(np.eye(2), 0)
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
    for argument, value in (("width", 0), ("batch", 0), ("depth", -1)):
        with pytest.raises(ArgumentError, match=f"^{argument}: got {value}"):
            rm.vanilla_deviation(**{"width": 2, "batch": 2, "depth": 2, argument: value})
    with pytest.raises(ArgumentTypeError, match="^depth: got 0.5"):
        rm.vanilla_deviation(2, 2, 0.5)


# ---------------------------------------------------------------- distances of centred Gaussians

PAIRS = [rm.kl, rm.wasserstein, rm.total_variation]


@pytest.mark.parametrize("n", [1, 2, 6])
def test_kl_is_the_formula(n):
    rng = np.random.default_rng(n)
    S1, S2 = covariance(rng, n), covariance(rng, n)
    quotient = linalg.solve(S2, S1)
    logdet = np.linalg.slogdet(S2)[1] - np.linalg.slogdet(S1)[1]
    exact = 0.5 * (np.trace(quotient) - n + logdet)
    condition = np.linalg.cond(S1) + np.linalg.cond(S2)
    assert rm.kl(S1, S2) == pytest.approx(exact, abs=16 * n * EPS * condition)
    np.testing.assert_allclose(
        rm.kl(S1, S2, rows=[1, 2.5, 1e6]), rm.kl(S1, S2) * np.array([1, 2.5, 1e6]), rtol=2 * EPS
    )


def test_kl_of_close_and_of_distant_matrices():
    """½(λ − 1 − ln λ): λ²-like for λ near 1, where the formula cancels; asymmetric."""
    delta = 2.0 ** -np.arange(3, 52, 4)
    # series of δ − ln(1 + δ); the first omitted term is δ^60
    terms = np.arange(2, 60)[:, None]
    exact = 0.5 * np.sum((-delta) ** terms / terms, axis=0)
    for scale in (1, 3):  # 3 (1 + δ) is exact, and √3 is not
        close = rm.kl(scale * (1 + delta[:, None, None]), [[scale]])
        np.testing.assert_allclose(close, exact, rtol=1e-14)
    for scale in (1e-150, 1e-20, 1e-3, 1e3, 1e20, 1e150):
        exact = 0.5 * (scale - 1 - math.log(scale))
        rtol = 4 * EPS * abs(math.log(scale))  # λ is kept as its logarithm
        assert rm.kl([[scale]], [[1.0]]) == pytest.approx(exact, rel=rtol, abs=0)
        assert rm.kl(np.eye(2), np.eye(2) / scale) == pytest.approx(2 * exact, rel=rtol, abs=0)


@pytest.mark.parametrize("n", [1, 2, 6])
def test_wasserstein_is_the_formula(n):
    rng = np.random.default_rng(10 + n)
    S1, S2 = covariance(rng, n), covariance(rng, n)
    root = linalg.sqrtm(S1)
    exact = np.trace(S1) + np.trace(S2) - 2 * np.trace(linalg.sqrtm(root @ S2 @ root)).real
    condition = np.linalg.cond(S1)
    tolerance = 16 * n * EPS * condition * np.trace(S1 + S2)
    assert rm.wasserstein(S1, S2) ** 2 == pytest.approx(exact, abs=tolerance)
    assert rm.wasserstein(S1, S2, rows=9) == pytest.approx(
        3 * rm.wasserstein(S1, S2), rel=1e-15, abs=0
    )


def test_wasserstein_of_commuting_singular_and_close_matrices():
    rng = np.random.default_rng(3)
    Q = np.linalg.qr(rng.standard_normal((5, 5)))[0]
    first, second = np.array([4.0, 1, 0, 0, 9]), np.array([1.0, 0, 0, 4, 9])
    S1, S2 = Q * first @ Q.T, Q * second @ Q.T
    exact = np.linalg.norm(np.sqrt(first) - np.sqrt(second))
    assert rm.wasserstein(S1, S2) == pytest.approx(exact, abs=1e-13)
    assert rm.wasserstein(S1, S1) <= 1e-14
    assert rm.wasserstein(S1, np.zeros((5, 5))) == pytest.approx(
        math.sqrt(14 + 0), rel=1e-14, abs=0
    )
    assert rm.wasserstein(np.zeros((5, 5)), np.zeros((5, 5))) == 0
    # the square is 1e-26 of the traces, and would be lost in their difference
    S = covariance(rng, 5)
    exact = (math.sqrt(1 + 1e-13) - 1) * math.sqrt(np.trace(S))
    assert rm.wasserstein(S, (1 + 1e-13) * S) == pytest.approx(exact, abs=1e-15 * 5)
    for scale in (1e-300, 1e300):
        assert rm.wasserstein(scale * S1, scale * S2) == pytest.approx(
            math.sqrt(scale) * rm.wasserstein(S1, S2), rel=1e-13, abs=0
        )


@given(seeds, st.integers(1, 6), st.data())
def test_wasserstein_is_a_metric(seed, n, data):
    rng = np.random.default_rng(seed)
    ranks = data.draw(st.lists(st.integers(1, 2 * n), min_size=3, max_size=3))
    S, T, U = (covariance(rng, n, rank=rank) for rank in ranks)
    slack = 64 * EPS * math.sqrt(np.trace(S + T + U))
    # an eigenvalue within n ε of 0 may be dropped, which moves a distance by its root
    slack += 4 * n * math.sqrt(EPS * np.trace(S + T + U))
    assert rm.wasserstein(S, T) == pytest.approx(rm.wasserstein(T, S), abs=slack)
    assert rm.wasserstein(S, U) <= rm.wasserstein(S, T) + rm.wasserstein(T, U) + slack
    assert rm.wasserstein(S, S) <= slack


def one_dimensional_tv(ratio, d):
    """N(0, 1) and N(0, ratio), d rows: the densities of |x|² cross once."""
    crossing = d * math.log(ratio) * ratio / (ratio - 1)
    law = stats.chi2(d)
    return abs(law.cdf(crossing) - law.cdf(crossing / ratio))


@pytest.mark.parametrize("d", [1, 2, 3, 10, 100, 10_000, 1_000_000])
def test_total_variation_in_one_dimension(d):
    for ratio in (1e-30, 1e-8, 0.01, 0.5, 0.99, 1 + 1e-6, 1.001, 1.5, 7.0, 1e4, 1e12, 1e25):
        exact = one_dimensional_tv(ratio, d)
        # SciPy's chi-square probabilities of d = 1e6 have errors of about 1e-13
        assert rm.total_variation([[1.0]], [[ratio]], rows=d) == pytest.approx(exact, abs=3e-13)
        assert rm.total_variation([[ratio]], [[1.0]], rows=d) == pytest.approx(exact, abs=3e-13)


def test_small_total_variations_keep_their_digits():
    """To first order TV = δ/√(2πe) for N(0, 1 + δ), one row: half the mean of |x² − 1| δ/2."""
    for delta in 2.0 ** -np.arange(20, 51, 6):
        exact = delta / math.sqrt(2 * math.pi * math.e)
        assert rm.total_variation([[1.0]], [[1 + delta]]) == pytest.approx(
            exact, rel=delta + 1e-13, abs=0
        )


def plane_tv(first, second):
    """∫ (p₁ − p₂)₊ for N(0, I) and N(0, diag(first, second)), and the error of the quadrature.

    Over the radius in closed form, over the angle by quadrature in y = ln tan(angle).
    """
    log_det = math.log(first * second)

    def beyond(square, g):
        """∫ (p₁ − p₂) r dr beyond r² = square."""
        return math.exp(-square / 2) - math.exp(-square * g / 2 - log_det / 2) / g

    def integrand(y):
        cosine, sine = 1 / (1 + math.exp(2 * y)), 1 / (1 + math.exp(-2 * y))  # squared
        g = cosine / first + sine / second
        # p₁ > p₂ where r²(g − 1) > −log_det
        if g > 1:
            value = beyond(max(0.0, -log_det / (g - 1)), g)
        elif log_det > 0:
            value = beyond(0.0, g) - (beyond(log_det / (1 - g), g) if g < 1 else 0.0)
        else:
            value = 0.0
        return value * math.sqrt(cosine * sine) * 2 / math.pi

    # a kink at g = 1, where tan² = (1 − 1/first) / (1/second − 1)
    ratio = (1 - 1 / first) / (1 / second - 1) if second != 1 else 0
    kink = [math.log(ratio) / 2] if ratio > 0 else []
    ends = sorted([*range(-42, 43, 6), *kink])
    pieces = [
        integrate.quad(integrand, *pair, epsabs=1e-14, epsrel=1e-13, limit=200)
        for pair in itertools.pairwise(ends)
    ]
    return sum(value for value, _ in pieces), sum(error for _, error in pieces)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (2, 3),
        (0.5, 2),
        (0.5, 2.1),
        (0.1, 30),
        (1.5, 1),
        (1.01, 0.98),
        (1e-3, 1e3),
        (4, 4),
        (50, 0.9),
    ],
)
def test_total_variation_in_the_plane(first, second):
    exact, error = plane_tv(first, second)
    turn = np.array([[0.6, -0.8], [0.8, 0.6]])
    S = turn @ np.diag([first, second]) @ turn.T
    # S is rounded: its eigenvalues by ε times the largest, TV by that over the smallest
    tolerance = error + 1e-14 + 8 * EPS * max(first, second) / min(first, second)
    assert rm.total_variation(np.eye(2), S) == pytest.approx(exact, abs=tolerance)


def test_total_variation_of_matrices_that_are_small_where_the_other_is_large():
    """λ = 1e12 and 1e-12: the small one drowns in the rounding of the large one.

    Each matrix has its own small eigenvalue, 1e-12, rounded by 1e-16, that is by 1e-4 of itself;
    1 − TV ~ 1e-6 changes by as much.
    """
    exact, error = plane_tv(1e12, 1e-12)
    turn = np.array([[0.6, -0.8], [0.8, 0.6]])
    S1, S2 = turn * [1, 1e-12] @ turn.T, turn * [1e-12, 1] @ turn.T
    assert 1 - exact > 1e-7
    assert rm.total_variation(S1, S2) == pytest.approx(exact, rel=0, abs=error + 4e-4 * (1 - exact))


@pytest.mark.parametrize(
    ("n", "rows", "scale"), [(2, 1, 1), (4, 3, 0.5), (6, 40, 0.05), (20, 5, 0.1)]
)
def test_total_variation_by_monte_carlo(n, rows, scale):
    """E₁ (1 − p₂/p₁)₊ over draws of all rows."""
    rng = np.random.default_rng(n)
    S1 = covariance(rng, n)
    noise = rng.standard_normal((n, n))
    root = linalg.sqrtm(S1)
    S2 = root @ linalg.expm(scale * (noise + noise.T)) @ root
    S2 = (S2 + S2.T) / 2
    samples = []
    for _ in range(20):
        x = rng.standard_normal((5000, rows, n)) @ linalg.cholesky(S1)
        inner = x.swapaxes(1, 2) @ x
        log_ratio = -0.5 * np.einsum("kij,ji->k", inner, linalg.inv(S2) - linalg.inv(S1))
        log_ratio -= 0.5 * rows * (np.linalg.slogdet(S2)[1] - np.linalg.slogdet(S1)[1])
        samples.append(np.maximum(0, -np.expm1(np.minimum(log_ratio, 0))))
    exact = rm.total_variation(S1, S2, rows=rows)
    assert 0.05 < exact < 0.99
    assert_mean(np.concatenate(samples), exact)


@given(seeds, st.integers(1, 8), st.sampled_from([1, 2, 5, 40, 1000]), st.floats(-4, 0.5))
def test_total_variation_obeys_its_inequalities(seed, n, rows, exponent):
    """Symmetry, invariance, and the bounds by Hellinger, Pinsker and Devroye, Mehrabian, Reddad."""
    rng = np.random.default_rng(seed)
    noise = rng.standard_normal((n, n))
    S2 = linalg.expm(10.0**exponent * (noise + noise.T) / math.sqrt(2 * n))
    S2 = (S2 + S2.T) / 2
    eigenvalues = np.linalg.eigvalsh(S2)
    tv = rm.total_variation(np.eye(n), S2, rows=rows)
    # the eigenvalues are rounded by ε times the largest: √rows of that, by the upper bound
    slack = 64 * n * EPS * (eigenvalues[-1] / eigenvalues[0]) * math.sqrt(rows) + 1e-14
    assert 0 <= tv <= 1
    assert rm.total_variation(S2, np.eye(n), rows=rows) == pytest.approx(tv, abs=slack)
    affinity = np.prod(2 / (eigenvalues**0.5 + eigenvalues**-0.5)) ** (rows / 2)
    assert 1 - affinity - slack <= tv <= math.sqrt(1 - min(affinity, 1) ** 2) + slack + 1e-7
    assert tv <= math.sqrt(rm.kl(np.eye(n), S2, rows=rows) / 2) + slack
    deviation = math.sqrt(rows * np.sum((eigenvalues - 1) ** 2))
    assert min(1, deviation) / 100 - slack <= tv <= 1.5 * min(1, deviation) + slack
    A = np.linalg.qr(rng.standard_normal((n, n)))[0] * np.geomspace(1, 8, n)
    S3, S4 = A @ A.T, A @ S2 @ A.T
    moved = rm.total_variation((S3 + S3.T) / 2, (S4 + S4.T) / 2, rows=rows)
    assert moved == pytest.approx(tv, abs=64 * slack)


def test_rows_are_copies():
    """`rows` rows are one row of covariance I ⊗ S."""
    rng = np.random.default_rng(0)
    S1, S2 = covariance(rng, 3), covariance(rng, 3)
    for function in PAIRS:
        copied = function(np.kron(np.eye(4), S1), np.kron(np.eye(4), S2))
        assert function(S1, S2, rows=4) == pytest.approx(copied, rel=1e-12, abs=0)


def test_total_variation_on_every_contour(monkeypatch):
    """Another angle is another integral of the same value: random spectra, 1 to 10⁶ rows."""
    rng = np.random.default_rng(2)
    for _ in range(60):
        n, rows = int(rng.choice([1, 2, 5, 30])), 10 ** rng.uniform(0, 6)
        half_logs = rng.standard_normal(n) * 10 ** rng.uniform(-3, 0, n)
        half_logs *= 10 ** rng.uniform(-3, 0.6) / math.sqrt(rows * np.sum(half_logs**2))
        value = gaussians._total_variation(half_logs, rows, 1e-12)
        with monkeypatch.context() as patch:
            patch.setattr(gaussians, "_ANGLES", (0.1, 0.0))
            assert gaussians._total_variation(-half_logs, rows, 1e-12) == pytest.approx(
                value, rel=1e-13, abs=0
            )


def test_total_variation_where_a_tilted_contour_would_blow_up(monkeypatch):
    """One large negative and 300 small positive logarithms: |M| reaches e¹² off the real axis.

    By Monte Carlo it is E₁ (1 − p₂/p₁)₊, with the sum of 300 chi-squares drawn as one.
    """
    m, rows = 300, 3
    log_ratios = np.array([-2, 2.1 / m])
    rng = np.random.default_rng(9)
    chi = np.stack([rng.chisquare(rows, 200_000), rng.chisquare(rows * m, 200_000)])
    log_ratio = 0.5 * (np.exp(-log_ratios) - 1) @ chi + 0.5 * rows * (-2 + 2.1)
    S2 = np.diag(np.exp(np.r_[log_ratios[0], np.full(m, log_ratios[1])]))
    exact = rm.total_variation(np.eye(m + 1), S2, rows=rows)
    assert_mean(np.maximum(0, -np.expm1(-np.maximum(log_ratio, 0))), exact)
    peak = gaussians._log_affinity(log_ratios.repeat([1, m]) / 2, rows, np.arange(0, 20, 0.1), 0.3)
    assert peak.real.max() > 11
    # on the real axis |M| <= 1: the digits that a sum of such terms would lose
    monkeypatch.setattr(gaussians, "_ANGLES", (0.0,))
    real = rm.total_variation(np.eye(m + 1), S2, rows=rows)
    assert exact == pytest.approx(real, rel=1e-13, abs=0)


def test_total_variation_says_when_it_has_not_converged(monkeypatch):
    half_logs = np.r_[-5.0, np.full(200, 5.0 / 200)]
    value = gaussians._total_variation(half_logs, 1.0, 1e-12)
    monkeypatch.setattr(gaussians, "_HALVINGS", 1)
    with pytest.raises(PartialEstimateError, match="^halving the step .* > atol$") as caught:
        rm.total_variation(np.diag(np.exp(2 * half_logs)), np.eye(201), atol=1e-15)
    assert caught.value.partial == pytest.approx(value, abs=0.1)


def test_singular_matrices():
    """Different ranges: TV 1 and KL infinite.  A common range: the laws restricted to it."""
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


@pytest.mark.parametrize("function", PAIRS)
def test_bad_pairs_are_refused(function):
    with pytest.raises(ArgumentError, match="^S1: got 1.0, allowed: symmetric"):
        function([[1, 1], [0, 1]], np.eye(2))
    with pytest.raises(ArgumentError, match="^S2: got -1.0, allowed: no negative"):
        function(np.eye(2), [[1, 2], [2, 1]])
    with pytest.raises(ArgumentError, match="^S2: got nan"):
        function(np.eye(1), [[math.nan]])
    with pytest.raises(
        ArgumentError, match=r"^S2: got \(3, 3\), allowed: matrices of shape \(2, 2"
    ):
        function(np.eye(2), np.eye(3))
    with pytest.raises(ArgumentError, match=r"^S2: got \(3, 2, 2\), .*leading axes"):
        function(np.stack([np.eye(2)] * 2), np.stack([np.eye(2)] * 3))
    with pytest.raises(ArgumentTypeError, match="^S1: "):
        function("S", np.eye(2))
    for rows in (0, -1, 0.5, math.inf):
        with pytest.raises(ArgumentError, match=f"^rows: got {rows}"):
            function(np.eye(2), np.eye(2), rows=rows)
    with pytest.raises(ArgumentError, match=r"^rows: got \(2,\), .*broadcasts with \(3,\)"):
        function(np.stack([np.eye(2)] * 3), np.eye(2), rows=[1, 2])


def test_bad_magnitudes_and_tolerances():
    for function in (rm.kl, rm.total_variation):
        with pytest.raises(ArgumentError, match="^S2: got 1e-201, .* 1e200"):
            function([[1.0]], [[1e-201]])
    assert rm.total_variation([[1e-150]], [[1e49]]) == 1
    assert rm.total_variation([[1, 1e-200], [1e-200, 1]], np.eye(2)) <= 1e-100
    for atol in (0, -1, math.nan):
        with pytest.raises(ArgumentError, match="^atol: got "):
            rm.total_variation([[1.0]], [[2.0]], atol=atol)
