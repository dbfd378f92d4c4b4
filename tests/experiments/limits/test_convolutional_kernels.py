"""Tangent kernels of convolutional networks: beside one pixel, and beside drawn networks."""

import numpy as np
import pytest
from scipy.stats import t

from bnmc.experiments.limits import convolutional_kernels
from bnmc.experiments.limits.convolutional_kernels import tangent_kernels
from bnmc.infinite_width import ntk


def test_one_pixel_is_a_fully_connected_network():
    """Eight of nine inputs of a window are zero, so weights have the variance 2/9 over inputs.

    The mean over images of one pixel is the pixel, and the readout of `ntk` has this variance, too.
    Near correlation 1 rounding is multiplied by up to 1e8.
    """
    images = np.random.default_rng(0).standard_normal((5, 7, 1, 1))
    made = tangent_kernels(images[:2], images, 3)
    for depth, kernel in enumerate(made, 1):
        expected = ntk(images[:, :, 0, 0].T, depth, weight_variance=2 / 9)[:2]
        np.testing.assert_allclose(kernel * 2 / 9, expected, rtol=1e-7)


def plain_kernel(first, second, depth):
    """Return the kernel of two images after some convolutions, by sums over single positions."""
    side = first.shape[1]
    places = list(np.ndindex(side, side))

    def window(values, a, b):
        shifts = [(row, column) for row in (-1, 0, 1) for column in (-1, 0, 1)]
        pairs = [tuple((p + i, q + j) for p, q in (a, b)) for i, j in shifts]
        return 2 / 9 * sum(values.get(pair, 0.0) for pair in pairs)

    images = {"x": first, "y": second}
    covariances = {
        a + b: {
            (p, q): images[a][:, *p] @ images[b][:, *q] / len(first) for p in places for q in places
        }
        for a in "xy"
        for b in "xy"
    }
    tangent = dict.fromkeys(covariances["xy"], 0.0)
    for _ in range(depth):
        h = {
            kind: {pair: window(values, *pair) for pair in values}
            for kind, values in covariances.items()
        }
        angle = {
            (p, q): np.arccos(value / np.sqrt(h["xx"][p, p] * h["yy"][q, q]))
            for (p, q), value in h["xy"].items()
        }
        tangent = {
            pair: (window(tangent, *pair) + h["xy"][pair]) * (np.pi - angle[pair]) / (2 * np.pi)
            for pair in tangent
        }
        for kind, values in h.items():
            a, b = h[2 * kind[0]], h[2 * kind[1]]
            for (p, q), value in values.items():
                scale = np.sqrt(a[p, p] * b[q, q])
                theta = np.arccos(np.clip(value / scale, -1, 1))
                new = scale * (np.sin(theta) + (np.pi - theta) * np.cos(theta)) / (2 * np.pi)
                covariances[kind][p, q] = new
    return np.mean([tangent[pair] + covariances["xy"][pair] for pair in tangent])


def test_sums_over_single_positions():
    images = np.random.default_rng(3).random((2, 2, 3, 3))
    made = tangent_kernels(images[:1], images[1:], 3)
    for depth, kernel in enumerate(made, 1):
        assert kernel[0, 0] == pytest.approx(plain_kernel(*images, depth), rel=1e-12)


def test_blocks_of_images_have_the_values_of_the_whole(monkeypatch):
    images = np.random.default_rng(1).random((7, 1, 4, 4)) * (np.arange(7) > 0)[:, None, None, None]
    whole = tangent_kernels(images[:3], images, 2)
    monkeypatch.setattr(convolutional_kernels, "_AT_ONCE", 2 * 4**4)
    np.testing.assert_allclose(tangent_kernels(images[:3], images, 2), whole, rtol=1e-12)
    assert (whole[:, 0] == 0).all()  # a black image has no gradient


def test_products_of_gradients_of_drawn_networks():
    """With one convolution the kernel is the mean at every width; with two up to order 1/width.

    A parameter that the network multiplies by s has the gradient s times that of its weight.  Of
    six means over 60 networks, each differs by more than 7 standard errors with probability 6e-8
    at most if it is nearly normal (Student's law with 59 degrees of freedom has 3e-9 beyond).
    """
    torch = pytest.importorskip("torch")
    from bnmc.experiments.training.networks import pooled, seeded

    assert 6 * 2 * t.sf(7, 59) < 1e-6
    images = np.random.default_rng(2).standard_normal((2, 2, 4, 4))
    kernels = tangent_kernels(images, images, 2)
    for depth, bias in ((1, 0.0), (2, 0.06)):
        products = []
        with seeded(depth):
            for _ in range(60):
                model = pooled(2, 48, depth)
                outputs = model(torch.from_numpy(images))[:, 0]
                gradients = []
                for output in outputs:
                    parts = torch.autograd.grad(output, list(model.parameters()), retain_graph=True)
                    scales = [(2.0 / part[0].numel()) ** 0.5 for part in parts[:-1]]
                    scales.append(48**-0.5)
                    gradients.append(
                        torch.cat([s * part.ravel() for s, part in zip(scales, parts, strict=True)])
                    )
                rows = torch.stack(gradients)
                products.append((rows @ rows.T).numpy())
        mean = np.mean(products, axis=0)
        error = np.std(products, axis=0, ddof=1) / len(products) ** 0.5
        allowed = 7 * error + bias * np.abs(kernels[depth - 1])
        assert (np.abs(mean - kernels[depth - 1]) < allowed).all()
        assert (allowed < 0.5 * np.abs(np.diag(kernels[depth - 1])).mean()).all()
