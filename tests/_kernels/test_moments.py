"""Moments of samples over the features, as sums over panels and groups."""

import numpy as np
import pytest
from oracle import layer_spec
from slow_cases import some

from bnmc._kernels.cpu import memory, moments, numbers
from bnmc._kernels.scalar import codes

DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])


@DTYPES
def test_moments_of_neighbours_cancel_no_mean(dtype):
    """With a mean that is 1000 standard deviations away, at every place and length."""
    generator = np.random.default_rng(0)
    block = memory.aligned_zeros((8 * numbers.STRIDE,), dtype)
    block[:] = 1000.0 + generator.standard_normal(block.size)
    out = np.zeros(13)
    for first, row, length in (
        (0, 0, 1),
        (4, 3, 2),
        (0, 5, 63),
        (4, 0, 64),
        (0, 7, 300),
        (4, 0, 512),
    ):
        moments.moments_of_rows(block, first * numbers.STRIDE + row, length, out)
        values = block.reshape(8, numbers.STRIDE)[first : first + 4, row : row + length]
        values = values.astype(np.float64)
        atol = 1e-14 * 1000.0 + 1e-3 * np.finfo(dtype).eps * 1000.0
        np.testing.assert_allclose(out[:4], values.mean(axis=1), rtol=0, atol=atol)
        expected = np.square(values - values.mean(axis=1, keepdims=True)).sum(axis=1)
        # Deviations are exact; their squares are rounded.
        error = np.abs(out[4:8] - expected)
        assert np.all(error <= 300 * np.finfo(dtype).eps * (expected + 1e-9))
    assert out[12] == 0.0


def merged(values, panel, groups, centred, eps=0.0, dtype=np.float64):
    """Shift and scale of each group of rows, (width, columns), and the event."""
    width, columns = values.shape
    spec = layer_spec(
        width, columns, norm=codes.NORM_NONE, eps=eps, groups=groups, centred=centred, panel=panel
    )
    panels = -(-width // panel)
    sums = moments.moments_of(columns, panels, groups)
    sums.segments[:] = np.nan
    block = memory.aligned_zeros((memory.padded(columns) * numbers.STRIDE,), dtype)
    scratch = np.zeros(12)
    for number in range(panels):
        for start in range(number * panel, min((number + 1) * panel, width), numbers.BLOCK):
            rows = values[start : start + numbers.BLOCK]
            block[:] = 1e9  # what is beyond the rows counts for nothing
            block.reshape(-1, numbers.STRIDE)[:columns, : len(rows)] = rows.T
            moments.add_moments(spec, number, start, len(rows), block, scratch, sums)
    event, column = moments.merge_moments(spec, block, sums)
    return sums.shift, sums.scale, event, column


@pytest.mark.parametrize("dtype", some([np.float32, np.float64], np.float32))
@pytest.mark.parametrize("groups", [1, 3, 700, 1050])
@pytest.mark.parametrize("centred", [True, False])
def test_segments_of_panels_and_groups_are_merged(dtype, groups, centred):
    values = np.random.default_rng(1).standard_normal((2100, 2)).astype(dtype) + dtype(3.0)
    for panel in (512, 1024):
        shift, scale, event, _ = merged(values, panel, groups, centred, 0.1, dtype)
        assert event == codes.RUNNING
        parts = values.astype(np.float64).reshape(groups, -1, 2)
        mean = parts.mean(axis=1)
        square = parts.var(axis=1) if centred else np.square(parts).mean(axis=1)
        rtol = 40 * np.finfo(dtype).eps
        np.testing.assert_allclose(shift, mean if centred else 0.0 * mean, rtol=rtol, atol=rtol)
        np.testing.assert_allclose(scale, 1 / np.sqrt(square + 0.1), rtol=rtol)


@DTYPES
def test_equal_features_have_no_variance(dtype):
    """Whatever their number is: rounding of sums is no variance, and a small one is."""
    for value in (0.1, 1e-30, 3e20):
        values = np.full((1500, 2), value, dtype)
        values[:, 0] = np.arange(1500)
        assert merged(values, 512, 1, True, 0.0, dtype)[2:] == (codes.FLAT_SAMPLE, 1)
        assert merged(values, 512, 1, False, 0.0, dtype)[2] == codes.RUNNING
        values[::2, 1] *= dtype(1 + 2000 * np.finfo(dtype).eps)
        assert merged(values, 512, 1, True, 0.0, dtype)[2] == codes.RUNNING
    values[:, 1] = 0.0
    assert merged(values, 512, 3, False, 0.0, dtype)[2:] == (codes.FLAT_SAMPLE, 1)
    values[700, 1] = np.inf
    assert merged(values, 512, 1, True, 0.0, dtype)[2:] == (codes.NOT_FINITE, 1)
