"""Probabilities of patterns of rows, against closed forms and against counts of rows."""

import itertools
import math

import numpy as np
import pytest
from oracle import FALSE_ALARM
from scipy import stats
from slow_cases import pairs

import bnmc
from bnmc.mixing.absorption import FlatPieces, OrthantRows, SampledRows

NEGATIVE = FlatPieces(np.array([-np.inf]), np.array([0.0]), np.array([0.0]))
SIGN = FlatPieces(np.array([-np.inf, 0.0]), np.array([0.0, np.inf]), np.array([-1.0, 1.0]))
#: -1, 0 and 1, with gaps between.
THREE = FlatPieces(
    np.array([-np.inf, -0.4, 0.9]), np.array([-0.8, 0.4, np.inf]), np.array([-1.0, 0.0, 1.0])
)
LIMIT = stats.norm.isf(FALSE_ALARM / 2)


def covariances(count, n, centred):
    factors = np.random.default_rng(3).standard_normal((count, 2 * n, n))
    found = factors.swapaxes(1, 2) @ factors / (2 * n)
    project = np.eye(n) - 1.0 / n
    return project @ found @ project if centred else found


@pytest.mark.parametrize("pieces", [NEGATIVE, SIGN], ids=["negative", "sign"])
@pytest.mark.parametrize(("width", "norm"), pairs([1, 5, 60], ["batch", "batch-uncentred"]))
def test_drawn_rows_agree_with_the_closed_form(pieces, norm, width):
    # 366 states of 1024 rows each.  The error of the sampled mean is that of the differences.
    given = covariances(366, 4, norm == "batch")
    chain = bnmc.Chain(width, 4, "relu", norm=norm)
    exact, drawn = OrthantRows(given, pieces, width), SampledRows(given, pieces, chain)
    names = ("equal", "opposite") if pieces is SIGN else ("zero", "equal")
    for name in names:
        difference = getattr(drawn, name)() - getattr(exact, name)()
        error = difference.std(ddof=1) / math.sqrt(len(difference))
        assert abs(difference.mean()) <= LIMIT * error, name


def test_signs_have_the_probabilities_of_orthants():
    rho = np.array([-0.9, -0.5, 0.0, 0.5, 1.0])
    given = np.array([[[4.0, 2.0 * r], [2.0 * r, 1.0]] for r in rho])
    # Sheppard: P(x > 0, y > 0) = 1/4 + arcsin(rho)/2 pi; here by integrating the bivariate law.
    same = [stats.multivariate_normal(cov=[[1, r], [r, 1]], allow_singular=True).cdf([0, 0])
            for r in rho]  # fmt: skip
    rows = OrthantRows(given, SIGN, 3)
    assert rows.equal() == pytest.approx((2 * np.array(same)) ** 3, abs=1e-6)
    assert rows.opposite() == pytest.approx((1 - 2 * np.array(same)) ** 3, abs=1e-6)
    assert rows.separated() == pytest.approx(2 * (0.5 - np.array(same)) ** 3, abs=1e-6)
    one = OrthantRows(given, NEGATIVE, 3)
    assert one.zero().tolist() == [2 / 8] * 5
    assert one.one_active() == pytest.approx(3 * np.array(same) ** 3, abs=1e-6)


def test_counts_become_unbiased_probabilities():
    # The share of the sets of d rows that have the pattern, by enumerating the sets.
    chain = bnmc.Chain(3, 4, "relu")
    drawn = SampledRows(covariances(2, 4, True), THREE, chain)
    drawn.labels, drawn.rows = drawn.labels[:, :, :12].copy(), 12
    drawn.labels[:, :, :4] = 1  # all samples are 0
    a = np.append(THREE.values, np.nan)[drawn.labels].transpose(1, 2, 0)  # (states, rows, n)
    sets = list(itertools.combinations(range(12), 3))
    pairs = list(itertools.combinations(range(4), 2))
    matchings = [((0, 1), (2, 3)), ((0, 2), (1, 3)), ((0, 3), (1, 2))]

    def share(holds):
        return [np.mean([holds(state[list(rows)]) for rows in sets]) for state in a]

    assert drawn.zero() == pytest.approx(share(lambda s: (s == 0).all(axis=0).sum()))
    assert drawn.equal() == pytest.approx(
        share(lambda s: sum((s[:, i] == s[:, j]).all() for i, j in pairs))
    )
    assert drawn.opposite() == pytest.approx(
        share(lambda s: sum((s[:, i] == -s[:, j]).all() for i, j in pairs))
    )
    assert drawn.one_active() == pytest.approx(share(lambda s: (s != 0).any(axis=1).sum() == 1))
    assert drawn.balanced(False) == pytest.approx(
        share(lambda s: sum(
            (s[:, p] + s[:, q] == s[:, k] + s[:, m]).all() for (p, q), (k, m) in matchings
        ))
    )  # fmt: skip


def test_values_without_an_opposite_are_never_opposite():
    """Neither are activations in the gaps between flat pieces."""
    unpaired = FlatPieces(THREE.low, THREE.high, np.array([-1.0, 0.5, 2.0]))
    drawn = SampledRows(covariances(5, 4, True), unpaired, bnmc.Chain(1, 4, "relu"))
    assert (drawn.labels == -1).any()
    assert drawn.opposite().tolist() == [0.0] * 5


@pytest.mark.parametrize(("batch", "partitions"), [(3, 3), (5, 15), (7, 105), (6, 15), (8, 105)])
def test_all_partitions_into_pairs_are_counted(batch, partitions):
    # A piece on the whole line: every partition holds in every row.
    whole = FlatPieces(np.array([-np.inf]), np.array([np.inf]), np.array([1.0]))
    chain = bnmc.Chain(2, batch, "relu")
    drawn = SampledRows(covariances(2, batch, True), whole, chain)
    assert drawn.balanced(True) == pytest.approx([partitions] * 2)
    assert drawn.balanced(False) == pytest.approx([0.0 if batch % 2 else partitions] * 2)


def test_wide_layers_use_the_power_of_the_share():
    chain = bnmc.Chain(200_000, 2, "relu", norm="batch-uncentred")
    whole = FlatPieces(np.array([-1.41421]), np.array([np.inf]), np.array([0.0]))
    drawn = SampledRows(covariances(2, 2, False), whole, chain)
    share = (drawn.labels == 0).mean(axis=-1)
    assert share.min() < 1.0
    assert drawn.zero() == pytest.approx((share**200_000).sum(axis=0))
    both = (drawn.labels == 0).all(axis=0).mean(axis=-1)
    assert drawn.one_active() == pytest.approx(2e5 * (1 - both) * both**199_999)


def test_gain_and_eps_scale_the_rows():
    given = covariances(20, 3, False)
    options = {"norm": "batch-uncentred", "eps": 0.5}
    plain = SampledRows(given, THREE, bnmc.Chain(2, 3, "relu", **options))
    gain = SampledRows(given / 4.0, THREE, bnmc.Chain(2, 3, "relu", gain=2.0, **options))
    assert (plain.labels == gain.labels).all()
    # x = h / sqrt(mean h² + eps) is near 0 for large eps.
    small = SampledRows(given, THREE, bnmc.Chain(2, 3, "relu", norm="batch-uncentred", eps=1e6))
    assert small.zero() == pytest.approx([3.0] * 20)
    assert small.opposite() == pytest.approx([3.0] * 20)
