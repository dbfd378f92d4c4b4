"""Constants that papers and their programs print, and anchors of residual networks."""

import math

import numpy as np
import pytest

import bnmc
from bnmc import Activation, MeanField
from bnmc.infinite_width import ntk
from bnmc.mean_field import CorrelationMap


def through_resnet(x, layer, shortcut=0.6):
    """Return the largest value at the end of a subnetwork of the modified ResNet-101.

    `layer` is the map of a layer, of correlations or of slopes.  That is `_subnet_max_func` of the
    tests of `google-deepmind/dks`, for Martens et al. (arXiv 2110.01765) and Zhang, Botev and
    Martens (arXiv 2203.08120).
    """
    branch = layer(layer(layer(x)))
    for blocks in (3, 4, 23, 3):
        for block in range(blocks):
            residual = layer(layer(layer(x)))
            path = layer(x) if block == 0 else x
            x = shortcut**2 * path + (1.0 - shortcut**2) * residual
    return max(layer(x), branch)


def test_slope_of_tailored_activations():
    """TAT: the correlation 0 becomes 0.75; ``test_parameter_computation`` of dks has the slope."""
    slope = 0.6291800290346146

    def leaky(x):
        return x if x > 0.0 else slope * x

    kappa = CorrelationMap(Activation(leaky, kinks=(0.0,)), norm="rms")
    end = through_resnet(0.0, lambda c: float(kappa(c, rtol=1e-9)))
    assert end == pytest.approx(0.75, abs=1e-8)


@pytest.mark.parametrize(
    ("name", "scale", "shift", "down", "output"),
    [
        ("softplus", 0.18761008168267976, 0.40688063442262007, 0.9213466151411376,
         8.878672543665223),
        ("tanh", 0.07461073057540868, 0.5566915199964182, 0.5034378768692127, 18.002635964442558),
    ],
)  # fmt: skip
def test_slopes_of_deep_kernel_shaping(name, scale, shift, down, output):
    """DKS: C′(1) is 1.00277097, so that the network has the slope 1.2; and C(0) = 0, Q(1) = 1.

    The other numbers are those of ``test_parameter_computation`` of dks.
    """
    slope = 1.00277097
    assert through_resnet(1.0, lambda factor: factor * slope) == pytest.approx(1.2, abs=3e-6)
    if name == "softplus":

        def shaped(x):
            return output * (math.log1p(math.exp(scale * x + shift)) - down)
    else:

        def shaped(x):
            return output * (math.tanh(scale * x + shift) - down)

    kappa = CorrelationMap(Activation(shaped))
    assert float(kappa.slope(1.0, variance=1.0)) == pytest.approx(slope, abs=1e-8)
    assert float(kappa(0.0, variance=1.0)) == pytest.approx(0.0, abs=1e-8)
    assert kappa.trajectory(1, correlation=0.5).variance[1] == pytest.approx(1.0, abs=1e-8)


def test_fixed_points_of_joudaki_and_hofmann():
    """arXiv 2410.20107; their GELU is the approximation by tanh.

    Their row of relu, κ′(1) = .95, is a Hermite series of 25 terms, and the exact number is 1.
    """

    def gelu(x):
        return 0.5 * x * (1.0 + math.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)))

    def swish(x):
        return x / (1.0 + math.exp(-x))

    for function, expected in ((gelu, 0.760260), (swish, 0.658667)):
        points = CorrelationMap(Activation(function), norm="rms").fixed_points()
        stable = next(point for point in points if point.stable)
        assert stable.correlation == pytest.approx(expected, abs=5e-7)
    selu, relu = (CorrelationMap(name, norm="rms") for name in ("selu", "relu"))
    assert float(selu.slope(1.0)) == pytest.approx(1.0716, abs=5e-5)
    assert float(relu.slope(1.0)) == pytest.approx(1.0, abs=1e-12)
    # κ′(ρ) = ½ + arcsin(ρ)/π, whose power series at 1 converges slowly: order 24 of κ′.
    series = 0.5 + sum(math.comb(2 * m, m) / 4**m / (2 * m + 1) for m in range(12)) / math.pi
    assert round(series, 2) == 0.95


# --- pre-activation residual blocks with batch norm (De and Smith, arXiv 2002.10444, are linear)


def centred_variances(activation, batch, depth, **options):
    """Return the variance of a row of h_l within the batch, from independent samples."""
    chain = bnmc.Chain.resnet(8, batch, activation, **options)
    path = MeanField(chain).trajectory(covariance=np.eye(batch), depth=depth)
    centre = np.eye(batch) - 1.0 / batch
    return np.einsum("ij,lji->l", centre, path.covariance) / batch


def test_variances_and_gradients_of_residual_blocks():
    """ReLU, batch 64, weights of variance 2: simulated 7.79, 35.0, 69.7 and 5.046 ± .011.

    With skip 1, E of squared weight gradients of block l is proportional to
    (n − 1) Π_{k ≥ l} (1 + λ a/v_k) b(1 − c) + b(1 + (n − 1)c), with λ the backward rate.
    """
    n, depth = 64, 100
    v = centred_variances("relu", n, depth, gain=2**0.5)
    np.testing.assert_allclose(v[[10, 50, 100]], [7.77249, 34.92496, 68.86555], atol=5e-6)
    point = MeanField(bnmc.Chain(8, n, "relu")).fixed_point()
    b, c = point.b, point.c
    a = 2.0 * b * (1.0 - c) * (n - 1) / n
    np.testing.assert_allclose(v, (n - 1) / n + a * np.arange(depth + 1), rtol=1e-12)
    factors = 1.0 + point.backward_rate * a / v[:depth]

    def squared(product):
        return (n - 1) * product * b * (1.0 - c) + b * (1.0 + (n - 1) * c)

    # Blocks 1 and 100 are the weights after h_1 and h_100.
    ratio = squared(np.prod(factors[1:])) / squared(1.0)
    assert math.log(ratio) == pytest.approx(5.044941, abs=1e-5)


def test_linear_residual_blocks():
    """De and Smith: variance l + (n − 1)/n within the batch, from independent samples."""
    v = centred_variances("linear", 6, 20)
    np.testing.assert_allclose(v, np.arange(21) + 5 / 6, rtol=1e-12)


def test_tangent_kernels_of_residual_blocks_grow_like_gradients():
    """Θ_L − Θ of the last weights is the sum over blocks of products of gradients and of G."""
    n, blocks = 6, 8
    chain = bnmc.Chain.resnet(8, n, "relu", gain=2**0.5)
    x = np.eye(n) * n**0.5  # Σ_0 = I
    point = MeanField(bnmc.Chain(8, n, "relu")).fixed_point()
    centred = []
    for depth in range(1, blocks + 1):
        theta = ntk(chain, x, depth)
        centre = np.eye(n) - 1.0 / n
        centred.append(np.trace(centre @ theta @ centre))
    v = centred_variances("relu", n, blocks, gain=2**0.5)
    # On the centred symmetric matrices, a block multiplies Θ by 1 + λ a/v and adds the new K.
    a = 2.0 * point.b * (1.0 - point.c) * (n - 1) / n
    theta = v[0]
    for depth in range(blocks):
        theta = theta * (1.0 + point.backward_rate * a / v[depth]) + a
        assert centred[depth] / n == pytest.approx(theta, rel=1e-6)
