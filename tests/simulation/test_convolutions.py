"""Convolutional chains: the sampler "weights" against PyTorch and loops, and all others against it.

A comparison of laws is of 20,000 networks on each side, by the distance of the empirical
distribution functions and its proven bound (Wei and Dudley; see `oracle`).  If the laws are equal,
a test fails with probability at most 1e-6, all its comparisons together.
"""

import itertools
import math

import laws
import numpy as np
import pytest
from laws import assert_one_law, formula_of
from numpy_network import convolved, grams
from slow_cases import some

import bnmc
from bnmc.errors import ArgumentError, BackendError, ZeroVarianceError
from bnmc.simulation.engine.pairs import Pairs

# Narrow chains have dependent samples, which float32 runs report.
pytestmark = pytest.mark.filterwarnings("ignore::bnmc.errors.PrecisionWarning")

NETWORKS = 20_000
LAYERS = (1, 3)


def images(chain, seed, leading=()):
    """Random images for a chain, (…, channels, samples, height, width)."""
    samples = chain.batch // chain.convolution.positions
    shape = (*leading, chain.width, samples, *chain.convolution.shape)
    return np.random.default_rng(seed).standard_normal(shape)


# --- the sampler "weights" against the formula and PyTorch


@pytest.mark.parametrize("dtype", some(["float64", "float32"], "float64"))
@pytest.mark.parametrize(
    ("shape", "kernel", "options"),
    [
        ((3, 4), (3, 3), {"norm": "batch"}),
        ((3, 4), (2, 1), {"norm": "batch", "skip": 0.5, "gain": 1.3}),
        ((1, 5), (1, 2), {"norm": "none", "gain": 1.2}),
    ],
)
def test_weights_have_the_layers_of_the_formula(shape, kernel, options, dtype):
    convolution = bnmc.Convolution(shape, kernel)
    columns = 2 * convolution.positions
    chain = bnmc.Chain(70, columns, "tanh", convolution=convolution, **options)
    start = images(chain, 1)
    run = bnmc.simulate(chain, 3, initial=start, sampler="weights", dtype=dtype, rng=2)
    assert bnmc.drawn_weights(run, 1).shape == (70, 70, *kernel)
    rtol = {"float64": 1e-12, "float32": 5e-5}[dtype]
    np.testing.assert_allclose(run.gram[0], formula_of(run, start, 3), rtol, rtol)


def test_weights_have_their_variance():
    """1/(channels · taps); the mean square of d² k normals is off by 6 of its errors at most."""
    chain = bnmc.Chain.conv(64, 1, "tanh", shape=(3, 3))
    run = bnmc.simulate(chain, 2, sampler="weights", rng=3)
    w = bnmc.drawn_weights(run, 2)
    assert abs((w**2).mean() * 64 * 9 - 1.0) < 6 * math.sqrt(2 / w.size)
    taps = w.transpose(2, 3, 0, 1).reshape(9, -1)
    np.testing.assert_array_less(np.abs(np.corrcoef(taps) - np.eye(9)), 6 / 64)


@pytest.mark.parametrize("kernel", [(3, 3), (2, 4), (1, 1)])
def test_layers_are_those_of_torch(kernel):
    torch = pytest.importorskip("torch")
    chain = bnmc.Chain.conv(6, 3, "relu", shape=(5, 4), kernel=kernel, eps=1e-5, gain=1.5)
    start = images(chain, 4)
    run = bnmc.simulate(chain, 2, initial=start, sampler="weights", rng=5)
    norm = torch.nn.BatchNorm2d(6, eps=1e-5, affine=False, dtype=torch.float64)
    h = torch.from_numpy(start).transpose(0, 1)
    for layer in range(3):
        a = torch.relu(norm(h))
        rows = a.transpose(0, 1).reshape(6, 60).detach().numpy()
        np.testing.assert_allclose(run.gram[0, layer], rows.T @ rows / 6, rtol=1e-12, atol=1e-13)
        if layer < 2:
            convolution = torch.nn.Conv2d(
                6, 6, kernel, padding="same", padding_mode="circular", bias=False,
                dtype=torch.float64,
            )  # fmt: skip
            with torch.no_grad():
                weights = 1.5 * bnmc.drawn_weights(run, layer + 1)
                convolution.weight.copy_(torch.from_numpy(weights))
                h = convolution(a)


