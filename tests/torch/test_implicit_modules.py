"""Implicit layers: state, precision, room, and what is refused."""

import copy
import io
import pickle
from threading import Thread

import pytest
from implicit_twins import Mlp, Tied, implicit
from slow_cases import pairs
from torch_models import nn, one_thread, torch  # noqa: F401

from bnmc.errors import ArgumentError, ArgumentTypeError
from bnmc.torch import ImplicitLinear, ImplicitSGD

pytestmark = pytest.mark.usefixtures("one_thread")

X = torch.linspace(-2.0, 2.0, 24).sin().reshape(4, 6)
Y = torch.tensor([0, 1, 2, 1])


def train(model, steps, **options):
    """Return the losses of some steps."""
    optimizer = ImplicitSGD(model, lr=0.5, **options)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(X * (step + 1.0)), Y)
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
    return torch.tensor(losses)


def saved(model):
    """Return what ``torch.load`` reads of a state, without trust."""
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def restored(model):
    new = implicit(Mlp(60), rng=77, columns=5)
    new.load_state_dict(saved(model))
    return new


COPIES = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "state_dict": restored,
}


@pytest.mark.parametrize(("name", "steps"), pairs(COPIES, [0, 1, 2], every=3))
def test_a_copy_goes_on_with_the_same_bits(name, steps):
    model = implicit(Mlp(60), columns=5)
    train(model, steps)  # layers of more room, and dense layers
    other = COPIES[name](model)
    assert torch.equal(train(model, 3), train(other, 3))


