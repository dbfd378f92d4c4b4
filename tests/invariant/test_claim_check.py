"""`invariant.check`: it keeps silent on correct chains, and catches what is slightly wrong.

Statistical tests have fixed seeds and raise a false alarm with probability 1e-6 at most. A fault
counts as caught only by a margin, see `caught`.
"""

import importlib
import json
import math

import numpy as np
import pytest
from numpy_network import Networks, standardised
from numpy_steps import after, row_of, settled, step_of
from oracle import FALSE_ALARM, FORMULAS
from scipy import special, stats
from slow_cases import slow, some

import bnmc
from bnmc import errors
from bnmc._claims.claims import _is_symmetric, assessed, uniqueness
from bnmc._claims.layer import Layer, next_states
from bnmc.invariant.claim_check import check

RELU = bnmc.Chain(10, 3, "relu")


def caught(report, claim):
    """Whether a row fails, so clearly that a repetition misses it with probability 1e-6 at most.

    That is where the mean is as many standard errors off as the verdict needs, and 4.75 more.
    """
    row = row_of(report, claim)
    tests = row.count * sum(other.p_value is not None for other in report.rows)
    needed = stats.norm.isf(report.alpha / (2 * tests)) + stats.norm.isf(FALSE_ALARM)
    off = abs(row.statistic - row.expected)
    return row.verdict == "fails" and off > needed * row.stderr


# ---------------------------------------------------------------- correct chains


@pytest.mark.slow
def test_false_alarms_are_as_rare_as_promised():
    """500 reports on a correct network, 200 samples of 10 rows each: half of them on its step.

    The samples of two reports are 10 layers apart, after which .39^10 = 8e-5 of a deviation is left
    (the rate of relu at n = 3). Four kinds of assertions, each at a quarter of 1e-6.
    """
    rng = np.random.default_rng(1)
    step = step_of("relu", rng, weights="gaussian")
    h = settled(RELU, step, 200, rng, layers=20)
    reports = []
    for seed in range(500):
        h = after(step, h, 10)
        reports.append(check(RELU, samples=h, step=step if seed % 2 else None, rng=seed))
    # Adjusted p-values give the verdicts at every alpha.
    least = [
        min(row.adjusted for row in report.rows if row.adjusted is not None) for report in reports
    ]
    alarms = {alpha: np.count_nonzero(np.array(least) <= alpha) for alpha in (0.05, 0.01, 0.001)}
    for alpha, count in alarms.items():
        assert count <= stats.binom.isf(FALSE_ALARM / 4, len(reports), alpha)
    assert alarms[0.001] == sum(not report.ok for report in reports)
    assert_uniform(reports)


def assert_uniform(reports):
    """Each claim's p-values: in the band of Dvoretzky, Kiefer, Wolfowitz; Bonferroni's above it."""
    claims = {row.claim: row.count for row in reports[1].rows if row.p_value is not None}
    assert len(claims) == 25
    for claim, count in claims.items():
        rows = [row for report in reports for row in report.rows if row.claim == claim]
        p = np.sort([row.p_value for row in rows])
        if claim == "one step: rows in the range of G":  # not a matter of chance
            assert (p == 1.0).all()
            continue
        below = np.arange(1, p.size + 1) / p.size
        allowance = math.sqrt(math.log(8 * len(claims) / FALSE_ALARM) / (2 * p.size))
        assert (below - p).max() <= allowance, claim
        if count == 1:
            assert (p - below + 1 / p.size).max() <= allowance, claim


@pytest.mark.parametrize(
    "chain",
    [
        slow(bnmc.Chain(40, 4, "relu")),
        slow(bnmc.Chain(60, 3, "linear", gain=1e-3)),
        bnmc.Chain(30, 3, "tanh", norm="batch-uncentred", gain=7.0),
        bnmc.Chain(30, 2, "relu", eps=1e-3),
        pytest.param(
            bnmc.Chain(40, 3, "relu", norm="layer", order="activation-norm", bias_variance=0.05),
            marks=pytest.mark.slow,
        ),
    ],
    ids=repr,
)
def test_the_chains_of_the_library_pass(chain):
    """Five chains at alpha 2e-7 each."""
    report = check(chain, chains=400, atol=0.05, alpha=FALSE_ALARM / 5, rng=2, ahead=2)
    assert report.ok, report
    names = [row.claim for row in report.rows]
    assert "uniqueness: orthogonality gap of G" in names
    assert not any(name.startswith("one step") for name in names)
    assert report.chains == 400
    assert "of layer" in report.source


