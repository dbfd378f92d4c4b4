"""The Marchenko–Pastur law against its density, quadrature, and simulated spectra."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_matrix_checks import EPS, RATIOS
from scipy import integrate

from bnmc import random_matrix as rm


def density(x, ratio, variance=1.0):
    """The density, in its usual form."""
    a, b = (variance * (1 + sign * math.sqrt(ratio)) ** 2 for sign in (-1, 1))
    inside = max(b - x, 0.0) * max(x - a, 0.0)
    return math.sqrt(inside) / (2 * math.pi * variance * ratio * x)


def moment(law, low, high, power=0.0):
    """Integral of x^power times the density, without the roots at both edges, and its error."""
    a, b = law.edges

    def integrand(angle):
        x = a + (b - a) * math.sin(angle) ** 2
        weight = x**power * (b - a) * math.sin(2 * angle)
        return weight * density(x, law.ratio, law.variance)

    ends = [math.asin(math.sqrt(min(max((x - a) / (b - a), 0), 1))) for x in (low, high)]
    # For γ = 1 the integrand at 0 is 0 · ∞. Omit that end, where x^{1/4} dθ ~ 1e-20.
    ends[0] = max(ends[0], 1e-16)
    return integrate.quad(integrand, *ends, epsabs=1e-13, epsrel=1e-13, limit=500)


def both_laws(ratio, variance=1.0):
    """The laws of eigenvalues and of singular values."""
    law = rm.MarchenkoPastur(ratio, variance)
    return law, law.singular_values


@pytest.mark.parametrize("variance", [1.0, 0.3])
@pytest.mark.parametrize("ratio", [0.01, 0.25, 0.7, 0.98, 1.5, 20.0])
def test_cdf_and_sf_are_integrals_of_the_density(ratio, variance):
    law = rm.MarchenkoPastur(ratio, variance)
    a, b = law.edges
    for x in a + (b - a) * np.array([0.001, 0.1, 0.4, 0.8, 0.99]):
        below, below_error = moment(law, a, x)
        above, above_error = moment(law, x, b)
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
    """The absolute error is 1e-15, and in the tails the relative error is small as well.

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
    exact, error = moment(law, *law.edges, order / 2)
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
    """The mass is exact up to the density times the rounding error of the quantile.

    Half a unit for an eigenvalue; for a singular value z, of density 2 z f(z²), half of the unit of
    z² before the root, the root's, and that of squaring it again: 5/4 in all.
    """
    for law in both_laws(ratio, variance):
        q = np.concatenate([np.linspace(0, 1, 101), 10.0 ** -np.arange(3, 17)])
        x = law.ppf(q)
        assert np.all((law.support()[0] <= x) & (x <= law.support()[1] * (1 + 4 * EPS)))
        assert np.all(np.diff(x[:101]) >= 0)
        tolerance = 8 * EPS + 1.25 * EPS * x * np.where(np.isfinite(law.pdf(x)), law.pdf(x), 0)
        assert np.all(np.abs(law.cdf(x) - np.maximum(q, law.atom)) <= tolerance)
        assert law.median() == law.ppf(0.5)
        np.testing.assert_array_equal(law.ppf(q[q <= law.atom]), 0 if law.atom else law.ppf(0.0))


@given(st.floats(-6, 6).map(lambda exponent: 10.0**exponent), st.floats(0, 1), st.integers(0, 1))
def test_round_trips(ratio, q, which):
    law = both_laws(ratio)[which]
    x = law.ppf(q)
    pdf = law.pdf(x) if x > 0 else 0
    assert abs(law.cdf(x) - max(q, law.atom)) <= 8 * EPS + 1.25 * EPS * x * pdf
    assert law.cdf(x) + law.sf(x) == pytest.approx(1, abs=4 * EPS)


def test_small_quantiles_of_square_matrices():
    """Near the pole cdf(x) = 2√x/π, so ppf(q) = (πq/2)²: no digit is lost down to 1e-290."""
    q = 10.0 ** -np.arange(9, 146, 17)
    np.testing.assert_allclose(rm.MarchenkoPastur(1.0).ppf(q), (np.pi * q / 2) ** 2, rtol=1e-14)
    # Away from the pole, the error of the quantile is the rounding error of x − a.
    law = rm.MarchenkoPastur(1 - 2**-20)
    for level in 10.0 ** -np.arange(3, 13):
        x = law.ppf(level)
        rel = 8 * EPS * (1 + 1.5 * x / (x - law.edges[0]))
        assert law.cdf(x) == pytest.approx(level, rel=rel, abs=0)
    soft = rm.MarchenkoPastur(0.25)  # mass (16/3π) T³/near², x = a + 4 √γ T², near = 1/2
    distances = soft.ppf(1e-12) - 0.25
    cubed = 3 * math.pi / 64 * 1e-12
    assert distances == pytest.approx(2 * cubed ** (2 / 3), rel=1e-6, abs=0)


@pytest.mark.parametrize(("d", "n"), [(1200, 600), pytest.param(300, 900, marks=pytest.mark.slow)])
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
    bulk = x > 0  # the cdf jumps at the atom, so ignore gaps below it
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
    for law in both_laws(ratio, variance):
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
