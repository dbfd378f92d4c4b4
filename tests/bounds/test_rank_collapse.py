"""`bnmc.bounds.rank_collapse`: formulas written out, one layer in exact expectation, and chains.

The expectations over one layer are sums over all Rademacher matrices, or quadratures. Statistical
tests have fixed seeds. Their margins are 5.5 standard errors per number, that is 4e-8 by the normal
law, with at most 20 numbers per test. Other tests state their own false alarm.
"""

import itertools
import math
from functools import partial

import numpy as np
import pytest
from numpy_network import standardised
from oracle import FALSE_ALARM
from scipy import special

import bnmc
from bnmc import gram as gm
from bnmc.bounds import rank_collapse as rc
from bnmc.errors import ArgumentError

SIGMAS = 5.5
ROOT_3 = math.sqrt(3)

# BN: rows of mean square 1.
normalised = partial(standardised, centred=False)


def second_moment(H):
    return H @ np.swapaxes(H, -1, -2) / H.shape[-1]


def random_M(seed, d, batch=None):
    H = np.random.default_rng(seed).standard_normal((d, batch or d))
    return second_moment(normalised(H))


def circulant_M(half):
    """A circulant M: rows of equal norm, unit diagonal, given eigenvalues up to a factor."""
    spectrum = np.array([*half, *half[:0:-1]], dtype=float)
    spectrum *= len(spectrum) / spectrum.sum()
    first = np.fft.fft(spectrum).real / len(spectrum)
    shifts = np.arange(len(spectrum))
    return first[(shifts[:, None] - shifts) % len(spectrum)], spectrum


def traces(M):
    """‖M‖_F², Tr M³ and Tr diag(M²)², in loops over the definition."""
    squared = M @ M
    return np.trace(squared), np.trace(squared @ M), sum(squared[i, i] ** 2 for i in range(len(M)))


# --- Lemma 1 --------------------------------------------------------------------------------


def test_lemma_1_at_the_ends_of_float64():
    """Any scale has the same bound, without a warning, if the trace is beyond float64, too."""
    for scale in (5e-324, 1e308, 1.7e308):
        assert rc.lemma_1(scale * np.eye(3)) == 3.0
        with pytest.raises(ArgumentError, match="trace 3, its size"):
            rc.lemma_1(scale * np.eye(3), tau=0.5)


@pytest.mark.parametrize(("d", "batch"), [(5, 5), (4, 9), (9, 4), (6, 1), (1, 3)])
def test_lemma_1_bounds_the_soft_rank_of_any_normalised_matrix(d, batch):
    generator = np.random.default_rng(d * batch)
    for scale in (1.0, 1e-2, 1e-6):  # from generic to nearly collinear rows
        H = normalised(1 + scale * generator.standard_normal((50, d, batch)))
        M = second_moment(H)
        eigenvalues = np.linalg.svd(H, compute_uv=False) ** 2 / batch
        r = np.trace(M, axis1=1, axis2=2) ** 2 / np.square(M).sum(axis=(1, 2))
        np.testing.assert_allclose(rc.lemma_1(M), r, rtol=1e-12)
        np.testing.assert_allclose(rc.lemma_1(gm.cross_gram(H, H)), r, rtol=1e-12)
        for tau in (1e-9, 0.1, 0.5, 0.9, 1.0):
            # Rounding may decrease an eigenvalue that equals τ, as for rank one at τ = 1.
            soft_rank = (eigenvalues >= tau * (1 - 1e-12)).sum(axis=-1)
            bound = rc.lemma_1(M, tau)
            np.testing.assert_allclose(bound, (1 - tau) ** 2 * r, rtol=1e-12)
            assert (bound <= soft_rank).all()
    assert rc.lemma_1(M[:, None], [0.0, 0.5, 1.0]).shape == (50, 3)