def test_copies_of_tied_layers_stay_tied():
    model = implicit(Tied())
    model(torch.tensor([1, 2]))
    new = implicit(Tied(), rng=77)
    new.load_state_dict(saved(model))
    for other in (new, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert other.h.weight is other.e.weight
        assert other.h.matrix.asked == model.h.matrix.asked
        tokens = torch.tensor([2, 5])
        assert torch.equal(copy.deepcopy(model)(tokens), other(tokens))


def test_states_that_do_not_fit():
    model = implicit(Mlp())
    with pytest.raises(RuntimeError, match="size mismatch"):
        model.load_state_dict(Mlp().state_dict())
    with pytest.raises(ArgumentError, match="the state of a matrix"):
        model.load_state_dict(saved(implicit(Mlp(30))))
    state = saved(model)
    train(model, 2)
    assert model.b.matrix is None
    with pytest.raises(ArgumentError, match="load it into a new model"):
        model.load_state_dict(state)


def test_new_parameters_make_another_network():
    model = implicit(Mlp())
    train(model, 2)  # dense layers
    other = implicit(Mlp())
    other(X)
    for each in (model, other):
        before = [copy.deepcopy(layer).dense() for layer in (each.a, each.b)]
        torch.manual_seed(0)
        for layer in (each.a, each.b):
            layer.reset_parameters()
        for layer, entries in zip((each.a, each.b), before, strict=True):
            assert not torch.isclose(layer.dense(), entries).any()
    torch.manual_seed(0)
    other.a.reset_parameters()
    again = ImplicitLinear(6, 20, std=other.a.std)
    torch.manual_seed(0)
    again.reset_parameters()
    assert torch.equal(other.a(X), again(X))


def test_precision():
    """A matrix takes the precision of its first product; coefficients keep float32."""
    layer = ImplicitLinear(6, 20).double()
    assert layer.matrix.dtype == "float64"
    answer = layer(X.double())
    assert answer.dtype == torch.float64
    layer.float()
    assert layer.matrix.dtype == "float64"
    torch.testing.assert_close(layer(X), answer.float())
    layer(X).sum().backward()
    layer.bfloat16()
    assert layer.weight.dtype == layer.weight.grad.dtype == torch.float32
    assert layer.bias.dtype == torch.bfloat16
    assert layer(X.bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype):
    """Inputs of 16 bits are exact columns, so a repeated pass asks for nothing new."""
    model = implicit(Mlp())
    reference = copy.deepcopy(model)
    asked = []
    for _ in range(2):
        with torch.autocast("cpu", dtype=dtype):
            output = model(X)
        output.sum().backward()
        asked.append(model.b.matrix.asked)
    assert output.dtype == torch.float32
    assert model.b.weight.grad.dtype == torch.float32
    assert asked[0] == asked[1] == (4, 4)
    torch.testing.assert_close(output, reference(X), rtol=0.05, atol=0.05)


def test_room():
    """An error of room leaves the layer as it was, and says how much is left."""
    layer = ImplicitLinear(30, 40, columns=6, rng=0)
    first, second = torch.randn(4, 30), torch.randn(4, 30)
    answer = layer(first)
    message = "columns: got 6, allowed: at least 8 .*4 directions are stored, 2 are left"
    with pytest.raises(ArgumentError, match=message):
        layer(second)
    assert layer.matrix.asked == (4, 0)
    torch.testing.assert_close(layer(first), answer)
    output = ImplicitLinear(5, 40, columns=6)(torch.randn(7, 5, requires_grad=True))
    with pytest.raises(ArgumentError, match="at least 7"):  # of the transpose
        output.exp().sum().backward()


@pytest.mark.parametrize("name", ["Adam", "AdamW", "RMSprop", "Adagrad", "Rprop", "LBFGS"])
def test_optimizers_of_entries(name):
    model = implicit(nn.Sequential(nn.Linear(6, 20)))
    for each in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        optimizer = getattr(torch.optim, name)(each.parameters())
        value = each(X).square().mean()
        value.backward()
        with pytest.raises(ArgumentTypeError, match=f"{name}.* acts on single entries"):
            optimizer.step(lambda value=value: value)
    only_bias = torch.optim.Adam([model[0].bias])
    only_bias.step()
    dense = nn.Linear(6, 20)
    torch.optim.Adam(dense.parameters()).step()


REFUSED = {
    "another length": (torch.ones(2, 5), "6 numbers on the last axis"),
    "NaN": (torch.full((2, 6), torch.nan), "finite numbers"),
    "infinity": (torch.full((2, 6), torch.inf), "finite numbers"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_inputs_that_are_refused(name):
    x, text = REFUSED[name]
    layer = ImplicitLinear(6, 20)
    layer(X[:1])
    with pytest.raises(ArgumentError, match=text):
        layer(x)
    assert layer.matrix.asked == (1, 0)


def test_coefficients_of_other_directions():
    """Averages with a copy that went another way, and random coefficients, are noticed."""
    model = implicit(Mlp())
    copied = copy.deepcopy(model)
    train(model, 1, momentum=0.0)
    layer = ImplicitLinear(30, 30)
    layer(torch.randn(2, 30)).sum().backward()
    torch.optim.SGD(layer.parameters(), lr=1.0).step()
    other = ImplicitLinear(30, 30)
    other.weight.data = layer.weight.data
    with pytest.raises(ArgumentError, match="beyond the stored directions"):
        other(torch.randn(1, 30))
    nn.init.normal_(copied.b.weight)
    with pytest.raises(ArgumentError, match="beyond the stored directions"):
        copied(X)


def test_constructor_refusals():
    for options, error in (
        ({"columns": 0}, ArgumentError), ({"std": -1.0}, ArgumentError),
        ({"std": "1"}, ArgumentTypeError), ({"rng": "seed"}, ArgumentTypeError),
        ({"in_features": 0}, ArgumentError), ({"out_features": 1.5}, ArgumentTypeError),
    ):  # fmt: skip
        with pytest.raises(error, match=next(iter(options))):
            ImplicitLinear(**{"in_features": 6, "out_features": 20, **options})


def test_threads_share_a_layer():
    """Replicas of ``DataParallel`` are copies without state of their own, in threads."""
    layer = ImplicitLinear(300, 300, columns=100, rng=0)
    inputs = torch.randn(8, 10, 300)
    answers = [None] * 8

    def call(index):
        replica = layer._replicate_for_data_parallel()
        replica.weight, replica.bias = layer.weight, layer.bias
        answers[index] = replica(inputs[index])

    threads = [Thread(target=call, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert layer.matrix.asked == (80, 0)
    torch.testing.assert_close(torch.stack(answers), layer(inputs))


def test_distributed_training_is_refused(tmp_path):
    distributed = torch.distributed
    store = distributed.FileStore(str(tmp_path / "store"), 1)
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        model = nn.parallel.DistributedDataParallel(implicit(Mlp()))
        with pytest.raises(ArgumentError, match="averages of gradients are wrong"):
            model(X)
    finally:
        distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_compiled_models_run_products_outside_of_graphs():
    model = implicit(Mlp())
    compiled = copy.deepcopy(model)
    run = torch.compile(compiled, backend="eager")
    for step in range(3):
        outputs = [each(X * (step + 1.0)) for each in (model, run)]
        for output in outputs:
            output.square().sum().backward()
        torch.testing.assert_close(*outputs)
    assert compiled.b.matrix.asked == model.b.matrix.asked
    torch.testing.assert_close(compiled.b.weight.grad, model.b.weight.grad)
