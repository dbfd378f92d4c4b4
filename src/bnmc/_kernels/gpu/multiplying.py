"""Rows W a of a tile, as products of weights and the activations of the layer before.

Weights are random numbers.  Those of a few elements of each row exist at a time.
"""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np

from bnmc._kernels.gpu.block import Block
from bnmc._kernels.gpu.device import cuda
from bnmc._kernels.gpu.numbers import normals32, normals64, signs, uniforms32, uniforms64
from bnmc._kernels.gpu.shape import Shape, Spec, u32


def multiply_function(shape: Shape, block: Block) -> Any:
    """Return the device function `multiply_tile`."""
    kind, number, thread, accumulators = (
        shape.spec.kind, shape.spec.number, block.thread, shape.accumulators,
    )  # fmt: skip
    quads, groups = shape.quads, shape.groups
    multiply_alone = _multiply_alone_function(shape)
    multiply_together = _multiply_together_function(shape, block)
    add_shares = _add_shares_function(shape, block)

    @cuda.jit(device=True)
    def multiply_tile(first_row, width, gain, layer, stream, k0, k1, a):
        """Write rows W a of the tile."""
        acc = cuda.local.array(accumulators, kind)
        t = thread()
        quad = np.uint32(first_row // 4 + t % quads)
        for c in range(accumulators):
            acc[c] = number(0.0)
        if groups == 1:
            multiply_alone(acc, t // quads, width, quad, layer, stream, k0, k1, a)
        else:
            multiply_together(acc, width, quad, layer, stream, k0, k1, a)
        add_shares(acc, number(gain / sqrt(np.float64(width))))

    return multiply_tile


def weights_of(spec: Spec) -> Any:
    """Return the device function of the weights of a quad."""
    single = spec.single
    of_each_law = (
        normals32 if single else normals64,
        uniforms32 if single else uniforms64,
        signs,
    )
    return of_each_law[spec.weights]


def _multiply_alone_function(shape: Shape) -> Any:
    columns, elements, draw_weights = shape.spec.columns, shape.elements, weights_of(shape.spec)

    @cuda.jit(device=True)
    def multiply_alone(acc, own, width, quad, layer, stream, k0, k1, a):
        """Add the products of elements `own`, `own + elements`, ...; a thread has all columns."""
        for element in range(own, width, elements):
            w0, w1, w2, w3 = draw_weights(np.uint32(element), quad, layer, stream, k0, k1)
            for c in range(columns):
                entry = a[u32(element), c]
                acc[4 * c] += entry * w0
                acc[4 * c + 1] += entry * w1
                acc[4 * c + 2] += entry * w2
                acc[4 * c + 3] += entry * w3

    return multiply_alone


def _multiply_together_function(shape: Shape, block: Block) -> Any:
    columns, kind, number = shape.spec.columns, shape.spec.kind, shape.spec.number
    threads, thread, draw_weights = shape.threads, block.thread, weights_of(shape.spec)
    quads, groups, chunk, padded = shape.quads, shape.groups, shape.chunk, shape.padded
    tile_rows, elements, shares = shape.tile_rows, shape.elements, shape.shares
    at_weights, at_multiplied = shape.at.weights, shape.at.multiplied

    @cuda.jit(device=True)
    def multiply_together(acc, width, quad, layer, stream, k0, k1, a):
        """Add the products of a share of the elements; weights are in shared memory for a while."""
        numbers = cuda.shared.array(0, kind)
        t = thread()
        q, g, s = t % quads, t // quads % groups, t // (quads * groups)
        own = t // quads
        for first in range(0, width, elements):
            w0, w1, w2, w3 = draw_weights(np.uint32(first + own), quad, layer, stream, k0, k1)
            at = at_weights + own * tile_rows + q
            numbers[u32(at)] = w0
            numbers[u32(at + quads)] = w1
            numbers[u32(at + 2 * quads)] = w2
            numbers[u32(at + 3 * quads)] = w3
            for item in range(t, elements * padded, threads):
                element, i = first + item // padded, item % padded
                value = number(0.0)
                if element < width and i < columns:
                    value = a[element, i]
                numbers[u32(at_multiplied + item)] = value
            cuda.syncthreads()
            for element in range(s, elements, shares):
                at = at_weights + element * tile_rows + q
                z0, z1 = numbers[u32(at)], numbers[u32(at + quads)]
                z2, z3 = numbers[u32(at + 2 * quads)], numbers[u32(at + 3 * quads)]
                of_a = at_multiplied + element * padded + g * chunk
                for c in range(chunk):
                    entry = numbers[u32(of_a + c)]
                    acc[4 * c] += entry * z0
                    acc[4 * c + 1] += entry * z1
                    acc[4 * c + 2] += entry * z2
                    acc[4 * c + 3] += entry * z3
            cuda.syncthreads()

    return multiply_together


def _add_shares_function(shape: Shape, block: Block) -> Any:
    columns, kind, number = shape.spec.columns, shape.spec.kind, shape.spec.number
    threads, thread, quads, groups = shape.threads, block.thread, shape.quads, shape.groups
    chunk, shares, share_line = shape.chunk, shape.shares, shape.share_line
    per_round, stride = shape.per_round, shape.stride
    at_tile, at_shares = shape.at.tile, shape.at.shares

    @cuda.jit(device=True)
    def add_shares(acc, scale):
        """Add the shares of all threads, times `scale`, and write the rows to the tile."""
        numbers = cuda.shared.array(0, kind)
        t = thread()
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
                line = item // (quads * groups)
                total = number(0.0)
                for share in range(shares):
                    at = at_shares + line * share_line + share * quads * groups + place
                    total += numbers[u32(at)]
                c = first + line // 4
                i = place // quads * chunk + c
                if c < chunk and i < columns:
                    at = at_tile + i * stride + line % 4 * quads + place % quads
                    numbers[u32(at)] = total * scale
            cuda.syncthreads()

    return add_shares
