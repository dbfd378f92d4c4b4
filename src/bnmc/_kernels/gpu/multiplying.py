"""Rows W a of a tile, as products of weights and the activations of the layer before.

Weights are random numbers.  Those of a few elements of each row exist at a time.
"""

from __future__ import annotations

from math import sqrt

import numpy as np

from bnmc._kernels.gpu.block import thread
from bnmc._kernels.gpu.constants import (
    accumulators, at_multiplied, at_shares, at_tile, at_weights, chunk, columns, draw_weights,
    elements, groups, kind, number, padded, per_round, quads, share_line, shares, stride, threads,
    tile_rows,
)  # fmt: skip
from bnmc._kernels.gpu.device import cuda
from bnmc._kernels.gpu.shape import u32
from bnmc._kernels.gpu.tiles import add_quad, drawn_quad, quad_at, write_quad


# `multiply_tile` is long because `acc` must stay in registers: passing it to further device
# functions changed the compiled instructions.
def multiply_tile(first_row, width, gain, draw, a):
    """Write rows W a of the tile."""
    numbers = cuda.shared.array(0, kind)
    acc = cuda.local.array(accumulators, kind)
    t = thread()
    q, g, s = t % quads, t // quads % groups, t // (quads * groups)
    quad, lane = np.uint32(first_row // 4 + q), t // quads
    for c in range(accumulators):
        acc[c] = number(0.0)
    if groups == 1:
        _multiply_alone(acc, lane, width, quad, draw, a)
    # If there are several groups, a thread of each needs the same weights, so the weights of a
    # few elements are in shared memory.
    for first in range(0, width if groups > 1 else 0, elements):
        weights = drawn_quad(draw_weights, first + lane, quad, draw)
        write_quad(at_weights + lane * tile_rows + q, weights)
        for item in range(t, elements * padded, threads):
            element, i = first + item // padded, item % padded
            value = number(0.0)
            if element < width and i < columns:
                value = a[element, i]
            numbers[u32(at_multiplied + item)] = value
        cuda.syncthreads()
        for element in range(s, elements, shares):
            weights = quad_at(at_weights + element * tile_rows + q)
            of_a = at_multiplied + element * padded + g * chunk
            for c in range(chunk):
                add_quad(acc, c, numbers[u32(of_a + c)], weights)
        cuda.syncthreads()
    # Add the shares of all threads, a few columns at a time.
    scale = number(gain / sqrt(np.float64(width)))
    for first in range(0, chunk, per_round):
        # A constant index keeps the accumulators in registers.
        for c in range(chunk):
            if first <= c < first + per_round:
                for j in range(4):
                    numbers[u32(at_shares + (4 * (c - first) + j) * share_line + t)] = acc[
                        4 * c + j
                    ]
        cuda.syncthreads()
        for item in range(t, 4 * per_round * quads * groups, threads):
            place = item % (quads * groups)
            row = item // (quads * groups)
            total = number(0.0)
            for share in range(shares):
                at = at_shares + row * share_line + share * quads * groups + place
                total += numbers[u32(at)]
            c = first + row // 4
            i = place // quads * chunk + c
            if c < chunk and i < columns:
                at = at_tile + i * stride + row % 4 * quads + place % quads
                numbers[u32(at)] = total * scale
        cuda.syncthreads()


def _multiply_alone(acc, lane, width, quad, draw, a):
    """Add the products of elements `lane`, `lane + elements`, ...; a thread has all columns."""
    for element in range(lane, width, elements):
        weights = drawn_quad(draw_weights, element, quad, draw)
        for c in range(columns):
            add_quad(acc, c, a[u32(element), c], weights)
