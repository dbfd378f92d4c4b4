"""The Hermite series: coefficients, and the bound of the rest."""

import itertools

import numpy as np
import pytest
from scipy import integrate, special
from slow_cases import slow

from bnmc import Activation
from bnmc.errors import ArgumentError
from bnmc.infinite_width import dual, nngp, ntk, tiles
from bnmc.mean_field.duals import series
from bnmc.mean_field.duals.series import Tabulated, expansion, nearly_equal, pair_terms
from bnmc.mean_field.quadrature.profile import Profile


def declared(function, kinks=()):
    """Return the profile of a function that is not searched for other kinks."""
    return Profile(Activation(function, kinks=kinks), kinks, 16.0, complete=True)


def test_coefficients_of_a_polynomial():
    # x³ = √6 h_3 + 3 h_1, with variance 4: 8 times that.
    cube = expansion(declared(lambda x: x * x * x), np.array([4.0]))
    assert cube.coefficients.shape[1] == 4
    assert cube.coefficients[0] == pytest.approx([0, 24, 0, 8 * np.sqrt(6)], abs=1e-11)
    assert cube.mean_square[0] == pytest.approx(15 * 64, rel=1e-13)
    assert cube.rest[0] <= 1e-14


def rest_of_relu(terms):
    """Return 2 Σ a_k² over even k ≥ terms, with a_k² = ((k − 3)!!)² / (2π k!)."""
    k = np.arange(terms, 4_000_000, 2.0)
    # (k − 3)!! = 2^(k/2 − 1) Γ(k/2 − 1/2) / √π
    double = (k / 2 - 1) * np.log(2) + special.gammaln(k / 2 - 0.5) - np.log(np.pi) / 2
    return 2 * np.exp(2 * double - special.gammaln(k + 1)).sum() / (2 * np.pi)


@pytest.mark.parametrize(
    "correlation", [-0.999, slow(-0.5), 0.3, slow(0.9), 0.99, slow(0.9999), 1 - 1e-9, 1.0]
)
def test_the_error_is_a_bound(correlation):
    # relu has a closed form; as a series it lacks a part near correlation 1.
    variances = np.array([0.4, 2.0])
    side = expansion(declared(lambda x: max(x, 0.0), kinks=(0.0,)), variances)
    result, error = pair_terms(side, side, np.full((2, 2), correlation))
    scale = np.sqrt(variances[:, None] * variances)
    exact, _ = dual("relu")(variances[:, None], variances, correlation * scale)
    actual = np.abs(result - exact) / (scale / 2)
    assert (actual <= error + 1e-15).all()
    rest = rest_of_relu(1024) * abs(correlation) ** 1024
    assert (error <= rest * (1 + 1e-4) + 1e-13).all()
    if abs(correlation) <= 0.9:
        assert (error < 1e-12).all()


def test_a_declared_kink_off_zero_is_exact():
    # E max(z − 1, 0)² = 2Φ(−1) − φ(1)
    side = expansion(declared(lambda x: max(x - 1.0, 0.0), kinks=(1.0,)), np.array([1.0, 1.0]))
    density = np.exp(-0.5) / np.sqrt(2 * np.pi)
    assert side.mean_square == pytest.approx([2 * special.ndtr(-1) - density] * 2, rel=1e-13)
    assert (side.noise < 1e-13).all()


def test_an_undeclared_kink_is_in_the_error():
    hidden = declared(lambda x: 1.0 if x > 0.377 else 0.0)
    side = expansion(hidden, np.array([1.0]))
    actual = abs(side.mean_square[0] - special.ndtr(-0.377))
    assert actual > 1e-6
    assert side.noise[0] * side.mean_square[0] >= actual / 4
    assert pair_terms(side, side, np.zeros((1, 1)))[1].max() >= 2 * side.noise[0]


@pytest.mark.parametrize("q", [2.0, 1e4])
def test_functions_without_a_mean_square_raise(q):
    with pytest.raises(ArgumentError, match="finite mean square"):
        expansion(declared(lambda x: np.exp(x * x / 3)), np.array([q]))


def test_a_pole_is_in_the_error():
    assert expansion(declared(lambda x: 1 / x), np.array([1.0])).noise[0] > 0.1


