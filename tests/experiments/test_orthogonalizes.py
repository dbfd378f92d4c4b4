"""The figures of *… orthogonalizes …*: their shape against theory and plain NumPy networks.

Intervals of 95 % are widened to `CERTAIN`, where all comparisons of a test together fail with
probability at most 1e-6 if the theory holds.  Where it holds to leading order in 1/d, some times
the next term is allowed besides: measured are excesses of .7/d of E V, 3.3/d of the Wasserstein
distance, and 1.6/d of the deviation of relu networks, all at batch 4.  Seeds are fixed.
"""

import json
import math
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import integrate, special

from bnmc.errors import ArgumentTypeError
from bnmc.experiments import orthogonalizes
from bnmc.experiments._common import curve
from bnmc.experiments.orthogonalizes import activations, gap, gaussian_distance
from bnmc.experiments.orthogonalizes import cosine as orthogonalizes_cosine
from bnmc.experiments.orthogonalizes.activations import _Activations
from bnmc.experiments.orthogonalizes.common import _Sizes

#: Probability of a false alarm of one comparison, two-sided; no test makes more than 50.
CERTAIN = 1e-6 / 50


def errors(found, count):
    """Standard errors of (..., 3) intervals of `count` networks, and how many of them to allow."""
    quantiles = special.stdtrit(count - 1, [0.975, 1 - CERTAIN / 2])
    return (found[..., 2] - found[..., 1]) / 2 / quantiles[0], float(quantiles[1])


def reach(found):
    """What to allow for an estimate."""
    return special.stdtrit(found.n - 1, 1 - CERTAIN / 2) * found.stderr


def networks(start, width, layers, chains, seed):
    """Shares of the spectra of plain networks that draw their weights: (chains, layers, n)."""
    generator = np.random.default_rng(seed)
    features, n = np.shape(start)
    x = np.broadcast_to(start, (chains, features, n))
    found = []
    for _ in range(layers):
        x = generator.standard_normal((chains, width, x.shape[1])) @ x
        x = x / np.linalg.norm(x, axis=-1, keepdims=True)
        found.append(np.square(np.linalg.svd(x, compute_uv=False)) / width)
    return np.stack(found, axis=1)


def gaps(shares):
    return np.sqrt(np.sum(np.square(shares - 1 / shares.shape[-1]), axis=-1))


def agree(a, b):
    """Whether the means of two samples over independent networks agree."""
    error = math.sqrt(a.var(ddof=1) / len(a) + b.var(ddof=1) / len(b))
    freedom = min(len(a), len(b)) - 1  # conservative
    return abs(a.mean() - b.mean()) <= special.stdtrit(freedom, 1 - CERTAIN / 2) * error


@pytest.fixture(scope="module")
def fig_1():
    return orthogonalizes_cosine._fig_1(_Sizes((32,), 50, 400, batch=2), False, 1, False, None)


@pytest.fixture(scope="module")
def fig_2a():
    return gap._fig_2a(_Sizes((32, 512), 50, 200), False, 2, False, None)


@pytest.fixture(scope="module")
def fig_2b():
    return gap._fig_2b(_Sizes((16, 256, 4096), 300, 32), False, 3, False, None)


@pytest.fixture(scope="module")
def fig_6():
    sizes = _Activations(activations._PUBLISHED[:2], (64, 256, 1024), 50, 32)
    return activations._fig_6(sizes, False, 4, False, None)


@pytest.fixture(scope="module")
def wasserstein():
    groups = _Sizes((32, 512), 40, 100), _Sizes((2**15,), 30, 20)
    return gaussian_distance._wasserstein(groups, False, 5, False, None)