@pytest.mark.slow
def test_chains_of_the_library_pass_at_other_seeds():
    """The draws of the library have the stationary law only to a tolerance: 12 seeds at alpha .05.

    More than 6 alarms have probability 1e-6.
    """
    alarms = [not check(RELU, chains=200, atol=0.05, alpha=0.05, rng=s).ok for s in range(12)]
    assert sum(alarms) <= stats.binom.isf(FALSE_ALARM, 12, 0.05)


#: Options of a chain, those of its network, and the claims that are left out for it.
GIVEN = {
    "uniform": ({"weights": "uniform"}, {"weights": "uniform"}, ["Gaussian"]),
    "signs": ({"weights": "rademacher"}, {"weights": "rademacher"}, ["Gaussian"]),
    "haar": ({"weights": "haar"}, {"weights": "haar"}, ["Gaussian"]),
    "own weights": (
        {"weights": lambda rng, shape: rng.standard_normal(shape)},
        {"weights": "gaussian"},
        ["Gaussian", "sign"],
    ),
    "linear residual": (
        {"width": 30, "activation": "linear", "norm": "batch-uncentred", "skip": 1.0},
        {"skip": 1.0, "centred": False},
        ["Gaussian"],
    ),
    "residual": ({"width": 30, "skip": 0.5}, {"skip": 0.5}, ["Gaussian", "sign", "uncorrelated"]),
}


# With a step, the samples are tested as without.
@pytest.mark.parametrize("name", some(GIVEN, *(set(GIVEN) - {"haar", "linear residual"})))
@pytest.mark.parametrize("with_step", [slow(False), True])
def test_given_samples_of_any_chain_pass(name, with_step):
    options, law, left_out = GIVEN[name]
    chain = bnmc.Chain(**{"width": 20, "batch": 3, "activation": "relu"} | options)
    rng = np.random.default_rng(3)
    step = step_of(chain.activation.name, rng, **law)
    samples = settled(chain, step, 600, rng, layers=40)
    report = check(
        chain, samples=samples, step=step if with_step else None, alpha=FALSE_ALARM / 10, rng=3
    )
    assert report.ok, report
    names = " ".join(row.claim for row in report.rows if not row.claim.startswith("one step"))
    for word in ("Gaussian", "sign", "uncorrelated"):
        assert (word in names) == (word not in left_out)
    assert any(row.claim.startswith("one step") for row in report.rows) == with_step


@pytest.mark.slow
def test_weights_whose_law_is_not_symmetric():
    """Signs of rows matter then, also to the mean of products over a scale of all rows.

    Divided by it, the rows would be found to be correlated, with a p-value of 1e-26 here.
    """

    def weights(rng, shape):
        return rng.exponential(1.0, shape) - 1

    rng = np.random.default_rng(30)
    chain = bnmc.Chain(5, 2, "sigmoid", weights=weights)
    h = rng.standard_normal((60_000, 5, 2))
    for _ in range(12):
        h = weights(rng, (60_000, 5, 5)) @ FORMULAS["sigmoid"](standardised(h)) / math.sqrt(5)
    report = check(chain, samples=h, alpha=FALSE_ALARM, rng=30)
    assert report.ok, report


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "longdouble"])
def test_samples_of_any_precision(dtype):
    """Centred linear chains: in coarse numbers the rows sum to 0 only nearly."""
    chain = bnmc.Chain(20, 4, "linear")
    rng = np.random.default_rng(4)
    exact = step_of("linear", rng)

    def step(h):
        assert h.dtype in (np.float32, np.float64)
        return exact(h.astype(np.float64)).astype(dtype)

    samples = settled(chain, exact, 400, rng).astype(dtype)
    for function in (None, step):
        report = check(chain, samples=samples, step=function, alpha=FALSE_ALARM / 8, rng=4)
        assert report.ok, report


