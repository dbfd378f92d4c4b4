"""Stationary expectations without bias, and samples of the invariant law with a certificate."""

import functools
import importlib
import math
from concurrent.futures import Executor, Future

import numpy as np
import pytest

import bnmc
from bnmc.errors import ArgumentError, ArgumentTypeError, NotMixing, PartialEstimateError
from bnmc.invariant import expectation, sample

# The package has a function of the same name.
EXPECTATION = importlib.import_module("bnmc.invariant.stationary_mean")
RELU = bnmc.Chain(20, 3, "relu")
NEARLY_EQUAL = np.random.default_rng(0).normal(size=(20, 1)) * [1.0, 1.05, 0.95] + [0.0, 0.1, -0.1]
# Not relu: a sample that is negative in all 20 rows would stay 0 forever.
UNCENTRED = bnmc.Chain(20, 3, "tanh", norm="batch-uncentred")


class AtOnce(Executor):
    """Runs each task as it is submitted: no threads, which cost more than small tasks do."""

    def submit(self, function, /, *args, **kwargs):
        future = Future()
        future.set_result(function(*args, **kwargs))
        return future


@functools.cache
def long_run(chain, of, chains=20_000):
    """Mean of a function of G after 60 layers, beyond what the chain remembers, and its error."""
    run = bnmc.simulate(chain, 60, chains=chains, rng=99, burn_in=60)
    values = of(run.gram[:, -1])
    return values.mean(), values.std() / math.sqrt(chains)


@pytest.mark.parametrize("lag", [1, 2, 3])
@pytest.mark.parametrize(("burn_in", "length"), [(0, 1), (0, 4), (3, 2)])
def test_there_is_no_bias_from_a_bad_start(lag, burn_in, length):
    # Layer 0 itself is far off.
    found = expectation(
        UNCENTRED, "orthogonality_gap", initial=NEARLY_EQUAL, burn_in=burn_in, length=length,
        lag=lag, replicates=3000, rng=[lag, burn_in],
    )  # fmt: skip
    start = bnmc.simulate(UNCENTRED, 0, initial=NEARLY_EQUAL, rng=0).gram[0, 0]
    truth, error = long_run(UNCENTRED, bnmc.gram.orthogonality_gap)
    assert bnmc.gram.orthogonality_gap(start) > truth + 0.2
    # 5.5 standard errors, 9 times: a false alarm in 3e-7.
    assert abs(found.value - truth) < 5.5 * math.hypot(found.stderr, error)
    assert found.n == 3000


def test_the_trace_of_a_linear_chain_is_the_batch_exactly():
    chain = bnmc.Chain(60, 3, "linear")
    for lag in (1, 3):
        found = expectation(chain, np.trace, burn_in=0, length=4, lag=lag, replicates=20, rng=0)
        # Each row has squares of sum n; some 100 terms of rounding.
        assert found.value == pytest.approx(3.0, abs=1e-12)
        assert found.stderr < 1e-12


def test_what_f_may_be():
    options = {"burn_in": 1, "length": 3, "lag": 2, "replicates": 30, "rng": 4}
    by_name = expectation(RELU, "orthogonality_gap", **options)
    gap = bnmc.gram.orthogonality_gap
    for f in (bnmc.Observable(gap, name="mine"), gap, lambda gram: float(gap(gram))):
        assert expectation(RELU, f, **options).value == pytest.approx(by_name.value, rel=1e-12)
    assert expectation(RELU, "log_scale", **options).value == 0.0


def test_what_is_not_given_is_chosen():
    found = expectation(RELU, "orthogonality_gap", replicates=300, rng=0)
    truth, error = long_run(RELU, bnmc.gram.orthogonality_gap)
    assert abs(found.value - truth) < 5.0 * math.hypot(found.stderr, error)
    given = expectation(RELU, "orthogonality_gap", replicates=300, rng=0, burn_in=2)
    assert abs(given.value - truth) < 5.0 * math.hypot(given.stderr, error)