def test_lemma_1_of_any_matrix_bounds_its_rank():
    generator = np.random.default_rng(0)
    for rank in (1, 2, 4):
        H = generator.standard_normal((5, rank)) @ generator.standard_normal((rank, 7))
        assert 1 - 1e-12 <= rc.lemma_1(H @ H.T) <= rank * (1 + 1e-12)
    assert rc.lemma_1(np.diag([3.0, 3.0, 3.0, 0.0])) == pytest.approx(3, rel=1e-14)


@pytest.mark.parametrize("gamma", [0.1, 1.0, math.inf])
def test_lemma_1_along_the_chain(gamma):
    d, batch = 8, 6
    run = bnmc.simulate(bnmc.Chain.bn_residual(d, batch, gamma=gamma), 200, chains=5, rng=1)
    for tau in (0.05, 0.3, 0.7):
        assert (rc.lemma_1(run["gram"], tau) <= gm.soft_rank(run["gram"], tau, width=d)).all()


# --- Lemma 3 --------------------------------------------------------------------------------


def test_lemma_3_gaussian_weights_without_skip():
    """For two samples, λ₂/λ₁ of G decreases like the ratio of the Bartlett pivots.

    With the Schur complement S of G_22, λ₂/λ₁ <= S/G_11. log S/G_11 is a sum over layers of
    independent log χ²_{d−1}/χ²_d. Chernoff's bound gives a level that it exceeds in any chain with
    probability 1e-6. exp(−40) is far below the rounding error of r = 1 + 2 λ₂/λ₁.
    """
    d, depth, chains = 6, 1000, 50
    start = np.eye(d)[:, :2]
    run = bnmc.simulate(
        bnmc.Chain(d, 2, "linear", norm="none"), depth, chains=chains, rng=2, initial=start,
        observables="scaled_gram", every=depth,
    )  # fmt: skip
    assert gm.orthogonality_gap(run["scaled_gram"][:, 0]) == pytest.approx(0, abs=1e-15)

    s = np.linspace(0.01, 1.5, 150)
    log_moment = np.log(special.poch((d - 1) / 2, s) * special.poch(d / 2, -s))
    highest = ((depth * log_moment + math.log(chains / FALSE_ALARM)) / s).min()
    assert highest < -40
    assert gm.rank_bound(run["scaled_gram"][:, -1]) == pytest.approx(1, abs=1e-13)


@pytest.mark.parametrize("weights", ["gaussian", "uniform"])
@pytest.mark.parametrize("gamma", [0.3, 2.0, math.inf])
def test_lemma_3_with_and_without_skip(weights, gamma):
    """log(r − 1) falls below log 1e-9 in all chains. With normalization, r converges to about 2.

    At layer 100 its mean over 40 chains was measured as −12.8 to −22.8, its standard deviation as
    5.5 to 8.1.  Both grow with depth as for a sum of independent steps, so that at layer 2000 the
    threshold is 8.8 standard deviations above the mean or more: 1e-18 a chain.
    """
    d, chains = 6, 20
    skip, gain = (0.0, 1.0) if gamma == math.inf else (1.0, gamma * math.sqrt(d))
    scale = math.hypot(skip, gain)  # so that the vanilla chain neither over- nor underflows
    options = {"weights": weights, "skip": skip / scale, "gain": gain / scale}
    vanilla, normed = (
        bnmc.simulate(
            bnmc.Chain(d, d, "linear", norm=norm, **options), depth, chains=chains, rng=4,
            observables="rank_bound",
        )["rank_bound"]
        for norm, depth in (("none", 2000), ("batch-uncentred", 400))
    )  # fmt: skip
    assert (vanilla[:, 0] > 1.01).all()
    assert (vanilla[:, -1] <= 1 + 1e-9).all()
    assert normed[:, 200:].mean() > 1.5


# --- Lemmas 4, 5 and 6 ----------------------------------------------------------------------