# ---------------------------------------------------------------- faults


# Each is caught in samples of this size, and a correct network of the same size passes.
def leaky(x):
    return np.where(x > 0, x, 0.03 * x)


def smooth(x):
    """Like tanh, with the same slope at 0 and the same limits."""
    return special.erf(0.5 * math.sqrt(math.pi) * x)


def faulty(width, batch, count, activation="relu", sigma=None, **fault):
    """Return a chain, the number of samples, and the activation and the options of a network."""
    return bnmc.Chain(width, batch, activation), count, sigma or activation, fault


#: Faults in samples and in steps, with the claim that shows them.
FAULTS = {
    "variance 4 % off": (faulty(100, 5, 800, variance=1.04), "E hᵀh/d = gain² E G: centred"),
    "ddof 1": (faulty(20, 5, 300, ddof=1), "E hᵀh/d = gain² E G: centred"),
    "uniform weights": (faulty(10, 3, 1500, weights="uniform"), "rows: Gaussian, entries"),
    "erf for tanh": (faulty(100, 5, 500, "tanh", smooth), "E hᵀh/d = gain² E G: centred"),
    "variance 2 % off": (faulty(100, 5, 3000, variance=1.02), "E hᵀh/d = gain² E G: centred"),
    "step: variance 4 % off": (
        faulty(60, 5, 700, variance=1.04),
        "one step: variance relative to G",
    ),
    "step: ddof 1": (faulty(20, 5, 300, ddof=1), "one step: variance relative to G"),
    "step: uniform weights": (faulty(10, 3, 1500, weights="uniform"), "one step: rows Gaussian"),
    "step: leaky relu": (faulty(100, 5, 1000, sigma=leaky), "one step: covariance"),
    "step: variance 2 % off": (
        faulty(60, 5, 2500, variance=1.02),
        "one step: variance relative to G",
    ),
}
#: Each time, such a fault is in samples or in a step.
SLOW = (
    "variance 2 % off", "step: leaky relu", "step: variance 2 % off", "variance 4 % off",
    "step: uniform weights", "step: ddof 1",
)  # fmt: skip


@pytest.mark.parametrize("name", some(FAULTS, *(name for name in FAULTS if name not in SLOW)))
def test_faults_show_and_a_correct_network_passes(name):
    """Steps begin at draws of the library, which also show that one step keeps the law, or not."""
    (chain, count, sigma, fault), claim = FAULTS[name]
    is_step = name.startswith("step")
    seed = 6 if is_step else 5
    rng = np.random.default_rng(seed)

    def report_on(step, **options):
        of_step = {"step": step, "chains": count, "atol": 0.05}
        given = of_step if is_step else {"samples": settled(chain, step, count, rng)}
        return check(chain, rng=seed, **given, **options)

    report = report_on(step_of(sigma, rng, **fault))
    assert caught(report, claim)
    assert report.source.endswith("taken on by `step`") == is_step
    # The states that a step ends in are tested as samples are.
    if "uniform" in name:
        assert caught(report, "rows: Gaussian, entries")
    report = report_on(step_of(chain.activation.name, rng), alpha=FALSE_ALARM / 4)
    assert report.ok, report


def near_lines(chain, count, rng):
    """Starts that are far from the stationary law, and exchangeable: near a line each."""
    shape = count, chain.width, chain.batch
    lines = rng.standard_normal((*shape[:2], 1)) * rng.standard_normal((count, 1, chain.batch))
    return lines + 0.1 * rng.standard_normal(shape)


@pytest.mark.parametrize("ahead", [pytest.param(1, marks=pytest.mark.slow), 5])
def test_a_burn_in_that_is_too_short_shows(ahead):
    """3 layers, of the 20 that reach the stationary law for this test, from samples near a line."""
    rng = np.random.default_rng(8)
    chain = bnmc.Chain(100, 5, "relu")
    step = step_of("relu", rng)
    h = after(step, near_lines(chain, 1000, rng), 3)
    claim = "invariance: orthogonality gap of hᵀh"
    early = check(chain, samples=h, ahead=ahead, rng=8)
    assert caught(early, claim)
    late = check(chain, samples=after(step, h, 17), ahead=ahead, alpha=FALSE_ALARM / 2, rng=8)
    assert late.ok, late


