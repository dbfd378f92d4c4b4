"""`assert_same_law`: right steps pass, and each common mistake is found and named.

The layers here are NumPy, written from their formulas. Seeds are fixed; a right step fails with
probability 1e-6 at most, by `alpha`. `pytest bench/bench_same_law.py` counts the repetitions
in which mistakes are found.
"""

import pickle
import re
import time
import types
from functools import partial

import numpy as np
import pytest
from numpy_network import normalised as of_samples
from numpy_steps import Network, normalised
from oracle import FALSE_ALARM, FORMULAS
from scipy import stats
from slow_cases import some

import bnmc
from bnmc._claims.claims import Claim, judged
from bnmc.chain.start import normalise
from bnmc.errors import ArgumentError
from bnmc.testing import (
    LawMismatch,
    assert_same_law,
    same_law,
)
from bnmc.testing.same_law import SequentialTest, numbers_of_calls

RELU = bnmc.Chain(20, 5, "relu")


def identity(h):
    return h


def mismatch(step, chain=RELU, **options):
    with pytest.raises(LawMismatch) as caught:
        assert_same_law(step, chain, **{"rng": 0, **options})
    return caught.value


def again(*case):
    """A case that is tested with another chain, factor or mistake each time."""
    return pytest.param(*case, marks=pytest.mark.slow)


# ---------------------------------------------------------------- right steps


@pytest.mark.untraced
@pytest.mark.parametrize(
    ("chain", "options"),
    [
        (RELU, {}),
        again(bnmc.Chain(10, 3, "linear"), {}),
        again(bnmc.Chain(7, 2, "sigmoid"), {}),
        again(bnmc.Chain(1, 4, "sin"), {}),
        (bnmc.Chain(6, 11, "gelu"), {}),
        (bnmc.Chain(12, 4, "tanh", norm="batch-uncentred"), {"centred": False}),
        (bnmc.Chain(12, 1, "tanh", norm="batch-uncentred"), {"centred": False}),
        (bnmc.Chain(12, 4, "tanh", skip=-0.5, gain=3.0), {"skip": -0.5, "scale": 3.0}),
        (bnmc.Chain(12, 4, "tanh", gain=3.0, eps=1e-5), {"eps": 1e-5, "scale": 3.0}),
        again(bnmc.Chain(12, 4, "tanh", norm="none"), {"norm": identity}),
        (bnmc.Chain(20, 5, "relu", weights="uniform"), {"weights": "uniform"}),
        (bnmc.Chain(20, 5, "tanh", weights="rademacher", skip=1.0),
         {"weights": "rademacher", "skip": 1.0}),
        again(bnmc.Chain(6, 4, "relu", weights="haar"), {"weights": "haar"}),
        (bnmc.Chain(12, 5, "relu", weights="haar", skip=0.5), {"weights": "haar", "skip": 0.5}),
    ],
    ids=lambda value: repr(value) if isinstance(value, bnmc.Chain) else "",
)  # fmt: skip
def test_right_steps_pass(chain, options):
    """2048 rows show a factor of 1.03 in h′, and 512 rows of a narrow layer one of 1.1."""
    step = Network(chain.width, chain.activation.name, **options)
    assert_same_law(step, chain, rng=0, rows=2048 if chain.width >= 10 else 512)


def test_right_steps_of_single_precision_pass():
    for chain in (bnmc.Chain(10, 3, "linear"), RELU):
        network = Network(chain.width, chain.activation.name)

        def step(h, network=network):
            h = h.astype(np.float32)
            x = (h - h.mean(axis=1, keepdims=True)) / h.std(axis=1, keepdims=True)
            return network.draw().astype(np.float32) @ network.sigma(x)

        assert_same_law(step, chain, rng=0, rows=2048)


def overall(step, chain, seed, rows=128):
    """Return the least alpha at which a step fails, at most 1."""
    test = SequentialTest(step, chain, np.random.default_rng(seed))
    stages, least = numbers_of_calls(chain, rows), 1.0
    for calls in stages:
        adjusted = min(row.adjusted for row in judged(test.claims_after(calls), 0.5))
        least = min(least, len(stages) * adjusted)
    return least


