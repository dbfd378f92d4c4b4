"""Runs of coupled pairs: the pilot and the lag that it chooses."""

import itertools
import tracemalloc

import numpy as np
import pytest
from mean_field_oracles import EXP
from slow_cases import slow, some

import bnmc
from bnmc import Chain
from bnmc._support import machine, workers
from bnmc._support.workers import Parallel
from bnmc.chain.start import Covariance, Representation, prepare
from bnmc.errors import NotMixing, ResultTooLargeError, ZeroVarianceError
from bnmc.mean_field import block_symmetric, partial_collapse
from bnmc.mixing import contraction_rate, coupling
from bnmc.mixing.absorption import AbsorbingEvent
from bnmc.mixing.coupling import (
    SAME_START,
    CrossedStart,
    absorption_probability,
    assumptions,
    other_starts,
)
from bnmc.mixing.meeting_bound import tv_bound
from bnmc.simulation.engine import pairs
from bnmc.simulation.engine.pairs import Meetings

RELU = bnmc.Chain(20, 3, "relu")

SIGN = bnmc.Activation(lambda x: 1.0 if x > 0.0 else -1.0, kinks=(0.0,), name="sign")
CLIP = bnmc.Activation(lambda x: min(max(x, -0.5), 0.5), kinks=(-0.5, 0.5), name="clip")
LATE = bnmc.Activation(lambda x: max(x - 1.0, 0.0), kinks=(1.0,), name="late relu")


def near(points, width, noise=0.0, activation=None):
    """A chain, and a batch whose rows have nearly the covariance of the first of fixed points."""
    rng, gram = np.random.default_rng(3), points[0].gram
    values, vectors = np.linalg.eigh(gram)
    rows = rng.standard_normal((width, len(gram)))
    x = rows @ (vectors * np.sqrt(values.clip(0.0))) @ vectors.T
    chain = bnmc.Chain(width, len(gram), activation or points[0].activation)
    return chain, x + noise * rng.standard_normal(x.shape)


def gaussian(*options, **norm):
    return lambda: (bnmc.Chain(*options, **norm), "gaussian")


#: Chains with several wells or absorbing states, with starts in or near one of these, and why they
#: are refused; without a reason they are certified.
METASTABLE = {
    "all rows of one sign": (gaussian(40, 2, SIGN, norm="batch-uncentred"), None),
    "dead samples": (gaussian(10, 3, "relu", norm="batch-uncentred"), "lost rank"),
    "two dead samples": (gaussian(8, 3, "relu"), None),
    "both ends flat": (gaussian(10, 2, CLIP, norm="batch-uncentred"), "lost rank"),
    # Each of these has a like one among the others.
    "a wide flat piece": (gaussian(30, 3, LATE, norm="batch-uncentred"), "lost rank"),
    "one silu sample": (lambda: near(block_symmetric("silu", 26), 600), "had not met"),
    "silu samples that collapse": (
        lambda: near(partial_collapse("silu", 32, distinct=10), 400, 1e-3),
        "lost rank|had not met",
    ),
    "exp samples that collapse": (
        lambda: near(partial_collapse(EXP, 10, distinct=3), 400, 1e-3, EXP),
        "lost rank|had not met|depends on the start",
    ),
}


def test_the_lag_is_a_waiting_time_of_the_pilot():
    cert = tv_bound(RELU, 5, chains=200, rng=0)
    # The lag is the 29th of the 32 waiting times of the pairs after those of the bound.
    pairs = coupling.CoupledPairs(RELU, "gaussian", 0, 4000, Parallel.of())
    assert pairs.key == cert.key
    pilot = pairs.run(coupling.PILOT_LAG, 200, 232).layers - coupling.PILOT_LAG
    assert cert.lag == np.sort(pilot)[28]
    again = tv_bound(RELU, 5, lag=cert.lag, chains=200, rng=0)
    np.testing.assert_array_equal(cert.meeting_times, again.meeting_times)


def test_pairs_that_mostly_do_not_meet_end_the_pilot():
    with pytest.raises(NotMixing, match="of 32 pairs") as raised:
        tv_bound(RELU, 10, max_layers=3, rng=0)
    assert raised.value.partial is None


