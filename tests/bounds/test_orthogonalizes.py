"""`bnmc.bounds.orthogonalizes`: formulas written out, exact companions, and simulated chains.

Statistical tests have fixed seeds. For means of bounded variables they use Hoeffding's inequality,
with a false alarm of 1e-6 per test. For other means they allow 5.5 standard errors, that is 4e-8 by
the normal law, with at least 400 independent values per mean and at most 20 means per test.
"""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from oracle import FALSE_ALARM

import bnmc
from bnmc import gram as gm
from bnmc.bounds import orthogonalizes as og

SIGMAS = 5.5

#: A third of the examples, where each takes a quadrature for every eigenvalue.
FEWER = settings(max_examples=settings.default.max_examples // 3)

spectra = hnp.arrays(
    np.float64,
    st.tuples(st.integers(1, 12)),
    elements=st.floats(1e-200, 1) | st.sampled_from([0.0, 1e-30, 1e-12, 1.0]),
).filter(lambda s: s.max() > 1e-3)


def hoeffding(samples, range_=1.0):
    """Bound of the excess of a mean of independent variables over its expectation."""
    return range_ * math.sqrt(math.log(1 / FALSE_ALARM) / (2 * samples))


def layer_of(shares, width):
    """A normalized representation, rows √n e_i, with these shares, multiples of 1/width."""
    n = len(shares)
    counts = np.rint(np.multiply(shares, width)).astype(int)
    assert counts.sum() == width
    return np.repeat(math.sqrt(n) * np.eye(n), counts, axis=0)


def one_layer(H, generator, samples):
    """H₊ = BN(W H)/√d, ‖H₊‖_F = 1, of independent W."""
    d = len(H)
    h = generator.standard_normal((samples, d, d)) @ H
    return h / np.linalg.norm(h, axis=-1, keepdims=True) / math.sqrt(d)


def gaps(shares):
    return np.sqrt(np.square(shares - 1 / shares.shape[-1]).sum(axis=-1))


# --- the printed formulas -------------------------------------------------------------------


@pytest.mark.parametrize("depth", [0, 1, 17, 400])
@pytest.mark.parametrize(("width", "batch"), [(1, 1), (900, 3), (10_000, 16)])
def test_bounds_written_out(depth, width, batch):
    alpha = Fraction(1, 3 * batch)
    decay = float((1 - Fraction(2, 3) * alpha) ** depth)
    root = math.sqrt(width)
    first = og.theorem_1(depth, width, batch, float(alpha))
    assert first == pytest.approx(2 * decay + 3 * batch / (float(alpha) * root), rel=1e-12)
    third = og.corollary_3(depth, width, batch, float(alpha))
    expected = 4 * batch * decay + 6 * batch**2 / (float(alpha) * root)
    assert third == pytest.approx(expected, rel=1e-12)
    v_hat = 1 / batch - float(alpha)
    contracted = v_hat * (1 - 2 * (1 / batch - v_hat) / 3)
    assert og.lemma_8(v_hat, batch) == pytest.approx(contracted, rel=1e-14)
    assert og.theorem_5(v_hat, width, batch) == pytest.approx(contracted + 1 / root, rel=1e-14)
    assert og.lemma_6(width) == 1 / width


def test_arguments_broadcast():
    depth, width, batch = np.arange(3)[:, None, None], np.array([[10], [1000]]), np.array([2, 3, 5])
    alpha = np.full(3, 0.2)
    for function in (og.theorem_1, og.corollary_3):
        bounds = function(depth, width, batch, alpha)
        assert bounds.shape == (3, 2, 3)
        assert bounds[2, 1, 0] == function(2, 1000, 2, 0.2)
    assert og.theorem_5(0.1, width, batch).shape == (2, 3)
    assert og.stationary_squared_gap(width, batch).shape == (2, 3)
    distances = og.stationary_squared_distance(width, batch)
    assert distances[1, 2] == og.stationary_squared_distance(1000, 5)
    spectrum = np.random.default_rng(0).random((4, 1, 3))
    for function in (og.one_step_variance, og.expected_squared_gap):
        values = function(spectrum, [10, 20])
        assert values.shape == (4, 2)
        assert values[3, 1] == pytest.approx(function(spectrum[3, 0], 20), rel=1e-14)
    assert og.expected_shares(spectrum).shape == (4, 1, 3)
    assert og.expected_shares(np.empty((0, 3))).shape == (0, 3)
    assert og.shortfall(spectrum).shape == og.wasserstein_squared(spectrum).shape == (4, 1)


def test_theorem_1_is_theorem_5_iterated():
    """From V̂ <= 1/n, with σ_n² = α at each step, and V <= 2n V̂ in the end."""
    n, d, alpha = 4, 10**6, 0.2
    v_hat = 1 / n
    for depth in range(200):
        bound = og.theorem_1(depth, d, n, alpha)
        assert 2 * n * v_hat <= bound
        v_hat = (1 - 2 / 3 * alpha) * v_hat + 1 / math.sqrt(d)
    # The recursion has converged to its fixed point, which is the floor of the bound.
    assert 2 * n * v_hat == pytest.approx(bound, rel=1e-9)


def test_theorem_1_needs_the_square():
    """At infinite width, H equals its mean. The theorem needs σ_n² >= α; σ_n >= α is too weak."""
    n = 100
    shares = np.full(n, (1 - 0.97 / n) / (n - 1))
    shares[0] = smallest = 0.97 / n
    for depth in range(400):
        assert shares.min() >= smallest
        assert gaps(shares) <= 2 * (1 - 2 / 3 * smallest) ** depth
        shares = og.expected_shares(shares)
    assert gaps(shares) > 1000 * 2 * (1 - 2 / 3 * math.sqrt(smallest)) ** 400


# --- the mean of a layer --------------------------------------------------------------------


@pytest.mark.parametrize("ratio", [1.0, 0.5, 1e-3, 1e-30, 1e-100, 1e-240])
def test_expected_shares_of_two_samples(ratio):
    """E[s₁w₁²/(s₁w₁² + s₂w₂²)] = √s₁/(√s₁ + √s₂)."""
    root = math.sqrt(ratio)
    expected = [1 / (1 + root), root / (1 + root)]
    np.testing.assert_allclose(og.expected_shares([3.0, 3.0 * ratio]), expected, rtol=1e-13)


@pytest.mark.parametrize("n", [1, 2, 5, 64, 4000])
def test_expected_shares_of_equal_shares(n):
    np.testing.assert_allclose(og.expected_shares(np.full(n, 7e-200)), 1 / n, rtol=1e-13)


def test_expected_shares_against_quadrature():
    """The integral over t in 30 digits, at a spectrum of seven decades."""
    spectrum = [1.0, 0.3, 0.02, 1e-7]
    with mpmath.workdps(30):
        s = [mpmath.mpf(value) / sum(map(mpmath.mpf, spectrum)) for value in spectrum]

        def integrand(t, i):
            return s[i] / (1 + 2 * t * s[i]) / mpmath.sqrt(mpmath.fprod(1 + 2 * t * x for x in s))

        points = [0, *(mpmath.mpf(10) ** k for k in range(0, 13, 2)), mpmath.inf]
        expected = [float(mpmath.quad(lambda t, i=i: integrand(t, i), points)) for i in range(4)]
    assert sum(expected) == pytest.approx(1, rel=1e-14)
    np.testing.assert_allclose(og.expected_shares(spectrum), expected, rtol=1e-13)


@pytest.mark.untraced
@FEWER
@given(spectra)
def test_expected_shares_are_shares(spectrum):
    p = og.expected_shares(spectrum)
    assert p.sum() == pytest.approx(1, rel=1e-13)
    assert ((p > 0) == (spectrum > 0)).all()
    np.testing.assert_allclose(og.expected_shares(spectrum[::-1] * 3)[::-1], p, rtol=1e-13)
    order = np.argsort(spectrum)
    assert (np.diff(p[order]) >= -1e-15).all()


@FEWER
@given(spectra)
def test_lemma_8_holds(spectrum):
    """Also with 2n/(n+2) in place of 2/3, as in its proof."""
    n = len(spectrum)
    s = spectrum / spectrum.sum()
    v_hat = 1 / n - s.min()
    assert og.shortfall(spectrum) == pytest.approx(v_hat, abs=1e-15)
    left = 1 / n - og.expected_shares(spectrum).min()
    assert left <= og.lemma_8(og.shortfall(spectrum), n) + 1e-15
    assert left <= (1 - 2 * n / (n + 2) * s.min()) * v_hat + 1e-15


@pytest.mark.parametrize("n", [2, 3, 10])
def test_contraction_near_orthogonality(n):
    """p_n − 1/n is n/(n+2) of s_n − 1/n, to first order: Lemma 8 in its sharp form is an equality.

    The second order adds a relative ε of at most a few times n, here 1e-6.
    """
    epsilon = 1e-7
    shares = np.full(n, (1 + epsilon / (n - 1)) / n)
    shares[0] = (1 - epsilon) / n
    contraction = (1 / n - og.expected_shares(shares)[0]) / (epsilon / n)
    assert contraction == pytest.approx(n / (n + 2), rel=1e-6)


@given(spectra)
def test_lemma_4_holds(spectrum):
    gap, n = gaps(spectrum / spectrum.sum()), len(spectrum)
    assert gap <= math.sqrt(n * (n - 1)) * og.shortfall(spectrum) + 1e-15


# --- one layer, with weights ----------------------------------------------------------------


@pytest.mark.parametrize("shares", [(0.1, 0.3, 0.6), (0.05, 0.95), (0.25, 0.25, 0.25, 0.25)])
def test_one_layer_against_weights(shares):
    """Variance of Lemma 6, squared gap, and V̂ of Theorem 5, from 20,000 weight matrices."""
    d, samples, generator = 20, 20_000, np.random.default_rng(11)
    H = layer_of(shares, d)
    C = np.concatenate(
        [h.swapaxes(1, 2) @ h for h in (one_layer(H, generator, 2000) for _ in range(10))]
    )
    p = og.expected_shares(shares)
    n = len(p)

    mean_error = C.mean(axis=0) - np.diag(p)
    assert (np.abs(mean_error) <= SIGMAS * C.std(axis=0) / math.sqrt(samples) + 1e-15).all()

    for values, expected in (
        (np.square(C - np.diag(p)).sum(axis=(1, 2)), og.one_step_variance(shares, d)),
        (np.square(C - np.eye(n) / n).sum(axis=(1, 2)), og.expected_squared_gap(shares, d)),
    ):
        assert values.mean() == pytest.approx(
            expected, abs=SIGMAS * values.std() / math.sqrt(samples), rel=0
        )
    assert og.one_step_variance(shares, d) <= (1 - 1 / n) * og.lemma_6(d)

    v_hat = 1 / n - np.linalg.eigvalsh(C)[:, 0]
    bound = og.theorem_5(og.shortfall(shares), d, n)
    assert v_hat.mean() <= bound + hoeffding(samples, 1 / n)


# --- chains ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shares", "width", "alpha"), [((0.36, 0.64), 20_000, 0.35), ((0.25, 0.25, 0.5), 40_000, 0.22)]
)
def test_theorem_1_and_corollary_3_along_chains(shares, width, alpha):
    """The mean on the event of Assumption A₁, for the squared singular values.

    V and W₂² are at most 1 and 2. The widths are large, so that the bounds are not vacuous.
    """
    n, depth, chains = len(shares), 40, 40
    run = bnmc.simulate(
        bnmc.Chain(width, n, "linear", norm="batch-uncentred"), depth, chains=chains, rng=5,
        initial=layer_of(shares, width), observables=["orthogonality_gap", "eigenvalues"],
    )  # fmt: skip
    spectrum = run["eigenvalues"] / run["eigenvalues"].sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(spectrum[:, 0], [np.sort(shares)] * chains, rtol=1e-12)
    # Layer l counts if the assumption holds at all earlier layers.
    before = np.logical_and.accumulate(spectrum[..., 0] >= alpha, axis=1)[:, :-1]
    holds = np.concatenate([np.ones((chains, 1), bool), before], axis=1)
    assert holds.mean() > 0.99

    layers = np.arange(depth + 1)
    gap_bound = og.theorem_1(layers, width, n, alpha)
    assert gap_bound[-1] < 0.25
    gap = run["orthogonality_gap"]
    np.testing.assert_allclose(gap, gaps(spectrum), rtol=1e-9)
    # The means are at most a tenth of the bound, over 200 standard errors below it.
    assert ((gap * holds).mean(axis=0) <= gap_bound).all()

    distance = og.wasserstein_squared(spectrum)
    assert (distance <= 2 * n * gap).all()  # Lemma 2, for given H
    assert ((distance * holds).mean(axis=0) <= og.corollary_3(layers, width, n, alpha)).all()


