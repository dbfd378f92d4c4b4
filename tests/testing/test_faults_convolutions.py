"""Steps of convolutional networks, right ones and those with the mistakes that people make."""

import re

import numpy as np
import pytest
from numpy_steps import normalised
from slow_cases import some

import bnmc
from bnmc.errors import ArgumentError, ArgumentTypeError
from bnmc.testing import LawMismatch, assert_same_law, examples, from_images
from bnmc.testing.faults import wrong_covariances

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
        a = np.maximum(normalised(columns, axis=axes, eps=1e-30), 0.0).reshape(d, -1)
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


def test_kernels_of_other_sizes_are_tried():
    """Squares and single rows or columns up to 7 x 7 that fit in the image, and the transposed."""
    chain = bnmc.Chain.conv(16, 1, "relu", shape=(8, 6), kernel=(3, 2))
    found = {
        tuple(map(int, match.groups()))
        for text, _ in wrong_covariances(chain)
        if (match := re.match(r"the kernel has (\d) x (\d) taps, not 3 x 2", text))
    }
    squares = {(i, i) for i in (1, 2, 3, 5)}
    lines = {(1, i) for i in (2, 3, 5)} | {(i, 1) for i in (2, 3, 5, 7)}
    assert found == squares | lines | {(2, 3)}


@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"norm": "none", "kernel": (1, 2)}, marks=pytest.mark.slow),
        pytest.param({"kernel": (1, 1)}, marks=pytest.mark.slow),
    ],
)
def test_right_steps_pass(options):
    chain = bnmc.Chain.conv(16, 2, "relu", **{"shape": (3, 2), "kernel": (2, 2)} | options)
    axes = () if chain.norm == "none" else (1, 2)
    step = step_of(chain) if axes else plain_step(chain)
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


MISTAKES = {
    "zeros": ({"padding": "constant"}, "the padding is zero, not circular"),
    "samples alone": ({"axes": (1,)}, "each pixel, over the samples alone"),
    "instances": ({"axes": (2,)}, "instance normalization"),
    "images": ({"axes": (0, 2)}, "over channels and pixels: layer normalization of images"),
    "transposed": ({"transposed": True}, "samples and pixels are transposed"),
    "kernel": ({"kernel": (1, 1)}, "the kernel has 1 x 1 taps, not 2 x 2"),
    "anchor": ({"anchor": -1}, "shifted by .* pixel along axis 0"),
    "taps": ({"variance": 4.0}, r"variance 1/channels instead of 1/\(channels · taps\)"),
}


@pytest.mark.parametrize("name", some(MISTAKES, "zeros", "samples alone"))
def test_mistakes_are_named(name):
    parts, words = MISTAKES[name]
    with pytest.raises(LawMismatch) as caught:
        assert_same_law(step_of(CHAIN, **parts), CHAIN, rng=0)
    assert re.search(words, " ".join(caught.value.causes)), caught.value


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
        with pytest.raises(LawMismatch) as caught:
            assert_same_law(examples.torch_conv_step(16, **(options | changes)), chain, rng=0)
        assert words in " ".join(caught.value.causes), caught.value


def test_what_is_refused():
    convolution = bnmc.Convolution((2, 2), (2, 2))
    chain = bnmc.Chain(8, 4, weights="uniform", convolution=convolution)
    with pytest.raises(ArgumentError, match="^weights: .*'gaussian' for a convolution"):
        assert_same_law(lambda h: h, chain)
    with pytest.raises(ArgumentTypeError, match="^step"):
        from_images(3, (2, 2))
    with pytest.raises(ArgumentError, match="^step"):
        from_images(lambda images: images[..., :1], (2, 2))(np.ones((3, 8)))
    with pytest.raises(ArgumentError, match="^shape"):
        from_images(np.abs, (2, 0))
    for wrong in (np.ones((3, 5)), np.ones(4)):
        with pytest.raises(ArgumentError, match="^h: .*multiple of 4 columns"):
            from_images(np.abs, (2, 2))(wrong)


@pytest.mark.parametrize(("kernel", "named"), [((1, 1), False), ((1, 2), True), ((2, 1), True)])
def test_one_tap_has_no_padding(kernel, named):
    chain = bnmc.Chain.conv(16, 2, "relu", shape=(2, 2), kernel=kernel)
    texts = [text for text, _ in wrong_covariances(chain)]
    assert ("the padding is zero, not circular" in texts) is named
    assert any("samples and pixels" in text for text in texts) is named
