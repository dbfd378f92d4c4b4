"""`implicit_`: what is replaced, with which law, and what is not and why."""

import copy

import pytest
from implicit_twins import Gated, Mlp, Tied, implicit
from slow_cases import pairs
from torch_models import nn, one_thread, torch  # noqa: F401

from bnmc.errors import ArgumentError, ArgumentTypeError
from bnmc.torch import ImplicitLinear, implicit_, implicit_layers

pytestmark = pytest.mark.usefixtures("one_thread")

RANDOM = torch.Generator().manual_seed(0)
NORMAL = torch.randn(2, 5, 12, dtype=torch.float64, generator=RANDOM)
OTHER = torch.randn(2, 4, 12, dtype=torch.float64, generator=RANDOM)
MASK = torch.zeros(5, 4, dtype=torch.bool).index_fill(1, torch.tensor([2]), True)
PADDING = torch.tensor([[False] * 4, [False, False, True, True]])
CAUSAL = {"attn_mask": torch.ones(5, 5).triu(1).bool(), "is_causal": True}
#: Query, key and value, and masks.
CALLS = {
    "self": (NORMAL, NORMAL, NORMAL, {}),
    "cross": (NORMAL, OTHER, OTHER, {}),
    "three inputs": (NORMAL, OTHER, OTHER.cos(), {}),
    "mask": (NORMAL, OTHER, OTHER, {"attn_mask": MASK}),
    "numbers as a mask": (NORMAL, OTHER, OTHER, {"attn_mask": NORMAL[0, :, :4]}),
    "mask of each head": (NORMAL, OTHER, OTHER, {"attn_mask": MASK.expand(6, 5, 4)}),
    "padding": (NORMAL, OTHER, OTHER, {"key_padding_mask": PADDING}),
    "both masks": (NORMAL, OTHER, OTHER, {"attn_mask": MASK, "key_padding_mask": PADDING}),
    "causal": (NORMAL, NORMAL, NORMAL, CAUSAL),
    "each head": (NORMAL, OTHER, OTHER, {"average_attn_weights": False}),
    "one sample": (NORMAL[0], OTHER[0], OTHER[0], {}),
}


def twin_of(dense):
    """Return the implicit form of a layer, in double precision, with room for all directions."""
    return implicit_(nn.ModuleList([copy.deepcopy(dense)]).double(), rng=1, layers=["0"])[0]


def differences(pairs):
    return max(float((ours - theirs).detach().abs().max()) for ours, theirs in pairs)


@pytest.mark.parametrize(
    ("options", "need_weights"),
    pairs([{"batch_first": True}, {}, {"bias": False}, {"kdim": 4, "vdim": 5}], [True, False]),
    ids=str,
)
def test_attention(options, need_weights):
    dense = nn.MultiheadAttention(12, 3, **options).double()
    if dense.in_proj_bias is not None:
        nn.init.normal_(dense.in_proj_bias)
    ours = twin_of(dense)
    calls = []
    for query, key, value, more in CALLS.values():
        if query is not key or dense.kdim == 12:
            same = key is query
            key, value = key[..., : dense.kdim], value[..., : dense.vdim]
            key = query if same else key
            inputs = [query, key, query if same else value]
            if query.ndim == 3 and not dense.batch_first:
                inputs = [x.transpose(0, 1) for x in inputs]
                inputs = inputs[:1] * 3 if same else inputs
            calls.append((inputs, {**more, "need_weights": need_weights}))
    answers = [ours(*inputs, **more) for inputs, more in calls]
    blocks = torch.cat([part.dense() for part in ours.projections]) if dense.kdim == 12 else None
    with torch.no_grad():
        if blocks is not None:
            dense.in_proj_weight.copy_(blocks)
        else:
            for name, part in zip("qkv", ours.projections, strict=True):
                getattr(dense, f"{name}_proj_weight").copy_(part.dense())
        dense.out_proj.weight.copy_(ours.out_proj.dense())
    for (inputs, more), (output, weights) in zip(calls, answers, strict=True):
        right = dense(*inputs, **more)
        torch.testing.assert_close(output, right[0], rtol=0, atol=1e-12)
        assert (weights is None) == (right[1] is None)
        if weights is not None:
            torch.testing.assert_close(weights, right[1], rtol=0, atol=1e-12)


