"""`assert_same_law`: right steps pass, and each common mistake is found and named.

The layers here are NumPy, written from their formulas. Seeds are fixed; a right step fails with
probability 1e-6 at most, by `alpha`. `pytest bench/bench_same_law.py` counts the repetitions
in which mistakes are found.
"""

import pickle
import re
import time
import traceback
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from numpy_network import normalised, standardised
from numpy_steps import Network
from oracle import FALSE_ALARM, FORMULAS
from scipy import stats
from slow_cases import slow, some
from testing.correct_layers import CorrectLayer, TorchLayer, correct_layer

import bnmc
from bnmc._claims.claims import Claim, judged
from bnmc.chain.start import normalise
from bnmc.errors import ArgumentError
from bnmc.testing import LawMismatch, assert_same_law, same_law
from bnmc.testing.calls_on_state import CallsOnState
from bnmc.testing.same_law import CheckedStep, SequentialTest, tried_states
from bnmc.testing.states import numbers_of_calls

RELU = bnmc.Chain(20, 5, "relu")


def identity(h):
    return h


def unwrapped(error):
    """Return the message with one line for each cause and each test."""
    return re.sub("\n {4,}", " ", str(error))


def mismatch(step, chain=RELU, **options):
    with pytest.raises(LawMismatch) as caught:
        assert_same_law(step, chain, **{"rng": 0, **options})
    return caught.value


def test_a_failure_shows_the_test_and_no_source_of_the_package():
    with pytest.raises(LawMismatch) as caught:
        assert_same_law(identity, RELU, rng=0)
    shown = [entry for entry in caught.traceback if not entry.ishidden(caught)]
    assert {entry.path for entry in shown} == {Path(__file__)}


# ---------------------------------------------------------------- right steps


@pytest.mark.untraced
@pytest.mark.parametrize(
    ("chain", "options"),
    [
        (RELU, {}),
        slow(bnmc.Chain(10, 3, "linear"), {}),
        slow(bnmc.Chain(7, 2, "sigmoid"), {}),
        slow(bnmc.Chain(1, 4, "sin"), {}),
        (bnmc.Chain(6, 11, "gelu"), {}),
        (bnmc.Chain(12, 4, "tanh", norm="batch-uncentred"), {"centred": False}),
        (bnmc.Chain(12, 1, "tanh", norm="batch-uncentred"), {"centred": False}),
        (bnmc.Chain(12, 4, "tanh", skip=-0.5, gain=3.0), {"skip": -0.5, "scale": 3.0}),
        (bnmc.Chain(12, 4, "tanh", gain=3.0, eps=1e-5), {"eps": 1e-5, "scale": 3.0}),
        slow(bnmc.Chain(12, 4, "tanh", norm="none"), {"norm": identity}),
        (bnmc.Chain(20, 5, "relu", weights="uniform"), {"weights": "uniform"}),
        (bnmc.Chain(20, 5, "tanh", weights="rademacher", skip=1.0),
         {"weights": "rademacher", "skip": 1.0}),
        slow(bnmc.Chain(6, 4, "relu", weights="haar"), {"weights": "haar"}),
        (bnmc.Chain(12, 5, "relu", weights="haar", skip=0.5), {"weights": "haar", "skip": 0.5}),
    ],
    ids=lambda value: repr(value) if isinstance(value, bnmc.Chain) else "",
)  # fmt: skip
def test_right_steps_pass(chain, options):
    """2048 rows show a factor of 1.03 in h′, and 512 rows of a narrow layer one of 1.1."""
    step = Network(chain.width, chain.activation.name, **options)
    assert_same_law(step, chain, rng=0, rows=2048 if chain.width >= 10 else 512)


@pytest.mark.parametrize("chain", [slow(bnmc.Chain(10, 3, "linear")), RELU], ids=repr)
def test_right_steps_of_single_precision_pass(chain):
    network = Network(chain.width, chain.activation.name)

    def step(h):
        x = standardised(h.astype(np.float32), axis=1)
        return network.draw().astype(np.float32) @ network.sigma(x)

    assert_same_law(step, chain, rng=0, rows=2048)