def test_lemma_4_signs_pass_through_a_layer():
    """S BN(H + γWH) is BN of SH with the weights SWS, which have the law of W."""
    generator = np.random.default_rng(5)
    H, W = normalised(generator.standard_normal((6, 4))), generator.standard_normal((6, 6))
    S = np.diag(generator.choice([-1.0, 1.0], 6))
    for gamma in (0.01, 1.0, 100.0):
        left = S @ normalised(H + gamma * W @ H)
        right = normalised(S @ H + gamma * (S @ W @ S) @ (S @ H))
        np.testing.assert_allclose(left, right, rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    "draw",
    [
        lambda generator: generator.standard_normal((20_000, 3, 3)),
        lambda generator: generator.uniform(-ROOT_3, ROOT_3, (20_000, 3, 3)),
    ],
    ids=["gaussian", "uniform"],
)
def test_lemma_4_signs_are_forgotten(draw):
    """From nearly equal rows, means of functions that are odd in a row vanish (Hoeffding).

    At γ = 1 they do so within five layers.
    """
    d, chains, generator = 3, 20_000, np.random.default_rng(6)
    H = normalised(1 + 0.1 * generator.standard_normal((chains, d, d)))
    assert second_moment(H)[:, 0, 1].mean() > 0.9
    for _ in range(30):
        H = normalised(H + draw(generator) @ H)
    M = second_moment(H)
    odd = [M[:, 0, 1], M[:, 0, 2], M[:, 1, 2], M[:, 0, 1] * M[:, 0, 2] ** 2, M[:, 0, 1] ** 3]
    threshold = math.sqrt(2 * math.log(2 * len(odd) / FALSE_ALARM) / chains)
    assert threshold < 0.05
    assert (np.abs(np.mean(odd, axis=1)) <= threshold).all()
    # Means of functions that are even in every row do not vanish.
    assert np.square(M[:, 0, 1]).mean() > 0.3


@pytest.mark.parametrize(("bound", "width"), [(1.0, 1), (ROOT_3, 8), (3.0, 100)])
def test_lemma_5_gamma_written_out(bound, width):
    assert rc.lemma_5_gamma(bound, width) == pytest.approx(1 / (8 * bound * width), rel=1e-15)


def test_lemma_5_the_rank_never_changes():
    """I + γW has no singular value below 1 − γBd: its rows are dominated by the diagonal.

    Along the chain the smallest singular value of H is told from rounding, 1e-16, at all layers.
    """
    d, chains, generator = 5, 50, np.random.default_rng(7)
    for gamma in (float(rc.lemma_5_gamma(ROOT_3, d)), 0.9 / (ROOT_3 * d)):
        H = normalised(1 + 0.1 * generator.standard_normal((chains, d, d)))
        for _ in range(300):
            A = np.eye(d) + gamma * generator.uniform(-ROOT_3, ROOT_3, (chains, d, d))
            assert np.linalg.svd(A, compute_uv=False).min() >= 1 - gamma * ROOT_3 * d
            H = normalised(A @ H)
            sigma = np.linalg.svd(H, compute_uv=False)
            assert (sigma[:, -1] > 1e-13 * sigma[:, 0]).all()  # rank d, so at least 2
            assert rc.corollary_15(d, 0.9) < d


@pytest.mark.parametrize("share", [1 / 8, 0.99])
def test_lemma_6_rank_one_stays_as_it_is(share):
    """γBd = 1/8 as in Lemma 5, and close to 1: M is a matrix of signs, and H does not change.

    One layer says it for all.  (What rounding adds grows from layer to layer: the state is a fixed
    point, not a stable one.)  Near γBd = 1 up to 99 % of a row cancel, 100 roundings of them stay.
    """
    d, batch, chains, generator = 7, 4, 5000, np.random.default_rng(8)
    signs = generator.choice([-1.0, 1.0], (chains, d, 1))
    start = normalised(signs * generator.standard_normal((chains, 1, batch)))
    for draw, bound in (
        (lambda shape: generator.uniform(-ROOT_3, ROOT_3, shape), ROOT_3),
        (lambda shape: generator.choice([-1.0, 1.0], shape), 1.0),
    ):
        gamma = 8 * share * rc.lemma_5_gamma(bound, d)
        H = normalised(start + gamma * draw((chains, d, d)) @ start)
        np.testing.assert_allclose(H, start, rtol=1e-12)
        np.testing.assert_allclose(second_moment(H), signs * signs.swapaxes(1, 2), rtol=1e-12)