def test_query_key_and_value_are_asked_once():
    ours = twin_of(nn.MultiheadAttention(12, 3, batch_first=True))
    ours(NORMAL[:1], NORMAL[:1], NORMAL[:1])
    first = NORMAL[:1]
    ours(first, first, first)
    (packed,) = ours.projections
    assert packed.matrix.shape == (36, 12)
    assert packed.matrix.asked == (5, 0)


def test_layers_with_one_input_share_its_directions():
    model = implicit(Gated().double())
    model(NORMAL[0, :, :6])
    gate, up = model.gate_proj.matrix, model.up_proj.matrix
    assert gate._basis[0] is up._basis[0]
    assert gate.asked == up.asked == (5, 0)
    assert gate.key != up.key


class Conv1D(nn.Module):
    """A layer as transformers has it, whose weight is transposed."""

    __module__ = "transformers.pytorch_utils"

    def __init__(self, outputs, inputs):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs) / 3.0)
        self.bias = nn.Parameter(torch.randn(outputs))

    def forward(self, x):
        return torch.addmm(self.bias, x.reshape(-1, x.shape[-1]), self.weight)


def test_the_layer_of_transformers():
    dense = Conv1D(20, 12).double()
    ours = twin_of(dense)
    output = ours(NORMAL[0])
    dense.weight.data = ours.dense().mT
    torch.testing.assert_close(output, dense(NORMAL[0]), rtol=0, atol=1e-12)
    assert ours.std == pytest.approx(1.0 / 3.0, rel=0.2)


def test_projections_of_other_variances_are_matrices_of_their_own():
    dense = nn.MultiheadAttention(12, 3)
    with torch.no_grad():
        dense.in_proj_weight[:12] *= 3.0
    stds = [part.std for part in twin_of(dense).projections]
    assert stds[0] / stds[1] == pytest.approx(3.0, rel=0.3)


CONVOLUTIONS = {
    "stride, padding": nn.Conv2d(4, 6, 3, stride=2, padding=1),
    "dilation": nn.Conv2d(4, 6, (3, 2), dilation=2, bias=False),
    "1 x 1": nn.Conv2d(4, 6, 1),
    "same": nn.Conv2d(4, 6, (3, 5), padding="same", dilation=2),
    "circular": nn.Conv2d(4, 6, 3, padding=1, padding_mode="circular"),
    "line": nn.Conv1d(4, 6, 3, stride=2, padding=2),
    "line, reflected": nn.Conv1d(4, 6, 3, padding=1, padding_mode="reflect"),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name):
    dense = CONVOLUTIONS[name].double()
    ours, size = twin_of(dense), (2, 4, 7, 9)[: dense.weight.ndim]
    x = torch.randn(size, dtype=torch.float64, requires_grad=True)
    outputs = [ours(x), ours(x[0])]
    gradients = torch.autograd.grad(outputs[0].square().sum(), (x, ours.weight))
    with torch.no_grad():
        weight = copy.deepcopy(dense)
        weight.weight.copy_(ours.dense().reshape(dense.weight.shape))
    rights = [weight(x), weight(x[0])]
    of_x, of_weight = torch.autograd.grad(rights[0].square().sum(), (x, weight.weight))
    pairs = [*zip(outputs, rights, strict=True), (gradients[0], of_x)]
    pairs.append((ours.dense(gradients[1]), of_weight.flatten(1)))
    assert differences(pairs) < 1e-11


def encoder():
    layer = nn.TransformerEncoderLayer(12, 4, 24, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2).double()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("padded", [True, False])
def test_encoders(training, padded):
    model = implicit_(encoder().train(training), rng=1, layers=["layers"])
    assert not any(type(part) is nn.Linear for part in model.modules())
    dense = encoder().train(training)
    more = {"src_key_padding_mask": torch.arange(5).expand(2, 5) > 3} if padded else {}
    with torch.set_grad_enabled(training):
        output = model(NORMAL, **more)
    state = dense.state_dict()
    for name in state:
        *path, last = name.replace("in_proj_", "projections.0.").split(".")
        part = model.get_submodule(".".join(path))
        state[name] = (
            part.dense() if last == "weight" and hasattr(part, "dense") else getattr(part, last)
        )
    dense.load_state_dict(state)
    with torch.set_grad_enabled(training):
        right = dense(NORMAL, **more)
    there = slice(None, 4) if padded else slice(None)
    torch.testing.assert_close(output[:, there], right[:, there], rtol=0, atol=1e-12)