@pytest.mark.slow
def test_false_alarms_are_as_rare_as_promised():
    """150 repetitions; the measured rates are in the docstring of `assert_same_law`."""
    chain = bnmc.Chain(10, 3, "relu")
    least = np.array([overall(Network(10, seed=10**6 + s), chain, s) for s in range(150)])
    for alpha in (0.2, 0.05, 0.01):
        count = np.count_nonzero(least <= alpha)
        assert count <= stats.binom.isf(FALSE_ALARM / 3, least.size, alpha)
    # Tests that never fail would pass the above: Bonferroni's method is not that conservative.
    assert np.count_nonzero(least <= 0.2) >= stats.binom.ppf(FALSE_ALARM, least.size, 0.1)


class Fixed:
    """A test whose only claim has a given p-value after each number of calls, and 1 at others."""

    def __init__(self, p_values):
        self.p_values, self.states = p_values, []
        self.step = types.SimpleNamespace(calls=0)

    def claims_after(self, calls):
        return [Claim("fixed", 0.0, 0.0, None, p_value=self.p_values.get(calls, 1.0))]


def test_each_stage_has_its_share_of_alpha(monkeypatch):
    """The shares add up to alpha: p-values just above one pass, and one just below it fails."""
    stages, alpha = numbers_of_calls(RELU, 2**14), 0.03
    assert len(stages) == 10
    share = alpha / 10
    monkeypatch.setattr(same_law, "explained", lambda *arguments: ())

    def outcome(p_values):
        monkeypatch.setattr(same_law, "SequentialTest", lambda *arguments: Fixed(p_values))
        assert_same_law(abs, RELU, rng=0, alpha=alpha)

    outcome(dict.fromkeys(stages, share * (1 + 1e-9)))
    for calls in stages:
        with pytest.raises(LawMismatch):
            outcome({calls: share * (1 - 1e-9)})


# ---------------------------------------------------------------- mistakes


MISTAKES = {
    "eps 1e-5": ({"eps": 1e-5}, "eps = 1e-05"),
    "eps 1e-8": ({"eps": 1e-8}, "eps = 1e-08"),
    "ddof 1": ({"ddof": 1}, r"ddof = 1\): x is smaller by sqrt\(\(n-1\)/n\) = 0.8944"),
    "evaluation mode": ({"norm": identity}, "evaluation mode"),
    "momentum": ({"momentum": 0.1}, r"correlation 0\.\d+ with that of the next.*momentum"),
    "layer norm": ({"axis": 0}, "the norm acts on samples"),
    "no centring": ({"centred": False}, "without being centred"),
    "wrong activation": ({"sigma": "gelu"}, "the activation is not relu: gelu fits better"),
    "Kaiming": ({"scale": 2**0.5}, "Kaiming's variance"),
    "factor 1/sqrt(width)": ({"scale": 20**0.5}, r"is the factor 1/sqrt\(width\) missing"),
    "uniform": ({"weights": "uniform"}, "not Gaussian: uniform"),
    "Rademacher": ({"weights": "rademacher"}, "not Gaussian: Rademacher"),
    "truncated": ({"weights": "truncated"}, "not Gaussian: normal, truncated"),
    "orthogonal": ({"weights": "orthogonal"}, "orthogonal"),
    "one W": ({"pool": 1}, r"calls share their weights \(correlation 1.000\)"),
    "two W in turn": ({"pool": 2}, "weights come back"),
    "seven W in turn": ({"pool": 7}, "weights come back"),
    "twin rows": ({"weights": "twins"}, "rows depend on each other.* neighbours 0.5$"),
    "correlated rows": ({"weights": "correlated"}, r"rows depend on each other.*0\.2"),
    "skip connection": ({"skip": 0.1}, r"the skip connection is 0\.[01]\d*, not 0"),
    "bias": ({"bias": 1.0}, "a bias, with the variance of the weights"),
    "paired rows, 0.3": ({"weights": "paired 0.3"}, r"rows depend .* have correlation -?0\.3"),
    "paired rows, 0.7": ({"weights": "paired 0.7"}, r"rows depend .* have correlation -?0\.7"),
    "second half of rows": ({"weights": "mirrored"}, r"rows depend .*r \+ 10 have mean squared"),
    "last W, even calls": ({"reused": 1}, r"calls share their weights up to signs .*±1\.000"),
    "last W, odd calls": ({"reused": 2}, r"calls share their weights up to signs .*±1\.000"),
    "signs of rows": ({"weights": "same up to signs"}, r"up to signs: a row has mean squared"),
    "normalized rows": ({"weights": "unit rows"}, r"= 0\.9091 if the rows of W are normalized"),
    "normalized W": ({"weights": "unit Frobenius"}, r"is the Frobenius norm of W normalized\?"),
    "Student, 10": ({"weights": "student 10"}, r"Student's t with about (8|9|1\d) degrees"),
    "Student, 30": ({"weights": "student 30"}, r"Student's t with about [23]\d degrees"),
    "2 %": ({"scale": 1.02}, "scaled by 1.02|scaled by 1.01"),
}


