"""`measure`: numbers of hand-written hooks, choice of layers, networks, and arguments."""

import copy
import dataclasses
import gc
import math
import re

import numpy as np
import pytest
from implicit_twins import implicit
from torch_models import digest_of, mlp, nn, one_thread, outputs_of, resnet, torch  # noqa: F401

from bnmc._support import machine
from bnmc.errors import (
    ArgumentError,
    ArgumentTypeError,
    NonFiniteError,
    ResultTooLargeError,
    UnknownNameError,
)  # fmt: skip
from bnmc.torch import break_, haar_, measure

pytestmark = pytest.mark.usefixtures("one_thread")


def numbers_by_formula(rows, epsilon):
    """Return the numbers of rows, (n, width), each from its definition."""
    n, width = rows.shape
    gram = np.array([[row @ other / width for other in rows] for row in rows])
    present = rows[(rows**2).sum(axis=1) > 0.0]
    cosines = [
        row @ other / math.sqrt(row @ row * (other @ other))
        for i, row in enumerate(present) for j, other in enumerate(present) if i != j
    ]  # fmt: skip
    values = np.linalg.svd(rows, compute_uv=False)
    eigenvalues = values**2
    shares = values / values.sum()
    sign, logarithm = np.linalg.slogdet(gram)
    full = n <= width and sign > 0.0
    return {
        "gram": gram,
        "rank": int((values > values[0] * max(n, width) * epsilon).sum()),
        "soft_rank": int((eigenvalues >= 0.1 * eigenvalues.mean()).sum()),
        "effective_rank": math.exp(-sum(share * math.log(share) for share in shares if share > 0)),
        "rank_bound": np.trace(gram) ** 2 / (gram**2).sum(),
        "orthogonality_gap": np.linalg.norm(gram / np.trace(gram) - np.eye(n) / n),
        "mean_correlation": np.mean(cosines),
        "isometry": math.exp(logarithm / n) / (np.trace(gram) / n) if full else 0.0,
        "scale": math.sqrt((rows**2).mean()),
    }


@pytest.mark.parametrize(("width", "dtype"), [(24, torch.float32), (9, torch.float64)])
def test_numbers_are_those_of_hooks(width, dtype):
    model = mlp(3, width, dtype=dtype, inputs=7, classes=3)
    batch = torch.randn(12, 7, dtype=dtype)
    labels = torch.arange(12) % 3
    measured = measure(model, batch, labels=labels)
    # A layer ends where the next Linear begins: modules 2, 5 and 8 are the activations.
    assert measured.layers == ("0", "3", "6")
    modules = {str(name): model[name] for name in (2, 5, 8)}
    output, outputs = outputs_of(model, batch, modules)
    rows = {name: out.flatten(1).numpy() for name, out in outputs.items()}
    epsilon = torch.finfo(dtype).eps
    for layer, name in enumerate(modules):
        for key, value in numbers_by_formula(rows[name], epsilon).items():
            np.testing.assert_allclose(
                getattr(measured, key)[0, layer], value, rtol=1e-9, atol=1e-12, err_msg=key
            )
        squares = np.sort(np.linalg.svd(rows[name], compute_uv=False) ** 2) / width
        np.testing.assert_allclose(measured.spectrum[layer][0], squares, atol=1e-12)
        assert measured.rank_threshold[layer] == max(12, width) * epsilon
        assert measured.layouts[layer] == f"12 samples × {width} features"
    nn.functional.cross_entropy(output, labels).backward()
    assert measured.parameters == tuple(name for name, _ in model.named_parameters())
    for index, (_, parameter) in enumerate(model.named_parameters()):
        expected = parameter.grad.double().norm()
        np.testing.assert_allclose(measured.gradient_norm[0, index], expected, rtol=1e-4, atol=1e-7)
    for layer, name in enumerate(measured.layers):
        weight = measured.parameters.index(f"{name}.weight")
        assert measured.layer_gradient_norm[0, layer] == measured.gradient_norm[0, weight]