def on_meta(make):
    with torch.device("meta"):
        return make()


#: The standard deviation of the own initialization of layers.
STDS = {
    "Linear": (lambda: nn.Linear(12, 60), 36**-0.5),
    "Embedding": (lambda: nn.Embedding(60, 12), 1.0),
    "Conv1d": (lambda: nn.Conv1d(4, 60, 3), 36**-0.5),
    "Conv2d": (lambda: nn.Conv2d(4, 60, (3, 1)), 36**-0.5),
    "MultiheadAttention": (lambda: nn.MultiheadAttention(12, 3), 24**-0.5),
    "MultiheadAttention, other sizes": (lambda: nn.MultiheadAttention(12, 3, kdim=4), 12**-0.5),
}


@pytest.mark.parametrize("name", STDS)
def test_the_variance_is_that_of_the_layer(name):
    make, std = STDS[name]

    def std_of(model):
        layer = implicit_(nn.ModuleList([model]), layers=["0"], rng=0)[0]
        return getattr(layer, "projections", [layer])[0].std

    assert std_of(on_meta(make)) == pytest.approx(std, rel=1e-14)
    model = make()
    weight = next(model.parameters()).detach()
    present = 3.0 * float(weight.double().square().mean().sqrt())
    with torch.no_grad():
        for part in model.parameters():
            part *= 3.0
    assert std_of(model) == pytest.approx(present, rel=1e-6)


def test_entries_have_the_variance():
    """The sum of N squares of normals has the relative standard deviation sqrt(2/N)."""
    layers = [ImplicitLinear(60, 80, std=0.7, rng=3), nn.Linear(60, 80)]
    model = implicit_(nn.Sequential(layers[1]), rng=4)  # thin, so it is drawn
    assert implicit_layers(model) == {"0": "dense: its entries take less memory"}
    for weight, std in ((layers[0].dense(), 0.7), (model[0].weight.detach(), 180**-0.5)):
        # 5 standard deviations, and 2 % of uniform weights before
        assert float(weight.square().mean()) / std**2 == pytest.approx(1.0, abs=0.13)
        assert float(weight.abs().max()) > 3.0 * std  # they are not uniform


class Scaled(nn.Module):
    """A module with a parameter and a buffer of its own."""

    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.ones(3))
        self.register_buffer("shift", torch.zeros(3))

    def forward(self, x):
        return x * self.factor + self.shift


class Resettable(Scaled):
    """It has an initialization."""

    def reset_parameters(self):
        nn.init.constant_(self.factor, 2.0)
        nn.init.constant_(self.shift, 0.5)


def test_a_model_of_the_meta_device_gets_values():
    def make():
        tied = Tied()
        return nn.ModuleList([nn.Linear(12, 60), Resettable(), nn.BatchNorm1d(3), tied])

    model = implicit_(on_meta(make), layers=["0"], rng=0)
    assert not any(
        tensor.is_meta for tensor in model.state_dict().values() if torch.is_tensor(tensor)
    )
    assert model[1](torch.ones(3)).tolist() == [2.5] * 3
    assert float(model[0].bias.detach().abs().max()) <= 12**-0.5
    assert len(set(model[0].bias.tolist())) == 60
    assert model[3].h.weight is model[3].e.weight  # what stays dense stays tied
    thin = implicit_(on_meta(make), rng=0)
    assert thin[3].h.weight is thin[3].e.weight
    with pytest.raises(ArgumentError, match="Scaled '1' on the device 'meta'"):
        implicit_(on_meta(lambda: nn.Sequential(nn.Linear(12, 60), Scaled())), layers=["0"])


def test_weights_of_zeros_stay_zero_until_a_step():
    dense = nn.Linear(6, 20, bias=False)
    nn.init.zeros_(dense.weight)
    model = implicit_(nn.Sequential(dense), layers=["0"], rng=0)
    x = torch.ones(1, 6)
    assert not model(x).any()
    (model(x) - 1.0).square().sum().backward()
    torch.optim.SGD(model.parameters(), lr=1.0).step()
    torch.testing.assert_close(model(x), torch.full((1, 20), 12.0))