#: Mistakes that are tested each time in another size, in wide layers, or beside a like one.
AGAIN = (
    "eps 1e-8", "two W in turn", "last W, odd calls", "paired rows, 0.7", "Student, 30",
    "last W, even calls", "second half of rows", "normalized rows", "uniform", "truncated",
    "correlated rows", "ddof 1", "bias", "2 %", "Rademacher", "factor 1/sqrt(width)",
)  # fmt: skip


@pytest.mark.untraced
@pytest.mark.parametrize("mistake", some(MISTAKES, *(one for one in MISTAKES if one not in AGAIN)))
def test_a_mistake_is_found_and_named(mistake):
    options, words = MISTAKES[mistake]
    start = time.perf_counter()
    error = mismatch(Network(**options))
    assert time.perf_counter() - start < 10.0
    assert error.causes
    assert re.search(r"(?m)most likely: .*" + words, str(error))
    assert len(error.causes) == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "most likely: weights are not orthogonal"),
        ({"weights": "haar", "scale": 1.01}, "weights orthogonal"),
        ({"weights": "haar", "sigma": "gelu"}, "weights orthogonal"),
        ({"weights": "permutations"}, "rows independent"),
        ({"weights": "haar", "pool": 2}, "calls independent"),
    ],
    ids=str,
)
def test_mistakes_of_orthogonal_networks(options, words):
    error = mismatch(Network(**options), bnmc.Chain(20, 5, "relu", weights="haar"))
    assert re.search(words, str(error))


WIDE = {
    "paired": ({"weights": "paired 0.3"}, r"r \+ 1 have mean squared correlation 0\.0[345]"),
    "mirrored": ({"weights": "mirrored"}, r"r \+ 100 have mean squared correlation 0\.5"),
    "even": ({"reused": 1}, "calls share their weights up to signs"),
    "odd": ({"reused": 2}, "calls share their weights up to signs"),
    "uniform": ({"weights": "all but first uniform"}, "weights are not Gaussian"),
    "Rademacher": ({"weights": "all but first rademacher"}, "weights are not Gaussian"),
    "unit rows": ({"weights": "unit rows"}, r"= 0\.9901 if the rows of W are normalized"),
    "Student": ({"weights": "student 10"}, "Student's t with about (8|9|1[0-3]) degrees"),
}


@pytest.mark.untraced
@pytest.mark.parametrize("mistake", some(WIDE, "mirrored", "even"))
def test_mistakes_of_wide_layers(mistake):
    """Signs that cancel, columns that are not the first, norms of vectors of 200 weights."""
    options, words = WIDE[mistake]
    (cause,) = mismatch(Network(200, **options), bnmc.Chain(200, 5, "relu")).causes
    assert re.search(words, cause)


@pytest.mark.parametrize(
    ("chain", "options", "words"),
    [
        (bnmc.Chain(10, 3, "relu"), {"weights": "uniform"}, "not Gaussian: uniform"),
        again(bnmc.Chain(10, 3, "linear"), {"pool": 2}, "weights come back"),
        (bnmc.Chain(10, 4, "tanh", gain=3.0), {}, "is the gain 3 missing"),
        (bnmc.Chain(10, 4, "tanh", skip=0.5), {}, "the skip connection is .*, not 0.5"),
        (bnmc.Chain(10, 4, "tanh", eps=1e-5), {}, "the norm adds eps"),
        (bnmc.Chain(10, 4, "tanh", norm="batch-uncentred"), {}, "rows are centred"),
        again(bnmc.Chain(10, 4, "tanh", norm="none"), {}, "rows are centred"),
        (bnmc.Chain(10, 4, "tanh"), {"ddof": 1}, "ddof = 1"),
        again(bnmc.Chain(10, 4, "linear"), {"centred": False}, "without being centred"),
        (bnmc.Chain(20, 5, "tanh"), {"scale": (5 / 4) ** 0.5}, r"1\.11\d\d: sqrt\(n/\(n-1\)\) for"),
        again(
            bnmc.Chain(20, 5, "tanh"),
            {"scale": (4 / 5) ** 0.5},
            r"0\.8\d\d\d: sqrt\(\(n-1\)/n\) for",
        ),
        again(bnmc.Chain(200, 10, "tanh"), {"eps": 1e-5, "scale": 2**0.5}, "(?s)eps = .*Kaiming"),
    ],
    ids=str,
)
def test_mistakes_about_other_chains(chain, options, words):
    sigma = chain.activation.name
    error = mismatch(Network(chain.width, sigma, **options), chain)
    assert re.search(words, "\n".join(error.causes))