class TestFig1:
    def test_vanilla_angles_follow_the_exact_law_at_every_layer(self, fig_1):
        found = curve(fig_1.data, "log_squared_sine")[1]
        error, allowed = errors(found, 400)
        layers = np.arange(1, 51)
        # E log sin² of one layer: of a Beta((d−1)/2, 1/2) variable.
        exact = layers * (special.digamma(31 / 2) - special.digamma(32 / 2))
        assert np.all(np.abs(found[:, 0] - exact) <= allowed * error)
        np.testing.assert_allclose(fig_1.data.vanilla_log_squared_sine, exact, rtol=1e-12)

    def test_batch_norm_has_the_plateau_of_plain_networks(self, fig_1):
        rng = np.random.default_rng(11)
        x = np.array([[1.0, 0.999], [0.0, 0.001]])
        cosines = []
        for _ in range(400):
            h = rng.standard_normal((32, 2)) @ x
            for _ in range(30):
                h = rng.standard_normal((32, 32)) @ (h / np.linalg.norm(h, axis=1)[:, None])
            h /= np.linalg.norm(h, axis=1)[:, None]
            cosines.append(abs(h[:, 0] @ h[:, 1]) / np.prod(np.linalg.norm(h, axis=0)))
        found = curve(fig_1.data, "cosine")[0, -1]
        error, allowed = errors(found, 400)
        spread = math.hypot(error, np.std(cosines, ddof=1) / 20)
        assert abs(found[0] - np.mean(cosines)) <= allowed * spread
        # The theory is of order 1/√d, its error of order 1/d^{3/2}.
        theory = math.sqrt(4 / (3 * math.pi * 32))
        assert float(fig_1.data.cosine_plateau) == pytest.approx(theory, rel=1e-12)
        assert abs(found[0] - theory) <= allowed * error + 4 * theory / 32

    def test_a_layer_of_infinite_width_is_the_mean_over_directions(self, fig_1):
        wide = fig_1.data.cosine_at_infinite_width.values
        for before, after in pairwise(wide[3:9]):
            inverse = np.linalg.inv([[1, before], [before, 1]])

            def direction(angle, inverse=inverse, determinant=1 - before**2):
                u = np.array([math.cos(angle), math.sin(angle)])
                return 1 / (2 * math.pi * math.sqrt(determinant) * (u @ inverse @ u))

            mean, _ = integrate.quad(
                lambda a: math.sin(2 * a) * direction(a),
                0,
                2 * math.pi,
                points=[math.pi / 4],
                limit=200,
            )
            assert after == pytest.approx(mean, rel=1e-6)

    def test_vanilla_networks_align_where_batch_norm_separates(self, fig_1):
        cosine = curve(fig_1.data, "cosine")
        error, allowed = errors(cosine, 400)
        rise = cosine[1, -1, 0] - cosine[1, 0, 0]
        assert rise > allowed * math.hypot(error[1, -1], error[1, 0])
        assert cosine[0, 0, 0] > 0.9
        assert cosine[0, -1, 0] < 0.3


class TestFig2a:
    def test_the_gap_is_that_of_plain_networks(self, fig_2a):
        start = np.diag([1.0, 1e-6, 1e-6, 1e-6])
        plain = np.log(gaps(networks(start, 32, 30, 300, seed=12)))
        found = np.log(curve(fig_2a.data, "gap")[0])
        error, allowed = errors(found, 200)
        for layer in (4, 8, 12, 29):
            spread = math.hypot(error[layer], plain[:, layer].std(ddof=1) / math.sqrt(300))
            assert abs(found[layer, 0] - plain[:, layer].mean()) <= allowed * spread

    def test_it_settles_on_the_plateau_to_order_1_over_d(self, fig_2a):
        found = np.log(curve(fig_2a.data, "gap")[:, -1])
        error, allowed = errors(found, 200)
        widths = np.array([32, 512])
        # √(E V²) of the closed form, times the geometric mean of a χ variable of 9 dimensions.
        squared = 3 * 6**2 / (4 * 4 * 5 * widths)
        chi = np.exp(special.digamma(4.5) / 2) / math.sqrt(4.5)
        np.testing.assert_allclose(fig_2a.data.plateau, np.sqrt(squared) * chi, rtol=1e-12)
        away = np.abs(found[:, 0] - np.log(fig_2a.data.plateau.values))
        assert np.all(away <= allowed * error + 4 / widths)

    def test_each_layer_has_the_exact_mean_given_the_one_before(self, fig_2a):
        found = curve(fig_2a.data, "one_step_excess")
        error, allowed = errors(found, 200)
        assert np.all(np.abs(found[:, 0]) <= allowed * error)
        assert np.all(error < 0.002)

    def test_at_infinite_width_it_contracts_by_two_thirds_a_layer(self, fig_2a):
        wide = fig_2a.data.gap_at_infinite_width.values
        ratios = wide[1:] / wide[:-1]
        # The next term is of the order of the gap itself, with a coefficient that depends on the
        # direction; shares are known to 1e-13, and the gap is above 1e-7 here.
        assert np.all(np.abs(ratios[12:35] - 2 / 3) <= 2 * wide[12:35] + 1e-5)

    def test_wide_networks_leave_collinearity_sooner(self, fig_2a):
        narrow, wide = (row[1] for row in fig_2a.table.rows)
        assert narrow.value - wide.value > math.hypot(reach(narrow), reach(wide))


