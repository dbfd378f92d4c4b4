"""`orthogonalize_`: gaps of hidden layers, powers, convolutions, other batches, what it leaves."""

import math

import numpy as np
import pytest
from scipy import stats
from torch_models import bits, mlp, nn, one_thread, outputs_of, torch  # noqa: F401

from bnmc.torch import orthogonalize_

pytestmark = pytest.mark.usefixtures("one_thread")


def between(inputs, width, outputs):
    """Return a hidden layer of a width, and one with outputs before the readout."""
    last = nn.Linear(width, outputs), nn.Linear(outputs, 2)
    return (nn.Linear(inputs, width), nn.Tanh(), *last)


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh])
def test_outputs_of_hidden_layers_are_orthogonal(norm, activation):
    model, batch = mlp(12, 40, activation, norm=norm, inputs=24), torch.randn(24, 24)
    first, last = bits(model[0].weight.detach()), bits(model[-1].weight.detach())
    assert orthogonalize_(model, batch, shrinkage=0.0, rng=0) is model
    hidden = {
        name: layer for name, layer in model[1:-1].named_children() if hasattr(layer, "in_features")
    }
    _, outputs = outputs_of(model, batch, dict(hidden))
    assert len(outputs) == 11
    for name in outputs:
        product = (outputs[name] @ outputs[name].T).numpy()
        gap = np.linalg.norm(product / np.trace(product) - np.eye(24) / 24)
        assert gap < 1e-5
        assert abs(outputs[name].square().mean() - 1.0) < 1e-5
    assert bits(model[0].weight.detach()) == first
    assert bits(model[-1].weight.detach()) == last
    orthogonalize_(model, batch, shrinkage=0.0, rng=0, first=True)
    assert bits(model[0].weight.detach()) != first


@pytest.mark.parametrize("power", [-1.0, -0.5, 0.5])
@pytest.mark.parametrize(("samples", "width"), [(10, 16), (16, 10)])
def test_outputs_have_the_singular_values_of_the_power(power, samples, width):
    model = mlp(2, width, nn.Tanh, norm=False, dtype=torch.float64, inputs=6)
    batch = torch.randn(samples, 6, dtype=torch.float64)
    received = model[:2](batch).detach().numpy()
    orthogonalize_(model, batch, shrinkage=0.0, power=power, rng=1)
    output = received @ model[2].weight.detach().numpy().T
    left, values, _ = np.linalg.svd(received, full_matrices=False)
    expected = values ** (1.0 + power)
    expected *= math.sqrt(samples * width / (expected**2).sum())
    actual = np.linalg.svd(output, compute_uv=False)
    np.testing.assert_allclose(actual, np.sort(expected)[::-1], rtol=1e-9)
    # The left singular vectors are those of the input: only V and S changed.
    product = left.T @ output @ output.T @ left
    np.testing.assert_allclose(product, np.diag(expected**2), atol=1e-9 * expected.max() ** 2)


def test_convolutions_have_orthogonal_channels():
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(),
        nn.Conv2d(4, 6, (3, 2), stride=(1, 2), padding=1, dilation=(2, 1)), nn.ReLU(),
        nn.Conv2d(6, 6, 3, padding="same", padding_mode="circular"), nn.ReLU(),
        nn.Flatten(), nn.LazyLinear(3),
    )  # fmt: skip
    batch = torch.randn(30, 1, 8, 8)
    model(batch)
    orthogonalize_(model, batch, shrinkage=0.0, rng=0)
    _, outputs = outputs_of(model, batch, {"2": model[2], "4": model[4]})
    for output in outputs.values():
        rows = output.permute(0, 2, 3, 1).reshape(-1, 6).numpy()
        np.testing.assert_allclose(rows.T @ rows / len(rows), np.eye(6), atol=1e-5)


def test_directions_that_the_samples_do_not_span():
    """Their singular values are the mean of the powers of those that the samples span."""
    model, batch = mlp(2, 8, nn.Tanh, norm=False, dtype=torch.float64), torch.randn(4, 8).double()
    received = torch.tanh(model[0](batch)).detach().numpy()
    powers = np.linalg.svd(received, compute_uv=False) ** -0.5
    orthogonalize_(model, batch, shrinkage=0.0, power=-0.5, rng=0)
    actual = np.linalg.svd(model[2].weight.detach().numpy(), compute_uv=False)
    expected = np.sort([*powers, *[powers.mean()] * 4])[::-1]
    np.testing.assert_allclose(actual / actual[0], expected / expected[0], rtol=1e-9)
    assert actual.min() > 0.1 * actual.max()