def test_the_interval_covers(monkeypatch):
    # 700 seeds of 24 replicates: the share has a standard error of 0.8 %.  An error that is stated
    # 20 % too small, a share of 89 %, is missed with probability 0.004.
    monkeypatch.setattr(EXPECTATION, "available_processors", lambda: 1)
    monkeypatch.setattr(EXPECTATION, "BLOCK_LAYERS", 12)
    truth, _ = long_run(RELU, lambda grams: grams[:, 0, 1], chains=100_000)
    f = bnmc.Observable(lambda gram: gram[0, 1], name="entry")
    covered = []
    for seed in range(700):
        found = expectation(
            RELU, f, burn_in=4, length=1, lag=6, replicates=24, rng=[2, seed], executor=AtOnce()
        )
        covered.append(found.ci[0] <= truth <= found.ci[1])
    assert 0.925 <= np.mean(covered) <= 0.975


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"f": "gram"}, ArgumentError, "f: "),
        ({"f": lambda gram: gram}, ArgumentError, "f"),
        ({"f": bnmc.Observable(np.diag, shape=(3,), name="diagonal")}, ArgumentError, "f: "),
        ({"f": lambda gram: "one"}, ArgumentTypeError, "f"),
        ({"f": "traces"}, ArgumentError, "traces"),
        ({"f": 3}, ArgumentTypeError, "f: "),
        ({"f": lambda gram: 0.0 if gram[0, 1] == 0.0 else math.nan}, ArgumentError, "finite"),
        ({"chain": bnmc.Chain(20, 3, "linear", norm="none")}, ArgumentError, "norm"),
        ({"chain": bnmc.Chain(20, 3, "relu", skip=1.0)}, ArgumentError, "autocorrelation"),
        ({"burn_in": -1}, ArgumentError, "burn_in"),
        ({"length": 0}, ArgumentError, "length"),
        ({"lag": 0}, ArgumentError, "lag"),
        ({"replicates": 1}, ArgumentError, "replicates"),
        ({"level": 2.0}, ArgumentError, "level"),
    ],
)
def test_bad_input_to_expectation(options, error, said):
    given = {"chain": RELU, "f": np.trace, "burn_in": 1, "length": 2, "lag": 2, "replicates": 10}
    with pytest.raises(error, match=said):
        expectation(**(given | {"rng": 0} | options))


def test_pairs_that_do_not_meet_have_no_expectation():
    with pytest.raises(NotMixing, match="biased") as raised:
        expectation(RELU, np.trace, burn_in=1, length=2, lag=2, replicates=50, max_layers=2, rng=0)
    assert raised.value.partial is None
    assert raised.value.exponent < 0.0


def test_a_chain_that_loses_rank_has_no_expectation():
    with pytest.raises(NotMixing, match="lost rank") as raised:
        expectation(
            bnmc.Chain(3, 6, "linear"), "orthogonality_gap", burn_in=5, length=60, lag=2,
            replicates=4, rng=0,
        )  # fmt: skip
    assert raised.value.partial is None


def test_draws_have_the_invariant_law():
    # From samples near a line, whose law the first layers keep.
    rng = np.random.default_rng(5)
    line = rng.standard_normal((20, 1)) * [1.0, 1.5, 2.0] + 0.1 * rng.standard_normal((20, 3))
    drawn = sample(RELU, 4000, tolerance=0.02, initial=line, rng=0)
    assert drawn.gram.shape == (4000, 3, 3)
    assert drawn.certificate.layers_to(0.02) == drawn.layer
    assert drawn.certificate.replicates == 400
    truth = bnmc.simulate(RELU, 60, chains=4000, rng=1, burn_in=60).gram[:, -1]
    # Kolmogorov-Smirnov, with Massart's bound for both samples: a false alarm in 1e-6.
    allowed = 2.0 * math.sqrt(math.log(4.0 * 3 / 1e-6) / (2.0 * 4000)) + 0.02
    for of in (lambda g: g[:, 0, 0], lambda g: g[:, 0, 1], bnmc.gram.orthogonality_gap):
        mine, theirs = np.sort(of(drawn.gram)), np.sort(of(truth))
        both = np.concatenate([mine, theirs])
        apart = np.searchsorted(mine, both, "right") - np.searchsorted(theirs, both, "right")
        assert np.abs(apart).max() / 4000 < allowed


def test_preactivations_are_normal_rows_given_the_gram_matrix():
    chain = bnmc.Chain(20, 3, "relu", gain=2.0)
    drawn = sample(chain, 2000, tolerance=0.05, rng=3)
    h = drawn.preactivations()
    assert h.shape == (2000, 20, 3)
    np.testing.assert_array_equal(h, drawn.preactivations())
    # Whitened rows are 40,000 standard normal triples.
    factors = np.linalg.cholesky(4.0 * drawn.gram)
    z = np.linalg.solve(factors[:, None], h[..., None])[..., 0].reshape(-1, 3)
    count = len(z)
    assert np.abs(z.mean(axis=0)).max() < 5.5 / math.sqrt(count)
    # Var z² = 2, Var z z' = 1.
    allowed = 5.5 * np.sqrt((1.0 + np.eye(3)) / count)
    assert (np.abs(z.T @ z / count - np.eye(3)) < allowed).all()


def test_no_layer_is_certified_at_too_high_a_level():
    with pytest.raises(PartialEstimateError, match="certified") as raised:
        sample(RELU, 3, tolerance=0.01, level=1.0 - 1e-9, rng=0)
    assert raised.value.partial.replicates == 800


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"size": 0}, ArgumentError, "size"),
        ({"tolerance": 0.0}, ArgumentError, "tolerance"),
        ({"tolerance": 1e-12}, ArgumentError, "tolerance"),
        ({"max_layers": 0}, ArgumentError, "max_layers"),
        ({"executor": 3}, ArgumentTypeError, "executor"),
        ({"chain": bnmc.Chain(20, 3, "linear", norm="none")}, ArgumentError, "norm"),
    ],
)
def test_bad_input_to_sample(options, error, said):
    with pytest.raises(error, match=said):
        sample(**({"chain": RELU, "size": 3, "tolerance": 0.1, "rng": 0} | options))
