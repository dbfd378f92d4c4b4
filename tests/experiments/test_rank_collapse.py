"""The figures of *… rank collapse*: their shape against theory and plain NumPy networks.

Intervals of 95 % are widened to `CERTAIN`, where all comparisons of a test together fail with
probability at most 1e-6 if the theory holds.  Seeds are fixed.
"""

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
from oracle import simulate as plain_networks
from scipy import special

import bnmc
from bnmc.errors import ArgumentTypeError
from bnmc.experiments import rank_collapse
from bnmc.experiments._common import curve
from bnmc.experiments.rank_collapse import (
    centred_or_not,
    collapse,
    over_width,
    rank_over_depth,
    spectrum_over_depth,
)
from bnmc.experiments.rank_collapse.centred_or_not import _Centring
from bnmc.experiments.rank_collapse.collapse import _Collapse
from bnmc.experiments.rank_collapse.over_width import _Gamma
from bnmc.experiments.rank_collapse.rank_over_depth import _Depths
from bnmc.experiments.rank_collapse.spectrum_over_depth import _Spectrum

#: Probability of a false alarm of one comparison, two-sided; no test makes more than 50.
CERTAIN = 1e-6 / 50

#: Where layer 512 is, the last with batch normalization, among powers of 2.
LAST = 9

ENSEMBLES = _Gamma(math.inf, (8, 16, 32), 32), _Gamma(1.0, (8, 16), 16, 0.03)


def errors(found, count):
    """Standard errors of (..., 3) intervals of `count` networks, and how many of them to allow."""
    quantiles = special.stdtrit(count - 1, [0.975, 1 - CERTAIN / 2])
    return (found[..., 2] - found[..., 1]) / 2 / quantiles[0], float(quantiles[1])


def reach(found):
    """What to allow for an estimate."""
    return special.stdtrit(found.n - 1, 1 - CERTAIN / 2) * found.stderr


def rank_bound(G):
    return np.trace(G, axis1=-2, axis2=-1) ** 2 / np.square(G).sum(axis=(-2, -1))


@pytest.fixture(scope="module")
def fig_2():
    return rank_over_depth._fig_2(_Depths(16, 2048, 24), False, 1, False, None)


@pytest.fixture(scope="module")
def fig_3a():
    return over_width._fig_3a(ENSEMBLES, False, 2, False, None)


@pytest.fixture(scope="module")
def fig_8():
    return over_width._fig_8(ENSEMBLES, False, 2, False, None)


@pytest.fixture(scope="module")
def fig_9():
    return over_width._fig_9(ENSEMBLES, False, 2, False, None)


@pytest.fixture(scope="module")
def fig_3b():
    return spectrum_over_depth._fig_3b(_Spectrum(20, 150, 64, shown=4), False, 3, False, None)


@pytest.fixture(scope="module")
def lemma_3():
    return collapse._lemma_3(_Collapse(16, 0.25, 256, 96, 200), False, 4, False, None)


@pytest.fixture(scope="module")
def centring():
    return centred_or_not._centring(_Centring(64, 8, 160, 100), False, 5, False, None)


@pytest.fixture(scope="module")
def plain():
    """M of plain networks without skip connection, width and batch 8, settled: (networks, …)."""
    chain = bnmc.Chain.bn_residual(8, 8, gamma=math.inf)
    return plain_networks(chain, 160, 400, np.random.default_rng(21))[:, 80:]