def test_wasserstein_distance_of_gaussian_matrices():
    """Tr(A + B − 2(A^½ B A^½)^½), a row, for A = HᵀH/d and B = I/(nd)."""
    generator = np.random.default_rng(3)
    for n, d in ((1, 4), (2, 2), (5, 9)):
        H = generator.standard_normal((d, n))
        H /= np.linalg.norm(H)
        A, B = H.T @ H / d, np.eye(n) / (n * d)
        values, vectors = np.linalg.eigh(A)
        root = vectors * np.sqrt(np.maximum(values, 0)) @ vectors.T
        cross = np.sqrt(np.maximum(np.linalg.eigvalsh(root @ B @ root), 0)).sum()
        expected = d * (np.trace(A) + np.trace(B) - 2 * cross)
        squared = og.wasserstein_squared(gm.eigenvalues(gm.gram(H)))
        # At a vanishing eigenvalue, the square root turns a rounding error of ε into √ε.
        assert squared == pytest.approx(expected, abs=1e-7)
    assert og.wasserstein_squared([1.0, 0, 0, 0]) == pytest.approx(2 * (1 - 1 / 2), rel=1e-15)


@pytest.mark.slow
@pytest.mark.parametrize("centred", [False, True])
def test_stationary_second_moments(centred):
    """d times the mean square at two widths, extrapolated to 1/d = 0.

    What is left is of order (n²/d)²/100, about 1e-4, a tenth of the standard error; at finite width
    the leading order is exceeded by n²/(18 d) or so, which the extrapolation removes.
    """
    n, widths, chains = 5, (125, 500), 400
    means, errors = [], []
    for width in widths:
        chain = (
            bnmc.Chain(width, n, "linear")
            if centred
            else bnmc.Chain(width, n, "linear", norm="batch-uncentred")
        )
        run = bnmc.simulate(chain, 330, chains=chains, rng=[7, width], burn_in=30, every=3)
        star = (n * np.eye(n) - 1) / (n - 1) if centred else np.eye(n)
        # For the uncentred chain Tr G = n, so n V is the distance to I.
        squares = np.square(run["gram"] - star).sum(axis=(-2, -1)) / (1 if centred else n**2)
        of_chain = width * squares.mean(axis=1)
        means.append(of_chain.mean())
        errors.append(of_chain.std() / math.sqrt(chains))
    extrapolated = (4 * means[1] - means[0]) / 3
    error = math.hypot(4 * errors[1], errors[0]) / 3
    formula = og.stationary_squared_distance if centred else og.stationary_squared_gap
    expected = formula(1, n)
    assert formula(widths, n) == pytest.approx(expected / np.array(widths), rel=1e-14)
    assert error < 0.01 * expected
    assert extrapolated == pytest.approx(expected, abs=SIGMAS * error, rel=0)


