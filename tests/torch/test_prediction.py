"""The prediction beside a measurement: its law is that of fresh models, and when there is none."""

import itertools
import math
import pickle
import re

import numpy as np
import pytest
from slow_cases import some
from torch_models import mlp, nn, one_thread, torch  # noqa: F401

from bnmc.torch import fresh, measure, network_of, prediction

pytestmark = pytest.mark.usefixtures("one_thread")


class Sum(nn.Module):
    """The sum of a branch and of a path, by default of the input itself."""

    def __init__(self, branch, path=None):
        super().__init__()
        self.branch, self.path = branch, path or nn.Identity()

    def forward(self, x):
        return self.branch(x) + self.path(x)


class Branch(nn.Module):
    """h ← h + W σ(N(h)) / 2."""

    def __init__(self, width):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x):
        return x + 0.5 * self.linear(torch.tanh(self.norm(x)))


def plain(widths, activation, norm=None, *, after=False):
    """Return linear layers of these widths, each with a norm before or after its activation."""
    layers = []
    for before, width in itertools.pairwise(widths[:-1]):
        layers.append(nn.Linear(before, width))
        rows = [activation()] if norm is None else [norm(width), activation()]
        layers += reversed(rows) if after else rows
    return nn.Sequential(*layers, nn.Linear(*widths[-2:]))


def dropping(activation, p):
    """Return an activation followed by dropout."""
    return lambda: nn.Sequential(activation(), nn.Dropout(p))


MODELS = {
    "batch norm": lambda: plain((6, 9, 7, 3), nn.Tanh, nn.BatchNorm1d),
    "layer norm after": lambda: plain((6, 12, 5, 3), nn.GELU, nn.LayerNorm, after=True),
    "none": lambda: plain((6, 10, 10, 8, 3), nn.Tanh),
    "two layers": lambda: nn.Sequential(
        nn.Linear(6, 8),
        Sum(nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 12), nn.GELU(), nn.Linear(12, 8))),
        nn.LayerNorm(8),
        Sum(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))),
        nn.Linear(8, 3),
    ),
    "projections": lambda: nn.Sequential(
        nn.Linear(6, 8),
        Sum(
            nn.Sequential(nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 5), nn.GELU(), nn.Linear(5, 7)),
            nn.Linear(8, 7, bias=False),
        ),
        nn.Tanh(),
        Sum(nn.Linear(7, 5), nn.Linear(7, 5)),
        nn.Linear(5, 3),
    ),
    "residual": lambda: nn.Sequential(nn.Linear(6, 8), Branch(8), nn.Tanh(), nn.Linear(8, 3)),
    "dropout": lambda: plain((6, 9, 7, 3), dropping(nn.Tanh, 0.3), nn.LayerNorm),
}
BATCH = torch.randn(7, 6, generator=torch.Generator().manual_seed(2))
LABELS = torch.arange(7) % 3


def numbers_by_hand(model, labels=LABELS):
    """Return scale, mean and spread of cosines of the inputs of linear layers, and ln gradients."""
    inputs, gradients = [], []
    linear = [
        module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and not name.endswith("path")
    ]
    handles = [
        module.register_forward_pre_hook(lambda _, received: inputs.append(received[0].detach()))
        for module in linear
    ]
    model.zero_grad()
    nn.functional.cross_entropy(model(BATCH), labels).backward()
    for handle in handles:
        handle.remove()
    scales, means, spreads = [], [], []
    for rows in (part.double().numpy() for part in inputs):
        scales.append(math.sqrt(np.mean(rows**2)))
        units = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        cosines = [units[i] @ units[j] for i in range(7) for j in range(i)]
        means.append(np.mean(cosines))
        spreads.append(np.std(cosines))
    for module in linear:
        gradients.append(math.log(module.weight.grad.double().norm()))
    return {
        "scale": scales, "correlation": means, "spread": spreads,
        "gradient": np.array(gradients) - gradients[-1],
    }  # fmt: skip