class TestFig2b:
    def test_the_gap_has_its_closed_form_at_large_width(self, fig_2b):
        for width, found, _, theory in fig_2b.table.rows:
            chi = math.exp(special.gammaln(5) - special.gammaln(4.5)) / math.sqrt(4.5)
            closed = chi * math.sqrt(3 * 6**2 / (4 * 4 * 5 * width))
            assert theory == pytest.approx(closed, rel=1e-12)
            assert abs(found.value - closed) <= reach(found) + closed * 4 / width

    def test_the_slope_is_a_half_and_the_printed_average_flattens_it(self, fig_2b):
        slope, stderr = (float(fig_2b.data.slope), slope_error(fig_2b.data, "slope"))
        allowed = special.stdtrit(31, 1 - CERTAIN / 2)  # errors are those of 32 networks
        # A relative excess of at most 4/d bends the slope between widths 16 and 4096 by this.
        assert abs(slope + 0.5) <= allowed * stderr + math.log1p(4 / 16) / math.log(256)
        flat = float(fig_2b.data.slope_of_all_layers)
        flat_error = slope_error(fig_2b.data, "slope_of_all_layers")
        assert flat - slope > allowed * math.hypot(stderr, flat_error)

    def test_narrow_networks_agree_with_plain_ones(self, fig_2b):
        shares = networks(np.diag([1.0, 1e-6, 1e-6, 1e-6]), 16, 120, 200, seed=13)
        plain = gaps(shares)[:, 60:].mean(axis=1)
        found = fig_2b.table.rows[0][1]
        error = plain.std(ddof=1) / math.sqrt(len(plain))
        assert abs(found.value - plain.mean()) <= reach(found) * (1 + error / found.stderr)


def slope_error(data, name):
    return float(data[f"{name}_high"] - data[f"{name}_low"]) / 2 / special.ndtri(0.975)