def test_stationary_gap_closes_the_recursion():
    """A stationary V² is its contraction by (n/(n+2))² and the variance (1 − 1/n)/d of a layer."""
    for n in (1, 2, 7):
        square = og.stationary_squared_gap(1000, n)
        added = og.one_step_variance(np.ones(n), 1000)
        assert square == pytest.approx((n / (n + 2)) ** 2 * square + added, abs=1e-17, rel=1e-12)
        centred = og.stationary_squared_distance(1000, n + 1)
        assert centred == pytest.approx((n + 1) ** 2 * square, rel=1e-14)


# --- arguments ------------------------------------------------------------------------------


def test_extremes_are_finite_or_infinite_but_never_nan():
    assert og.lemma_6([]).shape == (0,)
    assert og.theorem_1(0, 1, 1, 5e-324) == math.inf
    assert og.corollary_3(0, 1, 10**6, 1e-305) == math.inf
    assert og.theorem_1(2**53, 2**53, 1, 1.0) > 0
    assert og.expected_shares([1e-323, 5e-324]).sum() == pytest.approx(1)
    assert og.expected_shares([1e308, 1e308]).sum() == pytest.approx(1)
    # A share below the smallest that counts, and a negative rounding error as from eigvalsh.
    np.testing.assert_allclose(og.expected_shares([1.0, 1e-280, -1e-14]), [1, 0, 0], rtol=1e-13)
    assert og.shortfall(np.float32([1.0, 1.0, 0.0])) == pytest.approx(1 / 3)
    assert og.shortfall(np.full(49, 1 / 49)) == pytest.approx(0, abs=1e-16)


@pytest.mark.parametrize(
    "stack",
    [
        [[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]],  # a low rank needs more nodes
        [[1.0, 1.0, 1.0, 1e-6], [1.0, 1.0, 1.0, 1.0]],  # and so does a small share
        [[5.0, 1e-9, 3.0, 0.5], [0.0, 2.0, 0.0, 1e-12], [1.0, 1e-100, 0.0, 0.0]],
    ],
    ids=["ranks", "sizes", "both"],
)
def test_a_stack_of_spectra_equals_its_rows(stack):
    """One grid serves all rows, so it must suit the row that needs most."""
    for function in (
        og.expected_shares,
        og.shortfall,
        og.wasserstein_squared,
        lambda spectrum: og.one_step_variance(spectrum, 10),
        lambda spectrum: og.expected_squared_gap(spectrum, 10),
    ):
        rows = [function(row) for row in stack]
        # The stated accuracy of `expected_shares`, the least accurate one.
        np.testing.assert_allclose(function(stack), rows, rtol=1e-13, atol=1e-15)
    np.testing.assert_allclose(og.expected_shares(stack).sum(axis=-1), 1.0, rtol=1e-13)