class TestFig2:
    def test_batch_norm_keeps_the_rank_of_plain_networks(self, fig_2):
        for first, activation in enumerate(("linear", "relu")):
            for second, weights in enumerate(("gaussian", "uniform")):
                chain = bnmc.Chain(16, 16, activation, weights=weights)
                rng = np.random.default_rng([22, first, second])
                expected = rank_bound(plain_networks(chain, 140, 60, rng)[:, 60:]).mean(axis=1)
                found = curve(fig_2.data, "rank_bound")[first, 0, second, LAST]
                error, allowed = errors(found, 24)
                spread = math.hypot(error, expected.std(ddof=1) / math.sqrt(60))
                assert abs(found[0] - expected.mean()) <= allowed * spread
                assert spread < 0.1

    def test_vanilla_networks_collapse_to_rank_one(self, fig_2):
        # From layer 1088 on log(s2/s1) has a mean below −37 and a standard deviation of .25 √l for
        # linear networks, 2.8 of them below the −13.8 of rank 1 at 1e-12.  So each is there with
        # probability .997, and that 12 of 24 are not has one of 1e-18; relu networks are sooner.
        assert np.all(fig_2.data.numerical_rank.values[:, 1, :, -1] < 1.5)
        assert np.all(fig_2.data.rank_bound.values[:, 1, :, -1] < 1.5)

    def test_vanilla_networks_lose_directions_at_the_pace_of_their_exponents(self, fig_2):
        layers = fig_2.data.layer.values
        # Of products of Gaussian matrices: squares of the R of their QR factors are χ² variables.
        exponents = special.digamma((16 - np.arange(16)) / 2) / 2
        theory = [(2 * k * (exponents[0] - exponents) <= 12 * math.log(10)).sum() for k in layers]
        np.testing.assert_array_equal(fig_2.data.vanilla_theory, theory)
        found = fig_2.data.numerical_rank.values[0, 1, 0]
        middle = slice(4, 9)  # layers 16 to 256, where 2 to 12 directions are left
        assert np.all(np.abs(found[middle] / np.array(theory)[middle] - 1) < 0.5)

    def test_the_bound_of_theorem_14_holds_with_the_measured_alpha(self, fig_2):
        lower = 2 * math.sqrt(1 - fig_2.data.attrs["alpha"]) * 4
        assert float(fig_2.data.theorem_14) == pytest.approx(lower, rel=1e-12)
        found = curve(fig_2.data, "rank_bound")[0, 0, :, LAST]
        error, allowed = errors(found, 24)
        assert np.all(found[:, 0] - allowed * error > lower)

    def test_the_rank_starts_full_and_falls_but_for_relu(self, fig_2):
        ranks = fig_2.data.numerical_rank.values
        assert np.all(ranks[0, 0, :, 0] == 15)  # centring takes one
        assert np.all(ranks[0, 0, :, LAST] < 12)
        assert np.all(ranks[1, 0, :, : LAST + 1] > 15)


class TestFig3a:
    def test_r_and_the_soft_rank_are_those_of_plain_networks(self, fig_3a, plain):
        soft = (np.linalg.eigvalsh(plain) >= 0.5).sum(axis=-1)
        for column, values in ((2, rank_bound(plain)), (3, soft)):
            expected = values.mean(axis=1)
            found = fig_3a.table.rows[0][column]
            error = math.hypot(found.stderr, expected.std(ddof=1) / 20)
            allowed = special.stdtrit(found.n - 1, 1 - CERTAIN / 2)
            assert abs(found.value - expected.mean()) <= allowed * error

    def test_r_grows_about_like_the_root_of_the_width(self, fig_3a):
        # Local slopes of .563 and .551 were measured apart, from widths 8, 16 and 32, by another
        # program (r = 2.24, 3.31, 4.85, to a percent).
        slope = float(fig_3a.data.rank_bound_slope[0])
        stderr = (float(fig_3a.data.rank_bound_slope_high[0]) - slope) / special.ndtri(0.975)
        reference = math.log(4.85 / 2.24) / math.log(4)
        allowed = special.stdtrit(31, 1 - CERTAIN / 2) * stderr
        assert abs(slope - reference) <= allowed + 2 * 0.01 / math.log(4)
        for row, known in zip(fig_3a.table.rows[:3], (2.24, 3.31, 4.85), strict=True):
            assert abs(row[2].value - known) <= reach(row[2]) + 0.01 * known

    def test_points_are_beside_their_width_only_where_others_are(self, fig_3a):
        left = fig_3a.plot().axes[0]
        first, second = (found.lines[0].get_xdata() for found in left.containers)
        np.testing.assert_allclose(first, [8 / 1.04, 16 / 1.04, 32])
        np.testing.assert_allclose(second, [8, 16])

    def test_r_lies_above_the_bound_and_below_its_neighbours(self, fig_3a):
        for _, _, r, _, lower in fig_3a.table.rows:
            assert r.value - reach(r) > lower
        np.testing.assert_allclose(
            fig_3a.data.theorem_14.values[0], [row[-1] for row in fig_3a.table.rows[:3]], rtol=1e-12
        )


