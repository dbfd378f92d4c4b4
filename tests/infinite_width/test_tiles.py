"""Kernels computed tile by tile: two sets, tiles, types and progress."""

import copy

import numpy as np
import pytest
from slow_cases import slow

from bnmc._support.workers import Parallel
from bnmc.infinite_width import dual, nngp, ntk
from bnmc.infinite_width.networks import Weights
from bnmc.infinite_width.tiles import TiledKernel
from bnmc.mean_field.pairwise_layer import PairwiseLayer


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("function", [nngp, ntk])
def test_two_sets_and_tiles_agree_with_one_set(function, activation):
    x = np.random.default_rng(3).standard_normal((6, 300))
    options = {"activation": activation, "bias_variance": 0.1, "norm": "rms", "skip": 0.5}
    whole = function(x, 2, **options)
    assert (whole == whole.T).all()
    block = function(x[:, 40:], 2, other=x[:, :30], **options)
    assert block.shape == (260, 30)
    assert block == pytest.approx(whole[40:, :30], rel=1e-12)
    part = function(x[:, 250:270], 2, **options)
    assert part == pytest.approx(whole[250:270, 250:270], rel=1e-12)


def test_float32_and_progress():
    x = np.random.default_rng(6).standard_normal((4, 300))
    calls = []
    single = ntk(x, 1, dtype="float32", progress=lambda done, total: calls.append((done, total)))
    assert single.dtype == np.float32
    assert single == pytest.approx(ntk(x, 1), rel=1e-6)
    assert calls == sorted(calls)
    assert calls[-1] == (3, 3)


@pytest.mark.parametrize(
    ("variance", "tangent"), [slow(0.8, False), slow(1.2, False), (0.8, True), slow(1.2, True)]
)
def test_a_kernel_that_no_layer_changes_is_left_alone(variance, tangent):
    """Layers that are equal, but not the same object, are computed one by one."""
    layer = PairwiseLayer(
        sigma=dual("tanh"), norm="none", order="norm-activation", weight_variance=variance,
        bias_variance=0.1, skip=0.0,
    )  # fmt: skip
    x, first = np.array([[1.0, 0.0], [1.0, 2.0]]), Weights(variance, 0.1)

    def kernel(layers):
        made = TiledKernel([x], first, layers, tangent)
        return made.compute("kernel", 1e-6, "float64", Parallel.of(1))

    one_by_one = kernel([copy.copy(layer) for _ in range(700)])
    np.testing.assert_array_equal(kernel((layer,) * 700), one_by_one)
    np.testing.assert_allclose(kernel((layer,) * 10**5), one_by_one, rtol=1e-9)