def test_a_default_linear_layer_of_pytorch_has_three_faults():
    """Uniform weights within ±1/sqrt(width), of a third of the variance, and such a bias."""
    error = mismatch(Network(weights="uniform", scale=3**-0.5, bias=1.0))
    bias, scale, law = error.causes
    assert "bias" in bias
    assert "a third of the variance" in scale
    assert "not Gaussian" in law


@pytest.mark.untraced
@pytest.mark.parametrize(
    ("options", "words"),
    [
        # A whole default block of PyTorch: Linear, and BatchNorm1d with its eps.
        (
            {"weights": "uniform", "scale": 3**-0.5, "bias": 1.0, "eps": 1e-5},
            ("a bias", "eps = 1e-05", "a third of the variance", "not Gaussian"),
        ),
        pytest.param(
            {"bias": 1.0, "sigma": "gelu"}, ("a bias", "gelu fits better"), marks=pytest.mark.slow
        ),
        (
            {"sigma": lambda x: np.where(x > 0.0, x, 0.01 * x), "ddof": 1},
            ("leaky_relu fits better", "ddof = 1"),
        ),
    ],
)
def test_two_mistakes_at_once_are_named(options, words):
    causes = mismatch(Network(**options)).causes
    for one in words:
        assert any(one in cause for cause in causes), causes
    assert len(causes) == len(words)


def test_a_part_that_no_candidate_explains_is_reported():
    """A constant bias, another at each neuron, is no weight."""
    constant = 0.3 * np.random.default_rng(3).standard_normal((20, 1))
    network = Network()
    error = mismatch(lambda h: network(h) + constant)
    assert error.causes[-1].startswith("the mean of h' given h")
    assert any(row.claim.startswith("mean 0") for row in error.failures)


@pytest.mark.parametrize(
    ("last", "sigma", "eps"),
    [
        ("activation", "tanh", 0.0), ("activation", "relu", 1e-3), ("activation", "silu", 0.0),
        ("normalization", "sigmoid", 1e-3), ("normalization", "relu", 0.0),
    ],
)  # fmt: skip
def test_parts_in_another_order_are_named(sigma, last, eps):
    """Linear → norm → activation and activation → linear → norm, whatever ε the norm has."""
    chain, rng = bnmc.Chain(30, 8, sigma), np.random.default_rng(2)

    def step(h):
        weights = rng.standard_normal((30, 30)) / np.sqrt(30)
        if last == "activation":
            return FORMULAS[sigma](normalised(weights @ h, eps=eps))
        return normalised(weights @ FORMULAS[sigma](h), eps=eps)

    (cause,) = mismatch(step, chain).causes
    assert f"the step ends with the {last}" in cause


def test_a_final_normalization_is_known_for_every_divisor():
    """With ddof 1 and a batch of 3, rows have mean square 2/3."""
    chain, rng = bnmc.Chain(30, 3, "sigmoid"), np.random.default_rng(2)

    def step(h):
        weights = rng.standard_normal((30, 30)) / np.sqrt(30)
        return normalised(weights @ FORMULAS["sigmoid"](h), ddof=1)

    (cause,) = mismatch(step, chain).causes
    assert "the step ends with the normalization" in cause


@pytest.mark.untraced
@pytest.mark.parametrize(
    ("scale", "shape"),
    [
        (0.3, (30, 20)),
        *(pytest.param(scale, (10, 3), marks=pytest.mark.slow) for scale in (0.01, 100.0)),
    ],
)
def test_a_factor_of_any_size_is_the_one_cause(scale, shape):
    step = Network(shape[0], "tanh", scale=scale)
    (cause,) = mismatch(step, bnmc.Chain(*shape, "tanh")).causes
    # The variance of a row is known to a few in a hundred.
    assert float(re.fullmatch(r"rows are scaled by ([0-9.]+)", cause)[1]) == pytest.approx(
        scale, rel=0.05
    )


@pytest.mark.untraced
def test_no_cause_is_invented_where_none_is_known():
    """σ² has a mean where tanh has none: no candidate has such covariances."""
    step = Network(30, lambda x: np.tanh(x) ** 2)
    assert mismatch(step, bnmc.Chain(30, 8, "tanh")).causes == (
        "the covariances of h' given h are those of no mistake that is known here",
    )