@pytest.mark.parametrize("norm", [True, False])
def test_cosines_are_those_of_gradients_of_single_losses(norm):
    """With batch normalization the loss of one sample goes back through the whole batch."""
    model = mlp(2, 6, nn.Tanh, norm=norm, dtype=torch.float64)
    batch, labels = torch.randn(5, 6, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1])
    measured = measure(model, batch, labels=labels, loss="cross-entropy")
    losses = nn.functional.cross_entropy(model(batch), labels, reduction="none")
    for index, (_, parameter) in enumerate(model.named_parameters()):
        rows = []
        for loss in losses:
            (gradient,) = torch.autograd.grad(loss, parameter, retain_graph=True)
            rows.append(gradient.reshape(-1).numpy())
        rows = np.array(rows)
        lengths = np.linalg.norm(rows, axis=1)
        # A bias before batch normalization has no gradient but rounding.
        if lengths.min() > 1e-12:
            expected = rows @ rows.T / np.outer(lengths, lengths)
            np.testing.assert_allclose(measured.gradient_cosine[0, index], expected, atol=1e-9)


def test_a_sample_without_gradient_has_no_cosine():
    model = nn.Linear(3, 1)

    def loss(output):
        return output[:, 0] * torch.tensor([1.0, 0.0, 2.0, 1.0])

    measured = measure(model, torch.randn(4, 3), loss=loss)
    missing = np.isnan(measured.gradient_cosine[0, 0])
    expected = np.zeros((4, 4), bool)
    expected[1] = expected[:, 1] = True
    np.testing.assert_array_equal(missing, expected)


def test_squared_loss_and_losses_of_the_users():
    model, batch = mlp(1, 4, classes=2), torch.randn(6, 4)
    labels = torch.randn(6, 2)
    expected = 0.5 * ((model(batch) - labels) ** 2).sum(dim=1).mean().item()
    squared = measure(model, batch, labels=labels)
    named = measure(model, batch, labels=labels.numpy(), loss="squared")
    function = measure(
        model, batch, labels=labels, loss=lambda out, y: 0.5 * ((out - y) ** 2).sum() / len(y)
    )
    for measured in (squared, named, function):
        np.testing.assert_allclose(measured.loss, expected, rtol=1e-5)
        np.testing.assert_allclose(
            measured.gradient_norm, squared.gradient_norm, rtol=1e-4, atol=1e-7
        )
    assert function.gradient_cosine is None
    assert squared.gradient_cosine is not None
    assert measure(model, batch, labels=labels, cosines=False).gradient_cosine is None


def test_cross_entropy_of_positions_is_their_mean():
    model, batch = nn.Sequential(nn.Conv1d(2, 3, 1)), torch.randn(4, 2, 5)
    labels = torch.arange(20).reshape(4, 5) % 3
    measured = measure(model, batch, labels=labels)
    expected = nn.functional.cross_entropy(model(batch), labels).item()
    np.testing.assert_allclose(measured.loss, expected, rtol=1e-5)
    assert measured.gradient_cosine.shape == (1, 2, 4, 4)


