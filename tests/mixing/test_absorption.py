"""`absorbing_events`, against networks with drawn weights in NumPy."""

import itertools
import math

import numpy as np
import pytest
from numpy_network import gram_of, standardised
from numpy_steps import step_of
from oracle import FALSE_ALARM
from scipy import stats
from slow_cases import pairs, some

import bnmc
from bnmc import Activation
from bnmc.mixing.absorption import (
    FlatPieces,
    OrthantRows,
    SampledRows,
    absorbing_events,
    activation_shape,
    flat_pieces,
)

UNCENTRED, CENTRED = "batch-uncentred", "batch"


step = Activation(lambda x: 1.0 if x > 0.0 else 0.0, name="step")
sign = Activation(lambda x: 1.0 if x > 0.0 else -1.0, name="sign")
dead_zone = Activation(lambda x: 1.0 if x > 0.5 else (-1.0 if x < -0.5 else 0.0), name="dead zone")
clip = Activation(lambda x: min(max(x, -1.0), 1.0), name="clip")
threshold = Activation(lambda x: max(x - 0.25, 0.0), name="threshold")
shrink = Activation(lambda x: x - 1.2 if x > 1.2 else (x + 1.2 if x < -1.2 else 0.0), name="shrink")
far = Activation(lambda x: 1.0 if abs(x) > 0.9 else -1.0, name="far")
doubled = Activation(lambda x: 2.0 if x > 0.0 else 1.0, name="doubled")
relu = Activation.named("relu")


# --- what happens in a layer, from the activations a of shape (networks, width, batch)


def pairs_of(a):
    i, j = np.triu_indices(a.shape[-1], 1)
    return a[:, :, i], a[:, :, j]


def dead(a):
    return (a == 0.0).all(axis=1)


def coinciding(a):
    first, second = pairs_of(a)
    return (first == second).all(axis=1)


def opposite(a):
    first, second = pairs_of(a)
    return (first == -second).all(axis=1)


def collinear(a):
    """Neither sample is dead, their correlation is 1, and they do not coincide."""
    first, second = pairs_of(a)
    norms = np.sqrt((first**2).sum(axis=1) * (second**2).sum(axis=1))
    aligned = (first * second).sum(axis=1) >= norms * (1.0 - 1e-12)
    return aligned & (norms > 0.0) & ~coinciding(a)


def rank_one(a):
    return (np.linalg.matrix_rank(a, tol=1e-9) == 1)[:, None]


def one_active_row(a):
    return ((a != 0.0).any(axis=2).sum(axis=1) == 1)[:, None]


def balanced(a):
    """For a batch of four: sums of two pairs are equal, in all rows, but no two samples are."""
    matchings = ((0, 1, 2, 3), (0, 2, 1, 3), (0, 3, 1, 2))
    sums = [(a[..., p] + a[..., q] == a[..., r] + a[..., s]) for p, q, r, s in matchings]
    return np.stack(sums, axis=-1).all(axis=1)


def balanced_for_good(a):
    """Four samples are two opposite pairs, after the mean of each row is subtracted."""
    centred = a - a.mean(axis=2, keepdims=True)
    first, second = pairs_of(centred)
    return (np.abs(first + second) <= 1e-9).all(axis=1)


def alive(a, centred):
    """Return the networks in which no relation between two samples holds yet."""
    first, second = pairs_of(a - a.mean(axis=2, keepdims=True) if centred else a)
    lengths = (first**2).sum(axis=1) + (second**2).sum(axis=1)
    close = np.minimum(((first - second) ** 2).sum(axis=1), ((first + second) ** 2).sum(axis=1))
    norms = np.sqrt((first**2).sum(axis=1) * (second**2).sum(axis=1))
    lines = np.abs((first * second).sum(axis=1)) >= norms * (1.0 - 1e-9)
    return ~((close <= 1e-9 * lengths) | (lines & (not centred))).any(axis=1)


def bound(mean, largest, parts=1):
    """Return what a sum of independent numbers in [0, largest] deviates by at most (Bernstein).

    With probability 1 - FALSE_ALARM / parts; the variance of the sum is at most mean * largest.
    """
    log = math.log(2 * parts / FALSE_ALARM)
    return largest * log / 3 + math.sqrt((largest * log / 3) ** 2 + 2 * largest * mean * log)


