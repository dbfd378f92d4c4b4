"""Mistakes that `assert_same_law` knows, against norms written from their formulas."""

import re

import numpy as np
import pytest
from numpy_network import standardised
from scipy import stats
from slow_cases import some

import bnmc
from bnmc._claims.layer import Layer
from bnmc.errors import ArgumentError
from bnmc.testing import LawMismatch, assert_same_law, examples, faults, from_images
from bnmc.testing.calls_on_state import CallsOnState
from bnmc.testing.faults import (
    _covariances_differ,
    _norm_of,
    _permutation,
    _wrong_norms,
    _wrong_norms_of_samples,
    features_differ,
    likeliest_fault,
    wrong_covariances,
)


def normed(h, groups, **options):
    """Normalize each group of features, sample by sample."""
    return np.concatenate([standardised(part, axis=0, **options) for part in np.split(h, groups)])


def assert_norms(wrong, h, expected):
    """Assert that each wrong norm of h has the values whose key is a part of its text."""
    wrong = dict(wrong)
    assert len(wrong) == len(expected)
    for part, values in expected.items():
        [norm_of] = [function for text, function in wrong.items() if part in text]
        np.testing.assert_allclose(norm_of(h), values, rtol=1e-12)


@pytest.mark.parametrize("norm", ["none", "batch", "batch-uncentred", "layer", "rms", "group(4)"])
def test_the_right_norm_is_that_of_the_chain(norm):
    chain = bnmc.Chain(12, 3, "relu", norm=norm, eps=0.5)
    h = np.random.default_rng(4).standard_normal((12, 3))
    np.testing.assert_allclose(_norm_of(chain)(h), chain.normalization(h, 0.5), rtol=1e-12)


@pytest.mark.parametrize("norm", ["layer", "group(2)", "group(3)", "group(6)"])
def test_wrong_norms_over_the_features(norm):
    chain = bnmc.Chain(12, 3, "relu", norm=norm, gain=2.0, eps=0.5)
    h = np.random.default_rng(1).standard_normal((12, 3))
    groups, eps = chain.normalization.groups, 0.5
    size = 12 // groups
    expected = {
        "ddof = 1": normed(h, groups, ddof=1, eps=eps),
        "without being centred": normed(h, groups, centred=False, eps=eps),
    }
    if groups > 1:
        order = np.arange(12).reshape(size, groups).T.ravel()
        expected["all 12 features"] = normed(h, 1, eps=eps)
        expected["transposed"] = normed(h[order], groups, eps=eps)[np.argsort(order)]
        expected[f"{size} groups of {groups} features"] = normed(h, size, eps=eps)
    assert_norms(_wrong_norms_of_samples(chain, _norm_of(chain)), h, expected)


@pytest.mark.parametrize("norm", ["batch", "batch-uncentred", "layer"])
def test_wrong_norms_over_the_batch(norm):
    chain = bnmc.Chain(5, 6, "relu", norm=norm, gain=2.0, eps=0.5)
    h = np.random.default_rng(2).standard_normal((5, 6))
    options = {"centred": norm != "batch-uncentred", "eps": 0.5}
    if norm == "layer":
        wrong = [pair for pair in _wrong_norms(chain) if "over the batch" in pair[0]]
        expected = {"acts on rows, over the batch": standardised(h, axis=1, **options)}
    else:
        wrong, change = _wrong_norms(chain), not options["centred"]
        expected = {
            "divided by n - 1": standardised(h, axis=1, ddof=1, **options),
            "evaluation mode": h,
            "but centred": h - h.mean(axis=1, keepdims=True),
            "over the features": standardised(h, axis=0, **options),
            "rows are centred" if change else "without being centred":
                standardised(h, axis=1, centred=change, eps=0.5),
            "parts of 3 samples, not on all 6": np.hstack(
                [standardised(part, axis=1, **options) for part in (h[:, :3], h[:, 3:])]
            ),
        }  # fmt: skip
    assert_norms(wrong, h, expected)


def test_errors_of_a_step_name_the_layout():
    weight = np.ones((24, 24))
    with pytest.raises(ValueError, match="matmul") as caught:
        assert_same_law(lambda h: h @ weight, bnmc.Chain(24, 8, "relu"), rng=0)
    [note] = caught.value.__notes__
    assert "h has shape (24, 8): features, samples" in note
    assert "from_features_last" in note
    with pytest.raises(ArgumentError, match=r"^step\(h\): got \(8, 24\)") as caught:
        assert_same_law(lambda h: h.T, bnmc.Chain(24, 8, "relu"), rng=0)
    assert caught.value.__notes__ == [note]
    with pytest.raises(ArgumentError, match="finite") as caught:
        assert_same_law(lambda h: h * np.nan, bnmc.Chain(24, 8, "relu"), rng=0)
    assert not hasattr(caught.value, "__notes__")