def test_wells_are_found_from_other_starts():
    # abs, batch 20: the batch stays near an attractor at which its first sample stands out, and in
    # another order near one at which G_00 is small. Pairs that start alike meet.
    points = block_symmetric("abs", 20)
    (chain, x), point = near(points, 600), points[0]
    for start, expected in ((x, point.diagonal[0]), (x[:, ::-1], point.diagonal[1])):
        run = bnmc.simulate(chain, 60, chains=4, initial=start, rng=1, burn_in=60)
        assert abs(run.gram[:, -1, 0, 0].mean() / expected - 1.0) < 0.15
        with pytest.raises(NotMixing, match="depends on the start: with chains from") as raised:
            tv_bound(chain, 60, chains=16, initial=start, max_layers=100, rng=2)
        partial = raised.value.partial
        assert partial.unmet == 0
        assert partial.crossed_starts == ()
    with pytest.raises(NotMixing, match="depends on the start"):
        bnmc.invariant.expectation(
            chain, lambda G: G[0, 0], chains=16, initial=x, max_layers=100, rng=2
        )


@pytest.mark.parametrize("name", some(METASTABLE, *[*METASTABLE][:4]))
def test_metastable_chains_are_refused_or_certified_with_what_they_may_do(name):
    make, reason = METASTABLE[name]
    chain, start = make()
    options = {"chains": 64, "initial": start, "max_layers": 100, "rng": 0}
    if reason:
        with pytest.raises(NotMixing, match=reason):
            tv_bound(chain, 60, **options)
        return
    cert = tv_bound(chain, 60, **options)
    assert cert.law == "quasi-stationary"
    assert cert.absorbing_events


@pytest.mark.parametrize("order", [slow("reverse"), "shifted"])
def test_another_order_of_a_batch_is_another_start(order, monkeypatch):
    # With the orders alone: the well of a batch is not that of its permutation.
    chain, x = near(block_symmetric("abs", 20), 600)

    def only_orders(chain, start):
        return {name: other for name, other in other_starts(chain, start).items() if order in name}

    monkeypatch.setattr(coupling, "other_starts", only_orders)
    with pytest.raises(NotMixing, match="the batch"):
        tv_bound(chain, 60, chains=16, initial=x, max_layers=100, rng=2)


@pytest.fixture
def altered_runs(monkeypatch):
    """Install a function of the meetings of each run, of its lag, its pairs and its other start."""
    run = coupling.CoupledPairs.run

    def install(change):
        def altered(self, lag, first, last, behind=None):
            meetings = run(self, lag, first, last, behind)
            change(meetings, lag, range(first, last), behind)
            return meetings

        monkeypatch.setattr(coupling.CoupledPairs, "run", altered)

    return install


def bound_of(chain=RELU, **options):
    return tv_bound(chain, 10, **{"lag": 4, "chains": 40, "rng": 0, **options})


def test_an_alternating_chain_does_not_meet_itself_one_layer_behind(altered_runs):
    # Meetings of a chain with period 2 and an even lag: pairs with lag 1 never meet.
    def alternating(meetings, lag, numbers, behind):
        if lag % 2:
            meetings.layers[:] = -1

    altered_runs(alternating)
    with pytest.raises(NotMixing, match="the same start, one layer behind"):
        bound_of()


def test_a_chain_from_another_start_that_stops_is_a_finding(altered_runs):
    def stopping(meetings, lag, numbers, behind):
        if behind is not None:
            raise ZeroVarianceError(numbers[0], 3, 5)

    altered_runs(stopping)
    with pytest.raises(NotMixing, match="a chain stopped: .*layer 3") as raised:
        bound_of()
    assert raised.value.partial.chains == 40
    assert np.isnan(raised.value.exponent)


def test_wells_that_chains_leave_in_many_layers_are_noticed(altered_runs):
    # Every pair of two starts meets, but only after 40 times as long as pairs of one start.
    def slow(meetings, lag, numbers, behind):
        if behind is not None:
            meetings.layers[:] *= factor

    altered_runs(slow)
    factor = 3
    bound_of()
    factor = 60
    with pytest.raises(NotMixing, match=r"layers \(median\) to meet, .* there are wells") as raised:
        bound_of()
    partial = raised.value.partial
    assert partial.law == "quasi-stationary"
    assert "Other starts: not coupled, or without meeting." in partial.assumes


def test_pairs_that_are_absorbed_from_another_start_are_counted(altered_runs):
    def absorbed(meetings, lag, numbers, behind):
        if behind is not None:
            meetings.layers[:lost] = -1
            meetings.degenerate[:lost] = 7

    altered_runs(absorbed)
    lost = 3
    cert = bound_of()
    assert {crossed.absorbed for crossed in cert.crossed_starts} == {3}
    assert {len(crossed.waiting_times) for crossed in cert.crossed_starts} == {29}
    # tanh has no absorbing states, and those of relu are too rare at width 1000.
    for chain in (bnmc.Chain(20, 3, "tanh"), bnmc.Chain(1000, 3, "relu")):
        with pytest.raises(NotMixing, match="3 of 32 pairs lost rank"):
            bound_of(chain)
    lost = 17
    with pytest.raises(NotMixing, match="17 of 32 pairs lost rank"):
        bound_of()