#: Layers whose rounding errors the norm, the skip connection over the gain, or their order amplify.
AMPLIFYING = {
    "norm of sigmoid": (
        bnmc.Chain(32, 8, "sigmoid", order="activation-norm", eps=1e-5), TorchLayer, "float32", 0
    ),
    "rms": (bnmc.Chain.resnet(32, 8, "relu", norm="rms"), CorrectLayer, "float32", 7),
    "residual": (bnmc.Chain.resnet(32, 8, "linear"), CorrectLayer, "float32", 0),
    "gain": (bnmc.Chain(32, 8, "relu", skip=1.0, gain=1e-3), CorrectLayer, "float32", 0),
    "residual, gain": (bnmc.Chain.resnet(32, 8, "relu", gain=1e-3), CorrectLayer, "float32", 0),
    "haar": (
        bnmc.Chain(16, 4, "sigmoid", norm="group(4)", order="activation-norm", weights="haar"),
        CorrectLayer, "float64", 0,
    ),
}  # fmt: skip


@pytest.mark.untraced
@pytest.mark.parametrize("name", AMPLIFYING)
def test_amplified_rounding_errors_are_no_other_law(name):
    chain, kind, dtype, seed = AMPLIFYING[name]
    if kind is TorchLayer:
        pytest.importorskip("torch")
    layer = kind(chain, dtype, np.random.default_rng([7, seed]))
    assert_same_law(layer, chain, rng=seed, rows=2048)


@pytest.mark.parametrize("number", [2, slow(9), slow(47), slow(50), 160, slow(390)])
def test_random_layers_that_amplify_rounding_errors_pass(number):
    """Groups of two almost equal features, signs as activations, a skip connection at large h."""
    chain, layer, _ = correct_layer(number)
    assert_same_law(layer, chain, rng=number, rows=512)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (bnmc.Chain(32, 8, "relu", eps=1e-5), "eps = 1e-05"),
        slow(bnmc.Chain(32, 8, "relu", skip=0.1), "the skip connection is 0.1"),
        slow(bnmc.Chain(32, 8, "relu", gain=1.04), "scaled by 1.04|scaled by 1.03"),
        (bnmc.Chain(32, 8, "relu", norm="batch-uncentred"), "without being centred"),
        slow(bnmc.Chain(32, 8, "gelu"), "gelu fits better"),
    ],
    ids=repr,
)
def test_mistakes_of_single_precision_are_found(wrong, words):
    chain = bnmc.Chain(32, 8, "relu")
    error = mismatch(CorrectLayer(wrong, "float32", np.random.default_rng(1)), chain)
    assert re.search(words, error.causes[0])


def test_a_law_that_rounding_hides_is_not_tested():
    """float32 keeps 7 digits of x + 1e-9 W relu(x)."""
    chain = bnmc.Chain(32, 8, "relu", skip=1.0, gain=1e-9)
    layer = CorrectLayer(chain, "float32", np.random.default_rng(1))
    with pytest.raises(
        ArgumentError, match="^chain: .*beyond amplified rounding errors of 1.2e-07"
    ):
        assert_same_law(layer, chain, rng=0)


def overall(step, chain, seed, rows=128):
    """Return the least alpha at which a step fails, at most 1."""
    test = SequentialTest(step, chain, np.random.default_rng(seed))
    stages, least = test.numbers_of_calls(rows), 1.0
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


def fixed(p_values):
    """A test whose only claim has a given p-value after each number of calls, and 1 at others."""
    return SimpleNamespace(
        step=SimpleNamespace(calls=0), calls_to_explain=0, causes=lambda failed: (),
        numbers_of_calls=lambda rows: numbers_of_calls(RELU.width, rows, is_gaussian=True),
        claims_after=lambda calls: [
            Claim("fixed", 0.0, 0.0, None, p_value=p_values.get(calls, 1.0))
        ],
    )  # fmt: skip