def test_positions_are_rows():
    model = nn.Sequential(nn.Conv2d(2, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(20, 3))
    batch = torch.randn(7, 2, 4, 4)
    whole = measure(model, batch, layers=["1"])
    measured = measure(model, batch, layers=["1"], view="position")
    assert whole.layouts == measured.layouts == ("7 samples × 5 channels × 2·2 positions",)
    rows = model[1](model[0](batch)).detach().double().numpy()
    rows = rows.transpose(0, 2, 3, 1).reshape(28, 5)
    expected = numbers_by_formula(rows, torch.finfo(torch.float32).eps) | {"gram": whole.gram[0, 0]}
    for name, value in expected.items():
        np.testing.assert_allclose(getattr(measured, name)[0, 0], value, rtol=1e-9, err_msg=name)


def test_outputs_that_are_zero():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    with torch.no_grad():
        model[0].bias.fill_(-100.0)
    measured = measure(model, torch.randn(5, 3))
    for name in ("rank", "soft_rank", "effective_rank", "rank_bound", "isometry", "scale"):
        assert getattr(measured, name)[0, 0] == 0
    assert np.isnan(measured.orthogonality_gap[0, 0])
    assert np.isnan(measured.mean_correlation[0, 0])
    assert measured.verdict.startswith("SGD does not train, Adam does not train: all units of a ")
    assert "-" in measured.table()


class Functional(nn.Module):
    """A network with functions as activations, whose layer `twice` is called twice."""

    def __init__(self):
        super().__init__()
        self.begin, self.twice, self.end = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        x = torch.tanh(self.begin(x))
        for _ in range(2):
            x = torch.tanh(self.twice(x))
        return {"logits": self.end(x), "features": x}


def test_functions_and_modules_that_are_called_twice():
    model, batch = Functional(), torch.randn(3, 4)
    measured = measure(model, batch)
    assert measured.layers == ("begin", "twice", "twice#2")
    assert measured.comparable == ()  # without a loss there are no gradients
    assert measured.notes == ()
    assert measure(Functional, batch).notes == ("a new model was drawn from Functional",)
    last = model(batch)["features"].detach().double().numpy()
    np.testing.assert_allclose(measured.gram[0, -1], last @ last.T / 4, rtol=1e-12)
    assert measure(model, batch, layers=["twice"]).layers == ("twice", "twice#2")


class Several(nn.Module):
    """A model of two arguments, whose output is a dataclass with the loss first."""

    def __init__(self):
        super().__init__()
        self.inner, self.end = mlp(2, 6, norm=False, classes=6), nn.Linear(6, 3)

    def forward(self, x, scale):
        features = self.inner(x * scale)
        logits = self.end(features)
        return Output(logits.square().mean(), logits, features)


@dataclasses.dataclass
class Output:
    loss: torch.Tensor
    logits: torch.Tensor
    features: torch.Tensor


def test_models_of_several_arguments_and_outputs():
    model, x, scale = Several(), torch.randn(8, 6), torch.rand(8, 1)
    labels = torch.arange(8) % 3
    by_place = measure(model, (x, scale), labels=labels)
    by_name = measure(model, {"x": x, "scale": scale.numpy()}, labels=labels)
    np.testing.assert_array_equal(by_place.gram, by_name.gram)
    logits = model(x, scale).logits
    expected = nn.functional.cross_entropy(logits, labels).item()
    np.testing.assert_allclose(by_place.loss, expected, rtol=1e-6)
    # A function of the user's takes the whole output.
    first = measure(model, (x, scale), loss=lambda output: output.loss + 0 * output.features.sum())
    np.testing.assert_allclose(first.loss, logits.square().mean().item(), rtol=1e-6)
    given = measure(model, (x, scale), labels=labels, loss=lambda out, y: out.logits[:, 0] * y)
    assert given.gradient_cosine is not None


def test_transposed_convolutions():
    model = nn.Sequential(
        nn.ConvTranspose2d(4, 3, 2, stride=2), nn.BatchNorm2d(3), nn.ReLU(),
        nn.ConvTranspose2d(3, 2, 2, stride=2), nn.Tanh(),
    )  # fmt: skip
    measured = measure(model, torch.randn(5, 4, 3, 3), labels=torch.zeros(5, 2, 12, 12))
    assert measured.layers == ("0",)
    assert "loss" in measured.verdict


def test_reentrant_checkpoints_are_named():
    model = mlp(2, 3)
    blocks = model[:3]
    checkpoint = torch.utils.checkpoint.checkpoint

    class Saving(nn.Module):
        def __init__(self, reentrant):
            super().__init__()
            self.blocks, self.rest, self.reentrant = blocks, model[3:], reentrant

        def forward(self, x):
            x = x + 0 * self.rest[0].bias.sum()
            return self.rest(checkpoint(self.blocks, x, use_reentrant=self.reentrant))

    expected = measure(model, X, labels=[0, 1, 2, 0])
    saving = measure(Saving(False), X, labels=[0, 1, 2, 0])
    np.testing.assert_allclose(saving.loss, expected.loss, rtol=1e-6)
    with pytest.raises(ArgumentError, match="use_reentrant=False"):
        measure(Saving(True), X, labels=[0, 1, 2, 0])


def test_blocks_of_a_class():
    torch.manual_seed(1)
    model = resnet()
    measured = measure(model, torch.randn(4, 3, 12, 12), labels=[0, 1, 2, 3])
    assert measured.layers == ("4", "5", "6", "7")
    assert measured.comparable == (0, 1, 2, 3)
    names = [f"5.{layer}.weight" for layer in ("first", "second")]
    parts = [measured.gradient_norm[0, measured.parameters.index(name)] for name in names]
    np.testing.assert_allclose(measured.layer_gradient_norm[0, 1], math.hypot(*parts))
    assert any("a convolution" in text for text in measured.reading.unfit)
    assert measured.prediction.copies


def test_a_transformer():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
    batch = torch.randn(4, 5, 8)
    for train in (True, False):
        measured = measure(model.train(train), batch, loss=lambda out: out.square().mean())
        assert measured.layers == ("layers.0", "layers.1", "layers.2")
        assert measured.layouts[0] == "4 samples × 5 positions × 8 features"
    positions = measure(model, batch, view="position", networks=2)
    assert positions.spectrum[0].shape == (2, 8)
    assert "cannot be traced" in positions.reading.unfit[0]
    other = nn.TransformerEncoderLayer(8, 2, 16)
    assert "batch_first=False" in measure(other, batch, layers=["linear1"]).notes[0]


def test_blocks_that_begin_as_copies_are_named():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
    batch = torch.randn(4, 5, 8)
    (note,) = measure(model, batch).notes
    assert note.startswith("blocks 'layers.0' to 'layers.2' have equal weights, as nn.Transformer")
    for block in model.layers[1:]:
        for p in block.parameters():
            if p.ndim > 1:
                nn.init.xavier_uniform_(p)
    assert measure(model, batch).notes == ()


def test_blocks_of_one_weight_or_of_constants_are_no_copies():
    tied, zeros = (nn.Sequential(*(nn.Linear(8, 8) for _ in range(4))) for _ in range(2))
    for block in tied:
        block.weight = tied[0].weight
    for block in zeros:
        nn.init.zeros_(block.weight)
    for model in (tied, zeros):
        assert measure(model, torch.randn(4, 8)).notes == ()


def test_one_dimensional_convolutions_have_channels_on_the_second_axis():
    model = nn.Sequential(nn.Conv1d(2, 3, 2), nn.ReLU(), nn.Conv1d(3, 3, 2), nn.ReLU())
    measured = measure(model, torch.randn(4, 2, 9), view="position")
    assert measured.layouts[0] == "4 samples × 3 channels × 8 positions"
    assert (measured.spectrum[0].shape, measured.layers) == ((1, 3), ("0", "2"))


class Patches(nn.Module):
    """A convolution cuts a signal into tokens, which linear layers take."""

    def __init__(self):
        super().__init__()
        self.cut, self.first = nn.Conv1d(2, 6, 3, stride=3), nn.Linear(6, 8)
        self.second, self.end = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        tokens = self.cut(x).movedim(1, 2)
        return self.end(torch.tanh(self.second(torch.tanh(self.first(tokens)))))


def test_tokens_after_a_convolution_have_their_features_on_the_last_axis():
    model, batch = Patches(), torch.randn(4, 2, 15)
    names = ["cut", "first", "second"]
    measured = measure(model, batch, layers=names, view="position")
    assert measured.layouts == (
        "4 samples × 6 channels × 5 positions", "4 samples × 5 positions × 8 features",
        "4 samples × 5 positions × 8 features",
    )  # fmt: skip
    rows = model.first(model.cut(batch).movedim(1, 2)).detach().double().flatten(0, 1).numpy()
    expected = numbers_by_formula(rows, torch.finfo(torch.float32).eps)["mean_correlation"]
    np.testing.assert_allclose(measured.mean_correlation[0, 1], expected, rtol=1e-9)


def test_networks_are_those_of_reset_parameters_a_factory_or_reset():
    batch = torch.randn(6, 5)

    def factory():
        return mlp(2, 5, nn.Tanh)

    def reset(model):
        for parameter in model.parameters():
            nn.init.normal_(parameter)

    model = factory()
    for given, options in ((model, {}), (factory, {}), (model, {"reset": reset})):
        torch.manual_seed(7)
        measured = measure(given, batch, networks=3, **options)
        assert measured.gram.shape == (3, 2, 6, 6)
        assert len({gram.tobytes() for gram in measured.gram}) == 3
        torch.manual_seed(7)
        other = measure(given, batch, networks=3, **options)
        np.testing.assert_array_equal(measured.gram, other.gram)
        assert "±" in measured.table()
    torch.manual_seed(7)
    measured = measure(model, batch, networks=2)
    torch.manual_seed(7)
    for network in range(2):
        for module in model:
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()
        rows = model[:-1](batch).detach().double().numpy()
        np.testing.assert_allclose(measured.gram[network, -1], rows @ rows.T / 5, rtol=1e-9)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype):
    measured = measure(mlp(2, 5, dtype=dtype), torch.randn(6, 5).numpy(), labels=[0, 1] * 3)
    assert measured.rank_threshold[0] == 6 * torch.finfo(dtype).eps
    assert measured.rank.max() <= 5