DEAD, COINCIDING = {"dead sample": dead}, {"coinciding samples": coinciding}
OPPOSITE, COLLINEAR = {"opposite samples": opposite}, {"collinear samples": collinear}
ONE_ROW, BALANCED = {"one active row": one_active_row}, {"balanced pairs": balanced}
CASES = {
    "relu": (relu, 7, 2, UNCENTRED, DEAD | COLLINEAR),
    "relu, centred": (relu, 6, 3, CENTRED, COINCIDING),
    "step": (step, 8, 2, UNCENTRED, DEAD | COINCIDING),
    "sign": (sign, 6, 3, UNCENTRED, COINCIDING | OPPOSITE),
    "sign, centred": (sign, 6, 4, CENTRED, COINCIDING | BALANCED),
    "clip": (clip, 4, 3, UNCENTRED, COINCIDING | OPPOSITE),
    "dead zone": (dead_zone, 5, 3, UNCENTRED, DEAD | COINCIDING | OPPOSITE),
    "threshold": (threshold, 7, 2, UNCENTRED, DEAD | ONE_ROW),
    "shrink": (shrink, 6, 2, UNCENTRED, DEAD | ONE_ROW),
    "far": (far, 6, 3, UNCENTRED, COINCIDING | OPPOSITE),
    "doubled": (doubled, 2, 2, UNCENTRED, COINCIDING | COLLINEAR),
}


# Functions with pieces like those of others come later.
@pytest.mark.parametrize("name", some(CASES, *(CASES.keys() - {"clip", "shrink", "far"})))
def test_events_of_the_next_layer_have_their_probabilities(name):
    sigma, width, batch, norm, expected = CASES[name]
    # 1500 networks, and 60 draws of the weights of the next layer of each.
    rng, centred = np.random.default_rng(17), norm == CENTRED
    forward = step_of(sigma, rng, weights="gaussian", centred=centred)
    x = rng.standard_normal((1500, width, batch))
    for _ in range(0 if sigma is doubled else 2):  # it absorbs within a few layers
        a = sigma(standardised(x, centred=centred))
        x = forward(x[alive(a, centred)])
    a = sigma(standardised(x, centred=centred))
    a = a[alive(a, centred)]
    events = absorbing_events(bnmc.Chain(width, batch, sigma, norm=norm), gram_of(a))
    assert {event.name for event in events} == set(expected)
    draws = 60
    counts = dict.fromkeys(expected, 0)
    for _ in range(draws):
        h = rng.standard_normal((len(a), width, width)) @ a
        new = sigma(standardised(h, centred=centred))
        for name, happens in expected.items():
            counts[name] += int(happens(new).sum())
    normal = stats.norm.isf(FALSE_ALARM / (4 * len(events)))
    for event in events:
        assert event.is_bound == (event.name == "dead sample" and sigma in (relu, step))
        largest = expected[event.name](new).shape[1]
        trials = len(a) * draws
        limit = bound(trials * event.probability, largest, 2 * len(events))
        if sigma in (clip, dead_zone, threshold, shrink, far) or event.name == "balanced pairs":
            limit += normal * event.stderr * trials  # rows were drawn for some of the states
        assert counts[event.name] >= 20, event
        assert abs(counts[event.name] - trials * event.probability) <= limit, event


PERMANENT = [
    (relu, 5, 3, UNCENTRED, dead, dead),
    (relu, 5, 2, UNCENTRED, collinear, collinear),
    (relu, 5, 3, CENTRED, coinciding, coinciding),
    (sign, 5, 3, UNCENTRED, opposite, opposite),
    (sign, 5, 4, CENTRED, balanced, balanced_for_good),
    (far, 5, 3, UNCENTRED, opposite, coinciding),
    (doubled, 2, 2, UNCENTRED, collinear, coinciding),
    (threshold, 5, 3, UNCENTRED, one_active_row, rank_one),
    (shrink, 5, 2, UNCENTRED, one_active_row, rank_one),
]