def of_parts(h, size=4):
    return np.hstack([standardised(h[:, i : i + size], axis=1) for i in range(0, h.shape[1], size)])


def with_eps_after_the_root(h):
    x = h - h.mean(axis=1, keepdims=True)
    return x / (h.std(axis=1, keepdims=True) + 1e-5)


@pytest.mark.parametrize(
    ("norm", "eps", "words"),
    [
        (of_parts, 0.0, "the norm acts on parts of 4 samples, not on all 8 (ghost batches)"),
        (with_eps_after_the_root, 0.0, "eps = 1e-05 to the standard deviation"),
        (with_eps_after_the_root, 1e-5, "eps = 1e-05 to the standard deviation"),
    ],
)
def test_norms_of_other_formulas_are_named(norm, eps, words):
    rng, chain = np.random.default_rng(5), bnmc.Chain(24, 8, "relu", eps=eps)

    def step(h):
        return rng.standard_normal((24, 24)) @ np.maximum(norm(h), 0.0) / np.sqrt(24)

    assert words in causes_of(step, chain)


@pytest.mark.parametrize(("calls", "gain", "considered"), [(2, 1.0, False), (40, 3.0, True)])
def test_two_mistakes_are_considered_if_one_leaves_more_than_noise(
    monkeypatch, calls, gain, considered
):
    """A right step of few rows lacks half a unit for each of 15 free entries, about half a χ²₁₅.

    That is three times as much with a probability of about 1e-4, which the seed does not show.  The
    other step adds rows of an unknown covariance.
    """
    asked = []
    monkeypatch.setattr(faults, "_pairs", lambda *arguments: asked.append(arguments) or [])
    chain = bnmc.Chain(6, 5, "tanh", norm="none")
    rng = np.random.default_rng(3)
    layer = Layer.of(chain, rng.standard_normal((1, 6, 5)), 0)
    state = CallsOnState("fixed", layer, np.zeros_like(layer.gram[0]), np.random.default_rng(0))
    other = np.diag(np.arange(1.0, 6.0) ** 2) if considered else np.zeros((5, 5))
    for _ in range(calls):
        rows = rng.standard_normal((1, 6, 6)) / np.sqrt(6) @ layer.a[0]
        state.add(rows + gain * rng.standard_normal((1, 6, 5)) @ other)
    likeliest_fault(chain, [state])
    assert bool(asked) == considered


#: Two samples of 3 x 2 pixels, and a kernel of even size.
CHAIN = bnmc.Chain.conv(16, 2, "relu", shape=(3, 2), kernel=(2, 2))


def step_of(
    chain, *, axes=(1, 2), padding="wrap", transposed=False, kernel=None, anchor=0, variance=1.0
):
    """A step of (channels, columns) arrays in NumPy, with `np.pad` and loops over taps."""
    rng = np.random.default_rng(0)
    (height, width), d = chain.convolution.shape, chain.width
    kh, kw = kernel or chain.convolution.kernel
    after, right = kh // 2 + anchor, kw // 2

    def step(h):
        columns = h.reshape(d, -1, height * width)
        # As in PyTorch an ε, since pixels may be equal in all samples.
        a = np.maximum(standardised(columns, axis=axes, eps=1e-30), 0.0).reshape(d, -1)
        if transposed:
            a = a.reshape(d, height * width, -1).swapaxes(1, 2)
        a = a.reshape(d, -1, height, width)
        sides = ((0, 0), (0, 0), (kh - 1 - after, after), (kw - 1 - right, right))
        padded = np.pad(a, sides, mode=padding)
        weights = rng.standard_normal((kh, kw, d, d)) * np.sqrt(variance / (d * kh * kw))
        out = np.zeros_like(a)
        for i in range(kh):
            for j in range(kw):
                seen = padded[..., i : i + height, j : j + width].reshape(d, -1)
                out += (weights[i, j] @ seen).reshape(out.shape)
        if transposed:
            out = out.reshape(d, -1, height * width).swapaxes(1, 2)
        return out.reshape(h.shape)

    return step


def causes_of(step, chain):
    with pytest.raises(LawMismatch) as caught:
        assert_same_law(step, chain, rng=0)
    return " ".join(caught.value.causes)


def relu(x):
    return np.maximum(x, 0.0)


