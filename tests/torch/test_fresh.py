"""`redrawing`: each parameter is drawn from the law that its numbers show, and none drifts."""

import math

import pytest
from torch_models import nn, one_thread, torch  # noqa: F401

from bnmc.torch import haar_
from bnmc.torch.fresh import redrawing

pytestmark = pytest.mark.usefixtures("one_thread")


def layer(draw, rows=60, columns=40):
    """Return a linear layer without bias whose weights a function draws."""
    module = nn.Linear(columns, rows, bias=False)
    with torch.no_grad():
        draw(module.weight)
    return module


def test_weights_have_the_law_of_the_former_ones():
    """Variances of 2400 numbers have relative errors below 3 %; 20 % are 6 standard errors."""
    default = nn.Linear(40, 60)
    gaussian, two_signs = (
        layer(lambda w: w.normal_(0, 0.3)),
        layer(lambda w: w.bernoulli_().sub_(0.5)),
    )
    uniform = layer(lambda w: w.uniform_(-2.0, 2.0))
    orthogonal = haar_(nn.Linear(40, 60, bias=False), gain=1.7, rng=0)
    model = nn.Sequential(default, gaussian, two_signs, uniform, orthogonal)
    before = [part.detach().clone() for part in model.parameters()]
    redraw = redrawing(model)
    for _ in range(3):
        redraw()
    for part, former in zip(model.parameters(), before, strict=True):
        assert not torch.equal(part, former)
        ratio = float(part.detach().square().mean() / former.square().mean())
        assert abs(ratio - 1.0) < (0.2 if part.ndim > 1 else 0.9)
    bound = 1.0 / math.sqrt(40)
    for part in default.parameters():
        assert 0.9 * bound < part.detach().abs().max() <= bound
    assert set(two_signs.weight.detach().unique().tolist()) == {-0.5, 0.5}
    assert 1.9 < uniform.weight.detach().abs().max() < 2.2
    assert gaussian.weight.detach().abs().max() > 0.75  # 2.5 standard deviations
    product = orthogonal.weight.detach().T @ orthogonal.weight.detach()
    expected = 1.7**2 * 60 / 40 * torch.eye(40)
    torch.testing.assert_close(product, expected, atol=1e-4, rtol=0.0)


def test_zeros_constants_and_ties_stay():
    model = nn.Sequential(nn.Embedding(6, 4, padding_idx=0), nn.LayerNorm(4), nn.Linear(4, 6))
    model[2].weight = model[0].weight
    nn.init.zeros_(model[2].bias)
    former = model[0].weight.detach().clone()
    redrawing(model)()
    assert model[2].weight is model[0].weight
    assert not torch.equal(model[0].weight, former)
    assert bool((model[1].weight == 1.0).all())
    assert not model[2].bias.detach().any()
    attention = nn.MultiheadAttention(4, 2)
    former = attention.in_proj_weight.detach().clone()
    redrawing(attention)()
    entries = attention.in_proj_weight.detach().flatten()
    assert not torch.equal(entries, former.flatten())
    assert torch.equal(entries.sort().values, former.flatten().sort().values)