@pytest.mark.parametrize("name", some(MODELS, "batch norm"))
def test_simulated_networks_have_the_law_of_fresh_models(name, monkeypatch):
    """The means of 400 networks a side: at most 20 differences, each nearly normal.

    One of them is beyond 5.5 standard errors with probability below 20 · 3.8e-8 = 7.6e-7.
    """
    monkeypatch.setattr(prediction, "_MOST", 400)
    monkeypatch.setattr(fresh, "_MOST", 400)
    torch.manual_seed(3)
    beside = measure(MODELS[name], BATCH, labels=LABELS, cosines=False).prediction
    assert beside.applies
    new = [numbers_by_hand(MODELS[name]()) for _ in range(400)]
    assert set(beside.simulated) == set(beside.measured) == set(new[0])
    for quantity, values in beside.simulated.items():
        others = np.array([each[quantity] for each in new])
        assert values.shape == others.shape
        error = np.hypot(values.std(axis=0), others.std(axis=0)) / math.sqrt(400)
        apart = np.abs(values.mean(axis=0) - others.mean(axis=0))
        assert (apart <= 5.5 * error + 1e-6).all(), quantity
        # A band holds 90 % of the networks that made it, and about that of others.
        inside = (others >= beside.bands[quantity][:, 0]) & (others <= beside.bands[quantity][:, 1])
        varies = values.std(axis=0) > 1e-6
        assert (np.abs(inside.mean(axis=0) - 0.9)[varies] < 0.09).all(), quantity


def test_measured_numbers_are_those_of_hooks():
    torch.manual_seed(1)
    model = MODELS["batch norm"]()
    beside = measure(model, BATCH, labels=LABELS).prediction
    assert beside.layers == ("0", "3", "6")
    for quantity, values in numbers_by_hand(model).items():
        np.testing.assert_allclose(beside.measured[quantity][0], values, rtol=1e-4, atol=1e-6)
    without = measure(model, BATCH).prediction
    assert set(without.simulated) == {"scale", "correlation", "spread"}


def test_infinite_width_is_the_mean_of_wide_networks():
    torch.manual_seed(4)
    model = plain((6, 3000, 3000, 3), nn.Tanh)
    beside = measure(model, BATCH).prediction
    for name in ("scale", "correlation", "spread"):
        np.testing.assert_allclose(beside.infinite[name], beside.measured[name][0], atol=0.02)
    np.testing.assert_allclose(beside.infinite["scale"][0], beside.measured["scale"][0, 0])


def test_wide_layers_get_gaussian_weights_of_the_same_variance(monkeypatch):
    model = plain((6, 40, 40, 3), nn.Tanh)
    beside = measure(model, BATCH, labels=LABELS).prediction
    assert len(beside.simulated["scale"]) == 200
    monkeypatch.setattr(prediction, "_TIME", 2.5e7)
    other = measure(model, BATCH, labels=LABELS).prediction
    assert 40 <= len(other.simulated["scale"]) < 200
    for quantity in ("scale", "correlation"):
        means = [each.simulated[quantity].mean(axis=0) for each in (beside, other)]
        np.testing.assert_allclose(*means, atol=0.05)


def test_blocks_get_gaussian_weights_of_the_same_variance(monkeypatch):
    branch = nn.Sequential(nn.Linear(40, 30), nn.Tanh(), nn.Linear(30, 20))
    model = nn.Sequential(nn.Linear(6, 40), Sum(branch, nn.Linear(40, 20)), nn.Linear(20, 3))
    monkeypatch.setattr(prediction, "_TIME", 0.0)
    network, _ = prediction._affordable(network_of(model, batch=7).network)
    variances = []
    for chain in network.chains[1:]:
        assert (chain.weights, chain.gain) == ("gaussian", 1.0 / math.sqrt(3.0))
        variances.append((chain.width, chain.bias_variance))
    inputs = {(40, 6), (30, 40), (20, 30), (20, 40), (3, 20)}  # PyTorch's biases are 1/(3 inputs)
    expected = sorted((width, 1.0 / (3.0 * before)) for width, before in inputs)
    np.testing.assert_allclose(sorted(variances), expected)


def test_a_model_that_ends_with_a_block_has_no_infinite_width():
    """The input of its last layer is inside the block, where the mean field does not end."""
    torch.manual_seed(5)
    branch = nn.Sequential(nn.Linear(8, 5), nn.Tanh(), nn.Linear(5, 8))
    beside = measure(nn.Sequential(nn.Linear(6, 8), Sum(branch)), BATCH).prediction
    assert beside.applies
    assert beside.infinite == {}
    assert "∞" not in beside.table()