def test_each_stage_has_its_share_of_alpha(monkeypatch):
    """The shares add up to alpha: p-values just above one pass, and one just below it fails."""
    stages, alpha = numbers_of_calls(RELU.width, 2**14, is_gaussian=True), 0.03
    assert len(stages) == 10
    share = alpha / 10

    def outcome(p_values):
        monkeypatch.setattr(same_law, "SequentialTest", lambda *arguments: fixed(p_values))
        assert_same_law(abs, RELU, rng=0, alpha=alpha)

    outcome(dict.fromkeys(stages, share * (1 + 1e-9)))
    for calls in stages:
        with pytest.raises(LawMismatch):
            outcome({calls: share * (1 - 1e-9)})


# ---------------------------------------------------------------- mistakes


MISTAKES = {
    "eps 1e-5": ({"eps": 1e-5}, "eps = 1e-05"),
    "eps 1e-8": ({"eps": 1e-8}, "eps = 1e-08"),
    "ddof 1": ({"ddof": 1}, r"ddof = 1\): N\(h\) is smaller by sqrt\(\(n-1\)/n\) = 0.8944"),
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
    "eps 1e-5", "skip connection", "no centring", "wrong activation",
)  # fmt: skip


@pytest.mark.untraced
@pytest.mark.parametrize(
    "mistake", some(MISTAKES, *(name for name in MISTAKES if name not in AGAIN))
)
def test_a_mistake_is_found_and_named(mistake):
    options, words = MISTAKES[mistake]
    start = time.perf_counter()
    error = mismatch(Network(**options))
    assert time.perf_counter() - start < 10.0
    assert error.causes
    assert re.search(r"(?m)most likely: .*" + words, unwrapped(error))
    assert len(error.causes) == 1


HAAR, WIDE = bnmc.Chain(20, 5, "relu", weights="haar"), bnmc.Chain(200, 5, "relu")


@pytest.mark.parametrize(
    ("chain", "options", "words"),
    [
        (HAAR, {}, "most likely: weights are not orthogonal"),
        (HAAR, {"weights": "haar", "scale": 1.01}, "weights orthogonal"),
        slow(HAAR, {"weights": "haar", "sigma": "gelu"}, "weights orthogonal"),
        (HAAR, {"weights": "permutations"}, "rows independent"),
        (HAAR, {"weights": "haar", "pool": 2}, "calls independent"),
        # Signs that cancel, columns that are not the first, norms of vectors of 200 weights.
        (WIDE, {"weights": "mirrored"}, r"^most.* r \+ 100 have mean squared correlation 0\.5"),
        (WIDE, {"reused": 1}, "^most.*: calls share their weights up to signs"),
        slow(WIDE, {"weights": "paired 0.3"}, r"^most.* r \+ 1 have mean squared .* 0\.0[345]"),
        slow(WIDE, {"reused": 2}, "^most.*: calls share their weights up to signs"),
        slow(WIDE, {"weights": "all but first uniform"}, "^most.*: weights are not Gaussian"),
        slow(WIDE, {"weights": "all but first rademacher"}, "^most.*: weights are not Gaussian"),
        slow(WIDE, {"weights": "unit rows"}, r"^most.*= 0\.9901 if the rows of W are normalized"),
        slow(WIDE, {"weights": "student 10"}, "^most.*: .* Student's t with about (8|9|1[0-3]) d"),
        (bnmc.Chain(10, 3, "relu"), {"weights": "uniform"}, "not Gaussian: uniform"),
        slow(bnmc.Chain(10, 3, "linear"), {"pool": 2}, "weights come back"),
        (bnmc.Chain(10, 4, "tanh", gain=3.0), {}, "is the gain 3 missing"),
        slow(bnmc.Chain(10, 4, "tanh", skip=0.5), {}, "the skip connection is .*, not 0.5"),
        slow(bnmc.Chain(10, 4, "tanh", eps=1e-5), {}, "the norm adds eps"),
        (bnmc.Chain(10, 4, "tanh", norm="batch-uncentred"), {}, "rows are centred"),
        slow(bnmc.Chain(10, 4, "tanh", norm="none"), {}, "rows are centred"),
        (bnmc.Chain(10, 4, "tanh"), {"ddof": 1}, "ddof = 1"),
        slow(bnmc.Chain(10, 4, "linear"), {"centred": False}, "without being centred"),
        (bnmc.Chain(20, 5, "tanh"), {"scale": (5 / 4) ** 0.5}, r"1\.11\d\d: sqrt\(n/\(n-1\)\) for"),
        slow(bnmc.Chain(20, 5, "tanh"), {"scale": 0.8**0.5}, r"0\.8\d\d\d: sqrt\(\(n-1\)/n\) for"),
        slow(bnmc.Chain(200, 10, "tanh"), {"eps": 1e-5, "scale": 2**0.5}, "(?s)eps = .*Kaiming"),
        # σ² has a mean where tanh has none: no candidate has such covariances.
        pytest.param(
            bnmc.Chain(30, 8, "tanh"), {"sigma": lambda x: np.tanh(x) ** 2},
            "^most likely: the covariances of h' given h are those of no mistake .* here$",
            id="no cause", marks=pytest.mark.slow,
        ),
    ],
    ids=str,
)  # fmt: skip
def test_mistakes_about_other_chains(chain, options, words):
    error = mismatch(Network(chain.width, **{"sigma": chain.activation.name, **options}), chain)
    assert re.search(f"(?m){words}", unwrapped(error))
    if words.startswith("^most"):
        assert len(error.causes) == 1


