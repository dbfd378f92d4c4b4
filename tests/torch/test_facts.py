"""The facts of models, each from its definition."""

import copy
import dataclasses
import math
import time

import numpy as np
import pytest
from torch_models import digest_of, mlp, nn, one_thread, torch  # noqa: F401

from bnmc.torch import measure, trying
from bnmc.torch.facts import ratio_of_states, ratios_of_states
from bnmc.torch.losses import as_loss
from bnmc.torch.models import as_inputs
from bnmc.torch.outlook import outlook_of, said

pytestmark = pytest.mark.usefixtures("one_thread")


def test_facts_are_those_of_hooks():
    model, batch, labels = mlp(4, 8, nn.ReLU, norm=False), torch.randn(12, 8), torch.arange(12) % 3
    facts = measure(model, batch, labels=labels).facts
    states = []
    x = batch
    for place, module in enumerate(model):
        x = module(x)
        if place in (1, 3, 5, 7):
            x.retain_grad()
            states.append(x)
    loss = nn.functional.cross_entropy(x, labels)
    loss.backward()
    assert facts.trainable
    assert facts.loss == pytest.approx(loss.item())
    assert facts.chance == math.log(10)
    ratio = states[0].grad.norm() / states[-1].grad.norm()
    assert facts.state_gradient_ratio == pytest.approx(ratio.item(), rel=1e-5)
    assert facts.state_gradient_rate == pytest.approx(ratio.item() ** (2 / 3), rel=1e-5)
    last = states[-1].detach().double().numpy()
    shares = np.linalg.svd(last, compute_uv=False)
    shares = shares[shares > 1e-9] / shares.sum()
    assert facts.effective_rank == pytest.approx(math.exp(-(shares * np.log(shares)).sum()))
    units = batch.double().numpy() / np.linalg.norm(batch.numpy(), axis=1, keepdims=True)
    cosines = [units[i] @ units[j] for i in range(12) for j in range(i)]
    assert facts.input_correlation == pytest.approx(np.mean(cosines), abs=1e-6)
    assert facts.output_spread == pytest.approx(x.detach().numpy().std(axis=0).mean(), rel=1e-5)
    live = [int((state != 0).any(dim=0).sum()) for state in states]
    narrowed = [count for count in live if count < 8]
    assert facts.least_live_units == min(narrowed, default=math.inf)
    small = [module.weight.grad.norm() / module.weight.norm() < 1e-6 for module in model[::2]]
    assert facts.without_signal == np.mean(small)
    weights = sum(part.numel() for name, part in model.named_parameters() if "weight" in name)
    readout = model[-1].weight.numel()
    total = sum(part.numel() for part in model.parameters())
    assert facts.measured_share == (weights - readout) / total


@pytest.mark.parametrize(
    ("norms", "ratio", "rate", "bend"),
    [
        ((8.0, 4.0, 2.0, 1.0), 8.0, 4.0, ""),
        ((1e3, 1e2, 10.0, 1.0), 1e3, 100.0, ""),  # even, however steep
        ((4.0, 4.0, 4.0, 4.0, 1.0), 4.0, 2.0, "e"),
        ((2.9, 2.9, 2.9, 2.9, 1.0), 2.9, 2.9**0.5, ""),
        ((0.0, 0.0, 0.0, 0.0, 1e300), 0.0, 0.0, "e"),
    ],
)
def test_growth_of_gradients_and_where_it_is_not_even(norms, ratio, rate, bend):
    actual = ratio_of_states("abcde"[: len(norms)], [(3, 4)] * len(norms), norms)
    np.testing.assert_allclose(actual["state_gradient_ratio"], ratio, atol=1e-30)
    np.testing.assert_allclose(actual["state_gradient_rate"], rate, atol=1e-30)
    assert (actual["state_gradient_bend"], actual["state_gradient_span"]) == (bend, ())
    assert ratios_of_states([(3, 4)] * len(norms), norms)[0] == pytest.approx(ratio, 1e-12, 1e-30)


def test_gradients_of_states_are_relative_to_the_last_one_of_the_most_frequent_shape():
    ratios = ratios_of_states([(3, 4), (3, 4), (3, 2)], [8.0, 2.0, 6.0])
    np.testing.assert_allclose(ratios, [4.0, 1.0, 3.0])
    facts = ratio_of_states("abc", [(3, 4), (3, 4), (3, 2)], [8.0, 2.0, 6.0])
    assert facts["state_gradient_span"] == ("b", "a", "2 of 3 blocks, of one shape")
    np.testing.assert_allclose(ratios_of_states([(3, 4), (3, 2)], [8.0, 2.0]), [4.0, 1.0])