class TestFig6:
    def test_linear_networks_have_the_closed_form(self, fig_6):
        found = curve(fig_6.data, "deviation")[0]
        error, allowed = errors(found, 32)
        theory = fig_6.data.linear_theory.values
        chi = math.exp(special.gammaln(5) - special.gammaln(4.5)) / math.sqrt(4.5)
        widths = fig_6.data.width.values
        closed = 4 * chi * np.sqrt(3 * 6**2 / (4 * 4 * 5 * widths))
        np.testing.assert_allclose(theory, closed, rtol=1e-12)
        assert np.all(np.abs(found[:, 0] - theory) <= allowed * error + theory * 4 / widths)

    def test_every_activation_keeps_to_its_mean_to_order_one_over_root_d(self, fig_6):
        allowed = special.stdtrit(31, 1 - CERTAIN / 2)  # errors are those of 32 networks
        for name in fig_6.data.activation.values:
            one = fig_6.data.sel(activation=name)
            # As in Fig. 2b, with an excess of up to 8/d from width 64 on.
            bent = math.log1p(8 / 64) / math.log(16)
            assert abs(float(one.slope) + 0.5) <= allowed * slope_error(one, "slope") + bent

    def test_the_table_has_the_deviations_with_their_intervals(self, fig_6):
        found = curve(fig_6.data, "deviation").reshape(-1, 3)
        for (name, width, one, known, count), of_data in zip(fig_6.table.rows, found, strict=True):
            np.testing.assert_array_equal((one.value, *one.ci), of_data)
            theory = fig_6.data.linear_theory.sel(width=width)
            assert known == (float(theory) if name == "linear" else None)
            assert count == one.n == fig_6.data.alive.sel(activation=name, width=width)

    def test_means_are_the_fixed_points_to_order_1_over_d(self, fig_6):
        linear = fig_6.data.mean_gram.sel(activation="linear", width=1024).values
        relu = fig_6.data.mean_gram.sel(activation="relu", width=1024).values
        # An entry has a standard deviation of .05 at most, so its mean over 32 networks one of
        # .009, however long layers remember; 5.5 of these are allowed.
        np.testing.assert_allclose(linear, np.eye(4), atol=0.05)
        c = 0.4796748154548388  # c = E relu relu of unit normals with correlation c, solved apart
        np.testing.assert_allclose(relu, 0.5 * (c + (1 - c) * np.eye(4)), atol=0.05)

    def test_activations_see_rows_of_length_1(self):
        """Beside plain networks; the two differ by less than 4 % or the test fails."""
        sizes = _Activations(activations._PUBLISHED[2:3], (32, 64), 100, 200)
        data = activations._fig_6(sizes, False, 7, False, None).data.sel(activation="tanh(x/2)")
        rng = np.random.default_rng(18)
        x = rng.standard_normal((200, 32, 4))
        matrices = []
        for layer in range(201):
            a = np.tanh(x / np.linalg.norm(x, axis=-1, keepdims=True))
            if layer >= 100:
                matrices.append(np.swapaxes(a, -1, -2) @ a / 32)
            x = rng.standard_normal((200, 32, 32)) @ a
        plain = np.stack(matrices, axis=1)
        plain = np.linalg.norm(plain - plain.mean(axis=(0, 1)), axis=(-2, -1)).mean(axis=1)
        found = curve(data, "deviation")[0]
        error, allowed = errors(found, 200)
        spread = math.hypot(error, plain.std(ddof=1) / math.sqrt(len(plain)))
        assert allowed * spread < 0.04 * plain.mean()
        assert abs(found[0] - plain.mean()) <= allowed * spread

    def test_networks_that_lost_a_sample_are_left_out(self):
        """Of relu at width 14 a seventh has by layer 600: a sample dies in one layer of 2^14."""
        sizes = _Activations(activations._PUBLISHED[1:2], (14, 32), 300, 500)
        data = activations._fig_6(sizes, False, 6, False, None).data.sel(activation="relu")
        lost = 500 - data.alive.values
        assert lost[1] == 0

        rng = np.random.default_rng(16)
        x = rng.standard_normal((1000, 14, 4))
        matrices = []
        for layer in range(601):
            x = x / np.sqrt(np.square(x).mean(axis=-1, keepdims=True))
            positive = np.maximum(x, 0.0)
            if layer >= 300:
                matrices.append(np.swapaxes(positive, -1, -2) @ positive / 14)
            x = rng.standard_normal((1000, 14, 14)) @ positive
        alive = np.einsum("cii->ci", matrices[-1]).min(axis=1) > 0
        # Both counts are binomial; two-sided, by the normal law.
        share = (lost[0] + (~alive).sum()) / 1500
        spread = math.sqrt(share * (1 - share) * (1 / 500 + 1 / 1000))
        assert 0.08 < share < 0.2
        assert abs(lost[0] / 500 - (~alive).mean()) <= special.ndtri(1 - CERTAIN / 2) * spread

        kept = np.stack(matrices, axis=1)[alive]
        plain = np.linalg.norm(kept - kept.mean(axis=(0, 1)), axis=(-2, -1)).mean(axis=1)
        found = curve(data, "deviation")[0]
        error, allowed = errors(found, int(data.alive[0]))
        spread = math.hypot(error, plain.std(ddof=1) / math.sqrt(len(plain)))
        assert abs(found[0] - plain.mean()) <= allowed * spread