def test_many_variances_and_none():
    """Blocks of variances need different numbers of terms."""
    sigma, variances = declared(np.tanh), np.linspace(0.0, 6.0, 300)[::-1]
    many, few = expansion(sigma, variances), expansion(sigma, variances[[290, 10]])
    for number, index in enumerate((290, 10)):
        assert many.mean_square[index] == pytest.approx(few.mean_square[number], rel=1e-13)
        terms = min(many.coefficients.shape[1], few.coefficients.shape[1])
        expected = few.coefficients[number, :terms]
        assert many.coefficients[index, :terms] == pytest.approx(expected, abs=1e-13)
        assert many.rest[index] <= 1e-14
    assert expansion(sigma, np.empty(0)).mean_square.shape == (0,)


@pytest.mark.parametrize("place", [0.26, 0.5, -0.7])
def test_a_cut_panel_has_the_same_coefficients_as_a_step(place):
    """a_k of the unit step at s is h_{k−1}(s) φ(s)/√k."""
    side = expansion(declared(lambda x: 1.0 if x > place else 0.0, kinks=(place,)), np.array([1.0]))
    k = np.arange(1, 1024)
    hermite = np.ones(1024)
    hermite[1] = place
    for n in range(2, 1024):
        hermite[n] = (place * hermite[n - 1] - np.sqrt(n - 1) * hermite[n - 2]) / np.sqrt(n)
    expected = hermite[:-1] * np.exp(-0.5 * place**2) / np.sqrt(2 * np.pi * k)
    assert side.coefficients[0, 1:] == pytest.approx(expected, abs=2e-14)
    assert side.noise[0] < 1e-13


# --- Quadrature near correlation 1 against one-dimensional integrals and closed forms


SHIFT = 0.7


RAMP = declared(lambda x: max(x - SHIFT, 0.0), kinks=(SHIFT,))
STEP = declared(lambda x: 1.0 if x > SHIFT else 0.0, kinks=(SHIFT,))


def ramp_by_hand(p, q, rho, power):
    """Return E (u − s)₊^power (v − s)₊^power, by the law of v given u."""
    rest = np.sqrt(q * (1 - rho) * (1 + rho))

    def integrand(u):
        mean = rho * np.sqrt(q / p) * u - SHIFT
        tail, density = special.ndtr(mean / rest), np.exp(-0.5 * (mean / rest) ** 2)
        inner = mean * tail + rest * density / np.sqrt(2 * np.pi) if power else tail
        return (u - SHIFT) ** power * inner * np.exp(-0.5 * u * u / p) / np.sqrt(2 * np.pi * p)

    edge = SHIFT / (rho * np.sqrt(q / p)) if rho else SHIFT
    ends = {SHIFT, 12.0 * np.sqrt(p)}
    ends |= {edge + k * rest for k in (-8, -4, -2, -1, 0, 1, 2, 4, 8) if edge + k * rest > SHIFT}
    ends = sorted(end for end in ends if end <= 12.0 * np.sqrt(p))
    pieces = itertools.pairwise(ends)
    return sum(integrate.quad(integrand, a, b, epsabs=1e-15, epsrel=1e-13)[0] for a, b in pieces)


@pytest.mark.parametrize("rho", [0.5, 0.99, 0.9999, 1 - 1e-8, -0.999])
def test_a_shifted_ramp_and_a_step(rho):
    p, q = np.array([1.0, 0.6]), np.array([1.0, 2.3])
    for f, power in ((RAMP, 1), (STEP, 0)):
        result, error = nearly_equal(f, p, q, np.full(2, rho))
        expected = [ramp_by_hand(*pair, rho, power) for pair in zip(p, q, strict=True)]
        assert np.abs(result - expected).max() < 1e-11
        assert (error < 1e-9).all()


def test_many_pairs_of_the_same_variances_are_interpolated():
    rho = 1.0 - np.linspace(0.0, 0.1, 60) ** 2
    result, error = nearly_equal(STEP, np.full(60, 1.3), np.full(60, 1.3), rho)
    alone = np.concatenate([nearly_equal(STEP, *np.array([[1.3], [1.3], [r]]))[0] for r in rho])
    assert np.abs(result - alone).max() < 1e-11
    assert (error < 1e-9).all()
    same, _ = nearly_equal(STEP, np.full(60, 1.3), np.full(60, 1.3), np.full(60, 0.999))
    assert np.ptp(same) == 0.0


def test_an_undeclared_kink_is_in_the_error_of_the_quadrature():
    hidden = declared(lambda x: 1.0 if x > SHIFT else 0.0)
    result, error = nearly_equal(hidden, *np.array([[1.0], [1.0], [0.9999]]))
    assert error[0] > 1e-6
    assert abs(result[0] - ramp_by_hand(1.0, 1.0, 0.9999, 0)) < 10 * error[0]


