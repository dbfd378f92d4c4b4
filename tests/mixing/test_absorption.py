"""`absorbing_events`, against networks with drawn weights in NumPy."""

import math

import numpy as np
import pytest
from numpy_chains import network, normalised
from oracle import FALSE_ALARM
from scipy import stats

import bnmc
from bnmc.mixing.absorption import absorbing_events

UNCENTRED, CENTRED = "batch-uncentred", "batch"


def step(x):
    return 1.0 if x > 0.0 else 0.0


def sign(x):
    return 1.0 if x > 0.0 else -1.0


def dead_zone(x):
    return 1.0 if x > 0.5 else (-1.0 if x < -0.5 else 0.0)


def clip(x):
    return min(max(x, -1.0), 1.0)


def threshold(x):
    return max(x - 0.25, 0.0)


def shrink(x):
    return x - 1.2 if x > 1.2 else (x + 1.2 if x < -1.2 else 0.0)


def far(x):
    return 1.0 if abs(x) > 0.9 else -1.0


def doubled(x):
    return 2.0 if x > 0.0 else 1.0


FORMULAS = {
    "relu": lambda x: np.maximum(x, 0.0),
    step: lambda x: np.where(x > 0.0, 1.0, 0.0),
    sign: lambda x: np.where(x > 0.0, 1.0, -1.0),
    clip: lambda x: np.clip(x, -1.0, 1.0),
    dead_zone: lambda x: np.where(np.abs(x) > 0.5, np.sign(x), 0.0),
    threshold: lambda x: np.maximum(x - 0.25, 0.0),
    shrink: lambda x: np.sign(x) * np.maximum(np.abs(x) - 1.2, 0.0),
    far: lambda x: np.where(np.abs(x) > 0.9, 1.0, -1.0),
    doubled: lambda x: np.where(x > 0.0, 2.0, 1.0),
}


# --- what happens in a layer, from the activations a of shape (networks, width, batch)


def pairs(a):
    i, j = np.triu_indices(a.shape[-1], 1)
    return a[:, :, i], a[:, :, j]


def dead(a):
    return (a == 0.0).all(axis=1)


def coinciding(a):
    first, second = pairs(a)
    return (first == second).all(axis=1)


def opposite(a):
    first, second = pairs(a)
    return (first == -second).all(axis=1)


def collinear(a):
    """Neither sample is dead, their correlation is 1, and they do not coincide."""
    first, second = pairs(a)
    norms = np.sqrt((first**2).sum(axis=1) * (second**2).sum(axis=1))
    aligned = (first * second).sum(axis=1) >= norms * (1.0 - 1e-12)
    return aligned & (norms > 0.0) & ~coinciding(a)


def rank_one(a):
    return (np.linalg.matrix_rank(a, tol=1e-9) == 1)[:, None]


def one_active_row(a):
    return ((a != 0.0).any(axis=2).sum(axis=1) == 1)[:, None]


def balanced(a):
    """For a batch of four: sums of two pairs are equal, in all rows, but no two samples are."""
    found = [(a[..., p] + a[..., q] == a[..., r] + a[..., s]).all(axis=1)
             for p, q, r, s in ((0, 1, 2, 3), (0, 2, 1, 3), (0, 3, 1, 2))]  # fmt: skip
    return np.stack(found, axis=1)


def balanced_for_good(a):
    """Four samples are two opposite pairs, after the mean of each row is subtracted."""
    centred = a - a.mean(axis=2, keepdims=True)
    first, second = pairs(centred)
    return (np.abs(first + second) <= 1e-9).all(axis=1)


def grams_of(a):
    return a.swapaxes(1, 2) @ a / a.shape[1]


def alive(a, centred):
    """Return the networks in which no relation between two samples holds yet."""
    first, second = pairs(a - a.mean(axis=2, keepdims=True) if centred else a)
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


CASES = [
    ("relu", 7, 2, UNCENTRED, {"dead sample": dead, "collinear samples": collinear}),
    ("relu", 6, 3, CENTRED, {"coinciding samples": coinciding}),
    (step, 8, 2, UNCENTRED, {"dead sample": dead, "coinciding samples": coinciding}),
    (sign, 6, 3, UNCENTRED, {"coinciding samples": coinciding, "opposite samples": opposite}),
    (sign, 6, 4, CENTRED, {"coinciding samples": coinciding, "balanced pairs": balanced}),
    (clip, 4, 3, UNCENTRED, {"coinciding samples": coinciding, "opposite samples": opposite}),
    (
        dead_zone,
        5,
        3,
        UNCENTRED,
        {"dead sample": dead, "coinciding samples": coinciding, "opposite samples": opposite},
    ),
    (threshold, 7, 2, UNCENTRED, {"dead sample": dead, "one active row": one_active_row}),
    (shrink, 6, 2, UNCENTRED, {"dead sample": dead, "one active row": one_active_row}),
    (far, 6, 3, UNCENTRED, {"coinciding samples": coinciding, "opposite samples": opposite}),
    (doubled, 2, 2, UNCENTRED, {"coinciding samples": coinciding, "collinear samples": collinear}),
]