class TestFigs8And9:
    def test_alpha_is_that_of_plain_networks(self, fig_8):
        generator = np.random.default_rng(23)
        x = generator.standard_normal((400, 8, 8))
        squares, cubes = np.zeros(400), np.zeros(400)
        for layer in range(160):
            x = generator.standard_normal((400, 8, 8)) @ x
            x *= math.sqrt(8) / np.linalg.norm(x, axis=-1, keepdims=True)
            if layer >= 80:
                M = x @ x.swapaxes(1, 2) / 8
                M2 = M @ M
                squares += np.square(np.diagonal(M2, axis1=1, axis2=2)).sum(axis=1)
                cubes += (M2 * M).sum(axis=(1, 2))
        alpha = squares.mean() / cubes.mean()
        error = (squares - alpha * cubes).std(ddof=1) / 20 / cubes.mean()
        found = fig_8.table.rows[0][2]
        allowed = special.stdtrit(found.n - 1, 1 - CERTAIN / 2)
        assert abs(found.value - alpha) <= allowed * math.hypot(error, found.stderr)

    def test_alpha_falls_with_the_width_and_is_below_the_papers_number(self, fig_8):
        rows = [row[2] for row in fig_8.table.rows[:3]]
        for wide, narrow in zip(rows[1:], rows[:-1], strict=True):
            assert narrow.value - wide.value > math.hypot(reach(narrow), reach(wide))
        assert all(found.value + reach(found) < 0.9 for found in rows[1:])
        # .911, .884, .862 were measured apart.
        for found, known in zip(rows, (0.911, 0.884, 0.862), strict=True):
            assert abs(found.value - known) <= reach(found) + 0.001

    def test_the_norm_grows_a_little_slower_than_the_bound_of_lemma_13(self, fig_9):
        for (_, _, norm, scaled, bound), known in zip(
            fig_9.table.rows[:3], (1.30, 1.23, 1.175), strict=True
        ):
            assert norm.value == pytest.approx(scaled.value * norm_unit(norm, scaled), rel=1e-12)
            assert abs(scaled.value - known) <= reach(scaled) + 0.01 * known
            assert scaled.value + reach(scaled) < bound
        alpha = fig_9.data.alpha.values
        lemma = fig_9.data.width.values**1.5 / (2 * np.sqrt(1 - alpha))
        np.testing.assert_allclose(fig_9.data.lemma_13, lemma, rtol=1e-12)
        slope = float(fig_9.data.slope[0])
        stderr = (float(fig_9.data.slope_high[0]) - slope) / special.ndtri(0.975)
        reference = 1.5 + math.log(1.175 / 1.30) / math.log(4)
        allowed = special.stdtrit(31, 1 - CERTAIN / 2) * stderr
        assert abs(slope - reference) <= allowed + 2 * 0.01 / math.log(4)

    def test_the_norm_is_that_of_plain_networks(self, fig_9, plain):
        expected = np.square(plain).sum(axis=(-2, -1)).mean(axis=1)
        found = fig_9.table.rows[0][2]
        error = math.hypot(found.stderr, expected.std(ddof=1) / 20)
        allowed = special.stdtrit(found.n - 1, 1 - CERTAIN / 2)
        assert abs(found.value - expected.mean()) <= allowed * error

    def test_figures_of_one_seed_share_their_networks(self, fig_3a, fig_8, fig_9):
        np.testing.assert_array_equal(fig_8.data.alpha, fig_9.data.alpha)
        assert fig_3a.data.attrs["layers"] == fig_9.data.attrs["layers"]


def norm_unit(norm, scaled):
    return round((norm.value / scaled.value) ** (2 / 3)) ** 1.5


