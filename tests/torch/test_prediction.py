"""The prediction beside a measurement: when it applies, and that measurements agree with it."""

import dataclasses
import functools
import math

import numpy as np
import pytest
from slow_cases import some
from torch_models import mlp, nn, one_thread, torch, with_norm  # noqa: F401

import bnmc
from bnmc.mean_field import CorrelationMap
from bnmc.torch import chain_of, haar_, measure
from bnmc.torch.prediction import predicted
from bnmc.torch.reading import ModelChain

pytestmark = pytest.mark.usefixtures("one_thread")


def test_numbers_are_those_of_the_fixed_point():
    prediction = predicted(chain_of(mlp(4, 12), batch=10))
    point = bnmc.MeanField(bnmc.Chain(12, 10, "relu")).fixed_point()
    assert prediction.applies
    gram = point.gram
    expected = {
        "backward_rate": point.backward_rate,
        "rank_bound": np.trace(gram) ** 2 / (gram**2).sum(),
        "orthogonality_gap": np.linalg.norm(gram / np.trace(gram) - np.eye(10) / 10),
        "mean_correlation": point.c,
        "scale": math.sqrt(gram[0, 0]),
    }
    assert prediction.values == pytest.approx(expected, rel=1e-9)
    assert "×1.696 per layer" in prediction.sentence(None)
    assert "measured ×1.5 ± 0.1" in prediction.sentence((1.5, 0.1))
    assert prediction.sentence((1.5, math.nan)).endswith("measured ×1.5")


@pytest.mark.parametrize(
    ("chain", "said"),
    [
        (bnmc.Chain(10, 5, "relu", norm="none"), "gain_for_ sets a gain"),
        (bnmc.Chain(10, 5, "relu", norm="none", gain=2**0.5), "without a norm"),
        (bnmc.Chain.resnet(10, 5, "relu", norm="layer"), "residual_growth has its law"),
        (bnmc.Chain(10, 5, "relu", order="activation-norm"), "bnmc.backpropagate simulates"),
        (bnmc.Chain(10, 3, "relu"), "infinite for batches of 3"),
        (bnmc.Chain(10, 10, "relu", gain=1e-3, eps=1e-5), "ε = 1e-05 is not small"),
        (bnmc.Chain(10, 2, "abs"), "abs"),
        (bnmc.Chain(10, 64, "gelu"), "unstable"),
    ],
)
def test_when_none_applies(chain, said):
    prediction = predicted(ModelChain(chain, ()))
    assert not prediction.applies
    assert not prediction.values
    assert said in prediction.sentence(None) or said == "abs"
    many = predicted(ModelChain(None, ("a", "b", "c", "d", "e")))
    assert many.sentence(None) == "no prediction: a; b; c; and 2 more"


@pytest.mark.parametrize("gain", [0.25, 1.0, 4.0])
def test_eps_is_small_up_to_a_thousandth_of_the_variance_of_a_neuron(gain):
    """The neurons before the norm are those of gain W a, of variance gain² b (1 - c) in a batch."""
    chain = bnmc.Chain(10, 10, "relu", gain=gain)
    point = bnmc.MeanField(chain).fixed_point()
    limit = 1e-3 * gain**2 * (point.gram[0, 0] - point.gram[0, 1])
    for factor, small in ((0.999, True), (1.001, False)):
        prediction = predicted(ModelChain(dataclasses.replace(chain, eps=factor * limit), ()))
        assert prediction.applies == small
    assert f"is not small against the variance {1e3 * limit:.3g}" in prediction.sentence(None)


def test_convolutions_have_the_numbers_that_depend_on_no_view():
    chain = bnmc.Chain.conv(10, 2, "relu", shape=(2, 2), kernel=(2, 2))
    prediction = predicted(ModelChain(chain, ())).values
    columns = predicted(ModelChain(bnmc.Chain(10, 8, "relu"), ())).values
    assert set(prediction) == {"backward_rate", "mean_correlation", "scale"}
    assert prediction == pytest.approx({name: columns[name] for name in prediction}, rel=1e-9)


PAIRS = (
    bnmc.Chain(10, 5, "tanh", norm="layer", bias_variance=0.1, eps=1e-5),
    bnmc.Chain(10, 5, "gelu", norm="rms", gain=1.3),
    bnmc.Chain(10, 5, "relu", norm="group(2)", order="activation-norm", bias_variance=0.2),
    bnmc.Chain(10, 5, "selu", norm="layer", skip=0.5, order="norm-activation"),
    bnmc.Chain(10, 5, "tanh", norm="none", gain=1.5, bias_variance=0.05),
)


