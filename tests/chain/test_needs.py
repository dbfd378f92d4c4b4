"""Checks that several estimators share: one message each, at each place."""

import numpy as np
import pytest

import bnmc
from bnmc.chain.needs import ROW_BY_ROW, STATIONARY, TWO_SAMPLES, require
from bnmc.errors import ArgumentError, ArgumentTypeError, BackendError
from bnmc.mixing.absorption import absorbing_events

NONE = bnmc.Chain(20, 3, "relu", norm="none")
ONE = bnmc.Chain(20, 1, "relu", norm="batch-uncentred")
ALLOWED = '"batch", "batch-uncentred", "layer", "rms" or "group(g)"'
REASON = "without normalization no stationary law exists"
X = np.eye(20)[:, :3]


def bound(chain):
    return bnmc.mixing.tv_bound(chain, 3)


def mean(chain):
    return bnmc.invariant.expectation(chain, "trace")


def check_samples(chain):
    return bnmc.invariant.check(chain, samples=np.ones((200, 20, chain.batch)))


@pytest.mark.parametrize(
    "call",
    [
        lambda chain: require(chain, STATIONARY),
        lambda chain: bnmc.mixing.two_inputs(chain, X, X),
        lambda chain: bnmc.invariant.sample(chain, 2),
        *(bound, mean, check_samples, bnmc.mixing.contraction, bnmc.mixing.compare),
        bnmc.invariant.check,
    ],
)
def test_without_normalization_there_is_no_stationary_law(call):
    with pytest.raises(ArgumentError) as raised:
        call(NONE)
    assert str(raised.value) == f"norm: got 'none', allowed: {ALLOWED} ({REASON})"


def test_biases_may_lead_to_a_stationary_law():
    """tanh is bounded, and the bias keeps G away from 0."""
    chain = bnmc.Chain(20, 3, "tanh", norm="none", bias_variance=0.3, gain=1.5)
    with pytest.raises(ArgumentError, match=r"^norm: .*a stationary law may .*autocorrelation"):
        mean(chain)
    run = bnmc.simulate(chain, 1000, chains=2, rng=0)
    assert np.isfinite(bnmc.mixing.autocorrelation(run, bnmc.gram.rank_bound).time.value)


@pytest.mark.parametrize(
    "call",
    [lambda chain: require(chain, [TWO_SAMPLES]), bound, bnmc.mixing.compare, check_samples],
)
def test_one_sample_is_no_chain(call):
    with pytest.raises(ArgumentError) as raised:
        call(ONE)
    expected = "batch: got 1, allowed: an integer >= 2 (one sample is no chain)"
    assert str(raised.value) == expected


def test_chains_with_a_normalization_pass():
    require(ONE, STATIONARY)
    require(bnmc.Chain(20, 3, "relu"), STATIONARY)
    require(NONE, [TWO_SAMPLES])


# --- layers that few functions know

OTHER_LAYERS = {
    "norm": {"norm": "layer"},
    "order": {"order": "activation-norm"},
    "bias_variance": {"norm": "batch-uncentred", "bias_variance": 0.1},
}
REFUSING = {
    "row by row": (lambda chain: require(chain, ROW_BY_ROW, "elsewhere"), "elsewhere"),
    "absorbing events": (
        lambda chain: absorbing_events(chain, np.ones((2, 3, 3))),
        "no absorbing event",
    ),
    "regularity.constant": (bnmc.regularity.constant, "observable of bnmc.simulate"),
    "kernels.law": (bnmc.kernels.law, "bnmc.simulate"),
    "mean field": (lambda chain: bnmc.MeanField(chain).fixed_point(), ""),
    "mean field, fluctuations": (lambda chain: bnmc.MeanField(chain).fluctuations(), ""),
}