def test_integers_are_taken_as_they_are():
    model = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(12, 8), nn.ReLU())
    measured = measure(model, np.arange(9).reshape(3, 3))
    assert measured.layouts == ("3 samples × 8 features",)


class Wrong(nn.Module):
    """A model that returns something, for a batch of any shape."""

    def __init__(self, output):
        super().__init__()
        self.inner = nn.Linear(3, 3)
        self.output = output

    def forward(self, x):
        return self.output(self.inner(x))


MODEL = mlp(1, 3)
X = torch.randn(4, 3)
BAD = {
    "no module": ((3, X), {}, ArgumentTypeError, "model: got 3"),
    "a script": ((torch.nn.Flatten, X), {}, ArgumentError, "no linear layer"),
    "lazy": ((nn.LazyLinear(3), X), {}, ArgumentError, "has no shape yet"),
    "empty": ((MODEL, X[:0]), {}, ArgumentError, "batch: got (0, 3)"),
    "one sample": ((MODEL, X[:1]), {}, ArgumentError, "at least 2 samples"),
    "NaN": ((MODEL, X * math.nan), {}, ArgumentError, "finite numbers"),
    "complex": ((MODEL, X.to(torch.complex64)), {}, ArgumentTypeError, "batch"),
    "no batch": ((MODEL,), {}, ArgumentTypeError, "batch: got None, allowed: a batch"),
    "a loader": (
        (MODEL, torch.utils.data.DataLoader(X)), {}, ArgumentTypeError, "x, y = next(iter(loader))"
    ),
    "a list": ((MODEL, [X, X]), {}, ArgumentTypeError, "x, y = batch"),
    "a name": (("resnet18", X), {}, ArgumentTypeError, "such as torchvision.models.resnet18()"),
    "text": ((MODEL, ["a", "b"]), {}, ArgumentTypeError, "batch"),
    "sparse": ((MODEL, X.to_sparse()), {}, ArgumentError, "torch.sparse_coo"),
    "no values": ((MODEL, X.to("meta")), {}, ArgumentError, "device 'meta'"),
    "several inputs": ((MODEL, (X, X)), {}, ArgumentError, "takes 2 positional arguments but 3"),
    "names": ((MODEL, {"x": X}), {}, ArgumentError, "unexpected keyword argument 'x'"),
    "unequal": ((MODEL, (X, X[:2])), {}, ArgumentError, "as many samples in each argument"),
    "pixels": ((MODEL, X.byte()), {}, ArgumentError, "pass batch.float() / 255"),
    "other width": ((MODEL, X[:, :2]), {}, ArgumentError, "a batch that the model takes"),
    "labels": ((MODEL, X), {"labels": [0]}, ArgumentError, "one for each of 4 samples"),
    "labels 99": (
        (MODEL, X), {"labels": [99] * 4}, ArgumentError, "labels: got 'classes 99 to 99 of"
    ),
    "no labels": ((MODEL, X), {"loss": "squared"}, ArgumentError, "labels: got None"),
    "loss": ((MODEL, X), {"labels": [0] * 4, "loss": "squard"}, UnknownNameError, "did you mean"),
    "mse": ((MODEL, X), {"labels": X, "loss": "MSE"}, UnknownNameError, "did you mean 'squared'?"),
    "a class": ((MODEL, X, X), {"loss": nn.MSELoss}, ArgumentTypeError, "such as MSELoss()"),
    "loss 3": ((MODEL, X), {"loss": 3}, ArgumentTypeError, "loss: got 3"),
    "loss of no shape": ((MODEL, X), {"loss": lambda out: out}, ArgumentError, "one number per"),
    "squared": ((MODEL, X, [0.0] * 4), {}, ArgumentError, "labels.long() are classes"),
    "float labels": (
        (MODEL, X), {"labels": [0.0] * 4, "loss": "cross-entropy"}, ArgumentTypeError, "integers"
    ),
    "constant loss": (
        (MODEL, X), {"loss": lambda out: torch.ones(4)}, ArgumentError, "depends on the param"
    ),
    "cosines": (
        (MODEL, X), {"loss": torch.mean, "cosines": True}, ArgumentError, "cosines: got True"
    ),
    "layers": ((MODEL, X), {"layers": ["00"]}, UnknownNameError, "layers: got '00'"),
    "no layers": ((MODEL, X), {"layers": []}, ArgumentError, "names of modules"),
    "layers 3": ((MODEL, X), {"layers": [3]}, ArgumentTypeError, "layers: got 3"),
    "foreign": ((MODEL, X), {"layers": [nn.ReLU()]}, ArgumentError, "layers: got 'ReLU'"),
    "networks": ((MODEL, X), {"networks": 0}, ArgumentError, "networks: got 0"),
    "reset": ((MODEL, X), {"reset": 3}, ArgumentTypeError, "reset: got 3"),
    "view": ((MODEL, X), {"view": "pixel"}, UnknownNameError, "view: got 'pixel'"),
    "no tensor": ((Wrong(lambda out: "text"), X), {}, ArgumentError, "a tensor as output"),
    "transposed": ((Wrong(lambda out: out.T @ out), X), {"layers": [""]}, ArgumentError, "4 samp"),
    "infinite": ((Wrong(lambda out: out / 0.0), X), {"layers": [""]}, NonFiniteError, "output of"),
    "empty output": ((Wrong(lambda out: out[:, :0]), X), {"layers": [""]}, ArgumentError, "(4, 0)"),
    "complex output": (
        (Wrong(lambda out: out * 1j), X), {"layers": [""]}, ArgumentError, "real outputs"
    ),
    "infinite loss": ((MODEL, X), {"loss": lambda out: out.sum() / 0}, NonFiniteError, "loss no"),
    "not called": ((Wrong(lambda out: out), X), {"layers": []}, ArgumentError, "layers"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_bad_input(what):
    arguments, options, kind, said = BAD[what]
    with pytest.raises(kind) as caught:
        measure(*arguments, **options)
    assert type(caught.value) is kind
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (torch.arange(6) % 3 + 1, "classes 1 to 3 of shape (6,)', allowed: classes 0 to 2 of"),
        (torch.eye(3, dtype=torch.int64).repeat(2, 1), "(labels.argmax(1) makes classes of"),
    ],
    ids=["from one", "one-hot"],
)
def test_an_error_about_classes_says_which_are_allowed(labels, words):
    with pytest.raises(ArgumentError, match=re.escape(words)):
        measure(nn.Linear(4, 3), torch.randn(6, 4), labels)


