"""Weight layers in the order of their calls."""

import pytest
from torch_models import nn, one_thread, torch  # noqa: F401

from bnmc.errors import ArgumentError
from bnmc.torch.hidden import called_weight_layers, visit_weight_layers, weight_matrices

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
    assert list(weight_matrices(model)) == ["last", "first"]
    assert [name for name, _ in called_weight_layers(model, torch.randn(2, 3))] == ["first", "last"]
    seen = []
    output = visit_weight_layers(
        model, torch.randn(2, 3), lambda name, _, received: seen.append((name, received.shape[1])),
        after=lambda name, _, out: seen.append((name, out.shape[1])),
    )  # fmt: skip
    assert seen == [("first", 3), ("first", 4), ("last", 4), ("last", 2)]
    assert output.shape == (2, 2)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_shared_weights_count_once():
    layer = nn.Linear(3, 3)
    assert list(weight_matrices(nn.Sequential(layer, nn.ReLU(), layer))) == ["0"]
    with pytest.raises(ArgumentError, match="called 2 times"):
        called_weight_layers(nn.Sequential(layer, nn.ReLU(), layer), torch.randn(2, 3))
