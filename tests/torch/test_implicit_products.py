"""Uses of autograd: implicit layers beside the dense layers that their answers decided."""

from functools import partial

import pytest
from implicit_twins import Gated, Mlp, Tied, Words, compare, dense, implicit, weights_of
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vmap
from torch.utils.checkpoint import checkpoint
from torch_models import nn, one_thread, torch  # noqa: F401

from bnmc.torch import ImplicitLinear, ImplicitSGD

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    # PyTorch compiles rules of its forward mode at their first use.
    pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning"),
]

X = torch.linspace(-2.0, 2.0, 24, dtype=torch.float64).sin().reshape(4, 6)
Y = torch.tensor([0, 1, 2, 1])
TOKENS = torch.tensor([[0, 3, 3], [7, 14, 0]])


@pytest.fixture(autouse=True)
def _float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def loss(model, x=X, y=Y):
    if isinstance(model, (Tied, Words)):
        return nn.functional.cross_entropy(model(TOKENS).flatten(0, 1), torch.arange(6))
    return nn.functional.cross_entropy(model(x), y)


def gradients(model):
    """Return the gradients of all weights as entries."""
    return [dense(layer, layer.weight.grad) for layer in weights_of(model).values()]


def backward(model, make=loss):
    x = X.clone().requires_grad_()
    value = make(model, x)
    value.backward()
    return [value, x.grad, *gradients(model)]


def of_inputs(model, x):
    (gradient,) = torch.autograd.grad(loss(model, x), x, create_graph=True)
    return gradient


def penalty(model, x):
    """Second-order terms reach the weights."""
    return loss(model, x) + of_inputs(model, x).square().sum()


def hessian_of_inputs(model):
    x = X.clone().requires_grad_()
    gradient = of_inputs(model, x)
    return [gradient, *torch.autograd.grad((gradient * X).sum(), x)]


def hessian_of_bias(model):
    (gradient,) = torch.autograd.grad(loss(model), model.a.bias, create_graph=True)
    return torch.autograd.grad(gradient @ torch.arange(20.0), model.a.bias)


def checkpointed(reentrant, model, x=X):
    def inner(h):
        return torch.tanh(model.b(torch.tanh(model.a(h))))

    y = checkpoint(inner, x, use_reentrant=reentrant)
    return nn.functional.cross_entropy(model.c(y), Y)


def accumulated(model):
    for factor in (1.0, 2.0, 3.0):
        loss(model, X * factor).backward()
    return gradients(model)


def twice(model):
    value = loss(model)
    value.backward(retain_graph=True)
    value.backward()
    return gradients(model)


def inputs_only(model):
    """A gradient of inputs leaves those of weights alone."""
    loss(model).backward()
    x = X.clone().requires_grad_()
    return [*torch.autograd.grad(loss(model, 2.0 * x), x), *gradients(model)]


def awkward(model):
    """Zero, repeated and dependent columns, and more than the width."""
    more = torch.arange(240.0).cos().reshape(40, 6)
    x = torch.cat([torch.zeros(2, 6), X, X[:2], X[:1] - 2.0 * X[1:2], X + 1e-12, more])
    x.requires_grad_()
    value = loss(model, x, torch.arange(len(x)) % 3)
    value.backward()
    return [value, x.grad, *gradients(model)]


def direction(model):
    """Return the same direction of b.weight for both models: another gradient."""
    return torch.autograd.grad(loss(model, X[:2].cos(), Y[:2]), model.b.weight)[0]


def with_weight(model, weight, x=X, y=Y):
    """Return the loss as a function of b.weight."""
    return nn.functional.cross_entropy(functional_call(model, {"b.weight": weight}, (x,)), y)


def hessian_of_weights(model):
    along = direction(model)
    (gradient,) = torch.autograd.grad(loss(model), model.b.weight, create_graph=True)
    (product,) = torch.autograd.grad((gradient * along).sum(), model.b.weight)
    return [dense(model.b, product), (product * along).sum(), product.norm()]


def derivatives_of_weights(model):
    """Along a gradient, and along the weight itself; the second derivative forward over reverse."""
    weight, along = model.b.weight.detach(), direction(model)
    of_weight = partial(with_weight, model)
    value, first = jvp(of_weight, (weight,), (along,))
    _, radial = jvp(of_weight, (weight,), (weight,))
    _, second = jvp(grad(of_weight), (weight,), (along,))
    return [value, first, radial, dense(model.b, second)]


def gradients_of_samples(model):
    def of_sample(weight, x, y):
        return with_weight(model, weight, x[None], y[None])

    weight = model.b.weight.detach()
    gradient = vmap(grad(of_sample), (None, 0, 0))(weight, X, Y)
    return [gradient.flatten(1).norm(dim=1), *(dense(model.b, each) for each in gradient)]


def descent(
    model, *, make=torch.optim.SGD, steps=4, clip=None, frozen=False, evaluate=False, **options
):
    """Return the losses of some steps."""
    if frozen:
        model.b.requires_grad_(False)
    implicit_model = make is ImplicitSGD and hasattr(
        next(iter(weights_of(model).values())), "matrix"
    )
    optimizer = (
        make(model, **options) if implicit_model else torch.optim.SGD(model.parameters(), **options)
    )
    numbers = []
    for step in range(steps):
        value = loss(model, X * (1.0 + step))
        optimizer.zero_grad()
        value.backward()
        numbers.append(value)
        if clip is not None:
            numbers.append(nn.utils.clip_grad_norm_(model.parameters(), clip))
        optimizer.step()
        if evaluate:
            with torch.no_grad():
                numbers.append(model(X.flip(0) + step))
    return numbers