SVD, EIGH, RANDOM = np.linalg.svd, np.linalg.eigh, np.random.default_rng(1)


def other_svd(matrix, *, full_matrices=True):
    """Return a singular value decomposition with other signs, and another basis of null vectors."""
    left, values, right = SVD(matrix, full_matrices=full_matrices)
    count = len(values)
    signs = RANDOM.choice([-1.0, 1.0], count)
    left[:, :count] *= signs
    right[:count] *= signs[:, None]
    size = len(right) - count
    right[count:] = np.linalg.qr(RANDOM.standard_normal((size, size)))[0] @ right[count:]
    return left, values, right


def other_eigh(matrix):
    """Return eigenvalues, and eigenvectors with other signs."""
    values, vectors = EIGH(matrix)
    return values, vectors * RANDOM.choice([-1.0, 1.0], len(values))


IMAGES = (nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Conv2d(4, 6, 3), nn.Flatten(), nn.Linear(96, 2))


@pytest.mark.parametrize(
    ("layers", "shape"),
    [
        *((between(*sizes), (samples, 6)) for samples, *sizes in (
            (10, 6, 8, 8), (4, 6, 8, 8), (10, 6, 8, 5), (3, 6, 8, 5), (6, 6, 8, 12)
        )),
        (IMAGES, (8, 1, 8, 8)),
    ],
    ids=["full rank", "lacking", "fewer outputs", "fewer outputs, lacking", "more outputs",
         "convolution"],
)  # fmt: skip
def test_the_weights_do_not_depend_on_signs_of_singular_vectors(monkeypatch, layers, shape):
    """LAPACK leaves signs, and the basis of the directions that the batch lacks, open."""
    model, batch = nn.Sequential(*layers).double(), torch.randn(shape).double()
    expected = orthogonalize_(model, batch, shrinkage=0.0, rng=0)[2].weight.detach().clone()
    monkeypatch.setattr(np.linalg, "svd", other_svd)
    monkeypatch.setattr(np.linalg, "eigh", other_eigh)
    actual = orthogonalize_(model, batch, shrinkage=0.0, rng=0)[2].weight.detach()
    np.testing.assert_allclose(actual, expected, atol=1e-10)


@pytest.mark.parametrize(("samples", "width"), [(30, 3), (2, 3), (30, 8)])
def test_the_turn_is_uniformly_distributed(samples, width):
    """An entry of O has the law of a coordinate of a uniform unit vector: 150 draws.

    A test of level 1e-7 sees a distance of .24 of the distribution functions, and signs that are
    equal in 108 of them.  Without the turn, all entries are equal.
    """
    model, batch = nn.Sequential(*between(6, 5, width)).double(), torch.randn(samples, 6).double()
    received = model[:2](batch).detach().numpy()
    right = np.linalg.svd(received)[2]
    entries = []
    for seed in range(150):
        orthogonalize_(model, batch, shrinkage=0.0, power=-0.5, rng=seed)
        weight = model[2].weight.detach().numpy()
        first = weight @ right[0]
        entries.append(first[0] / np.linalg.norm(first))
    squares = np.square(entries)
    # The square of a coordinate of a uniform unit vector has the law Beta(1/2, (width - 1)/2).
    assert stats.kstest(squares, stats.beta(0.5, (width - 1) / 2).cdf).pvalue > 1e-7
    assert stats.binomtest(int(np.sum(np.array(entries) > 0)), 150).pvalue > 1e-7


def loss_of(model, batch, labels):
    with torch.no_grad():
        return nn.functional.cross_entropy(model(batch), labels).item()