def test_dependent_samples_show():
    rng = np.random.default_rng(9)
    chain = bnmc.Chain(60, 8, "linear")
    step = step_of("linear", rng)
    h = settled(chain, step, 2, rng)[0]
    successive = np.stack([h := step(h) for _ in range(1500)])
    assert caught(check(chain, samples=successive, rng=9), "samples: no serial correlation")
    twice = np.repeat(settled(chain, step, 200, rng), 2, axis=0)
    assert caught(check(chain, samples=twice, rng=9), "samples: uncorrelated")


@pytest.mark.parametrize("activation", ["relu", "linear"])
def test_weights_that_are_drawn_only_once_show(activation):
    rng = np.random.default_rng(10)
    chain = bnmc.Chain(20, 3, activation)
    samples = settled(chain, step_of(activation, rng), 400, rng)
    W = rng.standard_normal((20, 20)) / math.sqrt(20)
    report = check(chain, samples=samples, step=lambda h: W @ FORMULAS[activation](standardised(h)))
    assert caught(report, "one step: calls independent")


def test_other_chains_are_not_taken_for_the_same():
    """Width 40 and 60, which differ in the gap by √(2/3), in 400 samples."""
    grams = [
        bnmc.simulate(bnmc.Chain(width, 4, "relu"), 30, chains=400, rng=11, burn_in=30).gram[:, -1]
        for width in (40, 60)
    ]
    by_claim = uniqueness(*grams)
    assert len(by_claim) == 5
    p = {name: assessed(name, evidence, 2e-16).p_value for name, evidence in by_claim.items()}
    assert p["uniqueness: orthogonality gap of G"] < FALSE_ALARM**2


def one_row_short(h):
    h[:, 7] *= 0.7
    return h


def unequal_samples(h):
    h[:, :, 1] *= 1.25
    return h


def neighbours_alike(h):
    h[:, 1::2] = 0.9 * h[:, 1::2] + math.sqrt(1 - 0.81) * h[:, ::2]
    return h


def common_scale(h):
    """Rows that know of each other, each of them Gaussian given a random scale of all."""
    scale = np.random.default_rng(0).choice([0.5, math.sqrt(1.75)], (len(h), 1, 1))
    return scale * h


@pytest.mark.parametrize(
    ("spoil", "claim"),
    [
        (one_row_short, "rows: exchangeable"),
        (unequal_samples, "batch: exchangeable"),
        (lambda h: h + 0.1, "rows: sign symmetry"),
        (neighbours_alike, "rows: uncorrelated"),
        (common_scale, "invariance: log trace of hᵀh/d"),
        (lambda h: h + 0.2, "one step: mean 0"),
        (lambda h: neighbours_alike(h[None])[0], "one step: rows independent"),
        (lambda h: h + 1e-3, "one step: rows in the range of G"),
    ],
)
def test_each_claim_can_fail(spoil, claim):
    is_step = claim.startswith("one step")
    rng = np.random.default_rng(12 if is_step else 11)
    chain = bnmc.Chain(20, 4, "linear" if is_step else "relu")
    exact = step_of(chain.activation.name, rng)
    samples = settled(chain, exact, 400 if is_step else 1000, rng)
    if is_step:
        report = check(chain, samples=samples, step=lambda h: spoil(exact(h)), rng=12)
    else:
        report = check(chain, samples=spoil(samples), rng=11)
    assert caught(report, claim)


# ---------------------------------------------------------------- the report


@pytest.fixture(scope="module")
def samples():
    rng = np.random.default_rng(23)
    return settled(RELU, step_of("relu", rng), 200, rng)


def test_a_seed_gives_one_report_and_input_stays(samples):
    given = samples.copy()
    given.flags.writeable = False

    def step(h):
        h *= 2.0  # its own copy
        return h

    calls = []
    first = check(RELU, samples=given, rng=26, progress=lambda *done: calls.append(done))
    assert calls == [(200, 200)]
    assert check(RELU, samples=given.tolist(), rng=26) == first
    assert check(RELU, samples=given, rng=27) != first
    assert not check(RELU, samples=given, step=step).ok
    np.testing.assert_array_equal(given, samples)


