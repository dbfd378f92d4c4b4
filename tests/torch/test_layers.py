"""Weight layers in the order of their calls."""

import pytest
from torch_models import digest_of, mlp, nn, one_thread, torch  # noqa: F401

from bnmc.errors import ArgumentError
from bnmc.torch import (
    gain_for_,
    haar_,
    implicit_,
    layers,
    maximize_rank_,
    measure,
    orthogonalize_,
)

pytestmark = pytest.mark.usefixtures("one_thread")


class Backwards(nn.Module):
    """A model that calls its layers in another order than it lists them."""

    def __init__(self):
        super().__init__()
        self.last, self.first = nn.Linear(4, 2), nn.Linear(3, 4)

    def forward(self, x):
        return self.last(self.first(x))


def test_layers_come_in_the_order_of_calls():
    model = Backwards()
    assert list(layers.weight_matrices(model)) == ["last", "first"]
    assert [name for name, _ in layers.called_weight_layers(model, torch.randn(2, 3))] == [
        "first",
        "last",
    ]
    seen = []

    def visit(name, _, tensor):
        seen.append((name, tensor.shape[1]))

    modules = layers.weight_layers(model)
    output = layers.called(model, torch.randn(2, 3), modules, before=visit, after=visit)
    assert seen == [("first", 3), ("first", 4), ("last", 4), ("last", 2)]
    assert output.shape == (2, 2)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


class Stage(nn.Module):
    def __init__(self, *parts):
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x):
        for part in self.parts:
            x = part(x)
        return x


class Unit(Stage):
    """A linear layer with what follows it, as at the beginning of a model and inside its stages."""


def test_blocks_are_the_outermost_modules_of_a_class_with_most_weight_layers():
    def linear(count):
        return [nn.Linear(3, 3) for _ in range(count)]

    stages = [Stage(Stage(*linear(1)), Stage(*linear(1))), Stage(Stage(*linear(1)))]
    blocks = layers.chosen_layers(nn.Sequential(*stages, *linear(1)))
    assert (list(blocks.modules), blocks.between) == (["0", "1"], False)
    single = layers.chosen_layers(nn.Sequential(*(Stage(*linear(1)) for _ in range(2)), *linear(2)))
    assert (list(single.modules), single.between) == (["0.parts.0", "1.parts.0", "2", "3"], True)
    # A class that is also the stem is not the outermost one: its other modules are inside stages.
    stem, units = Unit(*linear(1)), [Unit(*linear(1)) for _ in range(3)]
    staged = layers.chosen_layers(nn.Sequential(stem, Stage(*units[:2]), Stage(units[2])))
    assert list(staged.modules) == ["1", "2"]


def test_shared_weights_count_once():
    layer = nn.Linear(3, 3)
    assert list(layers.weight_matrices(nn.Sequential(layer, nn.ReLU(), layer))) == ["0"]
    with pytest.raises(ArgumentError, match="called 2 times"):
        layers.called_weight_layers(nn.Sequential(layer, nn.ReLU(), layer), torch.randn(2, 3))


def parametrized(model, index, kind):
    """Return a model, one of whose weights is computed from other parameters."""
    if kind == "weight norm":
        nn.utils.parametrizations.weight_norm(model[index])
    elif kind == "hook of weight norm":
        with pytest.warns(FutureWarning, match="weight_norm"):
            nn.utils.weight_norm(model[index])
    else:
        nn.utils.parametrizations.spectral_norm(model[index])
    return model


def test_shared_tensors_are_one_weight():
    """Two layers with one tensor: a change for the first one would change the second one."""
    model = mlp(4, 8, norm=False)
    model[4].weight = model[2].weight
    assert list(layers.weight_matrices(model)) == ["0", "2", "6", "8"]
    batch = torch.randn(5, 8)
    before = digest_of(model)
    for cure in (orthogonalize_, lambda *given: maximize_rank_(*given, steps=1)):
        with pytest.raises(ArgumentError, match="'2' and '4' have one weight"):
            cure(model, batch)
        assert digest_of(model) == before


def test_all_layers_with_computed_weights_are_visited():
    """Each access of a parametrized weight makes a tensor, whose identity may be that of others."""
    model = mlp(6, 4, norm=False)
    for index in range(0, 13, 2):
        parametrized(model, index, "weight norm")
    names = [name for name, _ in layers.called_weight_layers(model, torch.randn(3, 4))]
    assert names == ["0", "2", "4", "6", "8", "10", "12"]


@pytest.mark.parametrize("kind", ["weight norm", "hook of weight norm", "spectral norm"])
@pytest.mark.parametrize("cure", [
    haar_, gain_for_, lambda model: orthogonalize_(model, torch.ones(5, 8)),
], ids=["haar_", "gain_for_", "orthogonalize_"])  # fmt: skip
def test_computed_weights_cannot_be_set(cure, kind):
    """A cure that wrote to such a weight would leave the model as it was, without an error."""
    model = parametrized(mlp(4, 8, norm=False), 4, kind)
    before = digest_of(model)
    with pytest.raises(ArgumentError, match="'4' is computed from other parameters"):
        cure(model)
    assert digest_of(model) == before


@pytest.mark.parametrize("last", [[nn.Linear(20, 20)], [nn.Linear(20, 20), nn.ReLU()]])
def test_implicit_layers_are_weight_layers(last):
    """Each begins a block; the last one is a readout if its output is that of the model."""
    model = nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 20), nn.ReLU(), *last)
    batch = torch.randn(4, 6)
    expected = measure(model, batch)
    measured = measure(implicit_(model, layers=["0", "2", "4"]), batch)
    assert measured.layers == expected.layers == ("0", "2", "4")[: 1 + len(last)]
    assert measured.layouts == expected.layouts