SGD = {"lr": 0.5, "momentum": 0.9, "weight_decay": 0.1}
RECURRENT = partial(Mlp, calls=3)
AUTOGRAD = {
    "forward": (Mlp, lambda model: [model(X)]),
    "leading dimensions": (Mlp, lambda model: [model(X.reshape(2, 1, 2, 6)), model(X[0])]),
    "no rows": (Mlp, lambda model: [model(X[:0]).sum(), *accumulated(model)]),
    "gradients": (Mlp, backward),
    "Hessian of inputs": (Mlp, hessian_of_inputs),
    "Hessian of a bias": (Mlp, hessian_of_bias),
    "gradient penalty": (Mlp, partial(backward, make=penalty)),
    "checkpoint": (Mlp, partial(backward, make=partial(checkpointed, False))),
    "reentrant checkpoint": (Mlp, partial(backward, make=partial(checkpointed, True))),
    "accumulation": (Mlp, accumulated),
    "two backward passes": (Mlp, twice),
    "gradient of inputs only": (Mlp, inputs_only),
    "awkward columns": (Mlp, awkward),
    "recurrent": (RECURRENT, backward),
    "recurrent, gradient penalty": (RECURRENT, partial(backward, make=penalty)),
    "recurrent, steps": (RECURRENT, partial(descent, **SGD)),
    "tied": (Tied, partial(descent, **SGD)),
    "embedding": (Words, partial(descent, **SGD)),
    "embedding, padding": (partial(Words, 3), partial(descent, **SGD)),
    "embedding, ImplicitSGD": (partial(Words, 3), partial(descent, make=ImplicitSGD, **SGD)),
    "embedding, gradients": (Words, lambda model: [*accumulated(model), model(TOKENS[0, 0])]),
    "steps": (Mlp, partial(descent, **SGD)),
    "Nesterov": (Mlp, partial(descent, nesterov=True, **SGD)),
    "clipping by norm": (Mlp, partial(descent, clip=0.05, lr=0.5)),
    "one input of two layers": (Gated, partial(descent, **SGD)),
    "one input of two layers, gradients": (Gated, backward),
    "frozen": (Mlp, partial(descent, frozen=True, lr=0.3)),
    "evaluation between steps": (Mlp, partial(descent, evaluate=True, **SGD)),
    "ImplicitSGD": (Mlp, partial(descent, make=ImplicitSGD, **SGD)),
    "ImplicitSGD, wide": (partial(Mlp, 60), partial(descent, make=ImplicitSGD, **SGD)),
    "functional_call": (Mlp, lambda model: [functional_call(model, halved(model), (X,))]),
    "jvp of inputs": (Mlp, lambda model: [*jvp(model, (X,), (X.cos(),))]),
    "gradient by torch.func": (Mlp, lambda model: [grad(partial(loss, model))(X)]),
    "Hessian of weights": (Mlp, hessian_of_weights),
    "derivatives of weights": (Mlp, derivatives_of_weights),
    "gradients of samples": (Mlp, gradients_of_samples),
    "vmap": (Mlp, lambda model: [vmap(model)(torch.stack([X, X.cos()]))]),
    "jacrev": (Mlp, lambda model: [jacrev(model)(X)]),
    "jacfwd": (Mlp, lambda model: [jacfwd(model)(X)]),
    "hessian by torch.func": (Mlp, lambda model: [hessian(partial(loss, model))(X)]),
    "autograd.functional": (Mlp, lambda model: [
        torch.autograd.functional.jacobian(model, X),
        torch.autograd.functional.hessian(partial(loss, model), X),
    ]),
}  # fmt: skip


def halved(model):
    return {name: 0.5 * value.detach() for name, value in model.named_parameters()}


@pytest.mark.parametrize("name", AUTOGRAD)
def test_a_dense_twin_gives_the_same_numbers(name):
    make, script = AUTOGRAD[name]
    assert compare(make, script, columns=8 if "wide" in name else 64) < 1e-9


def test_finite_differences():
    """The tolerance of repeated calls is that of rounding: a first answer is computed otherwise."""
    model = implicit(Mlp())
    model(torch.eye(6))
    x = X.clone().requires_grad_()
    assert torch.autograd.gradcheck(model, x, check_forward_ad=True, nondet_tol=1e-12)
    assert torch.autograd.gradgradcheck(model, x, nondet_tol=1e-12)


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="PyTorch has Muon since 2.9")
@pytest.mark.parametrize("shape", [(20, 20), (30, 10), (10, 30)], ids=str)
@pytest.mark.parametrize("adjusted", ["original", "match_rms_adamw"])
def test_muon(shape, adjusted, monkeypatch):
    """PyTorch's iteration of Newton and Schulz has 16 bits; here it has 64, so steps are equal."""
    monkeypatch.setattr(torch.Tensor, "bfloat16", lambda tensor: tensor)
    layer = ImplicitLinear(*shape, bias=False, rng=0, columns=6)
    x = torch.arange(3.0 * shape[0]).cos().reshape(3, -1)
    twin = nn.Linear(*shape, bias=False)
    layer(x).exp().sum().backward()
    twin.weight.data = layer.dense()
    start = layer.dense()
    twin(x).exp().sum().backward()
    for each in (layer, twin):
        options = {"lr": 0.1, "weight_decay": 0.1, "adjust_lr_fn": adjusted}
        torch.optim.Muon([each.weight], **options).step()
    moved = layer.dense() - start
    torch.testing.assert_close(moved, twin.weight.detach() - start, rtol=1e-9, atol=1e-9)