def with_hook():
    layer = nn.Linear(6, 20)
    layer.register_forward_hook(lambda *_: None)
    return layer


class Subclass(nn.Linear):
    """A layer with another forward pass."""

    def forward(self, x):
        return 2.0 * super().forward(x)


TROUBLES = {
    "Subclass has no implicit form": lambda: Subclass(6, 20),
    "ConvTranspose2d has no implicit form": lambda: nn.ConvTranspose2d(6, 20, 3),
    "it has hooks": with_hook,
    "its weight is computed from other parameters":
        lambda: nn.utils.parametrizations.weight_norm(nn.Linear(6, 20)),
    "its channels are in groups": lambda: nn.Conv2d(6, 20, 3, groups=2),
    "it has bias_k": lambda: nn.MultiheadAttention(6, 2, add_bias_kv=True),
    "it has add_zero_attn": lambda: nn.MultiheadAttention(6, 2, add_zero_attn=True),
    "it has max_norm": lambda: nn.Embedding(6, 20, max_norm=1.0),
    "it has sparse": lambda: nn.Embedding(6, 20, sparse=True),
}  # fmt: skip


@pytest.mark.parametrize("reason", TROUBLES)
def test_what_stays_says_why(reason):
    model = nn.Sequential(TROUBLES[reason](), nn.Linear(20, 20))
    before = copy.deepcopy(model[0].state_dict())
    implicit_(model, columns=1)
    assert implicit_layers(model)["0"] == f"dense: {reason}"
    assert type(model[1]) is ImplicitLinear
    for name, value in model[0].state_dict().items():
        assert torch.equal(value, before[name])
    with pytest.raises(ArgumentError, match=reason):
        implicit_(model, layers=["0"])


@pytest.mark.parametrize("rows", [6, 7])
def test_a_table_of_two_entries_a_column_stays_dense(rows):
    model = nn.Sequential(nn.Embedding(rows, 50), nn.Linear(50, 50))
    assert implicit_layers(implicit_(model, columns=3))["0"].startswith("dense") == (rows == 6)


def test_a_weight_that_another_module_has_stays_dense():
    model = Tied()
    model.copy = Subclass(9, 15)
    model.copy.weight = model.e.weight
    described = implicit_layers(implicit_(model, columns=1))
    assert described["e"] == "dense: its weight is tied to a module that stays dense, Subclass"
    assert described["h"] == described["e"]
    assert model.h.weight is model.copy.weight


def test_refusals():
    linear = nn.Linear(6, 20)
    cases = [
        (linear, {"columns": 1}, ArgumentError, "a module that contains layers"),
        (nn.Linear, {}, ArgumentTypeError, "model"),
        (nn.Sequential(linear), {"columns": 0}, ArgumentError, "columns"),
        (nn.Sequential(linear), {"rng": "seed"}, ArgumentTypeError, "rng"),
        (nn.Sequential(linear), {"layers": ["1"]}, ArgumentError, "layers"),
    ]
    for model, options, error, text in cases:
        with pytest.raises(error, match=text):
            implicit_(model, **options)
    with torch.no_grad():
        linear.weight[0, 0] = torch.nan
    with pytest.raises(ArgumentError, match="finite weights"):
        implicit_(nn.Sequential(linear), layers=["0"])


def test_the_seed_decides():
    def outputs(rng, seed=0):
        torch.manual_seed(seed)
        return implicit(Mlp(), rng=rng)(torch.ones(1, 6))

    assert torch.equal(outputs(0), outputs(0))
    assert torch.equal(outputs(None), outputs(None))
    assert not torch.equal(outputs(0), outputs(1))
    assert not torch.equal(outputs(None), outputs(None, seed=1))
    layers = implicit(nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6)))
    assert not torch.equal(layers[0].dense(), layers[1].dense())


def test_training_and_frozen_layers_stay_so():
    model = nn.Sequential(nn.Linear(6, 20), nn.Linear(20, 6)).eval()
    model[1].requires_grad_(False)
    biases = [layer.bias for layer in model]
    implicit(model)
    assert not any(part.training for part in model.modules())
    assert [layer.weight.requires_grad for layer in model] == [True, False]
    assert all(layer.bias is bias for layer, bias in zip(model, biases, strict=True))