@pytest.mark.parametrize("chain", some(PAIRS, *PAIRS[:2]), ids=str)
def test_numbers_of_pairs(chain):
    """The activations of one wide layer whose rows are drawn at the fixed point."""
    prediction = predicted(ModelChain(chain, ()))
    phase = CorrelationMap.of(chain).phase()
    assert prediction.applies
    assert prediction.values["backward_rate"] == phase.gradient_factor
    n, width = chain.batch, 400_000
    rng = np.random.default_rng(3)
    single, common = rng.standard_normal((width, n)), rng.standard_normal((width, 1))
    c = phase.correlation
    rows = math.sqrt(phase.variance) * (math.sqrt(1.0 - c) * single + math.sqrt(c) * common)
    norm = functools.partial(chain.normalization, eps=chain.eps)
    first = chain.order == "norm-activation"
    a = chain.activation(norm(rows)) if first else norm(chain.activation(rows))
    gram = a.T @ a / width
    expected = {
        "rank_bound": np.trace(gram) ** 2 / (gram**2).sum(),
        "orthogonality_gap": np.linalg.norm(gram / np.trace(gram) - np.eye(n) / n),
        "mean_correlation": bnmc.gram.correlation(gram)[~np.eye(n, dtype=bool)].mean(),
        "scale": math.sqrt(np.trace(gram) / n),
    }
    # Means of 400,000 rows have relative standard errors below 0.003; 5 of them are allowed.
    for name, value in expected.items():
        assert prediction.values[name] == pytest.approx(value, rel=0.015, abs=0.005), name


def test_critical_networks_have_no_rank():
    """For relu with layer norm the correlations tend to 1, but slower than exponentially."""
    prediction = predicted(ModelChain(bnmc.Chain(10, 5, "relu", norm="layer"), ()))
    assert prediction.values == pytest.approx({"backward_rate": 1.0, "scale": math.sqrt(0.5)})


def gaussian(model):
    for module in model:
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=1.0 / math.sqrt(module.weight.shape[1]))
            nn.init.zeros_(module.bias)


def of_norm(make, activation=nn.Tanh):
    return with_norm(make, activation, width=48, depth=16, readout=10)


#: A model, the batch size, and the function that draws the parameters of its networks.
MODELS = {
    "gaussian": (lambda: mlp(16, 48), 8, gaussian),
    "default": (lambda: mlp(16, 48), 8, None),
    "tanh": (lambda: mlp(16, 48, nn.Tanh), 8, None),
    "haar": (lambda: mlp(16, 48), 8, haar_),
    "layer": (lambda: of_norm(lambda: nn.LayerNorm(48, eps=1e-9)), 4, gaussian),
    "rms": (lambda: of_norm(lambda: nn.RMSNorm(48, eps=1e-9)), 4, gaussian),
    "group(2)": (lambda: of_norm(lambda: nn.GroupNorm(2, 48, eps=1e-9)), 4, gaussian),
}


@pytest.mark.parametrize("name", some(MODELS, "gaussian"))
def test_measured_rates_agree_with_the_exact_law(name):
    """Gradients of networks against `bnmc.backpropagate`, exact in law at the same width.

    Both estimates are means of logarithms of independent networks, 16 and 400 of them, so their
    difference is nearly Student's; 8 standard errors are exceeded with probability below 1e-6
    (15 degrees of freedom: 8.7e-7). Infinite width is within 2/width for norms over the features.
    """
    make, batch, reset = MODELS[name]
    over_features = name in ("layer", "rms", "group(2)")
    model = make()
    torch.manual_seed(5 if over_features else 11)
    measurement = measure(
        model, torch.randn(batch, 48), networks=16, reset=reset, cosines=False,
        loss=lambda out: (out * torch.randn(batch, 10)).sum(dim=1),
    )  # fmt: skip
    law = "haar" if reset is haar_ else "gaussian"
    chain = bnmc.Chain(48, batch, "tanh" if name == "tanh" else "relu", weights=law)
    if over_features:
        chain = measurement.reading.chain
        assert (measurement.reading.unfit, chain.norm, chain.weights) == ((), name, "gaussian")
        assert chain.bias_variance == 0.0
        chain = dataclasses.replace(chain, gain=1.0)
    run = bnmc.backpropagate(chain, 16, chains=400, rng=0, observables=())
    # The k-th weight of the model is W_{k-1} of the chain after layer 0, the first activation.
    exact, measured = run.rate(first=3, last=11), measurement.rate(first=4, last=12)
    error = math.hypot(exact.stderr / exact.value, measured.stderr / measured.value)
    assert abs(math.log(measured.value / exact.value)) < 8.0 * error
    assert measured.stderr < 0.1
    if over_features:
        limit = measurement.prediction.values["backward_rate"]
        assert abs(math.log(exact.value / limit)) < 0.05
