"""Kernels computed tile by tile: two sets, tiles, types and progress."""

import numpy as np
import pytest

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
    assert calls == [(0, 3), (1, 3), (2, 3), (3, 3)]


def test_a_tile_goes_through_all_layers():
    x = np.random.default_rng(1).standard_normal((3, 5))
    layer = PairwiseLayer(sigma=dual("relu"), weight_variance=2.0, bias_variance=0.1)
    tiles = TiledKernel([x], Weights(2.0, 0.1), [layer] * 2, tangent=True)
    kernel = tiles.compute("ntk", 1e-6, "float64", progress=False)
    assert (kernel == ntk(x, 2, weight_variance=2.0, bias_variance=0.1)).all()