@pytest.mark.parametrize(("sigma", "width", "batch", "norm", "happens", "after_it"), PERMANENT)
def test_events_are_permanent(sigma, width, batch, norm, happens, after_it):
    rng, centred = np.random.default_rng(5), norm == CENTRED
    forward = step_of(sigma, rng, weights="gaussian", centred=centred)
    x = rng.standard_normal((15_000, width, batch))
    x = forward(x[~rowless(sigma(standardised(x, centred=centred)), centred)])
    a = sigma(standardised(x, centred=centred))
    x = x[happens(a).any(axis=1) & ~rowless(a, centred)]
    assert len(x) >= 5
    # Rounding grows by a factor of 2 to 3 per layer in networks of this width.
    for _ in range(10):
        x = forward(x)
        a = sigma(standardised(x, centred=centred))
        x, a = x[~rowless(a, centred)], a[~rowless(a, centred)]
        assert after_it(a).any(axis=1).all()


def rowless(a, centred):
    """Return the networks whose next layer has rows without variance."""
    spread = a - a.mean(axis=2, keepdims=True) if centred else a
    return (np.abs(spread) <= 1e-12).all(axis=(1, 2))


def test_the_error_is_that_of_a_mean_over_states():
    stepped = bnmc.Chain(30, 2, step, norm=UNCENTRED)
    grams = bnmc.simulate(stepped, 20, chains=40, rng=0, every=20).gram[:, -1]
    # States that are absorbed already do not count.
    alive_ones = grams[np.linalg.det(grams) > 1e-9]
    assert 20 < len(alive_ones) < 40
    events = absorbing_events(stepped, grams)[0]
    each = [absorbing_events(stepped, [gram, gram])[0].probability for gram in alive_ones]
    assert events.probability == pytest.approx(np.mean(each), rel=1e-9)
    error = np.std(each, ddof=1) / math.sqrt(len(each))
    assert events.stderr == pytest.approx(error, rel=1e-9)


def test_chains_without_flat_pieces_have_no_events():
    grams = np.stack([np.eye(4)] * 3)
    for name in ("linear", "tanh", "abs", "sigmoid"):
        assert absorbing_events(bnmc.Chain(2, 4, name), grams) == ()


def test_improbable_events_are_left_out():
    grams = np.stack([np.eye(2)] * 3)
    assert absorbing_events(bnmc.Chain(200, 2, "relu", norm=UNCENTRED), grams) == ()


def test_a_centred_batch_of_two_has_two_values():
    grams = np.stack([np.eye(2)] * 3)
    assert absorbing_events(bnmc.Chain(2, 2, "relu"), grams) == ()
    (event,) = absorbing_events(bnmc.Chain(2, 2, "abs"), grams)
    assert (event.name, event.probability, event.is_bound) == ("coinciding samples", 1.0, True)


@pytest.mark.parametrize("sigma", ["relu", shrink])
def test_centred_rows_do_not_see_the_common_part(sigma):
    rng = np.random.default_rng(8)
    factor = rng.standard_normal((50, 6, 3))
    common = rng.standard_normal((50, 6, 1)) * [1.0, 1.0, 1.0]
    chain = bnmc.Chain(4, 3, sigma)
    events, others = (absorbing_events(chain, gram_of(a)) for a in (factor, factor + common))
    assert len(events) == len(others) > 0
    for first, second in zip(events, others, strict=True):
        assert first.name == second.name
        assert first.probability == pytest.approx(second.probability, rel=1e-9)


def test_the_sum_over_pairs_is_at_most_one():
    nearly = np.stack([np.eye(6) * 1e-9 + 1.0] * 3)
    events = absorbing_events(bnmc.Chain(2, 6, step, norm=UNCENTRED), nearly)
    assert [event.probability for event in events] == [1.0, 1.0]


OPPOSITES = [[1.0, -1.0, 0.2], [-1.0, 1.0, -0.2], [0.2, -0.2, 1.0]]
PAIRS_OF_FOUR = np.array([[1, -1, 0, 0], [-1, 1, 0, 0], [0, 0, 1, -1], [0, 0, -1, 1]]) + 2.0


@pytest.mark.parametrize(
    ("sigma", "norm", "state"),
    [
        (relu, UNCENTRED, np.ones((2, 2))),
        (relu, UNCENTRED, np.diag([1.0, 0.0])),
        (relu, UNCENTRED, [[1.0, 2.0], [2.0, 4.0]]),
        (relu, UNCENTRED, [[1.0, 2.0, 0.2], [2.0, 4.0, 0.4], [0.2, 0.4, 1.0]]),
        (sign, UNCENTRED, OPPOSITES),
        (far, UNCENTRED, OPPOSITES),
        (shrink, UNCENTRED, np.outer([1.0, 2.0, -3.0], [1.0, 2.0, -3.0])),
        (sign, CENTRED, PAIRS_OF_FOUR),
    ],
    ids=["equal", "dead", "collinear", "two collinear", "opposite", "even", "a line", "pairs"],
)
def test_absorbed_states_are_left_out(sigma, norm, state):
    chain = bnmc.Chain(8, len(state), sigma, norm=norm)
    (event,) = absorbing_events(chain, [state, state])
    assert (event.name, event.probability, event.is_bound) == ("absorbed", 1.0, True)
    mixed = 0.7 * np.eye(len(state)) + 0.3
    assert absorbing_events(chain, [mixed, state, mixed]) == absorbing_events(chain, [mixed] * 2)