class TestWasserstein:
    def test_the_plateau_has_its_closed_form_and_slope_minus_one(self, wasserstein):
        for width, _, found, theory, _ in wasserstein.table.rows:
            closed = 3 * 6**2 / (16 * 5 * width)
            assert theory == pytest.approx(closed, rel=1e-12)
            assert abs(found.value - closed) <= reach(found) + closed * 8 / width
        slope = float(wasserstein.data.slope)
        stderr = slope_error(wasserstein.data, "slope")
        bent = math.log1p(8 / 32) / math.log(2**10)
        assert abs(slope + 1) <= special.stdtrit(19, 1 - CERTAIN / 2) * stderr + bent

    def test_it_decays_as_the_chain_of_infinite_width_does(self, wasserstein):
        found = curve(wasserstein.data, "distance")[-1, :8]
        theory = wasserstein.data.theory.values[-1, :8]
        error, allowed = errors(found, 20)
        assert np.all(np.abs(found[:, 0] - theory) <= allowed * error + 0.02 * theory)
        wide = gaussian_distance._wide_distances(4, 20)
        assert wide[-1] / wide[-2] == pytest.approx((4 / 6) ** 2, abs=2 * math.sqrt(wide[-2]))

    def test_the_bounds_bound_it(self, wasserstein):
        data = wasserstein.data
        there = np.isfinite(data.distance.values)
        assert np.all(data.distance.values[there] <= data.lemma_2.values[there])
        assert np.all(data.lemma_2.values[there] <= data.corollary_3.values[there])

    def test_narrow_networks_agree_with_plain_ones(self, wasserstein):
        start = np.diag(np.sqrt([1.0, 0.2, 0.2, 0.2]))
        shares = networks(start, 32, 40, 200, seed=14)
        plain = np.square(np.sqrt(shares) - 0.5).sum(axis=-1)[:, 20:].mean(axis=1)
        found = wasserstein.table.rows[0][2]
        error = plain.std(ddof=1) / math.sqrt(len(plain))
        assert abs(found.value - plain.mean()) <= reach(found) * (1 + error / found.stderr)


EVERY = ("fig_1", "fig_2a", "fig_2b", "fig_6", "wasserstein")


@pytest.mark.parametrize("name", EVERY)
def test_an_experiment_is_complete(name, request):
    found = request.getfixturevalue(name)
    assert found.name.startswith("orthogonalizes-")
    json.dumps(found.to_dict(), allow_nan=False)
    for variable in found.data.variables.values():
        assert variable.attrs["long_name"]
    assert found.data.attrs["seed"].isdigit()
    assert all(sentence.endswith(".") for sentence in found.findings)
    for name, values in found.data.items():
        if f"{name}_low" in found.data:
            there = np.isfinite(values)
            assert bool((found.data[f"{name}_low"] <= values).where(there, True).all())


@pytest.mark.parametrize("name", EVERY)
def test_a_picture_is_labelled_and_draws_the_data(name, request):
    found = request.getfixturevalue(name)
    figure = found.plot()
    for ax in figure.axes:
        assert ax.get_xlabel()
        assert ax.get_ylabel()
        assert ax.get_legend() is not None or figure.legends
    assert figure.get_suptitle() or figure.axes[0].get_title()
    drawn = [line.get_ydata() for ax in figure.axes for line in ax.lines]
    main = {"fig_1": "cosine", "fig_2a": "gap", "fig_2b": "gap", "fig_6": "deviation"}
    expected = found.data[main.get(name, "distance")].values
    expected = expected.reshape(-1, expected.shape[-1])
    for curve_ in expected:
        assert any(np.array_equal(curve_, line, equal_nan=True) for line in drawn)


def test_the_same_seed_gives_the_same_data_on_any_number_of_threads():
    sizes = _Sizes((8, 16), 110, 6)
    one, two = (gap._fig_2b(sizes, False, 7, False, t) for t in (1, 2))
    assert one.data.identical(two.data)
    assert one.data.attrs["seed"] == "7"


def test_progress_reaches_its_end():
    told = []
    orthogonalizes_cosine._fig_1(
        _Sizes((8,), 4, 3, batch=2), False, 0, lambda done, total: told.append((done, total)), 1
    )
    assert told == sorted(told)
    assert told[-1] == (100, 100)


def test_the_public_functions_take_their_sizes(monkeypatch):
    seen = []

    def record(sizes, full, rng, progress, threads, store):
        seen.append((sizes, full, rng, store))
        return SimpleNamespace()

    for name, table in (
        ("fig_1", "_FIG_1"), ("fig_2a", "_FIG_2A"), ("fig_2b", "_FIG_2B"), ("fig_6", "_FIG_6"),
        ("wasserstein", "_WASSERSTEIN"),
    ):  # fmt: skip
        monkeypatch.setattr(orthogonalizes, f"_{name}", record)
        for full in (False, True):
            getattr(orthogonalizes, name)(full=full, rng=3, store="folder")
            assert seen[-1] == (getattr(orthogonalizes, table)[full], full, 3, "folder")
        with pytest.raises(ArgumentTypeError, match="full"):
            getattr(orthogonalizes, name)(full="yes")