@pytest.mark.parametrize(
    ("options", "claim"),
    [
        ({"weights": "uniform", "scale": 1.1}, "variance, whitened"),
        ({"weights": "uniform", "ddof": 1}, "variance, whitened"),
        ({"weights": "uniform", "skip": 0.2}, "covariance"),
        ({"weights": "uniform", "pool": 1}, "calls independent"),
        ({"weights": "twins"}, "rows independent"),
    ],
)
def test_of_other_weights_the_moments_are_tested(options, claim):
    chain = bnmc.Chain(20, 5, "relu", weights="uniform")
    error = mismatch(Network(**options), chain)
    assert f"one step: {claim}" in [row.claim for row in error.failures]
    assert error.causes


def test_clear_failures_end_early():
    """A repeated W shows in two calls on each of eight states, after ten that lead to the last."""
    calls = []
    for rows in (2, 2**14):
        step = Network(pool=1)
        mismatch(step, rows=rows)
        calls.append(step.calls)
    # The explanation looks at 2048 rows of each state.
    assert calls == [10 + 8 * 104] * 2


# ---------------------------------------------------------------- the error


def test_the_error_says_what_was_seen_and_survives_pickling():
    error = mismatch(Network(eps=1e-5))
    assert isinstance(error, AssertionError)
    assert isinstance(error, bnmc.errors.BnmcError)
    first, *others = str(error).splitlines()
    assert first == f"not the law of {RELU}, seen in {error.calls} calls"
    assert others[0] == f"most likely: {error.causes[0]}"
    assert "tiny variance" in str(error)
    assert error.failures[0].p_value <= error.failures[-1].p_value <= 1e-6
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.causes, copy.failures) == (str(error), error.causes, error.failures)


class Tensor:
    """What a tensor of PyTorch has, and CuPy's arrays have, that NumPy cannot read as it is."""

    def __init__(self, array, place):
        self.array, self.place = array, place

    def detach(self):
        assert self.place == "graph"
        return Tensor(self.array, "device")

    def cpu(self):
        assert self.place == "device"
        return self.array


class OnDevice:
    __cuda_array_interface__ = None

    def __init__(self, array):
        self.array = array

    def get(self):
        return self.array


def test_arrays_of_other_kinds():
    network = Network()
    assert_same_law(lambda h: Tensor(network(h), "graph"), RELU, rng=0, rows=2)
    assert_same_law(lambda h: OnDevice(network(h)), RELU, rng=0, rows=2)
    assert_same_law(lambda h: network(h).tolist(), RELU, rng=0, rows=2)


def test_the_step_may_change_its_argument():
    network = Network()

    def step(h):
        result = network(h)
        h[:] = np.nan
        return result

    assert_same_law(step, RELU, rng=0, rows=2)


# ---------------------------------------------------------------- bad input


def test_errors_of_the_step_are_its_own():
    def step(h):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        assert_same_law(step, RELU)


@pytest.mark.parametrize("constant", some([0.0, 1.0], 0.0))
def test_a_step_whose_states_cannot_be_normalised(constant):
    """Constant rows: there is no tenth layer to try, and what was tried shows it."""
    error = mismatch(lambda h: np.full_like(h, constant))
    assert not any("iterated" in row.claim for row in error.failures)


def test_the_norm_of_candidates_is_that_of_the_library():
    """`normalised` above is what the faults are written from; this ties it to the chain's own."""
    h = np.random.default_rng(0).standard_normal((20, 5))
    expected = normalise(RELU, h[None, None], True)[0, 0]
    # Means and squares of 5 terms, in units in the last place.
    np.testing.assert_allclose(normalised(h), expected, rtol=0, atol=64 * 2**-52)


# ---------------------------------------------------------------- norms of samples, orders, biases


def layer_of(chain, *, norm=None, order=None, bias=None, sigma=None, change=None):
    """A step in NumPy, from the formula, with other parts than the chain's if they are given.

    `change` replaces the norm by a function of (width, batch) arrays.
    """
    rng, d = np.random.default_rng(77), chain.width
    sigma = FORMULAS[sigma or chain.activation.name]
    order = order or chain.order
    variance = chain.bias_variance if bias is None else bias

    def normal(h):
        return change(h) if change else of_samples(h, norm or chain.norm, chain.eps)

    def step(h):
        first = order == "activation-norm"
        a = normal(sigma(h)) if first else sigma(normal(h))
        kept = normal(h) if order == "norm-activation" else h
        w = rng.standard_normal((d, d)) / np.sqrt(d)
        b = np.sqrt(variance) * rng.standard_normal((d, 1))
        return chain.skip * kept + chain.gain * w @ a + b

    return step


