"""Figs. 2 and 7: the rank over depth, with and without batch normalization and its centring."""

import math

import numpy as np
import pytest
from experiment_checks import CERTAIN, errors, rank_bound, reach, relu_map, require_mean
from numpy_network import grams as plain_networks
from scipy import special

import bnmc
from bnmc.experiments import rank_collapse
from bnmc.experiments.pictures import curve

#: Where layer 512 is, the last with batch normalization, among powers of 2.
LAST = 9


class TestFig2:
    FIGURE = "rank-collapse-2"

    # The law of both is tested in tests/simulation, and the approved table has these numbers.
    @pytest.mark.slow
    def test_batch_norm_keeps_the_rank_of_plain_networks(self, data):
        for first, activation in enumerate(("linear", "relu")):
            for second, weights in enumerate(("gaussian", "uniform")):
                chain = bnmc.Chain(16, 16, activation, weights=weights)
                rng = np.random.default_rng([22, first, second])
                expected = rank_bound(plain_networks(chain, 140, 60, rng)[:, 60:]).mean(axis=1)
                band = curve(data, "rank_bound")[first, 0, second, LAST]
                assert require_mean((band, 24), expected) < 0.1

    @pytest.mark.slow
    def test_vanilla_networks_collapse_to_rank_one(self, data):
        # From layer 1088 on log(s2/s1) has a mean below −37 and a standard deviation of .25 √l for
        # linear networks, 2.8 of them below the −13.8 of rank 1 at 1e-12.  So each is there with
        # probability .997, and that 12 of 24 are not has one of 1e-18; relu networks are sooner.
        assert np.all(data.numerical_rank.values[:, 1, :, -1] < 1.5)
        assert np.all(data.rank_bound.values[:, 1, :, -1] < 1.5)

    def test_vanilla_networks_lose_directions_at_the_pace_of_their_exponents(self, data):
        layers = data.layer.values
        # Of products of Gaussian matrices: squares of the R of their QR factors are χ² variables.
        exponents = special.digamma((16 - np.arange(16)) / 2) / 2
        theory = [(2 * k * (exponents[0] - exponents) <= 12 * math.log(10)).sum() for k in layers]
        np.testing.assert_array_equal(data.vanilla_theory, theory)
        band = data.numerical_rank.values[0, 1, 0]
        middle = slice(4, 9)  # layers 16 to 256, where 2 to 12 directions are left
        assert np.all(np.abs(band[middle] / np.array(theory)[middle] - 1) < 0.5)

    def test_the_bound_of_theorem_14_holds_with_the_measured_alpha(self, data):
        lower = 2 * math.sqrt(1 - data.attrs["alpha"]) * 4
        assert float(data.theorem_14) == pytest.approx(lower, rel=1e-12)
        band = curve(data, "rank_bound")[0, 0, :, LAST]
        error, allowed = errors(band, 24)
        assert np.all(band[:, 0] - allowed * error > lower)

    def test_the_rank_starts_full_and_falls_but_for_relu(self, data):
        ranks = data.numerical_rank.values
        assert np.all(ranks[0, 0, :, 0] == 15)  # centring takes one
        assert np.all(ranks[0, 0, :, LAST] < 12)
        assert np.all(ranks[1, 0, :, : LAST + 1] > 15)

    def test_networks_without_an_active_neuron_have_rank_0(self):
        """At width 3 a relu network without batch norm loses all of them in dozens of layers."""
        sizes = {"width": 3, "activations": ("relu",), "weights": ("gaussian",)}
        data = rank_collapse.fig_2(**sizes, depth=256, chains=4).data.sel(network="vanilla")
        for name in ("rank_bound", "numerical_rank"):
            ranks = data[name].values.ravel()
            assert ranks[0] > 1
            assert ranks[-1] == 0


class TestCentring:
    FIGURE = "rank-collapse-centring"

    @pytest.mark.slow
    def test_centring_a_linear_network_takes_one_sample(self, figure):
        (_, centred, *_), (_, uncentred, *_), (_, less, *_), *_ = figure.table.rows
        allowed = special.stdtrit(49, 1 - CERTAIN / 2)
        spread = math.hypot(centred.stderr, less.stderr)
        assert abs(centred.value - less.value) <= allowed * spread
        assert uncentred.value - centred.value > allowed * math.hypot(
            centred.stderr, uncentred.stderr
        )

    def test_linear_ranks_have_their_closed_form(self, figure):
        for (_, r, theory, *_), m in zip(figure.table.rows[:3], (7, 8, 7), strict=True):
            closed = 1 / (1 / m + (m - 1) * (m + 2) ** 2 / (4 * m * (m + 1) * 64))
            assert theory == pytest.approx(closed, rel=1e-12)
            # The next term of E V² is some 6/d of it, and r is convex in it.
            gap = closed / m
            assert abs(r.value - closed) <= reach(r) + closed * (1 - gap) * 10 / 64

    def test_uncentred_rows_have_a_mean_of_no_more_than_any_direction(self, figure):
        share = figure.table.rows[1][3]
        assert abs(share.value - 1 / 8) <= reach(share)
        assert abs(figure.table.rows[0][3].value) < 1e-12

    def test_relu_networks_lose_rank_without_centring(self, figure):
        (_, centred, star, *_), (_, uncentred, other, *_) = figure.table.rows[3:]
        # c = J(−1/7) of the centred fixed point; of the uncentred one the root of c = J(c).
        c, _ = relu_map(-1 / 7)
        assert star == pytest.approx(8 / (1 + 7 * c * c), rel=1e-9)
        assert uncentred.value + reach(uncentred) < centred.value - reach(centred)
        for r, limit in ((centred, star), (uncentred, other)):
            assert abs(r.value / limit - 1) <= 0.2  # terms of 1/d, d = 64
