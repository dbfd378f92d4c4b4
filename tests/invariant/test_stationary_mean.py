"""Stationary expectations without bias."""

import functools
import importlib
import math

import numpy as np
import pytest
from stationary_processes import AtOnce

import bnmc
from bnmc._support import workers
from bnmc.errors import NotMixing
from bnmc.invariant import expectation
from bnmc.mixing import coupling

# The package has a function of the same name.
EXPECTATION = importlib.import_module("bnmc.invariant.stationary_mean")


RELU = bnmc.Chain(20, 3, "relu")


NEARLY_EQUAL = np.random.default_rng(0).normal(size=(20, 1)) * [1.0, 1.05, 0.95] + [0.0, 0.1, -0.1]


# Not relu: a sample that is negative in all 20 rows would stay 0 forever.
UNCENTRED = bnmc.Chain(20, 3, "tanh", norm="batch-uncentred")


@functools.cache
def long_run(chain, of, chains=8_000):
    """Mean of a function of G after 60 layers, beyond what the chain remembers, and its error."""
    run = bnmc.simulate(chain, 60, chains=chains, rng=99, burn_in=60)
    values = of(run.gram[:, -1])
    return values.mean(), values.std() / math.sqrt(chains)


#: Of burn-in, length and lag: states that overlap or not with those that the lag leaves out.
TERMS = [(3, 2, 1)]
MORE_TERMS = [
    (0, 4, 1), (3, 2, 2), (0, 1, 1), (0, 4, 3), (0, 1, 2), (0, 1, 3), (0, 4, 2), (3, 2, 3),
]  # fmt: skip


@pytest.mark.parametrize(
    ("burn_in", "length", "lag"),
    TERMS + [pytest.param(*terms, marks=pytest.mark.slow) for terms in MORE_TERMS],
)
def test_there_is_no_bias_from_a_bad_start(burn_in, length, lag):
    # Layer 0 itself is far off.
    estimate = expectation(
        UNCENTRED, "orthogonality_gap", initial=NEARLY_EQUAL, burn_in=burn_in, length=length,
        lag=lag, chains=3000, rng=[lag, burn_in],
    )  # fmt: skip
    start = bnmc.simulate(UNCENTRED, 0, initial=NEARLY_EQUAL, rng=0).gram[0, 0]
    truth, error = long_run(UNCENTRED, bnmc.gram.orthogonality_gap)
    assert bnmc.gram.orthogonality_gap(start) > truth + 0.2
    # 5.5 standard errors, 9 times: a false alarm in 3e-7.  A tenth of the bias of layer 0 is seen.
    allowed = 5.5 * math.hypot(estimate.stderr, error)
    assert (
        abs(estimate.value - truth) < allowed < 0.1 * (bnmc.gram.orthogonality_gap(start) - truth)
    )
    assert estimate.n == 3000


def test_the_error_is_that_of_independent_draws_if_pairs_meet_before():
    """By layer 25 nearly all pairs have met: each replicate is f of one state, without terms."""
    estimate = expectation(
        UNCENTRED, "orthogonality_gap", burn_in=25, length=1, lag=6, chains=1500, rng=5
    )
    run = bnmc.simulate(UNCENTRED, 30, chains=6000, rng=98, burn_in=30)
    values = bnmc.gram.orthogonality_gap(run.gram[:, -1])
    # Standard deviations of N values have the relative error √((kurtosis − 1)/4N).
    kurtosis = ((values - values.mean()) ** 4).mean() / values.var() ** 2
    allowed = 5.5 * math.sqrt((kurtosis - 1) / 4 * (1 / 1500 + 1 / 6000))
    assert allowed < 0.12
    assert estimate.stderr == pytest.approx(values.std() / math.sqrt(1500), rel=allowed)


def test_the_trace_of_a_linear_chain_is_the_batch_exactly():
    chain = bnmc.Chain(60, 3, "linear")
    for lag in (1, 3):
        estimate = expectation(chain, np.trace, burn_in=0, length=4, lag=lag, chains=20, rng=0)
        # Each row has squares of sum n; some 100 terms of rounding.
        assert estimate.value == pytest.approx(3.0, abs=1e-12)
        assert estimate.stderr < 1e-12


def test_what_f_may_be():
    options = {"burn_in": 1, "length": 3, "lag": 2, "chains": 30, "rng": 4}
    by_name = expectation(RELU, "orthogonality_gap", **options)
    gap = bnmc.gram.orthogonality_gap
    for f in (bnmc.Observable(gap, name="mine"), gap, lambda gram: float(gap(gram))):
        assert expectation(RELU, f, **options).value == pytest.approx(by_name.value, rel=1e-12)
    assert expectation(RELU, "log_scale", **options).value == 0.0


def test_what_is_not_given_is_chosen():
    estimate = expectation(RELU, "orthogonality_gap", chains=300, rng=0)
    truth, error = long_run(RELU, bnmc.gram.orthogonality_gap)
    assert abs(estimate.value - truth) < 5.0 * math.hypot(estimate.stderr, error) < 0.2 * truth
    given = expectation(RELU, "orthogonality_gap", chains=300, rng=0, burn_in=2)
    assert abs(given.value - truth) < 5.0 * math.hypot(given.stderr, error) < 0.2 * truth