def test_lemma_6_needs_gamma_below_one_over_bound_times_width():
    """Just above it weights exist that flip a row."""
    d = 7
    H = np.ones((d, 4))
    W = np.ones((d, d))
    W[0] = -1
    for share, flips in ((0.999, False), (1.001, True)):
        after = normalised(H + share / d * W @ H)
        assert (after[0, 0] < 0) == flips


# --- Lemma 7 and Proposition 8 --------------------------------------------------------------


def rule_of(law, d):
    """A quadrature for matrices of independent entries; for signs, the sum over all of them."""
    nodes, weights = {
        "rademacher": ((-1.0, 1.0), np.ones(2)),
        "uniform": np.polynomial.legendre.leggauss(8) * np.array([[ROOT_3], [1.0]]),
        "gaussian": np.polynomial.hermite_e.hermegauss(12),
    }[law]
    W = np.array(list(itertools.product(nodes, repeat=d * d))).reshape(-1, d, d)
    of_entries = list(itertools.product(weights / np.sum(weights), repeat=d * d))
    return W, np.prod(of_entries, axis=1)


def mean_change(M, gamma, W, weights):
    """E‖M₊‖² − ‖M‖², exactly: M₊ is the correlation matrix of (I + γW) M (I + γW)ᵀ."""
    A = np.eye(len(M)) + gamma * W
    after = A @ M @ A.swapaxes(1, 2)
    diagonal = np.diagonal(after, axis1=1, axis2=2)
    squares = np.square(after) / diagonal[:, :, None] / diagonal[:, None, :]
    return (weights * squares.sum(axis=(1, 2))).sum() - np.square(M).sum()


@pytest.mark.parametrize(
    ("law", "d", "batch"),
    [("rademacher", 3, 3), ("rademacher", 3, 2), ("uniform", 2, 3), ("gaussian", 2, 3)],
)
def test_lemma_7_against_the_exact_mean_of_a_layer(law, d, batch):
    """The remainder is O(γ⁴): divided by γ⁴ it hardly changes if γ is halved.

    A wrong coefficient of γ² would multiply it by four, a term in γ³ by two.
    """
    W, weights = rule_of(law, d)
    for seed in range(3):
        M = random_M(seed, d, batch)
        gammas = np.array([0.04, 0.02, 0.01])
        exact = np.array([mean_change(M, gamma, W, weights) for gamma in gammas])
        remainders = (exact - rc.lemma_7(M, gammas)) / gammas**4
        assert abs(remainders[0]) < 1000
        np.testing.assert_allclose(remainders[1:], remainders[:-1], rtol=0.15)


@pytest.mark.parametrize("d", [1, 2, 6])
def test_lemma_7_written_out(d):
    M = random_M(9, d, 4)
    norm, cubic, diagonal = traces(M)
    expected = 0.3**2 * (2 * (d**2 - norm) - 8 * (cubic - diagonal))
    assert rc.lemma_7(M, 0.3) == pytest.approx(expected, rel=1e-12, abs=1e-13)


@pytest.mark.parametrize("half", [(3, 1, 0.2), (0, 1, 1, 0), (1, 0, 0, 0.5), (5, 0, 0)])
def test_proposition_8_is_lemma_7_for_rows_of_equal_norm(half):
    M, spectrum = circulant_M(half)
    assert np.diag(M) == pytest.approx(1, rel=1e-14)
    gammas = np.array([0.0, 0.1, 0.7])
    by_rows = rc.lemma_7(M, gammas)
    by_spectrum = rc.proposition_8(spectrum, gammas)
    np.testing.assert_allclose(by_spectrum, by_rows, rtol=1e-11, atol=1e-11)
    # As in the docstring, with the deviations from Σλ²/d.
    d, m = len(spectrum), np.square(spectrum).sum() / len(spectrum)
    expected = gammas**2 * (
        2 * (d**2 - np.square(spectrum).sum()) - 8 * (spectrum * (spectrum - m) ** 2).sum()
    )
    np.testing.assert_allclose(by_spectrum, expected, rtol=1e-11, atol=1e-11)