def test_no_two_runs_use_the_same_pairs(altered_runs):
    """The pilot chooses the lag, so its pairs must be none of the bound's, nor of other runs."""
    runs = []
    altered_runs(lambda meetings, lag, numbers, behind: runs.append(numbers))
    tv_bound(RELU, 5, chains=40, rng=0)
    assert [len(numbers) for numbers in runs[:2]] == [coupling.PILOT_REPLICATES, 40]
    assert len(runs) == 2 + len(other_starts(RELU, prepare(RELU.repeat(0), "gaussian", 1, None)))
    numbers = [number for part in runs for number in part]
    assert len(set(numbers)) == len(numbers)
    # The largest number of pairs leaves room for the others.
    assert numbers[-1] - 40 + coupling.MOST_REPLICATES < 2**28


def test_other_starts_meet_and_their_times_are_kept():
    cert = tv_bound(RELU, 10, lag=4, chains=100, rng=0)
    names = [crossed.name for crossed in cert.crossed_starts]
    assert names == list(other_starts(RELU, prepare(RELU.repeat(0), "gaussian", 1, None)))
    for crossed in cert.crossed_starts:
        assert crossed.waiting_times.shape == (32,)
        assert crossed.waiting_times.min() >= 1
    # Different starts use different random numbers.
    times = [tuple(crossed.waiting_times) for crossed in cert.crossed_starts]
    assert len(set(times)) == len(times)


def test_states_for_absorbing_events_are_those_of_the_chain(monkeypatch):
    seen = []
    monkeypatch.setattr(coupling, "absorbing_events", lambda chain, grams: seen.append(grams) or ())
    tv_bound(RELU, 10, lag=4, chains=300, rng=0)
    (grams,) = seen
    assert grams.shape == (coupling.STATES, 3, 3)
    # Their mean diagonal is that of a run: of 256 means of 3 entries, 5.5 standard errors.
    run = bnmc.simulate(RELU, 30, chains=20_000, rng=5, burn_in=30).gram[:, -1]
    mine, theirs = (np.trace(g, axis1=1, axis2=2) for g in (grams, run))
    error = np.hypot(mine.std() / 16.0, theirs.std() / 141.0)
    assert abs(mine.mean() - theirs.mean()) < 5.5 * error


# --- random numbers and the lag


def test_the_lag_is_the_waiting_time_that_nine_of_ten_pilot_pairs_do_not_exceed(monkeypatch):
    """Waiting times 1 to 32 of 32 pairs: of the 31 steps between them 0.9 are 27.9."""
    pairs = coupling.CoupledPairs(RELU, "gaussian", 0, 4000, Parallel.of())
    waited = np.random.default_rng(0).permutation(np.arange(1, 33))

    def run(self, lag, first, last, behind=None):
        none = np.zeros((1, 2))
        apart = np.where(waited > 32 - slow, -1, waited + lag)
        return Meetings(apart, *np.zeros((2, 32), int), none, none + 1.0, np.zeros(32, int))

    monkeypatch.setattr(coupling.CoupledPairs, "run", run)
    slow = 0
    assert int(pairs.pilot_waits(40)[coupling.LAG_PAIR]) == 29
    slow = 3  # pairs that have not met waited longer than all others
    assert int(pairs.pilot_waits(40)[coupling.LAG_PAIR]) == 29
    slow = 4
    with pytest.raises(NotMixing, match="4 of 32 pairs had not met"):
        int(pairs.pilot_waits(40)[coupling.LAG_PAIR])


CHAIN = bnmc.Chain(40, 5, "relu")
LAWS = {
    "samples near a line",
    "one sample that stands out",
    "a block of samples that nearly coincide",
}
ORDERS = {"the batch in reverse order", "the batch shifted by one sample"}


def test_a_law_that_all_orders_share_is_not_reordered():
    start = prepare(CHAIN.repeat(0), "gaussian", 1, None)
    starts = other_starts(CHAIN, start)
    assert set(starts) == {SAME_START, *LAWS}
    assert starts[SAME_START] is start