#: Functions with pieces like those of others.
LATER = (clip, shrink, far)


@pytest.mark.parametrize(
    ("sigma", "width", "batch", "norm", "expected"),
    [pytest.param(*case, marks=[pytest.mark.slow] if case[0] in LATER else []) for case in CASES],
)
def test_events_of_the_next_layer_have_their_probabilities(sigma, width, batch, norm, expected):
    # 1500 networks, and 60 draws of the weights of the next layer of each.
    rng, centred = np.random.default_rng(17), norm == CENTRED
    function = FORMULAS[sigma]
    forward = network(function, rng, weights="normal", centred=centred)
    x = rng.standard_normal((1500, width, batch))
    for _ in range(0 if sigma is doubled else 2):  # it absorbs within a few layers
        a = function(normalised(x, centred=centred))
        x = forward(x[alive(a, centred)])
    a = function(normalised(x, centred=centred))
    a = a[alive(a, centred)]
    found = absorbing_events(bnmc.Chain(width, batch, sigma, norm=norm), grams_of(a))
    assert {event.name for event in found} == set(expected)
    draws = 60
    counts = dict.fromkeys(expected, 0)
    for _ in range(draws):
        h = rng.standard_normal((len(a), width, width)) @ a
        new = function(normalised(h, centred=centred))
        for name, happens in expected.items():
            counts[name] += int(happens(new).sum())
    normal = stats.norm.isf(FALSE_ALARM / (4 * len(found)))
    for event in found:
        assert event.is_bound == (event.name == "dead sample" and sigma in ("relu", step))
        largest = expected[event.name](new).shape[1]
        trials = len(a) * draws
        limit = bound(trials * event.probability, largest, 2 * len(found))
        if sigma in (clip, dead_zone, threshold, shrink, far) or event.name == "balanced pairs":
            limit += normal * event.stderr * trials  # rows were drawn for some of the states
        assert counts[event.name] >= 20, event
        assert abs(counts[event.name] - trials * event.probability) <= limit, event


