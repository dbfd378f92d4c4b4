"""Centring beside its closed forms and the fixed points.

Intervals of 95 % are widened to `CERTAIN`, where all comparisons of a test together fail with
probability at most 1e-6 if the theory holds.
"""

import math

import pytest
from experiment_checks import CERTAIN, reach, relu_map
from scipy import special

FIGURE = "rank-collapse-centring"


def test_centring_a_linear_network_takes_one_sample(figure):
    (_, centred, *_), (_, uncentred, *_), (_, less, *_), *_ = figure.table.rows
    allowed = special.stdtrit(49, 1 - CERTAIN / 2)
    spread = math.hypot(centred.stderr, less.stderr)
    assert abs(centred.value - less.value) <= allowed * spread
    assert uncentred.value - centred.value > allowed * math.hypot(centred.stderr, uncentred.stderr)


def test_linear_ranks_have_their_closed_form(figure):
    for (_, r, theory, *_), m in zip(figure.table.rows[:3], (7, 8, 7), strict=True):
        closed = 1 / (1 / m + (m - 1) * (m + 2) ** 2 / (4 * m * (m + 1) * 64))
        assert theory == pytest.approx(closed, rel=1e-12)
        # The next term of E V² is some 6/d of it, and r is convex in it.
        gap = closed / m
        assert abs(r.value - closed) <= reach(r) + closed * (1 - gap) * 10 / 64


def test_uncentred_rows_have_a_mean_of_no_more_than_any_direction(figure):
    share = figure.table.rows[1][3]
    assert abs(share.value - 1 / 8) <= reach(share)
    assert abs(figure.table.rows[0][3].value) < 1e-12


def test_relu_networks_lose_rank_without_centring(figure):
    (_, centred, star, *_), (_, uncentred, other, *_) = figure.table.rows[3:]
    # c = J(−1/7) of the centred fixed point; of the uncentred one the root of c = J(c).
    c, _ = relu_map(-1 / 7)
    assert star == pytest.approx(8 / (1 + 7 * c * c), rel=1e-9)
    assert uncentred.value + reach(uncentred) < centred.value - reach(centred)
    for r, limit in ((centred, star), (uncentred, other)):
        assert abs(r.value / limit - 1) <= 0.2  # terms of 1/d, d = 64