def test_the_error_of_one_state_is_infinite():
    chain = bnmc.Chain(8, 2, relu, norm=UNCENTRED)
    events = absorbing_events(chain, [[[1.0, 0.3], [0.3, 1.0]], np.ones((2, 2))])
    assert [event.stderr for event in events] == [0.0, math.inf]


def test_results_are_functions_of_the_arguments():
    chain = bnmc.Chain(4, 3, clip, norm=UNCENTRED)
    grams = np.stack([np.eye(3)] * 4)
    first = absorbing_events(chain, grams)
    assert first == absorbing_events(chain, grams)
    probabilities = [event.probability for event in first]
    assert probabilities == sorted(probabilities, reverse=True)


# --- `activation_shape`: symmetries of activations with known ones


REACH = 2.0


def shape_of(function):
    activation = Activation(function) if callable(function) else Activation.named(function)
    return activation_shape(activation, REACH)


@pytest.mark.parametrize(
    ("function", "odd", "even", "degree", "one_sided"),
    [
        ("relu", False, False, 1.0, True),
        ("leaky_relu", False, False, 1.0, False),
        ("linear", True, False, 1.0, False),
        ("abs", False, True, 1.0, False),
        ("tanh", True, False, None, False),
        ("elu", False, False, None, False),
        (lambda x: 3.0 if x > 0.0 else -1.0, False, False, 0.0, False),
        (lambda x: 1.0 if x > 0.0 else 0.0, False, False, 0.0, True),
        (lambda x: -(max(-x, 0.0) ** 1.5), False, False, 1.5, True),
        (lambda x: max(x - 0.5, 0.0), False, False, None, True),
        (lambda x: x - 1.0 if x > 0.0 else 0.0, False, False, None, False),
    ],
)
def test_symmetries(function, odd, even, degree, one_sided):
    shape = shape_of(function)
    assert (shape.is_odd, shape.is_even, shape.is_one_sided) == (odd, even, one_sided)
    assert shape.degree == (degree if degree is None else pytest.approx(degree, abs=1e-8))
    assert shape.has_parity == (odd or even)


def test_values_at_zero_and_the_centre():
    step = shape_of(lambda x: 1.0 if x > 0.0 else 0.0)
    assert (step.is_zero_at_zero, step.is_centred_at_zero) == (True, False)
    assert (step.is_odd, step.is_odd_about_centre) == (False, True)
    assert (step.above, step.below) == (1.0, 0.0)
    sigmoid = shape_of("sigmoid")
    assert (sigmoid.is_zero_at_zero, sigmoid.is_centred_at_zero) == (False, True)
    assert (sigmoid.is_odd, sigmoid.is_odd_about_centre) == (False, True)
    assert not shape_of("relu").is_odd_about_centre


@pytest.mark.parametrize("degree", [0.123456789, 1.123456784])
def test_degrees_have_nine_decimals(degree):
    """Rounded to eight decimals, a degree would not fit the values."""
    shape = shape_of(lambda x: abs(x) ** degree * (2.0 if x > 0.0 else -3.0))
    assert shape.degree == degree
    assert (shape.above, shape.below) == (pytest.approx(2.0), pytest.approx(-3.0))


INF = np.inf


def steps(x):
    if x < -0.7:
        return -1.0
    if x < 0.0:
        return 0.25
    if x < 1.0:
        return x
    return 0.25


def narrow(x):
    return 0.0 if abs(x - 0.5) < 1e-5 else x


@pytest.mark.parametrize("name", ["linear", "abs", "tanh", "sigmoid", "erf", "gelu", "elu"])
def test_activations_without_flat_pieces_have_none_even_where_rounding_makes_them_constant(name):
    assert len(flat_pieces(Activation.named(name), 50.0)) == 0