PERMANENT = [
    ("relu", 5, 3, UNCENTRED, dead, dead),
    ("relu", 5, 2, UNCENTRED, collinear, collinear),
    ("relu", 5, 3, CENTRED, coinciding, coinciding),
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
    function = FORMULAS[sigma]
    forward = network(function, rng, weights="normal", centred=centred)
    x = rng.standard_normal((15_000, width, batch))
    x = forward(x[~rowless(function(normalised(x, centred=centred)), centred)])
    a = function(normalised(x, centred=centred))
    x = x[happens(a).any(axis=1) & ~rowless(a, centred)]
    assert len(x) >= 5
    # Rounding grows by a factor of 2 to 3 per layer in networks of this width.
    for _ in range(10):
        x = forward(x)
        a = function(normalised(x, centred=centred))
        x, a = x[~rowless(a, centred)], a[~rowless(a, centred)]
        assert after_it(a).any(axis=1).all()


def rowless(a, centred):
    """Return the networks whose next layer has rows without variance."""
    spread = a - a.mean(axis=2, keepdims=True) if centred else a
    return (np.abs(spread) <= 1e-12).all(axis=(1, 2))


def test_a_dead_sample_revives_if_rows_are_centred():
    rng = np.random.default_rng(2)
    forward = network("relu", rng, weights="normal")
    x = forward(rng.standard_normal((20_000, 5, 3)))
    x = x[dead(np.maximum(normalised(x), 0.0)).any(axis=1)]
    assert len(x) >= 50
    assert not dead(np.maximum(normalised(forward(x)), 0.0)).any(axis=1).all()


@pytest.mark.untraced
@pytest.mark.parametrize(("sigma", "width", "layers"), [("relu", 9, 120), (step, 12, 15)])
def test_the_absorbed_share_follows_from_the_probabilities(sigma, width, layers):
    # 1500 networks.  Absorptions minus the sum of the probabilities are a martingale with jumps of
    # at most 1 (Freedman's inequality has the form of Bernstein's).  Both samples of a pair rarely
    # die in one layer, which the union bound counts twice: 2^-d for each network and layer.
    rng = np.random.default_rng(11)
    function = FORMULAS[sigma]
    forward = network(function, rng, weights="normal", centred=False)
    chain = bnmc.Chain(width, 2, sigma, norm=UNCENTRED)
    x = rng.standard_normal((1500, width, 2))
    a = function(normalised(x, centred=False))
    x = x[alive(a, False)]
    start, expected, twice = len(x), 0.0, 0.0
    for _ in range(layers):
        a = function(normalised(x, centred=False))
        found = absorbing_events(chain, grams_of(a))
        expected += len(x) * sum(event.probability for event in found)
        twice += len(x) * 2 * 0.5**width
        x = forward(x)
        x = x[alive(function(normalised(x, centred=False)), False)]
    absorbed = start - len(x)
    assert 0.2 * start < absorbed < 0.9 * start
    assert -bound(expected, 1) - twice <= absorbed - expected <= bound(expected, 1)


def test_known_chains_lose_the_known_shares():
    # Measured in long runs: .145 of the relu networks by layer 5000, half of the step networks by
    # layer 20000.  The tolerance contains five standard errors of 1000 states.
    relu = bnmc.Chain(16, 2, "relu", norm=UNCENTRED)
    run = bnmc.simulate(relu, 20, chains=1000, rng=0, every=20)
    found = absorbing_events(relu, run.gram[:, -1])
    assert found[0].name == "dead sample"
    assert found[0].probability == 2 * 2.0**-16
    assert (found[0].stderr, found[0].is_bound) == (0.0, True)
    total = sum(event.probability for event in found)
    assert 1 - (1 - total) ** 5000 == pytest.approx(0.145, abs=0.004)
    stepped = bnmc.Chain(60, 2, step, norm=UNCENTRED)
    run = bnmc.simulate(stepped, 20, chains=1000, rng=0, every=20)
    found = absorbing_events(stepped, run.gram[:, -1])
    assert [event.name for event in found] == ["coinciding samples", "dead sample"]
    allowed = 20_000 * 5 * found[0].stderr
    assert abs(20_000 * found[0].probability - math.log(2)) <= allowed < math.log(2)
    assert found[1].probability == 2 * 2.0**-60


def test_the_error_is_that_of_a_mean_over_states():
    stepped = bnmc.Chain(30, 2, step, norm=UNCENTRED)
    grams = bnmc.simulate(stepped, 20, chains=40, rng=0, every=20).gram[:, -1]
    # States that are absorbed already do not count.
    alive_ones = grams[np.linalg.det(grams) > 1e-9]
    assert 20 < len(alive_ones) < 40
    found = absorbing_events(stepped, grams)[0]
    each = [absorbing_events(stepped, np.stack([one, one]))[0].probability for one in alive_ones]
    assert found.probability == pytest.approx(np.mean(each), rel=1e-9)
    error = np.std(each, ddof=1) / math.sqrt(len(each))
    assert found.stderr == pytest.approx(error, rel=1e-9)


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
    one, two = (absorbing_events(chain, grams_of(a)) for a in (factor, factor + common))
    assert len(one) == len(two) > 0
    for first, second in zip(one, two, strict=True):
        assert first.name == second.name
        assert first.probability == pytest.approx(second.probability, rel=1e-9)


def test_the_sum_over_pairs_is_at_most_one():
    nearly = np.stack([np.eye(6) * 1e-9 + 1.0] * 3)
    events = absorbing_events(bnmc.Chain(2, 6, step, norm=UNCENTRED), nearly)
    assert [event.probability for event in events] == [1.0, 1.0]


def test_absorbed_states_are_left_out():
    mixed = np.array([[1.0, 0.3], [0.3, 1.0]])
    states = {
        "equal": np.ones((2, 2)),
        "dead": np.diag([1.0, 0.0]),
        "collinear": np.array([[1.0, 2.0], [2.0, 4.0]]),
    }
    chain = bnmc.Chain(8, 2, "relu", norm=UNCENTRED)
    alone = absorbing_events(chain, [mixed, mixed])
    for state in states.values():
        events = absorbing_events(chain, [mixed, state, mixed])
        assert events == alone
        (event,) = absorbing_events(chain, [state, state])
        assert (event.name, event.probability, event.is_bound) == ("absorbed", 1.0, True)
    assert [e.stderr for e in absorbing_events(chain, [mixed, state])] == [0.0, math.inf]
    opposite_states = [[[1.0, -1.0, 0.2], [-1.0, 1.0, -0.2], [0.2, -0.2, 1.0]]] * 2
    for sigma in (sign, far):
        (event,) = absorbing_events(bnmc.Chain(8, 3, sigma, norm=UNCENTRED), opposite_states)
        assert event.name == "absorbed"
    collinear_states = [[[1.0, 2.0, 0.2], [2.0, 4.0, 0.4], [0.2, 0.4, 1.0]]] * 2
    (event,) = absorbing_events(bnmc.Chain(8, 3, "relu", norm=UNCENTRED), collinear_states)
    assert event.name == "absorbed"
    v = np.array([1.0, 2.0, -3.0])
    odd = bnmc.Chain(8, 3, shrink, norm=UNCENTRED)
    (event,) = absorbing_events(odd, [np.outer(v, v)] * 2)
    assert event.name == "absorbed"
    pairs_of_four = np.array([[1, -1, 0, 0], [-1, 1, 0, 0], [0, 0, 1, -1], [0, 0, -1, 1]]) + 2.0
    (event,) = absorbing_events(bnmc.Chain(8, 4, sign), [pairs_of_four] * 2)
    assert event.name == "absorbed"


def test_results_are_functions_of_the_arguments():
    chain = bnmc.Chain(4, 3, clip, norm=UNCENTRED)
    grams = np.stack([np.eye(3)] * 4)
    first = absorbing_events(chain, grams)
    assert first == absorbing_events(chain, grams)
    probabilities = [event.probability for event in first]
    assert probabilities == sorted(probabilities, reverse=True)