def test_weights_of_a_law_of_ones_own_have_all_taps():
    shapes = set()

    def laplace(rng, shape):
        shapes.add(shape)
        return rng.laplace(scale=math.sqrt(0.5), size=shape)

    convolution = bnmc.Convolution((2, 2), (2, 2))
    start = np.random.default_rng(6).standard_normal((5, 2, 2, 2))
    for weights in (laplace, "uniform"):
        chain = bnmc.Chain(5, 8, "tanh", weights=weights, convolution=convolution)
        run = bnmc.simulate(chain, 2, initial=start, rng=7)
        assert run.sampler == "weights"
        np.testing.assert_allclose(run.gram[0], formula_of(run, start, 2), rtol=1e-12)
    assert shapes == {(5, 20)}


def a_channel_is_zero(row, layer):
    """Return a law of weights of which one row is zero in one layer."""
    layers = itertools.count(1)

    def law(rng, shape):
        weights = rng.standard_normal(shape)
        if next(layers) == layer:
            weights[row] = 0.0
        return weights

    return law


@pytest.mark.parametrize(
    ("options", "layer", "row"),
    [
        ({"activation": "tanh", "weights": a_channel_is_zero(0, 1)}, 1, 0),
        ({"activation": "tanh", "weights": a_channel_is_zero(3, 2)}, 2, 3),
        # Of two pixels, the moduli of normalized inputs are 1.
        ({"activation": "abs", "weights": "gaussian"}, 1, 0),
    ],
)
def test_a_channel_without_variance_is_named(options, layer, row):
    chain = bnmc.Chain(5, 2, convolution=bnmc.Convolution((2, 1), (2, 1)), **options)
    with pytest.raises(ZeroVarianceError) as caught:
        bnmc.simulate(chain, 3, sampler="weights", rng=7)
    assert (caught.value.chain, caught.value.layer, caught.value.row) == (0, layer, row)


def test_a_bias_is_added_to_all_pixels():
    convolution = bnmc.Convolution((2, 3), (1, 2))
    chain = bnmc.Chain(5, 12, "tanh", norm="none", bias_variance=0.5, convolution=convolution)
    start = images(chain, 8)
    run = bnmc.simulate(chain, 1, initial=start, sampler="weights", rng=9)
    h = convolved(bnmc.drawn_weights(run, 1), np.tanh(start))
    a = np.tanh(h + bnmc.drawn_biases(run, 1)[:, None, None, None]).reshape(5, 12)
    np.testing.assert_allclose(run.gram[0, 1], a.T @ a / 5, rtol=1e-12)


# --- the conditional sampler against the sampler "weights"

# Channels < columns in all cases but "wide"; the covariance is singular in some.
CASES = {
    "three by three": {"width": 3, "batch": 12, "shape": (2, 3), "kernel": (2, 3)},
    "one by two": {"width": 4, "batch": 8, "shape": (1, 4), "kernel": (1, 2)},
    "one tap": {"width": 3, "batch": 8, "shape": (2, 2), "kernel": (1, 1)},
    "wide": {"width": 12, "batch": 6, "shape": (1, 3), "kernel": (1, 3)},
    "two channels, skip": {
        "width": 2, "batch": 9, "shape": (3, 3), "kernel": (3, 3), "skip": 0.6, "gain": 1.2,
    },
    "none": {"width": 4, "batch": 8, "shape": (2, 2), "kernel": (2, 1), "norm": "none"},
    "uncentred": {
        "width": 4, "batch": 8, "shape": (4, 1), "kernel": (3, 1), "norm": "batch-uncentred",
    },
    "layer, bias": {
        "width": 4, "batch": 6, "shape": (1, 3), "kernel": (1, 2), "norm": "layer",
        "bias_variance": 0.3,
    },
    "batch after": {
        "width": 4, "batch": 6, "shape": (1, 3), "kernel": (1, 2), "order": "activation-norm",
    },
}  # fmt: skip


def chain_of(name, **changes):
    options = CASES[name] | changes
    convolution = bnmc.Convolution(options.pop("shape"), options.pop("kernel"))
    return bnmc.Chain(activation="tanh", convolution=convolution, **options)


def law_of(chain, sampler, seed, **more):
    return laws.law_of(chain, sampler, seed, NETWORKS, LAYERS, parts=10, **more)