def test_proposition_8_is_a_lower_bound_for_other_rows():
    for seed in range(20):
        M = random_M(seed, 5, 3 + seed % 4)
        assert rc.proposition_8(gm.eigenvalues(M), 0.5) <= rc.lemma_7(M, 0.5) + 1e-12


# --- the stationary law: Lemmas 10 and 13, Theorem 14, Corollary 15 --------------------------


def test_lemma_10_holds_for_every_matrix():
    """Tr diag(M²)² <= Tr M³, with equality for equal non-zero eigenvalues within blocks."""
    generator = np.random.default_rng(10)
    for scale in (1e-3, 0.3, 10.0):
        for _ in range(50):
            d, batch = generator.integers(1, 9, 2)
            H = normalised(1 + scale * generator.standard_normal((d, batch)))
            _, cubic, diagonal = traces(second_moment(H))
            assert diagonal <= cubic * (1 + 1e-13)
    corners = 2 * np.pi * np.arange(3) / 3
    frame = normalised(np.array([np.cos(corners), np.sin(corners)]).T)  # eigenvalues 1.5, 1.5, 0
    blocks = np.zeros((5, 5))
    blocks[:3, :3], blocks[3:, 3:] = second_moment(frame), 1
    for M in (np.eye(4), np.ones((3, 3)), second_moment(frame), blocks):
        _, cubic, diagonal = traces(M)
        assert diagonal == pytest.approx(cubic, rel=1e-13)


SETTINGS = {"d=4, γ=.05": (4, 0.05, 16_000), "d=8, γ=.1": (8, 0.1, 6000)}
TAUS = np.array([0.0, 0.05, 0.2, 0.5, 0.8])


@pytest.fixture(scope="module", params=SETTINGS.values(), ids=SETTINGS)
def stationary(request):
    """Means over depth, from layer 10/γ² on, of 100 chains with uniform weights and N = d.

    ``(d, [‖M‖², Tr M³, Tr diag(M²)², r], soft ranks)``, (4, chains) and (chains, thresholds).
    """
    d, gamma, depth = request.param
    chains, generator = 100, np.random.default_rng(12)
    H = generator.standard_normal((chains, d, d))
    values, soft = [], []
    for layer in range(depth):
        H = normalised(H + gamma * generator.uniform(-ROOT_3, ROOT_3, (chains, d, d)) @ H)
        if layer > 10 / gamma**2 and layer % 40 == 0:
            M = second_moment(H)
            squared = M @ M
            norm = np.square(M).sum(axis=(1, 2))
            diagonal = np.diagonal(squared, axis1=1, axis2=2)
            cubic = (squared * M).sum(axis=(1, 2))
            values.append([norm, cubic, np.square(diagonal).sum(axis=1), d**2 / norm])
            eigenvalues = np.linalg.eigvalsh(M)
            # τ = 0 counts the eigenvalues that float64 distinguishes from zero.
            thresholds = np.maximum(TAUS, 1e-12)
            soft.append((eigenvalues[..., None] >= thresholds).sum(axis=1))
    return d, np.mean(values, axis=0), np.mean(soft, axis=0)


def regularity(values):
    return values[2].mean() / values[1].mean()


def standard_error(values):
    return values.std() / math.sqrt(len(values))


def test_lemma_10_for_the_invariant_law(stationary):
    """α < 1, by 5.5 standard errors of the difference of its two traces."""
    values = stationary[1]
    difference = values[1] - values[2]
    assert difference.mean() > SIGMAS * standard_error(difference)
    assert regularity(values) < 1