@pytest.mark.parametrize(
    ("norm", "activation"),
    [("none", "own"), ("layer", "selu"), ("layer", "own"),
     pytest.param("none", "selu", marks=pytest.mark.slow)],
)  # fmt: skip
def test_kernels_of_nearly_equal_inputs_are_positive_semidefinite(activation, norm):
    if activation == "own":
        activation = Activation(
            lambda x: max(x - SHIFT, 0.0) + 0.1 * x, kinks=(SHIFT,),
            derivative=lambda x: 1.1 if x > SHIFT else 0.1,
        )  # fmt: skip
    rng = np.random.default_rng(0)
    common = rng.standard_normal((20, 1))
    x = common + 10.0 ** -np.array([1, 3, 5, 8, 12, 16, 17]) * rng.standard_normal((20, 7))
    for function, tolerance in ((nngp, 1e-12), (ntk, 1e-7)):
        kernel = function(x, 2, activation=activation, norm=norm, bias_variance=0.1)
        values = np.linalg.eigvalsh(kernel)
        assert values[0] > -tolerance * values[-1]


@pytest.mark.parametrize("name", ["selu", "elu", "relu", "gelu"])
def test_correlations_of_one_and_rounding(name):
    # V′ changes by about √(2 · 2e-16) there, V by 1e-16.
    correlation = np.array([1.0, 1.0 - 1.2e-16, 1.0 + 2.3e-16, 1.0 - 2.3e-16])
    value, slope = dual(name)(1.0, 1.0, correlation)
    assert value == pytest.approx([value[0]] * 4, rel=1e-14)
    assert slope == pytest.approx([slope[0]] * 4, rel=1e-7)


@pytest.mark.parametrize("name", ["tanh", "elu"])
def test_tables_give_the_series_up_to_their_noise(name):
    """At variances of many octaves, and at their ends."""
    f, tabulated = dual(name).function, Tabulated()
    for q in (1e-12, 0.3, 0.5, 40.0):
        exact, table = (expand(f, np.array([q])) for expand in (expansion, tabulated))
        terms = min(exact.coefficients.shape[1], table.coefficients.shape[1])
        off = np.linalg.norm(exact.coefficients[:, :terms] - table.coefficients[:, :terms])
        assert off <= (exact.noise + table.noise)[0] * exact.mean_square[0] ** 0.5
        np.testing.assert_allclose(table.mean_square, exact.mean_square, rtol=1e-14)
    both = np.array([1e-3, 0.7, 1e-3, 0.0])
    assert tabulated(f, both).coefficients.shape == expansion(f, both).coefficients.shape
    table = tabulated(f, both[:3])
    np.testing.assert_array_equal(table.coefficients[0], table.coefficients[2])
    np.testing.assert_allclose(table.mean_square, expansion(f, both[:3]).mean_square, rtol=1e-14)


@pytest.mark.parametrize(
    ("function", "variance"),
    [
        (Activation(lambda x: max(x, 3.0), kinks=(3.0,)), 0.9),
        (Activation(lambda x: np.exp(0.25 * x * x) / (1.0 + x * x)), 0.55),
    ],
)
def test_functions_without_a_table_are_expanded_one_by_one(function, variance):
    """A kink far from 0 oscillates in the variance; a pole is not far beyond it."""
    f, q = dual(function).function, np.array([variance])
    for table, exact in zip(Tabulated()(f, q), expansion(f, q), strict=True):
        np.testing.assert_allclose(table, exact, atol=1e-13)


@pytest.mark.parametrize("options", [slow({}), {"weight_variance": 1.5, "bias_variance": 0.05}])
def test_deep_kernels_make_few_series(monkeypatch, options):
    """Their number does not grow with the depth, and the kernels are those of single series."""
    x, made, expanded = np.array([[1.0, 0.0], [1.0, 2.0]]), [], series._expanded
    monkeypatch.setattr(
        series, "_expanded", lambda f, variances: made.append(f) or expanded(f, variances)
    )
    deep = ntk(x, 200, activation="tanh", **options)
    assert len(made) <= 40
    monkeypatch.setattr(tiles, "_DEEP", 1000)
    np.testing.assert_allclose(deep, ntk(x, 200, activation="tanh", **options), rtol=1e-11)
