"""Moments of samples over the features, as sums over panels and groups.

A norm over the features needs the mean and the variance of each sample over all rows, or over a
group of rows, before any row can be activated.  Moments are means and sums of squared deviations.
They are summed for each segment, the rows that a panel and a group of features share, and merged in
the order of panels (Chan, Golub and LeVeque, 1979), so that threads can share a layer and a large
mean cancels nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bnmc._kernels.compiling import by_type, inlined, kernel
from bnmc._kernels.cpu import vectors
from bnmc._kernels.cpu.memory import Zeros, aligned_zeros
from bnmc._kernels.cpu.numbers import STRIDE
from bnmc._kernels.cpu.vectors import (
    fill_like,
    load_across,
    load_wide,
    multiply_add,
    store,
    sum_lanes,
    zero_wide,
)
from bnmc._kernels.scalar.codes import FLAT_SAMPLE, NOT_FINITE, RUNNING
from bnmc._kernels.scalar.elementary import larger, smaller
from bnmc._kernels.scalar.moments import is_flat, merged_mean, squares_between, variance_of


class Moments(NamedTuple):
    """Moments of the samples of a layer."""

    segments: np.ndarray  # float64 (panels + groups, 2, columns)
    shift: np.ndarray  # float64 (groups, columns): what the norm subtracts
    scale: np.ndarray  # float64 (groups, columns): by what it multiplies


def moments_of(
    columns: int, panels: int, groups: int, zeros: Zeros = aligned_zeros
) -> Moments | None:
    """Return the buffers for layers with at most so many panels and groups of features.

    They are None for norms over the batch: their layers are compiled without this file.
    """
    if groups == 0:
        return None
    return Moments(
        zeros((panels + groups, 2, columns), np.float64),
        zeros((groups, columns), np.float64),
        zeros((groups, columns), np.float64),
    )


@kernel
def moments_of_rows(block, at, length, out):
    """Write mean and sum of squared deviations of neighbouring rows of four columns of a block.

    at : int
        The place of the first number of the first column.
    out : (>= 12,) float64
        Receives the means, then the sums.  The third four numbers are used.
    """
    strip = vectors.WIDE_BYTES // block.itemsize
    whole = length // strip * strip
    for k in range(4):
        lanes = zero_wide(block)
        for row in range(0, whole, strip):
            lanes = lanes + load_wide(block, at + k * STRIDE + row)
        out[k] = sum_lanes(lanes)
    # Rows beyond whole vectors are added one by one.  An addition takes several cycles, so four
    # columns are added at once.
    totals = load_across(out, 0, 1)
    for row in range(whole, length):
        totals = totals + load_across(block, at + row, STRIDE)
    store(out, 0, totals)
    # The centre is the mean up to rounding, so its error is summed as well.
    for k in range(4):
        centre = block.dtype.type(out[k] / length)
        middle = fill_like(zero_wide(block), centre)
        first, second = zero_wide(block), zero_wide(block)
        for row in range(0, whole, strip):
            deviation = load_wide(block, at + k * STRIDE + row) - middle
            first = first + deviation
            second = multiply_add(deviation, deviation, second)
        out[k] = centre
        out[4 + k] = sum_lanes(second)
        out[8 + k] = sum_lanes(first)
    centres = load_across(out, 0, 1)
    squares, shifts = load_across(out, 4, 1), load_across(out, 8, 1)
    for row in range(whole, length):
        deviations = load_across(block, at + row, STRIDE) - centres
        shifts = shifts + deviations
        squares = squares + deviations * deviations
    store(out, 4, squares)
    store(out, 8, shifts)
    for k in range(4):
        shift = out[8 + k]
        out[k] += shift / length
        out[4 + k] = larger(out[4 + k] - shift * shift / length, 0.0)


@kernel
def add_moments(spec, number, start, count, block, scratch, moments):
    """Add a block of rows, from `start` on, to the moments of the segments of panel `number`.

    scratch : (>= 12,) float64

    The segment of panel p and group g is at p + g: no two segments have the same sum.
    """
    size = spec.width // spec.groups
    row = 0
    while row < count:
        group = (start + row) // size
        end = smaller(count, (group + 1) * size - start)
        before = start + row - larger(group * size, number * spec.panel)
        length = end - row
        segment = moments.segments[number + group]
        for i in range(spec.columns):
            if i % 4 == 0:
                moments_of_rows(block, i * STRIDE + row, length, scratch)
            mean, squares = scratch[i % 4], scratch[4 + i % 4]
            if before > 0:
                between = squares_between(segment[0, i], before, mean, length)
                mean = merged_mean(segment[0, i], before, mean, length)
                squares += segment[1, i] + between
            segment[0, i] = mean
            segment[1, i] = squares
        row = end


@kernel
def merge_moments(spec, block, moments):
    """Turn the moments of segments into the shift and the scale of each group and sample.

    Returns the code of an event, and the column of the sample.
    """
    unit = 2.0**-23 if block.itemsize == 4 else 2.0**-52
    size = spec.width // spec.groups
    for group in range(spec.groups):
        begin, end = group * size, (group + 1) * size
        for i in range(spec.columns):
            count, mean, squares = 0, 0.0, 0.0
            for number in range(begin // spec.panel, (end - 1) // spec.panel + 1):
                length = smaller((number + 1) * spec.panel, end) - larger(
                    number * spec.panel, begin
                )
                segment = moments.segments[number + group]
                between = squares_between(mean, count, segment[0, i], length)
                mean = merged_mean(mean, count, segment[0, i], length)
                squares += segment[1, i] + between
                count += length
            variance = variance_of(mean, squares, size, spec.centred)
            if not np.isfinite(variance):
                return NOT_FINITE, i
            if spec.eps == 0.0 and is_flat(variance, mean, unit):
                return FLAT_SAMPLE, i
            moments.shift[group, i] = mean if spec.centred else 0.0
            moments.scale[group, i] = 1.0 / np.sqrt(variance + spec.eps)
    return RUNNING, -1


@kernel
def _normalise(moments, spec, start, rows, block):
    size = spec.width // spec.groups
    row = 0
    while row < rows:
        group = smaller((start + row) // size, spec.groups - 1)
        # Padding rows belong to the last group.
        end = rows if group == spec.groups - 1 else smaller(rows, (group + 1) * size - start)
        for i in range(spec.columns):
            shift = block.dtype.type(moments.shift[group, i])
            scale = block.dtype.type(moments.scale[group, i])
            for at in range(np.uintp(i * STRIDE + row), np.uintp(i * STRIDE + end)):
                block[at] = (block[at] - shift) * scale
        row = end


@inlined
def _leave(moments, spec, start, rows, block):
    pass


#: normalise_samples(moments, spec, start, rows, block) normalizes columns over the features.
normalise_samples = by_type(Moments=_normalise, NoneType=_leave)