class Tensor:
    """An array of another library, whose dtypes are not those of NumPy."""

    dtype = "torch.float32"

    def __init__(self, array):
        self.array = array

    def __array__(self, dtype=None, copy=None):
        return self.array if dtype is None else self.array.astype(dtype)


def test_arrays_of_other_libraries(samples):
    single = samples.astype(np.float32)
    steps = [step_of("relu", np.random.default_rng(32)) for _ in range(2)]

    def report(step, wrapped):
        taken = {"samples": wrapped(single), "step": lambda h: wrapped(step(h).astype(np.float32))}
        return check(RELU, rng=32, **taken)

    assert report(steps[0], Tensor) == report(steps[1], np.asarray)


@pytest.mark.parametrize("factor", [1e-29, 1e29])
def test_samples_of_any_scale(samples, factor):
    """No over- or underflow where they are far off, nor where the gain is as large."""
    off = check(RELU, samples=factor * samples, rng=33)
    assert caught(off, "E hᵀh/d = gain² E G: centred")
    chain = bnmc.Chain(10, 3, "relu", gain=factor)
    assert check(chain, samples=factor * samples, alpha=FALSE_ALARM / 2, rng=33).ok


def test_blocks_of_samples_are_no_part_of_the_result(samples, monkeypatch):
    step = step_of("relu", np.random.default_rng(28))
    whole = check(RELU, samples=samples, step=step, rng=28)
    # Not by its dotted name, which is that of the function.
    module = importlib.import_module("bnmc.invariant.claim_check")
    monkeypatch.setattr(module, "BLOCK_NUMBERS", 30 * 14)
    step = step_of("relu", np.random.default_rng(28))
    parts = check(RELU, samples=samples, step=step, rng=28)
    for row, other in zip(whole.rows, parts.rows, strict=True):
        assert row.statistic == pytest.approx(other.statistic, rel=1e-9, abs=1e-9), row.claim


# ---------------------------------------------------------------- bad input


def with_entry(samples, value):
    """Return samples of which one has zeros, and a column of another value."""
    samples = samples.copy()
    samples[5] = np.where(np.arange(3) == 1, value, 0.0)
    return samples


@pytest.mark.parametrize(
    ("of_chain", "options", "message"),
    [
        ({"batch": 4}, {}, r"^samples: got \(200, 10, 3\), allowed: .*\(N, 10, 4\)"),
        ({"weights": "haar", "bias_variance": 0.1}, {},
         "^bias_variance: got 0.1, allowed: 0 for orthogonal"),
        ({"weights": lambda rng, shape: np.zeros(3)}, {},
         r"^weights\(rng, shape\): got \(3,\)"),
        ({}, {"samples": lambda h: h[1:]},
         r"^samples: got \(199, 10, 3\), allowed: at least 200"),
        ({}, {"samples": lambda h: with_entry(h, math.nan)}, "^samples: got nan"),
        ({}, {"samples": lambda h: with_entry(h, 1e31)},
         r"^samples: got 1e\+31, allowed: states whose largest entry over the gain is 1e-30"),
        ({}, {"samples": lambda h: with_entry(h, 1e-40)}, r"^samples: got 1e-40"),
        ({}, {"samples": lambda h: with_entry(h, 0.0)}, r"^samples: got 0.0"),
        ({}, {"step": lambda h: h[:, :2]}, r"^step\(h\): got \(10, 2\)"),
        ({}, {"step": lambda h: h / 0.0}, r"^step\(h\): got -?inf"),
        ({}, {"step": lambda h: 1e40 * h}, r"^step\(h\): got .*e\+40"),
        ({}, {"step": lambda h: 1e-40 * h}, r"^step\(h\): got .*e-40"),
        # Arguments that samples make idle are checked, too.
        ({}, {"chains": 10}, "^chains: "),
        ({}, {"atol": 0.0}, "^atol: "),
        ({}, {"max_layers": 0}, "^max_layers: "),
    ],
)  # fmt: skip
def test_arguments_that_are_not_allowed(samples, of_chain, options, message):
    chain = bnmc.Chain(**{"width": 10, "batch": 3, "activation": "relu"} | of_chain)
    if "samples" in options:
        samples, options = options["samples"](samples), {}
    with (
        np.errstate(divide="ignore", invalid="ignore"),
        pytest.raises(errors.ArgumentError, match=message),
    ):
        check(chain, samples=samples, **options)