@pytest.mark.parametrize(
    ("activation", "share", "scale", "words"),
    [
        (relu, 0.1, 1 / 0.9, r"^a share 0.(09\d|1) of the activations is 0 at random: dropout"),
        (relu, 0.3, 1.0, r"a share 0.(29|3) of .*dropout.* rows are scaled by 0.[67]"),
        (lambda x: x / (1 + np.abs(x)), 0.0, 1.0, "^the activation is not relu: softsign fits"),
    ],
)  # fmt: skip
def test_dropout_and_activations_that_are_not_built_in_are_named(activation, share, scale, words):
    chain, rng = bnmc.Chain(20, 4, "relu"), np.random.default_rng(0)

    def step(h):
        a = activation(standardised(h, axis=1))
        mask = scale * (rng.random(a.shape) >= share)
        return rng.standard_normal((20, 20)) @ (mask * a) / np.sqrt(20)

    assert re.search(words, causes_of(step, chain))


def test_kernels_of_other_sizes_are_tried():
    """Squares and single rows or columns up to 7 x 7 that fit in the image, and the transposed."""
    chain = bnmc.Chain.conv(16, 1, "relu", shape=(8, 6), kernel=(3, 2))
    kernels = {
        tuple(map(int, match.groups()))
        for text, _ in wrong_covariances(chain)
        if (match := re.match(r"the kernel has (\d) x (\d) taps, not 3 x 2", text))
    }
    squares = {(i, i) for i in (1, 2, 3, 5)}
    lines = {(1, i) for i in (2, 3, 5)} | {(i, 1) for i in (2, 3, 5, 7)}
    assert kernels == squares | lines | {(2, 3)}


LAYERS_OF_IMAGES = {
    "even": {}, "none": {"norm": "none", "kernel": (1, 2)}, "single": {"kernel": (1, 1)},
}  # fmt: skip


@pytest.mark.parametrize("name", some(LAYERS_OF_IMAGES, "even"))
def test_right_steps_pass(name):
    options = {"shape": (3, 2), "kernel": (2, 2), **LAYERS_OF_IMAGES[name]}
    chain = bnmc.Chain.conv(16, 2, "relu", **options)
    step = plain_step(chain) if chain.norm == "none" else step_of(chain)
    assert_same_law(step, chain, rng=0, rows=2**11)


def plain_step(chain):
    """A step without norm, by the covariance of its rows: any root of it is right."""
    rng = np.random.default_rng(1)

    def step(h):
        a = np.maximum(h, 0.0)
        values, vectors = np.linalg.eigh(chain.covariance(a.T @ a / len(a)))
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        return rng.standard_normal(h.shape) @ root.T

    return step


MISTAKES_OF_IMAGES = {
    "zeros": ({"padding": "constant"}, "the padding is zero, not circular"),
    "samples alone": ({"axes": (1,)}, "each pixel, over the samples alone"),
    "instances": ({"axes": (2,)}, "instance normalization"),
    "images": ({"axes": (0, 2)}, "over channels and pixels: layer normalization of images"),
    "transposed": ({"transposed": True}, "samples and pixels are transposed"),
    "kernel": ({"kernel": (1, 1)}, "the kernel has 1 x 1 taps, not 2 x 2"),
    "anchor": ({"anchor": -1}, "shifted by .* pixel along axis 0"),
    "taps": ({"variance": 4.0}, r"variance 1/channels instead of 1/\(channels · taps\)"),
}


@pytest.mark.parametrize("name", some(MISTAKES_OF_IMAGES, "zeros", "samples alone"))
def test_mistakes_are_named(name):
    parts, words = MISTAKES_OF_IMAGES[name]
    assert re.search(words, causes_of(step_of(CHAIN, **parts), CHAIN))


def test_height_and_width_are_not_exchanged():
    """The image of 3 x 2 pixels read as one of 2 x 3: its rows are triples of pixels."""
    wrong = dict(wrong_covariances(CHAIN))["height and width of the images are transposed"]
    pixels = np.zeros((12, 12))
    pixels[0, 0] = 4.0
    # Pixel (0, 0) is seen by rows 0 and -1, and by both columns.
    expected = [1.0, 1.0, 0.0, 0.0, 1.0, 1.0] + [0.0] * 6
    assert np.diagonal(CHAIN.convolution.covariance(pixels)).tolist() == expected
    assert not np.allclose(wrong(pixels), CHAIN.convolution.covariance(pixels))


