"""Networks beside their formulas in NumPy."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from bnmc.errors import ArgumentError  # noqa: E402
from bnmc.experiments.training import networks  # noqa: E402
from bnmc.experiments.training.images import images  # noqa: E402


def test_equal_seeds_give_equal_bits_on_one_thread_and_the_state_is_restored():
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    weights = []
    for seed in (3, 3, 4):
        with networks.seeded(seed):
            assert torch.get_num_threads() == 1
            weights.append(networks.mlp(6, 5, 2)[1].weight.detach())
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("norm", ["none", "batch", "batch-uncentred"])
def test_a_perceptron_is_its_formula(norm):
    with networks.seeded(1):
        model = networks.mlp(6, 5, 2, norm=norm)
    x = np.random.default_rng(0).standard_normal((7, 1, 2, 3))
    linear = [layer for layer in model if isinstance(layer, torch.nn.Linear)]
    h = x.reshape(7, 6)
    for layer in linear[:-1]:
        h = h @ layer.weight.detach().numpy().T + layer.bias.detach().numpy()
        if norm == "batch":
            h = h - h.mean(axis=0)
        if norm != "none":
            h = h / np.sqrt(np.square(h).mean(axis=0) + 1e-5)
        h = np.maximum(h, 0)
    last = linear[-1]
    expected = h @ last.weight.detach().numpy().T + last.bias.detach().numpy()
    np.testing.assert_allclose(model(torch.from_numpy(x)).detach().numpy(), expected, rtol=1e-12)
    assert networks.mlp(6, 5, 1, bias=False)[1].bias is None


@pytest.mark.parametrize("norm", ["none", "batch", "batch-uncentred"])
def test_convolutions_halve_the_side_after_each_stage(norm):
    with networks.seeded(2):
        model = networks.convolutional(3, 8, ((4, 4), (6,)), norm=norm)
    images = torch.rand(5, 3, 8, 8, dtype=torch.float64)
    shapes = [tuple(images.shape)]
    for layer in model:
        images = layer(images)
        shapes.append(tuple(images.shape))
    assert (5, 4, 4, 4) in shapes
    assert (5, 6, 2, 2) in shapes
    assert shapes[-1] == (5, 10)
    first = model[1](model[0](torch.rand(5, 3, 8, 8, dtype=torch.float64))).detach().numpy()
    over = (0, 2, 3)
    if norm == "batch":
        np.testing.assert_allclose(first.mean(axis=over), 0, atol=1e-12)
    if norm == "batch-uncentred":
        np.testing.assert_allclose(np.square(first).mean(axis=over), 1, rtol=2e-3)


def test_convolutions_leave_at_least_a_pixel():
    digits = images(None, 32, 32)
    assert networks.convolutions_of(digits, ((2,), (2,), (3,)))()[-1].in_features == 3
    with pytest.raises(ArgumentError, match="stages: got '4 stages', allowed: at most 3 stages, "):
        networks.convolutions_of(digits, ((2,),) * 4)


@pytest.mark.parametrize("norm", ["none", "batch"])
def test_a_residual_network_adds_what_its_layers_get(norm):
    """Zero convolutions with a skip path are the identity, after the first of each stage."""
    with networks.seeded(3):
        model = networks.residual(1, 8, ((4, 4, 4), (6, 6)), norm=norm)
        plain = networks.convolutional(1, 8, ((4,), (6,)), norm=norm)
    kinds = [type(module).__name__ for module in model]
    assert kinds.count("Residual") == 3
    for module in model:
        if type(module).__name__ == "Residual":
            torch.nn.init.zeros_(module.branch[0].weight)
            torch.nn.init.zeros_(module.branch[0].bias)
    rest = [module for module in model if type(module).__name__ != "Residual"]
    for module, other in zip(rest, plain, strict=True):
        other.load_state_dict(module.state_dict())
    x = torch.rand((5, 1, 8, 8), dtype=torch.float64)
    torch.testing.assert_close(model(x), plain(x))


def test_vgg19_has_19_layers_with_weights():
    """Three of them are fully connected (Simonyan and Zisserman, 2015)."""
    assert sum(map(len, networks.VGG19)) + 3 == 19
    assert all(len(set(stage)) == 1 for stage in networks.VGG19)


@pytest.mark.parametrize("normal", [False, True])
def test_xavier_weights(normal):
    with networks.seeded(5):
        model = networks.xavier_(networks.mlp(300, 200, 1), gain=2.0, normal=normal)
    weight = model[1].weight.detach().numpy()
    assert not model[1].bias.detach().any()
    variance = 2 * 4.0 / 500
    # 60 000 weights; the relative error of a variance is at most √(2/60 000), here 5 of them.
    assert abs(np.square(weight).mean() / variance - 1) < 5 * np.sqrt(2 / weight.size)
    assert (np.abs(weight).max() > np.sqrt(3 * variance)) == normal


def test_a_pooled_network_reads_the_mean_over_positions():
    with networks.seeded(3):
        model = networks.pooled(3, 400, 2)
    first, second, readout = (layer for layer in model if hasattr(layer, "weight"))
    for layer, variance in ((first, 2 / 27), (second, 2 / 3600), (readout, 1 / 400)):
        assert layer.bias is None
        # The relative error of a variance of N normals is √(2/N); 7 of them happen with 3e-12.
        spread = 7 * (2 / layer.weight.numel()) ** 0.5
        square = float(layer.weight.detach().square().mean())
        assert square / variance == pytest.approx(1, abs=spread)
    images = torch.rand(2, 3, 4, 4, dtype=torch.float64)
    hidden = second(first(images).clamp(min=0)).clamp(min=0)
    assert torch.allclose(model(images), hidden.mean(dim=(2, 3)) @ readout.weight.T)