def test_errors_of_samples_and_steps(samples):
    flat = samples.copy()
    flat[150, 4] = 1.0
    with pytest.raises(errors.ZeroVarianceError) as caught:
        check(RELU, samples=flat)
    assert (caught.value.chain, caught.value.row) == (150, 4)
    with pytest.raises(errors.ArgumentTypeError, match="^samples: "):
        check(RELU, samples=samples + 1j)
    with pytest.raises(errors.ArgumentTypeError, match=r"^step\(h\): got None"):
        check(RELU, samples=samples, step=lambda h: None)
    with pytest.raises(KeyError):  # the user's own error comes through
        check(RELU, samples=samples, step=lambda h: {}["weights"])


def test_the_largest_number_of_layers(samples):
    assert check(RELU, samples=samples, max_layers=2**30, rng=0).rows
    for value in (2**30 + 1, 2**31):
        with pytest.raises(errors.ArgumentError, match=f"^max_layers: got {value}, "):
            check(RELU, samples=samples, max_layers=value)


def test_bad_activations(samples):
    zero = bnmc.Chain(10, 3, bnmc.Activation(lambda x: 0.0 * x))
    for step in (None, step_of("relu", np.random.default_rng(31))):
        with pytest.raises(errors.ZeroVarianceError) as caught:
            check(zero, samples=samples, step=step)
        assert caught.value.chain == 0
    huge = bnmc.Activation(lambda x: 1e40 * x)
    with pytest.raises(errors.NonFiniteError, match="activation"):
        check(bnmc.Chain(10, 3, huge), samples=samples)


def test_states_that_tell_nothing_are_no_failure():
    """Batches of 2 are normalised to ±1: for odd σ the Gram matrix is one and the same."""
    rng = np.random.default_rng(29)
    chain = bnmc.Chain(20, 2, "tanh")
    step = step_of("tanh", rng)
    report = check(
        chain, samples=settled(chain, step, 300, rng), step=step, alpha=FALSE_ALARM, rng=29
    )
    assert report.ok
    assert row_of(report, "invariance: trace of G").p_value == 1.0
    for row in report.rows:
        assert all(math.isfinite(x) for x in (row.statistic, row.stderr or 0, row.p_value or 0))


@pytest.mark.slow
def test_a_report_on_a_chain_that_dies_rarely_says_so():
    # At width 20 a sample dies with probability 2⁻²⁰ a layer: no test on draws can show it.
    chain = bnmc.Chain(20, 2, "relu", norm="batch-uncentred")
    report = check(chain, chains=200, atol=0.05, rng=0)
    assert "of the quasi-stationary law" in report.source
    assert any("All activations of a sample are 0" in text for text in report.assumes)
    assert str(report).endswith(report.assumes[-1])
    assert report.to_dict()["assumes"] == list(report.assumes)


def test_a_report_on_given_samples_assumes_nothing(samples):
    assert check(RELU, samples=samples, rng=0).assumes == ()


# ---------------------------------------------------------------- other layers


def layers_of(chain, rng, depth=60, states=400):
    """States of networks in NumPy, and a step of them, with drawn weights and biases."""

    def step(h):
        below = h.reshape(-1, chain.width, chain.batch)
        return Networks(chain, 1, len(below), rng, below).h[1].reshape(h.shape)

    return Networks(chain, depth, states, rng).h[-1], step


OF_LAYERS = {
    "layer after relu": {"activation": "relu", "norm": "layer", "order": "activation-norm"},
    "groups and bias": {
        "activation": "sin", "norm": "group(2)", "bias_variance": 0.2, "gain": 0.8,
    },
    "batch with hidden bias": {"activation": "relu", "bias_variance": 0.2},
}  # fmt: skip