#: The map of the mean field has biases; its fixed point has none.  Norms over the features have
#: fluctuations at their fixed points.
KNOWN = {
    ("bias_variance", "mean field, map"), ("bias_variance", "mean field, path"),
    ("norm", "mean field, fluctuations"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("argument", "name"),
    [(option, name) for option in OTHER_LAYERS for name in REFUSING if (option, name) not in KNOWN],
)
def test_layers_that_a_function_does_not_know_are_refused(argument, name):
    call, instead = REFUSING[name]
    chain = bnmc.Chain(20, 3, "relu", **OTHER_LAYERS[argument])
    with pytest.raises(ArgumentError) as raised:
        call(chain)
    assert raised.value.argument == argument
    assert instead in raised.value.hint


def test_a_bias_that_the_norm_subtracts_changes_nothing_but_states():
    chain = bnmc.Chain(20, 3, "tanh", bias_variance=0.3)
    require(chain, ROW_BY_ROW)
    star = bnmc.MeanField(chain).fixed_point().gram
    assert np.array_equal(star, bnmc.MeanField(bnmc.Chain(20, 3, "tanh")).fixed_point().gram)
    with pytest.raises(ArgumentError, match=r"^bias_variance: got 0\.3, allowed: 0"):
        bnmc.kernels.law(chain)


@pytest.mark.parametrize(
    ("weights", "why"),
    [("pytorch", "more of a than its Gram matrix"), ("haar", "cannot draw the same rows")],
)
@pytest.mark.parametrize(
    "call",
    [
        lambda chain: bnmc.invariant.sample(chain, 2),
        *(bound, mean, bnmc.mixing.contraction, bnmc.invariant.check),
    ],
)
def test_pairs_of_other_laws_of_weights_are_refused_with_the_reason(call, weights, why):
    for norm in ("batch", "layer"):
        with pytest.raises(ArgumentError, match="^weights: got") as raised:
            call(bnmc.Chain(20, 3, "relu", norm=norm, weights=weights))
        assert why in raised.value.hint


@pytest.mark.parametrize(
    "block",
    [
        bnmc.Residual(bnmc.Chain(6, 3).repeat(1), activation="relu"),
        bnmc.Residual(bnmc.Chain(6, 3).repeat(1), bnmc.Chain(6, 3)),
    ],
)
def test_norms_before_a_sum_are_refused_where_derivatives_lack_them(block):
    network = bnmc.Network((bnmc.Chain(6, 3), 1), block)
    for call in (
        lambda: bnmc.gradients.jacobian(network),
        lambda: bnmc.gradients.extreme_singular_values(network),
        lambda: bnmc.train(network, np.eye(6)[:, :3], [0, 1, 0], steps=1, learning_rate=0.1),
    ):
        with pytest.raises(ArgumentError, match="no norm before their sums"):
            call()


def test_no_gpu_couples_layers_that_are_not_row_by_row(monkeypatch):
    monkeypatch.setattr("bnmc._kernels.gpu.device.why_not", lambda: None)
    for options in (OTHER_LAYERS["norm"], OTHER_LAYERS["order"]):
        with pytest.raises(BackendError, match="are coupled on the CPU: backend='cpu'"):
            bnmc.mixing.tv_bound(bnmc.Chain(20, 3, "relu", **options), 3, backend="cuda")


@pytest.mark.parametrize(
    "call",
    [
        bound, mean, bnmc.mixing.contraction, bnmc.mixing.compare, bnmc.regularity.constant,
        bnmc.invariant.check, lambda chain: bnmc.invariant.sample(chain, 2), bnmc.kernels.law,
        lambda chain: bnmc.MeanField(chain).fixed_point(), bnmc.mean_field.CorrelationMap.of,
        lambda chain: bnmc.MeanField(chain).fluctuations(),
        lambda chain: bnmc.MeanField(chain).step(np.eye(3)),
    ],
)  # fmt: skip
def test_layers_that_differ_have_no_meaning_for_a_repeated_layer(call):
    network = bnmc.Chain(20, 3, "relu").repeat(1) + bnmc.Chain(20, 3, "tanh").repeat(1)
    with pytest.raises(ArgumentTypeError, match="meaning for one repeated layer only"):
        call(network)
