"""The prediction beside a measurement: when it applies, and that measurements agree with it."""

import math

import numpy as np
import pytest
from torch_models import mlp, nn, one_thread, torch  # noqa: F401

import bnmc
from bnmc.torch import chain_of, haar_
from bnmc.torch.prediction import predicted
from bnmc.torch.reading import ModelChain

pytestmark = pytest.mark.usefixtures("one_thread")


def test_numbers_are_those_of_the_fixed_point():
    found = predicted(chain_of(mlp(4, 12), batch=10))
    point = bnmc.MeanField(bnmc.Chain(12, 10, "relu")).fixed_point()
    assert found.applies
    gram = point.gram
    expected = {
        "backward_rate": point.backward_rate,
        "rank_bound": np.trace(gram) ** 2 / (gram**2).sum(),
        "orthogonality_gap": np.linalg.norm(gram / np.trace(gram) - np.eye(10) / 10),
        "mean_correlation": point.c,
        "scale": math.sqrt(gram[0, 0]),
    }
    assert found.values == pytest.approx(expected, rel=1e-9)
    assert "×1.696 per layer" in found.sentence(None)
    assert "measured ×1.5 ± 0.1" in found.sentence((1.5, 0.1))
    assert found.sentence((1.5, math.nan)).endswith("measured ×1.5")


@pytest.mark.parametrize(
    ("chain", "said"),
    [
        (bnmc.Chain(10, 5, "relu", norm="none"), "without a norm"),
        (bnmc.Chain(10, 3, "relu"), "infinite for batches of 3"),
        (bnmc.Chain(10, 10, "relu", gain=1e-3, eps=1e-5), "ε = 1e-05 is not small"),
        (bnmc.Chain(10, 2, "abs"), "abs"),
        (bnmc.Chain(10, 64, "gelu"), "unstable"),
    ],
)
def test_when_none_applies(chain, said):
    found = predicted(ModelChain(chain, ()))
    assert not found.applies
    assert not found.values
    assert said in found.sentence(None) or said == "abs"
    many = predicted(ModelChain(None, ("a", "b", "c", "d", "e")))
    assert many.sentence(None) == "no prediction: a; b; c; and 2 more"


def default(model):
    return model


def gaussian(model):
    for module in model:
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=1.0 / math.sqrt(module.weight.shape[1]))
    return model


RESETS = {"gaussian": gaussian, "haar": haar_, "default": None}


@pytest.mark.parametrize(
    ("activation", "reset"),
    [
        ("relu", "default"), ("relu", "gaussian"),
        pytest.param("tanh", "default", marks=pytest.mark.slow),
        pytest.param("relu", "haar", marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_measured_rates_agree_with_the_exact_law(activation, reset):
    """Gradients of networks against `bnmc.backpropagate`, exact in law at the same width.

    Both estimates are means of logarithms of independent networks, 16 and 400 of them, so their
    difference is nearly Student's; 8 standard errors are exceeded with probability below 1e-6
    (15 degrees of freedom: 8.7e-7).
    """
    kinds = {"relu": nn.ReLU, "tanh": nn.Tanh}
    width, batch, depth = 48, 8, 16
    model = mlp(depth, width, kinds[activation])
    torch.manual_seed(11)
    found = bnmc.torch.measure(
        model, torch.randn(batch, width), networks=16, reset=RESETS[reset], cosines=False,
        loss=lambda out: (out * torch.randn(batch, 10)).sum(dim=1),
    )  # fmt: skip
    chain = bnmc.Chain(width, batch, activation, weights="haar" if reset == "haar" else "gaussian")
    run = bnmc.backpropagate(chain, depth, chains=400, rng=0, observables=())
    # The k-th weight of the model is W_{k-1} of the chain after layer 0, the first activation.
    exact, measured = run.rate(first=3, last=11), found.rate(first=4, last=12)
    error = math.hypot(exact.stderr / exact.value, measured.stderr / measured.value)
    assert abs(math.log(measured.value / exact.value)) < 8.0 * error
    assert measured.stderr < 0.1