@pytest.mark.untraced
@pytest.mark.parametrize("name", some(CASES, "one by two"))
def test_samplers_have_one_law(name):
    chain = chain_of(name)
    start = images(chain, 10)
    pair = [law_of(chain, sampler, 11, initial=start) for sampler in ("conditional", "weights")]
    assert_one_law(*pair)


@pytest.mark.untraced
@pytest.mark.parametrize("kind", some(("equal pixels", "equal samples", "stripes")))
def test_samplers_have_one_law_from_singular_starts(kind):
    """Images without detail, copies of an image, and stripes that the kernel averages out.

    The pixels of the stripes alternate, so a kernel of two taps makes all of them equal: the
    covariance is singular although the Gram matrix is not.
    """
    chain = chain_of("one by two", norm="none")
    start = images(chain, 12)
    if kind == "equal pixels":
        start[...] = start[..., :1]
    elif kind == "equal samples":
        start[:, 1] = start[:, 0]
    else:
        stripe = np.array([1.0, -1.0, 1.0, -1.0])
        start = start[..., :1] * stripe
    laws = [law_of(chain, sampler, 13, initial=start) for sampler in ("conditional", "weights")]
    assert_one_law(*laws)


@pytest.mark.slow
@pytest.mark.untraced
@pytest.mark.parametrize("sampler", ["conditional", "weights"])
def test_the_law_is_that_of_networks_in_numpy(sampler):
    chain = chain_of("two channels, skip")
    start, rng = images(chain, 14), np.random.default_rng(15)
    exact = grams(chain, max(LAYERS), NETWORKS, rng, start.reshape(2, -1))[:, LAYERS]
    assert_one_law(law_of(chain, sampler, 16, initial=start), exact)


@pytest.mark.slow
@pytest.mark.untraced
def test_the_wrong_law_is_seen():
    """Other kernels, and an image that is shifted by one pixel, as another anchor would do."""
    chain = chain_of("one by two")
    start = images(chain, 17)
    right = law_of(chain, "conditional", 18, initial=start)
    for other in (chain_of("one by two", kernel=(1, 1)), chain_of("one by two", kernel=(1, 3))):
        with pytest.raises(AssertionError):
            assert_one_law(right, law_of(other, "conditional", 19, initial=start))
    shifted = np.roll(start, 1, axis=-1)
    with pytest.raises(AssertionError):
        assert_one_law(right, law_of(chain, "conditional", 20, initial=shifted))


@pytest.mark.parametrize("sampler", ["conditional", "weights"])
def test_one_tap_has_the_bits_of_the_fully_connected_chain(sampler):
    convolutional = bnmc.Chain.conv(20, 2, "tanh", shape=(1, 3), kernel=(1, 1))
    connected = bnmc.Chain(20, 6, "tanh")
    runs = [
        bnmc.simulate(chain, 4, chains=3, sampler=sampler, rng=21).gram
        for chain in (convolutional, connected)
    ]
    assert np.array_equal(*runs)


@pytest.mark.slow
@pytest.mark.untraced
def test_coupled_chains_have_the_law_of_the_chain():
    """The chain ahead at layer 3, and that behind, which is at layer 2."""
    chain = chain_of("wide")
    start = bnmc.chain.start.prepare(chain, images(chain, 22), 1, None)
    pairs = Pairs(chain, start, 1, 0, NETWORKS, 23)
    pairs.advance(3)
    single = law_of(chain, "conditional", 24, initial=images(chain, 22))
    assert_one_law(pairs.grams[:, :1], single[:, 1:])
    pairs = Pairs(chain, start, 1, 0, NETWORKS, 25)
    pairs.advance(4)
    assert_one_law(pairs.grams[:, 1:], single[:, 1:])


def test_pairs_meet_and_estimate_the_stationary_mean():
    """The coupled mean is that of long runs, within 6 standard errors."""
    chain = bnmc.Chain.conv(40, 1, "tanh", shape=(1, 4), kernel=(1, 2))
    options = {"replicates": 200, "rng": 26}
    estimate = bnmc.invariant.expectation(chain, "orthogonality_gap", **options)
    run = bnmc.simulate(chain, 30, chains=2000, observables="orthogonality_gap", burn_in=30, rng=27)
    values = run["orthogonality_gap"][:, -1]
    error = math.hypot(estimate.stderr, values.std() / math.sqrt(2000))
    assert abs(estimate.value - values.mean()) < 6 * error
    bound = bnmc.mixing.tv_bound(chain, 12, **options)
    assert bound.bound[-1] < 0.5