@pytest.mark.untraced
@pytest.mark.parametrize(
    ("options", "words"),
    [
        # PyTorch's default: uniform weights within ±1/sqrt(width), of a third of the variance, and
        # such a bias.  Then a whole default block: Linear, and BatchNorm1d with its eps.
        slow(
            {"weights": "uniform", "scale": 3**-0.5, "bias": 1.0},
            ("a bias", "a third of the variance", "not Gaussian"),
        ),
        (
            {"weights": "uniform", "scale": 3**-0.5, "bias": 1.0, "eps": 1e-5},
            ("a bias", "eps = 1e-05", "a third of the variance", "not Gaussian"),
        ),
        slow({"bias": 1.0, "sigma": "gelu"}, ("a bias", "gelu fits better")),
        (
            {"sigma": lambda x: np.where(x > 0.0, x, 0.01 * x), "ddof": 1},
            ("leaky_relu fits better", "ddof = 1"),
        ),
    ],
)
def test_two_mistakes_at_once_are_named(options, words):
    causes = mismatch(Network(**options)).causes
    for word, cause in zip(words, causes, strict=True):
        assert word in cause


def test_a_part_that_no_candidate_explains_is_reported():
    """A constant bias, another at each neuron, is no weight."""
    constant = 0.3 * np.random.default_rng(3).standard_normal((20, 1))
    network = Network()
    error = mismatch(lambda h: network(h) + constant)
    assert error.causes[-1].startswith("the mean of h' given h")
    assert any(row.claim.startswith("mean 0") for row in error.failures)


@pytest.mark.parametrize(
    ("last", "sigma", "batch", "options"),
    [
        ("activation", "tanh", 8, {}), ("activation", "relu", 8, {"eps": 1e-3}),
        ("activation", "silu", 8, {}), ("normalization", "sigmoid", 8, {"eps": 1e-3}),
        ("normalization", "relu", 8, {}), ("normalization", "sigmoid", 3, {"ddof": 1}),
    ],
)  # fmt: skip
def test_parts_in_another_order_are_named(last, sigma, batch, options):
    """Linear → norm → activation and activation → linear → norm, whatever ε the norm has.

    With ddof 1 and a batch of 3, rows have mean square 2/3.
    """
    chain, rng, f = bnmc.Chain(30, batch, sigma), np.random.default_rng(2), FORMULAS[sigma]

    def step(h):
        weights = rng.standard_normal((30, 30)) / np.sqrt(30)
        if last == "activation":
            return f(standardised(weights @ h, **options))
        return standardised(weights @ f(h), **options)

    (cause,) = mismatch(step, chain).causes
    assert f"the step ends with the {last}" in cause