def test_labels_that_look_like_probabilities_have_a_note():
    classes = torch.arange(4) % 3
    one_hot = nn.functional.one_hot(classes, 10).float()
    measured = measure(MODEL, X, one_hot)
    assert measured.notes[0].startswith("the loss is half the squared distance")
    taken = measure(MODEL, X, one_hot, loss=nn.functional.cross_entropy)
    assert not taken.notes
    np.testing.assert_allclose(taken.loss, measure(MODEL, X, classes).loss, rtol=1e-6)
    assert not measure(MODEL, X, 2.0 * one_hot).notes


def test_parameters_without_a_reset():
    class Free(nn.Module):
        def __init__(self):
            super().__init__()
            self.factor, self.inner = nn.Parameter(torch.ones(3)), nn.Linear(3, 3)

        def forward(self, x):
            return self.inner(x) * self.factor

    assert measure(Free(), X).networks == 1
    with pytest.raises(ArgumentError, match="Free.*reset_parameters"):
        measure(Free(), X, networks=2)


def test_frozen_parameters_have_no_gradient():
    model = mlp(2, 3)
    model[0].requires_grad_(False)
    measured = measure(model, X, labels=[0, 1, 2, 0])
    assert not any(name.startswith("0.") for name in measured.parameters)
    assert np.isnan(measured.layer_gradient_norm[0, 0])
    with pytest.raises(ArgumentError, match="requires_grad"):
        measure(model.requires_grad_(False), X, labels=[0, 1, 2, 0])