def test_images_that_a_model_flattens_are_columns():
    torch.manual_seed(3)
    layers, batch = plain((12, 20, 20, 5), nn.Tanh, nn.BatchNorm1d), torch.randn(6, 3, 2, 2)
    expected = measure(layers, batch.flatten(1)).prediction
    actual = measure(nn.Sequential(nn.Flatten(), *layers), batch).prediction
    assert actual.network == expected.network is not None
    np.testing.assert_array_equal(actual.infinite["scale"], expected.infinite["scale"])
    # A layer that takes positions of samples has other columns.
    positions = measure(plain((12, 20, 5), nn.Tanh), torch.randn(6, 4, 12)).prediction
    assert positions.network is None


def test_a_layer_that_no_fresh_network_has_departs():
    model = plain((6, 30, 30, 3), nn.Tanh)
    usual = measure(model, BATCH).prediction
    assert usual.departures == ()
    with torch.no_grad():
        model[2].weight[1:] = model[2].weight[:1]
    (first, *_) = measure(model, BATCH).prediction.departures
    assert first.startswith(("scale at '4' is", "correlation at '4' is"))
    assert "of fresh networks have" in first


def test_a_spread_of_rounding_errors_does_not_depart():
    for spread, count in ((1e-8, 0), (1e-3, 1)):
        beside = prediction.Prediction(None, ("0",), {"spread": np.array([[spread]])}, copies=True)
        beside.__dict__["bands"] = {"spread": np.zeros((1, 2))}
        assert len(beside.departures) == count


@pytest.mark.parametrize(
    ("model", "batch", "said"),
    [
        (nn.Sequential(nn.Conv1d(2, 3, 1), nn.ReLU()), torch.randn(4, 2, 5), "convolution"),
        (nn.Sequential(nn.Linear(3, 3), nn.Softmax(-1)), torch.randn(4, 3), "Softmax"),
        (mlp(2, 5, norm=False), torch.randn(4, 2, 5), "positions of samples"),
    ],
)
def test_beside_what_is_no_network_stand_copies(model, batch, said, monkeypatch):
    monkeypatch.setattr(fresh, "_MOST", 40)
    measured = measure(model, batch, view="position")
    beside = measured.prediction
    assert any(said in reason for reason in beside.reasons)
    assert (beside.layers, beside.network, beside.infinite) == (measured.layers, None, {})
    table = beside.table()
    first, _, rest = table.replace("\n", " ").partition(" beside ")
    assert first.startswith("no infinite-width prediction: ")
    assert said in first
    assert len(beside.reasons) == 1 or first.endswith(f"has {len(beside.reasons) - 1} more)")
    assert rest.startswith("40 copies with new weights, for this batch: ")
    assert beside.simulated["scale"].shape == (40, len(measured.layers))
    assert pickle.loads(pickle.dumps(beside)).table() == table