def test_lemma_13_for_the_invariant_law(stationary):
    """And its first step, E Tr M³ <= d²/(4(1 − α)); the slack is for the error of the means."""
    d, values, _ = stationary
    bound = rc.lemma_13(d, regularity(values))
    # The bound has (1 − α)^(−½), and 1 − α a relative error of no more than the sum of these two.
    difference = values[1] - values[2]
    relative = standard_error(difference) / difference.mean()
    relative += standard_error(values[1]) / values[1].mean()
    slack = SIGMAS * (standard_error(values[0]) + bound * relative)
    assert slack < 0.15 * bound
    assert values[0].mean() <= bound + slack
    cubic = 4 * difference.mean()
    assert cubic <= d**2 + SIGMAS * 4 * standard_error(difference)


def test_theorem_14_for_the_invariant_law(stationary):
    """For the mean over depth of every chain, and for r in place of the soft rank."""
    d, values, soft = stationary
    alpha = regularity(values)
    for k, tau in enumerate(TAUS):
        bound = rc.theorem_14(d, alpha, tau)
        middle = (1 - tau) ** 2 * values[3]
        # The two differ by eight standard deviations of a chain's mean.
        assert bound + 8 * middle.std() <= middle.mean()
        assert (bound <= middle).all()
        assert (middle <= soft[:, k]).all()


def test_corollary_15_assumes_what_does_not_hold():
    """From nearly collinear rows the soft rank increases, so it is not monotone."""
    d, chains, generator = 8, 20, np.random.default_rng(13)
    H = normalised(1 + 1e-3 * generator.standard_normal((chains, d, d)))
    first = gm.soft_rank(gm.cross_gram(H, H), 0.1, width=d)
    for _ in range(2000):
        H = normalised(H + 0.1 * generator.uniform(-ROOT_3, ROOT_3, (chains, d, d)) @ H)
    assert (first == 1).all()
    assert gm.soft_rank(gm.cross_gram(H, H), 0.1, width=d).mean() > 2


@pytest.mark.parametrize("width", [1, 16, 1000])
@pytest.mark.parametrize("alpha", [0.0, 0.6, 0.99])
def test_bounds_of_the_invariant_law_written_out(width, alpha):
    bound = width * math.sqrt(width) / (2 * math.sqrt(1 - alpha))
    assert rc.lemma_13(width, alpha) == pytest.approx(bound, rel=1e-14)
    for tau in (0.0, 0.3, 1.0):
        expected = (1 - tau) ** 2 * 2 * math.sqrt(width * (1 - alpha))
        assert rc.theorem_14(width, alpha, tau) == pytest.approx(expected, rel=1e-14)
        assert rc.corollary_15(width, alpha, tau) == rc.theorem_14(width, alpha, tau)
        # Jensen: d²/E‖M‖².
        assert expected == pytest.approx((1 - tau) ** 2 * width**2 / bound, rel=1e-14)
    assert rc.corollary_15(width, alpha) == rc.theorem_14(width, alpha, 0.0)


# --- arguments ------------------------------------------------------------------------------


def test_arguments_broadcast():
    alpha, width = np.array([0.1, 0.5])[:, None], np.array([4, 9, 16])
    assert rc.lemma_13(width, alpha).shape == (2, 3)
    assert rc.theorem_14(width, alpha, np.zeros((5, 1, 1))).shape == (5, 2, 3)
    assert rc.corollary_15(width, alpha).shape == (2, 3)
    assert rc.lemma_5_gamma(alpha + 1, width).shape == (2, 3)
    stack = np.stack([random_M(seed, 4) for seed in range(3)])
    assert rc.lemma_7(stack[:, None], [0.1, 0.2]).shape == (3, 2)
    changes = rc.proposition_8(gm.eigenvalues(stack)[:, None], [0.1, 0.2])
    assert changes.shape == (3, 2)
    assert changes[2, 1] == pytest.approx(
        rc.proposition_8(gm.eigenvalues(stack[2]), 0.2), rel=1e-13
    )
    assert rc.lemma_7(np.float32(stack), 0.1) == pytest.approx(rc.lemma_7(stack, 0.1), rel=1e-4)