def test_relu_is_flat_below_zero():
    pieces = flat_pieces(Activation.named("relu"), 3.0)
    assert (*pieces.low, *pieces.high, *pieces.value) == (-INF, 0.0, 0.0)
    assert pieces.depends_on_signs


def test_pieces_have_their_ends_and_values():
    pieces = flat_pieces(Activation(steps), 2.0)
    assert pieces.low == pytest.approx([-INF, -0.7, 1.0], abs=1e-15)
    assert pieces.high == pytest.approx([-0.7, 0.0, INF], abs=1e-15)
    assert pieces.value.tolist() == [-1.0, 0.25, 0.25]
    assert not pieces.depends_on_signs
    x = np.array([-5.0, -0.71, -0.69, -1e-9, 1e-9, 0.25, 0.99, 1.01, 9.0])
    assert pieces.labels(x).tolist() == [0, 0, 1, 1, -1, -1, -1, 1, 1]


def test_a_narrow_piece_needs_its_kinks():
    assert len(flat_pieces(Activation(narrow), 2.0)) == 0
    pieces = flat_pieces(Activation(narrow, kinks=(0.5 - 1e-5, 0.5 + 1e-5)), 2.0)
    assert (*pieces.low, *pieces.high) == pytest.approx((0.5 - 1e-5, 0.5 + 1e-5), abs=1e-15)


def test_equal_values_at_points_of_the_grid_are_no_piece():
    # It has the same value at all points of an even grid over [-1, 1] with 6000 points.
    pieces = flat_pieces(Activation(lambda x: np.sin(np.pi * 5999.0 * (x + 1.0)) ** 2 > 0.5), 1.0)
    assert not np.isinf(pieces.low).any()


@pytest.mark.parametrize("kinks", [(), (-0.5, 0.9)])
def test_a_value_that_lasts_to_the_reach_lasts_for_ever(kinks):
    """The activation is not evaluated beyond: there this one has other values on both sides."""
    activation = Activation(lambda x: x if abs(x) > 1.0 else np.sign(x), kinks=kinks)
    pieces = flat_pieces(activation, 1.0)
    assert pieces.low.tolist() == [-INF, 0.0]
    assert pieces.high.tolist() == [0.0, INF]
    assert pieces.value.tolist() == [-1.0, 1.0]


# --- Probabilities of patterns of rows, against closed forms and against counts of rows


NEGATIVE = FlatPieces(np.array([-np.inf]), np.array([0.0]), np.array([0.0]))
SIGN = FlatPieces(np.array([-np.inf, 0.0]), np.array([0.0, np.inf]), np.array([-1.0, 1.0]))
#: -1, 0 and 1, with gaps between.
THREE = FlatPieces(
    np.array([-np.inf, -0.4, 0.9]), np.array([-0.8, 0.4, np.inf]), np.array([-1.0, 0.0, 1.0])
)
LIMIT = stats.norm.isf(FALSE_ALARM / 2)


def covariances(count, n, centred):
    factors = np.random.default_rng(3).standard_normal((count, 2 * n, n))
    grams = factors.swapaxes(1, 2) @ factors / (2 * n)
    project = np.eye(n) - 1.0 / n
    return project @ grams @ project if centred else grams


@pytest.mark.parametrize("pieces", [NEGATIVE, SIGN], ids=["negative", "sign"])
@pytest.mark.parametrize(("width", "norm"), pairs([1, 5, 60], ["batch", "batch-uncentred"]))
def test_drawn_rows_agree_with_the_closed_form(pieces, norm, width):
    # 366 states of 1024 rows each.  The error of the sampled mean is that of the differences.
    given = covariances(366, 4, norm == "batch")
    chain = bnmc.Chain(width, 4, "relu", norm=norm)
    exact, samples = OrthantRows(given, pieces, width), SampledRows(given, pieces, chain)
    names = ("equal", "opposite") if pieces is SIGN else ("zero", "equal")
    for name in names:
        difference = getattr(samples, name)() - getattr(exact, name)()
        error = difference.std(ddof=1) / math.sqrt(len(difference))
        assert abs(difference.mean()) <= LIMIT * error, name