LAYERS = {
    "layer": bnmc.Chain(20, 4, "relu", norm="layer"),
    "rms": bnmc.Chain(20, 4, "relu", norm="rms"),
    "rms after": bnmc.Chain(20, 4, "tanh", norm="rms", order="activation-norm"),
    "groups": bnmc.Chain(24, 4, "relu", norm="group(3)", bias_variance=0.2, gain=1.5),
    "batch after": bnmc.Chain(
        20, 4, "tanh", order="activation-norm", skip=0.5, bias_variance=0.3, eps=1e-3
    ),
    "layer, skip": bnmc.Chain(20, 4, "tanh", norm="layer", skip=0.7, gain=1.4),
    "residual": bnmc.Chain.resnet(20, 4, "relu", norm="layer", bias_variance=0.1),
}


@pytest.mark.untraced
@pytest.mark.parametrize("name", some(LAYERS, "rms after", "batch after", "residual"))
def test_right_steps_of_other_layers_pass(name):
    """2048 rows show a factor of 1.03 in h′; the mistakes below are larger."""
    assert_same_law(layer_of(LAYERS[name]), LAYERS[name], rng=0, rows=2048)


def transposed(h):
    """Group normalization of 24 features in groups i, i + 3, …"""
    groups = h.reshape(8, 3, -1)
    centred = groups - groups.mean(axis=0)
    return (centred / centred.std(axis=0)).reshape(h.shape)


def scaled(h):
    """Layer normalization with learned factors and shifts of features."""
    factors, shifts = np.random.default_rng(5).random((2, 20, 1))
    return (0.5 + factors) * of_samples(h, "layer") + shifts


OTHER_MISTAKES = {
    "axis": ("layer", {"norm": "batch"}, "acts on rows, over the batch, not on samples"),
    "not centred": ("layer", {"norm": "rms"}, "samples are normalised without being centred"),
    "centred": ("rms after", {"norm": "layer"}, "samples are centred"),
    "ddof": (
        "layer",
        {"change": partial(normalised, ddof=1, axis=0)},
        r"20 features is divided by 19 \(ddof = 1\)",
    ),
    "learned": ("layer", {"change": scaled}, r"^features are .* learned factors or shifts .*\?$"),
    "transposed": ("groups", {"change": transposed}, r"transposed: group i .* i \+ 3"),
    "one group": ("groups", {"norm": "layer"}, "all 24 features, not on 3 groups"),
    "groups of 3": ("groups", {"norm": "group(8)"}, "8 groups of 3 features, not 3 of 8"),
    "no bias": ("groups", {"bias": 0.0}, "the bias, of variance 0.2, is missing"),
    "before": ("rms after", {"order": "norm-activation"}, "norm is before the activation"),
    "after": ("layer", {"order": "activation-norm"}, "norm is after the activation, not before"),
    "activation": ("rms after", {"sigma": "sin"}, "the activation is not tanh: sin fits better"),
    "batch before": ("batch after", {"order": "pre-activation"}, "norm is before the activation"),
    "sum normed": ("residual", {"order": "norm-activation"}, r"skip .* keeps N\(h\), not h"),
    "batch, centred": ("rms", {"norm": "batch"}, "the norm centres rows .*, over the batch, not"),
    "sum not normed": ("layer, skip", {"order": "pre-activation"}, r"skip .* keeps h, not N\(h\)"),
}


@pytest.mark.parametrize(
    "name", some(OTHER_MISTAKES, *list(OTHER_MISTAKES)[:12:3], "sum normed", "sum not normed")
)
def test_mistakes_of_other_layers_are_named(name):
    kind, parts, words = OTHER_MISTAKES[name]
    found = mismatch(layer_of(LAYERS[kind], **parts), LAYERS[kind])
    assert re.search(words, " ".join(found.causes)), found


def test_biases_beside_orthogonal_weights_are_refused():
    chain = bnmc.Chain(20, 4, norm="rms", weights="haar", bias_variance=0.1)
    with pytest.raises(ArgumentError, match="^bias_variance: .*orthogonal weights"):
        assert_same_law(layer_of(chain), chain)