@pytest.mark.parametrize("samples", [32, 64, 200])
def test_other_batches_keep_their_loss(samples):
    """Without shrinkage, 64 samples of 64 neurons make that of the next batch 1e8 times larger."""
    batch, labels = torch.randn(2 * samples, 64), torch.arange(2 * samples) % 10
    losses = {}
    for shrinkage in (None, 0.0):
        torch.manual_seed(0)
        model = orthogonalize_(mlp(12, 64, norm=False), batch[:samples], shrinkage=shrinkage, rng=0)
        halves = slice(None, samples), slice(samples, None)
        losses[shrinkage] = [loss_of(model, batch[half], labels[half]) for half in halves]
    first, other = losses[None]
    assert 2.0 < first < 3.0
    assert abs(other - first) < 0.3
    assert losses[0.0][1] > (1e6 if samples == 64 else 2.7)


@pytest.mark.parametrize(("power", "width"), [(-1.0, 8), (-0.5, 8), (-1.0, 5), (-1.0, 12)])
def test_the_scale_of_samples_that_are_held_out(power, width):
    """It grows by √1.1 in the first of two layers, relative to that of the others, and 1.1 in both.

    In the second layer it may be smaller: there is no negative shrinkage.
    """
    last = nn.Linear(8, width), nn.Linear(width, width), nn.Linear(width, 2)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), *last).double()
    batch = torch.randn(16, 6).double()
    orthogonalize_(model, batch, power=power, rng=0)
    _, outputs = outputs_of(model, batch, {"2": model[2], "3": model[3]})
    scales = [
        [part.square().mean().sqrt().item() for part in output.split([12, 4])]
        for output in outputs.values()
    ]
    assert [first for first, _ in scales] == pytest.approx([1.0, 1.0])
    assert scales[0][1] == pytest.approx(1.1**0.5, rel=1e-6)
    assert scales[1][1] <= 1.1 * (1.0 + 1e-6)
    if width > 5:
        assert scales[1][1] > 1.1 * (1.0 - 1e-6)


def test_the_largest_shrinkage_leaves_a_multiple_of_an_orthogonal_matrix():
    for samples, width in ((20, 8), (4, 8), (20, 5), (3, 5), (20, 12)):
        model = nn.Sequential(*between(6, 8, width)).double()
        orthogonalize_(model, torch.randn(samples, 6).double(), shrinkage=1.0, rng=0)
        values = torch.linalg.svdvals(model[2].weight.detach())
        assert values.max() == pytest.approx(values.min().item(), rel=1e-9)


def test_few_patches_are_those_of_a_linear_layer():
    """Their singular values come from the patches, those of many from their second moments."""
    linear = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Linear(8, 2)).double()
    convolutions = nn.Sequential(
        nn.Conv2d(6, 8, 1), nn.Tanh(), nn.Conv2d(8, 8, 1), nn.Conv2d(8, 2, 1)
    ).double()
    for layer, other in zip(linear, convolutions, strict=True):
        if layer.state_dict():
            shaped = {
                k: v.reshape(other.state_dict()[k].shape) for k, v in layer.state_dict().items()
            }
            other.load_state_dict(shaped)
    for samples in (7, 40):
        batch = torch.randn(samples, 6).double()
        orthogonalize_(linear, batch, rng=0)
        orthogonalize_(convolutions, batch[..., None, None], rng=0)
        weight = convolutions[2].weight.detach().flatten(1)
        torch.testing.assert_close(weight, linear[2].weight.detach(), rtol=1e-6, atol=1e-8)


def test_samples_that_are_held_out_and_far_larger():
    model, batch = mlp(3, 8, nn.Identity, norm=False), torch.randn(16, 8)
    batch[12:] *= 100.0
    with torch.no_grad():
        model[4].bias.fill_(1e4)
    with pytest.warns(RuntimeWarning, match=r"last 4 samples.* are ×\d.* were ×1") as caught:
        orthogonalize_(model, batch, rng=0)
    assert len(caught) == 1


def test_directions_that_the_batch_lacks_count_for_samples_that_are_held_out():
    """The fitted four samples span half of the directions of the layer."""
    model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 2)).double()
    batch = torch.randn(5, 6).double()
    batch[4] *= 0.9 * batch[:4].norm() / 2.0 / batch[4].norm()
    with torch.no_grad():
        model[0].bias.zero_()
        model[0].weight.copy_(torch.eye(8, 6))
    orthogonalize_(model, batch, rng=0)
    output = model[:2](batch).detach()
    first, other = (part.square().mean().sqrt().item() for part in output.split([4, 1]))
    assert first == pytest.approx(1.0)
    assert other == pytest.approx(1.1, rel=1e-6)