@pytest.mark.slow
def test_layers_of_torch():
    pytest.importorskip("torch")
    options = {"shape": (2, 3), "kernel": (1, 3), "eps": 1e-5}
    chain = bnmc.Chain.conv(16, 2, "relu", **options)
    assert_same_law(examples.torch_conv_step(16, **options), chain, rng=0, rows=2**10)
    for changes, words in (
        ({"padding": "zeros"}, "the padding is zero"),
        ({"norm": "flattened"}, "over the samples alone"),
        ({"norm": "instance"}, "instance normalization"),
        ({"weights": "kaiming"}, "Kaiming's variance"),
        ({"weights": "default"}, "has a third of the variance"),
        ({"eps": 1e-3}, "eps = 0.001"),
    ):
        assert words in causes_of(examples.torch_conv_step(16, **(options | changes)), chain)


def test_what_is_refused():
    with pytest.raises(ArgumentError, match="^step"):
        from_images(lambda images: images[..., :1], (2, 2))(np.ones((3, 8)))
    for wrong in (np.ones((3, 5)), np.ones(4)):
        with pytest.raises(ArgumentError, match="^h: .*multiple of 4 columns"):
            from_images(np.abs, (2, 2))(wrong)


@pytest.mark.parametrize(("kernel", "named"), [((1, 1), False), ((1, 2), True), ((2, 1), True)])
def test_one_tap_has_no_padding(kernel, named):
    chain = bnmc.Chain.conv(16, 2, "relu", shape=(2, 2), kernel=kernel)
    texts = [text for text, _ in wrong_covariances(chain)]
    assert ("the padding is zero, not circular" in texts) is named
    assert any("samples and pixels" in text for text in texts) is named


def learned_step(chain, factors=1.0, shifts=0.0):
    """A layer in NumPy whose norm ends with factors and shifts of the features."""
    rng = np.random.default_rng(3)

    def step(h):
        a = np.maximum(factors * chain.normalization(h, 1e-5) + shifts, 0.0)
        return rng.standard_normal((len(h), len(h))) @ a / np.sqrt(len(h))

    return step


@pytest.mark.parametrize("norm", ["layer", "group(4)", "batch"])
def test_learned_factors_show_and_nothing_else(norm):
    """Twice the quantile of 1e-6 is exceeded by right steps with a far smaller probability."""
    chain = bnmc.Chain(24, 3, "relu", norm=norm)
    learned = np.random.default_rng(1).uniform(0.5, 1.5, (24, 1))
    for step, expected in (
        (learned_step(chain, 0.5), False),
        (learned_step(chain, learned), True),
        (learned_step(chain, 1.0, learned - 1.0), True),
    ):
        assert features_differ(chain, step, np.random.default_rng(2)) == expected


def test_small_factors_of_a_wide_layer_show():
    """A sample with one large entry shows the factor of its feature, whatever the width."""
    chain = bnmc.Chain(200, 4, "relu", norm="rms")
    learned = np.random.default_rng(1).uniform(0.9, 1.1, (200, 1))
    assert features_differ(chain, learned_step(chain, learned), np.random.default_rng(2))


def test_permutations_keep_groups():
    order = _permutation(bnmc.Chain(24, 3, norm="group(4)"), np.random.default_rng(0))
    assert sorted(order) == list(range(24))
    assert all(len(set(part // 6)) == 1 for part in order.reshape(4, 6))
    assert len(set(np.diff(order))) > 1


@pytest.mark.parametrize("rank", [1, 2, 5])
@pytest.mark.parametrize(("share", "differ"), [(0.99, False), (1.01, True)])
def test_covariances_differ_beyond_twice_the_quantile_of_their_entries(rank, share, differ):
    """Two covariances of k samples differ in the k(k + 1)/2 entries of a triangle.

    With (1 + t) I and (1 − t) I twice the logarithm of the likelihood ratio of N rows each is
    −N k log(1 − t²).  A last sample of zeros adds nothing.
    """
    calls = 41
    rows = (calls - 1) * rank
    entries = np.triu_indices(rank)[0].size
    statistic = share * 2.0 * stats.chi2.isf(1e-6, entries)
    t = np.sqrt(-np.expm1(-statistic / (rows * rank)))
    samples = np.zeros((calls, rank, rank + 1))
    samples[:, range(rank), range(rank)] = np.sqrt(rows / calls)
    pair = [np.sqrt(1.0 + sign * t) * samples for sign in (1, -1)]
    for scaled, sign in zip(pair, (1, -1), strict=True):
        covariance = np.einsum("cri,crj->ij", scaled, scaled)[:rank, :rank] / rows
        np.testing.assert_allclose(covariance, (1 + sign * t) * np.eye(rank), atol=1e-12)
    assert _covariances_differ(*pair) == differ
