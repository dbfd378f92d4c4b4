"""Rows W a of a tile, drawn given the factor of their covariance, then activated.

If a thread has all columns, it keeps its rows in registers until they are activated
(`_draw_alone_function`).  Otherwise threads share normals and rows in shared memory
(`_draw_together_function`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import float64

from bnmc._kernels.gpu.block import Block
from bnmc._kernels.gpu.device import cuda
from bnmc._kernels.gpu.numbers import normals32, normals64
from bnmc._kernels.gpu.rows import Rows
from bnmc._kernels.gpu.shape import Shape, u32


def draw_function(shape: Shape, block: Block, rows: Rows) -> Any:
    """Return the device function `draw_activations`.

    It writes the activations of the tile that begins at `first_row`.  The normals of a row are the
    elements of the counter from `element` on.
    """
    draw_activations = _draw_alone_function if shape.whole_rows else _draw_together_function
    return draw_activations(shape, block, rows)


def normals_of(shape: Shape) -> Any:
    """Return the device function of the normals of a quad."""
    return normals32 if shape.spec.single else normals64


def _draw_alone_function(shape: Shape, block: Block, rows: Rows) -> Any:
    columns, batch, inputs = shape.spec.columns, shape.spec.batch, shape.spec.inputs
    kind, number, draw_normals = shape.spec.kind, shape.spec.number, normals_of(shape)
    thread, quads, accumulators = block.thread, shape.quads, shape.accumulators
    padded, stride = shape.padded, shape.stride
    at_diagonal, at_factor, at_tile = shape.at.diagonal, shape.at.factor, shape.at.tile
    row_of, finish_row = rows.row_of, rows.finish_row

    @cuda.jit(device=True)
    def draw_activations(
        first_row, width, element, layer, stream, k0, k1, skip, eps, x, kept
    ):  # fmt: skip
        acc = cuda.local.array(accumulators, kind)
        for c in range(accumulators):
            acc[c] = number(0.0)
        quad = np.uint32(first_row // 4 + thread())
        # The factor is triangular, so the first half of the columns needs only the first half of
        # the normals.
        draw_columns(acc, 0, columns // 2, element, quad, layer, stream, k0, k1)
        draw_columns(acc, columns // 2, columns, element, quad, layer, stream, k0, k1)
        row = row_of(first_row, thread())
        # Constant indices keep the rows in registers.
        finish_column(acc, 0, row, width, skip, eps, x, kept)
        finish_column(acc, 1, row + 16, width, skip, eps, x, kept)
        finish_column(acc, 2, row + 32, width, skip, eps, x, kept)
        finish_column(acc, 3, row + 48, width, skip, eps, x, kept)
        cuda.syncthreads()

    @cuda.jit(device=True)
    def draw_columns(acc, first, last, element, quad, layer, stream, k0, k1):
        """Add to rows W a the contributions of their normals first:last."""
        doubles = cuda.shared.array(0, float64)
        k = first
        while k < last:
            if doubles[u32(at_diagonal + k)] > 0.0:
                draw_column(acc, k, first, element, quad, layer, stream, k0, k1)
                k += 1
                # Two normals at a time share the keys of Philox' rounds.
                if k < last and doubles[u32(at_diagonal + k)] > 0.0:
                    draw_column(acc, k, first, element, quad, layer, stream, k0, k1)
            k += 1

    @cuda.jit(device=True)
    def draw_column(acc, k, first, element, quad, layer, stream, k0, k1):
        """Add to rows W a the contribution of their normal k, from column `first` on."""
        numbers = cuda.shared.array(0, kind)
        z0, z1, z2, z3 = draw_normals(np.uint32(element + k), quad, layer, stream, k0, k1)
        for c in range(first, columns):
            entry = numbers[u32(at_factor + k * padded + c)]
            acc[4 * c] += entry * z0
            acc[4 * c + 1] += entry * z1
            acc[4 * c + 2] += entry * z2
            acc[4 * c + 3] += entry * z3

    @cuda.jit(device=True)
    def finish_column(acc, j, row, width, skip, eps, x, kept):
        """Activate row j of the quad in registers, and write it to the tile."""
        numbers = cuda.shared.array(0, kind)
        at = at_tile + j * quads + thread()
        if row < width:
            for h in range(inputs):
                finish_row(acc, 4 * h * batch + j, 4, h, row, skip, eps, x, kept)
            for c in range(columns):
                numbers[u32(at + c * stride)] = acc[4 * c + j]
        else:
            for c in range(columns):
                numbers[u32(at + c * stride)] = number(0.0)

    return draw_activations


def _draw_together_function(shape: Shape, block: Block, rows: Rows) -> Any:
    columns, kind, number = shape.spec.columns, shape.spec.kind, shape.spec.number
    thread, draw_normals = block.thread, normals_of(shape)
    quads, groups, chunk, accumulators = shape.quads, shape.groups, shape.chunk, shape.accumulators
    padded, stride = shape.padded, shape.stride
    at_diagonal, at_factor, at_tile = shape.at.diagonal, shape.at.factor, shape.at.tile
    finish_tile = rows.finish_tile

    @cuda.jit(device=True)
    def draw_activations(
        first_row, width, element, layer, stream, k0, k1, skip, eps, x, kept
    ):  # fmt: skip
        draw_tile(first_row, element, layer, stream, k0, k1)
        finish_tile(first_row, width, skip, eps, x, kept)

    @cuda.jit(device=True)
    def draw_tile(first_row, element, layer, stream, k0, k1):
        """Write rows W a of the tile."""
        doubles = cuda.shared.array(0, float64)
        numbers = cuda.shared.array(0, kind)
        acc = cuda.local.array(accumulators, kind)
        t = thread()
        q, g = t % quads, t // quads
        quad = np.uint32(first_row // 4 + q)
        for k in range(g, columns, groups):
            at = at_tile + k * stride + q
            if doubles[u32(at_diagonal + k)] > 0.0:
                z0, z1, z2, z3 = draw_normals(np.uint32(element + k), quad, layer, stream, k0, k1)
                numbers[u32(at)] = z0
                numbers[u32(at + quads)] = z1
                numbers[u32(at + 2 * quads)] = z2
                numbers[u32(at + 3 * quads)] = z3
            else:
                for j in range(4):
                    numbers[u32(at + j * quads)] = number(0.0)
        cuda.syncthreads()
        for c in range(accumulators):
            acc[c] = number(0.0)
        for k in range(min(columns, (g + 1) * chunk)):
            at = at_tile + k * stride + q
            z0, z1 = numbers[u32(at)], numbers[u32(at + quads)]
            z2, z3 = numbers[u32(at + 2 * quads)], numbers[u32(at + 3 * quads)]
            of_factor = at_factor + k * padded + g * chunk
            for c in range(chunk):
                entry = numbers[u32(of_factor + c)]
                acc[4 * c] += entry * z0
                acc[4 * c + 1] += entry * z1
                acc[4 * c + 2] += entry * z2
                acc[4 * c + 3] += entry * z3
        cuda.syncthreads()
        for c in range(chunk):
            if g * chunk + c < columns:
                at = at_tile + (g * chunk + c) * stride + q
                for j in range(4):
                    numbers[u32(at + j * quads)] = acc[4 * c + j]
        cuda.syncthreads()

    return draw_activations
