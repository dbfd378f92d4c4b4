"""Kernels computed tile by tile: two sets, tiles, types and progress."""

import numpy as np
import pytest

from bnmc.infinite_width import nngp, ntk


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