def test_chance_of_a_squared_loss_is_the_variance_of_the_targets():
    model, targets = mlp(2, 5, classes=3), torch.randn(9, 3) + 30.0
    facts = measure(model, torch.randn(9, 5), labels=targets).facts
    expected = 0.5 * ((targets - targets.mean(dim=0)) ** 2).sum(dim=1).mean()
    assert facts.chance == pytest.approx(expected.item(), rel=1e-5)
    assert facts.loss / facts.chance > facts.most_of_chance == 30.0
    equal = measure(model, torch.randn(9, 5), labels=torch.ones(9, 3)).facts
    assert math.isnan(equal.chance)


def test_labels_that_are_ignored_count_for_nothing():
    model = nn.Sequential(nn.Conv1d(2, 5, 1), nn.ReLU(), nn.Conv1d(5, 4, 1))
    batch, labels = torch.randn(3, 2, 6), torch.arange(18).reshape(3, 6) % 4
    labels[:, 0] = -100
    expected = nn.functional.cross_entropy(model(batch), labels).item()
    assert measure(model, batch, labels=labels).facts.loss == pytest.approx(expected, rel=1e-6)
    last = nn.Sequential(nn.Linear(2, 5), nn.ReLU(), nn.Linear(5, 4))  # classes on the last axis
    tokens = batch.movedim(1, 2)
    expected = nn.functional.cross_entropy(last(tokens).movedim(2, 1), labels).item()
    facts = measure(last, tokens, labels=labels).facts
    assert (facts.loss, facts.chance) == (pytest.approx(expected, rel=1e-6), math.log(4))


class WithSpare(nn.Module):
    """A perceptron, and a layer that the forward pass does not call."""

    def __init__(self):
        super().__init__()
        self.spare, self.inner = nn.Linear(3, 3), mlp(2, 6, norm=False)

    def forward(self, x):
        return self.inner(x)


def test_parameters_without_gradients_have_names():
    model = WithSpare()
    facts = measure(model, torch.randn(7, 6), labels=torch.arange(7) % 4).facts
    assert {"spare.weight", "spare.bias"} <= set(facts.without_gradient)
    assert not facts.zero_by_design
    with torch.no_grad():
        model.inner[-1].weight.zero_()
    facts = measure(model, torch.randn(7, 6), labels=torch.arange(7) % 4).facts
    assert facts.zero_by_design
    assert facts.zero_head
    assert facts.without_signal == 0.0


def test_clones_and_numbers_of_a_batch_norm():
    model = nn.Sequential(
        nn.Conv1d(2, 8, 1), nn.BatchNorm1d(8), nn.ReLU(), nn.Flatten(), nn.Linear(40, 3)
    )
    batch, labels = torch.randn(4, 2, 5), torch.arange(4) % 3
    facts = measure(model, batch, labels=labels).facts
    assert (facts.numbers_per_channel, facts.clones) == (20.0, 0.0)
    with torch.no_grad():
        model[0].weight[:] = model[0].weight[:1]
        model[-1].weight.fill_(0.1)
        model[-1].weight.mul_(torch.arange(3.0)[:, None])
    facts = measure(model, batch, labels=labels).facts
    assert facts.clones == 1.0


def test_a_model_in_eval_mode_is_told_to_train():
    """Before training, batch norms in eval mode do nothing, so the model collapses."""
    layers = [
        part for _ in range(20) for part in (nn.Linear(32, 32), nn.BatchNorm1d(32), nn.ReLU())
    ]
    model = nn.Sequential(*layers, nn.Linear(32, 4))
    batch, labels = torch.randn(64, 32), torch.arange(64) % 4
    assert "eval mode" not in measure(model, batch, labels).verdict
    frozen = measure(model.eval(), batch, labels)
    assert frozen.verdict.startswith(
        "The model is in eval mode: batch norms use running statistics. SGD does not train"
    )
    assert frozen.verdict.endswith("Try model.train(), and measure again.")
    assert measure(model, batch).verdict.startswith("The model is in eval mode: ")
    # A trained model may be measured in eval mode.
    trained = dataclasses.replace(frozen.facts, loss=0.1)
    assert said(outlook_of([trained]), trained, "samples").startswith("A trained model: ")