@pytest.mark.untraced
@pytest.mark.parametrize("name", some(OF_LAYERS, "batch with hidden bias"))
def test_networks_of_other_layers_pass_and_others_fail(name):
    chain = bnmc.Chain(20, 3, **OF_LAYERS[name])
    states, step = layers_of(chain, np.random.default_rng(31))
    assert check(chain, samples=states, rng=32).ok
    assert check(chain, samples=states, step=step, rng=33).ok
    norm = "layer" if chain.norm == "group(2)" else "rms"
    bias = 0.0 if chain.bias_variance > 0.0 else 0.3
    other = bnmc.Chain(
        20, 3, chain.activation, norm=norm, order=chain.order, bias_variance=bias, gain=chain.gain
    )
    wrong = layers_of(other, np.random.default_rng(34))[1]
    assert not check(chain, samples=states, step=wrong, rng=35).ok


@pytest.mark.untraced
def test_biases_of_pytorch_are_part_of_the_next_states():
    chain = bnmc.Chain(6, 3, "tanh", norm="rms", weights="pytorch", bias_variance=1.0)
    rng = np.random.default_rng(38)
    h = rng.standard_normal((3000, 6, 3))
    layer = Layer.of(chain, h, 0)
    common = next_states(chain, layer, rng).mean(axis=2)
    expected = chain.gain**2 * layer.gram.mean(axis=(1, 2))
    error = np.square(common).mean(axis=1) - expected
    assert abs(error.mean()) < 6.0 * error.std() / np.sqrt(3000)
    assert np.abs(expected).mean() > 1.0


def test_a_skip_connection_breaks_the_symmetry_of_means_over_features():
    for norm, symmetric in (("rms", True), ("layer", False), ("batch", True)):
        chain = bnmc.Chain(20, 3, "tanh", norm=norm, skip=0.5)
        assert _is_symmetric(chain) is symmetric


def test_a_report_is_a_table(samples):
    report = check(RELU, samples=2 * samples, rng=24)
    head, tested, others = (part.splitlines() for part in report.table().split("\n\n"))
    held = sum(row.verdict == "holds" for row in report.rows)
    count = held + len(report.failures)
    assert head == [
        f"The stationary law of {RELU!r}: 200 samples, given",
        f"{held} of {count} tested claims hold. If all are true, one fails with probability 0.001 "
        "at most.",
    ]
    assert tested[0].split() == [
        "claim", "measured", "expected", "std.", "error", "adjusted", "p", "verdict"
    ]  # fmt: skip
    assert others[0].split() == ["not", "tested", "measured", "95", "%", "interval", "prediction"]
    assert not report.ok
    assert report.failures
    assert all(row.verdict == "fails" for row in report.failures)
    rows = [row for row in report.rows if row.p_value is not None]
    for row, line in zip(rows, tested[1:], strict=True):
        assert line.startswith(row.claim)
        assert f"{row.statistic:.4g}" in line
        assert f"{row.adjusted:.2g}" in line
        assert line.endswith(row.verdict)
        assert ("worst of" in line) == (row.count > 1)
    rows = [row for row in report.rows if row.p_value is None]
    for row, line in zip(rows, others[1:], strict=True):
        assert line.startswith(row.claim)
        assert "[{:.4g}, {:.4g}]".format(*row.interval) in line
    assert max(map(len, report.table().splitlines())) <= 100
    short = str(report).splitlines()
    assert len(short) <= 25
    # Columns of fewer rows can be narrower.
    words = [
        {" ".join(line.split()) for line in text} for text in (short, [*head, *tested, *others])
    ]
    (more,) = words[0] - words[1] - {""}
    shown = len(
        [line for line in short if line.startswith(tuple(row.claim for row in report.rows))]
    )
    assert more == f"… and {len(report.rows) - shown} more claims: see table()"
    for row in report.failures:
        assert any(line.startswith(row.claim) for line in short)


def test_a_report_can_be_stored(samples):
    report = check(RELU, samples=samples, rng=25)
    stored = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert stored == report.to_dict()
    assert stored["chain"] == RELU.as_json()
    assert stored["ok"] is True
    assert [row["claim"] for row in stored["rows"]] == [row.claim for row in report.rows]
    assert set(stored["rows"][0]) == {
        "claim", "statistic", "expected", "stderr", "interval", "p_value", "adjusted", "verdict",
        "count",
    }  # fmt: skip