def test_an_overflow_names_the_layer():
    model = mlp(30, 8, norm=False)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1e3)
    half = measure(model.half(), torch.randn(4, 8).half())
    assert re.fullmatch(r"the output of '\d+' is beyond float16", half.facts.overflow)
    assert half.scale.max() > 1e30
    assert model[0].weight.dtype == torch.float16
    for parameter in model.double().parameters():
        parameter.data.mul_(1e9)
    with pytest.raises(NonFiniteError, match=r"output of '\d+' no longer finite"):
        measure(model, torch.randn(4, 8).double())


class Times(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return self.factor * x


def test_gradients_beyond_the_range_have_a_verdict():
    """States are near 1, and the gradient by the first weights near 1e41."""
    model = nn.Sequential(nn.Linear(6, 5), Times(1e18), Times(1e17), nn.Tanh(), nn.Linear(5, 3))
    with torch.no_grad():
        for part in model[0].parameters():
            part.mul_(1e-35)
    batch = torch.randn(4, 6)
    digest = digest_of(model)
    measured = measure(model, batch, loss=lambda out: 1e6 * out.square().sum(dim=1))
    assert digest_of(model) == digest
    assert measured.facts.overflow == "the gradient of '0.weight' is beyond float32"
    assert 1e39 < measured.gradient_norm[0, 0] < 1e45
    assert "Adam does not train: the gradient of '0.weight' is beyond" in measured.verdict


def test_layers_that_take_the_samples_on_the_second_axis():
    """Of three samples of four steps, and of four samples, whose two axes have one length."""
    torch.manual_seed(2)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    same = copy.deepcopy(model)
    for part in same.modules():
        if isinstance(part, nn.MultiheadAttention):
            part.batch_first = True

    def forward(module, x):
        return module(x.transpose(0, 1)).transpose(0, 1)

    for samples in (3, 4):
        batch = torch.randn(samples, 4, 8)
        moved = measure(model, batch, forward=forward, loss=lambda out: out[..., 0].square().mean())
        usual = measure(same, batch, loss=lambda out: out[..., 0].square().mean())
        np.testing.assert_allclose(moved.gram, usual.gram, rtol=1e-4)
        np.testing.assert_allclose(moved.gradient_norm, usual.gradient_norm, rtol=1e-3)
        assert moved.layouts[0] == f"{samples} samples × 4 positions × 8 features"
    with pytest.raises(ArgumentTypeError, match="forward: got 3"):
        measure(model, batch, forward=3)
    keywords = measure(model, {"source": batch}, forward=lambda m, source: forward(m, source))
    np.testing.assert_array_equal(keywords.gram, moved.gram)


@pytest.mark.parametrize(
    ("memory", "name"), [(7_000, "batch"), (300_000, "cosines"), (1_000_000, "networks")]
)
def test_what_does_not_fit_in_memory_raises(memory, name, monkeypatch):
    """An output takes 7.2 kB, the cosines of a network 0.43 MB, matrices of 30 networks 2 MB."""
    monkeypatch.setattr(machine, "available_memory", lambda: memory)
    model, labels = mlp(8, 20), torch.arange(10) % 2
    with pytest.raises(ResultTooLargeError, match=f"^{name}: "):
        measure(model, torch.randn(10, 20), labels=labels, networks=30)


def test_calls_keep_no_objects():
    model = mlp(1, 4)
    for calls in (3, 10):  # the first calls fill caches
        before = len(gc.get_objects())
        for _ in range(calls):
            measure(model, torch.randn(6, 4), labels=[0, 1] * 3)
        gc.collect()
    assert len(gc.get_objects()) - before < calls


def test_networks_that_differ():
    widths = iter((3, 4))
    with pytest.raises(ArgumentError, match="same names and shapes"):
        measure(lambda: mlp(1, next(widths), inputs=3), X, networks=2)


def test_implicit_layers_are_measured_as_their_dense_twins():
    """Outputs, gradients and the chain are those of the entries that the answers decide."""
    torch.manual_seed(0)
    layers = [part for _ in range(4) for part in (nn.Linear(12, 12), nn.BatchNorm1d(12), nn.Tanh())]
    model = nn.Sequential(*layers, nn.Linear(12, 3)).double()
    model = implicit(model)
    batch, labels = torch.randn(5, 12, dtype=torch.float64), torch.arange(5) % 3
    before = digest_of(model)
    ours = measure(model, batch, labels=labels, cosines=True)
    assert digest_of(model) == before
    assert all(layer.matrix.asked == (0, 0) for layer in model[::3])
    assert ours.reading.network.last.weights == "gaussian"
    assert not ours.reading.unfit

    for layer in model[::3]:
        layer(torch.eye(12).double())  # decides all entries
    twin = copy.deepcopy(model)
    for place in range(0, 13, 3):
        dense = nn.Linear(*reversed(model[place].dense().shape)).double()
        dense.weight.data, dense.bias = model[place].dense(), model[place].bias
        twin[place] = dense
    ours, theirs = (measure(each, batch, labels=labels) for each in (model, twin))
    np.testing.assert_allclose(ours.gradient_norm, theirs.gradient_norm, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(ours.gram, theirs.gram, rtol=1e-9, atol=1e-12)
    assert ours.layers == theirs.layers
    for cure in (haar_, break_):
        with pytest.raises(ArgumentError, match="is drawn by direction"):
            cure(model)