class Convolutions(nn.Module):
    """Padded convolutions with strides, and tokens of an embedding, which no Network describes."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(5, 4, padding_idx=0)
        self.first, self.second = nn.Conv1d(4, 6, 3, padding=1), nn.Conv1d(6, 6, 3, stride=2)
        nn.init.normal_(self.second.weight, 0.0, 0.3)
        self.end = nn.Linear(12, 3)

    def forward(self, x):
        x = torch.relu(self.first(self.table(x).movedim(1, 2)))
        return self.end(torch.tanh(self.second(x)).flatten(1))


def test_copies_have_the_law_of_fresh_models(monkeypatch):
    """The means of 100 networks a side: at most 12 differences, each nearly normal.

    One of them is beyond 5.5 standard errors with probability below 5e-7. The law of a copy is read
    from its weights: a variance of 144 numbers has a relative error of 12 %, a scale of 6 %.
    """
    monkeypatch.setattr(fresh, "_MOST", 100)
    torch.manual_seed(3)
    batch = torch.randint(1, 5, (7, 5))
    options = {"labels": LABELS, "cosines": False}
    beside = measure(Convolutions(), batch, **options).prediction
    others = measure(Convolutions, batch, networks=100, **options).prediction.measured
    for quantity, values in beside.simulated.items():
        error = np.hypot(values.std(axis=0), others[quantity].std(axis=0)) / math.sqrt(100)
        apart = np.abs(values.mean(axis=0) - others[quantity].mean(axis=0))
        assert (apart <= 5.5 * error + 0.06 * np.abs(values.mean(axis=0))).all(), quantity
        assert quantity == "gradient" or (values.std(axis=0) > 1e-6).all()


def test_a_model_that_takes_too_long(monkeypatch):
    beside = measure(mlp(2, 5), torch.randn(600, 5)).prediction  # too many samples to simulate
    assert beside.copies
    monkeypatch.setattr(fresh, "_PRODUCTS", 1e5)
    beside = measure(mlp(2, 5), torch.randn(600, 5)).prediction
    assert not beside.applies
    # The last reason is that there are no copies: 40 of them would take 40 · 600 · 2 · 5² products.
    samples = int(1e5 / (40 * 2 * 5**2))
    assert beside.reasons[-1].endswith(f"too long; pass {samples} samples or fewer")
    shown = " ".join(beside.table().split())
    assert re.match(r"no prediction \(the verdict needs none\): .* samples or fewer", shown)
    assert (beside.simulated, beside.bands, beside.infinite, beside.departures) == ({}, {}, {}, ())
    assert beside.to_dict()["rows"] == []


def test_a_long_table_shows_the_first_weight_layer_of_each_block():
    wide = measure(plain((6, *(4,) * 40, 3), nn.Tanh), BATCH).prediction
    blocks = [str(place) for place in (0, 20, 40)]
    rows = [line.split()[0] for line in wide.table(blocks).splitlines()]
    first = rows.index("weight") + 1
    assert rows[first : first + 5] == [*blocks, "80", "4"]
    assert "4 of 41 layers are shown" in wide.table(blocks)
    assert wide.table(["gone"]) == wide.table()
    assert prediction._band("scale", np.array([0.123, 7512.0])) == "0.12 to 7500"
    assert prediction._band("scale", np.array([1.0, 1.001])) == "1"


def test_table_and_json():
    torch.manual_seed(1)
    beside = measure(MODELS["none"], BATCH, labels=LABELS, networks=3).prediction
    about, head, rest = re.split(r"\n(weight layer.*)\n", beside.table())
    assert about.startswith("beside 200 random networks of these layers, for this batch")
    lines = [about, head, *rest.splitlines()]
    heads = ["weight", "layer", "scale", "90", "%", "∞", "correlation", "90", "%", "∞"]
    assert lines[1].split() == [*heads, "gradient", "90", "%"]
    assert lines[-1] == "left out of the table, which is full: spread (to_dict and --json have it)"
    assert max(map(len, beside.table().splitlines())) <= 100
    assert lines[2].split()[0] == "0"
    # Gradients are logarithms, and shown as factors.
    factor = np.exp(beside.measured["gradient"][:, 0].mean())
    low, high = np.exp(beside.bands["gradient"][0])
    assert lines[2].split()[-4:] == [f"{factor:.3g}", f"{low:.2g}", "to", f"{high:.2g}"]
    row = beside.to_dict()["rows"][1]
    assert row["layer"] == beside.layers[1]
    assert row["scale"] == beside.measured["scale"][:, 1].mean()
    assert row["gradient_band"] == beside.bands["gradient"][1].tolist()
    assert row["scale_infinite"] == beside.infinite["scale"][1]
    same = pickle.loads(pickle.dumps(beside))
    assert same.table() == beside.table()


# --- the bands of larger models, of 784 pixels


LARGE = {
    "batch norm": lambda: plain((784, 512, 256, 128, 10), nn.ReLU, nn.BatchNorm1d),
    "batch norm after": lambda: plain((784, 512, 256, 10), nn.ReLU, nn.BatchNorm1d, after=True),
    "layer norm": lambda: plain((784, 512, 256, 128, 10), nn.ReLU, nn.LayerNorm),
    "relu": lambda: plain((784, 512, 256, 128, 10), nn.ReLU),
    "tanh": lambda: plain((784, 300, 300, 100, 10), nn.Tanh),
    "gelu": lambda: plain((784, 512, 512, 256, 10), nn.GELU, nn.BatchNorm1d),
    "narrow": lambda: plain((784, 256, 128, 64, 32, 10), nn.ReLU, nn.BatchNorm1d),
    "silu": lambda: plain((784, 1024, 256, 10), nn.SiLU),
    "layer after": lambda: plain((784, 400, 200, 400, 10), nn.GELU, nn.LayerNorm, after=True),
    "deep": lambda: plain((784, *(128,) * 8, 10), nn.ReLU, nn.BatchNorm1d),
    "pyramid": lambda: plain((784, 64, 48, 32, 16, 10), nn.ReLU),
    "layer norm blocks": lambda: nn.Sequential(
        nn.Linear(784, 256),
        *(
            Sum(
                nn.Sequential(
                    nn.LayerNorm(256), nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256)
                )
            )
            for _ in range(3)
        ),
        nn.LayerNorm(256),
        nn.Linear(256, 10),
    ),
    "blocks, then norms": lambda: nn.Sequential(
        nn.Linear(784, 200),
        nn.SiLU(),
        *(
            part
            for _ in range(3)
            for part in (
                Sum(nn.Sequential(nn.Linear(200, 200), nn.SiLU(), nn.Linear(200, 200))),
                nn.LayerNorm(200),
            )
        ),
        nn.Linear(200, 10),
    ),
    "projections": lambda: nn.Sequential(
        nn.Linear(784, 256),
        *(
            Sum(
                nn.Sequential(
                    nn.LayerNorm(2 * width),
                    nn.ReLU(),
                    nn.Linear(2 * width, 128),
                    nn.ReLU(),
                    nn.Linear(128, width),
                ),
                nn.Linear(2 * width, width),
            )
            for width in (128, 64)
        ),
        nn.LayerNorm(64),
        nn.Linear(64, 10),
    ),
    "dropout": lambda: plain((784, 512, 256, 128, 10), dropping(nn.ReLU, 0.1), nn.BatchNorm1d),
    "dropout after norms": lambda: plain(
        (784, 256, 256, 10), dropping(nn.GELU, 0.5), nn.LayerNorm, after=True
    ),
    "blocks with dropout": lambda: nn.Sequential(
        nn.Linear(784, 128),
        *(
            Sum(
                nn.Sequential(
                    nn.LayerNorm(128),
                    nn.Linear(128, 256),
                    *(nn.SiLU(), nn.Dropout(0.2), nn.Linear(256, 128), nn.Dropout(0.2)),
                )
            )
            for _ in range(2)
        ),
        nn.Linear(128, 10),
    ),
    "gelu without norm": lambda: plain((784, 512, 256, 128, 10), nn.GELU),
}


def pictures(samples=64):
    """Return pictures of 784 pixels, which are noisy copies of ten patterns, and their labels."""
    rng = np.random.default_rng(0)
    patterns = rng.random((10, 784)) * (rng.random((10, 784)) < 0.25)
    labels = rng.integers(0, 10, samples)
    rows = patterns[labels] * (0.6 + 0.4 * rng.random((samples, 784)))
    rows = np.clip(rows + 0.05 * rng.standard_normal((samples, 784)), 0.0, 1.0)
    return torch.tensor(rows, dtype=torch.float32), torch.tensor(labels)


@pytest.mark.slow
@pytest.mark.untraced
def test_bands_hold_nine_of_ten_fresh_models():
    """30 networks of each model. Layers of a model share networks, which makes them dependent.

    The mean of 30 networks is apart from that of the simulated ones by one standard error, about.
    """
    images, labels = pictures()
    apart: list[float] = []
    inside = {name: [] for name in ("scale", "correlation", "spread", "gradient")}
    for seed, make in enumerate(LARGE.values()):
        torch.manual_seed(seed + 1)
        beside = measure(make, images, labels=labels, networks=30, cosines=False).prediction
        for name, hits in inside.items():
            values, band = beside.measured[name], beside.bands[name]
            layers = slice(0, -1) if name == "gradient" else slice(1, None)
            hits.append(((values >= band[:, 0]) & (values <= band[:, 1]))[:, layers].ravel())
            others = beside.simulated[name]
            error = np.hypot(
                values.std(axis=0, ddof=1) / math.sqrt(30),
                others.std(axis=0) / math.sqrt(len(others)),
            )
            gaps = values.mean(axis=0) - others.mean(axis=0)
            apart += [*(gaps / np.maximum(error, 1e-7))[layers]]
    assert len(LARGE) >= 16
    assert 0.8 <= math.sqrt(np.mean(np.square(apart))) <= 1.25
    for name, hits in inside.items():
        assert 0.87 <= np.concatenate(hits).mean() <= 0.93, name