def test_signs_have_the_probabilities_of_orthants():
    rho = np.array([-0.9, -0.5, 0.0, 0.5, 1.0])
    given = np.array([[[4.0, 2.0 * r], [2.0 * r, 1.0]] for r in rho])
    # Sheppard: P(x > 0, y > 0) = 1/4 + arcsin(rho)/2 pi; here by integrating the bivariate law.
    same = np.array([
        stats.multivariate_normal(cov=[[1, r], [r, 1]], allow_singular=True).cdf([0, 0])
        for r in rho
    ])  # fmt: skip
    rows = OrthantRows(given, SIGN, 3)
    assert rows.equal() == pytest.approx((2 * same) ** 3, abs=1e-6)
    assert rows.opposite() == pytest.approx((1 - 2 * same) ** 3, abs=1e-6)
    assert rows.separated() == pytest.approx(2 * (0.5 - same) ** 3, abs=1e-6)
    below = OrthantRows(given, NEGATIVE, 3)
    assert below.zero().tolist() == [2 / 8] * 5
    assert below.one_active() == pytest.approx(3 * same**3, abs=1e-6)


def test_counts_become_unbiased_probabilities():
    # The share of the sets of d rows that have the pattern, by enumerating the sets.
    chain = bnmc.Chain(3, 4, "relu")
    samples = SampledRows(covariances(2, 4, True), THREE, chain)
    samples.labels, samples.rows = samples.labels[:, :, :12].copy(), 12
    samples.labels[:, :, :4] = 1  # all samples are 0
    a = np.append(THREE.values, np.nan)[samples.labels].transpose(1, 2, 0)  # (states, rows, n)
    sets = list(itertools.combinations(range(12), 3))
    pairs = list(itertools.combinations(range(4), 2))
    matchings = [((0, 1), (2, 3)), ((0, 2), (1, 3)), ((0, 3), (1, 2))]

    def share(holds):
        return [np.mean([holds(state[list(rows)]) for rows in sets]) for state in a]

    assert samples.zero() == pytest.approx(share(lambda s: (s == 0).all(axis=0).sum()))
    assert samples.equal() == pytest.approx(
        share(lambda s: sum((s[:, i] == s[:, j]).all() for i, j in pairs))
    )
    assert samples.opposite() == pytest.approx(
        share(lambda s: sum((s[:, i] == -s[:, j]).all() for i, j in pairs))
    )
    assert samples.one_active() == pytest.approx(share(lambda s: (s != 0).any(axis=1).sum() == 1))
    assert samples.balanced(False) == pytest.approx(
        share(lambda s: sum(
            (s[:, p] + s[:, q] == s[:, k] + s[:, m]).all() for (p, q), (k, m) in matchings
        ))
    )  # fmt: skip


def test_values_without_an_opposite_are_never_opposite():
    """Neither are activations in the gaps between flat pieces."""
    unpaired = FlatPieces(THREE.low, THREE.high, np.array([-1.0, 0.5, 2.0]))
    samples = SampledRows(covariances(5, 4, True), unpaired, bnmc.Chain(1, 4, "relu"))
    assert (samples.labels == -1).any()
    assert samples.opposite().tolist() == [0.0] * 5


@pytest.mark.parametrize(("batch", "partitions"), [(3, 3), (5, 15), (7, 105), (6, 15), (8, 105)])
def test_all_partitions_into_pairs_are_counted(batch, partitions):
    # A piece on the whole line: every partition holds in every row.
    whole = FlatPieces(np.array([-np.inf]), np.array([np.inf]), np.array([1.0]))
    chain = bnmc.Chain(2, batch, "relu")
    samples = SampledRows(covariances(2, batch, True), whole, chain)
    assert samples.balanced(True) == pytest.approx([partitions] * 2)
    assert samples.balanced(False) == pytest.approx([0.0 if batch % 2 else partitions] * 2)


def test_wide_layers_use_the_power_of_the_share():
    chain = bnmc.Chain(200_000, 2, "relu", norm="batch-uncentred")
    whole = FlatPieces(np.array([-1.41421]), np.array([np.inf]), np.array([0.0]))
    samples = SampledRows(covariances(2, 2, False), whole, chain)
    share = (samples.labels == 0).mean(axis=-1)
    assert share.min() < 1.0
    assert samples.zero() == pytest.approx((share**200_000).sum(axis=0))
    both = (samples.labels == 0).all(axis=0).mean(axis=-1)
    assert samples.one_active() == pytest.approx(2e5 * (1 - both) * both**199_999)


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