# --- starts


def test_images_and_their_columns_are_one_start():
    chain = bnmc.Chain.conv(6, 2, "tanh", shape=(2, 3), kernel=(2, 2))
    x = images(chain, 28, leading=(3,))
    for start, rows, more in (
        (x, x.reshape(3, 6, 12), {}),
        (x[0], x[0].reshape(6, 12), {"chains": 2}),
        (x[:2], x[:2].reshape(2, 6, 12), {"inputs": 2}),
        (x[0].tolist(), x[0].reshape(6, 12), {}),
    ):
        by_images = bnmc.simulate(chain, 2, initial=start, rng=29, **more)
        other = bnmc.simulate(chain, 2, initial=rows, rng=29, **more)
        assert np.array_equal(by_images.gram, other.gram)
    assert by_images.gram.shape == (1, 3, 12, 12)
    with pytest.raises(ArgumentError, match="images: \\(6, 2, 2, 3\\), channels first"):
        bnmc.simulate(chain, 2, initial=x[0].swapaxes(0, 1))


def test_a_first_layer_is_a_convolution():
    """Three colours to six channels; the law of layer 0 before the norm is N(0, C(xᵀx/3))."""
    convolution = bnmc.Convolution((2, 2), (1, 2))
    chain = bnmc.Chain(4000, 4, "linear", norm="none", convolution=convolution)
    x = np.random.default_rng(30).standard_normal((3, 1, 2, 2))
    run = bnmc.simulate(chain, 0, initial=bnmc.FirstLayer(x), rng=31)
    rows = x.reshape(3, 4)
    expected = convolution.covariance(rows.T @ rows / 3)
    spread = np.sqrt((np.outer(*[np.diagonal(expected)] * 2) + expected**2) / 4000)
    np.testing.assert_array_less(np.abs(run.gram[0, 0] - expected), 6 * spread)
    two = bnmc.FirstLayer(np.stack([x, x]))
    both = bnmc.simulate(chain, 1, initial=two, inputs=2, observables="cross_gram", rng=32)
    assert both["cross_gram"].shape == (1, 2, 2, 2, 4, 4)


def test_inputs_go_through_the_same_kernels():
    chain = bnmc.Chain.conv(6, 1, "tanh", shape=(2, 3), kernel=(2, 2))
    x = images(chain, 33, leading=(2,))
    run = bnmc.simulate(
        chain, 2, initial=x, inputs=2, sampler="weights", observables="cross_gram", rng=34
    )
    for i in range(2):
        exact = formula_of(run, x[i], 2)
        np.testing.assert_allclose(run["cross_gram"][0, :, i, i], exact, rtol=1e-12)


# --- the same bits


def test_float32_rows_have_the_gram_matrices_of_float64():
    """One layer of many channels, so that rounding is not amplified."""
    chain = bnmc.Chain.conv(200, 2, "tanh", shape=(2, 2), kernel=(2, 2))
    for sampler in ("conditional", "weights"):
        pair = [
            bnmc.simulate(chain, 2, dtype=dtype, sampler=sampler, rng=37).gram
            for dtype in ("float64", "float32")
        ]
        np.testing.assert_allclose(*pair, atol=2e-4)


# --- what is chosen, and what is refused


def test_the_cheaper_sampler_is_chosen_and_named():
    wide = bnmc.Chain.conv(256, 1, "tanh", shape=(2, 2), kernel=(2, 2))
    assert bnmc.simulate(wide, 1, rng=38).sampler == "conditional"
    narrow = bnmc.Chain.conv(4, 20, "tanh", shape=(3, 3))
    assert bnmc.simulate(narrow, 1, rng=39).sampler == "weights"


def test_other_functions_name_their_alternative():
    chain = bnmc.Chain.conv(8, 1, "relu", shape=(2, 2), kernel=(2, 2))
    layer = bnmc.Chain.conv(8, 1, "relu", shape=(2, 2), kernel=(2, 2), norm="layer")
    with pytest.raises(BackendError, match="backend='cpu'"):
        bnmc.mixing.tv_bound(layer, 2, backend="cuda")
    for call in (
        lambda: bnmc.MeanField(chain).fluctuations(),
        lambda: bnmc.kernels.law(chain),
    ):
        with pytest.raises(ArgumentError, match="convolution: got Convolution"):
            call()