def test_a_batch_comes_in_other_orders():
    x = np.random.default_rng(0).standard_normal((40, 5))
    start = prepare(CHAIN.repeat(0), x, 1, None)
    starts = other_starts(CHAIN, start)
    assert set(starts) == {SAME_START, "independent samples", *LAWS, *ORDERS}
    for name, order in zip(sorted(ORDERS), ([4, 3, 2, 1, 0], [4, 0, 1, 2, 3]), strict=True):
        assert isinstance(starts[name], Representation)
        np.testing.assert_array_equal(starts[name].x, start.x[..., order])
        np.testing.assert_array_equal(starts[name].a, start.a[..., order])


def test_a_first_layer_comes_in_other_orders():
    x = np.random.default_rng(1).standard_normal((7, 5))
    start = prepare(CHAIN.repeat(0), bnmc.FirstLayer(x), 1, None)
    starts = other_starts(CHAIN, start)
    reverse = starts["the batch in reverse order"]
    expected = prepare(CHAIN.repeat(0), bnmc.FirstLayer(x[:, ::-1]), 1, None)
    np.testing.assert_allclose(reverse.matrix, expected.matrix, rtol=1e-12)


def test_two_samples_have_one_other_order_and_no_blocks():
    chain = bnmc.Chain(40, 2, "relu")
    start = prepare(chain.repeat(0), np.random.default_rng(2).standard_normal((40, 2)), 1, None)
    expected = {SAME_START, "independent samples", "samples near a line", min(sorted(ORDERS))}
    assert set(other_starts(chain, start)) == expected


@pytest.mark.parametrize("batch", [2, 3, 10])
def test_covariances_are_positive_definite_and_apart(batch):
    chain = bnmc.Chain(40, batch, "relu")
    starts = other_starts(chain, Covariance(np.eye(batch)))
    matrices = [start.matrix for start in starts.values()]
    assert min(np.linalg.eigvalsh(matrix).min() for matrix in matrices) >= 0.0099
    centre = np.eye(batch) - 1.0 / batch
    shapes = [centre @ matrix @ centre for matrix in matrices]
    shapes = [shape / np.trace(shape) for shape in shapes]
    if batch > 2:  # of two centred samples, the normalization sees only the scale
        for shape, other in itertools.combinations(shapes, 2):
            assert np.abs(shape - other).max() > 0.05


@pytest.mark.parametrize("batch", [2, 3, 10])
def test_samples_near_a_line_stand_at_even_places(batch):
    """They are p_i v and independent parts of variance 0.01, with p from 1 to 2 in equal steps."""
    start = prepare(bnmc.Chain(40, batch, "relu").repeat(0), "gaussian", 1, None)
    starts = other_starts(bnmc.Chain(40, batch, "relu"), start)["samples near a line"].matrix
    on_line = starts - 0.01 * np.eye(batch)
    assert np.linalg.matrix_rank(on_line, tol=1e-12) == 1
    places = np.sqrt(np.diagonal(on_line))
    assert places == pytest.approx([1.0 + k / (batch - 1) for k in range(batch)], rel=1e-12)


DEEP = Chain(50, 8, "relu")
HUGE = Chain(100, 20_000, "relu")

CALLS = {
    "tv_bound": lambda chain, count: bnmc.mixing.tv_bound(chain, 5, chains=count, lag=20, rng=0),
    "contraction": lambda chain, count: bnmc.mixing.contraction(chain, chains=count, rng=0),
    "expectation": lambda chain, count: bnmc.invariant.expectation(
        chain, "orthogonality_gap", chains=count, burn_in=5, length=10, lag=10, rng=0
    ),
}


@pytest.fixture
def nothing_runs(monkeypatch):
    """Fail if a pair is made."""

    def refused(*_, **__):
        raise AssertionError("a pair was made")

    for module in (pairs, coupling, contraction_rate):
        monkeypatch.setattr(module, "Pairs", refused)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(("chain", "count"), [(DEEP, 2**20), (HUGE, 2)])
def test_pairs_beyond_the_memory(call, chain, count, nothing_runs, monkeypatch):
    """Too many pairs, or too large a batch: here memory has 100 MB."""
    monkeypatch.setattr(machine, "available_memory", lambda: 100_000_000)
    tracemalloc.start()
    try:
        with pytest.raises(ResultTooLargeError, match="^(chains|batch): the result") as caught:
            CALLS[call](chain, count)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()
    assert caught.value.available == 100_000_000