def test_a_try_lowers_the_loss_and_changes_nothing():
    model, batch, labels = mlp(2, 8), torch.randn(20, 8), torch.arange(20) % 3
    before = digest_of(model)
    tried = measure(model, batch, labels=labels, tries=True)
    assert digest_of(model) == before
    assert tried.fall < 0.5
    assert tried.outlook.beside[-1].startswith("20 steps of Adam lower the loss to ")
    unknown = measure(model, batch, loss=lambda out: out.square().mean(), tries=True)
    assert 0.0 <= unknown.fall < 1.0
    assert measure(model, batch, labels=labels).fall is None
    assert measure(model, batch, tries=True).fall is None


def test_the_facts_after_a_try_are_those_of_a_plain_training():
    start, batch, labels = mlp(2, 8), torch.randn(20, 8), torch.arange(20) % 3
    ends = {}
    for rate in (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1):
        model = copy.deepcopy(start)
        steps = torch.optim.Adam(model.parameters(), rate)
        for _ in range(20):
            steps.zero_grad()
            nn.functional.cross_entropy(model(batch), labels).backward()
            steps.step()
        with torch.no_grad():
            ends[float(nn.functional.cross_entropy(model(batch), labels))] = model
    tried = measure(start, batch, labels=labels, tries=True)
    assert tried.fall == pytest.approx(min(ends) / math.log(10.0))
    assert repr(tried.after) == repr(measure(ends[min(ends)], batch, labels=labels).facts)


def test_passes_of_a_try_are_counted_and_timed():
    """Against a model that counts and waits: its passes cannot be faster than it waits."""
    model, batch = mlp(2, 8), torch.randn(20, 8)
    calls = []
    model.register_forward_pre_hook(lambda *_: calls.append(time.sleep(0.003)))
    goal, inputs = as_loss(None, torch.arange(20) % 3, 20, "cpu"), as_inputs(model, batch)
    first = measure(model, batch).facts
    before = digest_of(model)
    assert trying.seconds_of_a_pass(model, inputs, goal) > 0.003
    assert trying.seconds_of_a_pass(model, inputs, None) > 0.003
    assert digest_of(model) == before
    calls.clear()
    trying.steps_tried(model, inputs, goal, first, lambda: first)
    assert len(calls) == trying.PASSES


class Autocast(nn.Module):
    """A model that computes in float16, with weights in float32."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.float16):
            return self.inner(x)


def test_gradients_that_float16_loses():
    """The facts are those of float32, and the verdict names what loss scaling cures."""
    batch, labels = torch.randn(16, 24), torch.arange(16) % 10

    def small(output):  # the gradients are small, and all else is well
        return nn.functional.cross_entropy(output.float(), labels) / 1e6

    for depth, options in ((12, {"labels": labels}), (2, {"loss": small})):
        facts = []
        for change in (nn.Module.float, nn.Module.half, Autocast, nn.Module.bfloat16):
            torch.manual_seed(0)
            model = change(mlp(depth, 24, norm=False))
            inputs = batch.to(next(model.parameters()).dtype)
            facts.append(measure(model, inputs, cosines=False, **options))
        exact, half, cast, wide = (each.facts for each in facts)
        assert exact.lost == wide.lost == 0.0
        assert half.lost > 0.02
        for each in (half, cast):
            assert each.lost == half.lost
            assert each.state_gradient_ratio == pytest.approx(exact.state_gradient_ratio, rel=0.05)
            assert each.without_signal == exact.without_signal
            assert each.small_gradients == pytest.approx(exact.small_gradients, abs=0.02)
            assert each.without_gradient == exact.without_gradient == ()
    assert half.lost > 0.9
    assert "gradients are below the smallest float16 number" in facts[1].verdict
    assert facts[1].verdict.endswith("Try loss scaling, or bfloat16.")
    assert (facts[1].outlook.adam, facts[3].outlook.adam) == ("no", "late")


class Scaled(nn.Module):
    """x + factor · branch(x)."""

    def __init__(self, factor):
        super().__init__()
        self.branch = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6))
        self.factor = nn.Parameter(torch.full((6,), factor))

    def forward(self, x):
        return x + self.factor * self.branch(x)


def test_small_gradients_behind_small_factors_are_no_fault():
    """The factors move first, as those of ConvNeXt, 1e-6; without them, the weights are dead."""
    batch, labels = torch.randn(9, 6), torch.arange(9) % 3
    model = nn.Sequential(*(Scaled(1e-7) for _ in range(3)), nn.Linear(6, 3))
    facts = measure(model, batch, labels=labels).facts
    assert facts.without_signal == 0.0
    for block in model[:3]:
        block.factor.requires_grad_(False)
    assert measure(model, batch, labels=labels).facts.without_signal == 6 / 7