class TestFig3b:
    def test_the_start_is_nearly_of_rank_one(self, fig_3b):
        found = fig_3b.data.eigenvalue.values[0]
        assert found[0] == pytest.approx(20, rel=1e-9)
        # Noise of 5e-7 of the rest has singular values up to 2 √20 times that, over √20.
        assert np.all(found[1:] < (2 * 5e-7 * 1.5) ** 2 * 20)
        assert fig_3b.data.rank_bound.values[0] == pytest.approx(1, abs=1e-9)

    def test_small_eigenvalues_rise_while_the_largest_falls(self, fig_3b):
        found = fig_3b.data.eigenvalue.values
        assert found[0, 1] < 1e-10 < 1 < found[10, 1]
        assert found[10, 0] < found[0, 0]

    def test_the_start_is_forgotten(self, fig_3b):
        last = np.log(curve(fig_3b.data, "eigenvalue")[-1])
        settled = np.log(curve(fig_3b.data, "settled"))
        (error, allowed), (other, _) = errors(last, 64), errors(settled, 64)
        assert np.all(np.abs(last[:, 0] - settled[:, 0]) <= allowed * np.hypot(error, other))


class TestLemma3:
    def test_angles_follow_the_exact_law_at_every_layer(self, lemma_3):
        layers = lemma_3.data.angle_layer.values
        found = curve(lemma_3.data, "log_squared_sine")
        plain_pace = special.digamma(15 / 2) - special.digamma(16 / 2)
        # With a residual branch: volumes of one and two columns of I + γW, by simulation.
        rng = np.random.default_rng(24)
        columns = 0.25 * rng.standard_normal((200_000, 16, 2)) + np.eye(16, 2)
        gram = columns.swapaxes(1, 2) @ columns
        logs = np.log(np.linalg.det(gram)) - np.log(gram[:, 0, 0]) - np.log(gram[:, 1, 1])
        for case, pace, uncertain in (
            (0, plain_pace, 0.0),
            (2, logs.mean(), logs.std(ddof=1) / math.sqrt(len(logs))),
        ):
            error, allowed = errors(found[case], 200)
            away = np.abs(found[case, :, 0] - pace * layers)
            assert np.all(away <= allowed * np.hypot(error, uncertain * layers) + 1e-12)

    def test_the_theory_is_drawn(self, lemma_3):
        pace = special.digamma(15 / 2) - special.digamma(16 / 2)
        assert float(lemma_3.data.pace_in_theory[0]) == pytest.approx(pace, rel=1e-10)

    def test_a_finding_says_the_change_with_its_sign(self, lemma_3):
        for finding, row in zip(lemma_3.findings, lemma_3.table.rows, strict=True):
            assert row[1].value < 0
            assert f"changes by {row[1].value:.3g} [" in finding

    def test_every_network_collapses_the_residual_ones_later(self, lemma_3):
        excess = curve(lemma_3.data, "excess_rank")
        assert np.all(excess[:, 0, 0] == pytest.approx(15))
        assert np.all(excess[:, -1, 2] < 1e-4)
        logs = np.log(excess[:, -1])
        error, _ = errors(logs, 200)
        allowed = special.stdtrit(199, 1 - 1e-6 / 2)  # of two comparisons
        for plain_case, residual in ((0, 2), (1, 3)):
            later = logs[residual, 0] - logs[plain_case, 0]
            assert later > allowed * math.hypot(error[residual], error[plain_case])


class TestCentring:
    def test_centring_a_linear_network_takes_one_sample(self, centring):
        (_, centred, *_), (_, uncentred, *_), (_, less, *_), *_ = centring.table.rows
        allowed = special.stdtrit(99, 1 - CERTAIN / 2)
        spread = math.hypot(centred.stderr, less.stderr)
        assert abs(centred.value - less.value) <= allowed * spread
        assert uncentred.value - centred.value > allowed * math.hypot(
            centred.stderr, uncentred.stderr
        )

    def test_linear_ranks_have_their_closed_form(self, centring):
        for (_, found, theory, *_), m in zip(centring.table.rows[:3], (7, 8, 7), strict=True):
            closed = 1 / (1 / m + (m - 1) * (m + 2) ** 2 / (4 * m * (m + 1) * 64))
            assert theory == pytest.approx(closed, rel=1e-12)
            # The next term of E V² is some 6/d of it, and r is convex in it.
            gap = closed / m
            assert abs(found.value - closed) <= reach(found) + closed * (1 - gap) * 10 / 64

    def test_uncentred_rows_have_a_mean_of_no_more_than_any_direction(self, centring):
        share = centring.table.rows[1][3]
        assert abs(share.value - 1 / 8) <= reach(share)
        assert abs(centring.table.rows[0][3].value) < 1e-12

    def test_relu_networks_lose_rank_without_centring(self, centring):
        (_, centred, star, *_), (_, uncentred, other, *_) = centring.table.rows[3:]
        # c = J(−1/7) of the centred fixed point; of the uncentred one the root of c = J(c).
        x = -1 / 7
        c = (math.sqrt(1 - x * x) + (math.pi - math.acos(x)) * x) / math.pi
        assert star == pytest.approx(8 / (1 + 7 * c * c), rel=1e-9)
        assert uncentred.value + reach(uncentred) < centred.value - reach(centred)
        for found, limit in ((centred, star), (uncentred, other)):
            assert abs(found.value / limit - 1) <= 0.2  # terms of 1/d, d = 64