@pytest.mark.parametrize("chosen", ["burn_in", "length", "lag"])
def test_the_median_wait_of_the_pilot_chooses_each_that_is_not_given(monkeypatch, chosen):
    """Of the waiting times 1 to 32, the 17th is the first that half of the pairs do not exceed."""
    waits = np.arange(1.0, 33.0)
    monkeypatch.setattr(coupling.CoupledPairs, "pilot_waits", lambda self, first: waits)
    as_chosen = {"burn_in": 17, "length": 85, "lag": 17}
    given = {name: number for name, number in as_chosen.items() if name != chosen}
    estimate = expectation(RELU, "orthogonality_gap", chains=20, rng=0, **given)
    same = expectation(RELU, "orthogonality_gap", chains=20, rng=0, **as_chosen)
    assert estimate == same
    changed = as_chosen | {chosen: as_chosen[chosen] + 1}
    assert estimate != expectation(RELU, "orthogonality_gap", chains=20, rng=0, **changed)


@pytest.mark.slow
def test_the_interval_covers(monkeypatch):
    # 700 seeds of 24 pairs: the share has a standard error of 0.8 %.  An error that is stated
    # 20 % too small, a share of 89 %, is missed with probability 0.004.
    monkeypatch.setattr(workers, "available_processors", lambda: 1)
    monkeypatch.setattr(EXPECTATION, "BLOCK_LAYERS", 12)
    # Neither of these enters the interval.
    monkeypatch.setattr(coupling.CoupledPairs, "cross_starts", lambda self, *arguments: ())
    monkeypatch.setattr(
        coupling.CoupledPairs, "absorbing_events", lambda self, layer, replicates: ()
    )
    truth, _ = long_run(RELU, lambda grams: grams[:, 0, 1], chains=100_000)
    f = bnmc.Observable(lambda gram: gram[0, 1], name="entry")
    covered = []
    for seed in range(700):
        estimate = expectation(
            RELU, f, burn_in=4, length=1, lag=6, chains=24, rng=[2, seed], executor=AtOnce()
        )
        covered.append(estimate.ci[0] <= truth <= estimate.ci[1])
    assert 0.925 <= np.mean(covered) <= 0.975


def test_pairs_that_do_not_meet_have_no_expectation(monkeypatch):
    monkeypatch.setattr(coupling.CoupledPairs, "cross_starts", lambda self, *arguments: ())
    with pytest.raises(NotMixing, match="biased") as raised:
        expectation(RELU, np.trace, burn_in=1, length=2, lag=2, chains=50, max_layers=2, rng=0)
    assert raised.value.partial is None
    assert raised.value.exponent < 0.0


def test_a_chain_that_loses_rank_has_no_expectation():
    with pytest.raises(NotMixing, match="lost rank") as raised:
        expectation(
            bnmc.Chain(3, 6, "linear"), "orthogonality_gap", burn_in=5, length=60, lag=2,
            chains=4, rng=0,
        )  # fmt: skip
    assert raised.value.partial is None


def test_a_mean_says_what_it_assumes():
    chain = bnmc.Chain(16, 2, "relu", norm="batch-uncentred")
    estimate = expectation(chain, "orthogonality_gap", chains=50, burn_in=9, length=40, rng=0)
    assert "1/50 in 48 layers" in estimate.assumes[0]
    assert "samples near a line" in estimate.assumes[1]
    assert "All activations of a sample are 0" in estimate.assumes[2]
    assert estimate.as_json()["assumes"] == estimate.assumes


def test_the_pairs_that_choose_the_lag_are_none_of_the_replicates(monkeypatch):
    seen, run = [], coupling.CoupledPairs.run

    def recorded(self, lag, first, last, behind=None):
        seen.append((first, last))
        return run(self, lag, first, last, behind)

    monkeypatch.setattr(coupling.CoupledPairs, "run", recorded)
    expectation(RELU, "orthogonality_gap", chains=50, rng=0)
    numbers = [number for first, last in seen for number in range(first, last)]
    assert min(numbers) == 50
    assert len(set(numbers)) == len(numbers) > 32


@pytest.mark.untraced
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"norm": "layer", "order": "activation-norm"}, marks=pytest.mark.slow),
        pytest.param({"norm": "group(3)", "bias_variance": 0.05}, marks=pytest.mark.slow),
        {"norm": "batch-uncentred", "bias_variance": 0.3},
    ],
    ids=["layer after", "groups with bias", "uncentred with bias"],
)
def test_the_mean_of_other_layers_is_that_of_long_runs(options):
    chain = bnmc.Chain(30, 3, "sin", **options)
    estimate = expectation(chain, "orthogonality_gap", chains=200, rng=4)
    run = bnmc.simulate(chain, 80, chains=3000, observables="orthogonality_gap", burn_in=80, rng=5)
    values = run["orthogonality_gap"][:, -1]
    error = math.hypot(estimate.stderr, values.std(ddof=1) / math.sqrt(3000))
    # Student's t with 199 degrees of freedom exceeds 6 with probability 1e-8.
    assert abs(estimate.value - values.mean()) < 6.0 * error < 0.5 * values.mean()