@pytest.mark.untraced
@pytest.mark.parametrize(
    ("scale", "shape"), [(0.3, (30, 20)), slow(0.01, (10, 3)), slow(100.0, (10, 3))]
)
def test_a_factor_of_any_size_is_the_one_cause(scale, shape):
    step = Network(shape[0], "tanh", scale=scale)
    (cause,) = mismatch(step, bnmc.Chain(*shape, "tanh")).causes
    # The variance of a row is known to a few in a hundred.
    factor = float(re.fullmatch(r"rows are scaled by ([0-9.]+)", cause)[1])
    assert factor == pytest.approx(scale, rel=0.05)


@pytest.mark.parametrize(
    ("options", "claim"),
    [
        ({"weights": "uniform", "scale": 1.1}, "variance relative to G"),
        slow({"weights": "uniform", "ddof": 1}, "variance relative to G"),
        ({"weights": "uniform", "skip": 0.2}, "covariance"),
        ({"weights": "uniform", "pool": 1}, "calls independent"),
        slow({"weights": "twins"}, "rows independent"),
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
    assert max(map(len, str(error).splitlines())) <= 80
    first, *others = unwrapped(error).splitlines()
    explained = f"({error.calls_in_all} with the explanation)"
    assert first == f"not the law of {RELU}, found after {error.calls} calls {explained}"
    assert 26 <= error.calls < error.calls_in_all
    assert not re.search(r"expected -?\d+(\.\d+)?e-|\(p\s*=?\n", str(error))
    assert others[0] == f"most likely: {error.causes[0]}"
    assert "eps = 1e-05" in others[0]
    assert others[len(error.causes)].startswith("failed tests: measured, expected ± standard error")
    assert "tiny variance" in str(error)
    assert traceback.format_exception_only(error)[0].startswith("bnmc.testing.LawMismatch: not")
    assert error.failures[0].p_value <= error.failures[-1].p_value <= 1e-6
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.causes, copy.failures) == (str(error), error.causes, error.failures)


def on_graph(array):
    """What a tensor of PyTorch has, that NumPy cannot read as it is."""
    return SimpleNamespace(detach=lambda: SimpleNamespace(cpu=lambda: array))


def on_device(array):
    """What arrays of CuPy have."""
    return SimpleNamespace(__cuda_array_interface__=None, get=lambda: array)


@pytest.mark.parametrize("kind", [on_graph, on_device, np.ndarray.tolist])
def test_arrays_of_other_kinds(kind):
    """The step may change its argument."""
    network = Network()

    def step(h):
        result = network(h)
        h[:] = np.nan
        return kind(result)

    assert_same_law(step, RELU, rng=0, rows=2)


# ---------------------------------------------------------------- bad input


def test_errors_of_the_step_are_its_own():
    with pytest.raises(KeyError, match="mine"):
        assert_same_law(lambda h: {}["mine"], RELU)


@pytest.mark.parametrize("constant", some([0.0, 1.0], 0.0))
def test_a_step_whose_states_cannot_be_normalised(constant):
    """Constant rows: there is no tenth layer to try, and what was tried shows it."""
    error = mismatch(lambda h: np.full_like(h, constant))
    assert not any("iterated" in row.claim for row in error.failures)


def test_the_norm_of_candidates_is_that_of_the_library():
    """`standardised` is what the faults are written from; this ties it to the chain's own."""
    h = np.random.default_rng(0).standard_normal((20, 5))
    expected = normalise(RELU.layers[0].rows, h[None], True)[0]
    # Means and squares of 5 terms, in units in the last place.
    np.testing.assert_allclose(standardised(h), expected, rtol=0, atol=64 * 2**-52)


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
        return change(h) if change else normalised(h, norm or chain.norm, chain.eps)

    def step(h):
        first = order == "activation-norm"
        a = normal(sigma(h)) if first else sigma(normal(h))
        stream = normal(h) if order == "norm-activation" else h
        w = rng.standard_normal((d, d)) / np.sqrt(d)
        b = np.sqrt(variance) * rng.standard_normal((d, 1))
        return chain.skip * stream + chain.gain * w @ a + b

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
    return (0.5 + factors) * normalised(h, "layer") + shifts


OTHER_MISTAKES = {
    "axis": ("layer", {"norm": "batch"}, "acts on rows, over the batch, not on samples"),
    "not centred": ("layer", {"norm": "rms"}, "samples are normalised without being centred"),
    "centred": ("rms after", {"norm": "layer"}, "samples are centred"),
    "ddof": (
        "layer",
        {"change": partial(standardised, ddof=1, axis=0)},
        r"20 .* by 19 \(ddof = 1\)",
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
    "name", some(OTHER_MISTAKES, "axis", "one group", "before", "sum normed", "sum not normed")
)
def test_mistakes_of_other_layers_are_named(name):
    kind, parts, words = OTHER_MISTAKES[name]
    error = mismatch(layer_of(LAYERS[kind], **parts), LAYERS[kind])
    assert re.search(words, " ".join(error.causes)), error


def states_of(chain, seed=0):
    return dict(tried_states(chain, CheckedStep(identity, chain), np.random.default_rng(seed)))


def rows_apart(chain, seed):
    layer = states_of(chain, seed)["rows apart"]
    return CallsOnState("rows apart", layer, np.zeros_like(layer.gram[0]), np.random.default_rng(0))


@pytest.mark.parametrize(
    ("chain", "columns"),
    [
        (bnmc.Chain(20, 5, "relu"), 3),
        slow(bnmc.Chain(30, 9, "tanh"), 4),
        slow(bnmc.Chain(20, 3, "linear"), 1),
        slow(bnmc.Chain(20, 2, "relu"), 1),
        (bnmc.Chain(20, 3, "relu", norm="batch-uncentred"), 2),
    ],
    ids=repr,
)
def test_weights_are_read_exactly(chain, columns):
    """For every seed, the readings are entries of W times √width, of columns in random places."""
    rng, seen = np.random.default_rng(0), set()
    for seed in range(8):
        state = rows_apart(chain, seed)
        weights = rng.standard_normal((2, chain.width, chain.width)) / np.sqrt(chain.width)
        state.add(weights @ state.layer.a[0])
        read = state.readings.reshape(2, chain.width, columns)
        gaps = [
            [np.abs(column - np.sqrt(chain.width) * weights[..., j]).max()
             for j in range(chain.width)]
            for column in np.moveaxis(read, -1, 0)
        ]  # fmt: skip
        places = np.argmin(gaps, axis=1)
        assert len(set(places)) == columns
        # Rounding of about 1e-16, times the condition of the rows that are apart.
        assert np.min(gaps, axis=1).max() < 1e-9
        seen |= set(places)
    assert len(seen) > 5


def test_a_chain_whose_columns_cannot_be_read():
    """All samples of a centred batch of 2 are on a line: no column is apart, and none is read."""
    state = rows_apart(bnmc.Chain(20, 2, "linear"), 0)
    state.add(np.random.default_rng(0).standard_normal((2, 20, 20)) @ state.layer.a[0])
    assert state.readings.size == 0


@pytest.mark.parametrize("batch", [3, 4, 7])
def test_half_of_the_samples_are_copies(batch):
    """But two differ even in a batch of three: a norm over the batch divides by their spread."""
    samples = states_of(bnmc.Chain(6, batch, "relu"))["duplicated samples"].y[0].T
    assert len(np.unique(samples, axis=0)) == (batch + 1) // 2


def test_row_means_have_three_times_the_deviation_of_entries():
    """Of 2000 rows of 4, N(0, 9 + 1/4), by the inequality of Dvoretzky, Kiefer and Wolfowitz."""
    means = states_of(bnmc.Chain(2000, 4, "relu"))["row means"].y[0].mean(axis=1)
    distance = stats.kstest(means, stats.norm(0.0, np.sqrt(9.25)).cdf).statistic
    assert distance <= np.sqrt(np.log(2.0 / FALSE_ALARM) / (2 * 2000))