EVERY = ("fig_2", "fig_3a", "fig_3b", "fig_8", "fig_9", "lemma_3", "centring")
DRAWN = (
    "rank_bound", "rank_bound", "eigenvalue", "alpha", "squared_norm", "excess_rank", "rank_bound",
)  # fmt: skip


@pytest.mark.parametrize("name", EVERY)
def test_an_experiment_is_complete(name, request):
    found = request.getfixturevalue(name)
    assert found.name.startswith("rank-collapse-")
    json.dumps(found.to_dict(), allow_nan=False)
    assert len(set(found.table.columns)) == len(found.table.columns)
    for variable in found.data.variables.values():
        assert variable.attrs["long_name"]
    assert found.data.attrs["seed"].isdigit()
    assert all(sentence.endswith(".") for sentence in found.findings)


@pytest.mark.parametrize(("name", "variable"), list(zip(EVERY, DRAWN, strict=True)))
def test_a_picture_is_labelled_and_draws_the_data(name, variable, request):
    found = request.getfixturevalue(name)
    figure = found.plot()
    assert figure.get_suptitle() or figure.axes[0].get_title()
    for ax in figure.axes:
        assert ax.get_ylabel()
    assert any(ax.get_legend() is not None for ax in figure.axes)
    drawn = np.concatenate([
        np.ravel(line.get_ydata()).astype(float) for ax in figure.axes for line in ax.lines
    ])  # fmt: skip
    values = found.data[variable].values
    if name == "centring":
        values = values[:, :61]
    assert np.all(np.isin(values[np.isfinite(values)], drawn))


def test_the_same_seed_gives_the_same_data_on_any_number_of_threads():
    sizes = _Collapse(4, 0.5, 16, 8, 5)
    one, two = (collapse._lemma_3(sizes, False, 7, False, t) for t in (1, 2))
    assert one.data.identical(two.data)
    assert one.data.attrs["seed"] == "7"


def test_progress_reaches_its_end():
    told = []
    sizes = _Depths(4, 6, 3, activations=("linear",), weights=("gaussian",))
    rank_over_depth._fig_2(sizes, False, 0, lambda done, total: told.append((done, total)), 1)
    assert told == sorted(told)
    assert told[-1] == (100, 100)


def test_the_public_functions_take_their_sizes(monkeypatch):
    seen = []

    def record(sizes, full, rng, progress, threads, store):
        seen.append((sizes, full, rng, store))
        return SimpleNamespace()

    for name, table in (
        ("fig_2", "_FIG_2"), ("fig_3a", "_ENSEMBLES"), ("fig_3b", "_FIG_3B"),
        ("fig_8", "_ENSEMBLES"), ("fig_9", "_ENSEMBLES"), ("lemma_3", "_LEMMA_3"),
        ("centring", "_CENTRING"),
    ):  # fmt: skip
        monkeypatch.setattr(rank_collapse, f"_{name}", record)
        for full in (False, True):
            getattr(rank_collapse, name)(full=full, rng=3, store="folder")
            assert seen[-1] == (getattr(rank_collapse, table)[full], full, 3, "folder")
        with pytest.raises(ArgumentTypeError, match="full"):
            getattr(rank_collapse, name)(full="yes")
