"""Growth of squared gradients in PyTorch networks beside the backward rates of this package.

`bnmc.torch.measure` measures networks Linear, BatchNorm1d, activation with three initializations:
PyTorch's default, Gaussian and orthogonal (Haar) weights. Each rate is compared with that of
`bnmc.backpropagate`, which is exact in law at the width of the networks, and with that of the mean
field, which has infinite width. The second differs by a bias of order batch/width, which many
networks resolve; `test_widths` shows this bias at several widths.

Each case has its own seed, so the cases are independent. A standard error of m networks has m − 1
degrees of freedom, so even of right rates some are more than 3 standard errors away; the column
"by chance beyond 3" is the probability of that.
"""

import dataclasses
import math

import pytest
from scipy import stats

import bnmc
from bench.turns import FULL, QUICK, only

torch = pytest.importorskip("torch")
from bnmc.torch import haar_, measure  # noqa: E402

ACTIVATIONS = {
    "relu": torch.nn.ReLU, "tanh": torch.nn.Tanh, "sigmoid": torch.nn.Sigmoid,
    "gelu": torch.nn.GELU, "silu": torch.nn.SiLU, "selu": torch.nn.SELU,
}  # fmt: skip
BATCHES = (8, 16, 32)
WIDTH, DEPTH, NETWORKS, CHAINS = 128, 24, 32, 100

#: Chains of the exact law with orthogonal weights, each of which costs about 2 s at width 128.
HAAR_CHAINS = 24

#: The cases whose bias is followed over the width.
FOLLOWED = (
    ("relu", 32, "haar"), ("tanh", 32, "default"), ("sigmoid", 16, "gaussian"),
    ("sigmoid", 32, "default"), ("selu", 32, "gaussian"), ("selu", 32, "default"),
)  # fmt: skip
WIDTHS = (64, 128, 256, 512)  # orthogonal weights without the last one

#: The largest |z| that a floor allows: with 15 degrees of freedom its probability is below 1e-5.
FAR = 6.5


def gaussian(model):
    """Draw Gaussian weights of variance 1/fan_in; batch normalization hides the biases."""
    for module in model:
        if isinstance(module, torch.nn.Linear):
            torch.nn.init.normal_(module.weight, std=1.0 / math.sqrt(module.weight.shape[1]))
    return model


RESETS = {"default": None, "gaussian": gaussian, "haar": haar_}
CASES = [
    (activation, batch, reset)
    for activation in ACTIVATIONS
    for batch in BATCHES
    for reset in RESETS
]


@pytest.mark.parametrize(
    "case",
    only(CASES, quick=CASES[: len(CASES) // 2], tiny=CASES[:3]),
    ids=lambda case: " ".join(map(str, case)),
)
def test_rates(turns, case):
    """All cases at one width; quick runs leave out half of the activations."""
    width, networks = turns.of((WIDTH, NETWORKS), (64, 4), (16, 2))
    turns.group = f"Width {width}, depth {DEPTH}, {networks} networks"
    compare(turns, " ".join(map(str, case)), case, width, networks, CASES.index(case))


@pytest.mark.runs(FULL, QUICK)
@pytest.mark.parametrize("case", FOLLOWED, ids=lambda case: " ".join(map(str, case)))
def test_widths(turns, case):
    """Follow a case over the width: the bias of the mean field, by the exact law."""
    widths, networks = turns.of((WIDTHS, NETWORKS // 2), (WIDTHS[:2], 4))
    turns.group = f"Infinite width beside finite widths: {' '.join(map(str, case))}"
    for width in widths[: 3 if case[2] == "haar" else None]:
        seed = 1000 * (FOLLOWED.index(case) + 1) + width
        exact, infinite = compare(turns, f"{width}", case, width, networks, seed)
        scale = width / case[1]
        turns.add(f"{width}", {
            "log bias x width / batch": math.log(exact.value / infinite) * scale,
            "error of the bias": exact.stderr / exact.value * scale,
        })  # fmt: skip


def compare(turns, name, case, width, networks, seed):
    """Compare a measured rate with that of the exact law and that of infinite width."""
    sample = turns.timed(name, lambda: measured(*case, width, networks, seed))
    chain = sample.reading.chain
    assert chain is not None
    assert not sample.reading.unfit, sample.reading.unfit
    chains = HAAR_CHAINS if chain.is_orthogonal else CHAINS
    rate, exact = sample.backward_rate(), exact_rate(chain, turns.of(chains, chains, 4), seed)
    ours, theirs = rate.stderr / rate.value, exact.stderr / exact.value
    z = math.log(rate.value / exact.value) / math.hypot(ours, theirs)
    # Welch's degrees of freedom, for the difference of two means of logarithms.
    freedom = math.hypot(ours, theirs) ** 4 / (ours**4 / (networks - 1) + theirs**4 / (chains - 1))
    turns.add(name, {
        "measured": rate.value, "its error": rate.stderr,
        "exact in law": exact.value, "error of this": exact.stderr, "z": z,
    })  # fmt: skip
    infinite = None
    if sample.prediction.applies:
        infinite = sample.prediction.values["backward_rate"]
        far = math.log(rate.value / infinite) / ours
        turns.add(name, {"infinite width": infinite, "z of it": far})
    by_chance = float(2.0 * stats.t.sf(3.0, freedom))
    turns.add(name, {"degrees of freedom": freedom, "by chance beyond 3": by_chance})
    turns.hold(name, "|z|", abs(z), at_most=FAR)
    return exact, infinite


def measured(activation, batch, reset, width, networks, seed):
    """Return the measurement of some networks; the loss has random directions."""
    torch.set_num_threads(1)  # the same bits on every machine
    torch.manual_seed(seed)
    layers = []
    for _ in range(DEPTH):
        layers += [
            torch.nn.Linear(width, width), torch.nn.BatchNorm1d(width, eps=1e-12),
            ACTIVATIONS[activation](),
        ]  # fmt: skip
    model = torch.nn.Sequential(*layers, torch.nn.Linear(width, 10)).double()
    directions = torch.randn(batch, 10, dtype=torch.float64)
    inputs = torch.randn(batch, width, dtype=torch.float64)
    return measure(
        model, inputs, loss=lambda output: (output * directions).sum(dim=1), networks=networks,
        reset=RESETS[reset], cosines=False,
    )  # fmt: skip


def exact_rate(chain, chains, seed):
    """Return the growth in the same layers of networks that are exact in law at this width.

    The k-th weight of the model is W_{k-1} of the chain after layer 0, the first activation.
    """
    first, last = DEPTH // 4, 3 * DEPTH // 4
    run = bnmc.backpropagate(
        dataclasses.replace(chain, eps=0.0), DEPTH, chains=chains, rng=seed, observables=()
    )
    return run.backward_rate(first=first - 1, last=last - 1)