@pytest.mark.parametrize("call", some(CALLS, "tv_bound", "expectation"))
def test_the_estimate_for_pairs_is_within_a_third_of_the_peak(call, monkeypatch):
    """A tenfold number of pairs is measured, as the rest of a small call is of the same size.

    One task runs at a time: how many tasks of several overlap depends on the load of the machine.
    """
    count = {"tv_bound": 4000, "contraction": 1000, "expectation": 500}[call]
    monkeypatch.setattr(workers, "available_processors", lambda: 1)
    with monkeypatch.context() as patch:
        patch.setattr(machine, "available_memory", lambda: 0)
        with pytest.raises(ResultTooLargeError) as caught:
            CALLS[call](DEEP, count)
    CALLS[call](DEEP, count // 10)
    tracemalloc.start()
    try:
        CALLS[call](DEEP, count)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert 1 / 1.3 < caught.value.requested / peak < 1.3


def test_each_task_that_runs_at_the_same_time_is_counted(monkeypatch):
    """64 pairs in tasks of two: a task alone, two at a time, and eight; two pairs are one task."""
    monkeypatch.setattr(machine, "available_memory", lambda: 0)

    def requested(count, threads):
        runs = coupling.CoupledPairs(DEEP, "gaussian", 0, 10, Parallel.of(threads))
        with pytest.raises(ResultTooLargeError) as caught:
            runs.size_of_task(count, 2)
        return caught.value.requested

    alone, two, four, eight = (requested(64, threads) for threads in (1, 2, 4, 8))
    assert two > alone
    assert four - alone == 3 * (two - alone)
    assert eight - alone == 7 * (two - alone)
    assert requested(2, 2) == requested(2, 8)


def test_inputs_of_one_network_beyond_the_memory(monkeypatch):
    monkeypatch.setattr(machine, "available_memory", lambda: 100_000_000)
    x, y = np.random.default_rng(0).normal(size=(2, 50, 8))
    with pytest.raises(ResultTooLargeError, match="^depth, chains: the result needs"):
        bnmc.mixing.two_inputs(DEEP, x, y, depth=1000, chains=1000, rng=0)


# --- assumptions, in sentences with their numbers

BOUND = AbsorbingEvent("dead sample", "It is dead.", 1e-6, 0.0, True)
MEAN = AbsorbingEvent("coinciding samples", "They coincide.", 2e-6, 1e-6, False)


def said(tail_probability=None, crossed_starts=(), absorbing_events=()):
    waited = np.array([10] * 496 + [40, 41, 50, 55])
    return assumptions(waited, 40, tail_probability, crossed_starts, absorbing_events)


def test_rare_events_are_invisible_unless_the_caller_excludes_them():
    sentence, others = said()
    assert "below about 1/500 in 40 layers" in sentence
    assert sentence.endswith("Of 500 pairs, 3 waited longer than 40 layers (at most 55).")
    assert others == "Other starts: not coupled, or without meeting."
    assert said(0.0)[0].startswith(
        "Stated by the caller: no pair waits longer than 40 layers. Of 5"
    )
    sentence, _ = said(1e-5)
    assert "longer than 40 layers with probability at most 1e-05. Each lag" in sentence


def test_other_starts_are_named():
    crossed = [CrossedStart("a line", np.arange(32)), CrossedStart("a block", np.arange(30), 2)]
    sentence = said(crossed_starts=crossed)[1]
    assert "from a line (32 pairs within 31 layers); a block (30 pairs within 29" in sentence
    assert "29 layers, 2 absorbed)." in sentence


def test_absorbing_events_come_with_their_probability():
    sentence = said(absorbing_events=[BOUND, MEAN])[2]
    assert "It is dead. Probability per layer: 1e-06." in sentence
    assert "They coincide. Probability per layer: 2e-06 ± 1e-06." in sentence
    # 10⁴ (1e-6 + 2e-6 + 3e-6).
    assert "Within 10000 layers this happens with probability about 0.06" in sentence
    assert "with probability at most 0.01" in said(absorbing_events=[BOUND])[2]


def test_the_probability_of_absorption_adds_up_to_at_most_one():
    assert absorption_probability([], 10**9) == 0.0
    assert absorption_probability([BOUND], 1000) == pytest.approx(1e-3)
    assert absorption_probability([BOUND, MEAN], 1000) == pytest.approx(6e-3)
    assert absorption_probability([BOUND], 10**7) == 1.0
    unknown = AbsorbingEvent("rank", "It is lost.", 0.1, np.inf, False)
    assert absorption_probability([unknown], 0) == 0.0
    assert absorption_probability([unknown], 1) == 1.0
